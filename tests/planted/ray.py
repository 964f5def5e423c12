"""Bugs of the engine on Ray."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "a user may be asked twice",
        "RayUsers.lists_of",
        "np.count_nonzero(chosen) != len(users)",
        "False",
        "engines/test_ray.py::test_each_user_is_asked_once",
    ),
    Mutant(
        "a partition is counted twice",
        "RayEngine.total",
        "_array(answer) for answer in answers]",
        "_array(answer) for answer in [*answers, answers[0]]]",
        "engines/test_ray.py::test_totals_and_vectors_are_those_of_one_process",
    ),
    Mutant(
        "rows are chosen anew after a restart",
        "RayEngine.from_schema",
        '{"choice_key": key + b" of part %d" % part}',
        "{}",
        "engines/test_ray.py::test_capped_rows_are_the_same_after_a_restart",
    ),
    Mutant(
        "partitions may be of different versions of a file",
        "RayEngine._started",
        "len({said.sources for said in facts}) > 1",
        "False",
        "engines/test_ray.py::test_partitions_that_find_different_files_are_refused",
    ),
]
