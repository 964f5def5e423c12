"""Outlier removal by reductions: the same h-index and weights as of gathered vectors, for any parts and any pivot."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp import Budget, Curator, Ledger, OutlierRemoval, Plan, RadiusSearch, Step, UserData
from userdp.engines.local import ComputedAnew, LocalEngine
from userdp.paper import concentration as c
from userdp.paper import scattered as s
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import noise_source
from userdp.statistics.moments import UserMean


class Parts:
    """Vectors in parts, as an engine on many machines has them; notes what travels."""

    def __init__(self, vectors, n_parts):
        self._vectors, self._parts = vectors, np.array_split(vectors, n_parts)
        self.starts = np.cumsum([0, *map(len, self._parts[:-1])])
        self.asked, self.sent, self.n_gathered = [], 0, 0

    def __len__(self):
        return len(self._vectors)

    def mapped(self, reduction):
        asked = pickle.dumps(reduction)
        with np.errstate(all="ignore"):
            answers = [pickle.loads(asked)(part) for part in self._parts]
        self.asked.append(type(reduction).__name__)
        self.sent += sum(len(asked) + answer.nbytes for answer in answers)
        return answers

    def some(self, numbers):
        self.n_gathered += len(numbers)
        return self._vectors[numbers]

    def gathered(self):
        self.n_gathered = len(self)
        return self._vectors


def crowd(n=3000, d=6, far=0, seed=0, away=6):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, d)) + 7.0
    vectors[rng.permutation(n)[:far]] += rng.normal(size=(far, d)) * away
    return vectors


def radius_of(vectors, quantile):
    """A radius within which about so many pairs are."""
    rng = np.random.default_rng(1)
    one, other = rng.permutation(len(vectors)), rng.permutation(len(vectors))
    return float(np.nanquantile(np.linalg.norm(vectors[one] - vectors[other], axis=1), quantile))


def agrees(vectors, radius, enough, whole, n_parts, pivot=None):
    """Whether it was settled by reductions; fails if what they found is not what all vectors give."""
    parts = Parts(vectors, n_parts)
    found = s.concentrated(parts, radius, enough, whole, pivot)
    if found is None:
        return None
    rows = c.comparable(vectors, radius)
    counts = c.neighbour_counts(rows, radius)
    assert found.h_index == c.h_index(np.minimum(counts, enough))
    assert np.count_nonzero(counts < whole) <= len(found.others) + np.count_nonzero(np.isnan(rows).any(axis=1))
    ramp = c.Ramp((len(rows) + 1) / 2, whole)
    expected = c.filtered_mean(rows, np.minimum(counts, enough), ramp)
    assert abs(found.mean(ramp) - expected).max() <= (2**20 + 8 * len(rows)) * 2.0**-52 * radius
    return parts


@pytest.mark.parametrize("n_parts", [1, 2, 7])
@pytest.mark.parametrize(
    ("vectors", "factor"),
    [(crowd(), 2.5), (crowd(), 1.7), (crowd(far=20), 1.7), (crowd(far=20), 2.5), (crowd(2001, 1, far=5), 3.0)],
)
def test_the_same_as_of_gathered_vectors(vectors, factor, n_parts):
    radius, n = factor * radius_of(vectors, 0.9), len(vectors)
    found = agrees(vectors, radius, int(0.98 * n), int(0.95 * n), n_parts)
    assert found is not None
    assert found.n_gathered < 0.05 * n


def test_two_reductions_suffice_where_an_earlier_mean_is_near():
    """And what travels is the same for 10 times the users: a few numbers for each feature."""
    sent = []
    for n in (2000, 20_000):
        vectors = crowd(n)
        found = agrees(vectors, 2.5 * radius_of(vectors, 0.99), int(0.98 * n), int(0.95 * n), 4, np.full(6, 7.1))
        assert found.asked[:2] == ["Distances", "Settled"]
        assert set(found.asked[2:]) <= {"Hits"}
        fixed = Parts(vectors, 4)
        fixed.mapped(s.Distances(1.0, np.zeros(6)))
        sent.append(fixed.sent)
    assert sent[0] == sent[1]


def test_moments_settle_what_distances_do_not():
    vectors = crowd(4000, 12, far=4)
    found = agrees(vectors, 1.35 * radius_of(vectors, 0.97), int(0.9675 * 4000), int(0.95 * 4000), 3)
    assert found.asked == ["ClippedTotal", "Distances", "Moments", "Settled", "Hits"]
    assert 0 < found.n_gathered < 200


def test_what_is_not_concentrated_is_gathered():
    vectors = crowd()
    for radius in (0.2 * radius_of(vectors, 0.5), 1e-9):
        assert s.concentrated(Parts(vectors, 2), radius, 2900, 2800, None) is None
    halves = np.concatenate([crowd(1000), crowd(1000) + 100])
    assert s.concentrated(Parts(halves, 2), 8.0, 1900, 1800, None) is None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_never_anything_else_for_any_vectors(draw):
    """Ties at the radius, NaN, infinities, huge vectors, duplicates, odd pivots."""
    d, n = draw.draw(st.integers(1, 3)), draw.draw(st.integers(8, 60))
    rng = np.random.default_rng(draw.draw(st.integers(0, 2**32)))
    vectors = rng.choice([0.0, 0.5, 1.0, -0.5], (n, d), p=[0.7, 0.15, 0.1, 0.05])
    for strange in draw.draw(st.lists(st.sampled_from([np.nan, np.inf, 1e300, 2.0**21, 2.0**19, 3.0]), max_size=3)):
        vectors[rng.integers(n), rng.integers(d)] = strange
    pivot = draw.draw(st.sampled_from([None, np.zeros(d), np.full(d, 0.5), np.full(d, 1e200), np.full(d, np.nan)]))
    enough = draw.draw(st.integers(n // 2 + 2, n))
    whole = draw.draw(st.integers(n // 2 + 2, enough))
    radius = draw.draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 1e-3, 2.0**-20]))
    agrees(vectors, radius, enough, whole, draw.draw(st.integers(1, 5)), pivot)


@pytest.mark.parametrize("far", [0, 30, 400])
def test_a_session_releases_the_same(far):
    vectors = crowd(1500, far=far, away=60)
    radius = 1.6 * radius_of(crowd(1500), 0.97)
    record = OutlierRemoval(1500, 5.0, 1.0, 1e-6, rounds=3, outliers=60)
    outcomes = []
    for given_as in (lambda: vectors, lambda: Parts(vectors, 3)):
        session, found = record.start(noise_source(4)), []
        try:
            for _ in range(3):
                found.append(session.release(given_as(), radius))
        except Aborted:
            found.append(np.zeros(1))
        outcomes.append(np.concatenate(found))
    np.testing.assert_allclose(outcomes[0], outcomes[1], rtol=1e-9)
    assert (outcomes[0].size == 1) == (far == 400)


class ComputedTwice(Parts):
    """Vectors that are computed anew, with other last digits, before the answer with a given number."""

    def __init__(self, vectors, n_parts, number):
        super().__init__(vectors, n_parts)
        self._number = number

    def mapped(self, reduction):
        if len(self.asked) == self._number:
            self._number = -1
            raise ComputedAnew
        return super().mapped(reduction)


@pytest.mark.parametrize("number", range(4))
def test_sums_over_vectors_that_were_computed_anew_are_not_used(number):
    vectors = crowd(1500, far=30, away=60)
    radius = 1.6 * radius_of(crowd(1500), 0.97)
    record = OutlierRemoval(1500, 5.0, 1.0, 1e-6, outliers=60)
    parts = ComputedTwice(vectors, 3, number)
    here, there = (record.start(noise_source(4)).release(given, radius) for given in (vectors, parts))
    assert np.array_equal(here, there), "of the gathered ones, to the last bit"
    assert len(parts.asked) == number
    assert parts.n_gathered == 1500


def test_vectors_too_long_for_their_radius_are_like_no_other():
    """Though they are close together: what is 2^20 radii long is nobody's neighbour, as for gathered vectors."""
    vectors = crowd(1000, 2)
    vectors += 2.0**21 * 50
    assert c.h_index(c.neighbour_counts(c.comparable(vectors, 50.0), 50.0)) == 1
    for pivot in (None, vectors.mean(axis=0)):
        assert s.concentrated(Parts(vectors, 2), 50.0, 990, 950, pivot) is None


