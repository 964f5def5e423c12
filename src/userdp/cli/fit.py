"""`userdp fit`: from a table in a file to a private model in a file."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

from userdp._validate import check_counts
from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import ABORTED, InputError, expect, in_options, spending
from userdp.cli.tables import class_weights, columns_of, declare_classes, pair_of
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
from userdp.models.sklearn_compat import Execution, UtilityWarning, mode_now
from userdp.privacy.accounting import Budget, budget_for
from userdp.privacy.journal import Journal
from userdp.privacy.ledger import Ledger
from userdp.solvers import planner
from userdp.solvers.inference import DEFAULT_FRACTION, with_intervals
from userdp.solvers.planner import Solver

_CLASSIFIERS = ("logistic", "hinge", "squared_hinge")
_PARAMETERS = (  # of estimators, that are options of the same name
    *("epsilon", "delta", "max_rows_per_user", "l2", "insecure_seed", "purpose", "max_weight", "allow_weak"),
    *("evaluate", "inference", "neighbours", "unit"),
)
_OF_LOSSES = {  # what goes with these only
    **dict.fromkeys(("classes", "class_weight"), _CLASSIFIERS),
    "target_range": ("squared", "huber", "quantile", "absolute"),
    **dict.fromkeys(("max_count", "exposure"), ("poisson",)),
    "quantile": ("quantile",),
    "threshold": ("huber",),
}
_TOGETHER = {"max_exposure": "exposure", "max_weight": "weight", "store": "memory_limit"}
_PUBLIC = {
    "max_count": "the public largest count of a row, from what is counted and not from the data",
    "target_range": "a public lowest,highest of targets, from what they mean and not from the data, or private",
}
# Options of earlier journals that there are no more, with what says what happens without; the ledger is there by then.
_GONE = {"--columns-fraction": "0.1", "--inference-fraction": str(DEFAULT_FRACTION), "--ledger-budget": None}
_SHOWN = 6  # coefficients in the summary


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What `userdp fit` is given."""

    data: o.Table
    user_column: str = o.data("Column that says whose row it is.", ...)
    target: o.Target
    features: str | None = o.data("Columns or patterns, such as 'x_*,age'; in any units with the default solver.")
    columns: Path | None = o.data("Description of the columns (TOML; see `userdp columns`), instead of --features.")
    column: list[str] | None = o.data(
        "One column's description as TOML, once or more often: 'age={type=\"number\",low=0,high=100}'.", metavar="TOML"
    )
    classes: str | None = o.data("All labels there can be, such as no,yes; not needed if the column's type is boolean.")
    target_range: str | None = o.data("Public lowest,highest target, or private to learn them; cut off beyond.")
    max_count: float | None = o.MAX_COUNT
    exposure: str | None = o.EXPOSURE
    max_exposure: float | None = o.data("Public largest --exposure, needed with it; those beyond are cut off.")
    weight: str | None = o.WEIGHT
    max_weight: float | None = o.data("Public largest --weight, needed with it; those beyond are cut off.")
    class_weight: str | None = o.data("How many times rows of a class count, such as yes=5; public, else 1.")
    max_rows_per_user: int = o.data("More rows of a user are dropped at random.", 50)
    fill_missing: o.FillMissing = None
    public_data: Path | None = o.data("Table of public rows, to take scales and correlations from: saves budget.")
    memory_limit: str | None = o.data("Memory for data, such as 2GB; a larger table is sorted into a store on disk.")
    store: Path | None = o.data("Folder for the store; else beside the table. As secret as the data.")
    epsilon: o.Epsilon
    delta: float | None = o.DELTA
    neighbours: str = o.NEIGHBOURS
    unit: str | None = o.UNIT
    ledger: Path | None = o.LEDGER
    evaluate: float | None = o.privacy("Keep this fraction of the users for private scores, which cost no more.")
    dry_run: bool = o.privacy("Plan only: counts users, spends nothing.", False, "--dry-run")
    allow_weak: bool = o.privacy(
        "Go on even if noise should dominate the model or delta is large.", False, "--allow-weak"
    )
    inference: bool = o.privacy("Standard errors and 95% intervals, for a part of the budget.", False, "--inference")
    insecure_seed: o.Seed = None
    loss: o.LossName = o.LOSS
    quantile: float | None = o.model("Which one, with --loss quantile; else the median.")
    threshold: float | None = o.model("Where errors begin to count linearly, with --loss huber; else range / 10.")
    solver: str = o.model("whitened-clip (which auto takes), phased-sgd, accelerated.", "auto", metavar="NAME")
    mode: str = o.model("calibrated, or paper for the constants as printed.", "calibrated", metavar="NAME")
    max_gradients: o.MaxGradients = None
    engine: o.EngineName = o.model("local, or ray: on a Ray cluster, or one started here.", o.EngineName.local)
    address: str | None = o.model("Of a running Ray cluster: host:6379, or auto; else Ray is started here.")
    workers: int | None = o.model("Partitions of users, one processor each; else as many as the cluster has.")
    row_norm: float | None = o.ROW_NORM
    domain_radius: float | None = o.model("How long the vector of weights may be; else any, with the default solver.")
    l2: o.L2 = 0.0
    no_intercept: o.NoIntercept = False
    output: Path | None = o.output("Model to write (JSON); needed but with --dry-run.", None, "--output", "-o")
    report: Path | None = o.output("Report to write (HTML).")
    checkpoint: Path | None = o.output("Journal for `userdp resume`, if stopped. As secret as the data: delete it.")
    purpose: str = o.PURPOSE
    json: o.Json = None
    quiet: o.Quiet = False

    @property
    def of_rows(self) -> dict[str, str | None]:
        """Columns that say something of rows, as estimators call what they say."""
        counted = {"exposure": self.exposure} if self.loss == o.LossName.poisson else {}
        return {"sample_weight": self.weight} | counted

    @property
    def row_columns(self) -> list[str]:
        """Those that are there."""
        return [name for name in self.of_rows.values() if name is not None]


