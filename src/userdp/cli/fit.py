"""`userdp fit`: from a table in a file to a private model in a file."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer

from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import ABORTED, InputError, expect, in_options, spending
from userdp.cli.tables import Ranges, check_cells, check_targets, class_weights, columns_of, declare_classes, pair_of
from userdp.data.columns import PRIVATE, Columns
from userdp.data.groups import Groups
from userdp.data.schema import Schema, ids, require_column
from userdp.data.source import Source
from userdp.data.tables import TableFile, kind_of, open_table
from userdp.data.users import RemoteUsers, UserData
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
_PARAMETERS = (  # of estimators, that are options of the same name
    *("epsilon", "delta", "solver", "mode", "max_rows_per_user", "row_norm", "domain_radius", "l2", "max_gradients"),
    *("insecure_seed", "purpose", "max_weight", "columns_fraction", "allow_weak", "evaluate"),
)
_ONE_LOSS = {"quantile": "quantile", "threshold": "huber", "max_count": "poisson", "exposure": "poisson"}
_SHOWN = 6  # coefficients in the summary


def fit(
    context: typer.Context,
    data: o.Table,
    *,
    user_column: str = o.data("Column that says whose row it is.", ...),
    target: o.Target,
    features: str | None = o.data(
        "Columns or patterns, such as 'x_*,age'; in any units (solvers but the default: of size about 1)."
    ),
    columns: Path | None = o.data(
        "Description of the columns (TOML; `userdp columns` writes a first one), instead of --features: numbers, "
        "categories, dates, text, with what is missing. Kept in the model."
    ),
    column: list[str] | None = o.data(
        "One column's description, as a line of TOML, once or more often: 'age={type=\"number\",low=0,high=100}'. "
        "Instead of --columns, or on top of it.",
        metavar="TOML",
    ),
    columns_fraction: float = o.privacy(
        'Part of the budget for what --columns and --target-range leave "private".', 0.1
    ),
    feature_range: str | None = o.data(
        "Public ranges, to scale by: 0,100 for all features, or age=0:100,spend=0:500. What is beyond is cut off in "
        "training. From what columns mean, not from the data."
    ),
    classes: str | None = o.data(
        "All labels there can be, such as no,yes. Not needed if the column is boolean by type (not CSV)."
    ),
    target_range: str | None = o.data(
        "Public lowest,highest target, for numbers, or private to learn them; those beyond are cut off."
    ),
    max_count: float | None = o.MAX_COUNT,
    exposure: str | None = o.EXPOSURE,
    max_exposure: float | None = o.data("Public largest --exposure, needed with it; those beyond are cut off."),
    weight: o.Weight = None,
    max_weight: float | None = o.data("Public largest --weight, needed with it; those beyond are cut off."),
    class_weight: str | None = o.data(
        "How many times rows of a class count, such as no=1,yes=5: public; 1 for those left out."
    ),
    max_rows_per_user: int = o.data("More rows of a user are dropped at random.", 50),
    fill_missing: o.FillMissing = None,
    public_data: Path | None = o.data(
        "Table of rows that are nobody's secret, with the same features: scales and correlations are then taken from "
        "them, which saves budget."
    ),
    memory_limit: str | None = o.data(
        "Memory for data, such as 2GB: a larger table is sorted once into a store on disk, which later fits use. "
        "Parquet and Arrow only."
    ),
    store: Path | None = o.data("Folder for the store; else beside the table. As secret as the data."),
    check_data: bool = o.data(
        "Stop at missing values and unknown labels. What that tells is NOT protected.", False, "--check-data"
    ),
    epsilon: o.Epsilon,
    delta: float | None = o.DELTA,
    ledger: Path | None = o.LEDGER,
    ledger_budget: str | None = o.privacy("Lifetime epsilon,delta of a ledger that is not there yet."),
    evaluate: float | None = o.privacy(
        "Keep this fraction of the users from training, 0.1 say, and release private scores of them: nobody pays for "
        "both, so all of it costs no more."
    ),
    dry_run: bool = o.privacy("Plan only: counts users, spends nothing.", False, "--dry-run"),
    allow_weak: bool = o.privacy(
        "Go on even if noise is expected to dominate the model, or delta is not below 1 / number of users.",
        False,
        "--allow-weak",
    ),
    inference: bool = o.privacy(
        "Standard errors and 95% intervals of the weights, for a part of the budget.", False, "--inference"
    ),
    inference_fraction: float = o.privacy("Part of the budget for --inference.", DEFAULT_FRACTION),
    insecure_seed: o.Seed = None,
    loss: o.LossName = o.LOSS,
    quantile: float | None = o.model("Which one, with --loss quantile; else the median."),
    threshold: float | None = o.model(
        "Error from which on it counts linearly, with --loss huber; else a tenth of the range."
    ),
    solver: str = o.model(
        "whitened-clip (which auto takes), phased-sgd, accelerated, or one of earlier work.", "auto", metavar="NAME"
    ),
    mode: str = o.model("tight, or paper for the constants as printed.", "tight", metavar="NAME"),
    max_gradients: o.MaxGradients = None,
    engine: o.EngineName = o.model(
        "local, or ray: on a Ray cluster, or on a Ray that is started here.", o.EngineName.local
    ),
    address: str | None = o.model("Of a running Ray cluster: host:6379, or auto; else Ray is started here."),
    workers: int | None = o.model(
        "Partitions of users, one processor each; else as many as the cluster has processors."
    ),
    row_norm: float | None = o.ROW_NORM,
    domain_radius: float | None = o.model(
        "How long the vector of weights may be; else any (others than whitened-clip: 10 x half the target range)."
    ),
    l2: o.L2 = 0.0,
    no_intercept: o.NoIntercept = False,
    output: Path | None = o.output(
        r"Model to write (JSON); not needed with --dry-run. [red]\[required][/red]", None, "--output", "-o"
    ),
    report: Path | None = o.output("Report to write (HTML)."),
    checkpoint: Path | None = o.output(
        "Journal to keep: if the fit is stopped or killed, `userdp resume` goes on with it, and nothing is spent "
        "twice. As secret as the data; delete it once the fit has ended."
    ),
    purpose: str = o.PURPOSE,
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
    given = SimpleNamespace(**locals())
    given.of_rows = {"sample_weight": weight} | ({"exposure": exposure} if loss == o.LossName.poisson else {})
    _check_options(given)
    model = _estimator(given)
    table = open_table(data)
    schema, ranges = _declare_columns(model, table, given)
    if dry_run:
        show.check_files(json, read=[data])
        stored = memory_limit is not None
        n_users = _users(model, table, schema, given).n_users if stored else _n_users(table, user_column)
        _dry_run(model, n_users, schema, classes, json)
        return
    assert output is not None  # as was checked first
    open_ledger = _ledger(ledger, ledger_budget)
    show.check_files(output, report, ledger, checkpoint, json, read=[data, public_data])
    made = "No model was written."
    if checkpoint is not None:
        model.set_params(checkpoint=Journal(checkpoint, _arguments(context)))
        made += f" Go on with `userdp resume {checkpoint}`."
    with show.working(f"reading {data}", quiet or memory_limit is not None):
        n_users, train = _read(model, table, schema, ranges, given)
    budget = budget_for(epsilon, delta, n_users)
    charged = open_ledger(budget)
    model.set_params(ledger=charged)
    with spending(charged, budget, lambda: made):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UtilityWarning)
            train()
        if ranges is not None:
            ranges.bring_back(model)
        save_model(model, output)
        made = f"The model is in {output}."
        if report is not None:
            from userdp.report import write_report

            write_report(model, report)
    if checkpoint is not None:
        Journal(checkpoint).end()
    record = {"model": str(output), "report": report and str(report)} | model.to_dict()
    for name in ("format", "coef", "intercept", "phases", "uncertainty", "versions"):
        del record[name]
    if not show.as_json(record, json):
        _summary(model, output, report, quiet)
    if model.aborted_:
        raise typer.Exit(ABORTED)


def _check_options(given: SimpleNamespace) -> None:
    """Refuse options that do not go together, before any file is opened."""
    loss, weight, exposure = given.loss, given.weight, given.exposure
    classifies, poisson = loss in _CLASSIFIERS, loss == o.LossName.poisson
    expect(
        given.output is not None or given.dry_run, "--output, a file to write the model to; or --dry-run, to plan only."
    )
    expect(
        given.classes is None or classifies,
        f"no --classes with --loss {loss}, which is for numbers: leave one of them out.",
    )
    if given.target_range is not None:
        instead = "classes: leave it out" if classifies else "counts: use --max-count"
        expect(not classifies and not poisson, f"no --target-range with --loss {loss}, which is for {instead}.")
    for name, owner in _ONE_LOSS.items():
        fine = getattr(given, name) is None or loss == owner
        option = name.replace("_", "-")
        expect(fine, f"--{option} with --loss {owner} only, got --loss {loss}: leave it out.")
    if given.quantile is not None:
        expect(0 < given.quantile < 1, f"0 < --quantile {given.quantile:g} < 1.")
    for name in ("address", "workers"):
        fine = getattr(given, name) is None or given.engine == o.EngineName.ray
        expect(fine, f"--{name} with --engine ray only: add that, or leave it out.")
    for name in ("exposure", "weight"):
        fine = getattr(given, f"max_{name}") is None or getattr(given, name) is not None
        expect(fine, f"--{name}, a column, with --max-{name}: add it, or leave that out.")
    alike = weight is None and exposure is None
    expect(
        given.memory_limit is None or alike,
        "no --memory-limit with --weight or --exposure: they are read into memory.",
    )
    expect(alike or not given.check_data, "no --check-data with --weight or --exposure: leave one of them out.")
    expect(
        not poisson or given.max_count is not None,
        "--max-count with --loss poisson: the public largest count of a row, from what is counted and not from the "
        "data; those beyond are cut off. Nothing was spent.",
    )


def _estimator(given: SimpleNamespace) -> LinearModel:
    """The estimator for this loss, with all its parameters that are known before a table is opened."""
    name, model, text = given.loss, None, given.target_range
    if name == o.LossName.logistic:
        model = estimators.LogisticRegression()
    elif name in _CLASSIFIERS:
        model = estimators.LinearSVC(loss=str(name))
    elif name == o.LossName.poisson:
        model = estimators.PoissonRegressor(max_count=given.max_count, max_exposure=given.max_exposure)
    else:
        expect(
            text is not None,
            f"--target-range lowest,highest with --loss {name}: a public range of targets, from what they mean and not "
            "from the data; those beyond are cut off. --target-range private learns it for a part of the budget. "
            "Nothing was spent.",
        )
        ends: Any = text if text == PRIVATE else pair_of(text, "--target-range")
        expect(text == PRIVATE or ends[0] < ends[1], f"--target-range lowest,highest, got {text!r}.")
        if name == o.LossName.huber:
            model = estimators.HuberRegressor(target_range=ends, threshold=given.threshold)
        elif name == o.LossName.squared:
            model = estimators.LinearRegression(target_range=ends)
        else:
            quantile = 0.5 if given.quantile is None else given.quantile
            model = estimators.QuantileRegressor(target_range=ends, quantile=quantile)
    model.set_params(
        **{parameter: getattr(given, parameter) for parameter in _PARAMETERS},
        fit_intercept=not given.no_intercept,
        verbose=False if given.quiet else None,
        unprotected_checks=given.check_data,
        columns=_described(given.columns, given.column),
        inference=given.inference_fraction if given.inference else False,
    )
    model._check_parameters()
    model._declare_largest(given.of_rows)
    model._check_evaluate(model.evaluate, given.of_rows)
    if not model._classifies:
        model._declare(None)
    return model


def _declare_columns(model: LinearModel, table: TableFile, given: SimpleNamespace) -> tuple[Schema, Ranges | None]:
    """What the table's columns are for, and the ranges that features are scaled by; gives the model public rows."""
    data, features, described = given.data, given.features, model.columns is not None
    expect(
        given.target != given.user_column,
        f"--target to be another column than --user-column, got {given.target!r} for both.",
    )
    expect(
        (features is None) == described,
        "either --features, columns of numbers, or --columns, a file that describes them (or --column): "
        f"`userdp columns {data} --output columns.toml` writes a first one. Nothing was spent.",
    )
    expect(
        not described or (given.feature_range is None and given.fill_missing is None),
        "no --feature-range or --fill-missing with --columns: it says both of each column.",
    )
    expect(
        features is None or features.strip() != "*" or table.typed,
        "--features with names, or a narrower pattern, for a file that declares no types: '*' would take columns of "
        "text for numbers that are all missing. Nothing was spent.",
    )
    schema = Schema.declare(table.column_names, given.user_column, features or list(model.columns or ()), given.target)
    for name in filter(None, given.of_rows.values()):
        require_column(table.column_names, name)
        other = name not in (given.target, given.user_column)
        expect(other, f"--weight and --exposure to be other columns than target and user: {name!r}.")
    if given.class_weight is not None:
        labels = declare_classes(model, table, given.target, given.classes)
        model.set_params(class_weight=class_weights(given.class_weight, labels))
    ranges = None if given.feature_range is None else Ranges.read(given.feature_range, schema.features)
    scales = ranges is None or not given.no_intercept
    expect(scales, "no --feature-range with --no-intercept: scaling needs an intercept.")
    if (path := given.public_data) is not None:
        other = not (path.exists() and path.samefile(data))
        expect(other, f"--public-data to be another table than {data}, whose people are protected.")
        public: Any = open_table(path)
        if not described:
            public = columns_of(public, Schema(None, schema.features), given.fill_missing)
        model.set_params(public_X=public if ranges is None else ranges.of(public))
    limited = given.store is None or given.memory_limit is not None
    expect(limited, "--memory-limit with --store: say how much memory may be used, 2GB, say.")
    return schema, ranges


