"""What somebody asks who answers for people's data, and what the model's record answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

from userdp.privacy.accounting import rounded_up
from userdp.report import wording
from userdp.report.record import clean, number, power, real

Model = Mapping[str, Any]


def told(model: Model) -> list[tuple[str, str]]:
    """What the model is for and made of, as far as it was said: names of files and columns, never what is in them."""
    source = model["source"]
    named = [
        ("purpose", model["parameters"].get("purpose")),
        ("data", source.get("data")),
        ("target", source.get("target")),
        ("rows count as often as", source.get("weight")),
        ("counted in", source.get("exposure")),
        ("who is a user", source.get("user_column") and f"whoever has an id of their own in “{source['user_column']}”"),
    ]
    return [(name, clean(words)) for name, words in named if words]


def questions(model: Model) -> list[tuple[str, str]]:
    """Questions and answers, in the order in which they are asked."""
    return [
        ("What is protected?", _protected(model)),
        ("May the model be published?", _published(model)),
        (f"Is the number of {_people(model)} public?", _counted(model)),
        ("What about one person in two data sets?", _twice(model)),
        ("Which epsilon is it?", _which(model)),
        ("What else must be kept?", _kept(model)),
    ]


def _people(model: Model) -> str:
    return "people" if model["privacy"]["unit"] == "user" else "rows"


def _protected(model: Model) -> str:
    if not model["privacy"]["private"]:
        return "Nobody: the run was seeded, and its noise can be taken off."
    if model["privacy"]["unit"] == "row":
        return "Each row by itself. All rows of a person together are protected less, the more they are."
    column = clean(model["source"].get("user_column") or "")
    who = (
        f"A person is whoever has an id of their own in the column “{column}”" if column else "Ids say who is a person"
    )
    return (
        "Each person, with all their rows together: nobody can tell from the release, but for what ε and δ allow, what "
        f"one person's rows were, or that they were this person's and not somebody else's. {who}; whoever has several "
        "ids is protected for each of them by itself, which is less."
    )


def _published(model: Model) -> str:
    privacy = model["privacy"]
    if not privacy["private"]:
        return "No. Fit again, without a seed."
    if privacy["warning"]:
        return (
            "As far as ε and δ protect, yes; but some facts were read off the data without protection (see the note at "
            "the top): whether those may be published is for you to judge."
        )
    return (
        "As far as ε and δ protect, yes: the model file, this page and whatever is computed from them, provided that "
        "columns, ranges and parameters were not chosen by looking at the data without privacy. Predictions for new "
        "rows tell of those rows, which are not protected. Whether this ε is small enough for the purpose is for you "
        "to judge."
    )


def _counted(model: Model) -> str:
    count = number(model["n_users"])
    if model["privacy"]["unit"] == "row":
        return f"Yes, {count} is taken to be public, and printed. If it may not be known, do not publish this."
    return (
        f"Yes, {count} is taken to be public, and printed. Who they are is protected. If it may not be known how "
        "many there are (of one person more or less, say), do not publish this."
    )


def _twice(model: Model) -> str:
    adds = (
        "What is released from the other data set comes on top: epsilons add up, and so do deltas, for somebody who is "
        "in both."
    )
    if not _ledger_file(model):
        return f"{adds} Nothing keeps count of it here; one ledger for both data sets would."
    return f"{adds} This ledger counts what was charged to it, and nothing else: charge both to the same one."


def _which(model: Model) -> str:
    privacy, ledger = model["privacy"], model["privacy"]["ledger"]
    if not privacy["private"]:
        return f"None: ε = {rounded_up(privacy['epsilon'])} was planned, and with a known seed nothing of it holds."
    best = wording.percent_at_most(wording.best_guess(privacy))
    own = (
        f"ε = {rounded_up(privacy['epsilon'])} at δ = {power(privacy['delta'])}, for this release. Somebody who "
        f"wavers 50 : 50 between two versions of one {'person’s data' if privacy['unit'] == 'user' else 'row'} then "
        f"guesses right {best} of the time at most."
    )
    if not _ledger_file(model) or not math.isfinite(real(ledger.get("epsilon"))):
        return f"{own} Other releases from the same data come on top."
    if ledger.get("spent_epsilon") in (None, math.inf):
        return f"{own} A seeded run was charged to the same ledger: all releases together are not private."
    return (
        f"{own} All releases that are charged to the ledger together stay within its budget, "
        f"ε = {rounded_up(real(ledger['epsilon']))} at δ = {power(real(ledger.get('delta')))}."
    )


def _kept(model: Model) -> str:
    name = _ledger_file(model)
    ledger = (
        f"The ledger “{name}”, with a copy after each release: without it nobody knows what was spent."
        if name
        else "A note that this was released: it had no ledger file, so nothing else remembers what was spent."
    )
    return (
        f"{ledger} Secret, as before: the data; a journal of the fit, if there is one (--checkpoint; delete it); logs, "
        "notebooks and scores that were made from the data without privacy."
    )


def _ledger_file(model: Model) -> str:
    """The name of the ledger's file, without its folder; empty if it was in memory."""
    where = (model["privacy"]["ledger"] or {}).get("path")
    return clean(PureWindowsPath(str(where)).name) if where else ""
