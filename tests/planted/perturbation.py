"""Bugs in output perturbation and in the passes it trusts."""

from planted.mutant import Mutant

_MECHANISM, _CURATOR = "baselines/mechanisms/perturbation.py", "privacy/curator.py"
_PASSES, _STEPS = "baselines/safe_passes.py", "baselines/safe_steps.py"
_ATTAINED = "test_safe_passes.py::test_a_row_pass_moves_as_far_as_its_sensitivity"
_ALL_ROWS = "test_safe_passes.py::test_a_row_pass_moves_as_far_as_all_rows_of_a_user"
_BATCH = "test_safe_passes.py::test_a_batch_pass_moves_as_far_as_its_sensitivity"
_FILTERED = "test_safe_passes.py::test_a_filtered_batch_pass_moves_as_far_as_its_sensitivity"
_ALTERED = "test_safe_passes_limits.py::test_altered_losses_are_refused"
_FEW_BITS = "test_safe_passes_limits.py::test_numbers_of_few_bits_are_widened_before_anything_is_computed_of_them"
_SAFE_ROW = "test_safe_passes_limits.py::test_a_safe_row_is_short_finite_and_has_a_usable_target"

MUTANTS = [
    Mutant(
        "an outcome gets half its noise",
        "perturbation._Session.release",
        "noise_multiplier",
        "noise_multiplier / 2",
        "privacy/test_perturbation.py::test_the_noise_is_multiplier_times_radius",
    ),
    Mutant(
        "an outcome is charged as if it had more noise",
        "Perturbation.cost",
        "1",
        "0.9",
        "privacy/test_perturbation.py::test_the_cost_is_that_of_one_gaussian",
    ),
    Mutant(
        "an outcome is released again and again",
        "perturbation._Session.release",
        "self._open = False",
        "",
        "privacy/test_perturbation.py::test_a_session_releases_once",
    ),
    Mutant(
        "an outcome of several vectors",
        "perturbation._Session.release",
        "!=",
        "<",
        "privacy/test_perturbation.py::test_another_number_of_vectors_than_one_is_refused",
    ),
    Mutant(
        "no guarantee is asked for",
        "Perturbation.trusts_statistic",
        "True",
        "False",
        "privacy/test_perturbation.py::test_a_statistic_without_a_guarantee_is_refused_before_data_is_touched",
    ),
    Mutant(
        "any guarantee will do",
        "_check_trusted",
        "<= radius",
        "",
        "privacy/test_perturbation.py::test_a_statistic_that_moves_farther_than_the_radius_is_refused_before_data_is_touched",
    ),
    Mutant(
        "a guarantee that is no number",
        "_check_trusted",
        "not 0 <= guaranteed <= radius",
        "guaranteed > radius or guaranteed < 0",
        "privacy/test_perturbation.py::test_a_statistic_that_moves_farther_than_the_radius_is_refused_before_data_is_touched",
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
        "_SafeWalk._ready",
        "self.rows.per_user",
        "data.n_rows // self.n_users + 1",
        _ALL_ROWS,
    ),
    Mutant(
        "the walk goes on by rows, not by slots",
        "_walk_rows",
        "total += w",
        "if row < offsets[user + 1]:\n    total += w",
        _ATTAINED,
    ),
    Mutant(
        "steps that drive walks apart",
        "_SafeWalk.__post_init__",
        "not self.step_size * self.smoothness <= 2",
        "self.step_size * self.smoothness > 4",
        "test_safe_passes_limits.py::test_impossible_passes_are_refused",
    ),
    Mutant(
        "any loss will do",
        "check_loss",
        "losses.known(loss)",
        "loss if loss.compiled else None",
        "test_safe_passes_limits.py::test_losses_whose_slopes_are_not_known_are_refused",
    ),
    Mutant(
        "a known slope is enough, whatever is said of it",
        "_find",
        "_KNOWN.get(loss)",
        "next(((loss, *made[1:]) for one, made in _KNOWN.items() if one.slope is loss.slope), None)",
        _ALTERED,
    ),
    Mutant(
        "a loss may say of itself how steep it is",
        "_find",
        "return _KNOWN.get(loss)",
        "found = [m for one, m in _KNOWN.items() if (one.value, one.slope) == (loss.value, loss.slope)]\n"
        "return (loss, *found[0][1:]) if found else None",
        _ALTERED,
    ),
    Mutant(
        "the walk takes the loss as given",
        "_SafeWalk.__post_init__",
        'object.__setattr__(self, "loss", check_loss(self.loss))',
        "check_loss(self.loss)",
        "test_safe_passes_limits.py::test_the_loss_that_is_walked_is_the_one_of_this_package",
    ),
    Mutant(
        "products of narrow floats stay narrow",
        "_settle",
        "None if value is None else float(value)",
        "value",
        _FEW_BITS,
    ),
    Mutant(
        "integers of a few bits wrap around",
        "_settle",
        "object.__setattr__(record, name, int(value))",
        "",
        _FEW_BITS,
    ),
    Mutant(
        "a radius in the precision it came in",
        "Ball.__post_init__",
        "float(self.radius)",
        "self.radius",
        "test_domains.py::test_a_radius_of_few_bits_is_widened",
    ),
    Mutant(
        "planned counts of a few bits wrap around",
        "check_counts",
        "int(number)",
        "number",
        "solvers/test_output_perturbation.py::test_counts_of_few_bits_do_not_wrap_around",
    ),
    Mutant(
        "a walk's vectors can be changed after pricing",
        "_kept",
        "copy.flags.writeable = False",
        "",
        "test_safe_passes_limits.py::test_a_pass_keeps_its_own_vectors",
    ),
    Mutant(
        "other users than the sensitivity is for",
        "_SafeWalk._ready",
        "users.size != self.n_users or",
        "",
        "test_safe_passes_limits.py::test_other_users_than_the_sensitivity_is_for_are_refused",
    ),
    Mutant(
        "rounding of a pass not paid for",
        "_SafeWalk.rounded_up",
        "(moved + 2 * n_steps * step)",
        "moved",
        "test_safe_passes_limits.py::test_the_sensitivity_pays_for_the_rounding_of_long_passes",
    ),
    Mutant(
        "a long row is not clipped",
        "safe_row",
        "/ largest * most",
        "* 1.0",
        _SAFE_ROW,
    ),
    Mutant(
        "a long row is clipped in each coordinate only",
        "safe_row",
        "/ math.sqrt(square)",
        "",
        _SAFE_ROW,
    ),
    Mutant(
        "a row of missing values is kept",
        "safe_row",
        "usable = usable and math.isfinite(out[k])",
        "",
        _SAFE_ROW,
    ),
    Mutant(
        "targets are not clipped",
        "safe_row",
        "if labels > 0 else min(max(target, -largest_target), largest_target)",
        "",
        _SAFE_ROW,
    ),
    Mutant(
        "labels that are no class",
        "safe_row",
        "target == -1.0 or target == 0.0 or target == 1.0",
        "math.isfinite(target)",
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
        "_walk_batches",
        "<= reach * reach",
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
        "test_safe_passes.py::test_gradients_change_along_a_filtered_walk",
    ),
    Mutant(
        "who counts is asked anew at every step",
        "_walk_batches",
        "start,",
        "w,",
        "test_safe_passes.py::test_who_counts_is_settled_at_the_start",
    ),
]
