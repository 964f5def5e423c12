"""What is installed is pinned: every requirement has one version and hashes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
_PINNED = re.compile(r"^[\w.\[\],-]+==[^\s;]+(\s*;.*?)?((\s+--hash=sha256:[0-9a-f]{64})+)$")


def requirements(lock):
    joined = lock.read_text().replace("\\\n", " ")
    lines = (line.split(" #")[0].strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def test_there_are_locks():
    assert {lock.name for lock in LOCKS} >= {"core.lock", "dev.lock", "demo.lock"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_requirement_is_pinned_with_hashes(lock):
    lines = requirements(lock)
    assert lines
    assert [line[:80] for line in lines if not _PINNED.match(line)] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_no_lock_names_an_index_or_an_address(lock):
    assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host|https?://|file://", lock.read_text())


def test_the_pattern_means_something():
    digest = "--hash=sha256:" + "0" * 64
    assert _PINNED.match(f"a==1.0 ; python_version < '3.12' {digest} {digest}")
    for loose in (
        "a==1.0",
        f"a>=1.0 {digest}",
        "a==1.0 --hash=sha256:12",
        f"a @ file:///tmp/a {digest}",
        f"-e . {digest}",
    ):
        assert not _PINNED.match(loose)


def test_installing_asks_for_the_hashes():
    made = (ROOT / "Makefile").read_text()
    installs = [line for line in made.splitlines() if "pip install" in line and ".lock" in line]
    assert installs
    assert all("--require-hashes" in line for line in installs)
