"""Mutation testing: each mutant of mutants.toml, a privacy bug, must be killed by the tests that are named beside it.

`python tests/mutants.py` runs those whose result is not known, in two processes, and prints which were killed;
`python tests/mutants.py clip ledger` only those whose name, place or tests hold one of these words, known or not;
`python tests/mutants.py --all` runs them all. `test_mutants.py` does the same within the test suite.
`MUTANTS_OF=research python tests/mutants.py` is about the mutants of research/ (`research/tests/mutants.toml`).

Those that were killed are remembered in caught.json by a hash of the mutant, of the file that it changes, of the files
of its tests and of what these import beside the tests, without comments and docstrings: only what changed is run again.

Mutants are grouped by their tests' files. Each group has a process that has imported the package and these tests, and
is forked for every mutant: there the code of the function is exchanged. Where that is not possible (classes,
constants), or nothing was noticed, the mutant gets a copy of the package and a process of its own.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from planting import Misplaced, Mutant, Planted, essence, plant, read

# Whose bugs: those of userdp, or of what stands in research/. Processes that are started get it from the environment.
OF_RESEARCH = os.environ.get("MUTANTS_OF") == "research"
ROOT = Path(__file__).parents[1] / ("research" if OF_RESEARCH else "")
NAME = "userdp_research" if OF_RESEARCH else "userdp"
TESTS = ROOT / "tests"
PACKAGE = ROOT / "src" / NAME
MUTANTS = read(TESTS / "mutants.toml")
CAUGHT = TESTS / "caught.json"

_PATIENCE_SECONDS = 600  # a machine may be busy
_ANOTHER_PACKAGE = 99  # exit codes, beyond pytest's
_NOT_EXCHANGED = 98
_FAILED = int(pytest.ExitCode.TESTS_FAILED)

_SERVER = multiprocessing.get_context("forkserver")
# What the package and its tests import, but not the package itself.
_SERVER.set_forkserver_preload(
    [
        "dp_accounting.pld.privacy_loss_distribution",
        "hypothesis.strategies",
        "matplotlib.figure",
        "opendp.prelude",
        "pandas",
        "pyarrow.parquet",
        "pytest",
        "rich.progress",
        "scipy.optimize",
        "scipy.stats",
        "sklearn.linear_model",
        "sklearn.utils.estimator_checks",
    ]
)


def fingerprint(mutant: Mutant) -> str:
    """Of the mutant, the file that it changes, the files of its tests, and what these import beside the tests."""
    files = [PACKAGE / plant(mutant, PACKAGE).file, *(TESTS / name for name in mutant.test_files)]
    for path in files[1:]:  # which grows
        files += [other for other in _helpers(path, path.stat().st_mtime_ns) if other not in files]
    parts = [*dataclasses.astuple(mutant), *(_essence(path, path.stat().st_mtime_ns) for path in files)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@functools.cache
def _essence(path: Path, modified: int) -> str:
    return hashlib.sha256(essence(path.read_text()).encode()).hexdigest()


@functools.cache
def _helpers(path: Path, modified: int) -> list[Path]:
    """Files of the tests' folders that a file of tests imports, such as support_data.py."""
    names = re.findall(r"^(?:from|import) (\w+)", path.read_text(), flags=re.MULTILINE)
    return sorted(file for name in set(names) for file in TESTS.rglob(f"{name}.py"))


def remembered(mutant: Mutant) -> bool:
    """Whether this very mutant was killed by these very tests before."""
    try:
        return bool(json.loads(CAUGHT.read_text()).get(mutant.name) == fingerprint(mutant))
    except Misplaced:
        return False


def is_caught(mutant: Mutant, group: Group | None = None) -> bool:
    """Whether a named test fails on the mutant, or crashes. An error of collection does not kill it."""
    planted = plant(mutant, PACKAGE)
    return (group is not None and group.notices(mutant, planted)) or _notices_in_copy(mutant, planted)


def groups(chosen: list[Mutant]) -> list[list[Mutant]]:
    """Mutants by the files of their tests, the largest group first."""
    ordered = sorted(chosen, key=lambda mutant: mutant.test_files)
    found = [list(same) for _, same in itertools.groupby(ordered, key=lambda mutant: mutant.test_files)]
    return sorted(found, key=len, reverse=True)


class Group:
    """A process that has imported the package and some files of tests; every mutant runs in a fork of it."""

    def __init__(self, test_files: tuple[str, ...]) -> None:
        self.test_files = test_files
        self._connection, other = multiprocessing.Pipe()
        self._process = _SERVER.Process(target=_serve, args=(other, test_files), daemon=False)
        self._process.start()
        other.close()
        self._sound = False

    def notices(self, mutant: Mutant, planted: Planted) -> bool:
        """Whether its tests fail with this bug, by an exchange of code. Without any bug, all of the group must pass."""
        if not self._sound:
            tests = sorted({name for m in MUTANTS if m.test_files == self.test_files for name in m.tests.split()})
            code = self._ask(tests, None)
            if code:
                raise RuntimeError(f"Without any bug, pytest ends with {code} on {' '.join(tests)}")
            self._sound = True
        code = self._ask(mutant.tests.split(), planted)
        return code < 0 or code == _FAILED

    def _ask(self, tests: list[str], planted: Planted | None) -> int:
        self._connection.send((tests, planted))
        return int(self._connection.recv())

    def close(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Any, test_files: tuple[str, ...]) -> None:
    """Import the package and the tests, then answer with the exit codes of pytest in forks."""
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder) / "output", PACKAGE.parent)
        pytest.main(["--collect-only", *_options(test_files)])
        for request in iter(functools.partial(_receive, connection), None):
            connection.send(_in_a_fork(Path(folder) / "output", *request))


