"""Bugs of the engine on Ray."""

from planted.mutant import Mutant

_SCATTERED = " ".join(
    f"privacy/test_scattered.py::{test}"
    for test in (
        "test_the_same_as_of_gathered_vectors",
        "test_never_anything_else_for_any_vectors",
        "test_bounds_from_moments_hold_where_they_are_tight",
        "test_a_session_releases_the_same",
        "test_vectors_too_long_for_their_radius_are_like_no_other",
    )
)

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
    Mutant(
        "sums over vectors that were computed anew are mixed with others",
        "RayUsers.answers",
        "raise ComputedAnew",
        "pass",
        "engines/test_ray.py::test_answers_about_vectors_that_were_computed_anew_are_not_mixed",
    ),
    Mutant(
        "vectors that no bound shows to have enough neighbours count as if",
        "scattered.Settled.__call__",
        "np.count_nonzero(distant <= size - enough)",
        "np.count_nonzero(distant <= size - min(whole, enough))",
        _SCATTERED,
    ),
    Mutant(
        "ambiguous vectors get weight 1",
        "Concentrated.mean",
        "ramp.weights(self.counts)",
        "np.ones(len(self.counts))",
        _SCATTERED,
    ),
    Mutant(
        "vectors that are like no other are counted",
        "scattered._measured",
        "c.comparable(vectors, radius)",
        "np.ascontiguousarray(vectors)",
        _SCATTERED,
    ),
    Mutant(
        "a shell is taken to end before its vectors do",
        "scattered.Settled._distant",
        "squares, tops = measured.upper**2, self.marks",
        "squares, tops = measured.upper**2, np.append(0, self.marks[:-1])",
        _SCATTERED,
    ),
    Mutant(
        "ambiguous vectors are counted in one part only",
        "scattered._about",
        "np.sum(vectors.mapped(asked), axis=0)",
        "vectors.mapped(asked)[0]",
        _SCATTERED,
    ),
]
