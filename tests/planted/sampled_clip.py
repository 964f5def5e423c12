"""Bugs in clipped means of samples."""

from planted.mutant import Mutant

_TESTS = "privacy/test_sampled_clip.py::"
_NEIGHBOURS = _TESTS + "test_one_user_moves_mean_and_fraction_by_at_most_their_sensitivities_in_every_round"
_ATTAINED = _TESTS + "test_the_sensitivities_are_attained_in_both_directions_at_once"
_SAME_NOISE = _TESTS + "test_the_noise_is_the_same_for_every_sample"
_COUNTS = _TESTS + "test_another_number_of_vectors_than_sampled_is_refused"
_ROUNDS = _TESTS + "test_a_sample_serves_one_release_and_rounds_are_counted"

MUTANTS = [
    Mutant(
        "means of samples get the noise of all users",
        "SampledClip.sensitivity",
        "expected",
        "n_vectors",
        _ATTAINED,
    ),
    Mutant(
        "rounding of samples' sums not paid for",
        "SampledClip.sensitivity",
        "self.n_vectors *",
        "",
        _TESTS + "test_the_sensitivities_are_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "fractions get half their noise",
        "SampledClip.fraction_sensitivity",
        "2",
        "4",
        _ATTAINED,
    ),
    Mutant(
        "fractions of many users not paid for their rounding",
        "SampledClip.fraction_sensitivity",
        "49 * self.n_vectors",
        "40",
        _TESTS
        + "test_fractions_of_many_users_are_never_farther_apart_than_their_sensitivity "
        + _TESTS
        + "test_the_sensitivities_are_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "the fraction is free",
        "SampledClip.joint_multiplier",
        "precision += 1 / self.fraction_multiplier**2",
        "pass",
        _TESTS + "test_mean_and_fraction_are_one_gaussian_release",
    ),
    Mutant(
        "sampled rounds charged as one",
        "SampledClip.cost",
        ", self.rounds",
        ", 1",
        _TESTS + "test_mean_and_fraction_are_one_gaussian_release",
    ),
    Mutant(
        "a replacement of everyone charged as an addition",
        "SampledClip.cost",
        "2 /",
        "1 /",
        _TESTS + "test_with_everyone_in_it_costs_what_clipping_costs_and_the_fraction",
    ),
    Mutant(
        "rounds of everyone charged as one",
        "SampledClip.cost",
        "self.rounds *",
        "",
        _TESTS + "test_with_everyone_in_it_costs_what_clipping_costs_and_the_fraction",
    ),
    Mutant(
        "sampled means get half their noise multiplier",
        "sampled_clip._Session.release",
        "added_user_multiplier",
        "added_user_multiplier / 2",
        _SAME_NOISE,
    ),
    Mutant(
        "fractions get the means' noise multiplier",
        "sampled_clip._Session.release",
        ", record.fraction_multiplier",
        ", record.added_user_multiplier",
        _SAME_NOISE,
    ),
    Mutant(
        "sums divided by the sample's own size",
        "sampled_clip._Session.release",
        "/ record.expected",
        "/ max(1, len(vectors))",
        _TESTS + "test_sums_of_the_sample_are_divided_by_how_many_are_expected " + _NEIGHBOURS,
    ),
    Mutant(
        "everyone is sampled",
        "sampled_clip._Session.choose",
        "[self._noise.poisson_mask(np.full(len(users), self._record.sampling_probability))]",
        "",
        _TESTS + "test_samples_are_poisson_and_fresh",
    ),
    Mutant(
        "the user asked for an empty sample counts",
        "sampled_clip._Session.choose",
        "len(chosen) > 0",
        "True",
        _TESTS + "test_an_empty_sample_is_noise_alone_and_tells_that_it_knows_nothing",
    ),
    Mutant(
        "votes depend on where a vector stands",
        "n_short",
        "1.0",
        "1.0 + 2e-16 * (np.arange(len(squares)) % 2 * 8 - 4)",
        _TESTS + "test_whether_a_vector_is_short_does_not_depend_on_where_it_stands",
    ),
    Mutant(
        "long vectors vote twice",
        "sampled_clip._Session.add",
        "2 * n_short(vectors, radius) -",
        "3 * n_short(vectors, radius) - 2 *",
        _NEIGHBOURS,
    ),
    Mutant(
        "another number of users than priced",
        "sampled_clip._Session.choose",
        "len(users) != self._record.n_vectors",
        "False",
        _TESTS + "test_another_number_of_users_than_priced_is_refused",
    ),
    Mutant(
        "more vectors than were sampled",
        "sampled_clip._Session.release",
        "!=",
        ">",
        _COUNTS,
    ),
    Mutant(
        "fewer vectors than were sampled",
        "sampled_clip._Session.release",
        "!=",
        "<",
        _COUNTS,
    ),
    Mutant(
        "more sampled rounds than paid for",
        "sampled_clip._Session.release",
        "==",
        "<",
        _ROUNDS,
    ),
    Mutant(
        "a sample serves twice",
        "sampled_clip._Session.release",
        "(0)",
        "(len(vectors))",
        _ROUNDS,
    ),
    Mutant(
        "sampled blocks of one round with different radii",
        "sampled_clip._Session.add",
        "radius != self._radius",
        "False",
        _TESTS + "test_the_blocks_of_a_round_share_one_radius_and_width",
    ),
    Mutant(
        "sampled blocks of different width",
        "sampled_clip._Session.add",
        "vectors.shape[1] != self._total.size",
        "False",
        _TESTS + "test_the_blocks_of_a_round_share_one_radius_and_width",
    ),
]
