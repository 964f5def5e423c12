"""Plants privacy bugs: each must make the tests that are named beside it fail (`planted/`).

`python tests/mutants.py` plants them one after the other in a copy of the package and prints which were caught;
`python tests/mutants.py --table` writes docs/mutants.md, the list of them;
`test_mutants.py` does the same within the test suite. What was caught is remembered in planted/caught.json by a hash of
the bug, of the file that it is planted in and of the files of its tests: only what changed is run again. `--all` runs
them all, whatever is remembered. Every bug gets a process of its own, forked from one that has
already imported what the package needs: that saves most of the time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from planted import MUTANTS
from planted.mutant import Mutant

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "userdp"

_PATIENCE_SECONDS = 300
_ANOTHER_PACKAGE = 99  # exit code, beyond pytest's

_SERVER = multiprocessing.get_context("forkserver")
# What the package and its tests import, but not the package itself.
_SERVER.set_forkserver_preload(
    [
        "dp_accounting.pld.privacy_loss_distribution",
        "hypothesis.strategies",
        "numba.extending",
        "opendp.prelude",
        "pyarrow.parquet",
        "pytest",
        "rich.progress",
        "scipy.optimize",
        "scipy.stats",
        "sklearn.utils.estimator_checks",
        "sklearn.linear_model",
        "sklearn.utils.estimator_checks",
        "matplotlib.figure",
        "pandas",
    ]
)


CAUGHT = TESTS / "planted" / "caught.json"


def fingerprint(mutant: Mutant) -> str:
    """Of the bug, the file that it is planted in, and the files of its tests."""
    tests = sorted({name.split("::")[0] for name in mutant.tests.split()})
    parts = [*dataclasses.astuple(mutant), (PACKAGE / mutant.file).read_text()]
    parts += [(TESTS / name).read_text() for name in tests]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def remembered(mutant: Mutant) -> bool:
    """Whether this very bug was caught by these very tests before."""
    return bool(json.loads(CAUGHT.read_text()).get(mutant.name) == fingerprint(mutant))


def is_caught(mutant: Mutant) -> bool:
    """Whether a named test fails with the mutant planted, or crashes. An error of collection is not a catch."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / "userdp")
        file = Path(folder) / "userdp" / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name}: its text stands {text.count(mutant.old)} times in {mutant.file}")
        file.write_text(text.replace(mutant.old, mutant.new))
        run = _SERVER.Process(target=run_tests, args=(folder, mutant.tests.split()))
        run.start()
        run.join(_PATIENCE_SECONDS)
        if run.is_alive():
            run.kill()
            raise TimeoutError(f"{mutant.name}: no answer after {_PATIENCE_SECONDS} seconds")
        if run.exitcode == _ANOTHER_PACKAGE:
            raise RuntimeError(f"{mutant.name}: the tests ran on another package")
        failed = re.search(r"\b[0-9]+ failed\b", (Path(folder) / "output").read_text())
        return run.exitcode < 0 or (run.exitcode == pytest.ExitCode.TESTS_FAILED and failed is not None)


def run_tests(folder: str, tests: list[str]) -> None:
    """Run tests on the package in this folder and end the process with pytest's exit code."""
    output = os.open(Path(folder) / "output", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(TESTS.parent)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins cannot be loaded after what they would change
    sys.path.insert(0, folder)
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *(str(TESTS / name) for name in tests)])
    package = sys.modules.get("userdp")
    if package is not None and not str(package.__file__).startswith(folder):
        code = _ANOTHER_PACKAGE
    sys.exit(int(code))


TABLE = TESTS.parent / "docs" / "mutants.md"


def table() -> str:
    """Every planted bug and the test that notices it, by file."""
    lines = [
        "# Planted bugs",
        "",
        f"{len(MUTANTS)} privacy bugs, planted one by one in a copy of the package, each with the test that must then",
        "fail. Made by `python tests/mutants.py --table`; `make mutants` plants them all. Tests are within `tests/`.",
    ]
    for file in sorted({mutant.file for mutant in MUTANTS}):
        lines += ["", f"## {file}", "", "| bug | noticed by |", "|---|---|"]
        for mutant in MUTANTS:
            if mutant.file == file:
                tests = "<br>".join(f"`{name}`" for name in mutant.tests.split())
                lines.append(f"| {mutant.name} | {tests} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--table" in sys.argv[1:]:
        TABLE.write_text(table())
        return 0
    missed, known = 0, {}
    for mutant in MUTANTS:
        again = "--all" in sys.argv[1:] or not remembered(mutant)
        caught = is_caught(mutant) if again else True
        missed += not caught
        known |= {mutant.name: fingerprint(mutant)} if caught else {}
        print(f"{'caught' if caught else 'MISSED'}  {mutant.name:60} by {mutant.tests}", flush=True)
    CAUGHT.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} planted bugs caught")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
