"""Bugs in standard errors: in what they release, and in what they claim."""

from planted.mutant import Mutant

_APART = (
    "privacy/test_spreads.py::"
    "test_no_two_matrices_point_apart_and_a_replacement_moves_the_mean_by_at_most_its_sensitivity"
)
_NUMPY = "privacy/test_spreads.py::test_they_are_what_numpy_computes"
_MANY = "privacy/test_spreads.py::test_users_with_so_many_rows_that_rounding_could_turn_them_too_far_count_as_nobody"
_PLAN = "test_inference.py::test_one_plan_within_the_budget_and_one_charge"
_COVER = "test_inference.py::test_errors_are_as_large_as_the_standard_errors_say"
_SQUARES = (
    "privacy/test_spreads.py::"
    "test_squares_of_means_are_not_below_0_and_a_replacement_moves_their_mean_by_at_most_its_sensitivity"
)
_SIZES = (
    "privacy/test_spreads.py::"
    "test_sizes_of_means_are_one_1_and_a_replacement_moves_their_mean_by_at_most_its_sensitivity"
)
_WIDER = "test_private_mean.py::test_a_clip_is_wider_where_people_are_seen_beyond"
_MEAN_PLAN = "test_private_mean.py::test_one_plan_within_the_budget_and_one_charge"
_MEAN_ERRORS = "test_private_mean.py::test_errors_are_as_large_as_the_standard_errors_say"
_REFUSED = "test_inference.py::test_what_was_not_measured_to_cover_is_refused_before_anything_is_charged"

MUTANTS = [
    Mutant(
        "standard errors that the plan does not pay for",
        "with_intervals",
        "gaussian=(1 - fraction) * mu_squared",
        "gaussian=mu_squared",
        _PLAN,
    ),
    Mutant(
        "releases for standard errors get the budget of all of it",
        "with_intervals",
        "planned = IntervalSteps.of(n_users, problem.n_features, fraction * mu_squared)",
        "planned = IntervalSteps.of(n_users, problem.n_features, mu_squared)",
        _PLAN,
    ),
    Mutant(
        "standard errors without the noise",
        "IntervalSteps.refine",
        "around = known + float(parts @ cuts) ** 2",
        "around = float(parts @ cuts) ** 2",
        _COVER,
    ),
    Mutant(
        "standard errors without the choice of people",
        "IntervalSteps.refine",
        "meat / self.spread.n_vectors",
        "0 * meat",
        _COVER,
    ),
    Mutant(
        "rows are taken for independent people",
        "IntervalSteps._spread",
        "return _raised(drawn, 0.0)",
        "return target / 4",
        _COVER,
    ),
    Mutant(
        "intervals of too few users",
        "_too_rough",
        "> _MOST_ROUGH",
        "> 1e9",
        "test_inference.py::test_the_number_of_users_that_would_do_does",
    ),
    Mutant(
        "intervals for any loss",
        "with_intervals",
        'plain.name.split("(")[0] not in _LOSSES or',
        "",
        _REFUSED,
    ),
    Mutant(
        "half of the noise of squares of means",
        "MeanSteps.of",
        "1 / math.sqrt(fraction * mu_squared)",
        "0.5 / math.sqrt(fraction * mu_squared)",
        _MEAN_PLAN,
    ),
    Mutant(
        "squares of means that the plan does not pay for",
        "MeanSteps.of",
        "left = (1 - fraction) * mu_squared",
        "left = mu_squared",
        _MEAN_PLAN,
    ),
    Mutant(
        "how many people are how far is told for free",
        "MeanSteps.of",
        "left = (1 - _SIZES) * left",
        "",
        _MEAN_PLAN,
    ),
    Mutant(
        "half of the noise of how many people are how far",
        "MeanSteps.of",
        "1 / math.sqrt(_SIZES * left)",
        "0.5 / math.sqrt(_SIZES * left)",
        _MEAN_PLAN,
    ),
    Mutant(
        "how many people are how far is left out of the plan that is charged",
        "MeanSteps.plan",
        "SIZES: self.sizes,",
        "",
        _MEAN_PLAN,
    ),
    Mutant(
        "half of the noise of a mean around a location",
        "MeanSteps.of",
        "1 / math.sqrt(mu_squared)",
        "0.5 / math.sqrt(mu_squared)",
        "test_private_mean.py::test_a_plan_fits_its_budget_in_full",
    ),
    Mutant(
        "the farthest are not left out",
        "MeanSteps.located_mean",
        "_LEFT_OUT if self.spread is None else math.inf",
        "math.inf",
        "test_private_mean.py::test_the_farthest_are_left_out_and_others_clipped",
    ),
    Mutant(
        "a clip does not get wider where people are seen beyond",
        "MeanSteps._clipped",
        "int(np.argmax(beyond <= seen))",
        "0",
        _WIDER,
    ),
    Mutant(
        "intervals are shown though people are beyond any clip",
        "MeanSteps.located_mean",
        "and not clipped.lost",
        "",
        "test_private_mean.py::test_there_are_no_intervals_if_people_are_beyond_any_clip",
    ),
    Mutant(
        "a mean's location is not counted in its budget",
        "located_steps",
        "(1 - part) * mu_squared",
        "mu_squared",
        _MEAN_PLAN,
    ),
    Mutant(
        "the spread of a mean is left out of the plan that is charged",
        "MeanSteps.plan",
        "SPREAD: self.spread",
        "",
        _MEAN_PLAN,
    ),
    Mutant(
        "standard errors of a mean without its noise",
        "MeanSteps.located_mean",
        "math.hypot(noise_std, _SHORT * clipped.reach * clipped.beyond) ** 2",
        "0.0",
        _MEAN_ERRORS,
    ),
    Mutant(
        "standard errors of a mean without the choice of people",
        "MeanSteps.located_mean",
        "np.maximum(squares, 0.0) * scale",
        "0 * scale",
        _MEAN_ERRORS,
    ),
]
