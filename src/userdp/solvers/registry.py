"""Every solver by its name and mode: where it is, and what it can do. Modules are loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from userdp.privacy.accounting import Budget
from userdp.solvers.plans import any_number_of_users
from userdp.solvers.problem import Problem, Result


@dataclass(frozen=True)
class Solver:
    """A module with a planner, and perhaps another one that carries plans out.

    `planner` is "module:function", where the module also has `feasible` unless any number of users will do; `runner` is
    the module that has `run`, the planner's if it is empty.

    `fits_gradients`: whether a plan can be fitted into a number of gradients; `penalizes`: whether l2 may be > 0;
    `baseline`: earlier work, here to compare with: by name only, `solver="auto"` never takes it; `refines`: whether
    what it expects of the excess risk is renewed by what a run released.
    """

    planner: str
    runner: str = ""
    fits_gradients: bool = False
    penalizes: bool = False
    baseline: bool = False
    refines: bool = False

    @property
    def _module(self) -> Any:
        return import_module(f"userdp.{self.planner.split(':')[0]}")

    @property
    def plan(self) -> Callable[..., Any]:
        """From public numbers to a certified plan."""
        planner: Callable[..., Any] = getattr(self._module, self.planner.split(":")[1])
        return planner

    @property
    def feasible(self) -> Callable[[Problem, int, int, Budget], bool]:
        """Whether there are users enough for a plan."""
        test: Callable[[Problem, int, int, Budget], bool] = getattr(self._module, "feasible", any_number_of_users)
        return test

    @property
    def run(self) -> Callable[..., Result]:
        """Carry a plan out."""
        module = import_module(f"userdp.{self.runner}") if self.runner else self._module
        run: Callable[..., Result] = module.run
        return run


_ACCELERATED, _PHASED = "solvers.accelerated", "solvers.phased_sgd"

SOLVERS = {
    ("accelerated", "tight"): Solver(
        "solvers.accelerated_tight:plan_accelerated", _ACCELERATED, fits_gradients=True, penalizes=True
    ),
    ("whitened-clip", "tight"): Solver(
        "solvers.whitened_clip:plan_whitened_clip", fits_gradients=True, penalizes=True, refines=True
    ),
    ("phased-sgd", "tight"): Solver("solvers.phased_sgd_tight:plan_phased_sgd", _PHASED),
    ("asi-liu", "tight"): Solver("baselines.asi_liu:plan_asi_liu", _ACCELERATED, fits_gradients=True, baseline=True),
    ("example-level", "tight"): Solver(
        "baselines.example_level:plan_example_level", fits_gradients=True, baseline=True
    ),
    ("dp-fedavg", "tight"): Solver("baselines.fedavg:plan_fedavg", fits_gradients=True, baseline=True),
    ("accelerated", "paper"): Solver(
        "baselines.accelerated_paper:plan_paper_accelerated", _ACCELERATED, penalizes=True
    ),
    ("phased-sgd", "paper"): Solver("baselines.phased_sgd_paper:plan_paper_phased_sgd", _PHASED),
    ("disjoint-batches", "tight"): Solver("baselines.disjoint_batches:plan_disjoint_batches", baseline=True),
    ("group-privacy", "tight"): Solver("baselines.group_privacy:plan_group_privacy", baseline=True),
    ("bassily-sun", "tight"): Solver("baselines.bassily_sun:plan_bassily_sun", fits_gradients=True, baseline=True),
    ("bassily-sun-local", "tight"): Solver("baselines.bassily_sun_local:plan_bassily_sun_local", baseline=True),
}
