"""Rivals and earlier work, and the bench that measures them beside userdp. Importing it registers its solvers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from userdp.privacy.accounting import Budget
from userdp.solvers.solver import Planner, register

if TYPE_CHECKING:
    from userdp.auditing.pairs import Pair


def _solver(planner: str, fits_gradients: bool = False, most_canaries: int = 192) -> Planner:
    return Planner(f"userdp_research.{planner}", fits_gradients, baseline=True, most_canaries=most_canaries)


def _attacks(budget: Budget) -> list[Pair]:
    from userdp_research.attacks import mechanism_pairs

    return mechanism_pairs(budget)


register(
    {
        ("asi-liu", "calibrated"): _solver("asi_liu:plan_asi_liu", fits_gradients=True),
        ("example-level", "calibrated"): _solver("example_level:plan_example_level", fits_gradients=True),
        ("dp-fedavg", "calibrated"): _solver("fedavg:plan_fedavg", fits_gradients=True),
        ("disjoint-batches", "calibrated"): _solver("disjoint_batches:plan_disjoint_batches"),
        ("group-privacy", "calibrated"): _solver("group_privacy:plan_group_privacy"),
        ("bassily-sun", "calibrated"): _solver("bassily_sun:plan_bassily_sun", fits_gradients=True, most_canaries=32),
        ("levy", "calibrated"): _solver("levy:plan_levy", fits_gradients=True, most_canaries=32),
        ("bassily-sun-local", "calibrated"): _solver("bassily_sun_local:plan_bassily_sun_local", most_canaries=8),
    },
    words={
        "winsorized": "Noisy counts tell where most numbers are; each is clipped to there, then a noisy mean.",
        "local-votes": "Each person names a range, sometimes at random, before anyone adds up; the most named wins.",
        "local-reports": "Each person tells one number with noise of its own, before anyone adds up.",
        "output-perturbation": "One vector: no person can move it far, whatever their data; released with noise.",
        "sampled-rows": "Random rows of all people; what a person adds is clipped to its rows taken, then a noisy sum.",
    },
    attacks=_attacks,
)
