"""Classes as the command line names them: text, true and false, or numbers, by the target column's type."""

from __future__ import annotations

import math
from typing import Any

from userdp.cli.errors import InputError
from userdp.data.schema import ANY, NUMBER, TEXT, declared, decoded, is_boolean

_TRUTH = {"false": False, "true": True, "0": False, "1": True}


def classes_of(text: str | None, column: Any, target: str) -> list[Any]:
    """The classes as values of the target column's type, which is public; sorted as the estimators do.

    CSV declares no types: its labels are numbers if all classes are, or true and false, or else text.
    """
    column = decoded(column)
    kind = "false,true" if is_boolean(column) else declared(column)
    if text is None:
        if is_boolean(column):
            return [False, True]
        remedy = "; a CSV file declares no types, so for true and false pass --classes false,true" * (kind == ANY)
        raise InputError(
            f"Expected --classes, all labels that column {target!r} can have, such as --classes no,yes: they are "
            f"not read off the data, because that would tell of people who have rare ones{remedy}. Nothing was spent."
        )
    readings: Any = {"false,true": [_truth], NUMBER: [_number], TEXT: [_text], ANY: [_number, _truth, _text]}.get(kind)
    if readings is None:
        raise InputError(f"Expected column {target!r} to hold text, numbers or true and false, got {kind}: convert it.")
    tokens = [token.strip() for token in text.split(",")]
    found = ([read(token) for token in tokens] for read in readings)
    classes = next((labels for labels in found if None not in labels), None)
    if classes is None:
        expected = {NUMBER: "numbers", ANY: "text"}.get(kind, kind)
        raise InputError(f"Expected --classes to be {expected}, as column {target!r} holds, got {text!r}.")
    if not 2 <= len(set(classes)) == len(classes):
        raise InputError(f"Expected --classes to be at least 2 different labels, got {text!r}.")
    return sorted(classes)


def _text(token: str) -> str | None:
    return token or None


def _truth(token: str) -> bool | None:
    return _TRUTH.get(token.lower())


def _number(token: str) -> int | float | None:
    try:
        return int(token)
    except ValueError:
        pass
    try:
        value = float(token)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
