"""Labels of any kind (text, true and false, numbers) to positions in the public classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from userdp.cli.errors import InputError
from userdp.table_files import TableFile, as_numbers, as_truths

_TRUTH = {"false": False, "true": True, "0": False, "1": True}


def classes_of(text: str | None, labels: pa.ChunkedArray, target: str) -> list[Any]:
    """The classes as values of the target column's type, which is public; sorted as the estimators do."""
    kind = _value_type(labels.type)
    if text is None:
        if not pa.types.is_boolean(kind):
            raise InputError(
                f"Expected --classes, all labels that column {target!r} can have, such as --classes no,yes: they are "
                "not read off the data, because that would tell of people who have rare ones. Nothing was spent."
            )
        return [False, True]
    tokens = [token.strip() for token in text.split(",")]
    if pa.types.is_boolean(kind):
        classes: list[Any] = [_TRUTH.get(token.lower()) for token in tokens]
        expected = "false,true"
    elif _is_text(kind):
        classes, expected = [token or None for token in tokens], "text"
    elif _is_number(kind):
        classes, expected = [_number(token) for token in tokens], "numbers"
    else:
        raise InputError(f"Expected column {target!r} to hold text, numbers or true and false, got {kind}: convert it.")
    if None in classes:
        raise InputError(f"Expected --classes to be {expected}, as column {target!r} holds, got {text!r}.")
    if not 2 <= len(set(classes)) == len(classes):
        raise InputError(f"Expected --classes to be at least 2 different labels, got {text!r}.")
    return sorted(classes)


def label_column(table: TableFile, target: str, classes: Sequence[Any] | str | None) -> pa.ChunkedArray:
    """The target column. Of CSV, whose types are guessed, as what the classes are, so that no slip decides it.

    An error tells only that most cells are of another type than the classes.
    """
    if not table.guessed:
        return table[target]
    labels = table.text(target)
    truths, numbers = as_truths(labels), as_numbers(labels)
    mostly_truths = 2 * (len(truths) - truths.null_count) > len(labels) - labels.null_count
    if classes is None:
        return truths if mostly_truths else labels
    tokens = [str(token).strip() for token in (classes.split(",") if isinstance(classes, str) else classes)]
    numeric = [_number(token) is not None for token in tokens]
    if all(token.lower() in ("false", "true") for token in tokens):
        fits, column = mostly_truths, truths
    elif any(numeric) and not all(numeric):
        fits, column = True, labels
    else:
        fits, column = numeric[0] == (numbers is not labels), numbers if numeric[0] else labels
    if not fits:
        held = "true and false" if mostly_truths else "text" if numbers is labels else "numbers"
        shown = ", ".join(tokens[:5])
        raise InputError(f"Expected column {target!r} to hold labels such as {shown}, got {held}: pass its own labels.")
    return column


def positions(labels: pa.ChunkedArray, classes: Sequence[Any], target: str) -> np.ndarray:
    """Each label's position in the sorted classes; NaN where it is missing or none of them, without a word."""
    kind = _value_type(labels.type)
    if pa.types.is_dictionary(labels.type):
        labels = labels.cast(kind)
    if isinstance(classes[0], str):
        fits, common = _is_text(kind), pa.large_string()
    elif all(isinstance(label, bool) for label in classes):
        fits, common = pa.types.is_boolean(kind), pa.bool_()
    else:
        exact = pa.types.is_integer(kind) and all(isinstance(label, int) for label in classes)
        fits, common = _is_number(kind) or pa.types.is_boolean(kind), kind if exact else pa.float64()
    try:
        known = pa.array(classes, type=common)
    except (pa.ArrowException, OverflowError, ValueError):
        fits = False
    if not fits:
        shown = ", ".join(map(str, classes[:5])) + ", ..." * (len(classes) > 5)
        raise InputError(f"Expected column {target!r} to hold labels such as {shown}, got {kind}: convert it.")
    found = pc.index_in(labels.cast(common, safe=False), value_set=known)
    return np.asarray(found.cast(pa.float64()))


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


def _value_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
