"""Convex losses of linear models: how bad a prediction is, and the constants that theory asks for.

A loss is a pair of functions of (predictions, targets), arrays with an entry for each row, where prediction = <w, x>:

    value(predictions, targets)   the loss of each row
    slope(predictions, targets)   its derivative (or a subgradient) in the prediction

The gradient in w is slope * x, so two numbers say all: with |slope| <= B and slope' <= H, and rows |x| <= r,
the loss is (B r)-Lipschitz and (H r^2)-smooth in w. An intercept is one more feature that is always 1; count it in r.

Privacy does not rest on the constants, with two exceptions: the solvers group-privacy and disjoint-batches, whose
sensitivity they bound (`stable_sgd`). They take none but the losses of this package, unaltered (`known`). Everywhere
else the constants decide accuracy only. A target that is NaN or not a class gives NaN, which the filtered mean treats
as "far from everyone".

>>> loss("huber", threshold=0.5).lipschitz(row_norm=2.0)
1.0
>>> round(float(logistic.value(0.0, 1.0)), 6), logistic.smoothness(row_norm=2.0)
(0.693147, 1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from userdp.losses import standard
from userdp.losses.base import Loss, SlopeBound, custom, known, smoothed, weighted
from userdp.losses.standard import *  # noqa: F403 - its __all__ is the list of losses
from userdp.losses.standard import poisson_of_exposure

__all__ = ["LOSSES", "Loss", "SlopeBound", "custom", "known", "loss", "poisson_of_exposure", "smoothed", "weighted"]
__all__ += standard.__all__

LOSSES: Mapping[str, Loss | Callable[..., Loss]] = {name: getattr(standard, name) for name in standard.__all__}


def loss(name: str, **parameters: Any) -> Loss:
    """The loss of this name: loss("logistic"), loss("huber", threshold=0.5).

    Parameters
    ----------
    name : str
        One of `LOSSES`.
    **parameters
        Those of the loss, if it has any.

    Returns
    -------
    Loss
    """
    if name not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(sorted(LOSSES))}, got {name!r}: or make one with custom().")
    found = LOSSES[name]
    if name in ("multinomial", "one_vs_rest") and "n_classes" not in parameters:
        raise ValueError(
            f"The {name} loss needs the number of classes: pass losses.{name}(3), say, or "
            f'loss("{name}", n_classes=3), in place of the name.'
        )
    if not isinstance(found, Loss):
        return found(**parameters)
    if parameters:
        raise TypeError(f"The {name} loss has no parameters, got {', '.join(parameters)}: leave them out.")
    return found
