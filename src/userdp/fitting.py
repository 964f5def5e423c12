"""One call from data to weights: plan, certify, charge, solve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from userdp.data import UserData
from userdp.domains import Domain
from userdp.losses import Loss
from userdp.losses import loss as loss_of_name
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator, Engine
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import check_counts
from userdp.solvers import accelerated, phased_sgd
from userdp.solvers.accelerated_paper import plan_paper_accelerated
from userdp.solvers.accelerated_tight import plan_accelerated
from userdp.solvers.phased_sgd_paper import plan_paper_phased_sgd
from userdp.solvers.phased_sgd_tight import plan_phased_sgd
from userdp.solvers.problem import Problem, Result


@dataclass(frozen=True)
class Solver:
    """How to plan from public numbers and carry the plan out; whether that fits a number of gradients, or a penalty."""

    plan: Callable[..., Any]
    run: Callable[..., Result]
    fits_gradients: bool = False
    penalizes: bool = False


SOLVERS = {
    ("accelerated", "tight"): Solver(plan_accelerated, accelerated.run, fits_gradients=True, penalizes=True),
    ("accelerated", "paper"): Solver(plan_paper_accelerated, accelerated.run, penalizes=True),
    ("phased-sgd", "tight"): Solver(plan_phased_sgd, phased_sgd.run),
    ("phased-sgd", "paper"): Solver(plan_paper_phased_sgd, phased_sgd.run),
}


def find_solver(solver: str, mode: str) -> Solver:
    """The solver of this name and mode, or an error that lists them."""
    if (solver, mode) not in SOLVERS:
        names = ", ".join(f'solver="{name}", mode="{kind}"' for name, kind in SOLVERS)
        raise ValueError(f"Expected one of {names}; got solver={solver!r}, mode={mode!r}.")
    return SOLVERS[solver, mode]


def minimize(
    loss: Loss | str,
    data: UserData,
    domain: Domain,
    epsilon: float,
    delta: float,
    *,
    row_norm: float,
    rows_per_user: int,
    target_bound: float | None = None,
    prediction_scale: float | None = None,
    solver: str = "phased-sgd",
    mode: str = "tight",
    max_gradients: int | None = None,
    l2: float = 0.0,
    warm_start: np.ndarray | None = None,
    ledger: Ledger | None = None,
    engine: Engine | None = None,
    purpose: str = "minimize",
    progress: bool | None = None,
    insecure_seed: int | None = None,
) -> Result:
    """Weights in `domain` with small expected loss, private for every user.

    rows_per_user: the cap the data was loaded with (`max_rows_per_user`), or how many rows users typically have;
    row_norm, target_bound, prediction_scale: see `Problem`. All are public: they decide accuracy, not privacy.
    solver: "phased-sgd" makes one pass, "accelerated" several and is more accurate; max_gradients limits them.
    l2: adds l2/2 |w|^2 to the mean loss; warm_start: public weights to begin at, of an earlier release say.
    ledger: charged (epsilon, delta) before any data is read; a fresh one for this call if None.
    progress: show a bar; None shows it on a terminal.

    Guarantee: the result is (epsilon, delta)-differentially private under replacement of one user's whole data.

    >>> import numpy as np
    >>> from userdp import Ball, UserData
    >>> rng = np.random.default_rng(0)
    >>> users, X = np.repeat(np.arange(2000), 10), rng.uniform(-1, 1, (20000, 2))
    >>> data = UserData.from_arrays(X, X[:, 0] > X[:, 1], users)
    >>> result = minimize("logistic", data, Ball(10.0), 2.0, 1e-6, row_norm=1.5, rows_per_user=10)
    >>> bool(result.weights[0] > 0 > result.weights[1]), result.halted
    (True, False)
    """
    if not isinstance(data, UserData):
        raise TypeError(
            f"Expected data to be UserData, got {type(data).__name__}: use UserData.from_arrays or .from_table."
        )
    if not data.has_targets:
        raise ValueError("Expected data with targets: pass y=, or target=, when loading. Nothing was spent.")
    if not hasattr(domain, "project"):
        raise TypeError(f"Expected domain to be a Ball or a Box, got {domain!r}: use Ball(10.0), say.")
    if max_gradients is not None:
        check_counts(max_gradients=max_gradients)
    chosen, budget = find_solver(solver, mode), Budget(epsilon, delta)
    if isinstance(loss, str):
        loss = loss_of_name(loss)
    problem = Problem(loss, domain, data.n_features, row_norm, target_bound, prediction_scale, warm_start, l2)
    if l2 and not chosen.penalizes:
        raise ValueError(f'Expected l2={l2} to be 0 for solver="{solver}": use solver="accelerated".')
    limit = {"max_gradients": max_gradients} if chosen.fits_gradients else {}
    plan = chosen.plan(problem, data.n_users, rows_per_user, budget, **limit)
    if max_gradients is not None and plan.n_gradients > max_gradients:
        raise ValueError(
            f"Expected max_gradients={max_gradients} >= {plan.n_gradients}, one for each row that users may have: this "
            "solver makes one pass. Nothing was spent."
        )
    curator = Curator(
        data, plan.plan, ledger or Ledger(budget), purpose=purpose, engine=engine, insecure_seed=insecure_seed
    )
    with _bar(progress) as tell:
        return chosen.run(problem, plan, curator, tell)


def _bar(wanted: bool | None) -> AbstractContextManager[phased_sgd.Progress | None]:
    console = Console(stderr=True, force_terminal=wanted)
    return _Bar(console) if (console.is_terminal if wanted is None else wanted) else nullcontext()


class _Bar(AbstractContextManager[phased_sgd.Progress]):
    """A progress bar that is told which step begins."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)

    def __enter__(self) -> phased_sgd.Progress:
        self._progress.start()
        task = self._progress.add_task("planning", total=None)

        def tell(label: str, done: int, total: int) -> None:
            self._progress.update(task, description=label, completed=done, total=total)

        return tell

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
