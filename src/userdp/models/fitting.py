"""One call from data to weights: plan, certify, charge, solve."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from userdp.data.users import RemoteUsers, UserData
from userdp.domains import Domain
from userdp.losses import Loss, known, weighted
from userdp.losses import loss as loss_of_name
from userdp.models.evaluating import HeldOut
from userdp.models.learned_columns import Preparation
from userdp.models.sklearn_compat import Execution, documented
from userdp.privacy.accounting import REPLACE_ONE, Budget, BudgetExceeded, budget_for, fits
from userdp.privacy.curator import Curator
from userdp.privacy.journal import Journal
from userdp.privacy.ledger import Ledger
from userdp.privacy.plan import Plan
from userdp.solvers import solver as solvers
from userdp.solvers.inference import with_intervals
from userdp.solvers.planner import NOISE_ADVICE, Option, Solver, check_delta, check_use, choose, noise_dominated
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Result
from userdp.solvers.whitened_clip import CLIPPED_ADVICE
from userdp.solvers.whitening import MOST_FEATURES
from userdp.statistics.moments import public_moment

# Noise of most coefficients, in units of what a typical residual moves predictions by. Of 72 fits of 300 to 3,000
# generated users, with four stages of whitening, 22 explained less than a quarter of what could be: 20 of these were
# warned of, and 21 of the others.
_HIDDEN = 0.12
_TRIES, _LESS = 60, 0.97  # budgets to try for a fit beside what is learned first, each that part of the one before


@documented(
    loss="A loss, or the name of one in `userdp.losses`.",
    data="Users' rows and targets.",
    domain="Where weights may be: a `Ball` or a `Box`.",
    rows_per_user="The cap that the data was loaded with (`max_rows_per_user`), or how many rows users typically have. "
    "It decides accuracy, not privacy, as the other bounds do: all are public.",
    target_bound="See `Problem`.",
    prediction_scale="See `Problem`.",
    warm_start="Public weights to begin at, of an earlier release say.",
    purpose="What the ledger says that the charge was for.",
    inference="The fraction of the budget for standard errors (`uncertainty` of the result); None for none.",
)
@np.errstate(all="ignore")
def minimize(
    loss: Loss | str,
    data: UserData | RemoteUsers,
    domain: Domain,
    epsilon: float,
    delta: float | None = None,
    *,
    rows_per_user: int,
    target_bound: float | None = None,
    prediction_scale: float | None = None,
    l2: float = 0.0,
    warm_start: np.ndarray | None = None,
    public_X: npt.ArrayLike | None = None,
    inference: float | None = None,
    solver: Solver | str = "auto",
    execution: Execution | None = None,
    ledger: Ledger | None = None,
    purpose: str = "minimize",
    insecure_seed: int | None = None,
    neighbours: str = REPLACE_ONE,
) -> Result:
    """Weights in `domain` with small expected loss, private for every user.

    Guarantee: the result is (epsilon, delta)-differentially private for neighbours of this relation: one user's whole
    data is replaced, or with "zero-out" adds nothing to any total.

    >>> import numpy as np
    >>> from userdp import Ball, UserData
    >>> rng = np.random.default_rng(0)
    >>> users, X = np.repeat(np.arange(2000), 10), rng.uniform(-1, 1, (20000, 2))
    >>> data = UserData.from_arrays(X, X[:, 0] > X[:, 1], users)
    >>> result = minimize("logistic", data, Ball(10.0), 2.0, 1e-6, rows_per_user=10)
    >>> bool(result.weights[0] > 0 > result.weights[1]), result.aborted
    (True, False)
    """
    if not isinstance(data, UserData | RemoteUsers):
        raise TypeError(
            f"Expected data to be UserData, got {type(data).__name__}: use UserData.from_arrays or .from_table."
        )
    if not isinstance(domain, Domain):
        raise TypeError(f"Expected domain to be a Ball or a Box, got {domain!r}: use Ball(10.0).")
    solver = Solver.of(solver)
    if solver.domain_radius is not None:
        raise ValueError("Expected no domain_radius of the solver beside domain: pass Ball(radius) as domain.")
    bounds = {"target_bound": target_bound, "prediction_scale": prediction_scale, "warm_start": warm_start, "l2": l2}
    return fitted(
        loss_of_name(loss) if isinstance(loss, str) else loss,
        data,
        domain,
        budget_for(epsilon, delta, data.n_users, neighbours),
        rows_per_user,
        solver,
        Execution.of(execution),
        bounds=bounds,
        public_X=public_X,
        inference=inference,
        ledger=ledger,
        purpose=purpose,
        insecure_seed=insecure_seed,
    )


def fitted(
    loss: Loss,
    data: UserData | RemoteUsers,
    domain: Domain,
    budget: Budget,
    rows_per_user: int,
    solver: Solver,
    execution: Execution,
    *,
    bounds: Mapping[str, Any],
    public_X: npt.ArrayLike | None = None,
    inference: float | None = None,
    ledger: Ledger | None = None,
    purpose: str = "",
    insecure_seed: int | None = None,
    allow_weak: bool = True,
    first: Preparation | None = None,
    held_out: HeldOut | None = None,
    unit: str = "user",
) -> Result:
    """`minimize`, with what else estimators have.

    bounds: more of `Problem`; first: what is learned privately before the fit, which makes the rows to fit; held_out:
    users who are kept from training, and scored with what was found; without allow_weak a plan is refused that promises
    no useful model.

    Guarantee: the result is private as the budget says, for neighbours of its relation.
    """
    if not data.has_targets:
        raise ValueError("Expected data with targets: pass y=, or target=, when loading. Nothing was spent.")
    seed = data.insecure_seed if insecure_seed is None else insecure_seed
    allow_weak = allow_weak or seed is not None  # which spends nobody's budget
    if not allow_weak:
        check_delta(budget, data.n_users, remedy="Leave it out, or pass allow_weak=True.")
    if isinstance(data, UserData) and data.weights is not None and known(loss) is not None:
        loss = weighted(loss)  # which solvers refuse whose proofs do not speak of weights
    shape = data if first is None else first
    problem = Problem(
        loss,
        domain,
        shape.n_features,
        math.sqrt(shape.n_features) if solver.row_norm is None else solver.row_norm,
        intercept=shape.has_intercept,
        public_moment=None if public_X is None else public_moment(public_X, data, MOST_FEATURES),
        **bounds,
    )
    ledger = Ledger(budget) if ledger is None else ledger
    n_trained = data.n_users - (0 if held_out is None else held_out.n_users)
    checkpoint = execution.checkpoint
    with bar(execution.progress) as tell:

        def chosen(left: Budget) -> Option:
            return choose(problem, n_trained, rows_per_user, left, solver.name, solver.mode, solver.max_gradients)

        before, left = ([], budget) if first is None else first.planned(budget)
        after = () if held_out is None else held_out.steps(data.n_users, budget)
        for _ in range(_TRIES):
            option = (
                chosen(left)
                if inference is None
                else with_intervals(problem, n_trained, rows_per_user, left, inference, chosen)
            )
            certified = Plan(data.n_users, (*before, *option.plan.certified.steps, *after))
            if not before or all(fits(cost, budget) for cost in certified.costs):
                break
            left = replace(
                left, epsilon=_LESS * left.epsilon
            )  # tests and samples compose worse than Gaussian noise does
        else:
            raise BudgetExceeded(
                "Expected a budget with room for this solver besides what is learned first: declare the columns and "
                "target_range, or lower columns_fraction. Nothing was spent."
            )
        if not allow_weak:
            check_use(option, problem, n_trained, rows_per_user, budget, solver.max_gradients)
        curator = Curator(
            data if first is None else first.asked,
            certified,
            ledger,
            budget=budget,  # of the statement: the curator certifies that the plan is within it
            purpose=purpose,
            engine=execution.engine,
            insecure_seed=insecure_seed,
            checkpoint=checkpoint,
            unit=unit,
        )
        with closing(curator):
            if first is not None:
                curator.prepare(first.prepared(curator, certified))
            result = solvers.run(problem, option.plan, curator, tell)
            if held_out is not None:
                assert isinstance(data, UserData)
                held_out.score(curator, certified, data, result.weights)
        if isinstance(checkpoint, str | os.PathLike):  # who made a Journal ends it, and may write a file first
            Journal(checkpoint).end()
    caution = "" if problem.loss.level is None or result.aborted else option.plan.caution
    message = result.message or caution
    if message in ("", CLIPPED_ADVICE, caution) and _hidden(problem, option, result):
        message = f"{NOISE_ADVICE} {caution}".strip()
    return replace(
        result,
        message=message,
        bound=result.bound if option.refined else option.bound,
        solver=option.solver,
        mode=option.mode,
        privacy=replace(curator.statement(), affected_users=result.affected_users),
    )


def _hidden(problem: Problem, option: Option, result: Result) -> bool:
    """Whether noise hides most of what could be learned: by what was released, where that says, else by the plan."""
    if result.weight_errors is None or not math.isfinite(result.signal):
        return noise_dominated(problem, option, result.bound)
    errors = result.weight_errors[: len(result.weight_errors) - problem.intercept]
    return result.signal < 1 or (errors.size > 0 and bool(np.median(errors) > _HIDDEN))


@contextmanager
def bar(wanted: bool | None) -> Iterator[solvers.Progress | None]:
    """A progress bar, on a terminal only if `wanted` is None: what is called as each step begins, or None."""
    console = Console(stderr=True, force_terminal=wanted)
    if not (console.is_terminal if wanted is None else wanted):
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("planning", total=None)

        def tell(label: str, done: int, total: int) -> None:
            new = label != shown.tasks[task].description  # shown at once, however short the step is
            shown.update(task, description=label, completed=done, total=total, refresh=new)

        yield tell
