"""`userdp-bench`: solvers measured side by side."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from userdp.cli import errors, show
from userdp.cli import options as o
from userdp.cli.audit import audit
from userdp.cli.errors import InputError, guarded
from userdp_research import options as read
from userdp_research.bench.cells import NOTE, Cell, Measure, Store, provenance, read_records, run_cells
from userdp_research.bench.generated import QUICK, SCENARIOS, with_sizes
from userdp_research.bench.grid import grid_cells, grid_competitors, measure_grid
from userdp_research.bench.peers import find_peers, measure_peers, peer_cells
from userdp_research.bench.real import competitors, measure_real, real_cells
from userdp_research.bench.solving import AUTO, NON_PRIVATE, entries
from userdp_research.bench.summary import exponent_rows, grid_rows, peer_rows, real_rows, refusals, risk_rows, verdicts
from userdp_research.bench.table import measure_table, table_cells

errors.PACKAGES.append(f"{Path(__file__).parent}{os.sep}")
app = typer.Typer(
    name="userdp-bench",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
GRID = "What is measured"
EXCESS = "Loss above that of"
YARD = "mean ± standard deviation of runs; yard: what privacy and data cost at least, about; ratio: excess / yard"


@app.callback()
def top() -> None:
    """Measure solvers side by side; results are kept cell by cell, and the same command goes on where it stopped.

    Protected: nobody. Runs are seeded and scored on the data itself: for data that may be published.

    [bold]Example[/bold]

    userdp-bench table --solvers phased-sgd,accelerated --repeats 3

    userdp-bench real --data visits.parquet --user person --target bought --features 'x_*' --users 2000,all

    userdp-bench plot userdp-bench-real.json --out pictures
    """


app.command("audit", cls=o.Command)(guarded(audit))


def _grid(help: str) -> Any:
    return o.option(GRID, help, default=True)


Solvers = Annotated[str, _grid("Names with commas between, or all; phased-sgd:paper is the paper's mode.")]
Epsilons = Annotated[str, _grid("Epsilons with commas between.")]
Delta = Annotated[float, _grid("The same for all.")]
Users = Annotated[str, _grid("Numbers of training users; all is everybody.")]
Repeats = Annotated[int, _grid("Runs of each cell.")]
Rows = Annotated[str, _grid("Rows that are kept of each training user, at random.")]
Data = Annotated[Path | None, o.option(o.DATA, "Parquet, CSV or Arrow file; else the known data sets, where they are.")]
UserColumn = Annotated[str, o.option(o.DATA, "Column that says whose row it is.", default=True)]
Target = Annotated[str | None, o.option(o.DATA, "Column to predict, 0 or 1; needed with --data.")]
Features = Annotated[str, o.option(o.DATA, "Columns or patterns with commas between.", default=True)]
Fold = Annotated[
    str | None, o.option(o.DATA, "Column that says which users are for the test; else a fifth is held out.")
]
TestFolds = Annotated[str, o.option(o.DATA, "Values of --fold that mark test users.", default=True)]
Workers = Annotated[int, o.option(o.OUTPUT, "Processes, of one thread each if several.", default=True)]
Again = Annotated[bool, o.option(o.OUTPUT, "Measure what is done already once more.", "--again")]
Out = Annotated[Path, o.option(o.OUTPUT, "File of results.", default=True)]
Plot = Annotated[Path | None, o.option(o.OUTPUT, "Folder to draw pictures into (SVG).")]


@app.command(cls=o.Command)
@guarded
def table(
    solvers: Solvers = "all",
    users: Annotated[str, _grid("Numbers of users, the usual one first.")] = "10000,2500,40000",
    rows_per_user: Annotated[str, _grid("Rows per user, the usual number first.")] = "10,3,30",
    features: Annotated[str, _grid("Numbers of features, the usual one first.")] = "10,3,30",
    epsilon: Annotated[str, _grid("Epsilons, the usual one first.")] = "1,0.5,4",
    delta: Delta = 1e-6,
    repeats: Repeats = 5,
    workers: Workers = 1,
    again: Again = False,
    out: Out = Path("userdp-bench-table.json"),
    plot: Plot = None,
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """The paper's table with measured columns, on generated users.

    Protected: nobody has to be, the users are generated.

    [bold]Example[/bold]

    userdp-bench table --solvers phased-sgd,accelerated --repeats 3 --plot pictures
    """
    cells = table_cells(
        read.names(solvers, entries()),
        read.counts(users, "--users"),
        read.counts(rows_per_user, "--rows-per-user"),
        read.counts(features, "--features"),
        read.epsilons(epsilon, delta),
        delta,
        read.count(repeats, "--repeats"),
    )
    records, quiet = _measured(cells, measure_table, out, workers, again, json, quiet)
    if not quiet:
        show.grid(*exponent_rows(records), title="Exponents of gradients: measured from plans (theorem)")
        show.grid(*risk_rows(records), title="Excess risk at equal privacy: mean ± standard deviation of runs")
        show.paragraph(*refusals(records))
    _draw(records, plot, quiet)


@app.command(cls=o.Command)
@guarded
def real(
    data: Data = None,
    user: UserColumn = "user",
    target: Target = None,
    features: Features = "x_*",
    fold: Fold = None,
    test_folds: TestFolds = "8,9",
    rows: Rows = "30",
    row_norm: float | None = o.ROW_NORM,
    tasks: Annotated[str, o.option(o.DATA, "Without --data: names of known tasks.", default=True)] = "all",
    solvers: Annotated[str, _grid("As in `table`; also oracle (tuned on the test users) and not-private.")] = "all",
    epsilon: Epsilons = "0.1,0.5,1,2,8",
    users: Users = "2000,5000,10000,all",
    passes: Annotated[str, _grid("Limits on passes over the users; unlimited is no limit.")] = "1,5,20,200,unlimited",
    delta: Delta = 1e-6,
    repeats: Repeats = 5,
    workers: Workers = 1,
    again: Again = False,
    out: Out = Path("userdp-bench-real.json"),
    plot: Plot = None,
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """Every solver on real users, beside the best tuned DP-SGD and beside no privacy.

    Protected: nobody. Runs are seeded and scored on the data itself: for data that may be published.

    [bold]Example[/bold]

    userdp-bench real --data visits.parquet --user person --target bought --features 'x_*' --users 2000,all
    """
    found = read.tasks(data, user, target, features, fold, test_folds, rows, row_norm, tasks)
    cells = real_cells(
        found,
        read.names(solvers, competitors()),
        read.whole(users, "--users", "all"),
        read.epsilons(epsilon, delta),
        read.whole(passes, "--passes", "unlimited"),
        delta,
        read.count(repeats, "--repeats"),
    )
    if not cells:
        raise InputError("Expected --users that the data has, got more than there are: use --users all.")
    records, quiet = _measured(cells, measure_real, out, workers, again, json, quiet)
    if not quiet:
        show.grid(*real_rows(records), title=f"{EXCESS} no privacy, all users; {YARD}")
        show.paragraph(*verdicts(records))
    _draw(records, plot, quiet)


@app.command(cls=o.Command)
@guarded
def grid(
    only: Annotated[str, _grid("Names of scenarios with commas between, or all.")] = "all",
    solvers: Annotated[str, _grid("As in `table`; also not-private.")] = AUTO,
    users: Annotated[str | None, o.option(GRID, "Numbers of users; else each scenario's own.")] = None,
    epsilon: Epsilons = "0.1,0.5,1,4,8",
    sizes: Annotated[
        str | None, o.option(GRID, "Rows of users where they are unequal, in turn, such as 1,300.")
    ] = None,
    cap: Annotated[int | None, o.option(GRID, "Rows that are kept of a user where they are unequal.")] = None,
    quick: Annotated[bool, _grid("A few scenarios, the fewest users, epsilon 4, one run: does it work?")] = False,
    delta: Delta = 1e-6,
    repeats: Repeats = 5,
    workers: Workers = 1,
    again: Again = False,
    out: Out = Path("userdp-bench-grid.json"),
    plot: Plot = None,
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """Solvers on generated users whose best model is known: few rows, unequal users, rare classes, odd units.

    Protected: nobody has to be, the users are generated.

    [bold]Example[/bold]

    userdp-bench grid --only few-weights,rare-1 --epsilon 1,8 --workers 2
    """
    rows = None if sizes is None else read.counts(sizes, "--sizes")
    most = None if cap is None else read.count(cap, "--cap")
    names = read.names(only, list(SCENARIOS), "--only")
    names = [name for name in names if name in QUICK] if quick and only == "all" else names
    chosen = [with_sizes(SCENARIOS[name], rows, most) for name in names]
    numbers = None if users is None else read.counts(users, "--users")
    if quick:
        chosen = [replace(scenario, users=scenario.users[:1]) for scenario in chosen]
    cells = grid_cells(
        chosen,
        read.names(solvers, grid_competitors()),
        numbers,
        [4.0] if quick else read.epsilons(epsilon, delta),
        delta,
        1 if quick else read.count(repeats, "--repeats"),
    )
    records, quiet = _measured(cells, measure_grid, out, workers, again, json, quiet)
    if not quiet:
        show.grid(*grid_rows(records), title=f"{EXCESS} the truth; {YARD}; estimate!: the plan warns")
        show.paragraph(*verdicts(records))
    _draw(records, plot, quiet)


@app.command(cls=o.Command)
@guarded
def peers(
    data: Data = None,
    user: UserColumn = "user",
    target: Target = None,
    features: Features = "x_*",
    fold: Fold = None,
    test_folds: TestFolds = "8,9",
    rows: Rows = "30",
    row_norm: float | None = o.ROW_NORM,
    only: Annotated[str, _grid("Names of peers with commas between, or all.")] = "all",
    epsilon: Epsilons = "0.5,1,2,8",
    users: Users = "all",
    passes: Annotated[int, _grid("Passes that peers are asked to make.")] = 20,
    settings: Annotated[list[str] | None, o.option(GRID, "NAME=VALUE for the peers' settings.", "--set")] = None,
    delta: Delta = 1e-6,
    repeats: Repeats = 3,
    timeout: Annotated[float, _grid("Seconds that one run of a peer may take.")] = 3600.0,
    folder: Annotated[Path | None, typer.Option("--peers", help="Folder of peers; else research/peers.")] = None,
    envs: Annotated[Path, o.option(o.OUTPUT, "Folder for their environments.", default=True)] = Path(".userdp-peers"),
    again: Again = False,
    out: Out = Path("userdp-bench-peers.json"),
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """Other libraries on the same users, each installed into an environment of its own.

    Protected: nobody. Runs are seeded and scored on the data itself: for data that may be published.

    [bold]Example[/bold]

    userdp-bench peers --only opacus --epsilon 1,8 --users 5000
    """
    found = find_peers(folder)
    chosen = {name: found[name] for name in read.names(only, list(found), "--only")}
    known = "openpowerlifting,online_retail"
    task = read.tasks(data, user, target, features, fold, test_folds, rows, row_norm, known)[0]
    sizes, epsilons = read.whole(users, "--users", "all"), read.epsilons(epsilon, delta)
    runs, more = read.count(repeats, "--repeats"), dict(map(read.setting, settings or []))
    limit = read.count(passes, "--passes")
    cells = real_cells([task], [AUTO, NON_PRIVATE], sizes, epsilons, [None], delta, runs)
    cells += peer_cells(chosen, task, sizes, epsilons, delta, runs, limit, more, envs, timeout)
    records, quiet = _measured(cells, measure_peers, out, 1, again, json, quiet)
    if not quiet:
        show.grid(*peer_rows(records), title=f"{task.name}: log loss of rows above no privacy, all users")


@app.command()
@guarded
def plot(
    results: Annotated[list[Path], o.argument("Files that `userdp-bench` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.", show_default=False)],
    only: Annotated[str | None, o.option(GRID, "Data sets and scenarios to draw, with commas between.")] = None,
    epsilon: Annotated[float, _grid("Where a picture is of one epsilon: the nearest to this one.")] = 1.0,
) -> None:
    """Draw results: risk against epsilon, passes and rows per user; calibration; estimates; gradients against users.

    Protected: nobody. What the pictures show is not private.

    [bold]Example[/bold]

    userdp-bench plot userdp-bench-real.json userdp-bench-table.json --out pictures
    """
    records = [record for path in results for record in read_records(path)]
    _draw(records, out, quiet=False, only=tuple((only or "").replace(",", " ").split()), epsilon=epsilon)


def _measured(
    cells: list[Cell], measure: Measure, out: Path, workers: int, again: bool, json: Path | None, quiet: bool
) -> tuple[list[dict[str, Any]], bool]:
    """Measure what is not done yet; gives all of it, to where `--json` says too, and whether stdout is to be quiet."""
    show.check_files(json, read=[out])
    threads = {"workers": read.count(workers, "--workers"), "threads": "all" if workers == 1 else 1}
    store = Store(out, provenance() | threads)
    if not quiet:
        show.note(NOTE, "bold red")
    new = run_cells(cells, measure, store, workers, again, quiet)
    if not quiet:
        show.note(f"{new} cells measured, {len(cells) - new} were there already: {out}", "dim")
    records = store.records(cells)
    return records, show.as_json({"results": records}, json) or quiet


def _draw(
    records: Sequence[dict[str, Any]],
    folder: Path | None,
    quiet: bool,
    only: tuple[str, ...] = (),
    epsilon: float = 1.0,
) -> None:
    if folder is None:
        return
    from userdp_research.bench.plots import plot_records

    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder at {folder} to draw into, got a file: choose another name.")
    drawn = plot_records(records, folder, only, epsilon)
    if not quiet:
        show.paragraph("Drawn: " + (", ".join(map(str, drawn)) or "nothing, there are no results to draw."))


def main() -> None:
    """The program `userdp-bench`."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    app(prog_name="userdp-bench")
