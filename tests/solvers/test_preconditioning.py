"""Whitening: coordinates, domains and projections, and what the released moment is good for."""

import numpy as np
import pytest
from cases import DOMAINS, name
from scipy.optimize import minimize
from support_solvers import make_users

from userdp import Ball, Box, Budget, Curator, Ledger, Plan
from userdp.paper.preconditioning import LABEL, Preconditioner, WhitenedCoordinates, moment_error, moment_step, paced
from userdp.solvers.solver import carry_out


def whitening(n_features=3, seed=0):
    rng = np.random.default_rng(seed)
    values, axes = np.linalg.eigh(
        np.cov(rng.normal(size=(n_features, 50)) * np.geomspace(1, 0.05, n_features)[:, None])
    )
    return WhitenedCoordinates(axes / np.sqrt(values))


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_coordinates_keep_predictions(n_outputs):
    white, rng = whitening(), np.random.default_rng(1)
    w, rows = rng.normal(size=3 * n_outputs), rng.normal(size=(5, 3))
    u = white.from_weights(w)
    np.testing.assert_allclose(white.to_weights(u), w)
    there = (rows @ white.basis) @ u.reshape(n_outputs, 3).T
    np.testing.assert_allclose(there, rows @ w.reshape(n_outputs, 3).T)


@pytest.mark.parametrize("domain", DOMAINS, ids=name)
def test_the_ball_around_holds_the_domain(domain):
    white, rng = whitening(), np.random.default_rng(2)
    ball = white.around(domain, 3)
    for _ in range(500):
        assert ball.contains(white.from_weights(domain.project(10 * rng.normal(size=3))))


@pytest.mark.parametrize("domain", DOMAINS, ids=name)
def test_projection_is_the_nearest_point_in_predictions(domain):
    white, rng = whitening(), np.random.default_rng(3)
    moment = white.moment
    for _ in range(20):
        w = 8 * rng.normal(size=3)
        projected = white.project(domain, w)
        assert domain.contains(projected)
        best = (projected - w) @ moment @ (projected - w)
        for _ in range(300):
            other = domain.project(projected + rng.normal(size=3) * 10.0 ** rng.uniform(-4, 1))
            assert (other - w) @ moment @ (other - w) >= best - 1e-9
        if domain.contains(w):
            np.testing.assert_array_equal(projected, w)


def test_projection_of_several_outputs_is_joint_in_a_ball():
    white, rng = whitening(), np.random.default_rng(4)
    moment = np.kron(np.eye(2), white.moment)
    w = 5 * rng.normal(size=6)
    projected = white.project(Ball(1.0), w)
    reference = minimize(
        lambda v: (v - w) @ moment @ (v - w),
        projected + 0.01,
        constraints={"type": "ineq", "fun": lambda v: 1 - v @ v},
        options={"ftol": 1e-14},
    )
    assert (projected - w) @ moment @ (projected - w) <= reference.fun * (1 + 1e-6)
    box = Box(np.full(6, -0.1), np.full(6, 0.2))
    found = white.project(box, w)
    assert box.contains(found)
    others = [box.project(found + rng.normal(size=6) * 10.0 ** rng.uniform(-4, 1)) for _ in range(300)]
    assert min((v - w) @ moment @ (v - w) for v in others) >= (found - w) @ moment @ (found - w) - 1e-9


def test_released_moments_whiten_the_rows():
    data, budget, multiplier = make_users(5000, 4, dtype=np.float32), Budget(1.0, 1e-6), 6.0
    curator = Curator(data, Plan(5000, (moment_step(5000, 4, multiplier),)), Ledger(budget))
    white = carry_out(Preconditioner(moment_error(5000, 4, multiplier)).release(4, 2.5), curator)
    rows = data.rows.astype(float) @ white.basis
    values = np.linalg.eigvalsh(rows.T @ rows / len(rows))
    before = np.linalg.eigvalsh(data.rows.T.astype(float) @ data.rows / len(data.rows))
    assert before[-1] / before[0] > 8
    assert values[-1] / values[0] < 3
    assert 0.3 < values.mean() < 3


def test_noise_alone_is_raised_to_the_error_and_nothing_breaks():
    """A hundred users and a huge multiplier: the moment is noise, the basis stays finite and bounded."""
    data = make_users(100, 4)
    curator = Curator(data, Plan(100, (moment_step(100, 4, 500.0),)), Ledger(Budget(1.0, 1e-6)))
    error = moment_error(100, 4, 500.0)
    white = carry_out(Preconditioner(error).release(4, 2.5), curator)
    assert np.all(np.isfinite(white.basis))
    assert np.linalg.eigvalsh(white.moment)[0] >= 2.5**2 * min(1.0, error) * error * 0.998


def test_blocks_get_smaller_with_more_features():
    few, many = moment_step(100, 10, 5.0).mechanism, moment_step(100, 300, 5.0).mechanism
    assert moment_step(100, 10, 5.0).label == LABEL
    assert few.block > 10 * many.block > 0


def scales(n_features=6):
    return np.sqrt(np.linalg.eigvalsh(whitening(n_features).moment))


def test_paces_are_equal_for_long_runs_and_favour_large_eigenvalues_in_short_ones():
    np.testing.assert_allclose(paced(scales(), 1e9)[0], scales(), rtol=1e-6)
    short, steepness = paced(scales(), 3.0)
    paces = (scales() / short) ** 2
    assert steepness == pytest.approx(paces.max())
    assert paces.mean() == pytest.approx(1.0)
    assert np.all(np.diff(paces) >= 0)  # eigenvalues rise
    assert paces[0] == pytest.approx(0.02 * paces[-1])
    assert paces[-1] > 2


def test_paces_leave_the_least_largest_error():
    """Water-filling: directions with any log-reduction end with equal errors l_k exp(-reduction), the others below."""
    progress, values = 8.0, scales() ** 2
    paces = (scales() / paced(scales(), progress)[0]) ** 2
    served = paces > 0.021 * paces.max()
    left = np.log(values[served]) - paces[served] * progress / paces[served].sum()
    np.testing.assert_allclose(left, left[0], atol=1e-9)
    assert np.all(np.log(values[~served]) <= left[0] + 1e-9)
