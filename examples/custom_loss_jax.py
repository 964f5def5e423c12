"""Bring your own loss: differentiate it with JAX and use it as a per-user statistic.

Each user's gradient is computed from that user's rows alone, which is all that the privacy layer asks for. The
example writes the logistic loss in JAX, and compares with the library's compiled one.

    pip install "userdp[jax]"
    python examples/custom_loss_jax.py
"""

import jax
import jax.numpy as jnp
import numpy as np

from userdp.data import UserData
from userdp.losses import logistic
from userdp.statistics import MeanGradient, UserGradients


def mean_loss(weights, rows, targets):
    """Mean logistic loss over the rows of one user; write any differentiable loss here."""
    signs = jnp.where(targets > 0, 1.0, -1.0)
    return jnp.mean(jnp.logaddexp(0.0, -signs * (rows @ weights)))


gradient = jax.jit(jax.grad(mean_loss))


def main() -> None:
    rng = np.random.default_rng(0)
    n_users, rows_per_user, n_features = 200, 10, 5
    X = rng.standard_normal((n_users * rows_per_user, n_features)).astype(np.float32)
    y = rng.integers(0, 2, len(X))
    data = UserData.from_arrays(X, y, users=np.repeat(np.arange(n_users), rows_per_user))
    weights, users = np.linspace(-1, 1, n_features), np.arange(n_users)

    by_jax = UserGradients(gradient, weights)
    by_jax.check(n_features, data.rows.dtype)  # finds mistakes on made-up rows, before any data is touched
    vectors = by_jax(data, users, n_groups=n_users)
    compiled = MeanGradient(logistic, weights)(data, users, n_groups=n_users)

    print(data)
    print(f"one gradient a user: {vectors.shape} {vectors.dtype}")
    print(f"agrees with the compiled loss to 1e-6: {np.allclose(vectors, compiled, atol=1e-6)}")


if __name__ == "__main__":
    main()
