"""JAX Privacy: DP-SGD on users by its UserSelectionStrategy, clipped_grad and Gaussian privatizer.

Users are Poisson sampled; a user's gradient is the mean over max_rows_per_user of its rows, taken in turn, and is
clipped whole. The accountant's neighbours add or remove a user; a replacement of a user is two such steps.
"""

import sys
from math import ceil, sqrt
from pathlib import Path
from time import perf_counter

import dp_accounting
import jax
import numpy as np
import optax
from dp_accounting.pld import PLDAccountant
from jax_privacy import batch_selection, clipping, noise_addition
from jax_privacy.experimental import accounting

sys.path.insert(0, str(Path(__file__).parent.parent))
from job import read_job

job = read_job()
epsilon, delta = job.add_or_remove
start = perf_counter()
noise = dp_accounting.calibrate_dp_mechanism(
    PLDAccountant,
    lambda sigma: accounting.dpsgd_event(sigma, job.steps, sampling_prob=1 / job.steps_per_pass),
    epsilon,
    delta,
)
noise_seconds = perf_counter() - start


def loss(weights, X, y):
    return optax.sigmoid_binary_cross_entropy(X @ weights, y).mean()


expected_users = job.n_users / job.steps_per_pass
padded_users = min(job.n_users, ceil(expected_users + 4 * sqrt(expected_users)))  # one shape: one compilation
clipped = clipping.clipped_grad(
    loss, batch_argnums=(1, 2), keep_batch_dim=False, l2_clip_norm=job.clip, normalize_by=expected_users
)
optimizer = optax.chain(
    noise_addition.gaussian_privatizer(stddev=noise * clipped.sensitivity(), prng_key=jax.random.key(job.seed)),
    optax.sgd(job.learning_rate),
)
gradient, update = jax.jit(clipped), jax.jit(optimizer.update)
selection = batch_selection.UserSelectionStrategy(
    batch_selection.CyclicPoissonSampling(
        sampling_prob=1 / job.steps_per_pass,
        iterations=job.steps,
        partition_type=batch_selection.PartitionType.INDEPENDENT,
    ),
    examples_per_user_per_batch=job.max_rows_per_user,
)
note = (
    f"untuned SGD: clip {job.clip:g}, learning rate {job.learning_rate:g}, {job.steps} steps, "
    f"sample rate {1 / job.steps_per_pass:.4g}, noise multiplier {noise:.4g}, last iterate"
)


def train():
    weights = np.zeros(job.X.shape[1], np.float32)
    state = optimizer.init(weights)
    for users in selection.batch_iterator(job.users, rng=job.seed):
        total = 0.0
        for rows in batch_selection.split_and_pad_global_batch(users, padded_users):
            total += gradient(weights, job.X[rows], job.y[rows], is_padding_example=rows[:, 0] < 0)
        step, state = update(total, state)
        weights = optax.apply_updates(weights, step)
    return np.asarray(weights), note


job.run(
    peer="jax-privacy",
    package="jax-privacy",
    guarantee=f"user-level ({job.epsilon:g}, {job.delta:g}), replacement: users Poisson sampled; removal + addition at "
    "(epsilon/2, delta/(1+e^(epsilon/2))); PLD accountant",
    train=train,
    noise_seconds=noise_seconds,
)
