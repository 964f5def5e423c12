"""People who are kept from training, and scored once there is a model: `fit` with `evaluate=0.1`.

Training and evaluation are one plan on different people of the curator's random order, so nobody pays for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from userdp.data.users import UserData
from userdp.evaluation.coordinates import ScoreLayout
from userdp.evaluation.release import evaluation_steps, released_scores
from userdp.evaluation.scores import Scores
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator
from userdp.privacy.plan import Plan

_CONFIDENCE = 0.95


@dataclass(eq=False)
class HeldOut:
    """How many people are kept, a public number; what is asked of them; and rows for that, once there are weights.

    `rows(weights)` gives a row of the layout for each row of the data, made of that row and the weights alone.
    `scores` is there afterwards.
    """

    n_users: int
    layout: ScoreLayout
    rows: Callable[[np.ndarray], np.ndarray]
    scores: Scores | None = None

    def planned(self, training: Plan, n_users: int, budget: Budget) -> Plan:
        """Training on the first users of the curator's order, the evaluation on the last; certified as one plan."""
        start = n_users - self.n_users
        plan = Plan(n_users, (*training.steps, *evaluation_steps(self.layout, self.n_users, budget, start)))
        if training.n_users > start:
            raise ValueError("Expected training without the people who are kept from it.")
        plan.certify(budget)
        return plan

    def score(self, curator: Curator, plan: Plan, data: UserData, weights: np.ndarray) -> None:
        """Release the scores of the model with these weights.

        Guarantee: rows are made of the data's own and of the weights, which were released; users own as many as before.
        """
        rows = np.ascontiguousarray(self.rows(weights))
        curator.prepare(replace(data, rows=rows, has_intercept=False, has_targets=False))
        self.scores = released_scores(curator, plan, self.layout, _CONFIDENCE)
