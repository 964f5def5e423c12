"""The tests notice planted privacy bugs (see mutants.py): a suite that passes with the noise halved is broken."""

import pytest
from mutants import MUTANTS, is_caught


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_caught(mutant):
    assert is_caught(mutant)
