import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm
from support import SilentNoise, with_h_index
from support_audit import audited_epsilon

from userdp.paper import concentration as c
from userdp.paper.outlier_removal import SampledOutlierRemoval
from userdp.privacy import accounting
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SecureNoise, SeededNoise

RECORD = SampledOutlierRemoval(
    n_vectors=2000, sampling_probability=0.2, added_user_multiplier=4.0, deficit_std=5.0, failure=1e-6, rounds=10
)


def test_batches_are_poisson_samples():
    users = np.arange(20_000)
    chosen = RECORD.start(SecureNoise()).choose(users)
    assert abs(len(chosen) - 4000) < 6 * math.sqrt(20_000 * 0.2 * 0.8)
    assert np.all(np.diff(chosen) > 0)
    again = RECORD.start(SecureNoise()).choose(users)
    assert len(np.intersect1d(chosen, again)) < 1200, "two samples share a fifth of their users"
    assert abs(np.mean(chosen) / 10_000 - 1) < 0.06


@pytest.mark.parametrize("n_vectors", [2000, 5001, 40_000])
@pytest.mark.parametrize("failure", [1e-3, 1e-6, 1e-12])
def test_smallest_batch_is_the_largest_that_is_rare_enough_to_fall_below(n_vectors, failure):
    record = SampledOutlierRemoval(n_vectors, 0.2, 4.0, 2.0, failure, rounds=10)
    chance, smallest = failure / 2 / record.rounds, record.smallest_batch
    assert binom.cdf(smallest - 1, n_vectors - 1, 0.2) <= chance < binom.cdf(smallest, n_vectors - 1, 0.2) * (1 + 1e-6)


def test_margin_and_slack_follow_from_the_normal_tails():
    assert norm.sf((RECORD.margin + 1) / 5.0) == pytest.approx(RECORD.failure / 2, rel=1e-3)
    assert norm.sf((RECORD.margin + 1) / 5.0) <= RECORD.failure / 2
    assert norm.sf((RECORD.slack - RECORD.margin) / 5.0) <= RECORD.false_abort / RECORD.rounds
    assert norm.sf((RECORD.slack - 1 - RECORD.margin) / 5.0) > RECORD.false_abort / RECORD.rounds


def test_tolerated_outliers_add_to_the_slack():
    tolerant = SampledOutlierRemoval(2000, 0.2, 4.0, 5.0, 1e-6, rounds=10, outliers=7)
    assert (tolerant.slack, tolerant.margin, tolerant.cost) == (RECORD.slack + 7, RECORD.margin, RECORD.cost)


def test_deficit_and_mean_are_one_gaussian_release():
    cost = RECORD.cost
    (part,) = cost.subsampled
    assert 1 / part.added_user_multiplier**2 == pytest.approx(1 / 25 + 1 / 16)
    assert 1 / part.added_user_multiplier**2 >= 1 / 25 + 1 / 16
    assert (part.sampling_probability, part.steps) == (0.2, 10)
    assert cost.failure == RECORD.failure
    assert cost.gaussian == 0
    assert cost.pure == ()


TOLERANT = replace(RECORD, outliers=9)


@pytest.mark.parametrize("record", [RECORD, TOLERANT], ids=["plain", "tolerant"])
def test_what_leaves_is_the_filtered_mean_with_noise_that_does_not_tell_the_batch_size(record):
    sensitivities = set()
    for batch in (record.smallest_batch, 400, 520):
        rng = np.random.default_rng(batch)
        vectors = rng.normal(0, 0.1, (batch, 2))
        vectors[0] = np.inf
        noise = SilentNoise()
        released = record.start(noise).release(vectors, 1.0)
        np.testing.assert_allclose(released, vectors[1:].mean(axis=0))
        (_, one, deficit_std), (_, sensitivity, multiplier) = noise.asked
        assert (one, deficit_std, multiplier) == (1.0, 5.0, 4.0)
        sensitivities.add(sensitivity)
    (sensitivity,) = sensitivities
    exact = c.added_user_sensitivity(record.smallest_batch, record.slack, 1.0, record.fraction)
    assert 1.0 <= sensitivity / exact < 1 + 1e-3


def test_a_deficit_above_slack_minus_margin_aborts_and_closes_the_session():
    allowed = math.floor(RECORD.slack - RECORD.margin)
    session = RECORD.start(SilentNoise())
    session.release(with_h_index(400, 400 - allowed), 1.0)
    with pytest.raises(Aborted, match="too many users"):
        session.release(with_h_index(400, 400 - allowed - 1), 1.0)
    with pytest.raises(RuntimeError, match="aborted"):
        session.release(np.zeros((400, 1)), 1.0)


def test_a_batch_that_is_too_small_aborts_for_a_reason_that_is_not_the_data():
    with pytest.raises(Aborted, match="not due to the data"):
        RECORD.start(SilentNoise()).release(np.zeros((RECORD.smallest_batch - 1, 1)), 1.0)


def test_audit_of_a_sampled_step():
    runs, delta, epsilon, q = 4000, 1e-2, 1.0, 0.5

    def outcomes(place, shrink):
        joint = accounting.subsampled_multiplier(accounting.Budget(epsilon, delta), q, 1, accounting.Cost(failure=1e-3))
        z = math.sqrt(2) * joint / shrink
        record = SampledOutlierRemoval(1500, q, z, math.sqrt(2) * joint, failure=1e-3, false_abort=0.05)
        vectors = np.zeros((1500, 1))
        vectors[0] = 0.999 * place  # pairs exactly a radius apart would be compared one by one
        noise, values = SeededNoise(int(3 + place)), np.zeros(runs)
        for run in range(runs):
            session = record.start(noise)
            batch = vectors[session.choose(np.arange(1500))]
            try:
                values[run] = session.release(batch, 1.0)[0]
            except Aborted:
                values[run] = math.inf
        return values

    assert audited_epsilon(outcomes(1.0, 1.0), outcomes(-1.0, 1.0), delta) <= epsilon
    assert audited_epsilon(outcomes(1.0, 8.0), outcomes(-1.0, 8.0), delta) > epsilon


@pytest.mark.parametrize("batch", [330, 400])
@pytest.mark.parametrize("record", [RECORD, TOLERANT], ids=["plain", "tolerant"])
def test_partial_weights_follow_the_ramp_of_the_batch(record, batch):
    """Vectors on the edge of the radius have some neighbours: their weight is that of the batch's own ramp."""
    partial = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        vectors = rng.normal(0, 0.05, (batch, 1))
        vectors[:20] = 1.0 + rng.normal(0, 0.05, (20, 1))
        weights = c.minibatch_ramp(batch, record.slack, record.fraction).weights(c.neighbour_counts(vectors, 1.0))
        partial += bool(np.any((weights > 0) & (weights < 1)))
        released = record.start(SilentNoise(shifts=[-1000])).release(vectors, 1.0)
        np.testing.assert_allclose(released, weights @ vectors / weights.sum(), rtol=1e-9)
    assert partial > 10
