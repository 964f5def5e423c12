"""The tests notice planted privacy bugs (see mutants.py): a suite that passes with the noise halved is broken."""

import re
import subprocess
import sys

import pytest
from mutants import MUTANTS, PACKAGE, TESTS, is_caught


def test_every_planted_bug_has_its_place():
    """A moment's check before the long run: what a mutant replaces stands exactly once."""
    misplaced = [m.name for m in MUTANTS if (PACKAGE / m.file).read_text().count(m.old) != 1]
    assert misplaced == []


def test_every_planted_bug_is_code_whose_names_exist(tmp_path):
    """A bug that raises NameError would be caught by any test, and prove nothing."""
    for number, mutant in enumerate(MUTANTS):
        planted = (PACKAGE / mutant.file).read_text().replace(mutant.old, mutant.new)
        (tmp_path / f"bug_{number}.py").write_text(planted)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert [MUTANTS[int(number)].name for number in re.findall(r"bug_([0-9]+)\.py", found)] == []
    assert "All checks passed" in found


def test_every_planted_bug_has_its_own_name_and_tests_that_exist():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        for name in mutant.tests.split():
            file, test = name.split("::")
            assert f"\ndef {test}(" in (TESTS / file).read_text(), f"{mutant.name}: {name}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_caught(mutant):
    assert is_caught(mutant)
