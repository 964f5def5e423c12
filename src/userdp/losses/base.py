"""What a loss is: two functions of (predictions, targets) and constants; losses of your own, and smoothed ones."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from userdp._validate import check_positive

SlopeBound = float | Callable[[float, float], float]
Function = Callable[[Any, Any], Any]  # of predictions and targets


@dataclass(frozen=True)
class Loss:
    """A convex loss of a linear model's prediction.

    `value` and `slope` take predictions and targets of many rows, arrays of equal length, and return an array.
    `slope_bound` is the largest |slope|: a number, or a function of (largest |prediction|, largest |target|) where
    the slope grows with them. `curvature` is the largest derivative of the slope, infinite for a non-smooth loss. With
    `n_outputs` = k > 1 the weights are a flattened (k, d) matrix, predictions have k columns and so has what `slope`
    returns; the bounds are then on the norm of a row's slope and on the largest eigenvalue of its Jacobian.
    `may_raise` says that the functions come from outside: they may raise, or mix rows, so that they are called with one
    user's rows at a time. Those of this package never raise, compute a row's result from that row alone, always in the
    same way, and return numbers of the predictions' type.
    `typical_prediction` is how large predictions of a good model are (root mean square), if the loss says so itself: 1
    for hinge losses, whose predictions gather at the margins -1 and 1.
    `usual_curvature` is, where that varies by powers of ten, about the mean derivative of the slope if predictions have
    this mean and variance. `event` is by how much of the largest slope the rarest thing that is worth learning moves
    the slope: a label, all of it; one of many counts, little.
    `level` is, of a loss whose best prediction is a quantile, which one. `mean` is, of one whose slope is a mean less
    the target, and not linear, that mean: of predictions, as an array.
    `differences`: whether only differences of outputs count, as softmax's: adding the same to all changes nothing.
    `unweighted` is, of a loss for rows with weights (`weighted`), the same for rows of weight 1.
    """

    name: str
    value: Function
    slope: Function
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
        with np.errstate(all="ignore"):
            between = self.value(np.zeros(1 if self.n_outputs == 1 else (1, self.n_outputs)), np.array([0.5]))
        return math.isnan(between[0])

    def lipschitz(self, row_norm: float, target_bound: float | None = None, weight_norm: float | None = None) -> float:
        """Largest gradient norm over rows with |x| <= row_norm: (largest |slope|) * row_norm.

        `target_bound` (largest |target|) and `weight_norm` (largest |w|, a domain's `largest_norm`) are needed only
        by losses whose slope grows with them, such as squared.
        """
        check_positive(row_norm=row_norm)
        if not callable(self.slope_bound):
            return self.slope_bound * row_norm
        if weight_norm is not None and target_bound is None and self.classifies:
            target_bound = 1.0
        if target_bound is None or weight_norm is None:
            raise ValueError(
                f"The slope of the {self.name} loss grows with targets and weights, got target_bound={target_bound}, "
                f"weight_norm={weight_norm}: pass the largest |target| and the domain's largest_norm."
            )
        return self.slope_bound(row_norm * weight_norm, target_bound) * row_norm

    def smoothness(self, row_norm: float) -> float:
        """Lipschitz constant of the gradient over rows with |x| <= row_norm: curvature * row_norm^2, or infinity."""
        check_positive(row_norm=row_norm)
        return self.curvature * row_norm * row_norm


# The losses of this package, each with how to make it again.
_KNOWN: dict[Loss, tuple[Loss, Callable[..., Loss], tuple[Any, ...]]] = {}


def register(loss: Loss, maker: Callable[..., Loss], *parameters: Any) -> Loss:
    """Note down a loss of this package: its constants are proven where it is made."""
    _KNOWN.setdefault(loss, (loss, maker, parameters))
    return loss


def known(loss: Loss) -> Loss | None:
    """The loss of this package that is equal in everything, constants and functions; None if there is none.

    None for smoothed ones and for those of weighted rows, too: proofs that rest on constants do not speak of these.
    """
    found = _find(loss)
    return None if found is None or found[1] is smoothed or loss.unweighted is not None else found[0]


def _find(loss: Loss) -> tuple[Loss, Callable[..., Loss], tuple[Any, ...]] | None:
    try:
        return _KNOWN.get(loss)
    except TypeError:  # a function without a hash
        return None


# Predictions and targets, of classes as of numbers, on which losses of one's own are tried.
_PREDICTIONS, _TARGETS = np.linspace(-1.0, 1.0, 5), np.array([0.0, 1.0, 1.0, 0.0, 1.0])
_PREDICTIONS.flags.writeable = _TARGETS.flags.writeable = False


def custom(
    name: str,
    value: Function,
    slope: Function,
    *,
    lipschitz: SlopeBound,
    smoothness: float = math.inf,
) -> Loss:
    """A loss from two Python functions of arrays (predictions, targets), which return one number for each row.

    Each call has one user's rows; an exception inside `slope` turns that user's gradient into NaN. Both functions are
    tried on five rows here.

    Parameters
    ----------
    name : str
        How the loss is called.
    value, slope : callable
        The loss of each row, and its derivative in the prediction.
    lipschitz : float or callable
        The largest |slope|, or a function of (largest |prediction|, largest |target|) where it grows.
    smoothness : float
        The largest derivative of the slope; infinite for a non-smooth loss.

    Returns
    -------
    Loss
    """
    if not (callable(value) and callable(slope)):
        raise TypeError(f"value and slope of the {name} loss must be functions of (predictions, targets).")
    if not callable(lipschitz):
        check_positive(lipschitz=lipschitz)
    if not smoothness > 0:
        raise ValueError(f"smoothness must be > 0, got {smoothness}: pass math.inf for a non-smooth loss.")
    _check_function(f"the value of the {name} loss", value)
    _check_function(f"the slope of the {name} loss", slope)
    return Loss(name, value, slope, slope_bound=lipschitz, curvature=smoothness)


def _check_function(what: str, function: Function) -> None:
    """Refuse functions that only take single numbers, or do not return a number for each row, of that row."""
    rows = len(_TARGETS)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found, first = np.asarray(function(_PREDICTIONS, _TARGETS)), function(_PREDICTIONS[:2], _TARGETS[:2])
    except Exception as error:
        raise ValueError(
            f"{what} must work on arrays of predictions and targets, but it raised {type(error).__name__}: {error}. "
            "Use np.where in place of if, and np.exp and the like in place of math.exp; or, slower, np.vectorize."
        ) from error
    if found.shape != (rows,) or found.dtype.kind not in "iuf" or np.any(np.isinf(found)):
        raise ValueError(
            f"{what} must be an array of {rows} numbers, finite or NaN, for {rows} predictions and targets, got "
            f"{found.tolist()!r}: return one number for each row, and use np.where in place of if."
        )
    if not np.allclose(first, found[:2], equal_nan=True):
        raise ValueError(f"{what} must be computed from each row by itself: it changed when other rows were left out.")


def floats(predictions: npt.ArrayLike) -> np.ndarray:
    """Predictions as they are if they are floats, else in double precision."""
    found = np.asarray(predictions)
    return found if found.dtype.kind == "f" else found.astype(np.float64)


@functools.lru_cache(maxsize=256)
def smoothed(loss: Loss, width: float) -> Loss:
    """The loss averaged over predictions within `width`, in closed form: smooth, at the cost of two values.

    slope (value(p + width) - value(p - width)) / (2 width), the mean of the slope over [p - width, p + width];
    value (value(p - width) + value(p) + value(p + width)) / 3, which is between the averaged loss and the loss.
    Both are computed in double precision: values are near each other.
    Constants: |slope| as before, where it does not grow; slope' <= (largest |slope|) / width. The averaged loss is
    above the loss by at most (largest |slope|) * width / 2. For losses of one output with a bounded slope.
    """
    check_positive(width=width)
    if callable(loss.slope_bound) or loss.n_outputs > 1:
        raise ValueError(f"Only losses of one output and bounded slope are smoothed, got {loss.name}.")
    width = float(width)

    def value(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        given = floats(predictions)
        p = given.astype(np.float64)
        found = (loss.value(p - width, targets) + loss.value(p, targets) + loss.value(p + width, targets)) / 3
        return found.astype(given.dtype)

    def slope(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> Any:
        given = floats(predictions)
        p = given.astype(np.float64)
        found = (loss.value(p + width, targets) - loss.value(p - width, targets)) / (2 * width)
        return found.astype(given.dtype)

    name, curvature = f"{loss.name}, smoothed({width:g})", min(loss.curvature, loss.slope_bound / width)
    return register(replace(loss, name=name, value=value, slope=slope, curvature=curvature), smoothed, loss, width)


@functools.lru_cache(maxsize=256)
def weighted(loss: Loss) -> Loss:
    """The loss for rows that count as often as their weight (`UserData.weights`) says, 0 to 1 times.

    Statistics multiply each row's slope by its weight; the functions and the constants are those of the loss, since no
    weight is above 1. For losses of this package.
    """
    if loss.may_raise or loss.unweighted is not None:
        raise ValueError(f"Only unweighted losses of userdp get weights, got {loss.name}: use one of userdp.losses.")
    return register(replace(loss, name=f"weighted {loss.name}", unweighted=loss), weighted, loss)
