"""Checks of public numbers, in one place: each error says what is wrong, and what was passed."""

from __future__ import annotations

import math
import os
import traceback
from pathlib import Path

import numpy as np

_PACKAGE = f"{Path(__file__).parent}{os.sep}"
# Failures may be tiny; noise that no budget asks for could not be drawn.
_SMALLEST, _LARGEST = 1e-150, 1e12
_SMALLEST_RADIUS, _LARGEST_RADIUS = 2.0**-400, 2.0**400


def check_kind(kind: type, **values: object) -> None:
    """Refuse values of another class."""
    for name, value in values.items():
        if not isinstance(value, kind):
            words = "a Budget(epsilon, delta)" if kind.__name__ == "Budget" else kind.__name__
            raise TypeError(f"{name} must be {words}, got {type(value).__name__}.")


def check_number(name: str, value: object) -> float:
    """The number as a plain float; infinite if it is a whole number beyond all floats."""
    if not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_positive(**numbers: object) -> tuple[float, ...]:
    """The numbers as plain floats, in order: finite and above 0."""
    floats = tuple(check_number(name, number) for name, number in numbers.items())
    for name, number in zip(numbers, floats, strict=True):
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{name} must be finite and > 0, got {number}.")
    return floats


def check_counts(at_least: int = 1, **numbers: object) -> tuple[int, ...]:
    """The numbers as plain ints, in order: products of a few bits' integers would wrap around.

    Refuses anything but large enough whole numbers: half a round would be charged as half and released as one.
    """
    counts = []
    for name, number in numbers.items():
        if not (isinstance(number, (int, np.integer)) and number >= at_least):
            raise ValueError(f"{name} must be a whole number >= {at_least}, got {number!r}.")
        counts.append(int(number))
    return tuple(counts)


def check_seed(insecure_seed: object) -> int | None:
    """The seed as a plain int, or None: refuses what is no seed, whether or not it will be needed."""
    if insecure_seed is None:
        return None
    if isinstance(insecure_seed, bool) or not isinstance(insecure_seed, (int, np.integer)) or insecure_seed < 0:
        kind = type(insecure_seed).__name__
        raise ValueError(f"insecure_seed must be a whole number >= 0, got {kind}: pass None for a private run.")
    return int(insecure_seed)


def is_our_message(error: BaseException) -> bool:
    """Whether a raise statement of this package made the error.

    Such words depend on public facts only. Words of other libraries, and those of float() and the like in our files,
    may quote a cell.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_PACKAGE) and (frames[-1].line or "").startswith("raise ")


def check_radius(radius: object) -> float:
    """The radius as a float, if it is one whose squares, and sums of K vectors of 2^20 radii, cannot overflow."""
    number = check_number("radius", radius)
    if not number > 0:
        raise ValueError(f"radius must be > 0, got {number}: it is the distance within which vectors count as close.")
    if not _SMALLEST_RADIUS <= number <= _LARGEST_RADIUS:
        raise ValueError(
            f"radius must be from {_SMALLEST_RADIUS:g} to {_LARGEST_RADIUS:g}, got {number}: rescale the features."
        )
    return number


def check_record(
    record: object,
    reals: tuple[str, ...] = (),
    counts: tuple[str, ...] = (),
    from_zero: str = "",
    chances: tuple[str, ...] = (),
) -> None:
    """Check a frozen record's numbers and store them as plain floats and ints.

    What was priced must not change afterwards, as an array could, nor be priced in the precision of a narrow float.
    `from_zero` names the count that may be 0; `chances` are reals below 1.
    """
    for name in reals + chances:
        (number,) = check_positive(**{name: getattr(record, name)})
        if not _SMALLEST <= number <= _LARGEST:
            raise ValueError(f"{name} must be from {_SMALLEST:g} to {_LARGEST:g}, got {number}.")
        if name in chances and not number < 1:
            raise ValueError(f"{name} must be above 0 and below 1, got {number}.")
        object.__setattr__(record, name, number)
    for name in counts:
        (count,) = check_counts(at_least=0 if name == from_zero else 1, **{name: getattr(record, name)})
        object.__setattr__(record, name, count)
