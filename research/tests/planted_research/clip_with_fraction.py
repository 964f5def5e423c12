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
]
