"""Bugs in what reads files and cells: one person's cell decides about others, or damage makes a run free."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "ledger: a damaged run is free",
        "ledger._read",
        "not records",
        "False",
        "hostile/test_fuzz.py::test_what_was_found",
    ),
]
