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
_REFUSED = "test_inference.py::test_what_was_not_measured_to_cover_is_refused_before_anything_is_charged"

MUTANTS = [
    Mutant(
        "squares of gradients are of other signs",
        "GradientSquare.vectors",
        "gradients[:, a] * gradients[:, b]",
        "gradients[:, a] * np.abs(gradients[:, b])",
        _APART,
    ),
    Mutant(
        "matrices of curvature that are less the identity",
        "curvature_matrices",
        "square[a, k] * scale",
        "(square[a, k] - (a == k)) * scale",
        _APART,
    ),
    Mutant(
        "matrices that are not finite are kept",
        "curvature_matrices",
        "usable = trace > 2.0**-400 and trace < 2.0**400",
        "usable = True",
        _APART,
    ),
    Mutant(
        "a user's curvature goes on from the user before",
        "curvature_matrices",
        "square[:] = 0.0",
        "pass",
        _NUMPY,
    ),
    Mutant(
        "rounding of curvatures of very many rows not looked at",
        "curvature_matrices",
        "last - first > most_rows",
        "False",
        _MANY,
    ),
    Mutant(
        "standard errors that the plan does not pay for",
        "with_intervals",
        "gaussian=(1 - fraction) * _mu_squared(budget)",
        "gaussian=_mu_squared(budget)",
        _PLAN,
    ),
    Mutant(
        "releases for standard errors get the budget of all of it",
        "inference._steps",
        "fraction * _mu_squared(budget)",
        "_mu_squared(budget)",
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
        "inference._check_loss",
        'plain.name.split("(")[0] not in _LOSSES or',
        "",
        _REFUSED,
    ),
]
