"""The audit of vectors that never point apart, and of the solver that releases them."""

import itertools
import math

import numpy as np
import pytest

from userdp.auditing import pairs
from userdp.auditing.trainings import PlantedEngine, audit_canaries, audit_edges, audit_membership, training
from userdp.privacy import clip, noise
from userdp.privacy.accounting import Budget
from userdp.privacy.clip import Clip
from userdp.privacy.noise import SeededNoise
from userdp.statistics.moments import MomentShape

BUDGET = Budget(1.0, 1e-2)
KEY = ("whitened-clip", "calibrated")


def found(attack, runs, alpha=0.001):
    (pair,) = (p for p in pairs.mechanism_pairs(BUDGET) if (p.what, p.attack) == ("Clip, acute vectors", attack))
    return pair.attacked(SeededNoise(5), runs, BUDGET.delta, alpha)


def test_most_of_the_claim_is_found_and_no_more():
    finding = found("edges", 20_000)
    assert finding.holds
    assert finding.best >= 0.7
    assert found("missing", 2000).holds


def test_noise_of_one_radius_is_found_out(monkeypatch):
    """sqrt(2) taken for 1, or the noise halved."""
    honest = Clip.sensitivity
    for factor in (1 / math.sqrt(2), 0.5):
        monkeypatch.setattr(clip.Clip, "sensitivity", lambda self, *asked, f=factor: f * honest(self, *asked))
        assert not found("edges", 10_000, alpha=0.05).holds


@pytest.mark.parametrize("n_planted", [1, 3])
def test_planted_users_never_point_apart_where_that_is_guaranteed(n_planted):
    """Otherwise the audit would find more than is claimed, of vectors that no data has."""
    run = training(*KEY, BUDGET, n_features=4)
    data, users = run.generated_users(), np.arange(run.n_users)
    versions = []
    for signs in itertools.product((1, -1), repeat=n_planted):
        engine = PlantedEngine(users[:n_planted], np.array(signs), Clip(run.n_users, 1.0, acute=True))
        versions += list(engine.vectors(MomentShape(np.eye(4)), data, users, len(users))[:n_planted])
    inner = np.array(versions) @ np.array(versions).T
    assert inner.min() == 0
    assert np.diag(inner).min() > 0


def test_an_edge_is_at_a_right_angle_to_the_other():
    run = training(*KEY, BUDGET, n_features=4)
    data, users = run.generated_users(), np.arange(run.n_users)
    for acute, product in ((True, 0.0), (False, -1.0)):
        engines = [PlantedEngine(users[:1], np.array([s]), Clip(run.n_users, 1.0, acute=acute)) for s in (1, -1)]
        one, other = (e.vectors(MomentShape(np.eye(4)), data, users, len(users))[0] for e in engines)
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) == pytest.approx(product)


def test_the_whole_training_is_attacked_without_samples():
    """Samples would hide a user from some steps."""
    for n_features in (2, 8, 192):
        steps = training(*KEY, BUDGET, n_features).steps
        assert not any(step.mechanism.samples_users for step in steps)


def test_trainings_hold():
    assert audit_edges(*KEY, BUDGET, 0.01, 5, insecure_seed=1).holds
    assert audit_membership(*KEY, BUDGET, 0.01, 5, insecure_seed=1).holds
    assert audit_canaries(*KEY, BUDGET, 0.01, 4, 1, insecure_seed=1).holds


def test_canaries_find_noise_that_is_missing(monkeypatch):
    drawn = noise.gaussian_std
    monkeypatch.setattr(noise, "gaussian_std", lambda *asked: drawn(*asked) / 10)
    finding = audit_canaries(*KEY, BUDGET, 0.01, 128, 2, insecure_seed=3)
    assert not finding.holds
    assert finding.shaped > 1.5 * finding.claim
