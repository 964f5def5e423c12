"""Bugs in what runs are charged as between runs, and in the filter."""

from planted.mutant import Mutant

_ADVERSARY = "privacy/test_ledger_adversary.py::"
_CURVES = "privacy/test_domination.py::"

MUTANTS = [
    Mutant(
        "runs composed as if they had been fixed in advance",
        "privacy/ledger.py",
        "            for total in _totals([*before, new]) if before else ():\n"
        "                self._filter.certify(total)\n",
        "            for cost in plan.costs if before else ():\n"
        "                for (text,) in db.execute('SELECT costs FROM runs').fetchall():\n"
        "                    cost = cost + _read(Cost, text)[0]\n"
        "                if epsilon_at(cost, self.budget.delta) > self.budget.epsilon:\n"
        "                    plan.certify(Budget(1e-9, 0.0))\n",
        _ADVERSARY + "test_a_second_run_that_is_chosen_by_the_first_release",
    ),
    Mutant(
        "room that noise leaves is given to failures",
        "privacy/domination.py",
        "        if total.failure > self.most_failure:\n            return False\n"
        "        return a.fits(Cost(gaussian=total.mu_squared), self.gaussian) or",
        "        return a.fits(Cost(gaussian=total.mu_squared, failure=total.failure), self.budget) or",
        _ADVERSARY + "test_room_that_noise_leaves_is_not_given_to_failures",
    ),
    Mutant(
        "noise may use the failures' fraction",
        "privacy/domination.py",
        "return Budget(self.budget.epsilon, (1 - self.failure_fraction) * self.budget.delta)",
        "return self.budget",
        _CURVES + "test_what_failures_leave_is_not_given_to_noise",
    ),
    Mutant(
        "failures of runs not limited",
        "privacy/domination.py",
        "        if total.failure > self.most_failure:\n            return False\n",
        "",
        _ADVERSARY + "test_a_second_run_that_is_chosen_by_the_first_release",
    ),
    Mutant(
        "failures of runs not added up",
        "privacy/domination.py",
        "self.pure + other.pure, a.sum_up(self.failure, other.failure)",
        "self.pure + other.pure, max(self.failure, other.failure)",
        _CURVES + "test_sums_and_covers",
    ),
    Mutant(
        "mu^2 of runs added like independent deviations",
        "privacy/domination.py",
        "a.sum_up(self.mu_squared, other.mu_squared), self.pure",
        "math.hypot(self.mu_squared, other.mu_squared), self.pure",
        _CURVES + "test_sums_and_covers",
    ),
    Mutant(
        "a pure epsilon charged as mu",
        "privacy/domination.py",
        "return float(-2 * ndtri_exp(-np.logaddexp(0.0, epsilon))) * (1 + 1e-12) + 1e-15",
        "return float(epsilon)",
        _CURVES + "test_the_gaussian_curve_is_above_that_of_a_pure_epsilon_and_touches_it",
    ),
    Mutant(
        "a pure epsilon charged as half its mu",
        "privacy/domination.py",
        "float(-2 * ndtri_exp",
        "float(-1 * ndtri_exp",
        _CURVES + "test_a_pure_epsilon_is_randomised_response_by_the_sign_of_a_gaussian",
    ),
    Mutant(
        "mu of a pure epsilon rounded to nearest",
        "privacy/domination.py",
        "* (1 + 1e-12) + 1e-15",
        "* (1 - 1e-12)",
        _CURVES + "test_a_pure_epsilon_is_randomised_response_by_the_sign_of_a_gaussian",
    ),
    Mutant(
        "Gaussian runs counted as pure ones",
        "privacy/domination.py",
        "math.inf if cost.gaussian or cost.subsampled else math.fsum(cost.pure)",
        "math.fsum(cost.pure)",
        _ADVERSARY + "test_pure_runs_alone_add_up_to_epsilon",
    ),
    Mutant(
        "a run's own failure forgotten",
        "privacy/domination.py",
        "        a.sum_up(cost.failure, sampled.failure),\n",
        "        sampled.failure,\n",
        _CURVES + "test_parts_are_dominated_together_and_failures_added",
    ),
    Mutant(
        "the failure of a sampled run's curve not charged",
        "privacy/domination.py",
        "        a.sum_up(cost.failure, sampled.failure),\n",
        "        cost.failure,\n",
        _CURVES + "test_the_gaussian_curve_and_the_failure_are_above_a_sampled_run",
    ),
    Mutant(
        "a sampled run dominated at epsilon 0 only",
        "privacy/domination.py",
        "    return bool(np.all(deltas[:-1] <= left) and np.all(deltas[1:] <= right) and deltas[-1] <= allowed)\n",
        "    return bool(deltas[0] <= left[0])\n",
        _CURVES + "test_the_gaussian_curve_and_the_failure_are_above_a_sampled_run",
    ),
    Mutant(
        "a sampled run not dominated where its tail is heavier",
        "privacy/domination.py",
        "and np.all(deltas[1:] <= right) and deltas[-1] <= allowed)",
        "and np.all(deltas[1:] <= right))",
        _CURVES + "test_what_is_found_to_be_covered_is_covered_everywhere",
    ),
    Mutant(
        "a curve compared at the points only, where it is known",
        "privacy/domination.py",
        "    return bool(np.all(deltas[:-1] <= left) and np.all(deltas[1:] <= right) and deltas[-1] <= allowed)\n",
        "    curve = [a.gaussian_delta(mu, epsilon) + allowed for epsilon in epsilons.tolist()]\n"
        "    return bool(np.all(deltas <= curve) and deltas[-1] <= allowed)\n",
        _CURVES + "test_a_curve_must_be_covered_between_the_points_where_it_is_known",
    ),
    Mutant(
        "of a run's sampled parts only the first is charged",
        "privacy/domination.py",
        "least_mu(Cost(subsampled=parts), failure)",
        "least_mu(Cost(subsampled=parts[:1]), failure)",
        _CURVES + "test_all_sampled_parts_of_a_run_are_charged",
    ),
    Mutant(
        "sampling that is not counted: half the change",
        "privacy/domination.py",
        "part.steps * (2 / part.added_user_multiplier) ** 2",
        "part.steps * (1 / part.added_user_multiplier) ** 2",
        _CURVES + "test_without_a_failure_to_spare_sampling_is_not_counted",
    ),
    Mutant(
        "a later run certified by its exact cost alone",
        "privacy/ledger.py",
        "            if not before:\n                plan.certify(self.budget)\n",
        "            plan.certify(self.budget)\n            before = []\n",
        "privacy/test_ledger.py::test_over_budget_is_refused_and_nothing_is_written",
    ),
    Mutant(
        "the first run is not certified",
        "privacy/ledger.py",
        "            if not before:\n                plan.certify(self.budget)\n",
        "",
        _ADVERSARY + "test_a_budget_without_delta_takes_pure_runs_only",
    ),
    Mutant(
        "the first run forgotten when a second comes",
        "privacy/ledger.py",
        "return [_read(Dominating, priced) for (priced,) in runs]",
        "return [_read(Dominating, priced) for (priced,) in runs][1:]",
        _ADVERSARY + "test_the_first_run_may_cost_all_of_the_budget_and_then_nothing_more_fits",
    ),
    Mutant(
        "sampled runs may use what is left of failures as often as they like",
        "privacy/ledger.py",
        "spare = held.spare(max(total.failure for total in spent), own)",
        "spare = held.spare(0.0, own)",
        _ADVERSARY + "test_what_is_left_for_sampled_runs_never_runs_out",
    ),
    Mutant(
        "old ledger: runs are free",
        "privacy/ledger.py",
        "before.append(_priced(_read(Cost, costs), _totals(before), held))",
        "before.append((Dominating(),))",
        "privacy/test_ledger_formats.py::test_an_old_file_is_brought_up_to_date_with_nothing_forgotten",
    ),
    Mutant(
        "old ledger: half brought up to date",
        "privacy/ledger.py",
        "    held, _ = _identity(db, path)\n    with _undamaged(path):\n        before",
        "    db.execute('COMMIT')\n    db.execute('BEGIN')\n"
        "    held, _ = _identity(db, path)\n    with _undamaged(path):\n        before",
        "privacy/test_ledger_formats.py::test_a_migration_that_is_cut_off_leaves_the_old_file",
    ),
    Mutant(
        "ledger: a damaged price is free",
        "privacy/ledger.py",
        '        raise ValueError("no record")\n',
        "        return (kind(),)\n",
        "privacy/test_ledger_formats.py::test_damaged_prices_are_not_free",
    ),
]
