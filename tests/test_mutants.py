"""The tests kill every mutant (see mutants.py): a suite that passes with the noise halved is broken."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import mutants
import pytest
from mutants import MUTANTS, PACKAGE, TESTS, is_caught, remembered
from planting import Misplaced, Mutant, plant


def test_every_mutant_has_its_place():
    """A moment's check before the long run: its symbol exists, and what it replaces stands there exactly once."""
    misplaced = []
    for mutant in MUTANTS:
        try:
            plant(mutant, PACKAGE)
        except Misplaced as error:
            misplaced.append(str(error))
    assert misplaced == []


def test_every_mutant_is_code_whose_names_exist(tmp_path):
    """A bug that raises NameError would be caught by any test, and prove nothing."""
    for number, mutant in enumerate(MUTANTS):
        (tmp_path / f"bug_{number}.py").write_text(plant(mutant, PACKAGE).text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert [MUTANTS[int(number)].name for number in re.findall(r"bug_([0-9]+)\.py", found)] == []
    assert "All checks passed" in found


def test_every_mutant_has_its_own_name_and_tests_that_exist():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        for name in mutant.tests.split():
            file, test = name.split("::")
            assert f"\ndef {test}(" in (TESTS / file).read_text(), f"{mutant.name}: {name}"


@pytest.mark.parametrize(
    "bug",
    [
        *("Gaussian noise halved", "test skipped", "user sampled twice", "sensitivity without the slack's fraction"),
        *("ledger not charged", "seed reused: every curator draws the same noise"),
    ],
)
def test_the_bugs_that_everyone_makes_are_mutants(bug):
    assert bug in {mutant.name for mutant in MUTANTS}


@pytest.fixture(scope="module")
def group_of():
    """The process for a bug's tests; one at a time, so bugs with the same tests should come one after the other."""
    running = []

    def group_of(mutant):
        if running and running[0].test_files != mutant.test_files:
            running.pop().close()
        running[:] = running or [mutants.Group(mutant.test_files)]
        return running[0]

    yield group_of
    for group in running:
        group.close()


@pytest.mark.slow
@pytest.mark.mutation
@pytest.mark.parametrize(
    "mutant", [m for same in mutants.groups(MUTANTS) for m in same], ids=lambda mutant: mutant.name
)
def test_mutant_is_killed(mutant, group_of):
    assert remembered(mutant) or is_caught(mutant, group_of(mutant))


def test_a_changed_mutant_file_or_test_is_run_again_but_not_for_prose(tmp_path, monkeypatch):
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
    assert not remembered(dataclasses.replace(mutant, where="gone.symbol"))
    for changed in (tmp_path / "userdp" / plant(mutant, PACKAGE).file, tmp_path / "tests" / mutant.test_files[0]):
        text = changed.read_text()
        changed.write_text('"""Another docstring."""\n' + text.split('"""', 2)[2] + "# and a comment\n")
        assert remembered(mutant)
        changed.write_text(text + "\n_ANOTHER = 1\n")
        assert not remembered(mutant)
        changed.write_text(text)
    assert remembered(mutant)


_SOURCE = """
import functools

LIMIT = 3

class Clip:
    @property
    def size(self):
        return min(
            1.5,  # the longest
            LIMIT,
        )

    def count(self, n):
        total = 2 if n else 2 * n
        self.seen = total
        return total

@functools.cache
def size():
    return 5
"""


@pytest.fixture
def small_package(tmp_path):
    (tmp_path / "clip.py").write_text(_SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("where", "old", "new", "there"),
    [
        ("Clip.size", "min(1.5, LIMIT)", "LIMIT", "        return LIMIT\n"),
        ("Clip.size", "1.5", "2.5", "            2.5,  # the longest\n"),
        ("clip.size", "5", "6", "    return 6\n"),
        ("LIMIT", "3", "4", "LIMIT = 4\n"),
        ("Clip.count", "2 * n", "3 * n", "total = 2 if n else 3 * n\n"),
        ("Clip.count", "self.seen = total", "", "        \n        return total\n"),
        ("Clip.count", "return total", "if n:\n    return 1", "        if n:\n            return 1\n"),
        ("clip.py", "def size(): return 5", "def size(): return 6", "def size(): return 6\n"),
    ],
)
def test_a_mutant_changes_its_symbol_however_its_lines_are_broken(small_package, where, old, new, there):
    assert there in plant(Mutant("a bug", where, old, new, ""), small_package).text


@pytest.mark.parametrize(
    ("where", "old", "new", "message"),
    [
        ("Clip.length", "1", "2", "a bug: its symbol Clip.length is gone"),
        ("size", "1.5", "2", "a bug: its symbol size names 2 symbols, in clip.py, clip.py"),
        ("Clip.count", "2", "3", "a bug: '2' stands 2 times in Clip.count of clip.py"),
        ("Clip.count", "LIMIT", "3", "a bug: 'LIMIT' stands 0 times in Clip.count of clip.py"),
        ("Clip.count", "2 * n", "2 *", "a bug: '2 *' is no code in Clip.count of clip.py"),
        ("gone.py", "2 * n", "2", "a bug: there is no file gone.py"),
    ],
)
def test_a_bug_that_lost_its_place_says_what_is_gone(small_package, where, old, new, message):
    with pytest.raises(Misplaced, match=re.escape(message)):
        plant(Mutant("a bug", where, old, new, ""), small_package)
