"""`userdp fit`: from a table in a file to a private model in a file."""

from __future__ import annotations

import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import ABORTED, InputError, in_options, spending
from userdp.cli.tables import Ranges, class_weights, columns_of, declare_classes, pair_of, users_of
from userdp.data.columns import PRIVATE, Columns
from userdp.data.grouping import Groups
from userdp.data.schema import Schema, ids, require_column
from userdp.data.source import Source
from userdp.data.tables import TableFile, check_place, open_table
from userdp.data.users import UserData
from userdp.models import estimators
from userdp.models.files import save_model
from userdp.models.intervals import fraction_of
from userdp.models.linear import LinearModel
from userdp.models.sklearn_compat import UtilityWarning
from userdp.privacy.accounting import Budget, budget_for
from userdp.privacy.journal import Journal
from userdp.privacy.ledger import Ledger
from userdp.solvers import planner
from userdp.solvers.inference import DEFAULT_FRACTION, with_intervals

_CLASSIFIERS = (o.LossName.logistic, o.LossName.hinge, o.LossName.squared_hinge)
_SHOWN = 6  # coefficients in the summary


def fit(
    context: typer.Context,
    data: o.Table,
    *,
    user_column: o.UserColumn,
    target: o.Target,
    features: Annotated[
        str | None,
        o.option(
            o.DATA, "Columns or patterns, such as 'x_*,age'; in any units (solvers but the default: of size about 1)."
        ),
    ] = None,
    columns: Annotated[
        Path | None,
        o.option(
            o.DATA,
            "Description of the columns (TOML; `userdp columns` writes a first one), instead of --features: numbers, "
            "categories, dates, text, with what is missing. Kept in the model.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        o.option(
            o.DATA,
            "One column's description, as a line of TOML, once or more often: 'age={type=\"number\",low=0,high=100}'. "
            "Instead of --columns, or on top of it.",
            metavar="TOML",
        ),
    ] = None,
    columns_fraction: Annotated[
        float,
        o.option(o.PRIVACY, 'Part of the budget for what --columns and --target-range leave "private".', default=True),
    ] = 0.1,
    feature_range: Annotated[
        str | None,
        o.option(
            o.DATA,
            "Public ranges, to scale by: 0,100 for all features, or age=0:100,spend=0:500. What is beyond is cut "
            "off in training. From what columns mean, not from the data.",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        o.option(
            o.DATA, "All labels there can be, such as no,yes. Not needed if the column is boolean by type (not CSV)."
        ),
    ] = None,
    target_range: Annotated[
        str | None,
        o.option(
            o.DATA, "Public lowest,highest target, for numbers, or private to learn them; those beyond are cut off."
        ),
    ] = None,
    max_count: o.MaxCount = None,
    exposure: o.Exposure = None,
    max_exposure: Annotated[
        float | None, o.option(o.DATA, "Public largest --exposure, needed with it; those beyond are cut off.")
    ] = None,
    weight: o.Weight = None,
    max_weight: Annotated[
        float | None, o.option(o.DATA, "Public largest --weight, needed with it; those beyond are cut off.")
    ] = None,
    class_weight: Annotated[
        str | None,
        o.option(o.DATA, "How many times rows of a class count, such as no=1,yes=5: public; 1 for those left out."),
    ] = None,
    max_rows_per_user: Annotated[
        int, o.option(o.DATA, "More rows of a user are dropped at random.", default=True)
    ] = 50,
    fill_missing: o.FillMissing = None,
    public_data: Annotated[
        Path | None,
        o.option(
            o.DATA,
            "Table of rows that are nobody's secret, with the same features: scales and correlations are then "
            "taken from them, which saves budget.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        o.option(
            o.DATA,
            "Memory for data, such as 2GB: a larger table is sorted once into a store on disk, which later fits use. "
            "Parquet and Arrow only.",
        ),
    ] = None,
    store: Annotated[
        Path | None,
        o.option(o.DATA, "Folder for the store; else beside the table. As secret as the data."),
    ] = None,
    check_data: Annotated[
        bool,
        o.option(
            o.DATA, "Stop at missing values and unknown labels. What that tells is NOT protected.", "--check-data"
        ),
    ] = False,
    epsilon: o.Epsilon,
    delta: o.Delta = None,
    ledger: o.LedgerFile = None,
    ledger_budget: Annotated[
        str | None, o.option(o.PRIVACY, "Lifetime epsilon,delta of a ledger that is not there yet.")
    ] = None,
    evaluate: Annotated[
        float | None,
        o.option(
            o.PRIVACY,
            "Keep this fraction of the users from training, 0.1 say, and release private scores of them: nobody pays "
            "for both, so all of it costs no more.",
        ),
    ] = None,
    dry_run: Annotated[bool, o.option(o.PRIVACY, "Plan only: counts users, spends nothing.", "--dry-run")] = False,
    allow_weak: Annotated[
        bool,
        o.option(
            o.PRIVACY,
            "Go on even if noise is expected to dominate the model, or delta is not below 1 / number of users.",
            "--allow-weak",
        ),
    ] = False,
    inference: Annotated[
        bool,
        o.option(
            o.PRIVACY, "Standard errors and 95% intervals of the weights, for a part of the budget.", "--inference"
        ),
    ] = False,
    inference_fraction: Annotated[
        float, o.option(o.PRIVACY, "Part of the budget for --inference.", default=True)
    ] = DEFAULT_FRACTION,
    insecure_seed: o.Seed = None,
    loss: o.Loss = o.LossName.logistic,
    quantile: Annotated[float | None, o.option(o.MODEL, "Which one, with --loss quantile; else the median.")] = None,
    threshold: Annotated[
        float | None,
        o.option(o.MODEL, "Error from which on it counts linearly, with --loss huber; else a tenth of the range."),
    ] = None,
    solver: o.Solver = "auto",
    mode: o.Mode = "tight",
    max_gradients: o.MaxGradients = None,
    engine: o.Engine = o.EngineName.local,
    address: o.Address = None,
    workers: o.Workers = None,
    row_norm: o.RowNorm = None,
    domain_radius: o.Radius = None,
    l2: o.L2 = 0.0,
    no_intercept: o.NoIntercept = False,
    output: Annotated[
        Path | None,
        o.option(
            o.OUTPUT, r"Model to write (JSON); not needed with --dry-run. [red]\[required][/red]", "--output", "-o"
        ),
    ] = None,
    report: Annotated[Path | None, o.option(o.OUTPUT, "Report to write (HTML).")] = None,
    checkpoint: Annotated[
        Path | None,
        o.option(
            o.OUTPUT,
            "Journal to keep: if the fit is stopped or killed, `userdp resume` goes on with it, and nothing is spent "
            "twice. As secret as the data; delete it once the fit has ended.",
        ),
    ] = None,
    purpose: o.Purpose = "",
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """Train a private model from a table.

    Protected: each user, with all their rows together. Not protected: the number of users, and what you pass here.

    [bold]Example[/bold]

    userdp fit visits.parquet --user-column user --target bought --classes 0,1 --features 'x_*' \\
      --epsilon 1 --delta 1e-6 --output model.json --report report.html

    userdp fit shop.csv --user-column user --target bought --classes no,yes --columns shop.toml \\
      --epsilon 1 --output model.json

    userdp fit claims.parquet --user-column driver --target claims --loss poisson --max-count 20 --exposure years \\
      --max-exposure 5 --features age,power --epsilon 1 --output model.json
    """
    if output is None and not dry_run:
        raise InputError("Expected --output, a file to write the model to; or --dry-run, to plan only.")
    if classes is not None and loss not in _CLASSIFIERS:
        raise InputError(f"Expected no --classes with --loss {loss}, which is for numbers: leave one of them out.")
    if target_range is not None and (loss in _CLASSIFIERS or loss == o.LossName.poisson):
        instead = "classes: leave it out" if loss in _CLASSIFIERS else "counts: use --max-count"
        raise InputError(f"Expected no --target-range with --loss {loss}, which is for {instead}.")
    of_one_loss = (
        *(("quantile", quantile, "quantile"), ("threshold", threshold, "huber")),
        *(("max-count", max_count, "poisson"), ("exposure", exposure, "poisson")),
    )
    for name, value, owner in of_one_loss:
        if value is not None and loss != owner:
            raise InputError(f"Expected --{name} with --loss {owner} only, got --loss {loss}: leave it out.")
    if quantile is not None and not 0 < quantile < 1:
        raise InputError(f"Expected 0 < --quantile {quantile:g} < 1.")
    for name, given in (("address", address), ("workers", workers)):
        if given is not None and engine != o.EngineName.ray:
            raise InputError(f"Expected --{name} with --engine ray only: add that, or leave it out.")
    for name, given, largest in (("exposure", exposure, max_exposure), ("weight", weight, max_weight)):
        if given is None and largest is not None:
            raise InputError(f"Expected --{name}, a column, with --max-{name}: add it, or leave that out.")
    if memory_limit is not None and (weight is not None or exposure is not None):
        raise InputError("Expected no --memory-limit with --weight or --exposure: they are read into memory.")
    if check_data and (weight is not None or exposure is not None):
        raise InputError("Expected no --check-data with --weight or --exposure: leave one of them out.")
    model = _model(loss, target_range, quantile, threshold)
    of_rows = {"sample_weight": weight}
    if loss == o.LossName.poisson:
        if max_count is None:
            raise InputError(
                "Expected --max-count with --loss poisson: the public largest count of a row, from what is counted and "
                "not from the data; those beyond are cut off. Nothing was spent."
            )
        model.set_params(max_count=max_count, max_exposure=max_exposure)
        of_rows["exposure"] = exposure
    model.set_params(
        epsilon=epsilon,
        delta=delta,
        solver=solver,
        mode=mode,
        max_rows_per_user=max_rows_per_user,
        row_norm=row_norm,
        domain_radius=domain_radius,
        fit_intercept=not no_intercept,
        l2=l2,
        max_gradients=max_gradients,
        verbose=False if quiet else None,
        insecure_seed=insecure_seed,
        unprotected_checks=check_data,
        purpose=purpose,
        columns=_described(columns, column),
        max_weight=max_weight,
        columns_fraction=columns_fraction,
        allow_weak=allow_weak,
        evaluate=evaluate,
        inference=inference_fraction if inference else False,
    )
    model._check_parameters()
    model._declare_largest(of_rows)
    model._check_evaluate(model.evaluate, of_rows)
    if not model._classifies:
        model._declare(None)
    if target == user_column:
        raise InputError(f"Expected --target to be another column than --user-column, got {target!r} for both.")
    table = open_table(data)
    if (features is None) == (model.columns is None):
        raise InputError(
            "Expected either --features, columns of numbers, or --columns, a file that describes them (or --column): "
            f"`userdp columns {data} --output columns.toml` writes a first one. Nothing was spent."
        )
    if model.columns is not None and (feature_range is not None or fill_missing is not None):
        raise InputError("Expected no --feature-range or --fill-missing with --columns: it says both of each column.")
    if features is not None and features.strip() == "*" and not table.typed:
        raise InputError(
            "Expected --features with names, or a narrower pattern, for a file that declares no types: '*' would take "
            "columns of text for numbers that are all missing. Nothing was spent."
        )
    schema = Schema.declare(table.column_names, user_column, features or list(model.columns or ()), target)
    for name in filter(None, (weight, exposure)):
        require_column(table.column_names, name)
        if name in (target, user_column):
            raise InputError(f"Expected --weight and --exposure to be other columns than target and user: {name!r}.")
    if class_weight is not None:
        model.set_params(class_weight=class_weights(class_weight, declare_classes(model, table, target, classes)))
    ranges = None if feature_range is None else Ranges.read(feature_range, schema.features)
    if ranges is not None and no_intercept:
        raise InputError("Expected no --feature-range with --no-intercept: scaling needs an intercept.")
    if public_data is not None:
        if public_data.exists() and public_data.samefile(data):
            raise InputError(f"Expected --public-data to be another table than {data}, whose people are protected.")
        public: Any = open_table(public_data)
        if model.columns is None:
            public = columns_of(public, Schema(None, schema.features), fill_missing)
        model.set_params(public_X=public if ranges is None else ranges.of(public))
    if store is not None and memory_limit is None:
        raise InputError("Expected --memory-limit with --store: say how much memory may be used, 2GB, say.")
    stored: dict[str, Any] = {"memory_limit": memory_limit, "store": store, "tell": show.note}
    stored["progress"] = False if quiet else None
    if dry_run:
        show.check_json(json, data)
        if memory_limit is None:
            n_users = _n_users(table, schema.user)
        else:
            n_users = users_of(model, table, schema, classes, fill_missing, **stored).n_users
        _dry_run(model, n_users, schema, classes, json)
        return
    assert output is not None  # as was checked first
    sources = [data] if public_data is None else [data, public_data]
    check_place(output, *sources)
    if report is not None:
        from userdp.report import write_report

        check_place(report, *sources, output)
    written = [output, *([report] if report else [])]
    lifetime = _check_ledger(ledger, ledger_budget, *sources, *written)
    made = "No model was written."
    if checkpoint is not None:
        check_place(checkpoint, *sources, *written, *([ledger] if ledger else []))
        model.set_params(checkpoint=Journal(checkpoint, _arguments(context)))
        made += f" Go on with `userdp resume {checkpoint}`."
    show.check_json(json, *sources, *written, *(path for path in (ledger, checkpoint) if path is not None))
    users: Any = None
    rows: Any = None
    source = Source(data.name, target, user_column, weight, exposure)
    cluster = _cluster(engine, address, workers)
    with show.working(f"reading {data}", quiet or memory_limit is not None):
        if model.columns is None and weight is None and exposure is None:
            users = users_of(model, table, schema, classes, fill_missing, cluster, **stored)
            users = replace(users, source=source)
            n_users = users.n_users
        else:
            model.set_params(engine=cluster)
            declare_classes(model, table, target, classes)
            rows = table if model.columns else columns_of(table, Schema(None, schema.features), fill_missing, False)
            table.prefetch_text([user_column, target, *filter(None, (weight, exposure)), *(model.columns or ())])
            n_users = _n_users(table, user_column)
    budget = budget_for(epsilon, delta, n_users)
    charged = _ledger(ledger, lifetime, budget)
    model.set_params(ledger=charged)
    with spending(charged, budget, lambda: made):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UtilityWarning)
            if users is None:
                rows = rows if ranges is None else ranges.of(rows)
                others: dict[str, Any] = {
                    name: None if given is None else table[given] for name, given in of_rows.items()
                }
                model._fit_rows(rows, table[target], ids(table[user_column]), source=source, **others)
                model._keep_names(schema.features)
            else:
                if ranges is not None:
                    users = ranges.users(users) if isinstance(users, UserData) else users.mapped(ranges.users)
                model.fit_users(users, schema.features)
        if ranges is not None:
            ranges.bring_back(model)
        save_model(model, output)
        made = f"The model is in {output}."
        if report is not None:
            write_report(model, report)
    if checkpoint is not None:
        Journal(checkpoint).end()
    if not show.as_json(_record(model, output, report), json):
        _summary(model, output, report, quiet)
    if model.aborted_:
        raise typer.Exit(ABORTED)


def resume(
    journal: Annotated[Path, o.argument("Journal that `userdp fit --checkpoint` keeps.")],
    json: o.Json = None,
) -> None:
    """Go on with a fit that was stopped or killed.

    What was released before is taken from the journal, without a look at the data; nothing is charged or released
    twice. The table, and what else the fit was given, must be where they were.

    [bold]Example[/bold]

    userdp fit visits.parquet --user-column user --target bought --classes 0,1 --features 'x_*' \\
      --epsilon 1 --delta 1e-6 --output model.json --checkpoint run.journal

    userdp resume run.journal
    """
    arguments = Journal(journal).command()
    if not arguments:
        raise InputError(
            f"Expected a journal of `userdp fit`; {journal} is of a fit from Python: make that call again."
        )
    app = typer.Typer(add_completion=False)
    app.command("fit", cls=o.Command)(fit)
    app([*arguments, *([] if json is None else ["--json", str(json)])], standalone_mode=False)


def _cluster(engine: o.EngineName, address: str | None, workers: int | None) -> Any:
    """The engine on Ray, if it is asked for."""
    if engine != o.EngineName.ray:
        return None
    try:
        from userdp.engines.ray import RayEngine
    except ImportError as error:
        raise InputError(str(error)) from None
    return RayEngine(address, workers)


def _arguments(context: typer.Context) -> tuple[str, ...]:
    """The words that a command was called with, defaults included, with absolute paths."""
    words: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if value is None or value is False:
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [parameter.opts[0]] * (parameter.param_type_name == "option")
            named = isinstance(one, Path) and one != Path("-")
            words += [str(one.resolve() if named else one)] * (one is not True)
    return tuple(words)


def _described(path: Path | None, lines: list[str] | None) -> Columns | None:
    """The columns that a file describes, and those of lines of TOML, which have the last word."""
    found = {} if path is None else dict(Columns.read(path))
    for line in lines or ():
        try:
            record = tomllib.loads(line)
        except tomllib.TOMLDecodeError:
            raise InputError(
                f'Expected --column to be a line of TOML, such as age={{type="number",low=0,high=100}}, got {line!r}.'
            ) from None
        found |= dict(Columns.of(record, "--column"))
    return Columns(found) if found else None


def _model(loss: o.LossName, target_range: str | None, quantile: float | None, threshold: float | None) -> LinearModel:
    """The estimator for this loss, with what belongs to it only."""
    if loss == o.LossName.logistic:
        return estimators.LogisticRegression()
    if loss in _CLASSIFIERS:
        return estimators.LinearSVC(loss=str(loss))
    if loss == o.LossName.poisson:
        return estimators.PoissonRegressor()
    if target_range is None:
        raise InputError(
            f"Expected --target-range lowest,highest with --loss {loss}: a public range of targets, from what they "
            "mean and not from the data; those beyond are cut off. --target-range private learns it for a part of the "
            "budget. Nothing was spent."
        )
    ends: Any = PRIVATE
    if target_range != PRIVATE:
        ends = pair_of(target_range, "--target-range")
        if not ends[0] < ends[1]:
            raise InputError(f"Expected --target-range lowest,highest, got {target_range!r}.")
    if loss == o.LossName.huber:
        return estimators.HuberRegressor(target_range=ends, threshold=threshold)
    if loss == o.LossName.squared:
        return estimators.LinearRegression(target_range=ends)
    return estimators.QuantileRegressor(target_range=ends, quantile=0.5 if quantile is None else quantile)


def _check_ledger(path: Path | None, lifetime: str | None, *sources: Path) -> Budget | None:
    """Refuse a ledger that is not there or not one, before data is read; the budget that a new one is to have."""
    if path is None:
        if lifetime is not None:
            raise InputError("Expected --ledger with --ledger-budget: say where the ledger is, or leave both out.")
        return None
    if path.exists():
        Ledger.open(path)
    elif lifetime is None:
        raise InputError(
            f"Expected a ledger at {path}, found nothing there: for a new one add its lifetime budget, "
            "--ledger-budget 3,1e-5, say. Nothing was spent."
        )
    check_place(path, *sources)
    return None if lifetime is None else Budget(*pair_of(lifetime, "--ledger-budget"))


def _ledger(path: Path | None, lifetime: Budget | None, budget: Budget) -> Ledger:
    """The data set's ledger, an old or a new one; or one in memory for this run."""
    if path is None:
        return Ledger(budget)
    return Ledger.open(path) if lifetime is None else Ledger(lifetime, path)


def _n_users(table: TableFile, user_column: str) -> int:
    """How many users there are, which is public."""
    owners = ids(table[user_column])
    return len(Groups.make(owners, len(owners), None, None).offsets) - 1


def _dry_run(model: LinearModel, n_users: int, schema: Schema, classes: str | None, json: Path | None) -> None:
    """Show the plans for this many users, the only thing read."""
    budget = budget_for(model.epsilon, model.delta, n_users)
    weak = planner.weak_delta(budget, n_users)
    n_users -= round((model.evaluate or 0.0) * n_users)
    n_features = len(schema.features if model.columns is None else model.columns.names)
    if model._classifies:
        model.set_params(classes=list(range(2 if classes is None else classes.count(",") + 1)))
    model._declare(None)
    comparison = planner.plan(
        n_users,
        model.max_rows_per_user,
        n_features,
        model.epsilon,
        budget.delta,
        loss=model._loss(),
        max_gradients=model.max_gradients,
        fit_intercept=model.fit_intercept,
        row_norm=model.row_norm,
        domain_radius=model._radius(),
        l2=model._penalty(),
    )
    size, fraction = (comparison.problem, n_users, model.max_rows_per_user), fraction_of(model.inference)

    def chosen(left: Budget) -> planner.Option:
        return planner.choose(*size, left, model.solver, model.mode, model.max_gradients)

    taken = chosen(budget) if fraction is None else with_intervals(*size, budget, fraction, chosen)
    if show.as_json(comparison.to_dict() | {"choice": taken.solver, "mode": taken.mode}, json):
        return
    show.options(comparison, taken)
    typer.echo(f"{n_users:,} users, {n_features} features. Nothing was read but who owns rows, and nothing was spent.")
    for advice in (weak, planner.advice_on(comparison.problem, taken)):
        if advice:
            show.note(in_options(advice))


def _record(model: LinearModel, output: Path, report: Path | None) -> dict[str, Any]:
    record = model.to_dict()
    for name in ("format", "coef", "intercept", "phases", "uncertainty", "versions"):
        del record[name]
    return {"model": str(output), "report": None if report is None else str(report)} | record


def _summary(model: LinearModel, output: Path, report: Path | None, quiet: bool) -> None:
    if not quiet:
        work = f"{model.solver_}, {model.result_.mode}; {model.n_gradients_:,} gradients at most"
        rows = [*show.guarantee(model.privacy_), ("solver", work), ("weights", _weights(model)), ("model", str(output))]
        if (affected := model.privacy_.affected_users) is not None:
            rows.insert(-3, ("left out", str(affected)))
        if travelled := model.result_.bytes_per_release:
            rows.insert(-2, ("traffic", f"{travelled:,.0f} bytes a release, to and from all partitions"))
        show.facts(rows if report is None else [*rows, ("report", str(report))])
        if model.scores_ is not None:
            show.paragraph(f"Measured on {model.scores_.n_users:,} users who were kept from training:")
            show.scores(model.scores_)
        if model.uncertainty_ is not None:
            typer.echo(str(model.summary()))
    affected = model.privacy_.affected_users
    labels = " Check --classes too: rows with other labels are left out." if model._classifies else ""
    if model.result_.message:
        show.note(in_options(model.result_.message) + (labels if model.aborted_ else ""))
    for note in model.notes_:
        show.note(note)
    if affected is not None and affected.clear:
        show.note(f"{affected} Missing cells can be filled, by --fill-missing or --columns.{labels}")
    if model.privacy_.warning:
        show.note(model.privacy_.warning, "yellow" if model.privacy_.private else "bold red")


def _weights(model: LinearModel) -> str:
    """The first class's, or the only, coefficients' head."""
    coef = np.atleast_2d(model.coef_)
    names = [str(name) for name in model.feature_names_in_]
    shown = [f"{name} {value:+.3g}" for name, value in zip(names[:_SHOWN], coef[0], strict=False)]
    shown += [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    shown += [f"intercept {np.atleast_1d(model.intercept_)[0]:+.3g}"] if model.fit_intercept else []
    head = f"(of class {model.classes_[0]}) " if len(coef) > 1 else ""
    return head + ", ".join(shown)
