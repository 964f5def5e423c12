"""Bugs in totals of users added up side by side: what one user's part depends on, lengths, and rounding."""

from planted.mutant import Mutant

_SHARED = "privacy/test_shared_totals.py::"
_TIE = _SHARED + "test_thousands_who_stand_at_a_tie_do_not_move_when_one_gets_more_rows"
_ALONE = _SHARED + "test_a_total_is_the_sum_of_users_by_themselves"
_LENGTHS = _SHARED + "test_lengths_are_rounded_up"
_MISSING = _SHARED + "test_one_user_with_a_missing_number_makes_no_difference_to_others"

MUTANTS = [
    Mutant(
        "rounding of shared sums is not paid for",
        "Clip.sensitivity",
        "+ SHARED_ROUNDING",
        "",
        _SHARED + "test_rounding_of_shared_sums_is_paid_for",
    ),
    Mutant(
        "what rows' lengths hide is dropped",
        "Geometry.norms",
        "_HIDDEN + 2 * rounding(lengths.dtype, 4)",
        "0.0",
        _LENGTHS,
    ),
    Mutant(
        "what adding products up loses is dropped",
        "Geometry.norms",
        "rounding(lengths.dtype, 2 * self.most_rows)",
        "0.0",
        _LENGTHS,
    ),
    Mutant(
        "slopes of several outputs are strided",
        "Geometry.norms",
        "list(np.ascontiguousarray(slopes.T))",
        "list(slopes.T)",
        _TIE,
    ),
    Mutant(
        "sums that are off are kept",
        "total_of_blocks",
        "not error <= allowed",
        "False",
        _MISSING,
    ),
    Mutant(
        "moments one by one are not rounded as those beside others",
        "MomentShape._summed",
        "self.of_users(rows, known)",
        "self.of_users(rows)",
        _MISSING,
    ),
    Mutant(
        "lost users are not blanked",
        "GradientTotal._one_by_one",
        "vectors[(factors == 0) | ~np.isfinite(vectors).all(axis=1)] = 0.0",
        "",
        _MISSING,
    ),
    Mutant(
        "factors are those of the user beside",
        "GradientTotal._factors",
        "_SAFE / norms",
        "_SAFE / np.roll(norms, 1)",
        _ALONE,
    ),
    Mutant(
        "bases of any numbers are taken",
        "is_tame",
        "bool(np.all(",
        "bool(True or np.all(",
        _SHARED + "test_bases_of_extreme_numbers_are_left_to_vectors",
    ),
    Mutant(
        "samples are added up in blocks",
        "ClippedTotal.clips_to",
        "self.laplace or self.sampled",
        "self.laplace",
        _SHARED + "test_samples_are_added_up_from_single_vectors",
    ),
]
