"""
A shop's table with all that is awkward
=======================================

Text ids, cities, devices, dates, missing cells, skewed money, a rare class. 8,000 users own about 74,000 rows: most
have one to three, and one has 40% of all. Private models with declared and with privately learned columns are compared
with scikit-learn's on the same features without privacy, which counts each user once too.

``python examples/awkward_shop.py 4`` gives means of four runs.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

import userdp

CITIES = {"Paris": 0.4, "Lyon": 0.25, "Nice": 0.15, "Lille": 0.12, "Brest": 0.08}
DEVICES = {"phone": 0.6, "laptop": 0.3, "tablet": 0.1}

# %%
# The table is generated, so that each row's true chance of "yes" is known.


def shop(n_users: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """The table, and each row's true chance of "yes"."""
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random(n_users) < 0.7, rng.integers(1, 4, n_users), rng.integers(4, 30, n_users))
    sizes[0] = int(0.4 / 0.6 * sizes[1:].sum())
    owner = np.repeat(np.arange(n_users), sizes)
    n = len(owner)
    age = np.clip(rng.normal(45, 16, n_users), 18, 95)[owner]
    spend = rng.lognormal(3, 1.5, n)
    city = rng.choice(list(CITIES), n_users, p=list(CITIES.values()))[owner]
    device = rng.choice(list(DEVICES), n, p=list(DEVICES.values()))
    since = pd.Timestamp("2016-01-01") + pd.to_timedelta(rng.integers(0, 3650, n), "D")
    member = rng.random(n) < 0.3
    margin = -5.9 + 0.6 * (np.log1p(np.minimum(spend, 5000)) - 3) + 0.02 * (age - 45) + 0.8 * member
    chance = expit(margin + 0.7 * (city == "Lyon") + 0.5 * (device == "tablet"))
    frame = pd.DataFrame(
        {
            "user": np.char.add("u-", owner.astype(str)),
            "age": np.where(rng.random(n) < 0.05, np.nan, age),
            "spend": spend,
            "city": np.where(rng.random(n) < 0.03, None, city),
            "device": device,
            "since": since,
            "member": member,
            "bought": np.where(rng.random(n) < chance, "yes", "no"),
        }
    ).sample(frac=1, random_state=seed)
    return frame, chance[frame.index.to_numpy()]


# %%
# What is publicly known of the columns, said once. Or less, and the rest is learned privately for a part of the budget.


def described(private: bool) -> userdp.Columns:
    """What is publicly known of the columns; or less, and the rest is learned privately."""
    spend = {"range": "private"} if private else {"low": 0, "high": 5000}
    return userdp.Columns(
        age=userdp.Number(18, 100, fill=45),
        spend=userdp.Number(**spend, transform="log1p", fill=20),
        city=userdp.Category("private", max_levels=6) if private else userdp.Category(list(CITIES)),
        device=userdp.Category("private", max_levels=4) if private else userdp.Category(list(DEVICES)),
        since=userdp.Date("2016-01-01", "2026-01-01", cycles=()),
        member=userdp.Boolean(),
    )


# %%
# Scores for other users: excess log loss over the true chances, slope of calibration (1 is best, below 1 predictions
# are too extreme), and mean prediction over the share of "yes".


def scores(chances: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Against the true chances, so that targets' luck does not count."""
    chances = np.clip(chances, 1e-9, 1 - 1e-9)
    excess = np.mean(truth * np.log(truth / chances) + (1 - truth) * np.log((1 - truth) / (1 - chances)))
    margins = logit(chances).repeat(2)[:, None]  # once for each class, weighted by its true chance
    labels, weights = np.tile([0, 1], len(truth)), np.column_stack([1 - truth, truth]).ravel()
    slope = LogisticRegression(C=np.inf).fit(margins, labels, sample_weight=weights).coef_[0, 0]
    return {"excess": excess, "slope": float(slope), "ratio": chances.mean() / truth.mean()}


def one_run(seed: int) -> dict[str, dict[str, float]]:
    frame, _ = shop(8_000, seed)
    fresh, truth = shop(10_000, 1_000 + seed)
    kept = (fresh["user"] != "u-0").to_numpy()  # whose rows would be 40% of the score
    fresh, truth = fresh[kept], truth[kept]
    found = {}
    for name, private in (("declared", False), ("learned privately", True)):
        for epsilon in (1, 8):
            model = userdp.LogisticRegression(epsilon, columns=described(private), classes=["no", "yes"])
            model.fit(frame, frame["bought"], groups=frame["user"])
            found[f"{name}, epsilon {epsilon}"] = scores(model.predict_proba(fresh)[:, 1], truth)
    columns = described(False)
    weights = 1 / frame.groupby("user")["user"].transform("size").to_numpy()
    plain = LogisticRegression(C=np.inf, max_iter=1000)
    plain.fit(columns.encode(frame), frame["bought"] == "yes", sample_weight=weights)
    found["without privacy"] = scores(plain.predict_proba(columns.encode(fresh))[:, 1], truth)
    constant = np.average(frame["bought"] == "yes", weights=weights)
    found["a constant"] = scores(np.full(len(fresh), constant), truth) | {"slope": np.nan}
    return found


def main() -> None:
    # A notebook's kernel has arguments of its own, more than one.
    runs = [one_run(seed) for seed in range(int(sys.argv[1]) if len(sys.argv) == 2 else 1)]
    means = {name: {key: np.mean([run[name][key] for run in runs]) for key in runs[0][name]} for name in runs[0]}
    print(f"{'model':34} excess log loss   slope   mean prediction / share")
    for name, mean in means.items():
        print(f"{name:34} {mean['excess']:.5f}           {mean['slope']:.2f}    {mean['ratio']:.2f}")
    draw(means)


def draw(means: dict[str, dict[str, float]]) -> None:
    _, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    titles = {"excess": "excess log loss", "slope": "slope of calibration", "ratio": "mean prediction / share"}
    for ax, (key, title) in zip(axes, titles.items(), strict=True):
        ax.barh(list(means), [mean[key] for mean in means.values()], color="lightsteelblue")
        if key == "excess":
            ax.set_xscale("log")
        else:
            ax.axvline(1, color="black", linewidth=0.8)
        ax.set_xlabel(title)
    axes[0].invert_yaxis()
    plt.show()


# %%
# 8,000 users with a class of 1.5% are few at epsilon 1: models may be worse than a constant. The planner says so
# beforehand: with 3 rows per user clipping biases classes that are rarer than about 2.3%. At epsilon 8 most of what can
# be learned is. :doc:`/columns` has means of several runs.

if __name__ == "__main__":
    print(userdp.plan(n_users=8_000, rows_per_user=3, n_features=13, epsilon=1.0).why)
    main()