@o.taking(Fit)
def fit(context: typer.Context, given: Fit) -> None:
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
    _check_options(given)
    model = _estimator(given)
    table = open_table(given.data)
    schema = _declare(model, table, given)
    if given.dry_run:
        _dry_run(model, table, schema, given)
        return
    assert given.output is not None  # as was checked first
    opened = None if given.ledger is None else Ledger.open(given.ledger)
    written = (given.output, given.report, given.ledger, given.checkpoint, given.json)
    show.check_files(*written, read=[given.data, given.public_data])
    made = "No model was written."
    if given.checkpoint is not None:
        _run(model, checkpoint=Journal(given.checkpoint, _arguments(context)))
        made += f" Resume the fit with `userdp resume {given.checkpoint}`."
    with show.working(f"reading {given.data}", given.quiet or given.memory_limit is not None):
        n_users, train = _read(model, table, schema, given)
    budget = budget_for(given.epsilon, given.delta, n_users, given.neighbours)
    charged = Ledger(budget) if opened is None else opened
    model.set_params(ledger=charged)
    with spending(charged, budget, lambda: made):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UtilityWarning)
            train()
        save_model(model, given.output)
        made = f"The model is in {given.output}."
        if given.report is not None:
            from userdp.report import write_report

            write_report(model, given.report)
    if given.checkpoint is not None:
        Journal(given.checkpoint).end()
    record = {"model": str(given.output), "report": given.report and str(given.report)} | model.to_dict()
    for name in ("format", "coef", "intercept", "phases", "uncertainty", "versions"):
        del record[name]
    if not show.as_json(record, given.json):
        _summary(model, given)
    if model.aborted_:
        raise typer.Exit(ABORTED)


