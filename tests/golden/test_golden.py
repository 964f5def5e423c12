"""Behaviour is what it was when the golden files were written; `make golden` renews them."""

import copy

import pytest
from golden_cases import CASES
from renew import FOLDER, changes, kept, produced


@pytest.mark.parametrize(("area", "name"), [(area, name) for area in CASES for name in CASES[area]])
def test_behaviour_is_as_it_was(area, name):
    found = changes(area, name, produced(area, name), kept(area)[name])
    assert found == [], "\n".join(found[:20])


def test_every_golden_file_and_record_is_compared():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CASES)
    assert all(list(kept(area)) == list(CASES[area]) for area in CASES)


def test_a_difference_beyond_the_last_digits_is_seen():
    name = "LogisticRegression float64"
    before = kept("fits")[name]

    def seen(**new):
        return changes("fits", name, before | new, before)

    weights, charges = before["weights"], copy.deepcopy(before["charges"])
    charges[0]["costs"][0]["gaussian"] *= 1 + 1e-7
    assert not seen(weights=[weights[0] * (1 + 1e-9), *weights[1:]])
    assert seen(weights=[weights[0] * (1 + 1e-5), *weights[1:]])
    assert seen(weights=weights[1:])
    assert seen(charges=charges)
    assert seen(solver="another")
    assert seen(more=1)
