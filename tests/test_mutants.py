"""The tests notice planted privacy bugs (see mutants.py): a suite that passes with the noise halved is broken."""

import pytest
from mutants import MUTANTS, PACKAGE, TESTS, is_caught


def test_every_planted_bug_has_its_place():
    """A moment's check before the long run: what a mutant replaces stands exactly once."""
    misplaced = [m.name for m in MUTANTS if (PACKAGE / m.file).read_text().count(m.old) != 1]
    assert misplaced == []


def test_every_planted_bug_has_its_own_name_and_tests_that_exist():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        for name in mutant.tests.split():
            file, test = name.split("::")
            assert f"\ndef {test}(" in (TESTS / file).read_text(), f"{mutant.name}: {name}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_caught(mutant):
    assert is_caught(mutant)
