"""Bugs in what reads files and cells: one person's cell decides about others, or damage makes a run free."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "CSV: one person's id decides who others are",
        "table_files.py",
        "return kept if kept is not None and _is_text(kept.type) else self.text(name)",
        "return self[name]",
        "hostile/test_hostile_files.py::test_ids_of_csv_are_told_apart_the_same_whatever_others_are_called",
    ),
    Mutant(
        "CSV: one slip changes other people's numbers",
        "table_files.py",
        "|(?i:inf|infinity))$",
        ")$",
        "hostile/test_hostile_files.py::test_a_cell_of_csv_means_the_same_whatever_others_write",
    ),
    Mutant(
        "CSV: one slip among missing numbers decides the column's type",
        "table_files.py",
        "    present = pc.sum(pc.invert(pc.is_in(cells, value_set=_BLANKS.cast(cells.type)))).as_py() or 0\n",
        "    present = len(column) - column.null_count\n",
        "hostile/test_hostile_files.py::test_missing_numbers_do_not_make_one_slip_decide",
    ),
    Mutant(
        "ledger: a damaged run is free",
        "privacy/ledger.py",
        "    if not costs:\n",
        "    if False:\n",
        "hostile/test_fuzz.py::test_what_was_found",
    ),
    Mutant(
        "private mean: the first cell decides what rows are",
        "reading.py",
        "    return 2 * sum(map(_is_row, X)) <= len(X)\n",
        "    return not _is_row(X[0])\n",
        "hostile/test_hostile_estimators.py::test_the_first_row_does_not_decide_what_rows_are",
    ),
    Mutant(
        "statistics: users see how much others hold",
        "statistics.py",
        "kernels.mean_gradients(*users_rows, weights, slopes, shifts)\n",
        "kernels.mean_gradients(*users_rows, weights * (1 + 1e-9 * len(data.rows)), slopes, shifts)\n",
        "hostile/test_hostile_solvers.py::test_one_user_moves_releases_by_what_is_paid_for_and_nothing_else",
    ),
]
