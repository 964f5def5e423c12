"""Losses made from functions of your own, or from other losses by rounding their kinks."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
from numba.extending import is_jitted

from userdp.losses.base import Loss, SlopeBound, check_positive


def custom(
    name: str,
    value: Callable[[float, float], float],
    slope: Callable[[float, float], float],
    *,
    lipschitz: SlopeBound,
    smoothness: float = math.inf,
) -> Loss:
    """A loss from two scalar Python functions of (prediction, target), compiled by numba where possible.

    `lipschitz` is the largest |slope|, a number or a function of (largest |prediction|, largest |target|);
    `smoothness` the largest derivative of the slope: both for rows of norm 1, as in `Loss`. Functions that numba
    cannot compile stay in Python and work, slowly. An exception inside `slope` turns that user's gradient into NaN.
    """
    if not (callable(value) and callable(slope)):
        raise TypeError(f"Expected value and slope of the {name} loss to be functions of (prediction, target).")
    if not callable(lipschitz):
        check_positive("lipschitz", lipschitz, "pass the largest |slope|, or a function where it grows")
    if not smoothness > 0:
        raise ValueError(f"Expected smoothness={smoothness} > 0: pass math.inf for a loss with kinks.")
    kernels = _compile(value), _compile(slope)
    return Loss(name, *kernels, slope_bound=lipschitz, curvature=float(smoothness))


def _compile(function: Any) -> Any:
    """The function as a numba kernel that returns a real number, or unchanged when numba cannot compile it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Indices are checked: a target may be anything, and reading beyond an array would read other memory.
            plain = function.py_func if is_jitted(function) else function
            kernel = numba.njit(plain, nogil=True, error_model="numpy", boundscheck=True)
            kernel.compile((numba.float64, numba.float64))
            returned = kernel.nopython_signatures[-1].return_type
        except Exception:  # numba reports what it cannot compile by many exception types, some internal
            return function
    return kernel if isinstance(returned, (numba.types.Float, numba.types.Integer)) else function


@functools.lru_cache(maxsize=256)
def smoothed(loss: Loss, width: float) -> Loss:
    """The loss averaged over predictions within `width`, in closed form: its kinks rounded, at the cost of two values.

    slope (value(p + width) - value(p - width)) / (2 width), the mean of the slope over [p - width, p + width];
    value (value(p - width) + value(p) + value(p + width)) / 3, which is between the averaged loss and the loss.
    Constants: |slope| as before, where it does not grow; slope' <= (largest |slope|) / width. The averaged loss is
    above the loss by at most (largest |slope|) * width / 2. For losses of one output with a bounded slope.
    """
    check_positive("width", width, "it is the length over which kinks are rounded")
    if callable(loss.slope_bound) or loss.n_outputs > 1:
        raise ValueError(f"Expected a loss of one output and bounded slope, got {loss.name}: it needs no smoothing.")
    value, width = _compile(loss.value) if loss.may_raise else loss.value, float(width)

    def smooth_value(prediction: float, target: float) -> float:
        return (value(prediction - width, target) + value(prediction, target) + value(prediction + width, target)) / 3

    def smooth_slope(prediction: float, target: float) -> float:
        return (value(prediction + width, target) - value(prediction - width, target)) / (2 * width)

    kernels = _compile(smooth_value), _compile(smooth_slope)
    curvature = min(loss.curvature, loss.slope_bound / width)
    return replace(
        loss,
        name=f"{loss.name}, smoothed({width:g})",
        value=kernels[0],
        slope=kernels[1],
        curvature=curvature,
    )
