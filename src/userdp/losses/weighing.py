"""Losses of rows that have a weight: target and weight are one number, so that they stay together on every way.

A packed target is a whole number, the class or the place of the target in [-1, 1] on a grid of 2^26 steps, plus a
quarter of the weight, which is in [0, 1]. So all that treats rows by their targets treats weights: grouping, kernels of
dense and sparse rows, solvers, and whatever holds for a user's vector holds for weighted rows.

>>> round(float(weighted(standard.logistic).slope(0.0, float(pack_classes([1.0], [0.5])[0]))), 6)
-0.25
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from userdp.compiling import PlainKernel, kernel
from userdp.losses import standard
from userdp.losses.base import Loss, compiled, register

_STEPS = 2.0**25  # for each unit of a target, and as many on the other side of 0


def pack_classes(codes: npt.ArrayLike, weights: npt.ArrayLike) -> np.ndarray:
    """Positions of classes and weights in [0, 1] as one number each; NaN where the position is."""
    return np.asarray(np.asarray(codes, np.float64) + 0.25 * np.asarray(weights, np.float64))


def pack_numbers(targets: npt.ArrayLike, weights: npt.ArrayLike) -> np.ndarray:
    """Targets in [-1, 1], to 2^-26, and weights in [0, 1] as one number each; NaN where the target is."""
    return np.asarray(np.rint((np.asarray(targets, np.float64) + 1) * _STEPS) + 0.25 * np.asarray(weights, np.float64))


@compiled
def _weight(packed: float) -> float:
    return float(4.0 * (packed - np.floor(packed)))


@compiled
def _class(packed: float) -> float:
    """The class, NaN for what is no packed one."""
    whole = np.floor(packed)
    return whole if packed - whole <= 0.25 else math.nan


@compiled
def _number(packed: float) -> float:
    return float(np.floor(packed) / _STEPS - 1.0)


@functools.lru_cache(maxsize=256)
def weighted(loss: Loss) -> Loss:
    """The loss of rows that count as often as their weight says, 0 to 1 times; targets are packed.

    value weight * value, slope weight * slope. Constants: those of the loss, since no weight is above 1. For losses of
    this package; targets of regression in [-1, 1].
    """
    if loss.may_raise or loss.unweighted is not None:
        raise ValueError(f"Expected a loss of userdp without weights, got {loss.name}: use one of userdp.losses.")
    target_of = _class if loss.classifies else _number
    value, slope = loss.value, loss.slope

    def weighted_value(prediction: Any, packed: float) -> float:
        return _weight(packed) * value(prediction, target_of(packed))

    def weighted_slope(prediction: Any, packed: float) -> Any:
        return _weight(packed) * slope(prediction, target_of(packed))

    return register(_of_weights(loss, f"weighted {loss.name}", weighted_value, weighted_slope), weighted, loss)


@functools.cache
def poisson_of_exposure(largest: float, largest_count: float) -> Loss:
    """Poisson deviance of counts in a row's exposure, up to a constant; targets are packed.

    `largest` is the largest count over the largest exposure. The packed target is count / largest count, the weight
    u = exposure / largest exposure: value u e(z) - y z, slope u e'(z) - y, z and e as for `poisson`, which this is for
    u = 1. Of u = 0 the target must be 0. Constants: as there; e' and y are in [0, 1], and u is.
    """
    plain = replace(standard.poisson(largest), event=min(1.0, 2 / largest_count))
    shift, exp_of_negative = math.log(largest), standard._exp_of_negative

    def value(prediction: float, packed: float) -> float:
        z = prediction - shift
        return _weight(packed) * (1.0 + z if z > 0.0 else math.exp(z)) - _number(packed) * z

    def slope(prediction: float, packed: float) -> float:
        z = prediction - shift
        return _weight(packed) * exp_of_negative(0.0 if z > 0.0 else z) - _number(packed)

    made = _of_weights(plain, f"{plain.name} of exposure", value, slope)
    return register(made, poisson_of_exposure, largest, largest_count)


def _of_weights(loss: Loss, name: str, value: Any, slope: Any) -> Loss:
    make = kernel(PlainKernel, cache=False, error_model="numpy")
    kernels: dict[str, Any] = {"value": make(value), "slope": make(slope)}
    return replace(loss, name=name, unweighted=loss, **kernels)
