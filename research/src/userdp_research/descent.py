"""Projected SGD on noisy gradients, which earlier work steps by (`userdp.paper.descent` has the paper's methods)."""

from __future__ import annotations

import math

import numpy as np

from userdp.domains import Domain


class AveragedSGD:
    """Projected SGD with one step size for all steps; the result is the average of the points after each step."""

    def __init__(self, start: np.ndarray, domain: Domain, step_size: float) -> None:
        self._domain, self._step_size = domain, step_size
        self.query = self.point = domain.project(start)
        self._steps = 0

    def move(self, gradient: np.ndarray) -> None:
        self._steps += 1
        self.query = self._domain.project(self.query - self._step_size * gradient)
        self.point = self.query if self._steps == 1 else self.point + (self.query - self.point) / self._steps


def sgd_step(smoothness: float, distance: float, square: float, n_steps: int) -> float:
    """The step with the least `sgd_excess`; a smoothness of 0 says that the loss is non-smooth: no step is too long.

    >>> sgd_step(2.0, 1.0, 1.0, 2), sgd_step(0.0, 1.0, 1.0, 2)
    (0.25, 0.5)
    """
    step = distance / math.sqrt(2 * n_steps * square)
    return min(step, 1 / (2 * smoothness)) if smoothness else step


def sgd_excess(step_size: float, distance: float, square: float, n_steps: int) -> float:
    """A bound on the expected excess of `AveragedSGD`: D^2 / (2 eta T) + eta G.

    For a convex, beta-smooth loss G is the variance of a gradient, and eta <= 1/(2 beta): a step has f(x') - f(x*) <=
    (|x - x*|^2 - |x' - x*|^2)/(2 eta) + <error, x* - x> + eta |error|^2 / (2 (1 - beta eta))  (Lan 2012).
    For a non-smooth loss G is the mean square of a gradient, L^2 + variance, and T >= 32: eta G/2 is the usual term,
    for the points before each step, and the rest pays L (diameter)/T for taking those after.
    """
    return distance**2 / (2 * step_size * n_steps) + step_size * square
