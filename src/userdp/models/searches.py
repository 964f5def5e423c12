"""Notices that an estimator is fitted several times on the same people: in a search, a cross-validation, an ensemble.

Each such fit spends a budget of its own, and scores that choose between them are not private. A fit cannot know of the
others; but scikit-learn clones what it will fit, in the process that searches, before each fit, in other processes too.
There the stack tells.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from types import FrameType
from typing import Any

# Modules of scikit-learn whose functions fit what they are given more than once, but for the classes below.
_REPEATING = (
    "sklearn.model_selection",
    "sklearn.calibration",
    "sklearn.ensemble",
    "sklearn.feature_selection",
    "sklearn.multiclass",
    "sklearn.multioutput",
)
_ONCE = {"FixedThresholdClassifier", "SelectFromModel"}
_warned: dict[int, weakref.ref[Any]] = {}


class PrivacyWarning(UserWarning):
    """More is released than a statement covers."""


def warn_of_search(name: str, has_ledger: bool) -> None:
    """Warn if scikit-learn is about to fit clones of this estimator that share no ledger; once a search.

    Whether there is a warning depends on the calling code alone, never on data.
    """
    frames = [] if has_ledger else _repeating_frames()
    searched = _identity(frames)
    if searched is None or _seen(searched):
        return
    _warned[id(searched)] = weakref.ref(searched)
    warnings.warn(
        f"{name} is about to be fitted several times on the same people, by {_caller(frames[-1])} of scikit-learn, "
        "without a common ledger: each fit spends its epsilon and delta anew, each statement covers one fit alone, and "
        "a choice by scores that are not private is covered by none. Give all fits one ledger, "
        "ledger=Ledger(Budget(epsilon, delta), path), which adds them up; or fix hyperparameters without the data.",
        PrivacyWarning,
        stacklevel=_level_of_caller(frames[-1]),
    )


def _repeating_frames() -> list[FrameType]:
    """Frames of the stack that belong to what fits repeatedly, the innermost first.

    Empty if the outermost is a helper: then this is a worker, and the process or thread that searches cloned before.
    """
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        repeats = str(frame.f_globals.get("__name__")).startswith(_REPEATING)
        if repeats and type(frame.f_locals.get("self")).__name__ not in _ONCE:
            found.append(frame)
        frame = frame.f_back
    return found if found and found[-1].f_code.co_name[0].isalpha() else []


def _identity(frames: list[FrameType]) -> Any:
    """What is there once for a search: the object that searches, or what a function made for it (workers, a scorer)."""
    for frame in reversed(frames):
        for name in ("self", "parallel", "scorer"):
            if frame.f_locals.get(name) is not None:
                return frame.f_locals[name]
    return None


def _seen(searched: Any) -> bool:
    known = _warned.get(id(searched))
    return known is not None and known() is searched


def _caller(frame: FrameType) -> str:
    searcher = frame.f_locals.get("self")
    return frame.f_code.co_name if searcher is None else type(searcher).__name__


def _level_of_caller(outermost: FrameType) -> int:
    """The level, as `warnings.warn` in this function's caller counts them, of the line that began the search."""
    level, beyond = 0, False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # a script's own line is in the outermost frame of all
        level, beyond = level + 1, beyond or frame is outermost
        if beyond and not str(frame.f_globals.get("__name__")).startswith("sklearn"):
            break
        frame = frame.f_back
    return level