@pytest.mark.parametrize(("own", "others"), [(0.6, 0.7), (0.5, 0.75), (0.3, 0.9), (0.45, 0.8)])
@pytest.mark.parametrize("share", [0.02, 0.06, 0.3])
def test_bounds_from_moments_hold_where_they_are_tight(own, others, share):
    """A shell of two kinds of vectors: of Cantelli's inequality the worst case. Some are just beyond the radius."""
    n, beyond = 2000, int(share * 2000)
    cosine = (1 - own**2 - others**2) / (2 * own * others) + 1e-6
    away = others * np.array([-cosine, np.sqrt(1 - cosine**2)])
    vectors = np.tile([[0.0, others], [0.0, -others]], (n // 2, 1))
    vectors[:beyond] = away
    vectors[-1] = [own, 0.0]
    pivot, radius = np.zeros(2), 1.0
    parts = Parts(vectors, 2)
    bins = np.sum(parts.mapped(s.Distances(radius, pivot)), axis=0)
    shells = s._shells(bins, 2, 0)
    marks = np.append(s._marks(radius)[shells - 1], np.inf)
    sizes = np.diff([0, *np.cumsum(bins)[shells - 1], n])
    moments = np.sum(parts.mapped(s.Moments(radius, pivot, marks)), axis=0)
    asked = s.Settled(radius, pivot, marks, sizes, moments, np.array([n, n, 40]))
    with np.errstate(all="ignore"):
        bound = asked._distant(s._measured(vectors, radius, pivot), 0)
    far = n - c.neighbour_counts(vectors, radius)
    assert far[-1] == beyond
    assert np.all(bound >= far)
    assert bound[-1] < n - 1, "of the one whose neighbours are many they tell something"


def test_of_many_vectors_moments_of_many_features_are_worth_it(monkeypatch):
    """They have fewer bytes than the vectors themselves, but are too many for a page."""
    vectors = crowd(5000, 60)
    asked = 1.25 * radius_of(vectors, 0.97), int(0.9675 * 5000), int(0.95 * 5000), 2
    found = agrees(vectors, *asked)
    assert found is not None
    assert found.n_gathered < 0.05 * 5000
    assert found.sent < vectors.nbytes
    monkeypatch.setattr(s, "_WORTH_MOMENTS", 100)
    assert agrees(vectors, *asked) is None


def test_moments_are_used_up_to_where_their_errors_are_bounded():
    bins = np.full(s._BINS, 100)
    for dimension, used in ((128, True), (129, False)):
        assert (s._shells(bins, dimension, 10**9) is not None) == used


def test_many_features_or_ambiguous_vectors_are_gathered(monkeypatch):
    """Where moments would be too large to travel, and where a part has more ambiguous vectors than it names."""
    wide = crowd(600, 80)
    assert s.concentrated(Parts(wide, 2), 1.1 * radius_of(wide, 0.97), 570, 560, None) is None
    vectors = crowd(4000, 12, far=4)
    asked = 1.35 * radius_of(vectors, 0.97), int(0.9675 * 4000), int(0.95 * 4000), None
    assert s.concentrated(Parts(vectors, 3), *asked) is not None
    monkeypatch.setattr(s, "_MOST_AMBIGUOUS", 0)
    assert s.concentrated(Parts(vectors, 3), *asked) is None


def test_a_search_finds_the_same_radius():
    vectors = crowd(1500)
    radii = tuple(radius_of(vectors, 0.97) * 1.3 ** np.arange(-8, 8))
    found = [
        RadiusSearch(1500, radii, 1440, 4.0).start(noise_source(4)).release(given_as, 1.0)
        for given_as in (vectors, Parts(vectors, 3))
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("block", [1, 2, 4096])
def test_a_weighted_mean_in_blocks(block, monkeypatch):
    monkeypatch.setattr(c, "_BLOCK", block)
    vectors, weights = np.array([[1.0, 2.0], [np.nan, 0.0], [3.0, 5.0]]), np.array([0.5, 0.0, 1.5])
    assert c.weighted_mean(vectors, weights).tolist() == [2.5, 4.25]


class Elsewhere(LocalEngine):
    """An engine whose vectors stay in parts; `failing` raises what only a mechanism may."""

    failing = False

    def scattered(self, statistic, data, users):
        if self.failing:
            raise Aborted
        return Parts(self.vectors(statistic, data, users, len(users)), 3)


def test_a_curator_hands_on_vectors_that_stay_elsewhere(monkeypatch):
    rows = crowd(1500)
    record = OutlierRemoval(1500, 5.0, 1.0, 1e-6, rounds=2, outliers=60)
    means = []
    for engine in (None, Elsewhere()):
        data, ledger = UserData(rows, np.zeros(1500), np.arange(1501)), Ledger(Budget(8.0, 1e-5))
        plan = Plan(1500, (Step("means", 0, 1500, record),))
        curator = Curator(data, plan, ledger, engine=engine, insecure_seed=3)
        means.append(curator.release("means", UserMean(), 2 * radius_of(rows, 0.97)))
    np.testing.assert_allclose(means[0], means[1], rtol=1e-9)
    monkeypatch.setattr(Elsewhere, "failing", True)
    with pytest.raises(RuntimeError, match="failed on the data"):
        curator.release("means", UserMean(), 2 * radius_of(rows, 0.97))
