"""Bugs in clipped means with the fraction of short vectors."""

from planted.mutant import Mutant

_TESTS = "test_clip_with_fraction.py::"
_NEIGHBOURS = _TESTS + "test_one_user_moves_mean_and_fraction_by_at_most_their_sensitivities_in_every_round"
_ATTAINED = _TESTS + "test_the_sensitivities_are_attained_in_both_directions_at_once"

MUTANTS = [
    Mutant(
        "fractions get half their noise",
        "ClipWithFraction.fraction_sensitivity",
        "/ self.expected",
        "/ 2 / self.expected",
        _ATTAINED,
    ),
    Mutant(
        "fractions of many users not paid for their rounding",
        "ClipWithFraction.fraction_sensitivity",
        "2.0**-49 * self.n_vectors",
        "2.0**-40",
        _TESTS + "test_the_sensitivities_are_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "the fraction is free",
        "ClipWithFraction.joint_multiplier",
        "+ 1 / self.fraction_multiplier**2",
        "",
        _TESTS + "test_mean_and_fraction_are_one_gaussian_release",
    ),
    Mutant(
        "fractions get the means' noise multiplier",
        "ClipWithFraction.released",
        "self.fraction_sensitivity, self.fraction_multiplier",
        "self.fraction_sensitivity, self.noise_multiplier",
        _TESTS + "test_the_noise_is_the_same_for_every_sample",
    ),
    Mutant(
        "short vectors count twice",
        "ClipWithFraction.released",
        "/ (2 * self.expected)",
        "/ self.expected",
        _NEIGHBOURS,
    ),
    Mutant(
        "long vectors count twice",
        "WithBalance.__call__",
        "2 * short - total[-1]",
        "3 * short - 2 * total[-1]",
        _TESTS + "test_short_is_what_is_finite_and_within_the_radius",
    ),
    Mutant(
        "a vector is short or long by where it stands",
        "WithBalance.__call__",
        "<= 1",
        "<= 1 + 2e-16 * (np.arange(len(rows)) % 2 * 8 - 4)",
        _TESTS + "test_whether_a_vector_is_short_does_not_depend_on_where_it_stands",
    ),
]
