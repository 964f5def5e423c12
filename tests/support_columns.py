"""An awkward table: ids and cities as text, dates, skewed money, missing cells, and one user with 40% of the rows."""

import numpy as np
import pandas as pd

from userdp import Category, Columns, Date, Number

COLUMNS = Columns(
    age=Number(0, 100, fill=40),
    spend=Number(0, 5000, transform="log1p", fill=0),
    city=Category(["Paris", "Lyon"]),
    device=Category(["phone", "laptop"]),
    since=Date(),
)
PRIVATE = Columns(
    {
        **COLUMNS,
        "age": Number(range="private", fill="private"),
        "spend": Number(range="private", transform="log1p", fill=0),
        "city": Category("private"),
    }
)


def shop(n_users, seed=0):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rng.choice([1, 2, 3, 8], n_users, p=[0.4, 0.3, 0.2, 0.1]))
    users = np.concatenate([users, np.zeros(2 * len(users) // 3, dtype=int)])
    n = len(users)
    frame = pd.DataFrame(
        {
            "user": [f"u{number}" for number in users],
            "age": rng.uniform(18, 90, n),
            "spend": rng.lognormal(3, 1.5, n),
            "city": rng.choice(["Paris", "Lyon", "Nice", "Rare"], n, p=[0.5, 0.3, 0.197, 0.003]),
            "device": rng.choice(["phone", "laptop", "tv"], n, p=[0.6, 0.399, 0.001]),
            "since": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 3600, n), "D"),
        }
    )
    score = 0.03 * (frame["age"] - 50) + 0.5 * (np.log1p(frame["spend"]) - 3) + (frame["city"] == "Lyon") - 1
    frame["bought"] = np.where(rng.random(n) < 1 / (1 + np.exp(-score)), "yes", "no")
    for name in ("age", "spend", "city", "since"):
        frame.loc[rng.random(n) < 0.05, name] = None
    return frame