def _check_options(given: Fit) -> None:
    """Refuse options that do not go together, before any file is opened."""

    def option(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    loss, described = given.loss, bool(given.columns or given.column)
    expect(given.output or given.dry_run, "--output, a file to write the model to; or --dry-run, to plan only.")
    for name, losses in _OF_LOSSES.items():
        fine = getattr(given, name) is None or loss in losses
        expect(fine, f"{option(name)} with --loss {', '.join(losses)} only, got --loss {loss}: leave it out.")
    for name, needed in _TOGETHER.items():
        fine = getattr(given, name) is None or getattr(given, needed) is not None
        expect(fine, f"{option(needed)} with {option(name)}: add it, or leave that out.")
    for name, what in _PUBLIC.items():
        fine = getattr(given, name) is not None or loss not in _OF_LOSSES[name]
        expect(fine, f"{option(name)} with --loss {loss}: {what}; those beyond are cut off. Nothing was spent.")
    expect(given.quantile is None or 0 < given.quantile < 1, f"0 < --quantile {given.quantile or 0:g} < 1.")
    fine = given.engine == o.EngineName.ray or (given.address, given.workers) == (None, None)
    expect(fine, "--engine ray with --address and --workers: add that, or leave them out.")
    fine = given.memory_limit is None or not given.row_columns
    expect(fine, "no --memory-limit with --weight or --exposure: they are read into memory.")
    other = given.target != given.user_column
    expect(other, f"--target to be another column than --user-column, got {given.target!r} for both.")
    expect(
        (given.features is None) == described,
        "either --features, columns of numbers, or --columns, a file that describes them (or --column): `userdp "
        f"columns {given.data} --output columns.toml` writes a first one. Nothing was spent.",
    )
    fine = not described or given.fill_missing is None
    expect(fine, "no --fill-missing with --columns: it says that of each column.")
    budget_for(given.epsilon, given.delta, 1, given.neighbours)  # refuses what makes no sense
    check_counts(max_rows_per_user=given.max_rows_per_user)


def _estimator(given: Fit) -> LinearModel:
    """The estimator for this loss, with all its parameters that are known before a table is opened."""
    model: LinearModel
    name, ends = given.loss, cast(Any, given.target_range)
    if ends is not None and ends != PRIVATE:
        low, high = pair_of(ends, "--target-range")
        expect(low < high, f"--target-range lowest,highest, got {ends!r}.")
        ends = low, high
    if name == o.LossName.logistic:
        model = estimators.LogisticRegression()
    elif name in _CLASSIFIERS:
        model = estimators.LinearSVC(loss=str(name))
    elif name == o.LossName.poisson:
        model = estimators.PoissonRegressor(max_count=given.max_count, max_exposure=given.max_exposure)
    elif name == o.LossName.huber:
        model = estimators.HuberRegressor(target_range=ends, threshold=given.threshold)
    elif name == o.LossName.squared:
        model = estimators.LinearRegression(target_range=ends)
    else:
        quantile = 0.5 if given.quantile is None else given.quantile
        model = estimators.QuantileRegressor(target_range=ends, quantile=quantile)
    model.set_params(
        **{parameter: getattr(given, parameter) for parameter in _PARAMETERS},
        solver=_solver(given),
        execution=Execution(progress=False if given.quiet else None),
        fit_intercept=not given.no_intercept,
        columns=_described(given.columns, given.column),
    )
    return model


def _solver(given: Fit) -> Solver:
    options = {name: getattr(given, name) for name in ("mode", "row_norm", "domain_radius", "max_gradients")}
    return Solver(given.solver, **options)


def _run(model: LinearModel, **how: Any) -> None:
    """Let a model run so, and otherwise as before."""
    model.set_params(execution=replace(Execution.of(model.execution), **how))


def _declare(model: LinearModel, table: TableFile, given: Fit) -> Schema:
    """What the table's columns are for; gives the model what is public of classes, and public rows."""
    expect(
        given.features is None or given.features.strip() != "*" or table.typed,
        "--features with names, or a narrower pattern, for a file that declares no types: '*' would take columns of "
        "text for numbers that are all missing. Nothing was spent.",
    )
    features = given.features or list(model.columns or ())
    schema = Schema.declare(table.column_names, given.user_column, features, given.target)
    for name in given.row_columns:
        require_column(table.column_names, name)
        other = name not in (given.target, given.user_column)
        expect(other, f"--weight and --exposure to be other columns than target and user: {name!r}.")
    labels = declare_classes(model, table, given.target, given.classes)
    if labels is not None:
        schema = replace(schema, classes=tuple(labels))
    if given.class_weight is not None:
        model.set_params(class_weight=class_weights(given.class_weight, labels))
    if (path := given.public_data) is not None:
        other = not (path.exists() and path.samefile(given.data))
        expect(other, f"--public-data to be another table than {given.data}, whose users are protected.")
        public: Any = open_table(path)
        if model.columns is None:
            public = columns_of(public, Schema(None, schema.features), given.fill_missing)
        model.set_params(public_X=public)
    return schema


def _read(model: LinearModel, table: TableFile, schema: Schema, given: Fit) -> tuple[int, Callable[[], Any]]:
    """Read the table: how many users it has, and what trains the model on them once that is charged."""
    cluster: Any = None
    if given.engine == o.EngineName.ray:
        try:
            from userdp.engines.ray import RayEngine
        except ImportError as error:
            raise InputError(str(error)) from None
        cluster = RayEngine(given.address, given.workers)
    source = Source(given.data.name, given.target, given.user_column, given.weight, given.exposure)
    if model.columns is None and not given.row_columns:
        users = replace(_users(model, table, schema, given, cluster), source=source)
        return users.n_users, lambda: model.fit_users(users, schema.features)
    _run(model, engine=cluster)
    rows: Any = table
    if model.columns is None:
        rows = columns_of(table, Schema(None, schema.features), given.fill_missing, check=False)

    def train() -> None:
        of_rows: dict[str, Any] = {name: column and table[column] for name, column in given.of_rows.items()}
        model._fit_rows(rows, table[given.target], ids(table[given.user_column]), source=source, **of_rows)
        model._keep_names(schema.features)

    return _n_users(table, given.user_column), train


def _users(
    model: LinearModel, table: TableFile, schema: Schema, given: Fit, cluster: Any = None
) -> UserData | RemoteUsers:
    """The table's rows by user; on a cluster partitions read Parquet themselves, and get other files from here."""
    options: dict[str, Any] = {
        "max_rows_per_user": given.max_rows_per_user,
        "fit_intercept": not given.no_intercept,
        "insecure_seed": given.insecure_seed,
        "fill_missing": given.fill_missing,
        "keep_user_ids": given.checkpoint is not None,
    }
    if cluster is not None and kind_of(table.path) == "Parquet" and given.memory_limit is None:
        elsewhere: RemoteUsers = cluster.from_schema(table.path, schema, **options)
        return elsewhere
    _run(model, engine=cluster)
    options |= {"memory_limit": given.memory_limit, "store": given.store, "progress": False if given.quiet else None}
    return UserData.from_schema(table, schema, tell=show.note, **options)


def resume(
    journal: Annotated[Path, o.argument("Journal that `userdp fit --checkpoint` keeps.")],
    json: o.Json = None,
) -> None:
    """Resume a fit that was stopped or killed.

    What was released before is taken from the journal, without a look at the data; nothing is charged or released
    twice. The table, and what else the fit was given, must be where they were.

    [bold]Example[/bold]

    userdp fit visits.parquet --user-column user --target bought --classes 0,1 --features 'x_*' \\
      --epsilon 1 --delta 1e-6 --output model.json --checkpoint run.journal

    userdp resume run.journal
    """
    arguments = [*Journal(journal).command()]
    expect(arguments, f"a journal of `userdp fit`; {journal} is of a fit from Python: make that call again.")
    for option, usual in _GONE.items():
        if option in arguments and usual in (None, arguments[place := arguments.index(option) + 1]):
            del arguments[place - 1 : place + 1]
    if "--mode" in arguments:  # which journals of 0.1 name as it was called
        place = arguments.index("--mode") + 1
        arguments[place] = mode_now(arguments[place])
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


def _n_users(table: TableFile, user_column: str) -> int:
    """How many users there are, which is public."""
    owners = ids(table[user_column])
    return len(Groups.make(owners, len(owners)).offsets) - 1


def _dry_run(model: LinearModel, table: TableFile, schema: Schema, given: Fit) -> None:
    """Show the plans for the table's users, whose number is the only thing read."""
    show.check_files(given.json, read=[given.data])
    stored = given.memory_limit is not None
    n_users = _users(model, table, schema, given).n_users if stored else _n_users(table, given.user_column)
    budget = budget_for(given.epsilon, given.delta, n_users, given.neighbours)
    weak = planner.weak_delta(budget, n_users)
    n_users -= round((given.evaluate or 0.0) * n_users)
    n_features = len(schema.features if model.columns is None else model.columns.names)
    model._declare_largest(given.of_rows)
    model._declare(None)
    comparison = planner.plan(
        n_users,
        given.max_rows_per_user,
        n_features,
        budget.epsilon,
        budget.delta,
        loss=model._loss(),
        max_gradients=given.max_gradients,
        fit_intercept=not given.no_intercept,
        row_norm=given.row_norm,
        domain_radius=model._radius(),
        l2=model._penalty(),
        neighbours=given.neighbours,
    )
    size, fraction = (comparison.problem, n_users, given.max_rows_per_user), fraction_of(given.inference)

    def chosen(left: Budget) -> planner.Option:
        return planner.choose(*size, left, given.solver, given.mode, given.max_gradients)

    taken = chosen(budget) if fraction is None else with_intervals(*size, budget, fraction, chosen)
    if show.as_json(comparison.to_dict() | {"choice": taken.solver, "mode": taken.mode}, given.json):
        return
    typer.echo(
        f"{comparison}\nTaken: {taken.solver}, {taken.mode}. {n_users:,} users, {n_features} features. Nothing was "
        "read but who owns rows, and nothing was spent."
    )
    for advice in filter(None, (weak, planner.advice_on(comparison.problem, taken))):
        show.note(in_options(advice))


def _summary(model: LinearModel, given: Fit) -> None:
    """What was guaranteed, spent and learned, and what one should know of it."""
    result, statement, affected = model.result_, model.privacy_, model.privacy_.affected_users
    if not given.quiet:
        rows = [
            *show.guarantee(statement),
            ("left out", affected),
            ("solver", f"{model.solver_}, {result.mode}; {model.n_gradients_:,} gradients at most"),
            ("weights", _weights(model)),
            ("model", given.output),
            ("report", given.report),
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
