"""Every solver by its name and mode: how it is planned and run, and what it can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from userdp.privacy.accounting import Budget
from userdp.solvers import (
    accelerated,
    accelerated_paper,
    accelerated_tight,
    asi_liu,
    bassily_sun,
    bassily_sun_local,
    disjoint_batches,
    example_level,
    fedavg,
    group_privacy,
    phased_sgd,
    phased_sgd_paper,
    phased_sgd_tight,
    whitened_clip,
)
from userdp.solvers.plans import any_number_of_users
from userdp.solvers.problem import Problem, Result


@dataclass(frozen=True)
class Solver:
    """How to plan from public numbers and carry the plan out, and whether there are users enough for that.

    `fits_gradients`: whether a plan can be fitted into a number of gradients; `penalizes`: whether l2 may be > 0;
    `rival`: earlier work, here to compare with: by name only, `solver="auto"` never takes it; `refines`: whether
    what it expects of the excess risk is renewed by what a run released.
    """

    plan: Callable[..., Any]
    feasible: Callable[[Problem, int, int, Budget], bool]
    run: Callable[..., Result]
    fits_gradients: bool = False
    penalizes: bool = False
    rival: bool = False
    refines: bool = False


SOLVERS = {
    ("accelerated", "tight"): Solver(
        accelerated_tight.plan_accelerated,
        accelerated_tight.feasible,
        accelerated.run,
        fits_gradients=True,
        penalizes=True,
    ),
    ("whitened-clip", "tight"): Solver(
        whitened_clip.plan_whitened_clip,
        any_number_of_users,
        whitened_clip.run,
        fits_gradients=True,
        penalizes=True,
        refines=True,
    ),
    ("phased-sgd", "tight"): Solver(phased_sgd_tight.plan_phased_sgd, phased_sgd_tight.feasible, phased_sgd.run),
    ("asi-liu", "tight"): Solver(
        asi_liu.plan_asi_liu, asi_liu.feasible, accelerated.run, fits_gradients=True, rival=True
    ),
    ("example-level", "tight"): Solver(
        example_level.plan_example_level, any_number_of_users, example_level.run, fits_gradients=True, rival=True
    ),
    ("dp-fedavg", "tight"): Solver(
        fedavg.plan_fedavg, any_number_of_users, fedavg.run, fits_gradients=True, rival=True
    ),
    ("accelerated", "paper"): Solver(
        accelerated_paper.plan_paper_accelerated, accelerated_paper.feasible, accelerated.run, penalizes=True
    ),
    ("phased-sgd", "paper"): Solver(
        phased_sgd_paper.plan_paper_phased_sgd,
        lambda problem, *numbers: phased_sgd_paper.feasible(*numbers),
        phased_sgd.run,
    ),
    ("disjoint-batches", "tight"): Solver(
        disjoint_batches.plan_disjoint_batches, any_number_of_users, disjoint_batches.run, rival=True
    ),
    ("group-privacy", "tight"): Solver(
        group_privacy.plan_group_privacy, any_number_of_users, group_privacy.run, rival=True
    ),
    ("bassily-sun", "tight"): Solver(
        bassily_sun.plan_bassily_sun, bassily_sun.feasible, bassily_sun.run, fits_gradients=True, rival=True
    ),
    ("bassily-sun-local", "tight"): Solver(
        bassily_sun_local.plan_bassily_sun_local, bassily_sun_local.feasible, bassily_sun_local.run, rival=True
    ),
}
