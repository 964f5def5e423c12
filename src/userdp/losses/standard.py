"""The usual losses, in kernels over which loops vectorise, each with its constants and why they hold."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from userdp.losses.base import Loss, SlopeBound, check_positive, compiled, register

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


def _loss(name: str, value: Any, slope: Any, slope_bound: SlopeBound, curvature: float, **more: Any) -> Loss:
    """A loss without parameters, registered; its constants are proven beside it."""
    return register(Loss(name, value, slope, slope_bound, curvature, may_raise=False, **more), _named, name)


_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(13, -1, -1))


@compiled
def _exp_of_negative(x: float) -> float:
    """Exponential of x <= 0 within 2 units in the last place, without branches so that loops over it vectorise.

    x = k ln 2 + r with |r| <= ln 2 / 2; exp(r) by its Taylor polynomial of degree 13; 2^k by writing k into the
    exponent bits. Below -708 it stays at exp(-708) > 0, which no sum with 1 can notice.
    """
    x = -708.0 if x < -708.0 else x
    k = np.floor(x * 1.4426950408889634 + 0.5)
    r = x - k * 6.93145751953125e-1 - k * 1.42860682030941723212e-6
    p = 0.0
    for coefficient in _TAYLOR:
        p = p * r + coefficient
    shifted = np.float64(k + (1023.0 + 4503599627370496.0)).view(np.int64) << 52
    return p * np.int64(shifted).view(np.float64)


@compiled
def _sign(target: float) -> float:
    """Class of a target: +1 for 1, -1 for 0 and for -1, so that {-1, +1} and {0, 1} mean the same; else NaN."""
    return 1.0 if target == 1.0 else (-1.0 if target == 0.0 or target == -1.0 else math.nan)


@compiled
def _logistic_value(prediction: float, target: float) -> float:
    z = _sign(target) * prediction
    return math.log1p(math.exp(-abs(z))) - min(z, 0.0)


@compiled
def _logistic_slope(prediction: float, target: float) -> float:
    sign = _sign(target)
    z = sign * prediction
    e = _exp_of_negative(-abs(z))
    return -sign * ((e if z >= 0.0 else 1.0) / (1.0 + e))


def _logistic_mean(predictions: np.ndarray) -> np.ndarray:
    """The chance of class 1."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -predictions)))


logistic = _loss("logistic", _logistic_value, _logistic_slope, slope_bound=1.0, curvature=0.25, mean=_logistic_mean)
"""Logistic loss for two classes, target in {-1, +1} or {0, 1}.

Target 1 is the positive class, 0 and -1 the negative one. Any other target gives NaN, so that its user counts as an
outlier: recode labels such as {1, 2} first.

value log(1 + exp(-z)), z = sign * prediction; slope -sign s(-z), s the sigmoid.
Constants: 0 < s < 1, so |slope| <= 1; s' = s (1 - s) <= 1/4, reached at 0.
"""


@compiled
def _squared_value(prediction: float, target: float) -> float:
    return 0.5 * (prediction - target) * (prediction - target)


@compiled
def _squared_slope(prediction: float, target: float) -> float:
    return prediction - target


def _squared_slope_bound(largest_prediction: float, largest_target: float) -> float:
    return largest_prediction + largest_target


squared = _loss("squared", _squared_value, _squared_slope, _squared_slope_bound, curvature=1.0)
"""Squared loss, half of the squared error, for least squares.

value (prediction - target)^2 / 2; slope prediction - target.
Constants: |slope| <= |prediction| + |target| <= row_norm * weight_norm + target_bound; slope' = 1.
"""


@compiled
def _hinge_value(prediction: float, target: float) -> float:
    gap = 1.0 - _sign(target) * prediction
    return 0.0 if gap <= 0.0 else gap


@compiled
def _hinge_slope(prediction: float, target: float) -> float:
    sign = _sign(target)
    gap = 1.0 - sign * prediction
    return -sign if gap > 0.0 else (0.0 if gap <= 0.0 else math.nan)


