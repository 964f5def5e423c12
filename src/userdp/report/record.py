"""The model's record: checked, completed, and its numbers and names formatted."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from numbers import Real
from pathlib import PureWindowsPath
from typing import Any

from userdp.evaluation.scores import Scores
from userdp.models.files import parameters_now
from userdp.models.sklearn_compat import mode_now
from userdp.privacy.accounting import RELATIONS, REPLACE_ONE, rounded_up
from userdp.privacy.statement import AffectedUsers, Tradeoff, right_guess
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
    **dict.fromkeys(("neighbours", "warning", "called"), ""),
    "relation": REPLACE_ONE,
    **dict.fromkeys(("insecure_seed", "ledger", "tradeoff", "affected_users")),
}
_WEAK, _WEAK_NOISE = 0.95, 0.75  # right guesses: that (epsilon, delta) alone allows, or the noise itself
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")  # they would let a name rearrange the text around it


def checked(record: object) -> dict[str, Any]:
    """A copy of the record with everything optional filled in, and its parts as they are used; or an error."""
    try:
        return _completed(record)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"The model's record is damaged ({type(error).__name__}: {clean(error)[:200]}). Pass a fitted model, or "
            "the record that its to_dict() gives."
        ) from None


def _completed(record: Any) -> dict[str, Any]:
    whole = dict(_OPTIONAL) | {str(key): value for key, value in record.items()}
    whole["phases"] = [dict(phase) for phase in whole["phases"]]
    _check(whole.get("format") == FORMAT, f'its format is "{FORMAT}"')
    width, rows = whole["n_features"], whole["coef"]
    errors: list[float] | None = None
    _check(whole["n_users"] >= 1 and rows and all(len(row) == width for row in rows), "rows of n_features numbers")
    _check(len(whole["intercept"]) in (0, len(rows)), "one intercept per output, or none")
    _check(whole["features"] is None or len(whole["features"]) == width, "a name for each feature, or none")
    if (found := whole["uncertainty"]) is not None:  # of the coefficients, the intercept's last if there is one
        size = len(found["noise"])
        errors = [math.sqrt(float(found["noise"][k][k]) + float(found["sampling"][k][k])) for k in range(size)]
        whole["shrunk"] = [float(value) for value in found.get("shrunk", [0.0] * size)]  # off the intervals' middles
        fine = size in (width, width + 1) and len(rows) == 1 and len(whole["shrunk"]) == size
        _check(fine and all(map(math.isfinite, errors + whole["shrunk"])), "covariances of the weights of one output")
    if whole["bound_is_estimate"] is None:
        whole["bound_is_estimate"] = whole["solver"] not in PROVEN
    whole["parameters"] = parameters_now(whole["parameters"])
    whole["mode"] = mode_now(whole["mode"])
    scores = None if whole["scores"] is None else Scores.from_dict(whole["scores"])
    return whole | {"std_err": errors, "scores": scores, "privacy": _completed_privacy(whole["privacy"])}


def _completed_privacy(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the guarantee; with what follows: the most right guesses, and the name of the ledger's file."""
    whole = {**_OPTIONAL_PRIVACY, **privacy}
    epsilon, delta, ledger = whole["epsilon"], whole["delta"], whole["ledger"]
    _check(0 < epsilon < math.inf and 0 <= delta < 1, "0 < epsilon < infinity and 0 <= delta < 1")
    _check(whole["unit"] in ("user", "row"), 'the unit is "user" or "row"')
    _check(whole["relation"] in RELATIONS, "a relation of neighbours that there is")
    found = None if whole["tradeoff"] is None else Tradeoff.from_dict(whole["tradeoff"])
    if found is not None:
        points = [end for point in found.points for end in point]
        chances = [found.right_guess, found.failure, found.mu_failure, *points]
        others = (found.added_epsilon, found.replaced_epsilon)
        numbers = [found.mu, *others, *(value for pair in found.epsilons for value in pair)]
        fine = all(value is None or 0 <= value < math.inf for value in numbers) and len(points) > 2
        _check(fine and all(0 <= chance <= 1 for chance in chances), "chances and epsilons of the trade-off")
    alone = right_guess(epsilon, delta)  # what epsilon and delta alone rule out, beside what the noise gives
    best, weak = (alone, _WEAK) if found is None else (found.right_guess, _WEAK_NOISE)
    where = (ledger or {}).get("path")  # whose folder it is in is nobody's business
    return whole | {
        "word": clean(whole["called"] or whole["unit"]),
        "mechanisms": [dict(step) for step in whole["mechanisms"]],
        "tradeoff": found,
        "affected_users": AffectedUsers.from_list(whole["affected_users"]),
        "private": whole["private"] is True and whole["insecure_seed"] is None,
        "alone": alone,
        "best": best,
        "weak": best >= weak,
        "ledger_name": clean(PureWindowsPath(str(where)).name) if where else "",
    }


def _check(fine: object, expected: str) -> None:
    if not fine:
        raise ValueError(f"{expected} expected")


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
    """A number in words: 48,092 or 0.0021 or 1e-06."""
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
