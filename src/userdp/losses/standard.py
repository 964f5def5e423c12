"""The usual losses, in numpy, each with its constants and why they hold.

Every function is made of numpy's elementwise operations on contiguous arrays, so that what it returns of a row is made
of this row alone, in the same way wherever the row stands. Sums over the classes of a row are added up class by class.
Targets are compared in double precision, all else is computed in the precision of the predictions.
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

from userdp._validate import check_counts, check_positive
from userdp.losses.base import Function, Loss, SlopeBound, floats, register

# The names under which `losses.loss` finds them, too.
__all__ = [
    "absolute",
    "hinge",
    "huber",
    "logistic",
    "multinomial",
    "one_vs_rest",
    "poisson",
    "quantile",
    "smoothed_hinge",
    "squared",
    "squared_hinge",
]


def _named(name: str) -> Loss:
    """A loss without parameters, by its name."""
    found: Loss = globals()[name]
    return found


def _loss(
    name: str,
    value: Function,
    slope: Function,
    slope_bound: SlopeBound,
    curvature: float,
    made_by: tuple[Any, ...] | None = None,
    **more: Any,
) -> Loss:
    """A loss of this package, registered with what makes it again; its constants are proven where it is made."""
    loss = Loss(name, value, slope, slope_bound, curvature, may_raise=False, **more)
    return register(loss, *(made_by or (_named, name)))


def _error(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
    """How far predictions are above their targets."""
    p = floats(predictions)
    return p - np.asarray(targets).astype(p.dtype, copy=False)


def _signs(targets: npt.ArrayLike, dtype: np.dtype) -> Any:
    """Classes of targets: +1 for 1, -1 for 0 and for -1, so that {-1, +1} and {0, 1} mean the same; else NaN."""
    positive, negative = np.equal(targets, 1.0), np.equal(targets, 0.0) | np.equal(targets, -1.0)
    signs = (positive.view(np.int8) - negative.view(np.int8)).astype(dtype)
    return signs / np.abs(signs)


def _gaps(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Signs, and how far predictions are short of the margin, at least 0."""
    p = floats(predictions)
    signs = _signs(targets, p.dtype)
    return signs, np.maximum(1.0 - signs * p, 0.0)


