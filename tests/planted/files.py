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
    Mutant(
        "statistics: users see how much others hold",
        "MeanGradient.run",
        "self.weights.reshape(n_outputs, data.n_features)",
        "self.weights.reshape(n_outputs, data.n_features) * (1 + 1e-9 * len(data.rows))",
        "hostile/test_hostile_solvers.py::test_one_user_moves_releases_by_what_is_paid_for_and_nothing_else",
    ),
]