hinge = _loss("hinge", _hinge_value, _hinge_slope, slope_bound=1.0, curvature=math.inf, typical_prediction=1.0)
"""Hinge loss of support vector machines, targets as for logistic. Non-smooth.

value max(0, 1 - z), z = sign * prediction; slope -sign where z < 1, else 0.
Constants: |slope| is 0 or 1; the slope jumps at z = 1, so no smoothness.
"""


def _pinball(name: str, above: float, below: float) -> Loss:
    """Loss with slope `above` when the prediction exceeds the target, -`below` when it falls short, 0 between."""

    @compiled
    def value(prediction: float, target: float) -> float:
        error = prediction - target
        return above * error if error >= 0.0 else -below * error

    @compiled
    def slope(prediction: float, target: float) -> float:
        error = prediction - target
        return above if error > 0.0 else (-below if error < 0.0 else 0.0 * error)

    level = below / (above + below)
    bound = max(above, below)
    return Loss(name, value, slope, slope_bound=bound, curvature=math.inf, may_raise=False, level=level)


absolute = register(_pinball("absolute", above=1.0, below=1.0), _named, "absolute")
"""Absolute error, for median regression. Non-smooth.

value |prediction - target|; slope its sign, 0 at 0.
Constants: |slope| <= 1; the slope jumps at 0, so no smoothness.
"""


@functools.cache
def huber(threshold: float = 1.0) -> Loss:
    """Huber loss: squared near zero, absolute beyond the threshold.

    With e = prediction - target: value e^2/2 where |e| <= threshold, else threshold (|e| - threshold/2);
    slope e clipped to [-threshold, threshold].
    Constants: |slope| <= threshold by the clip; slope' is 0 or 1.
    """
    check_positive("threshold", threshold, "it is the error at which the loss turns linear")
    threshold = float(threshold)

    @compiled
    def value(prediction: float, target: float) -> float:
        error = abs(prediction - target)
        return threshold * (error - 0.5 * threshold) if error > threshold else 0.5 * error * error

    @compiled
    def slope(prediction: float, target: float) -> float:
        error = prediction - target
        return threshold if error > threshold else (-threshold if error < -threshold else error)

    made = Loss(f"huber({threshold:g})", value, slope, slope_bound=threshold, curvature=1.0, may_raise=False)
    return register(made, huber, threshold)


@functools.cache
def smoothed_hinge(width: float = 1.0) -> Loss:
    """Hinge loss, smoothed over a width, targets as for logistic.

    With u = 1 - sign * prediction: value 0 for u <= 0, u^2/(2 width) up to u = width, then u - width/2;
    slope -sign * clip(u/width, 0, 1). It is within width/2 of the hinge.
    Constants: |slope| <= 1 by the clip; slope' is 0 or 1/width.
    """
    check_positive("width", width, "it is the length over which the slope changes")
    width = float(width)

    @compiled
    def value(prediction: float, target: float) -> float:
        gap = 1.0 - _sign(target) * prediction
        if gap > width:
            return gap - 0.5 * width
        return 0.0 if gap <= 0.0 else gap * (gap / (2.0 * width))

    @compiled
    def slope(prediction: float, target: float) -> float:
        sign = _sign(target)
        ratio = (1.0 - sign * prediction) / width
        return -sign * (1.0 if ratio > 1.0 else (0.0 if ratio < 0.0 else ratio))

    made = Loss(f"smoothed_hinge({width:g})", value, slope, 1.0, 1.0 / width, may_raise=False, typical_prediction=1.0)
    return register(made, smoothed_hinge, width)


@compiled
def _squared_hinge_value(prediction: float, target: float) -> float:
    gap = 1.0 - _sign(target) * prediction
    return 0.0 if gap <= 0.0 else 0.5 * gap * gap


