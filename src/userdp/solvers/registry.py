"""Every solver by its name and mode: where it is, and what it can do. Modules are loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from userdp.privacy.accounting import Budget
from userdp.solvers.base import SolverPlan, any_number_of_users
from userdp.solvers.problem import Problem


@dataclass(frozen=True)
class Solver:
    """A planner, "module:function"; the module also has `feasible` unless any number of users will do.

    `fits_gradients`: whether a plan can be fitted into a number of gradients; `penalizes`: whether l2 may be > 0;
    `baseline`: to compare with, by name only; `plan` shows it when asked for baselines; `refines`: whether what it
    expects of the excess risk is renewed by what a run released; `pure`: whether it can do without delta;
    `most_canaries`: how many planted users at most, with a feature each, its plan for some thousand users has room for.
    """

    planner: str
    fits_gradients: bool = False
    penalizes: bool = False
    baseline: bool = False
    refines: bool = False
    pure: bool = False
    most_canaries: int = 192

    @property
    def _module(self) -> ModuleType:
        return import_module(self.planner.split(":")[0])

    @property
    def plan(self) -> Callable[..., SolverPlan]:
        """From public numbers to a certified plan."""
        planner: Callable[..., SolverPlan] = getattr(self._module, self.planner.split(":")[1])
        return planner

    @property
    def feasible(self) -> Callable[[Problem, int, int, Budget], bool]:
        """Whether there are users enough for a plan."""
        test: Callable[[Problem, int, int, Budget], bool] = getattr(self._module, "feasible", any_number_of_users)
        return test


SOLVERS = {
    ("accelerated", "tight"): Solver("userdp.paper.accelerated:plan_accelerated", fits_gradients=True, penalizes=True),
    ("whitened-clip", "tight"): Solver(
        "userdp.solvers.whitened_clip:plan_whitened_clip", fits_gradients=True, penalizes=True, refines=True, pure=True
    ),
    ("phased-sgd", "tight"): Solver("userdp.paper.phased_sgd:plan_phased_sgd", penalizes=True),
    ("accelerated", "paper"): Solver(
        "userdp.paper.accelerated_paper:plan_paper_accelerated", fits_gradients=True, penalizes=True, most_canaries=8
    ),
    ("phased-sgd", "paper"): Solver("userdp.paper.phased_sgd_paper:plan_paper_phased_sgd", most_canaries=8),
}
WORDS: dict[str, str] = {}
ATTACKS: list[Callable[[Budget], list[Any]]] = []


def register(
    solvers: Mapping[tuple[str, str], Solver],
    words: Mapping[str, str] | None = None,
    attacks: Callable[[Budget], list[Any]] | None = None,
) -> None:
    """Make solvers of another package known to estimators, `plan` and the audit, for as long as the process lasts.

    solvers: by name and mode; `solver="auto"` takes none of them; words: for each kind of mechanism that they bring, a
    sentence of reports; attacks: from a budget to the audit's pairs (`userdp.auditing.pairs.Pair`) on these mechanisms.

    Guarantee: nothing here prices or releases anything. A solver's plan is certified, charged and carried out by the
    curator as any other; a mechanism of its own is as private as its record's `cost` says.
    """
    for key, solver in solvers.items():
        if SOLVERS.get(key, solver) != solver:
            raise ValueError(f"Expected solver={key[0]!r}, mode={key[1]!r} to be a new one: it is known already.")
    SOLVERS.update(solvers)
    WORDS.update(words or {})
    if attacks is not None and attacks not in ATTACKS:
        ATTACKS.append(attacks)
