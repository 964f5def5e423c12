"""Bugs in what becomes of rows with missing or infinite cells, and of their owners."""

from planted.mutant import Mutant

_ALONE = "test_missing.py::test_what_is_left_of_a_user_is_a_matter_of_that_user_alone"
_CONTAINERS = "test_missing.py::test_all_containers_leave_out_the_same_rows"
_MARKS = "test_missing.py::test_affected_users_share_a_mark_between_their_size_and_the_indicator"
_FLAGS = "test_missing.py::test_flags_go_where_their_users_go"

MUTANTS = [
    Mutant(
        "a missing cell costs rows of others",
        "users._usable_rows",
        "options.usable(rows[some], kept).all(axis=1)",
        "options.usable(rows[some], kept).all()",
        _ALONE,
    ),
    Mutant(
        "a missing entry of a sparse row costs the next row",
        "users._usable_rows",
        'np.searchsorted(rows.indptr, lost, side="right") - 1',
        '(np.searchsorted(rows.indptr, lost, side="right")) % max(1, len(usable))',
        _ALONE,
    ),
    Mutant(
        "a user without a usable row is one no more",
        "Groups.kept",
        "running_total(mine)[self.offsets]",
        "np.unique(running_total(mine)[self.offsets])",
        "test_missing.py::test_rows_are_left_out_and_not_their_owners",
    ),
    Mutant(
        "a part of the users has others' flags",
        "UserData.part",
        "self.affected[first:last]",
        "self.affected[: last - first]",
        _FLAGS,
    ),
    Mutant(
        "users who are taken have others' flags",
        "UserData.taken",
        "self.affected[users]",
        "self.affected[: len(users)]",
        _FLAGS,
    ),
    Mutant(
        "a store tells that users lost rows by their first row alone",
        "_Writer.add",
        "np.bincount(own, lost) > 0",
        "np.bincount(own, lost & begins) > 0",
        _CONTAINERS,
    ),
    Mutant(
        "a store keeps rows that cannot be used",
        "_Writer.add",
        "~lost & (ranks < cap)",
        "ranks < cap",
        _CONTAINERS,
    ),
]
