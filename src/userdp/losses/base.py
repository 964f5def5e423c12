"""What a loss is: two kernels of (prediction, target) and constants; losses of your own, and smoothed ones."""

from __future__ import annotations

import functools
import inspect
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from userdp.compiling import Kernel, PlainKernel, kernel

# The numpy error model divides by zero without raising: no exception, and loops over a kernel can be vectorised.
_F = TypeVar("_F", bound=Callable[..., Any])
compiled: Callable[[_F], _F] = kernel(PlainKernel, error_model="numpy")

SlopeBound = float | Callable[[float, float], float]


@dataclass(frozen=True)
class Loss:
    """A convex loss of a linear model's prediction.

    `slope_bound` is the largest |slope|: a number, or a function of (largest |prediction|, largest |target|) where
    the slope grows with them. `curvature` is the largest derivative of the slope, infinite for a non-smooth loss. With
    `n_outputs` = k > 1 the weights are a flattened (k, d) matrix, `prediction` is a vector of length k and `slope`
    returns one; the bounds are then on the slope's norm and on the largest eigenvalue of its Jacobian.
    `may_raise` says that the kernels come from outside and may raise, which then is caught row by row.
    `typical_prediction` is how large predictions of a good model are (root mean square), if the loss says so itself: 1
    for hinge losses, whose predictions gather at the margins -1 and 1.
    `usual_curvature` is, where that varies by powers of ten, about the mean derivative of the slope if predictions have
    this mean and variance. `event` is by how much of the largest slope the rarest thing that is worth learning moves
    the slope: a label, all of it; one of many counts, little.
    `level` is, of a loss whose best prediction is a quantile, which one. `mean` is, of one whose slope is a mean less
    the target, and not linear, that mean: of predictions, as an array.
    `differences`: whether only differences of outputs count, as softmax's: adding the same to all changes nothing.
    `unweighted` is, of a loss whose targets hold a weight too (`weighing`), the same for rows of weight 1.
    """

    name: str
    value: Callable[[Any, float], float]
    slope: Callable[[Any, float], Any]
    slope_bound: SlopeBound
    curvature: float
    n_outputs: int = 1
    may_raise: bool = True
    typical_prediction: float | None = None
    usual_curvature: Callable[[float, float], float] | None = None
    event: float = 1.0
    level: float | None = None
    mean: Callable[[np.ndarray], np.ndarray] | None = None
    differences: bool = False
    unweighted: Loss | None = None

    def __post_init__(self) -> None:
        # Plain numbers: what is computed from narrow floats would be narrow.
        object.__setattr__(self, "curvature", float(self.curvature))
        object.__setattr__(self, "n_outputs", int(self.n_outputs))
        if not callable(self.slope_bound):
            object.__setattr__(self, "slope_bound", float(self.slope_bound))
        if self.may_raise:
            for kernel in (self.value, self.slope):
                _check_helpers(kernel, self.name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Losses of this package are pickled by name: another process gets its own, and knows them again."""
        found = _find(self)
        return super().__reduce_ex__(protocol) if found is None else found[1:]

    @property
    def smooth(self) -> bool:
        """Whether the gradient is Lipschitz."""
        return math.isfinite(self.curvature)

    @property
    def classifies(self) -> bool:
        """Whether targets are classes: such a loss has no value between two of them."""
        value = self.value if self.unweighted is None else self.unweighted.value
        return math.isnan(value(0.0 if self.n_outputs == 1 else np.zeros(self.n_outputs), 0.5))

    @property
    def compiled(self) -> bool:
        """Whether the slope runs as machine code; a slope in plain Python works too, slowly."""
        return _is_compiled(self.slope)

    def lipschitz(self, row_norm: float, target_bound: float | None = None, weight_norm: float | None = None) -> float:
        """Largest gradient norm over rows with |x| <= row_norm: (largest |slope|) * row_norm.

        `target_bound` (largest |target|) and `weight_norm` (largest |w|, a domain's `largest_norm`) are needed only
        by losses whose slope grows with them, such as squared.
        """
        check_positive("row_norm", row_norm, "declare a bound on the norm of a row")
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
        check_positive("row_norm", row_norm, "declare a bound on the norm of a row")
        return self.curvature * row_norm * row_norm


# The losses of this package, each with how to make it again. Only `standard` adds to it.
_KNOWN: dict[Loss, tuple[Loss, Callable[..., Loss], tuple[Any, ...]]] = {}


def register(loss: Loss, maker: Callable[..., Loss], *parameters: Any) -> Loss:
    """Note down a loss of this package: its constants are proven where it is made."""
    _KNOWN.setdefault(loss, (loss, maker, parameters))
    return loss


def known(loss: Loss) -> Loss | None:
    """The loss of this package that is equal in everything, constants and kernels; None if there is none.

    None for losses of weighted rows, too: who rests on constants must know what targets are.
    """
    found = _find(loss)
    return None if found is None or loss.unweighted is not None else found[0]


def _find(loss: Loss) -> tuple[Loss, Callable[..., Loss], tuple[Any, ...]] | None:
    try:
        return _KNOWN.get(loss)
    except TypeError:  # a kernel without a hash
        return None


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
        if _is_compiled(helper) and helper is not function:
            if not helper.targetoptions.get("boundscheck"):
                raise ValueError(
                    f"Expected {key}, which the {name} loss calls, to check its indices: compile it with "
                    "numba.njit(boundscheck=True), or leave it to userdp and do not compile it."
                )
            _check_helpers(helper, name)


def _is_compiled(function: Any) -> bool:
    if isinstance(function, Kernel):
        return os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"  # numba's own switch; asking numba would load it
    from numba.extending import is_jitted

    return bool(is_jitted(function))


def check_positive(name: str, value: float, remedy: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"Expected {name}={value} > 0 and finite: {remedy}.")


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
        raise ValueError(f"Expected smoothness={smoothness} > 0: pass math.inf for a non-smooth loss.")
    return Loss(name, _compile(value), _compile(slope), slope_bound=lipschitz, curvature=smoothness)


def _compile(function: Any) -> Any:
    """The function as a numba kernel that returns a real number, or unchanged when numba cannot compile it."""
    import numba

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Indices are checked: a target may be anything, and reading beyond an array would read other memory.
            plain = function.py_func if _is_compiled(function) else function
            found = numba.njit(plain, nogil=True, error_model="numpy", boundscheck=True)
            found.compile((numba.float64, numba.float64))
            returned = found.nopython_signatures[-1].return_type
        except Exception:  # numba reports what it cannot compile by many exception types, some internal
            return function
    return found if isinstance(returned, (numba.types.Float, numba.types.Integer)) else function


@functools.lru_cache(maxsize=256)
def smoothed(loss: Loss, width: float) -> Loss:
    """The loss averaged over predictions within `width`, in closed form: smooth, at the cost of two values.

    slope (value(p + width) - value(p - width)) / (2 width), the mean of the slope over [p - width, p + width];
    value (value(p - width) + value(p) + value(p + width)) / 3, which is between the averaged loss and the loss.
    Constants: |slope| as before, where it does not grow; slope' <= (largest |slope|) / width. The averaged loss is
    above the loss by at most (largest |slope|) * width / 2. For losses of one output with a bounded slope.
    """
    check_positive("width", width, "it is the length over which the loss is averaged")
    if callable(loss.slope_bound) or loss.n_outputs > 1:
        raise ValueError(f"Expected a loss of one output and bounded slope, got {loss.name}: it needs no smoothing.")
    make = _compile if loss.may_raise else kernel(PlainKernel, cache=False, error_model="numpy")
    value, width = make(loss.value) if loss.may_raise else loss.value, float(width)

    def smooth_value(prediction: float, target: float) -> float:
        return (value(prediction - width, target) + value(prediction, target) + value(prediction + width, target)) / 3

    def smooth_slope(prediction: float, target: float) -> float:
        return (value(prediction + width, target) - value(prediction - width, target)) / (2 * width)

    changed: dict[str, Any] = {"value": make(smooth_value), "slope": make(smooth_slope)}
    curvature = min(loss.curvature, loss.slope_bound / width)
    return replace(loss, name=f"{loss.name}, smoothed({width:g})", curvature=curvature, **changed)
