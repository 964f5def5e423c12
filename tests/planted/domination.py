"""Bugs in what runs are charged as between runs, and in the filter."""

from planted.mutant import Mutant

_ADVERSARY = "privacy/test_ledger_adversary.py::"
_CURVES = "privacy/test_domination.py::"

MUTANTS = [
    Mutant(
        "runs composed as if they had been fixed in advance",
        "Ledger.charge",
        "new = self._accepted(plan.costs, before)",
        "if not before:\n"
        "    plan.certify(self.budget)\n"
        "new = _priced(plan.costs, _totals(before), self._filter)\n"
        "for cost in plan.costs if before else ():\n"
        "    for (text,) in db.execute('SELECT costs FROM runs').fetchall():\n"
        "        cost = cost + _read(Cost, text)[0]\n"
        "    if epsilon_at(cost, self.budget.delta) > self.budget.epsilon:\n"
        "        plan.certify(Budget(1e-9, 0.0))",
        _ADVERSARY + "test_a_second_run_that_is_chosen_by_the_first_release",
    ),
    Mutant(
        "room that noise leaves is given to failures",
        "Filter.fits",
        "if total.failure > self.most_failure:\n"
        "    return False\n"
        "return a.fits(Cost(gaussian=total.mu_squared), self.gaussian) or",
        "return a.fits(Cost(gaussian=total.mu_squared, failure=total.failure), self.budget) or",
        _ADVERSARY + "test_room_that_noise_leaves_is_not_given_to_failures",
    ),
    Mutant(
        "noise may use the failures' fraction",
        "Filter.gaussian",
        "Budget(self.budget.epsilon, (1 - self.failure_fraction) * self.budget.delta)",
        "self.budget",
        _CURVES + "test_what_failures_leave_is_not_given_to_noise",
    ),
    Mutant(
        "failures of runs not limited",
        "Filter.fits",
        "if total.failure > self.most_failure:\n    return False",
        "",
        _ADVERSARY + "test_a_second_run_that_is_chosen_by_the_first_release",
    ),
    Mutant(
        "failures of runs not added up",
        "Dominating.__add__",
        ", a.sum_up",
        ", max",
        _CURVES + "test_sums_and_covers",
    ),
    Mutant(
        "mu^2 of runs added like independent deviations",
        "Dominating.__add__",
        "a.sum_up(self.mu_squared, other.mu_squared)",
        "math.hypot(self.mu_squared, other.mu_squared)",
        _CURVES + "test_sums_and_covers",
    ),
    Mutant(
        "a pure epsilon charged as mu",
        "pure_mu",
        "(-2 * ndtri_exp(-np.logaddexp(0.0, epsilon))) * (1 + 1e-12) + 1e-15",
        "(epsilon)",
        _CURVES + "test_the_gaussian_curve_is_above_that_of_a_pure_epsilon_and_touches_it",
    ),
    Mutant(
        "a pure epsilon charged as half its mu",
        "pure_mu",
        "2",
        "1",
        _CURVES + "test_a_pure_epsilon_is_randomised_response_by_the_sign_of_a_gaussian",
    ),
    Mutant(
        "mu of a pure epsilon rounded to nearest",
        "pure_mu",
        "(1 + 1e-12) + 1e-15",
        "(1 - 1e-12)",
        _CURVES + "test_a_pure_epsilon_is_randomised_response_by_the_sign_of_a_gaussian",
    ),
    Mutant(
        "Gaussian runs counted as pure ones",
        "domination.dominating",
        "inf if cost.gaussian or cost.subsampled else math.",
        "",
        _ADVERSARY + "test_pure_runs_alone_add_up_to_epsilon",
    ),
    Mutant(
        "a run's own failure forgotten",
        "domination.dominating",
        "a.sum_up(cost.failure, sampled.failure)",
        "sampled.failure",
        _CURVES + "test_parts_are_dominated_together_and_failures_added",
    ),
    Mutant(
        "the failure of a sampled run's curve not charged",
        "domination.dominating",
        "a.sum_up(cost.failure, sampled.failure)",
        "cost.failure",
        _CURVES + "test_the_gaussian_curve_and_the_failure_are_above_a_sampled_run",
    ),
    Mutant(
        "a sampled run dominated at epsilon 0 only",
        "_is_above",
        "np.all(deltas[:-1] <= left) and np.all(deltas[1:] <= right) and deltas[-1] <= allowed",
        "deltas[0] <= left[0]",
        _CURVES + "test_the_gaussian_curve_and_the_failure_are_above_a_sampled_run",
    ),
    Mutant(
        "a sampled run not dominated where its tail is heavier",
        "_is_above",
        "and deltas[-1] <= allowed",
        "",
        _CURVES + "test_what_is_found_to_be_covered_is_covered_everywhere",
    ),
    Mutant(
        "a curve compared at the points only, where it is known",
        "_is_above",
        "return bool(np.all(deltas[:-1] <= left) and np.all(deltas[1:] <= right) and deltas[-1] <= allowed)",
        "curve = [a.gaussian_delta(mu, epsilon) + allowed for epsilon in epsilons.tolist()]\n"
        "return bool(np.all(deltas <= curve) and deltas[-1] <= allowed)",
        _CURVES + "test_a_curve_must_be_covered_between_the_points_where_it_is_known",
    ),
    Mutant(
        "of a run's sampled parts only the first is charged",
        "domination._sampled",
        "=parts",
        "=parts[:1]",
        _CURVES + "test_all_sampled_parts_of_a_run_are_charged",
    ),
    Mutant(
        "sampling that is not counted: half the change",
        "domination._sampled",
        "2 /",
        "1 /",
        _CURVES + "test_without_a_failure_to_spare_sampling_is_not_counted",
    ),
    Mutant(
        "a later run certified by its exact cost alone",
        "Ledger._accepted",
        "if not before:\n    for cost in costs:\n        certify(cost, self.budget)",
        "for cost in costs:\n    certify(cost, self.budget)\nbefore = []",
        "privacy/test_ledger.py::test_over_budget_is_refused_and_nothing_is_written",
    ),
    Mutant(
        "the first run is not certified",
        "Ledger._accepted",
        "if not before:\n    for cost in costs:\n        certify(cost, self.budget)",
        "",
        _ADVERSARY + "test_a_budget_without_delta_takes_pure_runs_only",
    ),
    Mutant(
        "the first run forgotten when a second comes",
        "Ledger.charge",
        "for charge in _charges(db, self.path)]",
        "for charge in _charges(db, self.path)][1:]",
        _ADVERSARY + "test_the_first_run_may_cost_all_of_the_budget_and_then_nothing_more_fits",
    ),
    Mutant(
        "sampled runs may use what is left of failures as often as they like",
        "_priced",
        "max(total.failure for total in spent)",
        "0.0",
        _ADVERSARY + "test_what_is_left_for_sampled_runs_never_runs_out",
    ),
    Mutant(
        "old ledger: runs are free",
        "_migrate",
        "_priced(_read(Cost, costs), _totals(before), held)",
        "(Dominating(),)",
        "privacy/test_ledger_formats.py::test_an_old_file_is_brought_up_to_date_with_nothing_forgotten",
    ),
    Mutant(
        "old ledger: half brought up to date",
        "_migrate",
        "held, _ = _identity(db, path)",
        "db.execute('COMMIT')\ndb.execute('BEGIN')\nheld, _ = _identity(db, path)",
        "privacy/test_ledger_formats.py::test_a_migration_that_is_cut_off_leaves_the_old_file",
    ),
    Mutant(
        "ledger: a damaged price is free",
        "ledger._read",
        'raise ValueError("no record")',
        "return (kind(),)",
        "privacy/test_ledger_formats.py::test_damaged_prices_are_not_free",
    ),
]
