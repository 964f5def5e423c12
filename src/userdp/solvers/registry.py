"""Every solver by its name and mode: where it is, and what it can do. Modules are loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from userdp.privacy.accounting import Budget
from userdp.solvers.base import SolverPlan, any_number_of_users
from userdp.solvers.problem import Problem


@dataclass(frozen=True)
class Solver:
    """A planner, "module:function"; the module also has `feasible` unless any number of users will do.

    `fits_gradients`: whether a plan can be fitted into a number of gradients; `penalizes`: whether l2 may be > 0;
    `baseline`: earlier work, here to compare with: by name only, `solver="auto"` never takes it; `refines`: whether
    what it expects of the excess risk is renewed by what a run released; `pure`: whether it can do without delta.
    """

    planner: str
    fits_gradients: bool = False
    penalizes: bool = False
    baseline: bool = False
    refines: bool = False
    pure: bool = False

    @property
    def _module(self) -> ModuleType:
        return import_module(f"userdp.{self.planner.split(':')[0]}")

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


def _baseline(planner: str, fits_gradients: bool = False) -> Solver:
    return Solver(f"baselines.{planner}", fits_gradients, baseline=True)


SOLVERS = {
    ("accelerated", "tight"): Solver("solvers.accelerated:plan_accelerated", fits_gradients=True, penalizes=True),
    ("whitened-clip", "tight"): Solver(
        "solvers.whitened_clip:plan_whitened_clip", fits_gradients=True, penalizes=True, refines=True, pure=True
    ),
    ("phased-sgd", "tight"): Solver("solvers.phased_sgd:plan_phased_sgd", penalizes=True),
    ("asi-liu", "tight"): _baseline("asi_liu:plan_asi_liu", fits_gradients=True),
    ("example-level", "tight"): _baseline("example_level:plan_example_level", fits_gradients=True),
    ("dp-fedavg", "tight"): _baseline("fedavg:plan_fedavg", fits_gradients=True),
    ("accelerated", "paper"): Solver(
        "baselines.accelerated_paper:plan_paper_accelerated", fits_gradients=True, penalizes=True
    ),
    ("phased-sgd", "paper"): Solver("baselines.phased_sgd_paper:plan_paper_phased_sgd"),
    ("disjoint-batches", "tight"): _baseline("disjoint_batches:plan_disjoint_batches"),
    ("group-privacy", "tight"): _baseline("group_privacy:plan_group_privacy"),
    ("bassily-sun", "tight"): _baseline("bassily_sun:plan_bassily_sun", fits_gradients=True),
    ("levy", "tight"): _baseline("levy:plan_levy", fits_gradients=True),
    ("bassily-sun-local", "tight"): _baseline("bassily_sun_local:plan_bassily_sun_local"),
}
