"""What targets are: labels, numbers within a range, or counts. How each is declared, encoded, decoded and scaled."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from userdp.data.columns import PRIVATE
from userdp.data.schema import is_boolean, label_set, numbers, positions
from userdp.data.users import UserData

_NARROW = 0.05  # of a declared range: if nearly all targets lie within that much of it a fit says that it is too wide


@dataclass(frozen=True, eq=False)
class Targets(ABC):
    """Targets of one kind. What is learned are numbers: cut off at public `ends`, less `middle`, over `half`.

    weight: what learned weights are multiplied by; loss: a loss in units of targets over the same of what is learned.
    `ends` are infinite as long as they are not known: a range may be released first.
    """

    _: KW_ONLY
    ends: tuple[float, float] = (-math.inf, math.inf)
    middle: float = 0.0
    half: float = 1.0
    weight: float = 1.0
    loss: float = 1.0

    @classmethod
    @abstractmethod
    def declared(cls, model: Any, y: Any) -> Self:
        """By an estimator's parameters, or y's type; else read off y as `unprotected_checks` allow; y may be None."""

    @property
    def attributes(self) -> dict[str, Any]:
        """What an estimator shows of them."""
        return {}

    def within(self, ends: tuple[float, float]) -> Self:
        """The same with these ends, and scaled by them."""
        return self

    def encode(self, y: Any) -> np.ndarray:
        """What is learned of targets, NaN where they make no sense."""
        y = numbers("y", y).astype(np.float64, copy=False)
        return np.where(np.isinf(y), np.nan, (np.clip(y, *self.ends) - self.middle) / self.half)

    def decode(self, learned: np.ndarray) -> np.ndarray:
        """Targets in their own units."""
        return np.asarray(learned * self.half + self.middle)

    def sound(self, targets: np.ndarray) -> np.ndarray:
        """Which targets of grouped data make sense."""
        return np.asarray(np.isfinite(targets))

    def users(self, data: UserData) -> UserData:
        """The same users with encoded targets."""
        return replace(data, targets=self.encode(data.targets))

    def advice(self, fraction: float) -> str:
        """What to say of what was declared, if nearly all targets lie within this fraction of their range."""
        return ""


@dataclass(frozen=True, eq=False)
class Classes(Targets):
    """Labels, sorted; encoded as their positions. strict: whether others raise."""

    labels: np.ndarray
    strict: bool = False

    @classmethod
    def declared(cls, model: Any, y: Any) -> Self:
        declared = [False, True] if model.classes is None and is_boolean(y) else model.classes
        if declared is not None:
            return cls(label_set(declared), model.unprotected_checks)
        if not model.unprotected_checks:
            raise ValueError(
                "Expected classes, all labels that there can be, such as classes=[0, 1]: labels are not read off the "
                "data, because that would reveal users who have rare ones. Nothing was spent."
            )
        labels = np.asarray([] if y is None else y.tolist())
        if y is not None:
            check_classification_targets(labels)
            if len(np.unique(labels)) < 2:
                raise ValueError("Expected labels of at least 2 classes, got one class only.")
        return cls(np.unique(labels), True)

    @property
    def attributes(self) -> dict[str, Any]:
        return {"classes_": self.labels}

    def encode(self, y: Any) -> np.ndarray:
        codes = positions("y", y, self.labels.tolist())
        if self.strict and np.isnan(codes).any():
            raise ValueError(f"Expected labels among the classes {self.labels.tolist()}, got others too.")
        return codes

    def sound(self, targets: np.ndarray) -> np.ndarray:
        return np.asarray((targets >= 0) & (targets < len(self.labels)) & (targets == np.floor(targets)))

    def weighed(self, codes: np.ndarray, declared: Mapping[Any, float]) -> tuple[np.ndarray, float]:
        """How often rows of these classes count, by public weights of labels, as fractions of the largest; and that."""
        labels = self.labels.tolist()
        for label, weight in declared.items():
            if not (isinstance(weight, int | float | np.number) and 0 <= weight < math.inf):
                raise ValueError(f"Expected class_weight of {label!r} to be a finite number >= 0, got {weight!r}.")
        unknown = [label for label in declared if label not in labels]
        if unknown and not self.strict:
            raise ValueError(f"Expected class_weight of the classes {labels}, got {unknown!r} too.")
        weights = np.array([float(declared.get(label, 1.0)) for label in labels])
        if not weights.any():
            raise ValueError("Expected class_weight to be above 0 for at least one class.")
        known = np.where(self.sound(codes), codes, len(labels)).astype(np.int64)
        return np.append(weights / weights.max(), 0.0)[known], float(weights.max())


@dataclass(frozen=True, eq=False)
class Range(Targets):
    """Numbers, scaled from their range to [-1, 1]; without an intercept their 0 stays where it is.

    asked: the parameter `target_range`; degree: with which power of targets' units the loss grows.
    """

    asked: Any = None
    intercept: bool = True
    degree: int = 2

    @classmethod
    def declared(cls, model: Any, y: Any) -> Self:
        found = cls(model.target_range, bool(model.fit_intercept), model._degree)
        if is_private(found.asked):
            return found
        if found.asked is None and not model.unprotected_checks:
            raise ValueError(
                "Expected target_range=(lowest, highest): a public range of targets, from what they mean and not from "
                "the data; those beyond are cut off. target_range='private' learns it for a part of the budget. "
                "Nothing was spent."
            )
        if found.asked is None:
            y = None if y is None else numbers("y", y).astype(np.float64, copy=False)
            return found if y is None else found.within((float(y.min()), float(y.max()) + (y.min() == y.max())))
        try:
            low, high = map(float, found.asked)
        except (TypeError, ValueError):
            low = high = math.nan
        if not (low < high and math.isfinite(high - low)):
            raise ValueError(
                f"Expected target_range={found.asked!r} to be two numbers, lowest < highest, or 'private'."
            )
        return found.within((low, high))

    @property
    def attributes(self) -> dict[str, Any]:
        return {"target_range_": None if math.isinf(self.ends[1]) else self.ends}

    def within(self, ends: tuple[float, float]) -> Self:
        middle = ends[0] / 2 + ends[1] / 2 if self.intercept else 0.0
        half = max(abs(end - middle) for end in ends)
        return replace(self, ends=ends, middle=middle, half=half, weight=half, loss=half**self.degree)

    def advice(self, fraction: float) -> str:
        if self.asked is None or is_private(self.asked) or not fraction < _NARROW:
            return ""
        low, high = self.ends
        return (
            f"Nearly all targets seem to lie within about {max(100 * fraction, 0.1):.1g}% of "
            f"target_range=({low:g}, {high:g}), or less. A range that fits, or target_range='private', would give less "
            "noise."
        )


@dataclass(frozen=True, eq=False)
class Counts(Targets):
    """Counts, divided by the largest one; weights are of logarithms."""

    @classmethod
    def declared(cls, model: Any, y: Any) -> Self:
        largest = model.max_count
        if largest is None:
            if not model.unprotected_checks:
                raise ValueError(
                    "Expected max_count, the public largest count of a row, from what is counted and not from the "
                    "data; those beyond are cut off. Nothing was spent."
                )
            return cls() if y is None else cls().within((0.0, max(float(numbers("y", y).max()), 1e-300)))
        if not (isinstance(largest, int | float | np.number) and 0 < largest < math.inf):
            raise ValueError(f"Expected max_count={largest!r} to be a finite number > 0.")
        return cls().within((0.0, float(largest)))

    @property
    def attributes(self) -> dict[str, Any]:
        return {"max_count_": None if math.isinf(self.ends[1]) else self.ends[1]}

    def within(self, ends: tuple[float, float]) -> Self:
        return replace(self, ends=ends, half=ends[1], loss=ends[1])


def is_private(asked: Any) -> bool:
    """Whether a parameter asks for what is to be learned privately."""
    return isinstance(asked, str) and asked == PRIVATE
