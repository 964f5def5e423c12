"""Shrinkage by known noise: signal stays, noise goes, intercepts are apart, and the mean prediction stays."""

import math

import numpy as np
import pytest
from scipy.special import expit

from userdp import losses
from userdp.solvers.shrinkage import Axes, curved_along, same_mean
from userdp.solvers.whitening import Coordinates


def axes_of(basis, intercept=True, scales=None):
    return Axes.of(Coordinates(basis, scales), intercept)


@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("scales", [None, np.array([2.0, 1.0, 1.0])])
def test_axes_are_those_of_the_features_about_their_mean(offset, scales):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, 2))
    covariance, mean = root @ root.T, offset * rng.normal(size=2)
    moment = np.block([[covariance + np.outer(mean, mean), mean[:, None]], [mean[None], np.ones((1, 1))]])
    coordinates = Coordinates(np.linalg.inv(np.linalg.cholesky(moment)).T, scales)
    axes = Axes.of(coordinates, True)
    np.testing.assert_allclose(axes.rotation.T @ axes.rotation, np.eye(3), atol=1e-8)
    units = np.sqrt(np.diag(covariance)) if scales is None else scales[:2]
    np.testing.assert_allclose(axes.variances[:2], np.linalg.eigvalsh(covariance / np.outer(units, units)), rtol=1e-6)
    np.testing.assert_array_equal(axes.known, 1.0)
    assert axes.level == pytest.approx(1.0)
    np.testing.assert_allclose(axes.along(coordinates.constant)[0], [0.0, 0.0, 1.0], atol=1e-8)
    weights = rng.normal(size=3)
    predicted = mean @ weights[:2] + weights[2]
    level, square = axes.mean_and_square(coordinates.from_weights(weights))
    assert level == pytest.approx(predicted)
    assert square - level**2 == pytest.approx(weights[:2] @ covariance @ weights[:2], rel=1e-6)
    np.testing.assert_allclose(axes.back(axes.along(weights)), weights)


