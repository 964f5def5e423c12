"""What is to be minimised, said in public numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from userdp._validate import check_record
from userdp.domains import Domain
from userdp.losses import Loss

# Typical logits: 3 is a probability of 95%. Too large costs a little noise, too small a slow start.
_TYPICAL_LOGIT = 3.0


@dataclass(frozen=True, eq=False)
class Problem:
    """What is minimised: mean loss + l2/2 |w|^2 over the domain, with public bounds on the data; w without intercepts.

    None of it affects privacy, with two exceptions: the solvers group-privacy and disjoint-batches calibrate their
    noise to the loss's constants, row_norm and target_bound. They take losses of userdp only, and enforce both bounds.

    row_norm: how long a row may be, the intercept's 1 counted in;
    target_bound: how large |target| may be (regression only);
    prediction_scale: how large predictions of a good model typically are (root mean square): by default the loss's own
    (1 for hinge losses), 3 for other classification, where predictions are log-odds, and `target_bound` for regression.
    With a warm start: how far they are from the start's;
    warm_start: public weights to begin at instead of 0, of an earlier model say;
    l2: strength of the penalty; all weights are penalised but those of the intercept;
    intercept: whether the last feature is the constant 1;
    public_moment: second moment (d x d) of public rows that are about like the users', where there is one.

    Paper: Alg. 3, line 2 (x_0), the start: the domain's point nearest to 0, or `warm_start`.

    >>> from userdp import Ball, losses
    >>> problem = Problem(losses.logistic, Ball(10.0), n_features=5, row_norm=2.0)
    >>> problem.reach, problem.typical_prediction
    (10.0, 3.0)
    """

    # How alike a user's rows are: 0 if they differ as rows of different users do, 1 if all are equal. Chosen.
    row_similarity: ClassVar[float] = 0.25

    loss: Loss
    domain: Domain
    n_features: int
    row_norm: float
    target_bound: float | None = None
    prediction_scale: float | None = None
    warm_start: np.ndarray | None = None
    l2: float = 0.0
    intercept: bool = False
    public_moment: np.ndarray | None = None
    start: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise TypeError(f"Expected a Loss, got {type(self.loss).__name__}: use userdp.losses.loss('logistic').")
        for name in ("row_norm", "target_bound", "prediction_scale"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float, np.number)) and 0 < value < math.inf):
                raise ValueError(f"Expected {name}={value!r} to be a finite number > 0.")
        if not (isinstance(self.l2, (int, float, np.number)) and 0 <= self.l2 < math.inf):
            raise ValueError(f"Expected l2={self.l2} to be a finite number >= 0.")
        for name in ("row_norm", "target_bound", "prediction_scale", "l2"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))
        check_record(self, counts=("n_features",))
        if self.target_bound is None and not self.loss.classifies:
            raise ValueError(
                f"Expected a target_bound for the {self.loss.name} loss: a public bound on |target|, such as the end "
                "of its scale."
            )
        try:
            nearest = self.domain.project(np.zeros(self.dimension))
        except ValueError as error:
            raise ValueError(
                f"Expected a domain of {self.dimension} dimensions, one per weight ({self.n_features} features, the "
                f"intercept counted in, and {self.loss.n_outputs} outputs)."
            ) from error
        start = np.array(nearest)
        if self.warm_start is not None:
            try:
                start = np.array(self.warm_start, dtype=np.float64)
            except (TypeError, ValueError):
                start = np.empty(0)
            if start.shape != nearest.shape or not np.all(np.isfinite(start)) or not self.domain.contains(start):
                raise ValueError(
                    f"Expected warm_start to be a vector of {self.dimension} finite numbers, one per weight, inside "
                    "the domain (domain.project(weights) is), and public."
                )
            start = np.array(self.domain.project(start))
        start.flags.writeable = False
        object.__setattr__(self, "start", start)

    @cached_property
    def dimension(self) -> int:
        """Number of weights."""
        return self.loss.n_outputs * self.n_features

    @cached_property
    def lipschitz(self) -> float:
        """Largest gradient norm of a row (L in the paper)."""
        return self.loss.lipschitz(self.row_norm, self.target_bound, self.domain.largest_norm)

    @cached_property
    def reach(self) -> float:
        """How far the best point may be from the start: within the domain, and with a penalty not far from 0.

        At the best point l2/2 |w|^2 is at most the mean loss at 0, if 0 is in the domain and there is no intercept.
        """
        farthest = self.domain.reach(self.start)
        if self.certain_curvature == 0 or not self.domain.contains(np.zeros(self.dimension)):
            return farthest
        return min(farthest, math.sqrt(2 * self.loss_at_zero / self.l2) + float(np.linalg.norm(self.start)))

    @property
    def certain_curvature(self) -> float:
        """The curvature of the penalty, in all directions of the weights: none along an intercept."""
        return 0.0 if self.intercept else self.l2

    def penalised(self, weights: np.ndarray) -> np.ndarray:
        """The weights, with 0 for intercepts."""
        blocks = np.array(weights).reshape(-1, self.n_features)
        if self.intercept:
            blocks[:, -1] = 0.0
        return blocks.ravel()

    @cached_property
    def typical_prediction(self) -> float:
        """Root mean square of a good model's predictions, all outputs together."""
        usual = _TYPICAL_LOGIT if self.loss.classifies else self.target_bound
        scale = self.prediction_scale or self.loss.typical_prediction or usual
        assert scale is not None  # a target bound is demanded where it is needed
        return float(scale) * math.sqrt(self.loss.n_outputs)

    @cached_property
    def typical_curvature(self) -> float:
        """The largest curvature, or where the loss is non-smooth, its largest slope over a typical prediction."""
        return min(self.loss.curvature, self.lipschitz / self.row_norm / self.typical_prediction)

    @cached_property
    def typical_slope(self) -> float:
        """A bound on the root mean square of the slope along a run of SGD.

        The largest slope, or by smoothness sqrt(2 * curvature * value at the start) (Srebro et al. 2010), if less.
        """
        largest = self.lipschitz / self.row_norm
        if not self.loss.smooth:
            return largest
        return min(largest, math.sqrt(2 * self.loss.curvature * self.loss_at_zero))

    def user_variance(self, rows_per_user: int, row_square: float | None = None) -> float:
        """How far users' mean gradients are from the average one, squared, if rows are of this mean square length.

        A mean over m rows varies less than a row by `alike`.
        """
        square = self.row_norm**2 if row_square is None else row_square
        return square * self.typical_slope**2 * alike(rows_per_user, self.row_similarity)

    @cached_property
    def loss_at_zero(self) -> float:
        """Largest loss of the prediction 0."""
        return loss_at_zero(self.loss, self.target_bound)


def alike(rows_per_user: float, similarity: float) -> float:
    """By how much a mean over a user's m rows varies less than a row does: 1/m + similarity (1 - 1/m)."""
    return 1 / rows_per_user + similarity * (1 - 1 / rows_per_user)


def loss_at_zero(loss: Loss, target_bound: float | None) -> float:
    """Largest loss of the prediction 0, over all classes or over targets up to the bound, of rows of weight 1."""
    loss = loss.unweighted or loss
    if loss.classifies:
        extremes = [float(label) for label in range(max(2, loss.n_outputs))]
    else:
        extremes = [-float(target_bound or 0.0), float(target_bound or 0.0)]
    nothing = np.zeros(len(extremes) if loss.n_outputs == 1 else (len(extremes), loss.n_outputs))
    with np.errstate(all="ignore"):
        return float(np.max(loss.value(nothing, np.array(extremes))))
