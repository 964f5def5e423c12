"""Bugs in output perturbation and in the passes it trusts."""

from planted.mutant import Mutant

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
        "perturbation._Session.release",
        "noise_multiplier",
        "noise_multiplier / 2",
        "test_perturbation.py::test_the_noise_is_multiplier_times_radius",
    ),
    Mutant(
        "an outcome is charged as if it had more noise",
        "Perturbation.cost",
        "1",
        "0.9",
        "test_perturbation.py::test_the_cost_is_that_of_one_gaussian",
    ),
    Mutant(
        "an outcome is released again and again",
        "perturbation._Session.release",
        "self._open = False",
        "",
        "test_perturbation.py::test_a_session_releases_once",
    ),
    Mutant(
        "an outcome of several vectors",
        "perturbation._Session.release",
        "!=",
        "<",
        "test_perturbation.py::test_another_number_of_vectors_than_one_is_refused",
    ),
    Mutant(
        "no guarantee is asked for",
        "Perturbation.check_statistic",
        "not isinstance(guaranteed, float)",
        "False",
        "test_perturbation.py::test_a_statistic_without_a_guarantee_is_refused_before_data_is_touched",
    ),
    Mutant(
        "any guarantee will do",
        "Perturbation.check_statistic",
        "<= radius",
        "",
        "test_perturbation.py::test_a_statistic_that_moves_farther_than_the_radius_is_refused_before_data_is_touched",
    ),
    Mutant(
        "a guarantee that is no number",
        "Perturbation.check_statistic",
        "not 0 <= guaranteed <= radius",
        "guaranteed > radius or guaranteed < 0",
        "test_perturbation.py::test_a_statistic_that_moves_farther_than_the_radius_is_refused_before_data_is_touched",
    ),
    Mutant(
        "a row pulls to one side only",
        "SafeRowPass.replace_one_sensitivity",
        "2 *",
        "",
        _ATTAINED,
    ),
    Mutant(
        "a user's rows are charged as one",
        "SafeRowPass.replace_one_sensitivity",
        "rows.per_user * self.",
        "",
        _ALL_ROWS,
    ),
    Mutant(
        "rows beyond the slots are visited",
        "_SafePass.__call__",
        "self.rows.per_user",
        "data.n_rows // self.n_users + 1",
        _ALL_ROWS,
    ),
    Mutant(
        "the pass goes on by rows, not by slots",
        "SafeRowPass._average",
        "total += w",
        "total += w * there",
        _ATTAINED,
    ),
    Mutant(
        "steps that drive trajectories apart",
        "_SafePass.__post_init__",
        "not self.step_size * self.smoothness <= 2",
        "self.step_size * self.smoothness > 4",
        "test_stable_sgd_limits.py::test_impossible_passes_are_refused",
    ),
    Mutant(
        "any loss will do",
        "stable_sgd.check_loss",
        "losses.known(loss)",
        "None if loss.may_raise else loss",
        "test_stable_sgd_limits.py::test_losses_whose_slopes_are_not_known_are_refused",
    ),
    Mutant(
        "a pass takes the loss as given",
        "_SafePass.__post_init__",
        'object.__setattr__(self, "loss", check_loss(self.loss))',
        "check_loss(self.loss)",
        "test_stable_sgd_limits.py::test_the_loss_of_a_pass_is_the_one_of_this_package",
    ),
    Mutant(
        "products of narrow floats stay narrow",
        "_plain_numbers",
        "None if value is None else float(value)",
        "value",
        _FEW_BITS,
    ),
    Mutant(
        "integers of a few bits wrap around",
        "_plain_numbers",
        "object.__setattr__(record, name, int(value))",
        "",
        _FEW_BITS,
    ),
    Mutant(
        "other users than the sensitivity is for",
        "_SafePass.__call__",
        "users.size != self.n_users or",
        "",
        "test_stable_sgd_limits.py::test_other_users_than_the_sensitivity_is_for_are_refused",
    ),
    Mutant(
        "rounding of a pass not paid for",
        "_SafePass.rounded_up",
        "(moved + 2 * n_steps * step)",
        "moved",
        "test_stable_sgd_limits.py::test_the_sensitivity_pays_for_the_rounding_of_long_passes",
    ),
    Mutant(
        "a long row is not clipped",
        "stable_sgd.safe_rows",
        "units[long] * most[long, None]",
        "safe[long]",
        _SAFE_ROW,
    ),
    Mutant(
        "a long row is clipped in each coordinate only",
        "stable_sgd.safe_rows",
        'longest / np.sqrt(np.einsum("ij,ij->i", units, units))',
        "np.full(len(rows), longest)",
        _SAFE_ROW,
    ),
    Mutant(
        "a row of missing values is kept",
        "stable_sgd.safe_rows",
        "usable &= np.isfinite(safe).all(axis=1)",
        "",
        _SAFE_ROW,
    ),
    Mutant(
        "targets are not clipped",
        "stable_sgd.safe_rows",
        "if labels > 0 else np.clip(targets, -largest_target, largest_target)",
        "",
        _SAFE_ROW,
    ),
    Mutant(
        "labels that are no class",
        "stable_sgd.safe_rows",
        "np.isin(targets, (-1.0, 0.0, 1.0))",
        "True",
        _SAFE_ROW,
    ),
    Mutant(
        "a batch is charged as if larger",
        "SafeBatchPass.replace_one_sensitivity",
        ", self.n_users // self.n_steps",
        ", -(-self.n_users // self.n_steps)",
        _BATCH,
    ),
    Mutant(
        "a user of a batch pulls to one side only",
        "SafeBatchPass.replace_one_sensitivity",
        "= 2 *",
        "=",
        _BATCH,
    ),
    Mutant(
        "nobody is left out",
        "SafeBatchPass._average",
        "<= self.reach * self.reach",
        ">= 0.0",
        _FILTERED,
    ),
    Mutant(
        "the reach is charged once",
        "SafeBatchPass.replace_one_sensitivity",
        "2 * (near + self.smoothness * away)",
        "near + self.smoothness * away",
        _FILTERED,
    ),
    Mutant(
        "gradients stay as they were at the start",
        "SafeBatchPass.replace_one_sensitivity",
        "(near + self.smoothness * away)",
        "near",
        "test_stable_sgd.py::test_gradients_change_along_a_filtered_trajectory",
    ),
    Mutant(
        "who counts is asked anew at every step",
        "SafeBatchPass._average",
        "self._mean_gradients(self.start,",
        "self._mean_gradients(w,",
        "test_stable_sgd.py::test_who_counts_is_decided_at_the_start",
    ),
]
