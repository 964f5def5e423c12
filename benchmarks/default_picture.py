"""The picture of docs/how-the-default-works.md: steps of one fit, and how its three schedules divide a budget.

One seeded fit of 5,000 generated users of one row, 8 features in odd units, epsilon 1: of seeds 1 to 5 the one with the
median loss. Its two first weights, in units of the columns, are drawn at each point that was asked about, with contours
of the users' mean loss.

NOT PRIVATE: the run is seeded, and shown beside the model without privacy.

    python benchmarks/default_picture.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.optimize import minimize

import userdp
from userdp.solvers import schedule
from userdp.solvers.solver import Outcome
from userdp.solvers.whitened_clip import plan_whitened_clip

PICTURE = Path(__file__).parents[1] / "docs" / "bench" / "how-the-default-works.svg"
N_USERS, ROWS, FEATURES, BUDGET = 5000, 1, 8, userdp.Budget(1.0, 1e-6)
UNITS = np.append(np.geomspace(1e-2, 1e3, FEATURES), 1.0)
COLOURS = {
    "whitening": "#8c6bb1",
    "location": "#999999",
    "burn-in": "#bdbdbd",
    "curvature": "#fdae6b",
    "averaged steps": "#3182bd",
    "rare class": "#9ecae1",
    "recalibration": "#31a354",
}


def generated() -> userdp.UserData:
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(N_USERS), ROWS)
    X = rng.normal(size=(len(users), FEATURES)) + 0.6 * rng.normal(size=(len(users), 1))
    y = X @ np.linspace(1.0, -0.6, FEATURES) + 0.3 + rng.logistic(size=len(users)) > 0
    return userdp.UserData.from_arrays(X * UNITS[:-1], y, users, fit_intercept=True)


def fit(data: userdp.UserData) -> tuple[list[tuple[str, np.ndarray]], np.ndarray]:
    """The points that each release of gradients was about, and the weights that came out; in the columns' units."""
    problem = userdp.Problem(userdp.losses.logistic, userdp.Ball(1e9), FEATURES + 1, 3.0, intercept=True)
    plan = plan_whitened_clip(problem, N_USERS, ROWS, BUDGET)
    curator = userdp.Curator(data, plan.certified, userdp.Ledger(BUDGET), purpose="picture", insecure_seed=3)
    outcome = Outcome(problem.start, plan.bound)
    releases, points = plan.schedule.releases(problem, outcome), []
    request = next(releases)
    while True:
        if (gradient := getattr(request.statistic, "gradient", None)) is not None:
            points.append((request.label, gradient.weights * UNITS))
        try:
            request = releases.send(curator.release(request.label, request.statistic, request.radius))
        except StopIteration:
            return points, outcome.weights * UNITS


def shares(layout: schedule.Layout) -> dict[str, float]:
    """Fractions of the budget, by what for; of steps on parts of the users once, since no user is in two."""
    kinds = {schedule.STEPS: "averaged steps", schedule.FLAT_STEPS: "rare class", schedule.LOCATION: "location"}
    fractions = {"whitening": layout.whitening}
    for share in layout.shares:
        of_part = share.label in schedule.APPROACH and share.stop - share.start < 1
        kind = "burn-in" if of_part else kinds.get(share.label, share.label)
        fractions[kind] = share.fraction if of_part else fractions.get(kind, 0.0) + share.fraction
    return fractions


def draw() -> None:
    data = generated()
    points, weights = fit(data)
    X, y = data.rows[:] / UNITS[:-1], np.asarray(data.targets, dtype=float)
    X = np.column_stack([X, np.ones(len(X))])

    def loss(w: np.ndarray) -> float:
        return float(np.logaddexp(0, -(2 * y - 1) * (X @ w)).mean())

    best = minimize(loss, np.zeros(FEATURES + 1)).x
    across, up = np.linspace(-0.1, 1.5, 60), np.linspace(-0.1, 1.3, 60)
    heights = [[loss(np.array([a, b, *best[2:]])) - loss(best) for a in across] for b in up]
    path = {label: np.array([p[:2] for name, p in points if name == label]) for label, _ in points}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "userdp", "font.size": 9}):
        figure = mpl.figure.Figure(figsize=(9, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1.1, 1])
        left.contour(across, up, heights, levels=[0.002, 0.01, 0.03, 0.06, 0.1], colors="#dddddd", linewidths=0.8)
        left.plot(*path[schedule.BURN_IN].T, ".-", color="#bdbdbd", label="burn-in", linewidth=0.8)
        left.plot(*path[schedule.STEPS].T, ".-", color="#9ecae1", label="steps", linewidth=0.8)
        left.plot(*path[schedule.STEPS].mean(axis=0), "o", color="#3182bd", label="average of the steps")
        left.plot(*path[schedule.RECALIBRATION][0], "s", color="#e6550d", label="corrected and shrunk")
        left.plot(*weights[:2], "D", color="#31a354", label="recalibrated: the result")
        left.plot(*best[:2], "k*", markersize=10, label="without privacy")
        left.set(
            xlabel="first weight (effect of a unit)",
            ylabel="second weight",
            title="One fit: 5,000 users of one row, epsilon 1",
        )
        left.set_title("One fit: 5,000 users of one row, epsilon 1")
        left.legend(loc="upper left", frameon=False)
        problem = userdp.Problem(userdp.losses.logistic, userdp.Ball(1e9), 21, 4.6, intercept=True)
        makers = {"full": schedule.full, "fast": schedule.fast, "pure (delta 0)": schedule.pure}
        for place, make in enumerate(makers.values()):
            budget = userdp.Budget(1.0, 0.0) if make is schedule.pure else BUDGET
            layout, begin = make(problem, 100_000, budget), 0.0
            for kind, fraction in shares(layout).items():
                right.barh(place, fraction, left=begin, color=COLOURS[kind])
                begin += fraction
            passes = sum(share.n_releases * (share.stop - share.start) for share in layout.shares)
            usual = passes - sum(share.n_releases for share in layout.shares if share.label == schedule.FLAT_STEPS)
            counted = f"{usual:.0f} passes" if usual == passes else f"{usual:.0f} to {passes:.0f} passes"
            right.text(1.02, place, counted, va="center")
        right.set_yticks(range(len(makers)), list(makers))
        right.set(xlim=(0, 1.32), xlabel="fraction of the budget", title="Three schedules (100,000 users, 21 weights)")
        right.invert_yaxis()
        for side in ("top", "right"):
            right.spines[side].set_visible(False)
        used = [kind for kind in COLOURS if kind != "location"]
        handles = [mpl.patches.Patch(color=COLOURS[kind], label=kind) for kind in used]
        right.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=3, frameon=False)
        figure.savefig(PICTURE, format="svg", metadata={"Date": None, "Creator": None})
    print(f"Wrote {PICTURE}")


if __name__ == "__main__":
    import matplotlib.figure
    import matplotlib.patches

    draw()