@pytest.mark.parametrize("basis", [np.eye(21), np.ones(21)], ids=["full", "diagonal"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_rare_class_does_not_keep_noise_of_other_weights(basis, outputs):
    """Its intercept is far from 0: that is no sign that the others are."""
    found = 0.3 * np.random.default_rng(0).normal(size=(outputs, 21))
    found[:, -1] = -4.0
    shrunk = axes_of(basis).shrunk(found.ravel(), 0.3, 0.3).reshape(outputs, 21)
    np.testing.assert_allclose(shrunk[:, -1], -4.0, rtol=0.02)
    assert np.linalg.norm(shrunk[:, :-1]) < 0.4 * np.linalg.norm(found[:, :-1])
    as_one = axes_of(basis, False).shrunk(found.ravel(), 0.3, 0.3).reshape(outputs, 21)
    assert np.linalg.norm(as_one[:, :-1]) > 1.5 * np.linalg.norm(shrunk[:, :-1])


def test_signal_is_hardly_shrunk_and_noise_is():
    found = np.random.default_rng(0).normal(size=11)
    for intercept in (True, False):
        axes = axes_of(np.eye(11), intercept)
        np.testing.assert_allclose(axes.shrunk(found, 0.01, 0.01), found, rtol=1e-2)
        assert np.linalg.norm(axes.shrunk(found, 2.0, 2.0)) < 0.3 * np.linalg.norm(found)
    alone = axes_of(np.eye(1)).shrunk(np.array([5.0]), 0.1, 0.1)
    assert alone == pytest.approx([5.0], rel=0.01)


@pytest.mark.parametrize("length", [0.0, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("n_weights", [7, 30])
def test_it_is_never_expected_to_be_worse_than_what_was_found(length, n_weights):
    rng = np.random.default_rng(1)
    truth = np.full(n_weights, length / math.sqrt(n_weights))
    axes, errors = axes_of(np.ones(n_weights), False), []
    for _ in range(60):
        noise = rng.normal(size=n_weights)
        shrunk = axes.shrunk(truth + noise, 1.0, 1.0)
        errors.append(np.sum((shrunk - truth) ** 2) - np.sum(noise**2))
    assert np.mean(errors) < 2 * np.std(errors) / math.sqrt(60)


@pytest.mark.parametrize(("mean", "level"), [(expit, -4.0), (expit, 0.0), (expit, 2.0), (np.exp, -3.0)])
@pytest.mark.parametrize(("before", "after"), [(1.5, 0.0), (0.0, 1.5), (1.0, 1.0)])
def test_the_mean_stays_where_predictions_spread_less(mean, level, before, after):
    moved = same_mean(mean, level, before, after)
    normal = np.random.default_rng(0).normal(size=400_000)
    expected = np.mean(mean(level + math.sqrt(before) * normal))
    assert np.mean(mean(moved + math.sqrt(after) * normal)) == pytest.approx(expected, rel=0.01)
    axes = axes_of(np.eye(3))
    point = axes.with_mean_of(np.array([math.sqrt(after), 0.0, level]), mean, before)
    np.testing.assert_allclose(point, [math.sqrt(after), 0.0, moved], atol=1e-9)
    without = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(axes_of(np.eye(3), False).with_mean_of(without, mean, before), without)


@pytest.mark.parametrize("loss", [losses.logistic, losses.poisson(8.0)], ids=lambda loss: loss.name)
def test_slopes_of_losses_with_a_mean_are_that_less_the_target(loss):
    predictions = np.linspace(-30, 30, 61)
    for target in (0.0, 1.0):
        np.testing.assert_allclose(loss.slope(predictions, target), loss.mean(predictions) - target, atol=1e-12)


def walked(curvatures, n_steps=40, seed=0):
    """A descent by noisy gradients of a quadratic loss with these curvatures, of mean curvature 1."""
    rng, walk, point = np.random.default_rng(seed), [], np.zeros(len(curvatures))
    for _ in range(n_steps):
        gradient = curvatures * (point - 1.0) + 0.1 * rng.normal(size=len(curvatures))
        walk.append((point, gradient, 0.1))
        point = point - 0.5 * gradient
    return walk


@pytest.mark.parametrize("seed", range(5))
def test_gradients_tell_along_which_axes_the_loss_is_curved(seed):
    curvatures = np.array([1.0, 0.3, 0.0, 1.0])
    curved, relative = curved_along(
        axes_of(np.eye(4), False), walked(curvatures, seed=seed), np.zeros(4), 1.0, 1.0, 0.3
    )
    assert np.all(curved[[0, 1, 3]] > 0.99)
    np.testing.assert_allclose(relative[[0, 1, 3]], curvatures[[0, 1, 3]], rtol=0.4)
    assert relative[2] < relative[0] / 3


def test_random_walks_farther_than_effects_usually_are_tell_of_flat_axes():
    walks = [walked(np.zeros(4), n_steps=160, seed=seed) for seed in range(10)]
    axes, far = (
        axes_of(np.eye(4), False),
        np.abs([np.mean([point for point, _, _ in walk], axis=0) for walk in walks]) > 0.4,
    )
    assert np.count_nonzero(far) > 5
    assert np.all(np.array([curved_along(axes, walk, np.zeros(4), 1.0, 0.1, 0.6)[1] for walk in walks])[far] < 0.05)
    assert (
        np.mean(np.array([curved_along(axes, walk, np.zeros(4), 1.0, 1.0, 0.6)[1] for walk in walks])[far]) > 0.02
    )  # such effects are usual


def test_a_weight_far_from_usual_ones_is_one_if_no_walk_of_noise_leads_there():
    walk = walked(np.array([1.0, 0.3]))
    curved, relative = curved_along(axes_of(np.eye(2), False), walk, np.zeros(2), 1.0, 0.01, 0.05)
    assert np.all(curved > 0.95)
    np.testing.assert_allclose(relative, [1.0, 0.3], rtol=0.4)


def test_axes_of_mere_ridge_are_taken_to_be_flat():
    axes = Axes(None, np.ones(2), np.array([1.0, 0.01]), 0.0)
    curved, _ = curved_along(axes, walked(np.array([1.0, 0.0])), np.zeros(2), 1.0, 1.0, 0.3)
    assert curved[0] > 0.99
    assert curved[1] < 0.1


def test_flat_axes_and_unusual_effects_are_shrunk():
    found = np.array([1.0, 1.0, 1.0, 1.0])
    axes = axes_of(np.eye(4), False)
    shrunk = axes.shrunk(found, 0.1, 1.0, np.array([1.0, 0.05, 1.0, 1.0]), 1.0, np.array([9.0, 9.0, 9.0, 0.02]))
    assert shrunk[0] == pytest.approx(1.0, rel=0.05)
    assert abs(shrunk[1]) < 0.06
    assert abs(shrunk[3]) < 0.06
