"""The model's record: checked, completed, and its numbers and names written for people."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from userdp.evaluation.scores import Scores
from userdp.privacy.accounting import rounded_up
from userdp.privacy.guarantee import AffectedUsers, Tradeoff
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
_OPTIONAL_PRIVACY = {
    "neighbours": "",
    "insecure_seed": None,
    "warning": "",
    "ledger": None,
    "tradeoff": None,
    "affected_users": None,
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
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")  # they would let a name rearrange the text around it


def checked(record: object) -> dict[str, Any]:
    """A copy of the record with everything optional filled in, or an error that says what was expected."""
    if not isinstance(record, Mapping):
        raise _refused("a model's record", "a dict", record)
    _expect(record.get("format") == FORMAT, '"format"', f'"{FORMAT}"', record.get("format"))
    whole = {**_OPTIONAL, **{str(key): value for key, value in record.items()}}
    for key, kind, words in _KINDS:
        _expect(isinstance(whole.get(key), kind), f'"{key}"', words, whole.get(key))
    _expect(
        all(isinstance(phase, Mapping) for phase in whole["phases"]), '"phases"', "a list of dicts", whole["phases"]
    )
    for key in ("n_users", "n_features"):
        fine = isinstance(whole.get(key), Integral) and whole[key] >= 1
        _expect(fine, f'"{key}"', "a whole number >= 1", whole.get(key))
    if whole["bound_is_estimate"] is None:
        whole["bound_is_estimate"] = whole["solver"] not in PROVEN
    estimate = whole["bound_is_estimate"]
    _expect(isinstance(estimate, bool), '"bound_is_estimate"', "true or false", estimate)
    _check_coefficients(whole)
    whole["std_err"] = _standard_errors(whole)
    whole["privacy"] = _checked_privacy(whole["privacy"])
    if whole["scores"] is not None:
        whole["scores"] = _checked_scores(whole["scores"])
    return whole


def _checked_scores(record: Any) -> Scores:
    """The scores that were measured, if that is what they are."""
    try:
        found = Scores.from_dict(record)
        fine = isinstance(found.n_users, int) and 0 < float(found.confidence) < 1 and bool(found.scores)
        found.lines()
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        fine = False
    _expect(fine, '"scores"', "null or what Scores.to_dict() gives", record)
    return found


def _check_coefficients(record: dict[str, Any]) -> None:
    width, rows, names, classes = record["n_features"], record["coef"], record["features"], record["classes"]
    fine = bool(rows) and all(isinstance(row, list | tuple) and len(row) == width for row in rows)
    _expect(fine, '"coef"', f"rows of n_features={width} numbers, one row per output", rows)
    fine = all(_is_number(value) for row in [*rows, record["intercept"]] for value in row)
    _expect(fine, '"coef" and "intercept"', "numbers", "something else")
    fine = len(record["intercept"]) in (0, len(rows))
    _expect(fine, '"intercept"', f"{len(rows)} numbers, one per output, or none", record["intercept"])
    fine = names is None or (isinstance(names, list | tuple) and len(names) == width)
    _expect(fine, '"features"', f"null or {width} names", names)
    _expect(isinstance(classes, list | tuple | None), '"classes"', "null or a list", classes)


def _standard_errors(record: dict[str, Any]) -> list[float] | None:
    """Of the coefficients, the intercept's last if there is one; None for models without."""
    found, width = record["uncertainty"], record["n_features"]
    if found is None:
        return None
    try:
        size = len(found["noise"])
        errors = [math.sqrt(float(found["noise"][k][k]) + float(found["sampling"][k][k])) for k in range(size)]
        fine = size in (width, width + 1) and len(record["coef"]) == 1 and all(map(math.isfinite, errors))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        fine = False
    _expect(fine, '"uncertainty"', "null or two covariances of the weights of one output", found)
    return errors


def _checked_privacy(privacy: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**_OPTIONAL_PRIVACY, **privacy}
    epsilon, delta, unit, private = (whole.get(key) for key in ("epsilon", "delta", "unit", "private"))
    steps, ledger = whole.get("mechanisms"), whole["ledger"]
    fine = epsilon is not None and _is_number(epsilon) and 0 < epsilon < math.inf
    _expect(fine, '"privacy": "epsilon"', "a finite number > 0", epsilon)
    fine = delta is not None and _is_number(delta) and 0 <= delta < 1
    _expect(fine, '"privacy": "delta"', "a number >= 0 and < 1", delta)
    _expect(unit in ("user", "row"), '"privacy": "unit"', '"user" or "row"', unit)
    _expect(isinstance(private, bool), '"privacy": "private"', "true or false", private)
    fine = isinstance(steps, list | tuple) and all(isinstance(step, Mapping) for step in steps)
    _expect(fine, '"privacy": "mechanisms"', "a list of dicts", steps)
    _expect(isinstance(ledger, Mapping | None), '"privacy": "ledger"', "null or a dict", ledger)
    if whole["tradeoff"] is not None:
        whole["tradeoff"] = _checked_tradeoff(whole["tradeoff"])
    whole["affected_users"] = _checked_affected(whole["affected_users"])
    whole["private"] = private and whole["insecure_seed"] is None
    return whole


def _checked_tradeoff(record: Any) -> Tradeoff:
    """What the noise really gives, if its numbers can be chances at all."""
    try:
        found = Tradeoff.from_dict(record)
        points = [chance for pair in found.points for chance in pair]
        chances = [found.right_guess, found.failure, found.mu_failure, *points]
        numbers = [found.mu, found.added_epsilon, *(value for pair in found.epsilons for value in pair)]
        fine = all(0 <= chance <= 1 for chance in chances)
        fine = fine and all(value is None or 0 <= value < math.inf for value in numbers) and len(found.points) > 1
    except (KeyError, TypeError, ValueError, OverflowError):
        fine = False
    _expect(fine, '"privacy": "tradeoff"', "null or what Tradeoff.to_dict() gives", record)
    return found


def _checked_affected(record: Any) -> AffectedUsers | None:
    """The fraction of users who lost rows, if it is one."""
    try:
        return AffectedUsers.from_list(record)
    except (TypeError, ValueError, OverflowError):
        raise _refused('"privacy": "affected_users"', "null or a fraction and its interval", record) from None


def _expect(fine: bool, what: str, expected: str, got: object) -> None:
    if not fine:
        raise _refused(what, expected, got)


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
