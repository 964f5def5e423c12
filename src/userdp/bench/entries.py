"""Who is compared: every solver that the planner knows, by name and mode, and `auto`."""

from __future__ import annotations

from userdp.privacy.accounting import Budget
from userdp.solvers.choose import Option, choose, consider, needs
from userdp.solvers.problem import Problem
from userdp.solvers.registry import SOLVERS

AUTO = "auto"
_PAPER = ":paper"


def entries() -> list[str]:
    """All names: `auto`, then solvers as `phased-sgd` (tight) or `phased-sgd:paper`."""
    return [AUTO, *(name if mode == "tight" else f"{name}:{mode}" for name, mode in SOLVERS)]


def solver_and_mode(entry: str) -> tuple[str, str]:
    """
    >>> solver_and_mode("accelerated:paper"), solver_and_mode("auto")
    (('accelerated', 'paper'), ('auto', 'tight'))
    """
    return (entry.removesuffix(_PAPER), "paper") if entry.endswith(_PAPER) else (entry, "tight")


def fits_gradients(entry: str) -> bool:
    """Whether its plan depends on a limit on gradients; if not, one run serves for all limits."""
    return entry == AUTO or SOLVERS[solver_and_mode(entry)].fits_gradients


def option_of(
    entry: str, problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> Option:
    """The entry's plan, or its refusal."""
    solver, mode = solver_and_mode(entry)
    if entry != AUTO:
        return consider(solver, mode, problem, n_users, rows_per_user, budget, max_gradients)
    try:
        return choose(problem, n_users, rows_per_user, budget, max_gradients=max_gradients)
    except ValueError as error:
        return Option(solver, mode, refusal=error.with_traceback(None))


def refusal_of(option: Option) -> dict[str, object]:
    """What is kept of an option that will not do."""
    return {"refusal": needs(option), "enough_users": option.enough_users}
