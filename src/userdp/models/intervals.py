"""Standard errors and intervals of released weights, as a table and as numbers."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from userdp.privacy.statement import Statement
from userdp.solvers.inference import DEFAULT_FRACTION, RESOLVED
from userdp.solvers.planner import two_digits
from userdp.solvers.solver import Uncertainty

_LEAST_PART = 1e-6  # of a budget: noise of less would hide anything
_LABEL = 28  # characters of a name in the table
_FAR_MORE, _NAMED = 30.0, 5  # times as many users, beyond which no number is named; columns that are
_CATCH_ALL = "=(other)"
_WARNED = 4.0  # times as many users: from then on a fit warns
_TOTAL_ERROR = 0.015  # standard deviation of the mean prediction, relative to it: two of them are 3%


def fraction_of(inference: Any, default: float = DEFAULT_FRACTION) -> float | None:
    """The part of the budget that a parameter `inference` asks for, if True the `default`; None for none."""
    if isinstance(inference, bool | np.bool_):
        return default if inference else None
    if isinstance(inference, int | float | np.number) and _LEAST_PART <= inference <= 1 - _LEAST_PART:
        return float(inference)
    raise ValueError(
        f"Expected inference={inference!r} to be True, False, or a part of the budget from {_LEAST_PART:g} to "
        f"{1 - _LEAST_PART:g}: True takes {default:g}. Nothing was spent."
    )


@dataclass(frozen=True, eq=False)
class Summary:
    """A table of weights, or of what else was estimated, with their standard errors; `print` shows it.

    noise_share: which part of a weight's variance is privacy's noise; the rest comes from who was sampled; what: the
    heading of the weights; note: what else is to be said of them.
    """

    names: tuple[str, ...]
    coef: np.ndarray
    std_err: np.ndarray
    z: np.ndarray
    conf_int: np.ndarray
    noise_share: np.ndarray
    level: float
    title: str
    what: str = "coef"
    note: str = ""

    def __str__(self) -> str:
        low = f"[{(1 - self.level) / 2:.3g}"
        high = f"{(1 + self.level) / 2:.3g}]"
        head = f"{'':<{_LABEL}}{self.what:>11}{'std err':>11}{'z':>9}{low:>11}{high:>11}{'noise':>8}{'sampling':>10}"
        lines = [self.title, "=" * len(head), head, "-" * len(head)]
        for k, name in enumerate(self.names):
            shown = name if len(name) < _LABEL else name[: _LABEL - 2] + "…"
            numbers = f"{self.coef[k]:>11.4g}{self.std_err[k]:>11.3g}{self.z[k]:>9.2f}"
            ends = f"{self.conf_int[k, 0]:>11.4g}{self.conf_int[k, 1]:>11.4g}"
            parts = f"{self.noise_share[k]:>8.0%}{1 - self.noise_share[k]:>10.0%}"
            lines.append(f"{shown:<{_LABEL}}{numbers}{ends}{parts}")
        parts = "noise, sampling: parts of the variance that privacy and the choice of users have; clustered by user."
        return "\n".join([*lines, "=" * len(head), parts, *([self.note] if self.note else [])])

    __repr__ = __str__

    @staticmethod
    def of(
        names: Any, values: np.ndarray, noise: np.ndarray, sampling: np.ndarray, level: float, title: str, **more: Any
    ) -> Summary:
        """The table of values with these variances; more: `what`, `note`, and `freedom`, the degrees of Student's t."""
        if not (isinstance(level, int | float | np.number) and 0 < level < 1):
            raise ValueError(f"Expected 0 < level={level!r} < 1, such as 0.95.")
        variances = noise + sampling
        errors = np.sqrt(variances)
        with np.errstate(divide="ignore", invalid="ignore"):
            z, share = values / errors, np.where(variances > 0, noise / variances, 0.0)
        freedom = more.pop("freedom", None)
        reach = errors * (ndtri((1 + level) / 2) if freedom is None else stdtrit(freedom, (1 + level) / 2))
        ends = np.column_stack([values - reach, values + reach])
        return Summary(tuple(map(str, names)), values, errors, z, ends, share, float(level), title, **more)