def _receive(connection: Any) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return None


def _in_a_fork(output: Path, tests: list[str], planted: Planted | None) -> int:
    """Exit code of pytest, or -1 for an end by a signal; of a bug that hangs too."""
    child = os.fork()
    if child == 0:
        code = _NOT_EXCHANGED
        try:
            os.setpgid(0, 0)
            os.truncate(output, 0)
            if planted is None or exchange(planted):
                code = int(pytest.main(_options(tests)))
                if code == _FAILED and not _has_failures(output):
                    code = _NOT_EXCHANGED
        finally:
            os._exit(code)
    return _end(child)


def _end(child: int) -> int:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return _NOT_EXCHANGED


def exchange(planted: Planted) -> bool:
    """Give the imported function the code that it has with the bug; whether that is possible."""
    sound, changed = (_definitions(text, planted.symbol) for text in (planted.sound, planted.text))
    if len(sound) != 1 or len(changed) != 1 or _signature(sound[0]) != _signature(changed[0]):
        return False
    module = f"{NAME}." + planted.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    owner: Any = importlib.import_module(module)
    for name in planted.symbol.split("."):
        owner = vars(owner)[name]
    function, code = _plain(owner), _code(planted.text, module, planted.symbol)
    if function is None or code is None or function.__code__.co_freevars != code.co_freevars:
        return False
    function.__code__ = code
    return True


def _definitions(text: str, symbol: str) -> list[ast.AST]:
    found: list[ast.AST] = [ast.parse(text)]
    for name in symbol.split("."):
        found = [n for f in found for n in getattr(f, "body", []) if getattr(n, "name", None) == name]
    return [f for f in found if isinstance(f, ast.FunctionDef)]


def _signature(function: Any) -> str:
    return ast.dump(function.args) + "".join(map(ast.dump, function.decorator_list))


def _plain(function: Any) -> types.FunctionType | None:
    """The plain function in a property, a method of a class, or a wrapper."""
    for wrapped in ("fget", "func", "__func__", "__wrapped__"):
        if not isinstance(function, types.FunctionType) or wrapped == "__wrapped__":
            function = getattr(function, wrapped, function)
    return function if isinstance(function, types.FunctionType) else None


def _code(text: str, module: str, symbol: str) -> types.CodeType | None:
    def within(code: types.CodeType) -> Iterator[types.CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield constant
                yield from within(constant)

    file = str(sys.modules[module].__file__)
    whole = compile(text, file, "exec", dont_inherit=True)
    found = [code for code in within(whole) if code.co_qualname == symbol]
    return found[0] if len(found) == 1 else None


def _notices_in_copy(mutant: Mutant, planted: Planted) -> bool:
    """The same with a copy of the package, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / NAME)
        (Path(folder) / NAME / planted.file).write_text(planted.text)
        run = _SERVER.Process(target=_run_tests, args=(folder, mutant.tests.split()))
        run.start()
        run.join(_PATIENCE_SECONDS)
        if run.is_alive():
            run.kill()
            raise TimeoutError(f"{mutant.name}: no answer after {_PATIENCE_SECONDS} seconds")
        if run.exitcode == _ANOTHER_PACKAGE:
            raise RuntimeError(f"{mutant.name}: the tests ran on another package")
        return run.exitcode < 0 or (run.exitcode == _FAILED and _has_failures(Path(folder) / "output"))


def _run_tests(folder: str, tests: list[str]) -> None:
    """Run tests on the package in this folder and end the process with pytest's exit code."""
    _prepare(Path(folder) / "output", Path(folder))
    code = int(pytest.main(_options(tests)))
    package = sys.modules.get(NAME)
    if package is not None and not str(package.__file__).startswith(folder):
        code = _ANOTHER_PACKAGE
    sys.exit(code)


def _prepare(output: Path, sources: Path) -> None:
    written = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.chdir(TESTS.parent)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins cannot be loaded after what they would change
    sys.path.insert(0, str(sources))


def _options(tests: Any) -> list[str]:
    return ["-x", "-q", "--tb=no", "-o", "addopts=", "-p", "no:cacheprovider", *(str(TESTS / name) for name in tests)]


def _has_failures(output: Path) -> bool:
    return re.search(r"\b[0-9]+ failed\b", output.read_text(errors="replace")) is not None


def main() -> int:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    chosen = [m for m in MUTANTS if any(word in f"{m.name} {m.where} {m.tests}" for word in words)]
    if not words:
        chosen = [m for m in MUTANTS if "--all" in sys.argv[1:] or not remembered(m)]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(_run_group, groups(chosen)))
    caught = {name for names in outcomes for name in names}
    kept = [m for m in MUTANTS if m.name in caught or (m not in chosen and remembered(m))]
    known = {mutant.name: fingerprint(mutant) for mutant in kept}
    CAUGHT.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
    print(f"{len(caught)} of {len(chosen)} mutants killed; {len(known)} of {len(MUTANTS)} are known to be")
    return int(len(caught) < len(chosen))


def _run_group(mutants: list[Mutant]) -> list[str]:
    """Names of those that are killed."""
    group, names = Group(mutants[0].test_files), []
    try:
        for mutant in mutants:
            begin, word = time.monotonic(), "MISSED"
            try:
                word = "caught" if is_caught(mutant, group) else word
            except (Misplaced, RuntimeError, TimeoutError) as error:
                word = str(error)
            names += [mutant.name] if word == "caught" else []
            print(f"{word}  {time.monotonic() - begin:5.1f} s  {mutant.name}  by {mutant.tests}", flush=True)
    finally:
        group.close()
    return names


if __name__ == "__main__":
    sys.exit(main())
