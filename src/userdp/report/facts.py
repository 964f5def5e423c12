"""The report as plain values: what `userdp report --json` prints, and what the page shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from userdp.privacy.statement import covered
from userdp.report import wording
from userdp.report.record import checked

_FLOATING_POINT = (
    "Noise is sampled exactly, by OpenDP, on a grid; rounding of sums is part of the sensitivity; parts of epsilon and "
    "delta are held back for the rest."
)
_SIDE_CHANNELS = (
    "Run time, memory and file access are not protected. Errors, warnings, exit codes and shapes do not depend on "
    "cells, but for ids that are missing and files that cannot be read."
)
_BIAS = (
    "What few users have in common is learned last, and outlying users are clipped or count less: errors may be larger "
    "for small groups. Nothing corrects for it.",
    "Rows with missing or infinite cells are left out. Rows beyond max_rows_per_user are dropped at random, targets "
    "beyond declared ranges are cut off.",
)
_MODEL = (
    *("estimator", "created", "solver", "mode", "n_users", "rows_per_user", "n_features", "halted", "message", "loss"),
    *("loss_at_zero", "parameters", "versions", "source"),
)


def report_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """The report as plain values; it holds nothing that is not in the record.

    Parameters
    ----------
    record : mapping
        A model's record, as its `to_dict` gives it.

    Returns
    -------
    dict
        Sections (guarantee, noise, composition, ...) of values that JSON knows.
    """
    plain: dict[str, Any] = _plain(facts_of(checked(record)))
    return plain


def facts_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """What page and `report_facts` say of a checked record."""
    privacy, found = model["privacy"], model["privacy"]["tradeoff"]
    private, affected, scores = privacy["private"], privacy["affected_users"], model["scores"]
    return {
        "format": "userdp report 1",
        "guarantee": {
            "private": private,
            "unit": privacy["unit"],
            "relation": privacy["relation"],
            "neighbours": privacy["neighbours"],
            "number_of_users": "public",
            "epsilon": privacy["epsilon"],
            "delta": privacy["delta"],
            "covers": covered(privacy),
            "not_covered": wording.not_covered(privacy),
            "in_words": wording.plain_guarantee(privacy) if private else "none: the run was seeded",
            "cautions": wording.cautions(model),
            "warning": privacy["warning"],
        },
        "noise": found
        and {
            "right_guess": found.right_guess,
            "right_guess_of_epsilon_and_delta_alone": privacy["alone"],
            "gdp_mu": found.mu,
            "gdp_but_for_events_of_chance": found.mu_failure,
            "fails_outright_with_chance": found.failure,
            "epsilon_at_other_deltas": [{"delta": d, "epsilon": e} for d, e in found.epsilons],
            "add_or_remove_epsilon_to_compare_with": found.added_epsilon,
            "replace_one_epsilon_of_the_same_noise": found.replaced_epsilon,
            "tradeoff": [{"false_alarm": a, "missed_detection": b} for a, b in found.points],
        },
        "composition": {
            "ledger": privacy["ledger"],
            "steps": [
                {**step, "purpose": wording.purpose(step), "how": wording.how(step)} for step in privacy["mechanisms"]
            ],
        },
        "trust": {
            "model": "a trusted curator holds the data; everybody else sees releases only",
            "rests_on": wording.RESTS_ON,
        },
        "implementation": {
            "randomness": (
                "the operating system's cryptographic generator" if private else "a seed: noise can be reproduced"
            ),
            "floating_point": _FLOATING_POINT,
            "side_channels": _SIDE_CHANNELS,
        },
        "bias": _BIAS,
        "affected_users": affected and affected._asdict() | {"in_words": affected.in_words(privacy["word"])},
        "excess_risk": {
            "value": model["bound"],
            "is_estimate": model["bound_is_estimate"],
            "in_words": wording.error_in_words(model),
        },
        "scores": scores and scores.to_dict(),
        "model": {name: model[name] for name in _MODEL},
        "questions": [{"question": asked, "answer": answer} for asked, answer in wording.questions(model)],
    }


def _plain(value: Any) -> Any:
    """As JSON knows it: no infinite numbers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, Real) and not math.isfinite(value) else value
