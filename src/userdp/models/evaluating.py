"""`userdp.evaluation.evaluate`: scores of a fitted model on other users, private for whole users, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from userdp._validate import check_counts
from userdp.data.schema import positions
from userdp.data.source import Source, check_purpose
from userdp.data.users import UserData
from userdp.evaluation.coordinates import MOST_LEVELS, ScoreLayout, check_metrics
from userdp.evaluation.release import evaluation_steps, released_scores
from userdp.evaluation.row_losses import compared, kind_of, read_rows, scale_of
from userdp.evaluation.scores import Scores
from userdp.models.sklearn_compat import Execution, documented, owners, read_targets, read_weights, unit_word
from userdp.privacy.accounting import REPLACE_ONE, Budget, budget_for
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.plan import Plan, Step
from userdp.privacy.statement import COVERS_EVALUATION, Statement
from userdp.solvers.planner import check_delta

_DEFAULT = {"binary": ("log_loss", "auc", "calibration"), "classes": ("log_loss", "accuracy")}
_WITHOUT_CHANCES = {"binary": ("accuracy", "auc"), "classes": ("accuracy",)}
_OF_NUMBERS = ("mae", "rmse", "r2")


@dataclass(frozen=True)
class Evaluation(Scores):
    """Private scores with intervals, and what was guaranteed. All of it may be shown.

    scores: by name; by: the same by declared level; curve: points of the calibration curve; privacy: what was
    guaranteed and spent; purpose and source: what it is for and of which columns, as far as that was said.
    """

    privacy: Statement | None = None
    purpose: str = ""
    source: Source = field(default_factory=Source)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        assert self.privacy is not None
        return super().to_dict() | {"private": self.privacy.private, "privacy": self.privacy.to_dict()}


@documented(
    model="A fitted model: an estimator of this package, a pipeline that ends in one, or any with its methods.",
    X="Rows of users that the model was not fitted on, as `predict` takes them.",
    y="Their targets.",
    groups="The user id of each row.",
    metrics="Of two classes some of log_loss, brier, accuracy, auc, calibration (intercept and slope, and the curve); "
    "of more classes the first three; of numbers mae, mse, rmse, r2. None takes the usual ones. The fewer, the less "
    "noise in each.",
    by="A column that says which group of users, or of rows, a row belongs to: each metric is released for each group.",
    levels="All values of `by` to release scores of, at most 20: declared, not read off the data.",
    weigh='"people": each user counts once, by the mean over their rows; or "rows": each row counts once, of at most '
    "`max_rows_per_user`, which is then needed.",
    max_rows_per_user="More rows of a user are dropped at random.",
    loss_limit="The log loss, or the error in units of the target, that a row counts at most: public, and the smaller, "
    "the less noise. None takes 4 (or twice that of guessing) for classes, and the range for numbers.",
    target_range="Public lowest and highest target, where predictions and targets are cut off; None takes the model's.",
    confidence="Of intervals.",
    exposure="How much was counted in each row, of models of counts.",
)
@np.errstate(all="ignore")
def evaluate(
    model: Any,
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    epsilon: float,
    delta: float | None = None,
    metrics: Sequence[str] | None = None,
    by: Any = None,
    levels: Sequence[Any] | None = None,
    weigh: str = "people",
    max_rows_per_user: int | None = None,
    loss_limit: float | None = None,
    target_range: tuple[float, float] | None = None,
    confidence: float = 0.95,
    exposure: Any = None,
    ledger: Ledger | str | None = None,
    execution: Execution | None = None,
    privacy_unit: str = "user",
    purpose: str = "",
    insecure_seed: int | None = None,
    neighbours: str = REPLACE_ONE,
    unit: str | None = None,
) -> Evaluation:
    """How good a model is on users that it has not seen: each metric with an interval, private for whole users.

    All metrics come of one joint release of at most three clipped means. Intervals count the noise, which is known, and
    which users happen to be in the sample, which is estimated inside the same release. Rows that cannot be scored (a
    missing feature, a label that is no class, a cell that the model or a step before it fails on) count as the worst,
    and are left out of AUC and calibration. A score that noise hides, of a class or level that few users have, or that
    the bins of margins cannot resolve is NaN with the widest interval.

    Guarantee: the result is (epsilon, delta)-differentially private for `neighbours` among the users of X (one user's
    whole data is replaced, or with "zero-out" adds nothing); what the model says of those it was fitted on is not part
    of it.
    Proof: docs/proofs.md, section 30.

    >>> import numpy as np
    >>> from userdp import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> users, X = np.repeat(np.arange(6000), 3), rng.uniform(-1, 1, (18_000, 2))
    >>> y = rng.random(18_000) < 1 / (1 + np.exp(-4 * X[:, 0]))
    >>> seen = users < 3000
    >>> model = LogisticRegression(2.0, max_rows_per_user=3).fit(X[seen], y[seen], groups=users[seen])
    >>> found = evaluate(model, X[~seen], y[~seen], groups=users[~seen], epsilon=2.0)
    >>> bool(0.85 < found["auc"].value < 0.95)  # it is 0.90
    True
    """
    budget_for(epsilon, delta, 1, neighbours)  # refuses what makes no sense, before anything is read
    engine = Execution.of(execution).without("evaluate", "checkpoint").engine
    check_purpose(purpose)
    word = unit_word(privacy_unit, unit)
    if groups is None:
        owners(None, privacy_unit, 0)  # says that they are missing, before anything else is wrong
    layout = evaluation_layout(
        model,
        metrics,
        levels=levels,
        has_by=by is not None,
        weigh=weigh,
        max_rows_per_user=max_rows_per_user,
        loss_limit=loss_limit,
        target_range=target_range,
        confidence=confidence,
    )
    n_rows = len(y) if hasattr(y, "__len__") else 0
    y = read_targets(y, n_rows)
    exposed = None if exposure is None else read_weights("exposure", exposure, n_rows)
    read = read_rows(model, X, y)
    if by is not None and (isinstance(by, str) or not (hasattr(by, "__len__") and len(by) == n_rows)):
        raise ValueError('Expected by with one value per row of X, in one dimension: the column itself, X["city"] say.')
    own = None if by is None else positions("by", by, list(layout.levels))
    places = row_places(n_rows, owners(groups, privacy_unit, n_rows), max_rows_per_user, insecure_seed)

    def rows() -> np.ndarray:
        return layout.rows(compared(model, *read, layout.scale, exposed), own)

    budget = budget_for(epsilon, delta, places.n_users, neighbours)
    opened = Ledger.open(ledger) if isinstance(ledger, str) else ledger
    run: dict[str, Any] = {"engine": engine, "insecure_seed": insecure_seed, "unit": word}
    source = Source.of(y, groups)
    return evaluate_users(places, rows, layout, budget, confidence, opened, purpose=purpose, source=source, **run)


def usual_metrics(model: Any) -> tuple[str, ...]:
    """What is usually asked of a model of this kind, and it has."""
    return (_DEFAULT if hasattr(model, "predict_proba") else _WITHOUT_CHANCES).get(kind_of(model), _OF_NUMBERS)


def evaluation_layout(
    model: Any,
    metrics: Sequence[str] | None,
    *,
    levels: Sequence[Any] | None = None,
    has_by: bool = False,
    weigh: str = "people",
    max_rows_per_user: int | None = None,
    loss_limit: float | None = None,
    target_range: tuple[float, float] | None = None,
    confidence: float = 0.95,
) -> ScoreLayout:
    """What is asked of a fitted model, checked by public facts alone."""
    check_is_fitted(model)
    kind, probabilities = kind_of(model), hasattr(model, "predict_proba")
    asked = check_metrics(usual_metrics(model) if metrics is None else metrics, kind, probabilities)
    if has_by != (levels is not None):
        raise ValueError(
            "Expected by, a column, together with levels, its values to report scores of: they are declared, because "
            "reading them off the data would reveal users who have rare ones. Nothing was spent."
        )
    found = () if levels is None else tuple(levels)
    if levels is not None and not 1 <= len(set(found)) == len(found) <= MOST_LEVELS:
        raise ValueError(f"Expected 1 to {MOST_LEVELS} different levels, got {len(found)}. Nothing was spent.")
    if weigh not in ("people", "rows"):
        raise ValueError(f'Expected weigh={weigh!r} to be "people" or "rows".')
    if weigh == "rows" and max_rows_per_user is None:
        raise ValueError(
            'Expected max_rows_per_user with weigh="rows": how many rows of a user count at most. Nothing was spent.'
        )
    if max_rows_per_user is not None:
        (max_rows_per_user,) = check_counts(max_rows_per_user=max_rows_per_user)
    if not (isinstance(confidence, float) and 0 < confidence < 1):
        raise ValueError(f"Expected 0 < confidence={confidence} < 1.")
    scale = scale_of(model, loss_limit, target_range)
    return ScoreLayout(kind, asked, scale, found, max_rows_per_user if weigh == "rows" else None)


def row_places(n_rows: int, owners: Any, max_rows_per_user: int | None, insecure_seed: int | None) -> UserData:
    """Whose row is whose, and no cell of it: one column, where a row stands among all that were passed."""
    places = np.arange(n_rows, dtype=np.float64)[:, None]
    return UserData.from_arrays(places, None, owners, max_rows_per_user=max_rows_per_user, insecure_seed=insecure_seed)


def evaluate_users(
    places: UserData,
    rows: Callable[[], np.ndarray],
    layout: ScoreLayout,
    budget: Budget,
    confidence: float,
    ledger: Ledger | None = None,
    *,
    purpose: str = "",
    source: Source,
    insecure_seed: int | None = None,
    **run: Any,
) -> Evaluation:
    """The same of users whose rows stand at these places in `rows()`, the layout's, which is called after the charge.

    Predictions take longer where steps before the model fail on a cell: nothing that is written at the charge may
    depend on that.
    """
    check_delta(budget, places.n_users, insecure_seed)
    plan = Plan(places.n_users, evaluation_steps(layout, places.n_users, budget))
    ledger = Ledger(budget) if ledger is None else ledger
    entry = source.entry(purpose, "evaluate")
    curator = Curator(places, plan, ledger, budget=budget, purpose=entry, insecure_seed=insecure_seed, **run)
    own = places.rows[:, 0].astype(np.int64)
    curator.prepare(replace(places, rows=np.ascontiguousarray(rows()[own])))
    scores = released_scores(curator, plan, layout, confidence)
    guarantee = replace(curator.statement(), covers=COVERS_EVALUATION)
    return Evaluation(**vars(scores), privacy=guarantee, purpose=purpose, source=source)


@dataclass(eq=False)
class HeldOut:
    """Users who are kept from training, and scored once there is a model: `fit` with `evaluate=0.1`.

    Training and evaluation are one plan on different users of the curator's random order: nobody pays for both. How
    many are kept is public, `layout` is what is asked of them, and `rows` are made for that once there are weights.

    `rows(weights)` gives a row of the layout for each row of the data, made of that row and the weights alone.
    `scores` is there afterwards.
    """

    n_users: int
    layout: ScoreLayout
    rows: Callable[[np.ndarray], np.ndarray]
    scores: Scores | None = None

    def steps(self, n_users: int, budget: Budget) -> tuple[Step, ...]:
        """The evaluation, on the last users of the curator's order; training is on those before them."""
        return evaluation_steps(self.layout, self.n_users, budget, start=n_users - self.n_users)

    def score(self, curator: Curator, plan: Plan, data: UserData, weights: np.ndarray) -> None:
        """Release the scores of the model with these weights.

        Guarantee: rows are made of the data's own and of the weights, which were released; users own as many as before.
        """
        rows = np.ascontiguousarray(self.rows(weights))
        curator.prepare(replace(data, rows=rows, has_intercept=False, has_targets=False))
        self.scores = released_scores(curator, plan, self.layout, 0.95)
