"""
Bring your own loss
===================

Differentiate any loss with JAX, and train with private means of the users' gradients. Each user's gradient is computed
from that user's rows alone, which is all that the privacy layer asks for. The loss here is the logistic one, so that
the result can be compared; write any differentiable loss.

Run it with ``pip install "userdp[jax]" && python examples/custom_loss_jax.py``.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import userdp

# %%
# The mean loss over the rows of one user, and its gradient.


def mean_loss(weights, rows, targets):
    signs = jnp.where(targets > 0, 1.0, -1.0)
    return jnp.mean(jnp.logaddexp(0.0, -signs * (rows @ weights)))


gradient = jax.jit(jax.grad(mean_loss))

# %%
# Plan and certify from public numbers, charge the ledger, and only then touch data: a private search finds how far
# users' gradients are apart, then each step is a private mean of them.


def main(n_users: int = 3_000, n_steps: int = 20) -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(n_users), 8)
    X = rng.uniform(-1, 1, (len(users), 3))
    y = rng.random(len(users)) < 1 / (1 + np.exp(-2 * X[:, 0] + X[:, 1]))
    data = userdp.UserData.from_arrays(X, y, users)

    budget = userdp.Budget(2.0, 1e-6)
    plan = userdp.plan_means(n_users, budget, rounds=n_steps)
    curator = userdp.Curator(data, plan, userdp.Ledger(budget), purpose="custom loss")

    weights = np.zeros(3)
    # Two users' gradients are at most 2 sqrt(3) apart; the search finds privately how much closer they are.
    (radius,) = curator.release("radius", userdp.UserGradients(gradient, weights), 2 * np.sqrt(3))
    path = [weights]
    for _ in range(n_steps):
        step = curator.release("mean", userdp.UserGradients(gradient, weights), 1.5 * radius)
        weights = weights - 2.0 * step
        path.append(weights)

    print(f"private weights {weights.round(2)}, the truth is [2, -1, 0]")
    _, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    axes.plot(path, label=["first weight", "second", "third"])
    for truth in (2, -1, 0):
        axes.axhline(truth, color="gray", linewidth=0.8, linestyle="--")
    axes.set(xlabel="step", ylabel="weight; dashed: the truth")
    axes.legend()
    plt.show()


if __name__ == "__main__":
    main()
