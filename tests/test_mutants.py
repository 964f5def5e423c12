"""The tests notice planted privacy bugs (see mutants.py): a suite that passes with the noise halved is broken."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import mutants
import pytest
from mutants import MUTANTS, PACKAGE, TABLE, TESTS, is_caught, remembered, table


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


def test_the_table_of_planted_bugs_is_up_to_date():
    """Checked by name and place of each bug, in docs/mutants.md."""
    assert TABLE.read_text() == table(), "run python tests/mutants.py --table"


@pytest.mark.parametrize(
    "bug",
    [
        *("Gaussian noise halved", "test skipped", "user sampled twice", "sensitivity without the slack's fraction"),
        *("ledger not charged", "seed reused: every curator draws the same noise"),
    ],
)
def test_the_bugs_that_everyone_makes_are_planted_by_name(bug):
    assert bug in {mutant.name for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_caught(mutant):
    assert remembered(mutant) or is_caught(mutant)


def test_a_changed_bug_file_or_test_is_run_again(tmp_path, monkeypatch):
    mutant = MUTANTS[0]
    shutil.copytree(PACKAGE, tmp_path / "userdp")
    shutil.copytree(TESTS, tmp_path / "tests")
    monkeypatch.setattr(mutants, "PACKAGE", tmp_path / "userdp")
    monkeypatch.setattr(mutants, "TESTS", tmp_path / "tests")
    monkeypatch.setattr(mutants, "CAUGHT", tmp_path / "caught.json")
    mutants.CAUGHT.write_text(json.dumps({mutant.name: mutants.fingerprint(mutant)}))
    assert remembered(mutant)
    assert not remembered(MUTANTS[1])
    assert not remembered(dataclasses.replace(mutant, new=mutant.new + " "))
    for changed in (tmp_path / "userdp" / mutant.file, tmp_path / "tests" / mutant.tests.split()[0].split("::")[0]):
        text = changed.read_text()
        changed.write_text(text + "\n")
        assert not remembered(mutant)
        changed.write_text(text)
    assert remembered(mutant)
