"""Generated users of named scenarios: how far a solver is from the truth, beside what any private model must cost."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from itertools import product

from userdp.privacy.accounting import Budget
from userdp.solvers.planner import Solver, public_problem
from userdp_research.bench.cells import BUDGET, Cell, Record
from userdp_research.bench.generated import LOSSES, Scenario, draw_users, fresh_rows, true_weights
from userdp_research.bench.references import Yardstick, user_optimum, yardstick
from userdp_research.bench.scoring import collect
from userdp_research.bench.solving import NON_PRIVATE, entries, solve_all

_YARD_USERS, _YARD_ROWS, _YARD_SEED = 20_000, 500_000, 2_000_000


def grid_competitors() -> list[str]:
    """Everybody who can be asked for."""
    return [NON_PRIVATE, *entries()]


def grid_cells(
    scenarios: Iterable[Scenario],
    solvers: Iterable[str],
    users: Sequence[int] | None,
    epsilons: Sequence[float],
    delta: float,
    repeats: int,
) -> list[Cell]:
    """Every scenario at its own numbers of users, or at these, small ones first."""
    chosen, cells = [name for name in grid_competitors() if name in set(solvers)], {}
    for scenario in scenarios:
        size = {"command": "grid", "scenario": scenario.settings(), "repeats": repeats}
        for n_users, epsilon, name in product(users or scenario.users, epsilons, chosen):
            budget = (None, None) if name == NON_PRIVATE else (epsilon, delta)
            cell = Cell(size | {"users": n_users, "solver": name, "epsilon": budget[0], "delta": budget[1]})
            cells[cell.key] = cell
    return sorted(cells.values(), key=lambda cell: cell.settings["users"] * max(cell.settings["scenario"]["sizes"]))


def measure_grid(settings: Record, context: Record) -> Record:
    """One cell: all repeats, each on users drawn anew, scored on fresh rows with known chances. NOT PRIVATE."""
    scenario, n_users = Scenario.from_settings(settings["scenario"]), settings["users"]
    loss, fresh = LOSSES[scenario.loss], fresh_rows(scenario)
    parts = (draw_users(scenario, n_users, seed) for seed in range(settings["repeats"]))
    budget = (
        None if settings["solver"] == NON_PRIVATE else Budget(*(settings[name] for name in BUDGET if name in settings))
    )
    facts = {"n_users": n_users, "rows": scenario.rows, "nothing_learned": fresh.nothing_learned()}
    facts |= {"n_weights": true_weights(scenario).size} | _yardstick(scenario).facts(n_users, budget)
    if budget is None:
        started = time.perf_counter()
        found = [fresh.score(user_optimum(loss, part)) for part in parts]
        result: Record = {"seconds": [(time.perf_counter() - started) / len(found)] * len(found)}
    else:
        radius = scenario.radius or Solver(settings["solver"]).radius
        problem = public_problem(loss, scenario.features + 1, domain_radius=radius)
        result = solve_all(settings["solver"], problem, parts, n_users, scenario.rows, budget, None, fresh.score)
        if "refusal" in result:
            return result | facts
        found = result.pop("scores")
    return result | facts | collect(found, lambda one: float(one["excess"]))


@functools.lru_cache(maxsize=64)
def _yardstick(scenario: Scenario) -> Yardstick:
    """At the truth, of users enough to tell."""
    n_users = min(_YARD_USERS, _YARD_ROWS * len(scenario.kept) // sum(scenario.kept))
    return yardstick(LOSSES[scenario.loss], draw_users(scenario, n_users, _YARD_SEED), true_weights(scenario).ravel())
