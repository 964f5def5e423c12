"""Bugs in noise, tests and what they cost."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "seed reused: every curator draws the same noise",
        "privacy/noise.py",
        "        return SecureNoise()\n",
        "        return SeededNoise(0)\n",
        "privacy/test_curator.py::test_releases_are_close_to_the_truth_and_random",
    ),
    Mutant(
        "Gaussian noise halved",
        "privacy/noise.py",
        '(_measurement("gaussian", std, query.size)(query.tolist()), dtype=np.float64)',
        '(_measurement("gaussian", std / 2, query.size)(query.tolist()), dtype=np.float64)',
        "privacy/test_noise.py::test_gaussian_noise_is_normal_with_the_asked_scale",
    ),
    Mutant(
        "integer Laplace noise halved",
        "privacy/noise.py",
        "return int(_integer_measurement(scale)(int(query)))",
        "return int(_integer_measurement(scale / 2)(int(query)))",
        "privacy/test_noise.py::test_integer_laplace_has_exactly_its_discrete_distribution",
    ),
    Mutant(
        "grid of the noise not paid for",
        "privacy/noise.py",
        "while not _measurement(kind, enlarged, dimension).map(sensitivity) <= allowed:",
        "while False:",
        "privacy/test_noise.py::test_the_grid_is_paid_for",
    ),
    Mutant(
        "threshold noise forgotten",
        "privacy/mechanisms/tests.py",
        "self._threshold = noise.integer_laplace(threshold, scale / 2)",
        "self._threshold = threshold",
        "privacy/test_gates.py::test_above_threshold_draws_its_threshold_once_and_fresh_noise_a_round",
    ),
    Mutant(
        "an aborted stream answers again",
        "privacy/mechanisms/tests.py",
        '            raise RuntimeError("This test has aborted and gives no more answers.")\n',
        "            pass\n",
        "privacy/test_gates.py::test_above_threshold_draws_its_threshold_once_and_fresh_noise_a_round",
    ),
    Mutant(
        "sampled steps accounted as add-or-remove",
        "privacy/accounting.py",
        "sampled: NeighboringRelation = NeighboringRelation.REPLACE_ONE",
        "sampled: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE",
        "privacy/test_accounting.py::test_sampling_everyone_is_a_gaussian_of_twice_the_added_user_change",
    ),
    Mutant(
        "failure probability not added to delta",
        "privacy/accounting.py",
        "return min(1.0, sum_up(delta, cost.failure))",
        "return min(1.0, delta)",
        "privacy/test_accounting.py::test_failure_is_added_to_delta",
    ),
    Mutant(
        "Gaussian parts beside sampled ones forgotten",
        "privacy/accounting.py",
        "    if cost.gaussian:\n        total",
        "    if cost.gaussian and not cost.subsampled:\n        total",
        "privacy/test_accounting.py::test_gaussian_and_pure_parts_beside_sampled_ones_are_all_counted",
    ),
    Mutant(
        "pure parts beside sampled ones forgotten",
        "privacy/accounting.py",
        "    for epsilon in cost.pure:\n",
        "    for epsilon in () if cost.subsampled else cost.pure:\n",
        "privacy/test_accounting.py::test_gaussian_and_pure_parts_beside_sampled_ones_are_all_counted",
    ),
    Mutant(
        "coins rounded up",
        "privacy/noise.py",
        "uniform < np.floor(probabilities * 2.0**53)",
        "uniform <= np.floor(probabilities * 2.0**53)",
        "privacy/test_noise.py::test_coins_round_their_probability_down",
    ),
    Mutant(
        "no epsilon held back",
        "privacy/accounting.py",
        "return epsilon - max(EPSILON_RESERVE * epsilon, LEAST_EPSILON_RESERVE)",
        "return epsilon",
        "privacy/test_accounting.py::test_epsilon_is_held_back_too",
    ),
    Mutant(
        "rounding of Fourier transforms not paid for",
        "privacy/accounting.py",
        "return 64 * convolutions * 2.0**-53 + 1e-13",
        "return 0.0",
        "privacy/test_accounting.py::test_rounding_of_many_sampled_steps_never_lowers_delta",
    ),
]
