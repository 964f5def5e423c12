"""Losses of rows that have a weight: target and weight are one number, so that they stay together on every way.

A packed target is a whole number, the class or the place of the target in [-1, 1] on a grid of 2^26 steps, plus a
quarter of the weight, which is in [0, 1]. So all that treats rows by their targets treats weights: grouping,
dense and sparse rows, solvers, and whatever holds for a user's vector holds for weighted rows.

>>> round(float(weighted(standard.logistic).slope(0.0, float(pack_classes([1.0], [0.5])[0]))), 6)
-0.25
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from userdp.losses import standard
from userdp.losses.base import Function, Loss, floats, register

_STEPS = 2.0**25  # for each unit of a target, and as many on the other side of 0


def pack_classes(codes: npt.ArrayLike, weights: npt.ArrayLike) -> np.ndarray:
    """Positions of classes and weights in [0, 1] as one number each; NaN where the position is."""
    return np.asarray(np.asarray(codes, np.float64) + 0.25 * np.asarray(weights, np.float64))


def pack_numbers(targets: npt.ArrayLike, weights: npt.ArrayLike) -> np.ndarray:
    """Targets in [-1, 1], to 2^-26, and weights in [0, 1] as one number each; NaN where the target is."""
    return np.asarray(np.rint((np.asarray(targets, np.float64) + 1) * _STEPS) + 0.25 * np.asarray(weights, np.float64))


def _weights(packed: npt.ArrayLike) -> Any:
    wide = np.asarray(packed, np.float64)
    return 4.0 * (wide - np.floor(wide))


def _classes(packed: npt.ArrayLike) -> Any:
    """The classes, NaN for what is no packed one."""
    wide = np.asarray(packed, np.float64)
    whole = np.floor(wide)
    return np.where(wide - whole <= 0.25, whole, np.nan)


def _numbers(packed: npt.ArrayLike) -> Any:
    return np.floor(np.asarray(packed, np.float64)) / _STEPS - 1.0


@functools.lru_cache(maxsize=256)
def weighted(loss: Loss) -> Loss:
    """The loss of rows that count as often as their weight says, 0 to 1 times; targets are packed.

    value weight * value, slope weight * slope. Constants: those of the loss, since no weight is above 1. For losses of
    this package; targets of regression in [-1, 1].
    """
    if loss.may_raise or loss.unweighted is not None:
        raise ValueError(f"Expected a loss of userdp without weights, got {loss.name}: use one of userdp.losses.")
    target_of = _classes if loss.classifies else _numbers
    value, slope = (partial(_weighted, function, target_of) for function in (loss.value, loss.slope))
    name = f"weighted {loss.name}"
    return register(replace(loss, name=name, value=value, slope=slope, unweighted=loss), weighted, loss)


def _weighted(
    function: Function,
    target_of: Callable[[npt.ArrayLike], np.ndarray],
    predictions: npt.ArrayLike,
    packed: npt.ArrayLike,
) -> Any:
    found, weights = function(predictions, target_of(packed)), _weights(packed)
    if found.ndim > weights.ndim:  # one slope for each output
        weights = weights[..., None]
    return weights.astype(found.dtype) * found


@functools.cache
def poisson_of_exposure(largest: float, largest_count: float) -> Loss:
    """Poisson deviance of counts in a row's exposure, up to a constant; targets are packed.

    `largest` is the largest count over the largest exposure. The packed target is count / largest count, the weight
    u = exposure / largest exposure: value u e(z) - y z, slope u e'(z) - y, z and e as for `poisson`, which this is for
    u = 1. Of u = 0 the target must be 0. Constants: as there; e' and y are in [0, 1], and u is.
    """
    plain = replace(standard.poisson(largest), event=min(1.0, 2 / largest_count))
    shift = math.log(largest)
    value, slope = partial(_exposed_value, shift), partial(_exposed_slope, shift)
    made = replace(plain, name=f"{plain.name} of exposure", value=value, slope=slope, unweighted=plain)
    return register(made, poisson_of_exposure, largest, largest_count)


def _exposed_value(shift: float, predictions: npt.ArrayLike, packed: npt.ArrayLike) -> Any:
    z = floats(predictions) - shift
    weights, counts = _weights(packed).astype(z.dtype), _numbers(packed).astype(z.dtype)
    return weights * standard._started(z) - counts * z


def _exposed_slope(shift: float, predictions: npt.ArrayLike, packed: npt.ArrayLike) -> Any:
    z = floats(predictions) - shift
    weights, counts = _weights(packed).astype(z.dtype), _numbers(packed).astype(z.dtype)
    return weights * np.exp(np.minimum(z, 0.0)) - counts
