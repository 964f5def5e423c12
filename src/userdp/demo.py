"""A private logistic regression on generated users, from plan to ledger: `python -m userdp.demo`.

Every user has some rows whose features lean towards that user's own taste. The model is trained by accelerated gradient
steps on private means of the users' gradients: no single user, with all their rows, can move the result noticeably.
"""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from userdp.data import UserData
from userdp.losses import logistic
from userdp.planning import plan_means
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.statistics import MeanGradient

STEPS = 40


def generate(n_users: int, n_features: int, seed: int) -> UserData:
    """Users with 5 to 40 rows each; labels follow one logistic model, features and labels have a taste of the user."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(0).normal(0, 1.2, n_features) / np.sqrt(n_features / 4)
    counts = rng.integers(5, 41, n_users)
    users = np.repeat(np.arange(n_users), counts)
    taste = rng.normal(0, 0.15, (n_users, n_features))
    rows = np.clip(rng.normal(0, 0.5, (len(users), n_features)) + taste[users], -1, 1)
    chance = 1 / (1 + np.exp(-(rows @ truth) - 0.3 * rng.normal(size=n_users)[users]))
    return UserData.from_arrays(rows, rng.random(len(users)) < chance, users)


def train(curator: Curator, n_features: int, row_norm: float) -> np.ndarray:
    """Accelerated gradient steps; all it ever sees of the data are the curator's releases."""
    weights = momentum = np.zeros(n_features)
    (radius,) = curator.release("radius", MeanGradient(logistic, weights), 2 * logistic.lipschitz(row_norm))
    step_size = 1 / logistic.smoothness(row_norm)
    for step in track(range(STEPS), "training privately", console=Console(stderr=True), transient=True):
        gradient = curator.release("mean", MeanGradient(logistic, momentum), 1.5 * radius)
        previous, weights = weights, momentum - step_size * gradient
        momentum = weights + step / (step + 3) * (weights - previous)
    return weights


def train_openly(data: UserData, row_norm: float) -> np.ndarray:
    """The same steps with exact gradients: what privacy is compared with."""
    weights = momentum = np.zeros(data.n_features)
    users = np.arange(data.n_users)
    for step in range(10 * STEPS):
        gradient = MeanGradient(logistic, momentum)(data, users, data.n_users).mean(axis=0)
        previous, weights = weights, momentum - 1 / logistic.smoothness(row_norm) * gradient
        momentum = weights + step / (step + 3) * (weights - previous)
    return weights


def scores(weights: np.ndarray, data: UserData) -> tuple[float, float]:
    """Log loss and accuracy on rows."""
    margins = (2 * data.targets - 1) * (data.rows @ weights)
    return float(np.mean(np.logaddexp(0, -margins))), float(np.mean((np.sign(margins) + 1) / 2))


def main(n_users: int = 20_000, n_features: int = 20) -> None:
    """Train, compare with the model that protects nobody, and show what was promised and spent."""
    console = Console()
    budget = Budget(1.0, 1e-6)
    data, held_out = generate(n_users, n_features, seed=1), generate(n_users // 4, n_features, seed=2)
    ledger = Ledger(budget)
    started = time.perf_counter()
    curator = Curator(data, plan_means(n_users, budget, STEPS), ledger, purpose="demo")
    row_norm = float(np.sqrt(n_features) / 2)  # a public guess: it decides the step size, not privacy
    weights = train(curator, n_features, row_norm)
    seconds = time.perf_counter() - started
    table = Table("model", "log loss", "accuracy", title=f"{n_users:,} generated users, scored on other users")
    for name, w in (
        ("knows nothing", np.zeros(n_features)),
        (f"private, epsilon={budget.epsilon:g}, delta={budget.delta:g}", weights),
        ("protects nobody", train_openly(data, row_norm)),
    ):
        table.add_row(name, *(f"{score:.4f}" for score in scores(w, held_out)))
    console.print(table)
    (charge,) = ledger.charges()
    console.print(
        f"Trained in {seconds:.1f} s. Spent epsilon={ledger.spent_epsilon():.4f} at delta={budget.delta:g} on:"
    )
    for step in charge.steps:
        console.print(f"  {step.label}: {step.mechanism.split('(')[0]} on users {step.start} to {step.stop - 1}")


if __name__ == "__main__":
    main()