def _hinge(
    name: str,
    value_of_gaps: Callable[[np.ndarray], np.ndarray],
    slope_of_gaps: Callable[[np.ndarray], np.ndarray],
    slope_bound: SlopeBound,
    curvature: float,
    made_by: tuple[Any, ...] | None = None,
) -> Loss:
    """A loss of how far the prediction is short of the margin; the slope is -sign times that of the gap."""

    def slope(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        signs, gaps = _gaps(predictions, targets)
        return -signs * slope_of_gaps(gaps)

    value = lambda p, y: value_of_gaps(_gaps(p, y)[1])  # noqa: E731
    return _loss(name, value, slope, slope_bound, curvature, made_by, typical_prediction=1.0)


def _logistic_value(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
    p = floats(predictions)
    z = _signs(targets, p.dtype) * p
    return np.log1p(np.exp(-np.abs(z))) - np.minimum(z, 0.0)


def _logistic_slope(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
    """Exact to the last digits in both tails: nothing is subtracted. Where exp(z) is infinite it is 0."""
    p = floats(predictions)
    signs = _signs(targets, p.dtype)
    return -signs / (1.0 + np.exp(signs * p))


logistic = _loss(
    "logistic",
    _logistic_value,
    _logistic_slope,
    slope_bound=1.0,
    curvature=0.25,
    mean=lambda p: np.asarray(np.exp(-np.logaddexp(0.0, -p))),
)
"""Logistic loss for two classes, target in {-1, +1} or {0, 1}.

Target 1 is the positive class, 0 and -1 the negative one. Any other target gives NaN, so that its user counts as an
outlier: recode labels such as {1, 2} first.

value log(1 + exp(-z)), z = sign * prediction; slope -sign s(-z), s the sigmoid.
Constants: 0 < s < 1, so |slope| <= 1; s' = s (1 - s) <= 1/4, reached at 0.
"""


squared = _loss("squared", lambda p, y: 0.5 * np.square(_error(p, y)), _error, lambda p, y: p + y, curvature=1.0)
"""Squared loss, half of the squared error, for least squares.

value (prediction - target)^2 / 2; slope prediction - target.
Constants: |slope| <= |prediction| + |target| <= row_norm * weight_norm + target_bound; slope' = 1.
"""


hinge = _hinge("hinge", lambda gaps: gaps, np.sign, slope_bound=1.0, curvature=math.inf)
"""Hinge loss of support vector machines, targets as for logistic. Non-smooth.

value max(0, 1 - z), z = sign * prediction; slope -sign where z < 1, else 0.
Constants: |slope| is 0 or 1; the slope jumps at z = 1, so no smoothness.
"""


squared_hinge = _hinge(
    "squared_hinge", lambda gaps: 0.5 * gaps * gaps, lambda gaps: gaps, lambda p, y: 1.0 + p, curvature=1.0
)
"""Squared hinge loss, half of the square, targets as for logistic: what scikit-learn's LinearSVC minimises.

value max(0, 1 - z)^2 / 2, z = sign * prediction; slope -sign max(0, 1 - z).
Constants: |slope| <= 1 + |prediction|; slope' is 0 or 1.
"""


@functools.cache
def smoothed_hinge(width: float = 1.0) -> Loss:
    """Hinge loss, smoothed over a width, targets as for logistic.

    With u = 1 - sign * prediction: value 0 for u <= 0, u^2/(2 width) up to u = width, then u - width/2;
    slope -sign * clip(u/width, 0, 1). It is within width/2 of the hinge.
    Constants: |slope| <= 1 by the clip; slope' is 0 or 1/width.
    """
    check_positive(width=width)
    width = float(width)

    def value(gaps: np.ndarray) -> np.ndarray:
        near = np.minimum(gaps, width)
        return np.asarray(near / width * (gaps - 0.5 * near))

    def slope(gaps: np.ndarray) -> np.ndarray:
        return np.minimum(gaps / width, 1.0)

    return _hinge(f"smoothed_hinge({width:g})", value, slope, 1.0, 1.0 / width, (smoothed_hinge, width))


def _pinball(name: str, above: float, below: float, made_by: tuple[Any, ...] | None = None) -> Loss:
    """Loss with slope `above` when the prediction exceeds the target, -`below` when it falls short, 0 between."""

    def value(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        error = _error(predictions, targets)
        return np.maximum(above * error, -below * error)

    def slope(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        side = np.sign(_error(predictions, targets))
        return above * np.maximum(side, 0.0) + below * np.minimum(side, 0.0)

    return _loss(name, value, slope, max(above, below), math.inf, made_by, level=below / (above + below))


absolute = _pinball("absolute", above=1.0, below=1.0)
"""Absolute error, for median regression. Non-smooth.

value |prediction - target|; slope its sign, 0 at 0.
Constants: |slope| <= 1; the slope jumps at 0, so no smoothness.
"""


@functools.cache
def quantile(level: float = 0.5) -> Loss:
    """Pinball loss, whose best prediction is the given quantile of the target. Non-smooth.

    With e = prediction - target: value (1 - level) e for e >= 0, else -level e;
    slope 1 - level above the target, -level below, 0 at it.
    Constants: |slope| <= max(level, 1 - level); the slope jumps at 0, so no smoothness.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be above 0 and below 1, got {level}: pass 0.5 for the median.")
    level = float(level)
    return _pinball(f"quantile({level:g})", 1.0 - level, level, (quantile, level))


@functools.cache
def huber(threshold: float = 1.0) -> Loss:
    """Huber loss: squared near zero, absolute beyond the threshold.

    With e = prediction - target: value e^2/2 where |e| <= threshold, else threshold (|e| - threshold/2);
    slope e clipped to [-threshold, threshold].
    Constants: |slope| <= threshold by the clip; slope' is 0 or 1.
    """
    check_positive(threshold=threshold)
    threshold = float(threshold)

    def value(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        size = np.abs(_error(predictions, targets))
        near = np.minimum(size, threshold)
        return near * (size - 0.5 * near)

    def slope(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        return np.maximum(np.minimum(_error(predictions, targets), threshold), -threshold)

    return _loss(f"huber({threshold:g})", value, slope, threshold, 1.0, (huber, threshold))


def _by_class(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A copy of predictions with a line for each class, which rows are of it (1 or 0), and 1 for any class or NaN."""
    lines = np.moveaxis(floats(predictions), -1, 0).copy()
    classes = np.arange(float(len(lines))).reshape(-1, *[1] * (lines.ndim - 1))
    members = np.equal(targets, classes).astype(lines.dtype)
    any_class = _sum(members)
    return lines, members, np.asarray(any_class / any_class)


def _sum(lines: np.ndarray) -> Any:
    """Line after line: numpy would add those of a single row in another order than those of many."""
    return functools.reduce(np.add, lines)


def _by_row(lines: np.ndarray) -> Any:
    return np.ascontiguousarray(np.moveaxis(lines, 0, -1))


def _multinomial_slope(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
    """Softmax minus the target's unit vector; NaN when the target is not a class."""
    lines, members, usable = _by_class(predictions, targets)
    lines -= functools.reduce(np.maximum, lines)
    slopes = np.exp(lines)
    slopes /= _sum(slopes)
    slopes -= members
    slopes *= usable
    return _by_row(slopes)


def _multinomial_value(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
    lines, members, usable = _by_class(predictions, targets)
    lines -= functools.reduce(np.maximum, lines)
    return (np.log(_sum(np.exp(lines))) - _sum(np.where(members > 0.0, lines, 0.0 * members))) * usable


@functools.cache
def multinomial(n_classes: int) -> Loss:
    """Softmax cross-entropy for several classes, target one of 0 .. n_classes - 1.

    Weights are a flattened (n_classes, d) matrix, the prediction p has one entry per class: value
    log sum exp(p) - p[target], slope softmax(p) - unit vector of target, both shifted by max p so nothing overflows.
    Constants: |slope|^2 = sum of s_c^2 over the others + (1 - s_target)^2 <= 2, approached when a wrong class has
    all the mass, so sqrt(2); diag(s) - s s^T has row sums of absolute values 2 s_c (1 - s_c) <= 1/2, so by
    Gershgorin its eigenvalues are <= 1/2, reached with two classes at one half.
    """
    check_counts(at_least=2, n_classes=n_classes)
    more: dict[str, Any] = {"made_by": (multinomial, n_classes), "n_outputs": n_classes, "differences": True}
    return _loss(f"multinomial({n_classes})", _multinomial_value, _multinomial_slope, math.sqrt(2.0), 0.5, **more)


@functools.cache
def one_vs_rest(n_classes: int) -> Loss:
    """Squared hinge losses of several classes, each against the rest, together; target one of 0 .. n_classes - 1.

    Weights are a flattened (n_classes, d) matrix, the prediction p has one entry per class: value
    sum over c of max(0, 1 - s_c p_c)^2 / 2, s_c = 1 for the target's class and -1 for the others; slope
    -s_c max(0, 1 - s_c p_c). As scikit-learn's LinearSVC, in one problem.
    Constants: |slope| <= sqrt(n_classes) + |p| by the triangle inequality; its Jacobian is diagonal, of zeros and ones.
    """
    check_counts(at_least=2, n_classes=n_classes)

    def value(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        return 0.5 * _sum(np.square(_one_vs_rest_gaps(predictions, targets)[1]))

    def slope(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        """NaN when the target is not a class."""
        signs, gaps = _one_vs_rest_gaps(predictions, targets)
        return _by_row(-signs * gaps)

    more: dict[str, Any] = {"n_outputs": n_classes, "typical_prediction": 1.0}
    bound, made_by = (lambda p, y: math.sqrt(n_classes) + p), (one_vs_rest, n_classes)
    return _loss(f"one_vs_rest({n_classes})", value, slope, bound, 1.0, made_by, **more)


def _one_vs_rest_gaps(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """As `_gaps`, with a line for each class."""
    gaps, signs, usable = _by_class(predictions, targets)
    signs *= 2.0
    signs -= 1.0
    signs *= usable
    gaps *= -signs
    gaps += 1.0
    return signs, np.maximum(gaps, 0.0, out=gaps)


def _poisson_value(shift: float, largest: float, predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
    z = floats(predictions) - shift
    y = np.clip(targets, 0.0, largest).astype(z.dtype)
    started = np.exp(np.minimum(z, 0.0)) + np.maximum(z, 0.0)  # exp(z) up to 0, which goes on as 1 + z
    return started - y * z + (y * np.log(np.where(y > 0.0, y, np.ones_like(y))) - y)


def _poisson_slope(shift: float, largest: float, predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
    z = floats(predictions) - shift
    return np.exp(np.minimum(z, 0.0)) - np.clip(targets, 0.0, largest).astype(z.dtype)


@functools.cache
def poisson(largest: float = 1.0) -> Loss:
    """Poisson deviance of counts divided by the largest one, a target in [0, 1]; the prediction is a log of counts.

    With z = prediction - log(largest) and y the target, cut off at 0 and 1: value e(z) - y z + y log y - y, half of the
    deviance over `largest`; slope e'(z) - y. Here e(z) = exp(z) up to 0 and goes on as 1 + z: no count is larger.
    Constants: 0 <= e' <= 1 and 0 <= y <= 1, so |slope| <= 1; slope' = exp(z) <= 1, or 0 beyond.
    """
    check_positive(largest=largest)
    shift = math.log(largest)

    def usual(mean: float, variance: float) -> float:
        """The mean of exp(z), at most 1, for normal predictions; far off ones are no more likely than usual."""
        return math.exp(min(mean - shift + min(variance, 2.0) / 2, 0.0))

    return _loss(
        f"poisson({largest:g})",
        partial(_poisson_value, shift, 1.0),
        partial(_poisson_slope, shift, 1.0),
        slope_bound=1.0,
        curvature=1.0,
        made_by=(poisson, largest),
        typical_prediction=2.0,
        usual_curvature=usual,
        event=min(1.0, 2 / largest),
        mean=lambda p: np.asarray(np.exp(np.minimum(p - shift, 0.0))),
    )


@functools.cache
def poisson_of_exposure(largest: float, largest_count: float) -> Loss:
    """Poisson deviance of counts in a row's exposure, for rows whose weight is u = exposure / largest exposure.

    `largest` is the largest count over the largest exposure; the target is y/u with y = count / largest count, and 0
    where u is 0. Targets are not cut off at 1 as those of `poisson` are: a short exposure may have any rate. The
    weighted slope u (e'(z) - y/u) = u e'(z) - y is in [-1, 1] since e', u and y are in [0, 1].
    """
    plain = replace(poisson(largest), event=min(1.0, 2 / largest_count))
    shift, most = math.log(largest), math.inf
    value, slope = partial(_poisson_value, shift, most), partial(_poisson_slope, shift, most)
    made = replace(plain, name=f"{plain.name} of exposure", value=value, slope=slope, unweighted=plain)
    return register(made, poisson_of_exposure, largest, largest_count)
