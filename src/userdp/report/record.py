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
from userdp.solvers.solver import PROVEN

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
    "neighbours": "",
    "warning": "",
    **dict.fromkeys(("insecure_seed", "ledger", "tradeoff", "affected_users")),
}
_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("estimator", str, "a name"),
    ("parameters", Mapping, "a dict"),
    ("privacy", Mapping, "a dict"),
    ("versions", Mapping, "a dict"),
    ("source", Mapping, "a dict"),
    ("halted", bool, "true or false"),
    ("message", str, "text"),
    ("coef", list, "a list of rows, one per output"),
    ("intercept", list, "a list of numbers, one per output"),
    ("phases", list | tuple, "a list of dicts"),
    ("notes", list | tuple, "a list of texts"),
)
_WEAK, _WEAK_NOISE = 0.95, 0.75  # right guesses: that (epsilon, delta) alone allows, or the noise itself
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")  # they would let a name rearrange the text around it
_T = TypeVar("_T")


def checked(record: object) -> dict[str, Any]:
    """A copy of the record with everything optional filled in, or an error that says what was expected."""
    if not isinstance(record, Mapping):
        raise _refused("a model's record", "a dict", record)
    whole = {**_OPTIONAL, **{str(key): value for key, value in record.items()}}

    def expect(fine: bool, key: str, words: str) -> None:
        if not fine:
            raise _refused(f'"{key}"', words, whole.get(key))

    expect(whole.get("format") == FORMAT, "format", f'"{FORMAT}"')
    for key, kind, words in _KINDS:
        expect(isinstance(whole.get(key), kind), key, words)
    expect(all(isinstance(phase, Mapping) for phase in whole["phases"]), "phases", "a list of dicts")
    for key in ("n_users", "n_features"):
        expect(isinstance(whole.get(key), Integral) and whole[key] >= 1, key, "a whole number >= 1")
    if whole["bound_is_estimate"] is None:
        whole["bound_is_estimate"] = whole["solver"] not in PROVEN
    expect(isinstance(whole["bound_is_estimate"], bool), "bound_is_estimate", "true or false")
    width, rows, names = whole["n_features"], whole["coef"], whole["features"]
    fine = bool(rows) and all(isinstance(row, list | tuple) and len(row) == width for row in rows)
    expect(fine, "coef", f"rows of n_features={width} numbers, one row per output")
    if not all(_is_number(value) for row in [*rows, whole["intercept"]] for value in row):
        raise _refused('"coef" and "intercept"', "numbers", "something else")
    fine = len(whole["intercept"]) in (0, len(rows))
    expect(fine, "intercept", f"{len(rows)} numbers, one per output, or none")
    fine = names is None or (isinstance(names, list | tuple) and len(names) == width)
    expect(fine, "features", f"null or {width} names")
    expect(isinstance(whole["classes"], list | tuple | None), "classes", "null or a list")

    def standard_errors(found: Any) -> list[float]:
        """Of the coefficients, the intercept's last if there is one."""
        size = len(found["noise"])
        errors = [math.sqrt(float(found["noise"][k][k]) + float(found["sampling"][k][k])) for k in range(size)]
        return _if(size in (width, width + 1) and len(rows) == 1 and all(map(math.isfinite, errors)), errors)

    words = "null or two covariances of the weights of one output"
    whole["std_err"] = _read('"uncertainty"', words, whole["uncertainty"], standard_errors)

    def shrunk(found: Any) -> list[float]:
        """What was taken off each coefficient's estimate, which intervals are about."""
        off = [float(value) for value in found.get("shrunk", [0.0] * len(found["noise"]))]
        return _if(len(off) == len(found["noise"]) and all(map(math.isfinite, off)), off)

    whole["shrunk"] = _read('"uncertainty": "shrunk"', "a number for each weight", whole["uncertainty"], shrunk)
    whole["privacy"] = _checked_privacy(whole["privacy"])
    whole["scores"] = _read('"scores"', "null or what Scores.to_dict() gives", whole["scores"], _checked_scores)
    return whole


def _checked_privacy(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the guarantee; with what follows: the most right guesses, and the name of the ledger's file."""
    whole = {**_OPTIONAL_PRIVACY, **privacy}
    epsilon, delta, steps, ledger = (whole.get(key) for key in ("epsilon", "delta", "mechanisms", "ledger"))

    def expect(fine: bool, key: str, words: str) -> None:
        if not fine:
            raise _refused(f'"privacy": "{key}"', words, whole.get(key))

    fine = epsilon is not None and _is_number(epsilon) and 0 < epsilon < math.inf
    expect(fine, "epsilon", "a finite number > 0")
    fine = delta is not None and _is_number(delta) and 0 <= delta < 1
    expect(fine, "delta", "a number >= 0 and < 1")
    expect(whole.get("unit") in ("user", "row"), "unit", '"user" or "row"')
    expect(isinstance(whole.get("private"), bool), "private", "true or false")
    fine = isinstance(steps, list | tuple) and all(isinstance(step, Mapping) for step in steps)
    expect(fine, "mechanisms", "a list of dicts")
    expect(isinstance(ledger, Mapping | None), "ledger", "null or a dict")
    words = "null or what Tradeoff.to_dict() gives"
    found = _read('"privacy": "tradeoff"', words, whole["tradeoff"], _checked_tradeoff)
    words = "null or a fraction and its interval"
    affected = _read('"privacy": "affected_users"', words, whole["affected_users"], AffectedUsers.from_list)
    alone = right_guess(
        whole["epsilon"], whole["delta"]
    )  # what epsilon and delta alone rule out, beside what the noise gives
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


def _read(what: str, words: str, part: Any, read: Callable[[Any], _T | None]) -> _T | None:
    """A part of the record as it is used, None if there is none; or an error that says what was expected."""
    try:
        return None if part is None else read(part)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError):
        raise _refused(what, words, part) from None


def _refused(what: str, expected: str, got: object) -> ValueError:
    shown = clean(repr(got))
    shown = shown if len(shown) <= 60 else f"{type(got).__name__} {shown[:57]}..."
    return ValueError(
        f"Expected {what} to be {expected}, got {shown}: pass a fitted model, or what its to_dict() gives."
    )


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, Real) and not isinstance(value, bool))


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
