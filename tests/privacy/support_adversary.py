"""An analyst who chooses each run by looking at what the runs before it released, and what that truly costs.

A run is a pair of distributions (P, Q) of what two neighbours release, worst for its cost: two Gaussians, randomised
response, mixtures of Gaussians, a disclosure with the failure's probability. The analyst wants to tell P from Q at
epsilon. After a release of loss L the rest of the game is the same at epsilon - L, so

    delta(epsilon) = failure + E_P[max over accepted runs of their delta(epsilon - L)],

which is computed by quadrature over L.
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass

import numpy as np
from scipy.special import expit, log_ndtr

from userdp.privacy.accounting import BudgetExceeded, Cost, Subsampled
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Mechanism
from userdp.privacy.plan import Plan, Step


@dataclass(frozen=True)
class Priced(Mechanism):
    """A mechanism that is nothing but its cost."""

    kind = "priced"
    cost = None  # set from the price: it is no field, which files would hold
    price: InitVar[Cost]
    n_vectors: int = 10
    rounds: int = 1

    def start(self, noise):
        raise NotImplementedError

    def sensitivity(self, radius, dimension):
        raise NotImplementedError

    def __post_init__(self, price):
        object.__setattr__(self, "cost", price)


def plan(*costs):
    """Each cost on ten users of its own."""
    return Plan(10 * len(costs), tuple(Step(str(k), 10 * k, 10 * k + 10, Priced(cost)) for k, cost in enumerate(costs)))


class Gaussian:
    largest = 10.0

    def __init__(self, mu):
        self.mu = mu

    @property
    def cost(self):
        return Cost(gaussian=self.mu**2)

    failure = 0.0

    def losses(self, nodes):
        """Losses and their P-probabilities."""
        z = np.linspace(-12.0, 12.0, nodes)
        weights = np.exp(-(z**2) / 2)
        return self.mu * z + self.mu**2 / 2, weights / weights.sum()

    def delta(self, epsilon):
        if self.mu == 0:
            return -np.expm1(np.minimum(0.0, epsilon))
        upper, lower = (log_ndtr(sign * self.mu / 2 - epsilon / self.mu) for sign in (1, -1))
        return np.exp(upper) * -np.expm1(np.minimum(0.0, epsilon + lower - upper))


class Atoms:
    """A run with known losses: its delta is a sum over them."""

    failure = 0.0

    def delta(self, epsilon):
        losses, weights = self.losses(1601)
        grid = np.linspace(np.min(epsilon), np.max(epsilon), 4001)
        deltas = -np.expm1(np.minimum(0.0, grid[:, None] - losses)) @ weights
        return self.failure + (1 - self.failure) * np.interp(epsilon, grid, deltas)


class Pure(Atoms):
    largest = 20.0

    def __init__(self, epsilon):
        self.epsilon = epsilon

    @property
    def cost(self):
        return Cost(pure=(self.epsilon,))

    def losses(self, nodes):
        return np.array([self.epsilon, -self.epsilon]), expit(np.array([self.epsilon, -self.epsilon]))


class Failure(Atoms):
    """Tells everything with this probability, and nothing otherwise."""

    largest = 1.0

    def __init__(self, failure):
        self.failure = failure

    @property
    def cost(self):
        return Cost(failure=self.failure)

    def losses(self, nodes):
        return np.zeros(1), np.ones(1)


class Sampled(Atoms):
    """One Poisson-sampled Gaussian step; mu is what adding a user moves it by, in units of the noise."""

    largest = 3.0
    probability = 0.01

    def __init__(self, mu):
        self.mu = mu

    @property
    def cost(self):
        return Cost(subsampled=(Subsampled(self.probability, 1 / self.mu, 1),))

    def losses(self, nodes):
        q, mu = self.probability, self.mu
        x = np.linspace(-13.0 - mu, 13.0 + mu, nodes)  # in units of the noise
        with np.errstate(under="ignore"):
            log_p = np.logaddexp(math.log1p(-q) - x**2 / 2, math.log(q) - (x - mu) ** 2 / 2)
            log_q = np.logaddexp(math.log1p(-q) - x**2 / 2, math.log(q) - (x + mu) ** 2 / 2)
            weights = np.exp(log_p)
        return log_p - log_q, weights / weights.sum()


class SampledMore(Sampled):
    probability = 0.3


KINDS = (Gaussian, Pure, Failure, Sampled, SampledMore)


def accepts(budget, runs):
    """Whether a new ledger takes these runs one after the other."""
    book = Ledger(budget)
    try:
        for run in runs:
            book.charge(plan(run.cost))
    except BudgetExceeded:
        return False
    return True


def largest(kind, budget, before):
    """The run of this kind that just fits after others, or None."""
    low, high = 0.0, kind.largest
    while high - low > 1e-3 * high and high > 1e-12:
        middle = (low + high) / 2 if low else high / 8
        if accepts(budget, [*before, kind(middle)]):
            low = middle
        else:
            high = middle
    return kind(low) if low else None


def true_delta(epsilon, run, choices, nodes=801):
    """Delta, at an array of epsilons, of a run after which the best of `choices` (functions of epsilon) is taken."""
    losses, weights = run.losses(nodes)
    at = np.subtract.outer(np.atleast_1d(epsilon), losses)
    best = np.maximum.reduce([choice(at) for choice in choices])
    return run.failure + (1 - run.failure) * (best @ weights)
