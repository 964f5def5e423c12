import math

import numpy as np
import pytest
from support import SilentNoise

from userdp.paper.outlier_removal import RadiusSearch, radius_grid
from userdp.privacy.noise import SecureNoise


def spread(size):
    """The pairwise distance of vectors j and k is |j - k| / size: h-indices grow with the radius."""
    return np.arange(size)[:, None] / size


SIXTEENTHS = tuple(np.arange(1, 17) / 16)


def search(radii=SIXTEENTHS, target=80, noise_std=3.0):
    return RadiusSearch(n_vectors=100, radii=radii, target=target, noise_std=noise_std)


@pytest.mark.parametrize("target", [20, 50, 80, 95])
def test_it_finds_the_smallest_radius_that_reaches_the_target(target):
    noise = SilentNoise()
    (found,) = search(target=target).start(noise).release(spread(100), 2.0)
    reached = [
        factor
        for factor in SIXTEENTHS
        if np.sum(np.sort((np.abs(spread(100) - spread(100).T) <= 2 * factor).sum(1))[::-1] >= target) >= target
    ]
    assert found == 2.0 * reached[0]
    assert noise.asked == [("gaussian", 1.0, 3.0)] * 4


def test_the_last_radius_is_the_answer_if_none_suffices():
    vectors = np.full((100, 1), np.nan)
    assert search().start(SilentNoise()).release(vectors, 3.0) == 3.0


@pytest.mark.parametrize("length", [1, 2, 3, 5, 16, 33])
def test_it_never_asks_more_often_than_it_pays_for(length):
    record = search(radii=tuple(range(1, length + 1)))
    assert record.cost.gaussian == pytest.approx(record.probes / 9.0)
    for shift in (-1000, 1000):
        noise = SilentNoise(shifts=[shift] * 100)
        record.start(noise).release(spread(100), 1.0)
        assert len(noise.asked) <= record.probes
    assert record.probes == math.ceil(math.log2(length))


def test_noise_reaches_the_probes():
    found = {float(search(noise_std=30.0).start(SecureNoise()).release(spread(100), 1.0)[0]) for _ in range(40)}
    assert len(found) > 3


def test_a_search_is_made_once():
    session = search().start(SilentNoise())
    session.release(spread(100), 1.0)
    with pytest.raises(RuntimeError, match="once"):
        session.release(spread(100), 1.0)


def test_a_search_is_among_as_many_vectors_as_it_was_priced_for():
    for n_vectors in (99, 101):
        session = search().start(SilentNoise())
        with pytest.raises(ValueError, match="Expected 100 vectors, as was priced"):
            session.release(spread(n_vectors), 1.0)
        with pytest.raises(RuntimeError, match="once"):
            session.release(spread(100), 1.0)


def test_everyone_takes_part():
    users = np.arange(5)
    assert search().start(SilentNoise()).choose(users) is users


def test_the_grid_is_geometric_and_covers_the_range():
    grid = radius_grid(0.01, 1.0)
    assert grid[0] == 0.01
    assert grid[-2] < 1.0 <= grid[-1]
    np.testing.assert_allclose(np.diff(np.log(grid)), math.log(1.2))
    assert radius_grid(2.0, 2.0) == (2.0,)


@pytest.mark.parametrize("arguments", [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (1.0, 2.0, 1.0)])
def test_impossible_grids_are_refused(arguments):
    with pytest.raises(ValueError, match="smallest"):
        radius_grid(*arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radii": ()}, "increasing"),
        ({"radii": (1.0, 1.0)}, "increasing"),
        ({"radii": (0.0, 1.0)}, "positive"),
        ({"radii": (1e-40, 1.0)}, "Expected radii between"),
        ({"target": 0}, "target"),
        ({"target": 101}, "target"),
        ({"noise_std": 0.0}, "noise_std"),
    ],
)
def test_impossible_searches_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        search(**change)
