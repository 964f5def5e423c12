import importlib
import inspect
import json
import math
import pkgutil
from dataclasses import dataclass, is_dataclass
from decimal import Decimal

import numpy as np
import pytest

from userdp import paper, privacy
from userdp._validate import check_counts, check_record, is_our_message
from userdp.data.store import in_bytes
from userdp.data.users import UserData
from userdp.paper.outlier_removal import RadiusSearch
from userdp.privacy.clip import Clip
from userdp.privacy.mechanism import Aborted, Mechanism, described
from userdp.privacy.noise import noise_source
from userdp.privacy.selection import Allotment
from userdp.privacy.vocabulary import Vocabulary
from userdp.statistics.moments import UserMean


@dataclass(frozen=True)
class Record:
    scale: object = 1.0
    count: object = 3
    extra: object = 0

    def __post_init__(self):
        check_record(self, ("scale",), ("count", "extra"), from_zero="extra")


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (2, 2.0),
        (0.1, 0.1),
        (np.float64(0.1), 0.1),
        (np.float32(0.1), 0.10000000149011612),
        (np.float16(0.1), 0.0999755859375),
        (np.longdouble(0.5), 0.5),
        (np.int8(7), 7.0),
        (np.uint64(2**39), 2.0**39),
        (True, 1.0),
        (1e-150, 1e-150),
    ],
)
def test_reals_become_plain_floats_of_the_same_value(given, stored):
    scale = Record(scale=given).scale
    assert type(scale) is float
    assert scale == stored


def test_costs_are_computed_in_full_precision_whatever_was_given():
    """1/0.1^2 in half precision would be 100, or overflow at 300^2."""
    assert Clip(40, np.float16(300.0), rounds=2).cost.gaussian == pytest.approx(2 / 300.0**2, rel=1e-14)
    assert Clip(40, np.float32(0.1)).cost == Clip(40, float(np.float32(0.1))).cost


@pytest.mark.parametrize("given", [4, np.int8(4), np.uint64(4), np.int64(4)])
def test_counts_become_plain_ints(given):
    record = Record(count=given, extra=np.int16(0))
    assert (record.count, record.extra) == (4, 0)
    assert (type(record.count), type(record.extra)) == (int, int)


def test_a_bool_is_counted_as_one():
    record = Record(count=True)
    assert type(record.count) is int
    assert record.count == 1


def test_narrow_integers_do_not_wrap_around_in_costs():
    assert Clip(np.int8(100), 1.0, np.int8(100)).cost == Clip(100, 1.0, 100).cost
    assert Clip(np.int8(120), 1.0).sensitivity(1.0, 1) == Clip(120, 1.0).sensitivity(1.0, 1)


@pytest.mark.parametrize(
    "given", [np.array(1.0), np.array([1.0]), [1.0], (1.0,), "1.0", None, 1j, np.complex128(1), np.True_, Decimal(1)]
)
def test_what_could_change_or_is_no_number_is_refused_as_a_real(given):
    with pytest.raises(TypeError, match=f"scale must be a number, got {type(given).__name__}"):
        Record(scale=given)


@pytest.mark.parametrize("given", [0.0, -0.0, -1.0, 0, False, math.nan, math.inf, -math.inf, np.float16(np.inf)])
def test_reals_are_finite_and_positive(given):
    with pytest.raises(ValueError, match=r"scale must be finite and > 0"):
        Record(scale=given)


@pytest.mark.parametrize(
    "given", [np.array(3), np.array([3]), [3], "3", None, 3.0, np.float64(3), 2.5, math.nan, 0, -1, False, np.True_]
)
def test_what_is_no_count_is_refused(given):
    with pytest.raises(ValueError, match=r"count must be a whole number >= 1"):
        Record(count=given)


def test_only_the_named_count_may_be_zero():
    assert Record(extra=0).extra == 0
    with pytest.raises(ValueError, match="extra must be a whole number >= 0, got -1"):
        Record(extra=-1)


def test_counts_are_checked_from_the_number_given():
    counts = check_counts(at_least=2, a=2, b=np.int64(3), c=np.uint8(200))
    assert counts == (2, 3, 200)
    assert [type(count) for count in counts] == [int, int, int]
    with pytest.raises(ValueError, match="b must be a whole number >= 2, got 1"):
        check_counts(at_least=2, a=2, b=1)


