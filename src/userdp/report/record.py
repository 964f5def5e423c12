"""The model's record: checked, completed, and its numbers and names written for people."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import PureWindowsPath
from typing import Any, TypeVar

from userdp.evaluation.scores import Scores
from userdp.privacy.accounting import rounded_up
from userdp.privacy.guarantee import AffectedUsers, Tradeoff, right_guess
from userdp.solvers.base import PROVEN

FORMAT = "userdp model 1"
NAMELESS = "(no name)"
_OPTIONAL: Mapping[str, Any] = {
    **dict.fromkeys(("created", "solver", "mode", "message", "loss"), ""),
    **dict.fromkeys(("features", "classes", "rows_per_user", "n_gradients", "loss_at_zero")),
    **dict.fromkeys(("bound", "bound_is_estimate", "estimate", "scores", "uncertainty")),
    "phases": [],
    "notes": [],
    "versions": {},
    "source": {},
}
_OPTIONAL_PRIVACY: Mapping[str, Any] = {
    **dict.fromkeys(("neighbours", "warning"), ""),
    **dict.fromkeys(("insecure_seed", "ledger", "tradeoff", "affected_users")),
}
_WEAK, _WEAK_NOISE = 0.95, 0.75  # right guesses: that (epsilon, delta) alone allows, or the noise itself
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")  # they would let a name rearrange the text around it
_T = TypeVar("_T")


def checked(record: object) -> dict[str, Any]:
    """A copy of the record with everything optional filled in, or an error that says what is not as it should be."""
    if not isinstance(record, Mapping):
        raise _refused("a model's record", record)
    whole = {**_OPTIONAL, **{str(key): value for key, value in record.items()}}
    if whole["bound_is_estimate"] is None:
        whole["bound_is_estimate"] = whole["solver"] not in PROVEN
    width, rows, names = whole.get("n_features"), whole.get("coef"), whole["features"]
    n_outputs = len(rows) if isinstance(rows, list) else 0
    fine = {
        "format": whole.get("format") == FORMAT,
        **{key: isinstance(whole.get(key), str) for key in ("estimator", "created", "solver", "message", "loss")},
        **{key: isinstance(whole.get(key), Mapping) for key in ("parameters", "privacy", "versions", "source")},
        **{key: isinstance(whole.get(key), bool) for key in ("halted", "bound_is_estimate")},
        **{key: isinstance(whole.get(key), Integral) and whole[key] >= 1 for key in ("n_users", "n_features")},
        "phases": _is_list(whole["phases"], Mapping),
        "notes": _is_list(whole["notes"]),
        "coef": n_outputs > 0 and all(_is_list(row, Real | None) and len(row) == width for row in rows or ()),
        "intercept": _is_list(whole.get("intercept"), Real | None) and len(whole["intercept"]) in (0, n_outputs),
        "features": names is None or (_is_list(names) and len(names) == width),
        "classes": whole["classes"] is None or _is_list(whole["classes"]),
    }
    if wrong := [key for key, right in fine.items() if not right]:
        raise _refused(f'"{wrong[0]}"', whole.get(wrong[0]))

    def standard_errors(found: Any) -> list[float]:
        """Of the coefficients, the intercept's last if there is one."""
        size = len(found["noise"])
        errors = [math.sqrt(float(found["noise"][k][k]) + float(found["sampling"][k][k])) for k in range(size)]
        return _if(size in (width, width + 1) and n_outputs == 1 and all(map(math.isfinite, errors)), errors)

    def shrunk(found: Any) -> list[float]:
        """What was taken off each coefficient's estimate, which intervals are about."""
        off = [float(value) for value in found.get("shrunk", [0.0] * len(found["noise"]))]
        return _if(len(off) == len(found["noise"]) and all(map(math.isfinite, off)), off)

    whole["std_err"] = _read('"uncertainty"', whole["uncertainty"], standard_errors)
    whole["shrunk"] = _read('"uncertainty": "shrunk"', whole["uncertainty"], shrunk)
    whole["scores"] = _read('"scores"', whole["scores"], _checked_scores)
    whole["privacy"] = _checked_privacy(whole["privacy"])
    return whole