@compiled
def _squared_hinge_slope(prediction: float, target: float) -> float:
    sign = _sign(target)
    gap = 1.0 - sign * prediction
    return -sign * gap if gap > 0.0 else (0.0 if gap <= 0.0 else math.nan)


def _squared_hinge_bound(largest_prediction: float, largest_target: float) -> float:
    return 1.0 + largest_prediction


squared_hinge = _loss(
    "squared_hinge", _squared_hinge_value, _squared_hinge_slope, _squared_hinge_bound, 1.0, typical_prediction=1.0
)
"""Squared hinge loss, half of the square, targets as for logistic: what scikit-learn's LinearSVC minimises.

value max(0, 1 - z)^2 / 2, z = sign * prediction; slope -sign max(0, 1 - z).
Constants: |slope| <= 1 + |prediction|; slope' is 0 or 1.
"""


@functools.cache
def quantile(level: float = 0.5) -> Loss:
    """Pinball loss, whose best prediction is the given quantile of the target. Non-smooth.

    With e = prediction - target: value (1 - level) e for e >= 0, else -level e;
    slope 1 - level above the target, -level below, 0 at it.
    Constants: |slope| <= max(level, 1 - level); the slope jumps at 0, so no smoothness.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"Expected 0 < level={level} < 1: pass a quantile such as 0.5 for the median.")
    level = float(level)
    return register(_pinball(f"quantile({level:g})", above=1.0 - level, below=level), quantile, level)


@compiled
def _multinomial_slope(predictions: np.ndarray, target: float) -> np.ndarray:
    """Softmax minus the target's unit vector; NaN when the target is not a class."""
    n_classes = predictions.shape[0]
    slopes = np.empty(n_classes)
    if not (target >= 0.0 and target < n_classes and target == math.floor(target)):
        slopes[:] = math.nan
        return slopes
    largest = predictions.max()
    total = 0.0
    for c in range(n_classes):
        slopes[c] = math.exp(predictions[c] - largest)
        total += slopes[c]
    for c in range(n_classes):
        slopes[c] /= total
    slopes[int(target)] -= 1.0
    return slopes


@compiled
def _multinomial_value(predictions: np.ndarray, target: float) -> float:
    if not (target >= 0.0 and target < predictions.shape[0] and target == math.floor(target)):
        return math.nan
    largest = predictions.max()
    total = 0.0
    for c in range(predictions.shape[0]):
        total += math.exp(predictions[c] - largest)
    return math.log(total) + float(largest - predictions[int(target)])


def _check_classes(n_classes: int) -> None:
    if not (isinstance(n_classes, int) and n_classes >= 2):
        raise ValueError(f"Expected n_classes={n_classes} to be an integer >= 2: declare how many classes there are.")


@functools.cache
def multinomial(n_classes: int) -> Loss:
    """Softmax cross-entropy for several classes, target one of 0 .. n_classes - 1.

    Weights are a flattened (n_classes, d) matrix, the prediction p has one entry per class: value
    log sum exp(p) - p[target], slope softmax(p) - unit vector of target, both shifted by max p so nothing overflows.
    Constants: |slope|^2 = sum of s_c^2 over the others + (1 - s_target)^2 <= 2, approached when a wrong class has
    all the mass, so sqrt(2); diag(s) - s s^T has row sums of absolute values 2 s_c (1 - s_c) <= 1/2, so by
    Gershgorin its eigenvalues are <= 1/2, reached with two classes at one half.
    """
    _check_classes(n_classes)
    name, constants = f"multinomial({n_classes})", (math.sqrt(2.0), 0.5)
    more: dict[str, Any] = {"n_outputs": n_classes, "may_raise": False, "differences": True}
    made = Loss(name, _multinomial_value, _multinomial_slope, *constants, **more)
    return register(made, multinomial, n_classes)


