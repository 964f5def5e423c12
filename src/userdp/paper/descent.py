"""First-order methods on noisy gradients. They know no data: a point to ask at, a gradient, the next point."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from userdp.domains import Domain


class Descent(Protocol):
    """A method: `query` is where the next gradient is wanted, `point` the result so far."""

    @property
    def query(self) -> np.ndarray: ...

    @property
    def point(self) -> np.ndarray: ...

    def move(self, gradient: np.ndarray) -> None: ...


class Nesterov:
    """Nesterov's method with steps 1/smoothness; the result is the average of the last half of `n_steps` iterates.

    Under noise that average was 3 to 10 times better than AC-SA's aggregated iterate at 19 to 100 steps: AC-SA weighs
    late gradients t times as much as the first, and so averages less noise away.
    """

    def __init__(self, start: np.ndarray, domain: Domain, smoothness: float, n_steps: int) -> None:
        self._domain, self._smoothness, self._n_steps = domain, smoothness, n_steps
        self._last = self.query = domain.project(start)
        self._total, self._averaged, self._steps = np.zeros(start.size), 0, 0

    def move(self, gradient: np.ndarray) -> None:
        self._steps += 1
        before, self._last = self._last, self._domain.project(self.query - gradient / self._smoothness)
        self.query = self._last + (self._steps - 1) / (self._steps + 2) * (self._last - before)
        if 2 * self._steps > self._n_steps:
            self._total, self._averaged = self._total + self._last, self._averaged + 1

    @property
    def point(self) -> np.ndarray:
        return self._total / self._averaged if self._averaged else self._last


def steadied(smoothness: float, distance: float, variance: float, n_steps: int, curved: float = 0.0) -> float:
    """The smoothness to step by when gradients have this variance: steps must shrink where noise would add up.

    phi = sqrt(s^2 T^3 / 3) / D balances the two terms of AC-SA's bound (Ghadimi and Lan 2012). Where the curvature is
    at least h, noise is forgotten after some 3 sqrt(phi/h) steps; with these for T it is (9 s^2 / D^2)^2 / h^3, if
    less.
    """
    needed = math.sqrt(variance * n_steps**3 / 3) / distance
    if curved:
        needed = min(needed, (9 * variance / distance**2) ** 2 / curved**3)
    return max(smoothness, needed)


class ACSA:
    """Multi-stage AC-SA for a mu-strongly convex objective with noisy gradients, the aggregated iterate its result.

    With alpha_t = 2/(t+1), gamma_t = 4 phi/(t(t+1)) and c = (1-alpha)(mu+gamma)/(gamma + (1-alpha^2) mu), a step is

        md = c ag + (1-c) x,   x = project((alpha mu md + ((1-alpha) mu + gamma) x - alpha g(md)) / (mu + gamma)),
        ag = alpha x + (1-alpha) ag.

    A stage of N steps halves the bound V on the gap; the next begins at its result. The last is cut off at `n_steps`.
    Paper: Alg. 2, line 14; Lemma C.4 (Ghadimi and Lan 2012, 2013).
    """

    def __init__(
        self,
        start: np.ndarray,
        domain: Domain,
        smoothness: float,
        strong_convexity: float,
        variance: float,
        gap: float,
        n_steps: int,
    ) -> None:
        self._domain, self._smoothness, self._mu, self._variance = domain, smoothness, strong_convexity, variance
        self._gap, self._left = gap, n_steps
        self.point = domain.project(start)
        self._begin_stage()

    def _begin_stage(self) -> None:
        self._x, self._t = self.point, 0
        self._n_steps, self._phi = stage(self._smoothness, self._mu, self._variance, self._gap, self._left)
        self._look_ahead()

    def _look_ahead(self) -> None:
        t, mu = self._t + 1, self._mu
        self._alpha, self._gamma = 2 / (t + 1), 4 * self._phi / (t * (t + 1))
        c = (1 - self._alpha) * (mu + self._gamma) / (self._gamma + (1 - self._alpha**2) * mu)
        self.query = c * self.point + (1 - c) * self._x

    def move(self, gradient: np.ndarray) -> None:
        alpha, gamma, mu = self._alpha, self._gamma, self._mu
        pulled = alpha * mu * self.query + ((1 - alpha) * mu + gamma) * self._x - alpha * gradient
        self._x = self._domain.project(pulled / (mu + gamma))
        self.point = alpha * self._x + (1 - alpha) * self.point
        self._t, self._left = self._t + 1, self._left - 1
        if self._t < self._n_steps:
            self._look_ahead()
        elif self._left:
            self._gap /= 2
            self._begin_stage()


def stage(smoothness: float, strong_convexity: float, variance: float, gap: float, left: int) -> tuple[int, float]:
    """Steps N and step parameter phi of a stage that begins with the objective at most `gap` above its minimum.

    N = max(4 sqrt(2 beta/mu), 128 s^2 / (3 mu V/4)), at most the steps that are left, and
    phi = max(2 beta, sqrt(mu s^2 N(N+1)(N+2) / (3 V))), with V the gap and s^2 the variance of a gradient.
    Paper: Lemma C.4, the multi-stage method (Ghadimi and Lan 2013, Prop. 7).
    """
    steps = max(4 * math.sqrt(2 * smoothness / strong_convexity), 128 * variance / (3 * strong_convexity * gap / 4))
    n_steps = min(math.ceil(min(steps, 1e15)), left)
    cubic = float(n_steps) * (n_steps + 1) * (n_steps + 2)
    return n_steps, max(2 * smoothness, math.sqrt(strong_convexity * variance * cubic / (3 * gap)))