def _users(
    model: LinearModel, table: TableFile, schema: Schema, given: SimpleNamespace, cluster: Any = None
) -> UserData | RemoteUsers:
    """The table's rows by user, with targets as the estimator wants them; gives the estimator its classes.

    On a cluster partitions read Parquet themselves, and get other files, or a store, from here.
    """
    labels = declare_classes(model, table, given.target, given.classes)
    if labels is not None:
        schema = replace(schema, classes=tuple(labels))
    options: dict[str, Any] = {
        "max_rows_per_user": model.max_rows_per_user,
        "fit_intercept": model.fit_intercept,
        "insecure_seed": model.insecure_seed,
        "fill_missing": given.fill_missing,
        "keep_user_ids": model.checkpoint is not None,
    }
    whole = given.memory_limit is None and not given.check_data
    if cluster is not None and kind_of(table.path) == "Parquet" and whole:
        elsewhere: RemoteUsers = cluster.from_schema(table.path, schema, **options)
        return elsewhere

    def check(name: str, values: np.ndarray) -> None:
        if name == schema.target:
            check_targets(schema, values)
        else:
            check_cells(name, values, given.fill_missing is not None)

    model.set_params(engine=cluster)
    options |= {"memory_limit": given.memory_limit, "store": given.store, "progress": False if given.quiet else None}
    return UserData.from_schema(table, schema, check=check if given.check_data else None, tell=show.note, **options)


