"""Domains: projections are nearest points, sizes are right, huge points do not overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import DOMAINS, name
from hypothesis import given
from hypothesis import strategies as st

from userdp.domains import Ball, Box

every = pytest.mark.parametrize("domain", DOMAINS, ids=name)
points = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3).map(np.array)
wild = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3).map(np.array)


@every
@given(w=wild)
def test_projection_lands_inside_and_stays(domain, w):
    nearest = domain.project(w)
    assert domain.contains(nearest)
    np.testing.assert_allclose(domain.project(nearest), nearest, rtol=1e-12, atol=1e-12)
    if domain.contains(w):
        np.testing.assert_allclose(nearest, w, rtol=1e-9, atol=1e-9)


@every
@given(w=points, other=points)
def test_projection_is_the_nearest_point(domain, w, other):
    nearest, inside = domain.project(w), domain.project(other)
    # The nearest point of a convex set is the one at which no direction into the set leads towards w.
    assert (w - nearest) @ (inside - nearest) <= 1e-7


@every
@given(w=points, other=points)
def test_diameter_and_largest_norm_bound_the_set(domain, w, other):
    p, q = domain.project(w), domain.project(other)
    assert np.linalg.norm(p - q) <= domain.diameter * (1 + 1e-12)
    assert np.linalg.norm(p) <= domain.largest_norm * (1 + 1e-12)


@every
@given(w=points, other=points)
def test_projection_brings_no_two_points_apart(domain, w, other):
    assert np.linalg.norm(domain.project(w) - domain.project(other)) <= np.linalg.norm(w - other) + 1e-9


@every
@given(w=points, other=points)
def test_reach_and_the_ball_around_bound_the_set(domain, w, other):
    p, ball = domain.project(w), domain.around(3)
    assert ball.contains(p)
    assert np.linalg.norm(p - other) <= domain.reach(other) * (1 + 1e-12)


@every
def test_reach_is_attained(domain):
    """By the farthest of many points of the border."""
    rng = np.random.default_rng(0)
    border = [domain.project(1e6 * rng.normal(size=3)) for _ in range(4000)]
    for w in (np.zeros(3), np.array([0.3, -1.0, 2.0])):
        assert max(np.linalg.norm(p - w) for p in border) >= 0.98 * domain.reach(w)
    assert max(np.linalg.norm(p) for p in border) >= 0.98 * domain.largest_norm
    assert max(np.linalg.norm(p - q) for p in border[:60] for q in border) >= 0.98 * domain.diameter


def test_sizes():
    assert Ball(radius=1.5).diameter == 3.0
    assert Ball(radius=1.0, center=[3.0, 4.0]).largest_norm == 6.0
    box = Box(low=[-3.0, 0.0], high=[0.0, 4.0])
    assert (box.diameter, box.largest_norm) == (5.0, 5.0)


@pytest.mark.parametrize("size", [1e160, 1e300, 1.7e308])
def test_huge_points_do_not_overflow(size):
    np.testing.assert_allclose(Ball(2.0).project([size, -size, 0.0]), np.array([1, -1, 0]) * math.sqrt(2))
    centered = Ball(1.0, center=[-1e308, 0.0]).project([1.7e308, 0.0])
    np.testing.assert_allclose(centered, [-1e308, 0.0])
    assert not Ball(2.0).contains([size, size])
    assert Box(low=[-1.7e308], high=[1.7e308]).project([size])[0] == size


def test_tiny_points_and_the_origin_stay():
    for w in ([0.0, 0.0], [5e-324, 0.0], [1e-200, 1e-200]):
        np.testing.assert_array_equal(Ball(1.0).project(w), w)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int8])
def test_a_radius_of_few_bits_is_widened(kind):
    ball = Ball(kind(100), center=np.array([3.0, 4.0]))
    assert [type(size) for size in (ball.radius, ball.diameter, ball.largest_norm)] == [float] * 3
    assert (ball.diameter, ball.largest_norm) == (200.0, 105.0)


def test_a_domain_keeps_its_own_numbers():
    center = np.zeros(2)
    ball = Ball(1.0, center)
    center[0] = 7.0
    assert ball.center[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        ball.center[0] = 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ball(-1), r"radius must be finite and > 0, got -1"),
        (lambda: Ball(math.nan), r"radius must be finite and > 0, got nan"),
        (lambda: Ball(math.inf), r"radius must be finite and > 0, got inf"),
        (lambda: Ball(1.0, center=[[1.0]]), r"center must have shape \(n_features,\), got \(1, 1\)"),
        (lambda: Ball(1.0, center=[math.inf]), r"center must be finite"),
        (lambda: Ball(1.0, center=[0.0, 0.0]).project([1.0]), r"w must have shape \(2,\), got \(1,\)"),
        (lambda: Ball(1.0).project([math.nan]), r"w must be finite"),
        (lambda: Box([0.0, 2.0], [1.0, 2.0]), r"got low\[1\]=2.0, high\[1\]=2.0"),
        (lambda: Box([0.0], [1.0, 2.0]), r"high must have shape \(1,\), got \(2,\)"),
        (lambda: Box([0.0], [1.0]).contains([math.inf]), r"w must be finite"),
    ],
)
def test_errors_name_the_value_and_the_bound(make, message):
    with pytest.raises(ValueError, match=message):
        make()
