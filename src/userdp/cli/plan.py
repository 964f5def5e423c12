"""`userdp plan`: what every solver would need, cost and guarantee, from public numbers alone."""

from __future__ import annotations

import math
from pathlib import Path

import typer

from userdp import losses
from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import expect
from userdp.data.tables import whole_file
from userdp.losses import Loss
from userdp.privacy.accounting import REPLACE_ONE, ZERO_OUT, default_delta
from userdp.solvers import planner
from userdp.solvers.solver import PROVEN

_RELATIONS = {
    REPLACE_ONE: "where one user's data is replaced (replace-one); if only whether it was used must be hidden, as most "
    "other libraries count, --neighbours zero-out needs half of the noise",
    ZERO_OUT: "where one user's data is left out of every total (zero-out)",
}
_BOUNDS = (
    "Excess risk is the mean loss above the best model's. Bounds, which only "
    f"{' and '.join(PROVEN)} have, are theorems about the worst case: often 100 times too high. Estimates are none."
)


def plan(
    *,
    users: int = o.data("Number of users.", ...),
    rows_per_user: int = o.data("Rows per user, at most or typically.", ...),
    features: int = o.data("Number of features.", ...),
    epsilon: o.Epsilon,
    delta: float | None = o.DELTA,
    neighbours: str = o.NEIGHBOURS,
    loss: o.LossName = o.LOSS,
    classes: int | None = o.model("How many, with --loss logistic; else 2."),
    max_count: float | None = o.MAX_COUNT,
    max_gradients: o.MaxGradients = None,
    row_norm: float | None = o.ROW_NORM,
    domain_radius: float = o.model("How long the vector of weights may be.", 10.0),
    l2: o.L2 = 0.0,
    no_intercept: o.NoIntercept = False,
    plot: Path | None = o.output("Picture to draw (SVG, PNG, PDF): excess risk against epsilon."),
    json: o.Json = None,
) -> None:
    """Compare the solvers before any data is touched.

    Protected: no data is read, so everything here may be shown.

    [bold]Example[/bold]

    userdp plan --users 48092 --rows-per-user 30 --features 29 --epsilon 1 --delta 1e-6 --plot plan.svg
    """
    fine = plot is None or plot.suffix.lower() in (".svg", ".png", ".pdf")
    expect(fine, f"--plot to end in .svg, .png or .pdf, got {plot}.")
    show.check_files(plot, json)
    with show.working("planning", quiet=False):
        comparison = planner.plan(
            users,
            rows_per_user,
            features,
            epsilon,
            default_delta(max(1, users)) if delta is None else delta,
            loss=_loss(loss, classes, max_count),
            max_gradients=max_gradients,
            fit_intercept=not no_intercept,
            row_norm=row_norm,
            domain_radius=domain_radius,
            l2=l2,
            neighbours=neighbours,
        )
    if plot is not None:
        from userdp.report.pictures import plot_plan

        with show.working("planning at nine epsilons", quiet=False), whole_file(plot) as new:
            plot_plan(comparison, new, max_gradients)
    if show.as_json(comparison.to_dict() | {"plot": None if plot is None else str(plot)}, json):
        return
    budget = comparison.budget
    typer.echo(f"{comparison}\n")
    where = _RELATIONS[budget.neighbours]
    show.paragraph(f"At epsilon {budget.epsilon:g}, delta {budget.delta:g}, {where}. {_BOUNDS}")
    if plot is not None:
        typer.echo(f"The picture is in {plot}.")


def _loss(name: o.LossName, classes: int | None, max_count: float | None) -> Loss:
    """The loss as the estimators use it, for targets in [-1, 1]."""
    poisson, logistic = name == o.LossName.poisson, name == o.LossName.logistic
    fine = (max_count is not None) == poisson
    expect(fine, "--max-count, the public largest count of a row, with --loss poisson, and only then.")
    if max_count is not None:
        expect(0 < max_count < math.inf, f"--max-count {max_count:g} to be a finite number > 0.")
        return losses.poisson(max_count)
    fine = classes is None or (logistic and classes >= 2)
    expect(fine, "--classes, a number >= 2, with --loss logistic only.")
    if logistic:
        return losses.logistic if classes in (None, 2) else losses.multinomial(classes)
    if name == o.LossName.huber:
        return losses.huber(0.2)
    return losses.quantile(0.5) if name == o.LossName.absolute else losses.loss(str(name))
