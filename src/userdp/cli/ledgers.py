"""`userdp ledger`: the budget of a data set, and what was spent of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from userdp._validate import check_counts
from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import expect, guarded
from userdp.privacy.accounting import budget_for, rounded_up
from userdp.privacy.ledger import EXTERNAL, ODOMETER, Ledger
from userdp.privacy.statement import IN_PARALLEL, apart

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")

LedgerPath = Annotated[Path, o.argument("Ledger file.")]
_NO_UNIT = "set by the first charge (whole users, or single rows)"


@app.callback()
def top() -> None:
    """Make a data set's ledger, enter releases of other tools, or show what was spent.

    Protected: the users in the data set. Charges add up, are refused beyond the budget, and are never refunded.

    [bold]Example[/bold]

    userdp ledger new visits.ledger --epsilon 3 --users 6000

    userdp fit visits.parquet ... --ledger visits.ledger

    userdp ledger show visits.ledger
    """


@app.command(cls=o.Command)
@guarded
def new(
    path: LedgerPath,
    epsilon: o.Epsilon,
    delta: float | None = o.DELTA,
    users: int | None = o.privacy("How many users the data set has, to choose --delta by; else up to 10,000."),
    neighbours: str = o.NEIGHBOURS,
    json: o.Json = None,
) -> None:
    """Make a ledger: the lifetime budget of a data set.

    Protected: the users in the data set, as long as everything released from it is charged to this one file, also if
    the next fit is chosen by looking at the last one.

    [bold]Example[/bold]

    userdp ledger new visits.ledger --epsilon 3 --users 6000
    """
    expect(not path.exists(), f"no file at {path} yet: `userdp ledger show` shows an old ledger.")
    one = delta is None or users is None
    expect(one, "either --delta, or --users to choose it by, got both: leave one of them out.")
    (n_users,) = check_counts(users=1 if users is None else users)
    budget = budget_for(epsilon, delta, n_users, neighbours)
    show.check_files(path, json)
    made = Ledger(budget, path)
    if not show.as_json(_record(made, path), json):
        typer.echo(
            f"{path} holds a budget of epsilon {rounded_up(budget.epsilon)} at delta {rounded_up(budget.delta)}. "
            f"Nothing is spent. Privacy unit: {_NO_UNIT}."
        )
        if delta is None and users is None:
            typer.echo("That delta is for up to 10,000 users: of a larger data set pass --users, or --delta.")


def _unit_of(ledger: Ledger) -> str:
    """What is protected, in words."""
    if ledger.unit is None:
        return _NO_UNIT
    called = ledger.called
    return "row: each row by itself" if ledger.unit == "row" else f"{called}: all rows of a {called} together"


def _record(ledger: Ledger, path: Path) -> dict[str, Any]:
    """What is fixed when a ledger is made; its unit is None before the first charge."""
    budget = ledger.budget
    kept = {"epsilon": budget.epsilon, "delta": budget.delta, "neighbours": budget.neighbours}
    return {"path": str(path)} | kept | {"failure_share": ledger.failure_fraction, "unit": ledger.called}


@app.command(cls=o.Command)
@guarded
def add(
    path: LedgerPath,
    purpose: Annotated[str, o.option(o.PRIVACY, "What was released, in words that may be shown to anyone.")],
    epsilon: float | None = o.privacy("What the other tool guarantees: epsilon, with --delta if it is not 0."),
    delta: float = o.privacy("Goes with --epsilon, or with --rho: at which it is converted.", 0.0),
    rho: float | None = o.privacy("Or rho of zero-concentrated differential privacy."),
    mu: float | None = o.privacy("If its noise is Gaussian: sensitivity / standard deviation. It costs far less."),
) -> None:
    """Enter a release that another tool made from the same users, for the ledger's neighbours.

    Protected: the users in the data set, as long as the other release is as private as is said here.

    [bold]Example[/bold]

    userdp ledger add visits.ledger --purpose "mean age, with OpenDP" --epsilon 0.2
    """
    ledger = Ledger.open(path)
    ledger.charge_external(purpose, epsilon=epsilon, delta=delta, rho=rho, mu=mu, unit=ledger.called or "user")
    typer.echo(f"Charged. {ledger.what_fits()}")


@app.command("show", cls=o.Command)
@guarded
def show_ledger(
    path: LedgerPath,
    delta: Annotated[
        float | None, o.option(o.PRIVACY, "Of one more run, to tell what epsilon it may have; else the budget's.")
    ] = None,
    json: o.Json = None,
) -> None:
    """Show the budget, what was spent, what still fits, and each charge.

    Protected: everything shown is public: plans are charged before data is read.

    [bold]Example[/bold]

    userdp ledger show visits.ledger
    """
    ledger = Ledger.open(path)
    show.check_files(json, read=[path])
    charges, spent = ledger.charges(), ledger.spent_epsilon()
    private = math.isfinite(spent)
    entries = [
        {
            "charged_at": charge.charged_at,
            "purpose": charge.purpose,
            "private": charge.private,
            "insecure_seed": charge.insecure_seed,
            "charged_as": [priced.to_json() for priced in charge.dominating],
            "steps": [vars(step) for step in charge.steps],
        }
        for charge in charges
    ]
    record = _record(ledger, path) | {
        "spent_epsilon": spent if private else None,
        "spent_epsilon_is": ODOMETER,
        "fits_epsilon": ledger.largest_epsilon(delta),
        "fits_at_delta": ledger.budget.delta if delta is None else delta,
        "fits_epsilon_is": ledger.what_fits(delta),
        "private": private,
        "charges": entries,
    }
    if show.as_json(record, json):
        return
    show.facts(
        [
            ("budget", f"epsilon {rounded_up(ledger.budget.epsilon)} at delta {rounded_up(ledger.budget.delta)}"),
            ("neighbours", ledger.budget.neighbours),
            ("unit", _unit_of(ledger)),
            ("spent", f"epsilon {spent:.4g} at delta {ledger.budget.delta:g}"),
            ("left", ledger.what_fits(delta)),
            ("charges", f"{len(charges):,}"),
        ]
    )
    typer.echo(f"Spent: {ODOMETER[0].lower()}{ODOMETER[1:]}")
    for number, charge in enumerate(charges, 1):
        typer.echo(f"\n{number}. {charge.charged_at[:10]}, {charge.purpose or 'no purpose given'}")
        for step in charge.steps:
            where = f" on users {step.start:,} to {step.stop - 1:,}" if step.mechanism != EXTERNAL else ""
            typer.echo(f"   {step.label}: {step.mechanism}{where}")
        if len(charge.steps) > 1 and apart((step.start, step.stop - 1) for step in charge.steps):
            typer.echo(f"   {IN_PARALLEL}")
        if not charge.private:
            show.note(f"   NOT PRIVATE: run with the seed {charge.insecure_seed}.", "bold red", stderr=False)
    if not private:
        show.note("A seeded run is non-private: the spent epsilon is infinite.", "bold red", stderr=False)