@functools.cache
def one_vs_rest(n_classes: int) -> Loss:
    """Squared hinge losses of several classes, each against the rest, together; target one of 0 .. n_classes - 1.

    Weights are a flattened (n_classes, d) matrix, the prediction p has one entry per class: value
    sum over c of max(0, 1 - s_c p_c)^2 / 2, s_c = 1 for the target's class and -1 for the others; slope
    -s_c max(0, 1 - s_c p_c). As scikit-learn's LinearSVC, in one problem.
    Constants: |slope| <= sqrt(n_classes) + |p| by the triangle inequality; its Jacobian is diagonal, of zeros and ones.
    """
    _check_classes(n_classes)

    def bound(largest_prediction: float, largest_target: float) -> float:
        return math.sqrt(n_classes) + largest_prediction

    name = f"one_vs_rest({n_classes})"
    more: dict[str, Any] = {"n_outputs": n_classes, "may_raise": False, "typical_prediction": 1.0}
    return register(Loss(name, _one_vs_rest_value, _one_vs_rest_slope, bound, 1.0, **more), one_vs_rest, n_classes)


@compiled
def _one_vs_rest_slope(predictions: np.ndarray, target: float) -> np.ndarray:
    """NaN when the target is not a class."""
    n_classes = predictions.shape[0]
    slopes = np.empty(n_classes)
    known = target >= 0.0 and target < n_classes and target == math.floor(target)
    for c in range(n_classes):
        sign = (1.0 if target == c else -1.0) if known else math.nan
        gap = 1.0 - sign * predictions[c]
        slopes[c] = 0.0 if gap <= 0.0 else -sign * gap
    return slopes


@compiled
def _one_vs_rest_value(predictions: np.ndarray, target: float) -> float:
    n_classes = predictions.shape[0]
    known = target >= 0.0 and target < n_classes and target == math.floor(target)
    total = 0.0
    for c in range(n_classes):
        sign = (1.0 if target == c else -1.0) if known else math.nan
        gap = 1.0 - sign * predictions[c]
        total += 0.0 if gap <= 0.0 else 0.5 * gap * gap
    return total


@functools.cache
def poisson(largest: float = 1.0) -> Loss:
    """Poisson deviance of counts divided by the largest one, a target in [0, 1]; the prediction is a log of counts.

    With z = prediction - log(largest) and y the target, cut off at 0 and 1: value e(z) - y z + y log y - y, half of the
    deviance over `largest`; slope e'(z) - y. Here e(z) = exp(z) up to 0 and goes on as 1 + z: no count is larger.
    Constants: 0 <= e' <= 1 and 0 <= y <= 1, so |slope| <= 1; slope' = exp(z) <= 1, or 0 beyond.
    """
    check_positive("largest", largest, "it is the largest count that there can be")
    shift = math.log(largest)

    @compiled
    def value(prediction: float, target: float) -> float:
        z = prediction - shift
        y = 0.0 if target < 0.0 else (1.0 if target > 1.0 else target)
        start = 1.0 + z if z > 0.0 else math.exp(z)
        return start - y * z + (y * math.log(y) - y if y > 0.0 else y)

    @compiled
    def slope(prediction: float, target: float) -> float:
        z = prediction - shift
        return _exp_of_negative(0.0 if z > 0.0 else z) - (0.0 if target < 0.0 else (1.0 if target > 1.0 else target))

    def usual(mean: float, variance: float) -> float:
        """The mean of exp(z), at most 1, for normal predictions; far off ones are no more likely than usual."""
        return math.exp(min(mean - shift + min(variance, 2.0) / 2, 0.0))

    def mean(predictions: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(np.minimum(predictions - shift, 0.0)))

    more: dict[str, Any] = {"typical_prediction": 2.0, "usual_curvature": usual, "event": min(1.0, 2 / largest)}
    more["mean"] = mean
    return register(Loss(f"poisson({largest:g})", value, slope, 1.0, 1.0, may_raise=False, **more), poisson, largest)