def _read(
    model: LinearModel, table: TableFile, schema: Schema, ranges: Ranges | None, given: SimpleNamespace
) -> tuple[int, Callable[[], Any]]:
    """Read the table: how many users it has, and what trains the model on them once that is charged."""
    cluster: Any = None
    if given.engine == o.EngineName.ray:
        try:
            from userdp.engines.ray import RayEngine
        except ImportError as error:
            raise InputError(str(error)) from None
        cluster = RayEngine(given.address, given.workers)
    source = Source(given.data.name, given.target, given.user_column, given.weight, given.exposure)
    more = [name for name in given.of_rows.values() if name is not None]
    if model.columns is None and not more:
        users = _users(model, table, schema, given, cluster)
        if ranges is not None:
            users = ranges.users(users) if isinstance(users, UserData) else users.mapped(ranges.users)
        grouped = replace(users, source=source)
        return grouped.n_users, lambda: model.fit_users(grouped, schema.features)
    model.set_params(engine=cluster)
    declare_classes(model, table, given.target, given.classes)
    rows: Any = table
    if model.columns is None:
        rows = columns_of(table, Schema(None, schema.features), given.fill_missing, check=False)
        rows = rows if ranges is None else ranges.of(rows)

    def train() -> None:
        of_rows: dict[str, Any] = {name: column and table[column] for name, column in given.of_rows.items()}
        model._fit_rows(rows, table[given.target], ids(table[given.user_column]), source=source, **of_rows)
        model._keep_names(schema.features)

    return _n_users(table, given.user_column), train


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
    expect(arguments, f"a journal of `userdp fit`; {journal} is of a fit from Python: make that call again.")
    app = typer.Typer(add_completion=False)
    app.command("fit", cls=o.Command)(fit)
    app([*arguments, *([] if json is None else ["--json", str(json)])], standalone_mode=False)


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


