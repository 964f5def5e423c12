"""Convex losses of linear models: how bad a prediction is, and the constants that theory asks for.

A loss is a pair of scalar kernels of (prediction, target), where prediction = <w, x>:

    value(prediction, target)   the loss
    slope(prediction, target)   its derivative (or a subgradient) in the prediction

The gradient in w is slope * x, so two numbers say all: with |slope| <= B and slope' <= H, and rows |x| <= r,
the loss is (B r)-Lipschitz and (H r^2)-smooth in w. An intercept is one more feature that is always 1; count it in r.

The constants decide accuracy only: privacy never rests on them. A target that is NaN or not a class gives NaN,
which the filtered mean treats as "far from everyone".

>>> loss("huber", threshold=0.5).lipschitz(row_norm=2.0)
1.0
>>> round(logistic.value(0.0, 1.0), 6), logistic.smoothness(row_norm=2.0)
(0.693147, 1.0)
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numba
import numpy as np
from numba.extending import is_jitted

# The numpy error model divides by zero without raising: no exception, and loops over a kernel can be vectorised.
_F = TypeVar("_F", bound=Callable[..., Any])
_compiled: Callable[[_F], _F] = numba.njit(cache=True, nogil=True, error_model="numpy")

SlopeBound = float | Callable[[float, float], float]


@dataclass(frozen=True)
class Loss:
    """A convex loss of a linear model's prediction.

    `slope_bound` is the largest |slope|: a number, or a function of (largest |prediction|, largest |target|) where
    the slope grows with them. `curvature` is the largest derivative of the slope, infinite at a kink. With
    `n_outputs` = k > 1 the weights are a flattened (k, d) matrix, `prediction` is a vector of length k and `slope`
    returns one; the bounds are then on the slope's norm and on the largest eigenvalue of its Jacobian.
    `may_raise` says that the kernels come from outside and may raise, which then is caught row by row.
    `typical_prediction` is how large predictions of a good model are (root mean square), if the loss says so itself: 1
    for hinge losses, whose predictions gather at the margins -1 and 1.
    """

    name: str
    value: Callable[[Any, float], float]
    slope: Callable[[Any, float], Any]
    slope_bound: SlopeBound
    curvature: float
    n_outputs: int = 1
    may_raise: bool = True
    typical_prediction: float | None = None

    def __post_init__(self) -> None:
        if self.may_raise:
            for kernel in (self.value, self.slope):
                _check_helpers(kernel, self.name)

    @property
    def smooth(self) -> bool:
        """Whether the gradient is Lipschitz."""
        return math.isfinite(self.curvature)

    @property
    def classifies(self) -> bool:
        """Whether targets are classes: such a loss has no value between two of them."""
        return math.isnan(self.value(0.0 if self.n_outputs == 1 else np.zeros(self.n_outputs), 0.5))

    @property
    def compiled(self) -> bool:
        """Whether the slope runs as machine code; a slope in plain Python works too, slowly."""
        return bool(is_jitted(self.slope))

    def lipschitz(self, row_norm: float, target_bound: float | None = None, weight_norm: float | None = None) -> float:
        """Largest gradient norm over rows with |x| <= row_norm: (largest |slope|) * row_norm.

        `target_bound` (largest |target|) and `weight_norm` (largest |w|, a domain's `largest_norm`) are needed only
        by losses whose slope grows with them, such as squared.
        """
        _positive("row_norm", row_norm, "declare a bound on the norm of a row")
        if not callable(self.slope_bound):
            return self.slope_bound * row_norm
        if weight_norm is not None and target_bound is None and self.classifies:
            target_bound = 1.0
        if target_bound is None or weight_norm is None:
            raise ValueError(
                f"Expected target_bound={target_bound} and weight_norm={weight_norm} to be numbers: the slope of the "
                f"{self.name} loss grows with both; pass the largest |target| and the domain's largest_norm."
            )
        return self.slope_bound(row_norm * weight_norm, target_bound) * row_norm

    def smoothness(self, row_norm: float) -> float:
        """Lipschitz constant of the gradient over rows with |x| <= row_norm: curvature * row_norm^2, or infinity."""
        _positive("row_norm", row_norm, "declare a bound on the norm of a row")
        return self.curvature * row_norm * row_norm


def _check_helpers(function: Any, name: str) -> None:
    """Refuse numba functions that do not check indices among those a custom loss calls: they could read any memory."""
    plain = getattr(function, "py_func", function)
    if not inspect.isfunction(plain):
        return
    found = inspect.getclosurevars(plain)
    named = {**found.globals, **found.nonlocals}
    for module in [value for value in named.values() if inspect.ismodule(value)]:
        named |= {key: getattr(module, key) for key in plain.__code__.co_names if hasattr(module, key)}
    for key, helper in named.items():
        if is_jitted(helper) and helper is not function:
            if not helper.targetoptions.get("boundscheck"):
                raise ValueError(
                    f"Expected {key}, which the {name} loss calls, to check its indices: compile it with "
                    "numba.njit(boundscheck=True), or leave it to userdp and do not compile it."
                )
            _check_helpers(helper, name)


def _positive(name: str, value: float, remedy: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"Expected {name}={value} > 0 and finite: {remedy}.")


_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(13, -1, -1))


@_compiled
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


@_compiled
def _sign(target: float) -> float:
    """Class of a target: +1 for 1, -1 for 0 and for -1, so that {-1, +1} and {0, 1} mean the same; else NaN."""
    return 1.0 if target == 1.0 else (-1.0 if target == 0.0 or target == -1.0 else math.nan)


@_compiled
def _logistic_value(prediction: float, target: float) -> float:
    z = _sign(target) * prediction
    return math.log1p(math.exp(-abs(z))) - min(z, 0.0)


@_compiled
def _logistic_slope(prediction: float, target: float) -> float:
    sign = _sign(target)
    z = sign * prediction
    e = _exp_of_negative(-abs(z))
    return -sign * ((e if z >= 0.0 else 1.0) / (1.0 + e))


logistic = Loss("logistic", _logistic_value, _logistic_slope, slope_bound=1.0, curvature=0.25, may_raise=False)
"""Logistic loss for two classes, target in {-1, +1} or {0, 1}.

Target 1 is the positive class, 0 and -1 the negative one. Any other target gives NaN, so that its user counts as an
outlier: recode labels such as {1, 2} first.

value log(1 + exp(-z)), z = sign * prediction; slope -sign s(-z), s the sigmoid.
Constants: 0 < s < 1, so |slope| <= 1; s' = s (1 - s) <= 1/4, reached at 0.
"""


@_compiled
def _squared_value(prediction: float, target: float) -> float:
    return 0.5 * (prediction - target) * (prediction - target)


@_compiled
def _squared_slope(prediction: float, target: float) -> float:
    return prediction - target


def _squared_slope_bound(largest_prediction: float, largest_target: float) -> float:
    return largest_prediction + largest_target


squared = Loss(
    "squared", _squared_value, _squared_slope, slope_bound=_squared_slope_bound, curvature=1.0, may_raise=False
)
"""Squared loss, half of the squared error, for least squares.

value (prediction - target)^2 / 2; slope prediction - target.
Constants: |slope| <= |prediction| + |target| <= row_norm * weight_norm + target_bound; slope' = 1.
"""


@_compiled
def _hinge_value(prediction: float, target: float) -> float:
    gap = 1.0 - _sign(target) * prediction
    return 0.0 if gap <= 0.0 else gap


@_compiled
def _hinge_slope(prediction: float, target: float) -> float:
    sign = _sign(target)
    gap = 1.0 - sign * prediction
    return -sign if gap > 0.0 else (0.0 if gap <= 0.0 else math.nan)


_MARGIN: dict[str, Any] = {"may_raise": False, "typical_prediction": 1.0}
hinge = Loss("hinge", _hinge_value, _hinge_slope, slope_bound=1.0, curvature=math.inf, **_MARGIN)
"""Hinge loss of support vector machines, targets as for logistic. Not smooth.

value max(0, 1 - z), z = sign * prediction; slope -sign where z < 1, else 0.
Constants: |slope| is 0 or 1; the slope jumps at z = 1, so no smoothness.
"""


def _pinball(name: str, above: float, below: float) -> Loss:
    """Loss with slope `above` when the prediction exceeds the target, -`below` when it falls short, 0 between."""

    @_compiled
    def value(prediction: float, target: float) -> float:
        error = prediction - target
        return above * error if error >= 0.0 else -below * error

    @_compiled
    def slope(prediction: float, target: float) -> float:
        error = prediction - target
        return above if error > 0.0 else (-below if error < 0.0 else 0.0 * error)

    return Loss(name, value, slope, slope_bound=max(above, below), curvature=math.inf, may_raise=False)


absolute = _pinball("absolute", above=1.0, below=1.0)
"""Absolute error, for median regression. Not smooth.

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
    _positive("threshold", threshold, "it is the error at which the loss turns linear")
    threshold = float(threshold)

    @_compiled
    def value(prediction: float, target: float) -> float:
        error = abs(prediction - target)
        return threshold * (error - 0.5 * threshold) if error > threshold else 0.5 * error * error

    @_compiled
    def slope(prediction: float, target: float) -> float:
        error = prediction - target
        return threshold if error > threshold else (-threshold if error < -threshold else error)

    return Loss(f"huber({threshold:g})", value, slope, slope_bound=threshold, curvature=1.0, may_raise=False)


@functools.cache
def smoothed_hinge(width: float = 1.0) -> Loss:
    """Hinge loss with its kink rounded over a width, targets as for logistic.

    With u = 1 - sign * prediction: value 0 for u <= 0, u^2/(2 width) up to u = width, then u - width/2;
    slope -sign * clip(u/width, 0, 1). It is within width/2 of the hinge.
    Constants: |slope| <= 1 by the clip; slope' is 0 or 1/width.
    """
    _positive("width", width, "it is the length over which the kink is rounded")
    width = float(width)

    @_compiled
    def value(prediction: float, target: float) -> float:
        gap = 1.0 - _sign(target) * prediction
        if gap > width:
            return gap - 0.5 * width
        return 0.0 if gap <= 0.0 else gap * (gap / (2.0 * width))

    @_compiled
    def slope(prediction: float, target: float) -> float:
        sign = _sign(target)
        ratio = (1.0 - sign * prediction) / width
        return -sign * (1.0 if ratio > 1.0 else (0.0 if ratio < 0.0 else ratio))

    return Loss(f"smoothed_hinge({width:g})", value, slope, slope_bound=1.0, curvature=1.0 / width, **_MARGIN)


@_compiled
def _squared_hinge_value(prediction: float, target: float) -> float:
    gap = 1.0 - _sign(target) * prediction
    return 0.0 if gap <= 0.0 else 0.5 * gap * gap


@_compiled
def _squared_hinge_slope(prediction: float, target: float) -> float:
    sign = _sign(target)
    gap = 1.0 - sign * prediction
    return -sign * gap if gap > 0.0 else (0.0 if gap <= 0.0 else math.nan)


def _squared_hinge_slope_bound(largest_prediction: float, largest_target: float) -> float:
    return 1.0 + largest_prediction


squared_hinge = Loss(
    "squared_hinge",
    _squared_hinge_value,
    _squared_hinge_slope,
    slope_bound=_squared_hinge_slope_bound,
    curvature=1.0,
    **_MARGIN,
)
"""Squared hinge loss, half of the square, targets as for logistic: what scikit-learn's LinearSVC minimises.

value max(0, 1 - z)^2 / 2, z = sign * prediction; slope -sign max(0, 1 - z).
Constants: |slope| <= 1 + |prediction|; slope' is 0 or 1.
"""


@functools.cache
def quantile(level: float = 0.5) -> Loss:
    """Pinball loss, whose best prediction is the given quantile of the target. Not smooth.

    With e = prediction - target: value (1 - level) e for e >= 0, else -level e;
    slope 1 - level above the target, -level below, 0 at it.
    Constants: |slope| <= max(level, 1 - level); the slope jumps at 0, so no smoothness.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"Expected 0 < level={level} < 1: pass a quantile such as 0.5 for the median.")
    return _pinball(f"quantile({level:g})", above=1.0 - float(level), below=float(level))


@_compiled
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


@_compiled
def _multinomial_value(predictions: np.ndarray, target: float) -> float:
    if not (target >= 0.0 and target < predictions.shape[0] and target == math.floor(target)):
        return math.nan
    largest = predictions.max()
    total = 0.0
    for c in range(predictions.shape[0]):
        total += math.exp(predictions[c] - largest)
    return math.log(total) + float(largest - predictions[int(target)])


@functools.cache
def multinomial(n_classes: int) -> Loss:
    """Softmax cross-entropy for several classes, target one of 0 .. n_classes - 1.

    Weights are a flattened (n_classes, d) matrix, the prediction p has one entry a class: value
    log sum exp(p) - p[target], slope softmax(p) - unit vector of target, both shifted by max p so nothing overflows.
    Constants: |slope|^2 = sum of s_c^2 over the others + (1 - s_target)^2 <= 2, approached when a wrong class has
    all the mass, so sqrt(2); diag(s) - s s^T has row sums of absolute values 2 s_c (1 - s_c) <= 1/2, so by
    Gershgorin its eigenvalues are <= 1/2, reached with two classes at one half.
    """
    if not (isinstance(n_classes, int) and n_classes >= 2):
        raise ValueError(f"Expected n_classes={n_classes} to be an integer >= 2: declare how many classes there are.")
    name, bound = f"multinomial({n_classes})", math.sqrt(2.0)
    return Loss(
        name,
        _multinomial_value,
        _multinomial_slope,
        slope_bound=bound,
        curvature=0.5,
        n_outputs=n_classes,
        may_raise=False,
    )


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
        _positive("lipschitz", lipschitz, "pass the largest |slope|, or a function where it grows")
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
    _positive("width", width, "it is the length over which kinks are rounded")
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


LOSSES: Mapping[str, Loss | Callable[..., Loss]] = {
    "logistic": logistic,
    "squared": squared,
    "hinge": hinge,
    "absolute": absolute,
    "huber": huber,
    "smoothed_hinge": smoothed_hinge,
    "squared_hinge": squared_hinge,
    "quantile": quantile,
    "multinomial": multinomial,
}


def loss(name: str, **parameters: Any) -> Loss:
    """The loss of this name, e.g. loss("logistic"), loss("huber", threshold=0.5)."""
    if name not in LOSSES:
        raise ValueError(f"Expected loss={name!r} to be one of {', '.join(sorted(LOSSES))}: or make one with custom().")
    found = LOSSES[name]
    if name == "multinomial" and "n_classes" not in parameters:
        raise ValueError(
            "Expected the number of classes with the multinomial loss: pass losses.multinomial(3), say, or "
            'loss("multinomial", n_classes=3), in place of the name.'
        )
    if not isinstance(found, Loss):
        return found(**parameters)
    if parameters:
        raise TypeError(f"Expected no parameters for the {name} loss, got {', '.join(parameters)}: leave them out.")
    return found