class Intervals:
    """What a fitted estimator of one output reports of its weights, where `inference` was asked for."""

    coef_: np.ndarray
    intercept_: Any
    uncertainty_: Uncertainty | None
    privacy_: Statement
    notes_: tuple[str, ...]

    @property
    def cov_(self) -> np.ndarray:
        """Covariance of the coefficients, the intercept last, if there is one: privacy's noise and sampling."""
        return self._known_uncertainty(AttributeError).covariance

    def conf_int(self, level: float = 0.95) -> np.ndarray:
        """Confidence intervals: a row (low, high) for each coefficient, the intercept last, if there is one.

        They cover what the same fit would find without noise on all users there could be: the minimum of the expected
        loss. They are about the fit's estimates; `coef_` are other numbers where noise hides some of these
        (`unresolved_`), and are drawn towards 0. Post-processing of the release: it costs no budget.
        """
        return self.summary(level).conf_int

    def summary(self, level: float = 0.95) -> Summary:
        """A table of coefficients, standard errors, z, intervals, and which part of the variance is privacy's noise.

        Its fields are arrays; `print` shows it as a table.

        >>> from userdp import LogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> users, X = np.repeat(np.arange(4000), 3), rng.normal(size=(12_000, 2))
        >>> y = rng.random(12_000) < 1 / (1 + np.exp(-X[:, 0]))
        >>> model = LogisticRegression(8.0, max_rows_per_user=3, inference=True).fit(X, y, groups=users)
        >>> model.summary().names
        ('x0', 'x1', '(intercept)')
        >>> model.conf_int(level=0.9).shape, model.cov_.shape
        ((3, 2), (3, 3))
        """
        found = self._known_uncertainty(ValueError)
        coef = np.atleast_2d(self.coef_)[0]
        names = names_of(self, len(coef))
        if len(found.noise) > len(coef):
            coef, names = np.append(coef, np.atleast_1d(self.intercept_)), [*names, "(intercept)"]
        if found.shrunk is not None:
            coef = coef + found.shrunk
        affected = self.privacy_.affected_users
        notes = [*([] if affected is None else [affected.in_words(self.privacy_.word)]), *self.notes_]
        note = "\n".join(textwrap.fill(words, 100) for words in notes)
        title = title_of(type(self).__name__, self.privacy_)
        return Summary.of(names, coef, np.diag(found.noise), np.diag(found.sampling), level, title, note=note)

    def _known_uncertainty(self, refusal: type[Exception]) -> Uncertainty:
        found: Uncertainty | None = getattr(self, "uncertainty_", None)
        if found is None:
            if getattr(self, "inference", False):
                raise refusal("Expected a fit with standard errors: this one's warning, result_.message, says why not.")
            raise refusal(
                "Expected a model fitted with inference=True: standard errors are part of the plan, and cannot be had "
                "afterwards."
            )
        return found


def names_of(estimator: Any, n_features: int) -> list[str]:
    """The names of the features that an estimator saw, or x0, x1 and so on."""
    return [str(name) for name in getattr(estimator, "feature_names_in_", map("x{}".format, range(n_features)))]


def unresolved_columns(names: list[str], errors: np.ndarray | None, n_users: int) -> dict[str, int | None]:
    """Columns whose coefficients noise hides by these errors, and about how many users would resolve them.

    None if far more would: noise falls as the number of users grows.
    """
    errors = np.empty(0) if errors is None else errors
    more = {name: error / RESOLVED for name, error in zip(names, errors, strict=False) if error > RESOLVED}
    return {name: two_digits(n_users * times) if times < _FAR_MORE else None for name, times in more.items()}


def far_from_resolved(unresolved: dict[str, int | None], n_users: int) -> dict[str, int | None]:
    """Those of them that `fit` warns of: noise is not merely as large as a moderate coefficient, but much larger.

    Levels for all that was not declared, which hardly anybody has as a rule, are left out.
    """
    named = {name: users for name, users in unresolved.items() if not name.endswith(_CATCH_ALL)}
    return {name: users for name, users in named.items() if users is None or users > _WARNED * n_users}


def notes_on(unresolved: dict[str, int | None], total_error: float, budget: Statement) -> tuple[str, ...]:
    """What noise hides of a fitted model, a sentence or two on each."""
    found = []
    if unresolved:
        named, unnamed = ", ".join(list(unresolved)[:_NAMED]), len(unresolved) - _NAMED
        named += f" and {unnamed} more" * (unnamed > 0)
        users = sorted(users for users in unresolved.values() if users is not None)
        remedy = "far more users would be needed, if these columns vary at all"
        if users:
            several = f" to {users[-1]:,}" * (users[-1] > users[0])
            times = users[-1] / budget.n_users
            epsilon = f"{budget.epsilon * times:.2g}"
            remedy = f"about {users[0]:,}{several} users, or an epsilon from about {epsilon} on, would "
            remedy += "do" + ", but not for all of them" * (len(users) < len(unresolved))
        found.append(
            f"At epsilon={budget.epsilon:g} noise hides the coefficients of {named}: they are shrunk towards 0 or "
            f"uncertain; {remedy}."
        )
    if total_error > _TOTAL_ERROR:
        found.append(
            f"The mean prediction may be off by about {min(2 * total_error, 1.0):.0%}, because of noise, and too low "
            "where outcomes are skewed, because large ones are clipped: have more users or a larger epsilon for totals."
        )
    return tuple(found)


def title_of(what: str, privacy: Statement) -> str:
    """What was estimated, of how many users and at which budget."""
    return f"{what}, {privacy.n_users:,} {privacy.word}s, epsilon {privacy.epsilon:g}, delta {privacy.delta:.2g}"
