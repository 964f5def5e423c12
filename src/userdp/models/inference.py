"""Standard errors and intervals of released weights, as a table and as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from userdp.solvers.inference import DEFAULT_FRACTION
from userdp.solvers.uncertainty import Uncertainty

_LABEL = 28  # characters of a name in the table


def fraction_of(inference: Any) -> float | None:
    """The part of the budget that a parameter `inference` asks for; None for none."""
    if isinstance(inference, bool | np.bool_):
        return DEFAULT_FRACTION if inference else None
    if isinstance(inference, int | float | np.number) and 0 < inference < 1:
        return float(inference)
    raise ValueError(f"Expected inference={inference!r} to be True, False, or a part of the budget between 0 and 1.")


@dataclass(frozen=True, eq=False)
class Summary:
    """A table of weights with their standard errors; `print` shows it.

    noise_share: which part of a weight's variance is privacy's noise; the rest comes from who was sampled.
    """

    names: tuple[str, ...]
    coef: np.ndarray
    std_err: np.ndarray
    z: np.ndarray
    conf_int: np.ndarray
    noise_share: np.ndarray
    level: float
    title: str

    def __str__(self) -> str:
        low = f"[{(1 - self.level) / 2:.3g}"
        high = f"{(1 + self.level) / 2:.3g}]"
        head = f"{'':<{_LABEL}}{'coef':>11}{'std err':>11}{'z':>9}{low:>11}{high:>11}{'noise':>8}{'sampling':>10}"
        lines = [self.title, "=" * len(head), head, "-" * len(head)]
        for k, name in enumerate(self.names):
            shown = name if len(name) < _LABEL else name[: _LABEL - 2] + "…"
            numbers = f"{self.coef[k]:>11.4g}{self.std_err[k]:>11.3g}{self.z[k]:>9.2f}"
            ends = f"{self.conf_int[k, 0]:>11.4g}{self.conf_int[k, 1]:>11.4g}"
            parts = f"{self.noise_share[k]:>8.0%}{1 - self.noise_share[k]:>10.0%}"
            lines.append(f"{shown:<{_LABEL}}{numbers}{ends}{parts}")
        note = "noise, sampling: parts of the variance that privacy and the choice of people have; clustered by user."
        return "\n".join([*lines, "=" * len(head), note])

    __repr__ = __str__


class Intervals:
    """What a fitted estimator of one output tells of its weights, where `inference` was asked for."""

    coef_: np.ndarray
    intercept_: Any
    uncertainty_: Uncertainty | None

    @property
    def cov_(self) -> np.ndarray:
        """Covariance of the coefficients, the intercept last, if there is one: privacy's noise and sampling."""
        return self._known_uncertainty(AttributeError).covariance

    def conf_int(self, level: float = 0.95) -> np.ndarray:
        """Confidence intervals: a row (low, high) for each coefficient, the intercept last, if there is one.

        They cover what the same fit would find without noise on all people there could be: the minimum of the expected
        loss. Post-processing of the release: it costs no budget.
        """
        return self.summary(level).conf_int

    def summary(self, level: float = 0.95) -> Summary:
        """A table of coefficients, standard errors, z, intervals, and which part of the variance is privacy's noise."""
        if not (isinstance(level, int | float | np.number) and 0 < level < 1):
            raise ValueError(f"Expected 0 < level={level!r} < 1, such as 0.95.")
        found = self._known_uncertainty(ValueError)
        coef = np.atleast_2d(self.coef_)[0]
        names = getattr(self, "feature_names_in_", None)
        named = [f"x{k}" for k in range(len(coef))] if names is None else [str(name) for name in names]
        if len(found.noise) > len(coef):
            coef, named = np.append(coef, np.atleast_1d(self.intercept_)), [*named, "(intercept)"]
        variances, noise = np.diag(found.covariance), np.diag(found.noise)
        errors = np.sqrt(variances)
        with np.errstate(divide="ignore", invalid="ignore"):
            z, share = coef / errors, np.where(variances > 0, noise / variances, 0.0)
        reach = float(ndtri((1 + level) / 2)) * errors
        ends = np.column_stack([coef - reach, coef + reach])
        return Summary(tuple(named), coef, errors, z, ends, share, float(level), self._title())

    def _known_uncertainty(self, refusal: type[Exception]) -> Uncertainty:
        found: Uncertainty | None = getattr(self, "uncertainty_", None)
        if found is None:
            raise refusal(
                "Expected a model fitted with inference=True whose fit did not say that there are no standard errors: "
                "they are part of the plan, and cannot be had afterwards."
            )
        return found

    def _title(self) -> str:
        privacy = getattr(self, "privacy_", None)
        told = "" if privacy is None else f", {privacy.n_users:,} {privacy.unit}s, epsilon {privacy.epsilon:g}"
        told += "" if privacy is None else f", delta {privacy.delta:.2g}"
        return f"{type(self).__name__}{told}"
