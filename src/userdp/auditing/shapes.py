"""Claims as curves: at which scale of its own noise a claim would just allow the rates that an attack reached.

A claim is not one (epsilon, delta) but a whole curve. Rates that the curve does not allow refute the claim, without
any further assumption. To say by how much, the claim is scaled: as if all its noise were 1/s of what it is. The least s
that allows the rates gives epsilon at any delta. For Gaussian noise that is a bound on mu of mu-GDP (Nasr et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from userdp.auditing.bounds import Rates
from userdp.privacy.accounting import COARSE_GRID, AddedUserMultiplier, Cost, Subsampled, delta_at, epsilon_at

# Epsilons at which a curve is compared with rates.
_EPSILONS = np.concatenate([np.linspace(0.0, 2.0, 21), np.linspace(2.25, 8.0, 24)])
_SCALES = (0.02, 8.0)

Curve = Callable[[float, float], float]  # of scale and epsilon: delta


def scaled(cost: Cost, scale: float) -> Cost:
    """What the same releases would cost with noise 1/scale of theirs.

    >>> scaled(Cost(gaussian=1.0, pure=(0.5,)), 2.0)
    Cost(gaussian=4.0, pure=(1.0,), subsampled=(), failure=0.0)
    """
    parts = tuple(
        Subsampled(part.sampling_probability, AddedUserMultiplier(part.added_user_multiplier / scale), part.steps)
        for part in cost.subsampled
    )
    return replace(
        cost, gaussian=cost.gaussian * scale**2, pure=tuple(scale * part for part in cost.pure), subsampled=parts
    )


def curve_of(cost: Cost) -> Curve:
    """The curve of a cost."""
    return lambda scale, epsilon: delta_at(scaled(cost, scale), epsilon, COARSE_GRID)


def allows(curve: Curve, scale: float, rates: Rates) -> bool:
    """Whether the claim at this scale allows the rates: least <= e^epsilon most + delta(epsilon) at every epsilon.

    The same holds for saying D', whose rates are the complements.
    """
    for epsilon in map(float, _EPSILONS):
        factor, delta = math.exp(epsilon), curve(scale, epsilon)
        if rates.least > factor * rates.most + delta or 1 - rates.most > factor * (1 - rates.least) + delta:
            return False
    return True


def least_scale(curve: Curve, rates: Rates, steps: int = 12) -> float:
    """The least scale at which the claim allows the rates, from below; above 1 the claim itself is refuted."""
    return _least(lambda scale: allows(curve, scale, rates), steps) if rates.least > rates.most else 0.0


def scale_of_advantage(curve: Curve, advantage: float, steps: int = 12) -> float:
    """The same for a difference of rates: no attack's is above delta at epsilon 0, the total variation."""
    return _least(lambda scale: advantage <= curve(scale, 0.0), steps) if advantage > 0 else 0.0


def _least(allowed: Callable[[float], bool], steps: int) -> float:
    low, high = _SCALES
    if allowed(low):
        return 0.0
    if allowed(1.0):
        high = 1.0
    else:
        low = 1.0
        if not allowed(high):
            return high
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return low


def shaped_epsilon(cost: Cost, scale: float, delta: float) -> float:
    """Epsilon at `delta` of a cost at this scale."""
    return epsilon_at(scaled(cost, scale), delta, COARSE_GRID) if scale > 0 else 0.0
