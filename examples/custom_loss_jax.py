"""Bring your own loss: differentiate it with JAX, and train with private means of the users' gradients.

Each user's gradient is computed from that user's rows alone, which is all that the privacy layer asks for. The loss
here is the logistic one, so that the result can be compared; write any differentiable loss.

    pip install "userdp[jax]"
    python examples/custom_loss_jax.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import userdp


def mean_loss(weights, rows, targets):
    """Mean loss over the rows of one user."""
    signs = jnp.where(targets > 0, 1.0, -1.0)
    return jnp.mean(jnp.logaddexp(0.0, -signs * (rows @ weights)))


gradient = jax.jit(jax.grad(mean_loss))


def main(n_users: int = 3_000, n_steps: int = 20) -> None:
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(n_users), 8)
    X = rng.uniform(-1, 1, (len(people), 3))
    y = rng.random(len(people)) < 1 / (1 + np.exp(-2 * X[:, 0] + X[:, 1]))
    data = userdp.UserData.from_arrays(X, y, people)

    # Plan and certify from public numbers, charge the ledger, and only then touch data.
    budget = userdp.Budget(2.0, 1e-6)
    plan = userdp.plan_means(n_users, budget, rounds=n_steps)
    curator = userdp.Curator(data, plan, userdp.Ledger(budget), purpose="custom loss")

    weights = np.zeros(3)
    # Two users' gradients are at most 2 sqrt(3) apart; the search finds privately how much closer they are.
    (radius,) = curator.release("radius", userdp.UserGradients(gradient, weights), 2 * np.sqrt(3))
    for _ in range(n_steps):
        step = curator.release("mean", userdp.UserGradients(gradient, weights), 1.5 * radius)
        weights = weights - 2.0 * step

    print(f"private weights {weights.round(2)}, the truth is [2, -1, 0]")


if __name__ == "__main__":
    main()
