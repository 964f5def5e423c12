"""Bugs in clipped means of samples."""

from planted.mutant import Mutant

_HERE = "privacy/mechanisms/sampled_clip.py"
_TESTS = "privacy/test_sampled_clip.py::"
_NEIGHBOURS = _TESTS + "test_one_user_moves_mean_and_fraction_by_at_most_their_sensitivities_in_every_round"
_ATTAINED = _TESTS + "test_the_sensitivities_are_attained_in_both_directions_at_once"
_SAME_NOISE = _TESTS + "test_the_noise_is_the_same_for_every_sample"
_COUNTS = _TESTS + "test_another_number_of_vectors_than_sampled_is_refused"
_ROUNDS = _TESTS + "test_a_sample_serves_one_release_and_rounds_are_counted"

MUTANTS = [
    Mutant(
        "means of samples get the noise of all users",
        _HERE,
        "return radius / self.expected * (1",
        "return radius / self.n_vectors * (1",
        _ATTAINED,
    ),
    Mutant(
        "rounding of samples' sums not paid for",
        _HERE,
        "self.n_vectors * (self.n_vectors + dimension + 8)",
        "(self.n_vectors + dimension + 8)",
        _TESTS + "test_the_sensitivities_are_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "fractions get half their noise",
        _HERE,
        "/ (2 * self.expected)",
        "/ (4 * self.expected)",
        _ATTAINED,
    ),
    Mutant(
        "fractions of many users not paid for their rounding",
        _HERE,
        "(1 + 2.0**-49 * self.n_vectors) / (2",
        "(1 + 2.0**-40) / (2",
        _TESTS
        + "test_fractions_of_many_users_are_never_farther_apart_than_their_sensitivity "
        + _TESTS
        + "test_the_sensitivities_are_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "the fraction is free",
        _HERE,
        "precision += 1 / self.fraction_multiplier**2",
        "pass",
        _TESTS + "test_mean_and_fraction_are_one_gaussian_release",
    ),
    Mutant(
        "sampled rounds charged as one",
        _HERE,
        "self.joint_multiplier, self.rounds),",
        "self.joint_multiplier, 1),",
        _TESTS + "test_mean_and_fraction_are_one_gaussian_release",
    ),
    Mutant(
        "a replacement of everyone charged as an addition",
        _HERE,
        "self.rounds * (2 / self.joint_multiplier) ** 2",
        "self.rounds * (1 / self.joint_multiplier) ** 2",
        _TESTS + "test_with_everyone_in_it_costs_what_clipping_costs_and_the_fraction",
    ),
    Mutant(
        "rounds of everyone charged as one",
        _HERE,
        "self.rounds * (2 / self.joint_multiplier) ** 2",
        "(2 / self.joint_multiplier) ** 2",
        _TESTS + "test_with_everyone_in_it_costs_what_clipping_costs_and_the_fraction",
    ),
    Mutant(
        "sampled means get half their noise multiplier",
        _HERE,
        "record.sensitivity(radius, total.size), record.added_user_multiplier)",
        "record.sensitivity(radius, total.size), record.added_user_multiplier / 2)",
        _SAME_NOISE,
    ),
    Mutant(
        "fractions get the means' noise multiplier",
        _HERE,
        "record.fraction_sensitivity, record.fraction_multiplier)",
        "record.fraction_sensitivity, record.added_user_multiplier)",
        _SAME_NOISE,
    ),
    Mutant(
        "sums divided by the sample's own size",
        _HERE,
        "mean = total / record.expected",
        "mean = total / max(1, len(vectors))",
        _TESTS + "test_sums_of_the_sample_are_divided_by_how_many_are_expected " + _NEIGHBOURS,
    ),
    Mutant(
        "everyone is sampled",
        _HERE,
        "users[self._noise.poisson_mask(np.full(len(users), self._record.sampling_probability))]",
        "users",
        _TESTS + "test_samples_are_poisson_and_fresh",
    ),
    Mutant(
        "the user asked for an empty sample counts",
        _HERE,
        "self._counted = len(chosen) > 0",
        "self._counted = True",
        _TESTS + "test_an_empty_sample_is_noise_alone_and_tells_that_it_knows_nothing",
    ),
    Mutant(
        "votes depend on where a vector stands",
        _HERE,
        "squares <= 1.0))",
        "squares <= 1.0 + 2e-16 * (np.arange(len(squares)) % 2 * 8 - 4)))",
        _TESTS + "test_whether_a_vector_is_short_does_not_depend_on_where_it_stands",
    ),
    Mutant(
        "long vectors vote twice",
        _HERE,
        "self._balance += 2 * n_short(vectors, radius) - len(vectors)",
        "self._balance += 3 * n_short(vectors, radius) - 2 * len(vectors)",
        _NEIGHBOURS,
    ),
    Mutant(
        "another number of users than priced",
        _HERE,
        "        if len(users) != self._record.n_vectors:\n",
        "        if False:\n",
        _TESTS + "test_another_number_of_users_than_priced_is_refused",
    ),
    Mutant(
        "more vectors than were sampled",
        _HERE,
        "        if left != 0:\n",
        "        if left > 0:\n",
        _COUNTS,
    ),
    Mutant(
        "fewer vectors than were sampled",
        _HERE,
        "        if left != 0:\n",
        "        if left < 0:\n",
        _COUNTS,
    ),
    Mutant(
        "more sampled rounds than paid for",
        _HERE,
        "        if self._rounds_left == 0:\n",
        "        if self._rounds_left < 0:\n",
        _ROUNDS,
    ),
    Mutant(
        "a sample serves twice",
        _HERE,
        "        self._begin(0)\n        if left",
        "        self._begin(len(vectors))\n        if left",
        _ROUNDS,
    ),
    Mutant(
        "sampled blocks of one round with different radii",
        _HERE,
        "        if radius != self._radius:\n",
        "        if False:\n",
        _TESTS + "test_the_blocks_of_a_round_share_one_radius_and_width",
    ),
    Mutant(
        "sampled blocks of different width",
        _HERE,
        "        if vectors.shape[1] != self._total.size:\n",
        "        if False:\n",
        _TESTS + "test_the_blocks_of_a_round_share_one_radius_and_width",
    ),
]