def test_what_was_priced_does_not_change_with_what_was_given():
    radii, factors = [1.0, 2.0, 4.0], np.array([1.0, 2.0, 4.0])
    records = RadiusSearch(10, radii, 8, 3.0), RadiusSearch(10, factors, 8, 3.0)
    costs = [record.cost for record in records]
    radii.extend([8.0] * 100)
    factors[:] = 9.0
    assert [record.cost for record in records] == costs
    assert [record.radii for record in records] == [(1.0, 2.0, 4.0)] * 2
    assert {type(factor) for record in records for factor in record.radii} == {float}


def test_a_session_on_all_vectors_takes_no_blocks():
    session = RadiusSearch(10, (1.0, 2.0), 8, 3.0).start(noise_source(0))
    with pytest.raises(RuntimeError, match="all vectors of a round at once"):
        session.add(np.zeros((3, 1)), 1.0)


def mechanism_classes(packages=(privacy, paper)):
    """All records of the packages."""
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, Mechanism) and is_dataclass(value):
                    yield value


def test_kinds_are_a_mechanisms_own_and_stay_as_files_know_them():
    kinds = {kind.__name__: kind.kind for kind in mechanism_classes()}
    assert kinds == {
        "Allotment": "allotment",
        "Clip": "clip",
        "OutlierRemoval": "outlier-removal",
        "PaperOutlierRemoval": "paper-outlier-removal",
        "RadiusSearch": "radius-search",
        "Vocabulary": "vocabulary",
        "SampledOutlierRemoval": "sampled-outlier-removal",
        "SampledPaperOutlierRemoval": "sampled-paper-outlier-removal",
    }
    assert len(set(kinds.values())) == len(kinds)


def test_sensitivity_and_cost_of_every_kind_are_stated_in_one_place():
    for kind in mechanism_classes():
        assert f"    {kind.kind} " in Mechanism.__doc__
        assert list(inspect.signature(kind.sensitivity).parameters) == ["self", "radius", "dimension"]
        assert inspect.get_annotations(kind.sensitivity)["return"] == "float"


def test_what_needs_no_radius_states_its_sensitivity_all_the_same():
    words, fits = Vocabulary(100, 3.0, 1e-6), Allotment(100, 0.25, 3)
    for radius, dimension in ((1.0, 1), (7.0, 20)):
        assert math.sqrt(2) <= words.sensitivity(radius, dimension) < math.sqrt(2) * (1 + 1e-12)
        assert words.noise[0] * 2.0**-words.bits >= 3.0 * words.sensitivity(radius, dimension)
        assert RadiusSearch(10, (1.0, 2.0), 8, 3.0).sensitivity(radius, dimension) == 1.0
        assert fits.cost.gaussian == pytest.approx(3 * fits.sensitivity(radius, dimension) ** 2)


def test_a_mechanism_is_described_by_its_kind_and_numbers():
    words = described(RadiusSearch(np.int8(10), np.array([1.0, 2.0]), 8, 3))
    assert words == {"kind": "radius-search", "n_vectors": 10, "radii": [1.0, 2.0], "target": 8, "noise_std": 3.0}
    assert json.loads(json.dumps(words)) == words


def test_a_mechanism_takes_any_statistic_unless_it_says_otherwise():
    clip, statistic = Clip(3, 1.0), UserMean()
    assert clip.check_statistic(statistic, "mean", 1.0) is None
    assert clip.start(noise_source(0)).asked(statistic, 0, 3) is statistic


def test_an_abort_says_its_reason_and_what_was_spent():
    assert Aborted().reason in str(Aborted())
    assert str(Aborted("So.")) == "So. What was released before stands; the budget of this step is spent."
    assert isinstance(Aborted(), RuntimeError)


@pytest.mark.parametrize("value", [10**400, np.longdouble("1e-400"), 1e-200, 1e200, 1.1e12])
def test_reals_whose_squares_overflow_are_refused(value):
    with pytest.raises(ValueError, match=r"^noise_multiplier must be"):
        Clip(50, value)


def test_only_words_of_our_own_raise_statements_may_be_shown():
    """Words of other libraries, and of float() within our files, may quote a cell."""

    def raised(work):
        with pytest.raises((ValueError, TypeError)) as caught:
            work()
        return caught.value

    assert is_our_message(raised(lambda: check_counts(count=0)))
    assert is_our_message(raised(lambda: UserData.from_arrays([[1.0]], None, [0])))
    assert not is_our_message(raised(lambda: float("SECRET")))
    assert not is_our_message(raised(lambda: Clip("SECRET" * 2)))  # a missing argument: Python's words
    assert not is_our_message(raised(lambda: in_bytes("SECRET")))  # in a file of ours, but no raise statement
    assert not is_our_message(ValueError("SECRET"))
