"""Bugs in the choice among several fits."""

from planted.mutant import Mutant

_PRIVACY = "privacy/test_selection.py::"
_FITS = _PRIVACY + "test_plans_fit_their_budget_and_use_it"
_PARALLEL = _PRIVACY + "test_training_and_held_out_people_pay_in_parallel"
_PART = _PRIVACY + "test_a_part_s_ledger_takes_one_run_of_its_size_and_no_more"
_GAUSSIAN = _PRIVACY + "test_a_part_s_ledger_takes_gaussian_releases_only"
_SPLIT = _PRIVACY + "test_a_split_is_one_charge_and_every_part_is_within_it"
_FAILURE = _PRIVACY + "test_a_failure_tells_nothing_but_itself"
_MOVES = _PRIVACY + "test_one_person_moves_no_score_by_more_than_is_paid_for"
_SEARCH = "test_model_selection.py::"
_REFUSED = _SEARCH + "test_refusals_come_before_anything_is_charged"
_OWN_ROWS = _SEARCH + "test_a_person_s_losses_are_of_its_own_rows_to_the_last_bit"
_FEATURES = _SEARCH + "test_features_are_of_a_person_s_own_rows_to_the_last_bit"

MUTANTS = [
    Mutant("an allotment of several fits costs one", "Allotment.cost", "self.rounds * ", "", _PARALLEL),
    Mutant(
        "a search is not charged",
        "selection.select",
        "ledger.charge(certified, purpose, insecure_seed, unit=unit)",
        "",
        _SPLIT,
    ),
    Mutant(
        "a search is not certified",
        "selection.select",
        "certified.certify(plan.budget)",
        "",
        _PRIVACY + "test_a_search_that_does_not_fit_asks_nobody",
    ),
    Mutant(
        "held-out people overlap with those who train",
        "_carried_out",
        "order[: plan.n_training]",
        "order[: plan.n_training + 1]",
        _SPLIT,
    ),
    Mutant(
        "candidates are scored on those who trained",
        "_carried_out",
        "order[plan.n_training :]",
        "order[: plan.n_held_out]",
        _SPLIT,
    ),
    Mutant(
        "the refit is outside of the plan",
        "SelectionPlan.certified",
        "if self.refit_mu_squared else []",
        "if False else []",
        _PARALLEL,
    ),
    Mutant(
        "the refit has the whole budget once more",
        "plan_selection",
        "(1 - refit_fraction) * whole",
        "whole",
        _FITS,
    ),
    Mutant(
        "every candidate has the whole budget",
        "plan_selection",
        "rest / n_candidates",
        "rest",
        _FITS,
    ),
    Mutant("a part's ledger takes any size", "PartLedger._accepted", "> self._mu_squared", "> 1e9", _PART),
    Mutant("a part's ledger takes several runs", "PartLedger._accepted", "if before:", "if False:", _PART),
    Mutant(
        "a part's ledger takes what is not Gaussian",
        "PartLedger._accepted",
        "cost.failure or not is_gaussian(cost)",
        "False",
        _GAUSSIAN,
    ),
    Mutant(
        "the noise of scores is halved",
        "SelectionPlan._clip",
        "(1 + _ROUNDING) /",
        "0.5 /",
        _MOVES,
    ),
    Mutant("each release of scores has all of their part", "SelectionPlan._clip", "part * ", "", _MOVES),
    Mutant("losses are not bounded", "joint_losses", "losses = bounded(losses)", "losses = np.asarray(losses)", _MOVES),
    Mutant(
        "the radius of differences is read off the data",
        "joint_losses",
        "radius = longest * _RATIO ** -_first_bin(counted, mechanisms[_SIZES])",
        "radius = longest * float(lengths.max())",
        _MOVES,
    ),
    Mutant(
        "a failure tells what failed",
        "selection.select",
        "contextlib.suppress(Exception), WARNINGS_OFF",
        "WARNINGS_OFF",
        _FAILURE,
    ),
    Mutant(
        "warnings of runs that are not released are shown",
        "selection.select",
        ", WARNINGS_OFF",
        "",
        _SEARCH + "test_warnings_of_runs_are_not_shown_but_those_of_the_result_are",
    ),
    Mutant(
        "search: one person's missing values are everybody's",
        "row_losses.made_apart",
        "todo += [(first, middle), (middle, last)]",
        "pass",
        _OWN_ROWS,
    ),
    Mutant(
        "search: others are asked for in smaller blocks if a row fails",
        "row_losses.isolated",
        "out[sound] = found[sound]",
        "out[sound] = attempt(np.flatnonzero(sound))",
        "test_evaluating.py::test_rows_that_a_step_fails_on_change_no_bit_of_the_others",
    ),
    Mutant(
        "a missing cell changes the type of all",
        "as_table",
        "pa.float64()",
        "one.type",
        "test_evaluating.py::test_nobody_s_missing_cell_changes_the_type_of_the_others",
    ),
    Mutant(
        "search: predictions in blocks",
        "margins_of",
        "np.ascontiguousarray(features[some] * row).sum(axis=1)",
        "(features[some] @ weights.T)[:, output]",
        "test_evaluating.py::test_a_margin_is_the_same_bit_by_bit_wherever_its_row_stands",
    ),
    Mutant(
        "search: candidates with ledgers of their own",
        "_check_candidate",
        "model.ledger is not None or",
        "",
        _REFUSED,
    ),
    Mutant("search: a private scaler beside the budget", "_check_candidate", '"epsilon" in', '"no" in', _REFUSED),
    Mutant(
        "search: steps are fitted on the data",
        "pipelines.fit_on_nobody",
        "row = _blank(X)",
        "row = X",
        f"{_SEARCH}test_steps_are_fitted_on_nobody_s_data",
    ),
    Mutant(
        "search: one person's cell makes everybody's rows missing",
        "pipelines.transformed",
        "found, sound = made_apart(attempt, own)",
        "found, sound = made_apart(attempt, np.zeros_like(own))",
        _FEATURES,
    ),
    Mutant(
        "search: a draft tells what failed",
        "model_selection._draft",
        "except Exception:",
        "except ZeroDivisionError:",
        _SEARCH + "test_a_draft_tells_nothing_of_what_failed",
    ),
    Mutant(
        "search: whole candidates of different units",
        "_check_candidate",
        "in _IN_COMMON",
        "in ()",
        _SEARCH + "test_whole_candidates_have_in_common_what_is_not_tried",
    ),
    Mutant(
        "search: those who chose a model score it", "_check_candidate", "model.evaluate is not None", "False", _REFUSED
    ),
    Mutant(
        "pipelines: categories merged by counts",
        "pipelines._is_public",
        " or step.max_categories is not None",
        "",
        "test_pipelines.py::test_steps_that_learn_without_privacy_are_refused",
    ),
    Mutant(
        "search: budgets are tried",
        "PrivateSearchCV._candidates",
        "in _NOT_TRIED",
        "in set()",
        _SEARCH + "test_what_is_one_for_all_candidates_is_not_tried",
    ),
    Mutant(
        "search: a model tells of its part only",
        "PrivateSearchCV._state",
        "model.privacy_, model.result_ = self.privacy_,",
        "_, model.result_ = self.privacy_,",
        _SEARCH + "test_models_tell_of_the_whole_search_and_not_of_their_part",
    ),
    Mutant(
        "search: when the best run was made is told",
        "PrivateSearchCV._state",
        'model.facts_["created"] = began',
        "pass",
        _SEARCH + "test_when_a_run_was_made_is_not_told",
    ),
    Mutant(
        "search: every run shows a bar of its own",
        "model_selection._fitted",
        "progress=False",
        "progress=True",
        _SEARCH + "test_one_bar_shows_the_whole_search",
    ),
]
