"""Bugs in winsorised means."""

from planted.mutant import Mutant

_FILE = "baselines/mechanisms/winsorized.py"
_TESTS = "privacy/test_winsorized.py::"

MUTANTS = [
    Mutant(
        "winsorised counts: a replacement taken for one vote",
        _FILE,
        "votes = 1 if self.samples_users else 2",
        "votes = 1",
        _TESTS + "test_both_sensitivities_are_attained",
    ),
    Mutant(
        "winsorised counts: noise of one coordinate",
        _FILE,
        "math.nextafter(math.sqrt(votes * dimension), math.inf)",
        "math.sqrt(votes)",
        _TESTS + "test_both_sensitivities_are_attained",
    ),
    Mutant(
        "winsorised means: a replacement taken for an added user",
        _FILE,
        "moved = reach if self.samples_users else 2 * reach",
        "moved = reach",
        _TESTS + "test_both_sensitivities_are_attained",
    ),
    Mutant(
        "winsorised means: noise of the widest coordinate only",
        _FILE,
        "reach = float(np.sqrt(np.sum(half_widths**2)))",
        "reach = float(np.max(half_widths))",
        _TESTS + "test_both_sensitivities_are_attained",
    ),
    Mutant(
        "winsorised means: samples divided by everyone's number in the sensitivity",
        _FILE,
        "return moved / (self.sampling_probability * self.n_vectors) * (1 + rounding)",
        "return moved / self.n_vectors * (1 + rounding)",
        _TESTS + "test_both_sensitivities_are_attained",
    ),
    Mutant(
        "winsorised means: rounding not paid for",
        _FILE,
        "rounding = 2.0**-50 * (self.n_vectors**2 + half_widths.size + 8)",
        "rounding = 0.0",
        _TESTS + "test_the_sensitivity_pays_for_the_rounding_of_long_sums",
    ),
    Mutant(
        "winsorised means: not clipped",
        _FILE,
        "np.clip(values - middle, -half, half).sum(axis=0)",
        "(values - middle).sum(axis=0)",
        _TESTS + "test_no_replacement_moves_counts_or_mean_by_more_than_their_sensitivity",
    ),
    Mutant(
        "winsorised means: intervals by the counts without noise",
        _FILE,
        "np.argmax(noisy.reshape(counts.shape), axis=1)",
        "np.argmax(counts, axis=1)",
        _TESTS + "test_audit_of_the_winning_bin",
    ),
    Mutant(
        "winsorised means: divided by the batch",
        _FILE,
        "mean = offsets / (record.sampling_probability * record.n_vectors)",
        "mean = offsets / max(1, len(values))",
        _TESTS + "test_noise_and_divisor_do_not_tell_the_size_of_a_batch",
    ),
    Mutant(
        "winsorised means: half the noise",
        _FILE,
        "record.sensitivity(half), record.mean_multiplier)",
        "record.sensitivity(half), record.mean_multiplier / 2)",
        _TESTS + "test_counts_and_mean_get_noise_of_their_multipliers",
    ),
    Mutant(
        "winsorised counts: half the noise",
        _FILE,
        "sensitivity, record.count_multiplier)",
        "sensitivity, record.count_multiplier / 2)",
        _TESTS + "test_counts_and_mean_get_noise_of_their_multipliers",
    ),
    Mutant(
        "winsorised counts not charged",
        _FILE,
        "precision = 1 / self.count_multiplier**2 + 1 / self.mean_multiplier**2",
        "precision = 1 / self.mean_multiplier**2",
        _TESTS + "test_the_cost_is_that_of_both_gaussians_in_every_round",
    ),
    Mutant(
        "winsorised rounds charged as one",
        _FILE,
        "Cost(gaussian=self.rounds * precision * (1 + 1e-12))",
        "Cost(gaussian=precision * (1 + 1e-12))",
        _TESTS + "test_the_cost_is_that_of_both_gaussians_in_every_round",
    ),
    Mutant(
        "winsorised sampled rounds charged as one",
        _FILE,
        "self.sampling_probability, joint, self.rounds)",
        "self.sampling_probability, joint, 1)",
        _TESTS + "test_the_cost_is_that_of_both_gaussians_in_every_round",
    ),
    Mutant(
        "winsorised samples without other users not charged",
        _FILE,
        "failure=min(1.0, alone * (1 + 1e-9)))",
        "failure=0 * alone)",
        _TESTS + "test_the_cost_is_that_of_both_gaussians_in_every_round",
    ),
    Mutant(
        "winsorised samples are everyone",
        _FILE,
        "return users[self._noise.poisson_mask(np.full(len(users), self._record.sampling_probability))]",
        "return users",
        _TESTS + "test_samples_are_poisson_and_everyone_is_everyone",
    ),
    Mutant(
        "more winsorised vectors than priced",
        _FILE,
        "if len(vectors) > record.n_vectors or (len(vectors) < record.n_vectors and not record.samples_users):",
        "if len(vectors) < record.n_vectors and not record.samples_users:",
        _TESTS + "test_another_number_of_vectors_than_priced_is_refused",
    ),
    Mutant(
        "more winsorised rounds than priced",
        _FILE,
        "        self._rounds_left -= 1\n",
        "",
        _TESTS + "test_no_more_rounds_than_priced",
    ),
    Mutant(
        "winsorised vectors that are not finite are kept",
        _FILE,
        "np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)",
        "vectors",
        _TESTS + "test_no_replacement_moves_counts_or_mean_by_more_than_their_sensitivity",
    ),
]
