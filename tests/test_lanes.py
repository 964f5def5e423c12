"""Products and sums of rows in fixed steps: right to rounding, the same wherever a row lies, nothing else touched."""

import numba
import numpy as np
import pytest

from userdp.statistics import lanes


@numba.njit
def dot(rows, i, weights, c):
    return lanes.dot(rows, i, weights, c)


@numba.njit
def add_rows(rows, first, n_rows, factors, at, step, sums, to):
    lanes.add_rows(rows, first, n_rows, factors, at, step, sums, to, sums.shape[1])


@numba.njit
def read_ahead(rows, first, n_rows):
    lanes.read_ahead(rows, first, n_rows)


WIDTHS = [1, 2, 3, 4, 5, 7, 15, 16, 17, 19, 20, 21, 31, 33, 51, 64, 201]
KINDS = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@KINDS
@pytest.mark.parametrize("width", WIDTHS)
def test_a_product_is_right_and_the_same_wherever_the_row_lies(width, dtype):
    rng = np.random.default_rng(width)
    row, weights = rng.normal(size=width).astype(dtype), rng.normal(size=(3, width))
    found = set()
    for place in range(6):
        rows = rng.normal(0, 1e9, (7, width)).astype(dtype)  # neighbours must not matter
        rows[place] = row
        found.add(dot(rows, place, weights, 1))
    (product,) = found
    exact = np.sum(row.astype(np.longdouble) * weights[1])
    assert abs(product - exact) <= 1e-15 * np.sum(np.abs(row * weights[1])) * max(1, width / 16)


@KINDS
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_of_rows_are_right_the_same_anywhere_and_add_to_their_own_place_only(width, dtype):
    rng = np.random.default_rng(width)
    block, factors = rng.normal(size=(5, width)).astype(dtype), rng.normal(size=20)
    before, found = rng.normal(size=width), set()
    for place in range(4):
        rows = rng.normal(0, 1e9, (12, width)).astype(dtype)
        rows[place : place + 5] = block
        sums = np.full((6, width), 7.0)
        sums[place] = before
        add_rows(rows, place, 5, factors, 2, 3, sums, place * width)
        assert np.all(np.delete(sums, place, axis=0) == 7.0)
        found.add(sums[place].tobytes())
    (total,) = (np.frombuffer(one) for one in found)
    terms = factors[2:17:3, None] * block.astype(np.longdouble)
    bound = 1e-15 * (np.abs(before) + np.abs(terms).sum(axis=0))
    assert np.all(np.abs(total - (before + terms.sum(axis=0))) <= bound)


@KINDS
@pytest.mark.parametrize("width", WIDTHS)
def test_a_constant_that_is_not_held_is_as_if_it_were(width, dtype):
    rng = np.random.default_rng(width)
    rows, weights = rng.normal(size=(9, width)).astype(dtype), rng.normal(size=(3, width + 1))
    whole, factors = np.hstack([rows, np.ones((9, 1), dtype)]), rng.normal(size=20)
    short, long = np.zeros((3, width + 1)), np.zeros((3, width + 1))
    for sums, given in ((short, rows), (long, whole)):
        add_rows(given, 2, 5, factors, 2, 3, sums, width + 1)
    np.testing.assert_allclose(short, long, rtol=1e-14, atol=1e-14)
    assert np.all(short[[0, 2]] == 0)
    assert dot(rows, 4, weights, 1) == pytest.approx(dot(whole, 4, weights, 1), rel=1e-14, abs=1e-14)


def test_what_is_not_finite_stays_in_its_own_sum():
    rows = np.ones((3, 21))
    rows[1, 5] = np.nan
    assert dot(rows, 0, np.ones((1, 21)), 0) == 21.0
    assert np.isnan(dot(rows, 1, np.ones((1, 21)), 0))
    sums = np.zeros((1, 21))
    add_rows(rows, 0, 2, np.array([1.0, 0.0]), 0, 1, sums, 0)
    assert np.isnan(sums[0, 5])  # 0 * NaN is NaN: such a user counts as one without a finite vector
    assert np.isfinite(np.delete(sums[0], 5)).all()


@KINDS
def test_reading_ahead_changes_nothing(dtype):
    rows = np.arange(60, dtype=dtype).reshape(3, 20)
    before = rows.copy()
    read_ahead(rows, 0, 3)
    read_ahead(rows, 2, 0)
    assert np.array_equal(rows, before)
