"""Bugs in output perturbation and in the passes it trusts."""

from planted.mutant import Mutant

_MECHANISM, _CURATOR = "baselines/mechanisms/perturbation.py", "privacy/curator.py"
_PASSES = "baselines/stable_sgd.py"
_ATTAINED = "test_stable_sgd.py::test_a_row_pass_moves_as_far_as_its_sensitivity"
_ALL_ROWS = "test_stable_sgd.py::test_a_row_pass_moves_as_far_as_all_rows_of_a_user"
_BATCH = "test_stable_sgd.py::test_a_batch_pass_moves_as_far_as_its_sensitivity"
_FILTERED = "test_stable_sgd.py::test_a_filtered_batch_pass_moves_as_far_as_its_sensitivity"
_ALTERED = "test_stable_sgd_limits.py::test_altered_losses_are_refused"
_FEW_BITS = "test_stable_sgd_limits.py::test_numbers_of_few_bits_are_widened_before_anything_is_computed_of_them"
_SAFE_ROW = "test_stable_sgd_limits.py::test_a_safe_row_is_short_finite_and_has_a_usable_target"

MUTANTS = [
    Mutant(
        "an outcome gets half its noise",
        _MECHANISM,
        "radius, self._record.noise_multiplier)",
        "radius, self._record.noise_multiplier / 2)",
        "privacy/test_perturbation.py::test_the_noise_is_multiplier_times_radius",
    ),
    Mutant(
        "an outcome is charged as if it had more noise",
        _MECHANISM,
        "math.nextafter(1 / self.noise_multiplier**2, math.inf)",
        "math.nextafter(0.9 / self.noise_multiplier**2, math.inf)",
        "privacy/test_perturbation.py::test_the_cost_is_that_of_one_gaussian",
    ),
    Mutant(
        "an outcome is released again and again",
        _MECHANISM,
        "        self._open = False\n",
        "",
        "privacy/test_perturbation.py::test_a_session_releases_once",
    ),
    Mutant(
        "an outcome of several vectors",
        _MECHANISM,
        "if len(vectors) != 1:",
        "if len(vectors) < 1:",
        "privacy/test_perturbation.py::test_another_number_of_vectors_than_one_is_refused",
    ),
    Mutant(
        "no guarantee is asked for",
        _MECHANISM,
        "trusts_statistic = True",
        "trusts_statistic = False",
        "privacy/test_perturbation.py::test_a_statistic_without_a_guarantee_is_refused_before_data_is_touched",
    ),
    Mutant(
        "any guarantee will do",
        _CURATOR,
        "    if not 0 <= guaranteed <= radius:\n",
        "    if not 0 <= guaranteed:\n",
        "privacy/test_perturbation.py::test_a_statistic_that_moves_farther_than_the_radius_is_refused_before_data_is_touched",
    ),
    Mutant(
        "a guarantee that is no number",
        _CURATOR,
        "    if not 0 <= guaranteed <= radius:\n",
        "    if guaranteed > radius or guaranteed < 0:\n",
        "privacy/test_perturbation.py::test_a_statistic_that_moves_farther_than_the_radius_is_refused_before_data_is_touched",
    ),
    Mutant(
        "a row pulls to one side only",
        _PASSES,
        "moved = 2 * self.rows.per_user * self.step_size",
        "moved = self.rows.per_user * self.step_size",
        _ATTAINED,
    ),
    Mutant(
        "a user's rows are charged as one",
        _PASSES,
        "moved = 2 * self.rows.per_user * self.step_size",
        "moved = 2 * self.step_size",
        _ALL_ROWS,
    ),
    Mutant(
        "rows beyond the slots are visited",
        _PASSES,
        "bounds = (self.rows.per_user, ",
        "bounds = (data.n_rows // self.n_users + 1, ",
        _ALL_ROWS,
    ),
    Mutant(
        "the pass goes on by rows, not by slots",
        _PASSES,
        "            _project(w, region)\n        total += w\n    total /= len(slots)",
        "            _project(w, region)\n            total += w\n    total /= len(slots)",
        _ATTAINED,
    ),
    Mutant(
        "steps that drive trajectories apart",
        _PASSES,
        "if not self.step_size * self.smoothness <= 2:",
        "if self.step_size * self.smoothness > 4:",
        "test_stable_sgd_limits.py::test_impossible_passes_are_refused",
    ),
    Mutant(
        "any loss will do",
        _PASSES,
        "    found = losses.known(loss)\n",
        "    found = loss if loss.compiled else None\n",
        "test_stable_sgd_limits.py::test_losses_whose_slopes_are_not_known_are_refused",
    ),
    Mutant(
        "a known slope is enough, whatever is said of it",
        "losses/base.py",
        "        return _KNOWN.get(loss)\n",
        "        return next(((loss, *made[1:]) for one, made in _KNOWN.items() if one.slope is loss.slope), None)\n",
        _ALTERED,
    ),
    Mutant(
        "a loss may say of itself how steep it is",
        "losses/base.py",
        "        return _KNOWN.get(loss)\n",
        "        found = [m for one, m in _KNOWN.items() if (one.value, one.slope) == (loss.value, loss.slope)]\n"
        "        return (loss, *found[0][1:]) if found else None\n",
        _ALTERED,
    ),
    Mutant(
        "a pass takes the loss as given",
        _PASSES,
        'object.__setattr__(self, "loss", check_loss(self.loss))',
        "check_loss(self.loss)",
        "test_stable_sgd_limits.py::test_the_loss_that_is_walked_is_the_one_of_this_package",
    ),
    Mutant(
        "products of narrow floats stay narrow",
        _PASSES,
        "None if value is None else float(value))",
        "value)",
        _FEW_BITS,
    ),
    Mutant(
        "integers of a few bits wrap around",
        _PASSES,
        "        object.__setattr__(record, name, int(value))\n",
        "",
        _FEW_BITS,
    ),
    Mutant(
        "a radius in the precision it came in",
        "domains.py",
        'object.__setattr__(self, "radius", float(self.radius))',
        'object.__setattr__(self, "radius", self.radius)',
        "test_domains.py::test_a_radius_of_few_bits_is_widened",
    ),
    Mutant(
        "planned counts of a few bits wrap around",
        "privacy/mechanisms/base.py",
        "counts.append(int(number))",
        "counts.append(number)",
        "solvers/test_output_perturbation.py::test_counts_of_few_bits_do_not_wrap_around",
    ),
    Mutant(
        "a pass's vectors can be changed after pricing",
        "vectors/gradients.py",
        "    vector.flags.writeable = False\n",
        "",
        "test_stable_sgd_limits.py::test_a_pass_keeps_its_own_vectors",
    ),
    Mutant(
        "other users than the sensitivity is for",
        _PASSES,
        "if users.size != self.n_users or n_groups != 1:",
        "if n_groups != 1:",
        "test_stable_sgd_limits.py::test_other_users_than_the_sensitivity_is_for_are_refused",
    ),
    Mutant(
        "rounding of a pass not paid for",
        _PASSES,
        "(moved + 2 * n_steps * step) * (1 + 2.0**-40)",
        "moved * (1 + 2.0**-40)",
        "test_stable_sgd_limits.py::test_the_sensitivity_pays_for_the_rounding_of_long_passes",
    ),
    Mutant(
        "a long row is not clipped",
        _PASSES,
        "                out[k] = out[k] / largest * most\n",
        "                out[k] = out[k] * 1.0\n",
        _SAFE_ROW,
    ),
    Mutant(
        "a long row is clipped in each coordinate only",
        _PASSES,
        "most = longest / math.sqrt(square)",
        "most = longest",
        _SAFE_ROW,
    ),
    Mutant(
        "a row of missing values is kept",
        _PASSES,
        "        usable = usable and math.isfinite(out[k])\n",
        "",
        _SAFE_ROW,
    ),
    Mutant(
        "targets are not clipped",
        _PASSES,
        "return target if labels > 0 else min(max(target, -largest_target), largest_target)",
        "return target",
        _SAFE_ROW,
    ),
    Mutant(
        "labels that are no class",
        _PASSES,
        "usable = target == -1.0 or target == 0.0 or target == 1.0",
        "usable = math.isfinite(target)",
        _SAFE_ROW,
    ),
    Mutant(
        "a batch is charged as if larger",
        _PASSES,
        "self.n_users // self.n_steps + 1, self.n_users // self.n_steps",
        "self.n_users // self.n_steps + 1, -(-self.n_users // self.n_steps)",
        _BATCH,
    ),
    Mutant(
        "a user of a batch pulls to one side only",
        _PASSES,
        "difference = 2 * self.lipschitz\n",
        "difference = self.lipschitz\n",
        _BATCH,
    ),
    Mutant(
        "nobody is left out",
        _PASSES,
        "near = square <= reach * reach",
        "near = square >= 0.0",
        _FILTERED,
    ),
    Mutant(
        "the reach is charged once",
        _PASSES,
        "min(difference, 2 * (near + self.smoothness * away))",
        "min(difference, near + self.smoothness * away)",
        _FILTERED,
    ),
    Mutant(
        "gradients stay as they were at the start",
        _PASSES,
        "min(difference, 2 * (near + self.smoothness * away))",
        "min(difference, 2 * near)",
        "test_stable_sgd.py::test_gradients_change_along_a_filtered_walk",
    ),
    Mutant(
        "who counts is asked anew at every step",
        _PASSES,
        "_mean_gradient(data, first, last, bounds, start, slopes, predictions, x, own)",
        "_mean_gradient(data, first, last, bounds, w, slopes, predictions, x, own)",
        "test_stable_sgd.py::test_who_counts_is_settled_at_the_start",
    ),
]