def _checked_privacy(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the guarantee; with what follows: the most right guesses, and the name of the ledger's file."""
    whole = {**_OPTIONAL_PRIVACY, **privacy}
    epsilon, delta, ledger = (whole.get(key) for key in ("epsilon", "delta", "ledger"))
    fine = {
        "epsilon": isinstance(epsilon, Real) and epsilon is not True and 0 < epsilon < math.inf,
        "delta": isinstance(delta, Real) and 0 <= delta < 1,
        "unit": whole.get("unit") in ("user", "row"),
        "private": isinstance(whole.get("private"), bool),
        "mechanisms": _is_list(whole.get("mechanisms"), Mapping),
        "ledger": isinstance(ledger, Mapping | None),
    }
    if wrong := [key for key, right in fine.items() if not right]:
        raise _refused(f'"privacy": "{wrong[0]}"', whole.get(wrong[0]))
    found = _read('"privacy": "tradeoff"', whole["tradeoff"], _checked_tradeoff)
    affected = _read('"privacy": "affected_users"', whole["affected_users"], AffectedUsers.from_list)
    alone = right_guess(whole["epsilon"], whole["delta"])  # what they rule out, beside what the noise gives
    best, weak = (alone, _WEAK) if found is None else (float(found.right_guess), _WEAK_NOISE)
    where = (ledger or {}).get("path")  # whose folder it is in is nobody's business
    return whole | {
        "tradeoff": found,
        "affected_users": affected,
        "private": whole["private"] and whole["insecure_seed"] is None,
        "alone": alone,
        "best": best,
        "weak": best >= weak,
        "ledger_name": clean(PureWindowsPath(str(where)).name) if where else "",
    }


def _checked_scores(record: Any) -> Scores:
    """The scores that were measured, if that is what they are."""
    found = Scores.from_dict(record)
    found.lines()
    return _if(isinstance(found.n_users, int) and 0 < float(found.confidence) < 1 and bool(found.scores), found)


def _checked_tradeoff(record: Any) -> Tradeoff:
    """What the noise really gives, if its numbers can be chances at all."""
    found = Tradeoff.from_dict(record)
    chances = [found.right_guess, found.failure, found.mu_failure, *(end for point in found.points for end in point)]
    numbers = [found.mu, found.added_epsilon, *(value for pair in found.epsilons for value in pair)]
    fine = all(0 <= chance <= 1 for chance in chances) and len(found.points) > 1
    return _if(fine and all(value is None or 0 <= value < math.inf for value in numbers), found)


def _if(fine: bool, found: _T) -> _T:
    if not fine:
        raise ValueError("not what it should be")
    return found


def _read(what: str, part: Any, read: Callable[[Any], _T | None]) -> _T | None:
    """A part of the record as it is used, None if there is none; or an error that names it."""
    try:
        return None if part is None else read(part)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError):
        raise _refused(what, part) from None


def _refused(what: str, got: object) -> ValueError:
    shown = clean(repr(got))
    shown = shown if len(shown) <= 60 else f"{type(got).__name__} {shown[:57]}..."
    return ValueError(f"Expected {what} as a model's to_dict() gives it, got {shown}: pass a fitted model, or that.")


def _is_list(value: object, of: Any = object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, of) for entry in value)


def real(value: Any) -> float:
    """The number as a float; NaN for anything that is none, so that pictures leave it out."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:
        return math.inf


def positive(value: object) -> bool:
    """Whether it is a number > 0 that a log axis can show."""
    return 1e-300 < real(value) < 1e300


def clean(text: object) -> str:
    """Text in one line that can be written as UTF-8 and does not rearrange its surroundings; not yet escaped."""
    line = "".join(" " if unicodedata.category(char) == "Cc" else char for char in str(text))
    return _BIDI.sub("", line).encode("utf-8", "replace").decode()


def shorten(text: object, room: int) -> str:
    """At most `room` characters (wide ones count twice), the middle left out: both ends of a name tell it apart."""
    line = clean(text).strip() or NAMELESS
    if _width(line) <= room:
        return line
    head, tail = line[:room], line[-room:]
    while _width(head) + 1 + _width(tail) > room and (head or tail):
        head, tail = (head[:-1], tail) if _width(head) >= _width(tail) else (head, tail[1:])
    return f"{head}…{tail}"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def number(value: object, digits: int = 4) -> str:
    """A number for people: 48,092 or 0.0021 or 1e-06."""
    if value is None:
        return "not given"
    if isinstance(value, bool) or not isinstance(value, Real):
        return clean(value)
    amount = real(value)
    if not math.isfinite(amount):
        return "NaN" if math.isnan(amount) else "∞" if amount > 0 else "−∞"
    sign, size = "−" if amount < 0 else "", abs(amount)
    whole = size < 10**15 and (size.is_integer() or size >= 10**digits)
    return sign + (f"{size:,.0f}" if whole else f"{size:.{digits}g}")


def power(value: float) -> str:
    """A small number as 10⁻⁶ or 2.5·10⁻⁷; one that is not so small as it is."""
    if not 0 < value < 1e-3:
        return rounded_up(value)
    exponent = math.floor(math.log10(value))
    rounded = math.ceil(value / 10**exponent * 1000 * (1 - 1e-12)) / 1000  # up: it is a bound
    factor, exponent = (1.0, exponent + 1) if rounded >= 10 else (rounded, exponent)
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if factor == 1 else f"{factor:g}·10{raised}"


def feature_names(record: Mapping[str, Any]) -> list[str]:
    """The features' names, or x0, x1, .. where the model has none."""
    names = record["features"]
    if names is None:
        return [f"x{k}" for k in range(record["n_features"])]
    return [clean(name).strip() or NAMELESS for name in names]


def output_names(record: Mapping[str, Any]) -> list[str]:
    """What the rows of coefficients are for: classes, the second of two classes, or outputs by number."""
    count, classes = len(record["coef"]), record["classes"]
    if classes is not None and count == len(classes):
        return [clean(label) for label in classes]
    if classes is not None and count == 1 and len(classes) == 2:
        return [clean(classes[1])]
    return ["prediction"] if count == 1 else [f"output {k}" for k in range(count)]
