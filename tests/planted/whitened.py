"""Bugs in means of vectors that never point apart, and in what whitened-clip computes of users."""

from planted.mutant import Mutant

_ACUTE = "privacy/test_acute_clip.py::"
_ALONE = "test_whitened_statistics.py::test_a_users_vector_is_the_same_bit_by_bit_whoever_else_there_is"

MUTANTS = [
    Mutant(
        "acute means get the noise of one radius",
        "Clip.sensitivity",
        "math.sqrt(2 + turned)",
        "1 + turned",
        _ACUTE + "test_the_sensitivity_is_attained_by_rows_along_one_axis_or_along_another",
    ),
    Mutant(
        "acute means get half their noise",
        "Clip.sensitivity",
        "if",
        "/ 2 if",
        _ACUTE + "test_audit_of_the_release",
    ),
    Mutant(
        "rounding of angles not paid for",
        "Clip.sensitivity",
        "_ROUNDED_ANGLE",
        "0.0",
        _ACUTE + "test_the_sensitivity_is_at_least_what_the_proof_says_of_rounding",
    ),
    Mutant(
        "all clipped means get the noise of right angles",
        "Clip.sensitivity",
        "if",
        "if not",
        _ACUTE + "test_noise_is_that_of_right_angles_only_where_asked_for",
    ),
    Mutant(
        "whatever is not false asks for the noise of right angles",
        "Clip.__post_init__",
        "self.acute is True",
        "bool(self.acute)",
        _ACUTE + "test_noise_is_that_of_right_angles_only_where_asked_for",
    ),
    Mutant(
        "any statistic may be taken for acute",
        "Curator._check",
        "step.mechanism.acute",
        "False",
        _ACUTE + "test_acute_steps_take_no_statistic_but_those_proven",
    ),
    Mutant(
        "subclasses are taken for acute",
        "Curator._check",
        "type(statistic) not in _ACUTE",
        "not isinstance(statistic, _ACUTE)",
        _ACUTE + "test_acute_steps_take_no_statistic_but_those_proven",
    ),
    Mutant(
        "whitened steps planned beyond the budget, and not certified",
        "plan_whitened_clip",
        ".certify(budget)",
        "= Plan(n_users, (*whitening, *means, *(Step('more', 0, n_users, means[-1].mechanism),)))",
        "solvers/test_whitened_clip.py::test_every_plan_is_within_its_budget_and_uses_it_up",
    ),
    Mutant(
        "counts that locate a quantile are not paid for",
        "schedule._of_everyone",
        "- located",
        "",
        "solvers/test_quantiles.py::test_counts_are_in_the_plan_and_paid_for",
    ),
    Mutant(
        "more counts than were planned",
        "quantiles.located",
        "range(n_counts)",
        "range(2 * n_counts)",
        "solvers/test_quantiles.py::test_there_are_never_more_counts_than_were_planned",
    ),
    Mutant(
        "counts are longer than their radius",
        "Counts._radius",
        "self._clip *",
        "self._clip * 0.5 *",
        "solvers/test_quantiles.py::test_there_are_never_more_counts_than_were_planned",
    ),
]