def _ledger(path: Path | None, lifetime: str | None) -> Callable[[Budget], Ledger]:
    """What opens or makes the ledger, once a run's budget is known; refuses, before data is read, what is none."""
    if path is None:
        expect(lifetime is None, "--ledger with --ledger-budget: say where the ledger is, or leave both out.")
        return Ledger
    if path.exists():
        Ledger.open(path)
    expect(
        path.exists() or lifetime is not None,
        f"a ledger at {path}, found nothing there: for a new one add its lifetime budget, --ledger-budget 3,1e-5, "
        "say. Nothing was spent.",
    )
    if lifetime is None:
        return lambda budget: Ledger.open(path)
    total = Budget(*pair_of(lifetime, "--ledger-budget"))
    return lambda budget: Ledger(total, path)


def _n_users(table: TableFile, user_column: str) -> int:
    """How many users there are, which is public."""
    owners = ids(table[user_column])
    return len(Groups.make(owners, len(owners)).offsets) - 1


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
    for advice in filter(None, (weak, planner.advice_on(comparison.problem, taken))):
        show.note(in_options(advice))


def _summary(model: LinearModel, output: Path | None, report: Path | None, quiet: bool) -> None:
    """What was guaranteed, spent and learned, and what one should know of it."""
    result, statement, affected = model.result_, model.privacy_, model.privacy_.affected_users
    if not quiet:
        rows = [
            *show.guarantee(statement),
            ("left out", affected),
            ("solver", f"{model.solver_}, {result.mode}; {model.n_gradients_:,} gradients at most"),
            ("weights", _weights(model)),
            ("model", output),
            ("report", report),
        ]
        show.facts(rows)
        if model.scores_ is not None:
            show.paragraph(f"Measured on {model.scores_.n_users:,} users who were kept from training:")
            show.scores(model.scores_)
        if model.uncertainty_ is not None:
            typer.echo(str(model.summary()))
    labels = " Check --classes too: rows with other labels are left out." if model._classifies else ""
    if result.message:
        show.note(in_options(result.message) + (labels if model.aborted_ else ""))
    for note in model.notes_:
        show.note(note)
    if affected is not None and affected.clear:
        show.note(f"{affected} Missing cells can be filled, by --fill-missing or --columns.{labels}")
    if statement.warning:
        show.note(statement.warning, "yellow" if statement.private else "bold red")


def _weights(model: LinearModel) -> str:
    """The first class's, or the only, coefficients' head."""
    coef = np.atleast_2d(model.coef_)
    names = [str(name) for name in model.feature_names_in_]
    shown = [f"{name} {value:+.3g}" for name, value in zip(names[:_SHOWN], coef[0], strict=False)]
    shown += [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    shown += [f"intercept {np.atleast_1d(model.intercept_)[0]:+.3g}"] if model.fit_intercept else []
    head = f"(of class {model.classes_[0]}) " if len(coef) > 1 else ""
    return head + ", ".join(shown)
