"""Bugs in what reads files and cells: one person's cell decides about others, or damage makes a run free."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "ledger: a damaged run is free",
        "privacy/ledger.py",
        "    if not costs:\n",
        "    if False:\n",
        "hostile/test_fuzz.py::test_what_was_found",
    ),
    Mutant(
        "statistics: users see how much others hold",
        "vectors/gradients.py",
        "        weights = self.weights.reshape(n_outputs, data.n_features)\n",
        "        weights = self.weights.reshape(n_outputs, data.n_features) * (1 + 1e-9 * len(data.rows))\n",
        "hostile/test_hostile_solvers.py::test_one_user_moves_releases_by_what_is_paid_for_and_nothing_else",
    ),
]
