"""
From a Parquet file to a model, its file and its report
=======================================================

A file with a column of users, a ledger, a fit, and what you hand over. Give a folder to keep what is written:
``python examples/tabular_parquet.py shop``. The same from the command line::

    userdp fit shop/visits.parquet --user-column user --target bought --features 'x_*' --fill-missing 0 \\
        --max-rows-per-user 30 --epsilon 1 --delta 5e-7 --output model.json --report report.html
"""

import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import userdp
from userdp.report import write_report

# %%
# Generated visits of 8,000 users to a shop; some cells are missing.


def write_visits(path: Path) -> None:
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(8_000), rng.integers(1, 40, 8_000))
    age, income, visits = rng.uniform(-1, 1, (3, len(user)))
    bought = rng.random(len(user)) < 1 / (1 + np.exp(-2 * age + income))
    income[rng.random(len(user)) < 0.02] = np.nan
    names = [f"user-{i}" for i in user]
    pq.write_table(
        pa.table({"user": names, "x_age": age, "x_income": income, "x_visits": visits, "bought": bought}), path
    )


# A notebook's kernel has arguments of its own, more than one.
folder = Path(sys.argv[1] if len(sys.argv) == 2 else tempfile.mkdtemp())
folder.mkdir(exist_ok=True)
write_visits(folder / "visits.parquet")

# %%
# Rows are grouped by user while the file is read. Missing cells are filled with a number that was chosen without
# looking at the data.
data = userdp.UserData.from_parquet(
    folder / "visits.parquet",
    user="user",
    target="bought",
    features="x_*",
    fit_intercept=True,
    max_rows_per_user=30,
    fill_missing=0.0,
)

# %%
# The ledger is the data set's lifetime budget. It is charged before anything is computed.
ledger = userdp.Ledger(userdp.Budget(2.0, 1e-6), folder / "ledger.db")
model = userdp.LogisticRegression(epsilon=1.0, delta=5e-7, max_rows_per_user=30, classes=[False, True], ledger=ledger)
model.fit_users(data, feature_names=["x_age", "x_income", "x_visits"])
print(model.privacy_)
print(f"spent: epsilon {ledger.spent_epsilon():.2f} of {ledger.budget.epsilon:g}")

# %%
# What you hand over: the model as JSON and the report as one HTML file.
saved = userdp.save_model(model, folder / "model.json"), write_report(model, folder / "report.html")
print("saved:", *(path.name for path in saved))

# %%
# Rows were made by a known model, so that coefficients can be compared with the truth.
_, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
axes.barh(model.feature_names_in_, model.coef_[0], color="lightsteelblue", label="private, epsilon 1")
axes.plot([2, -1, 0], model.feature_names_in_, "k|", markersize=22, label="the truth")
axes.axvline(0, color="gray", linewidth=0.8)
axes.set_xlabel("coefficient")
axes.legend()
plt.show()
