"""Bugs in noise, tests and what they cost."""

from planted.mutant import Mutant

MUTANTS = [
    Mutant(
        "seed reused: every curator draws the same noise",
        "noise_source",
        "SecureNoise()",
        "SeededNoise(0)",
        "privacy/test_curator.py::test_releases_are_close_to_the_truth_and_random",
    ),
    Mutant(
        "Gaussian noise halved",
        "SecureNoise.gaussian",
        ", std",
        ", std / 2",
        "privacy/test_noise.py::test_gaussian_noise_is_normal_with_the_asked_scale",
    ),
    Mutant(
        "integer Laplace noise halved",
        "SecureNoise.integer_laplace",
        ")(",
        "/ 2)(",
        "privacy/test_noise.py::test_integer_laplace_has_exactly_its_discrete_distribution",
    ),
    Mutant(
        "grid of the noise not paid for",
        "_certified_scale",
        "not _measurement(kind, enlarged, dimension).map(sensitivity) <= allowed",
        "False",
        "privacy/test_noise.py::test_the_grid_is_paid_for",
    ),
    Mutant(
        "threshold noise forgotten",
        "AboveThreshold.__init__",
        "noise.integer_laplace(threshold, scale / 2)",
        "threshold",
        "privacy/test_gates.py::test_above_threshold_draws_its_threshold_once_and_fresh_noise_a_round",
    ),
    Mutant(
        "an aborted stream answers again",
        "AboveThreshold.passes",
        'raise RuntimeError("This test has aborted and gives no more answers.")',
        "pass",
        "privacy/test_gates.py::test_above_threshold_draws_its_threshold_once_and_fresh_noise_a_round",
    ),
    Mutant(
        "sampled steps accounted as add-or-remove",
        "_composed",
        "REPLACE_ONE",
        "ADD_OR_REMOVE_ONE",
        "privacy/test_accounting.py::test_sampling_everyone_is_a_gaussian_of_twice_the_added_user_change",
    ),
    Mutant(
        "failure probability not added to delta",
        "delta_at",
        "sum_up(delta, cost.failure)",
        "delta",
        "privacy/test_accounting.py::test_failure_is_added_to_delta",
    ),
    Mutant(
        "Gaussian parts beside sampled ones forgotten",
        "_composed",
        "gaussian:",
        "gaussian and not cost.subsampled:",
        "privacy/test_accounting.py::test_gaussian_and_pure_parts_beside_sampled_ones_are_all_counted",
    ),
    Mutant(
        "pure parts beside sampled ones forgotten",
        "_composed",
        "epsilon in",
        "epsilon in () if cost.subsampled else",
        "privacy/test_accounting.py::test_gaussian_and_pure_parts_beside_sampled_ones_are_all_counted",
    ),
    Mutant(
        "coins rounded up",
        "SecureNoise.poisson_mask",
        "<",
        "<=",
        "privacy/test_noise.py::test_coins_round_their_probability_down",
    ),
    Mutant(
        "no epsilon held back",
        "reserved",
        "- max(EPSILON_RESERVE * epsilon, LEAST_EPSILON_RESERVE)",
        "",
        "privacy/test_accounting.py::test_epsilon_is_held_back_too",
    ),
    Mutant(
        "rounding of Fourier transforms not paid for",
        "_pld_rounding",
        "64 * convolutions * 2.0**-53 + 1e-13",
        "0.0",
        "privacy/test_accounting.py::test_rounding_of_many_sampled_steps_never_lowers_delta",
    ),
]
