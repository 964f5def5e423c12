"""From a Parquet file with a user column to a private model, its file and its report.

    python examples/tabular_parquet.py [folder]     keeps its files only if a folder is given

The same from the command line: userdp fit visits.parquet --user-column person --target bought --features 'x_*'
--fill-missing 0 --epsilon 1 --delta 5e-7 --output model.json --report report.html
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import userdp
from userdp.report import write_report


def write_visits(path: Path) -> None:
    """Generated visits of 8,000 people to a shop; some cells are missing."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(8_000), rng.integers(1, 40, 8_000))
    age, income, visits = rng.uniform(-1, 1, (3, len(person)))
    bought = rng.random(len(person)) < 1 / (1 + np.exp(-2 * age + income))
    income[rng.random(len(person)) < 0.02] = np.nan
    names = [f"person-{i}" for i in person]
    pq.write_table(
        pa.table({"person": names, "x_age": age, "x_income": income, "x_visits": visits, "bought": bought}), path
    )


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "visits.parquet"
    write_visits(path)

    # Missing cells are filled with a number that was chosen without looking at the data.
    data = userdp.UserData.from_parquet(
        path,
        user="person",
        target="bought",
        features="x_*",
        fit_intercept=True,
        max_rows_per_user=30,
        fill_missing=0.0,
    )
    ledger = userdp.Ledger(userdp.Budget(2.0, 1e-6), folder / "ledger.db")  # the data set's lifetime budget
    model = userdp.LogisticRegression(
        epsilon=1.0, delta=5e-7, max_rows_per_user=30, classes=[False, True], ledger=ledger
    )
    model.fit_users(data, feature_names=["x_age", "x_income", "x_visits"])

    print(dict(zip(model.feature_names_in_, model.coef_[0].round(2), strict=True)), "(the truth: 2, -1, 0)")
    print(model.privacy_)
    print(
        "saved:", userdp.save_model(model, folder / "model.json").name, write_report(model, folder / "report.html").name
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
