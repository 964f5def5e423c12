"""What a mutant is, where all of them are read from, and how a mutant's place is found: by symbol, then by tokens.

A place is a dotted name of a function, class or constant of the package, as much of its end as is unambiguous:
`Clip.sensitivity`, or `clip.sensitivity` where two modules have a `sensitivity`. Modules may be moved and merged.
Within the symbol, white space, line breaks, comments and trailing commas do not matter.
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
    | [rRbBfFuU]{0,2} (?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3}
                        | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    | (?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?
    | \w+
    | \*\*= | //= | >>= | <<= | \.\.\. | -> | := | == | != | <= | >= | \*\* | // | << | >> | [-+*/%@&|^]=
    | [^\w\s\\]""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    text: str
    start: int
    end: int


class Misplaced(ValueError):
    """A mutant has lost its place."""


@dataclass(frozen=True)
class Mutant:
    """A bug: `new` instead of `old` in a symbol of the package, and the tests that must notice.

    `where` may also be a file, as in "privacy/curator.py": then `old` is sought in all of it.
    `tests` are names that pytest takes, within the tests' folder: the fewer, the sooner it is caught.
    """

    name: str
    where: str
    old: str
    new: str
    tests: str

    @property
    def test_files(self) -> tuple[str, ...]:
        return tuple(sorted({name.split("::")[0] for name in self.tests.split()}))


def read(path: Path) -> list[Mutant]:
    """All bugs of a file such as mutants.toml, in its order."""
    return [Mutant(**bug) for part in tomllib.loads(path.read_text()).values() for bug in part]


@dataclass(frozen=True)
class Planted:
    """A file of the package, its text with the bug, and the symbol's dotted name within the file ("": no symbol)."""

    file: str
    symbol: str
    sound: str
    text: str


def plant(mutant: Mutant, package: Path) -> Planted:
    """The file with this bug; `Misplaced` says what of its place is gone."""
    file, symbol, first, last = _place(mutant, package)
    text = (package / file).read_text()
    found = _occurrences(lex(mutant.old), lex(text[first:last]))
    if len(found) != 1:
        raise Misplaced(f"{mutant.name}: {mutant.old!r} stands {len(found)} times in {symbol or 'all'} of {file}")
    start, end = first + found[0][0], first + found[0][1]
    line = text[text.rfind("\n", 0, start) + 1 : start]
    lines = textwrap.dedent(mutant.new).strip().splitlines()
    margin = line[: len(line) - len(line.lstrip())]
    new = "\n".join([*lines[:1], *(margin + rest for rest in lines[1:])])
    for replacement in (new, new or "pass"):
        planted = text[:start] + replacement + text[end:]
        if wrong := _wrong(planted):
            continue
        return Planted(file, symbol, text, planted)
    raise Misplaced(f"{mutant.name}: {mutant.new!r} is no code in {symbol or 'all'} of {file}: {wrong}")


@functools.lru_cache(2048)
def _wrong(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError as error:
        return str(error)
    return ""


def lex(text: str) -> list[Token]:
    """The tokens of Python code, of a part of it too; comments are left out."""
    return [Token(m.group(), m.start(), m.end()) for m in _TOKEN.finditer(text) if m["comment"] is None]


def essence(text: str) -> str:
    """A file's tokens without comments and docstrings: what results depend on."""
    lines = text.splitlines(keepends=True)
    offsets = [0, *itertools.accumulate(len(line.encode()) for line in lines)]
    code = text.encode()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first, last = offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset
            code = code[:first] + b" " * (last - first) + code[last:]
    return "\n".join(token.text for token in lex(code.decode()))


def _occurrences(wanted: list[Token], there: list[Token]) -> list[tuple[int, int]]:
    """Where the tokens stand; if nowhere, where they stand but for commas before closing brackets."""
    for drop in (False, True):
        tokens = [t for t, after in zip(there, [*there[1:], None], strict=True) if not (drop and _spare(t, after))]
        words = [token.text for token in tokens]
        sought = [
            t.text for t, after in zip(wanted, [*wanted[1:], None], strict=True) if not (drop and _spare(t, after))
        ]
        length = len(sought)
        starts = [i for i in range(len(words) - length + 1) if words[i : i + length] == sought] if sought else []
        if starts:
            return [(tokens[i].start, tokens[i + length - 1].end) for i in starts]
    return []


def _spare(token: Token, after: Token | None) -> bool:
    return token.text == "," and after is not None and after.text in ")]}"


def _place(mutant: Mutant, package: Path) -> tuple[str, str, int, int]:
    """File, symbol in it, and the part of its text that is the symbol's."""
    if mutant.where.endswith(".py"):
        if not (package / mutant.where).exists():
            raise Misplaced(f"{mutant.name}: there is no file {mutant.where}")
        return mutant.where, "", 0, len((package / mutant.where).read_text())
    found = [place for name, place in _index(package, _files(package)) if name.endswith("." + mutant.where)]
    if len(found) != 1:
        places = f"names {len(found)} symbols, in {', '.join(f[0] for f in found)}" if found else "is gone"
        raise Misplaced(f"{mutant.name}: its symbol {mutant.where} {places}")
    return found[0]


def _files(folder: str | Path, within: str = "") -> tuple[tuple[str, int], ...]:
    """Every module below this folder, with the time when it was written."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    here = [(within + e.name, e.stat().st_mtime_ns) for e in found if e.name.endswith(".py")]
    below = [_files(e.path, within + e.name + "/") for e in found if e.is_dir() and e.name != "__pycache__"]
    return tuple(itertools.chain(here, *below))


@functools.lru_cache(8)
def _index(package: Path, files: tuple[tuple[str, int], ...]) -> list[tuple[str, tuple[str, str, int, int]]]:
    """Every symbol by its whole dotted name, with its file, its name in the file, and its part of the text."""
    return [
        ("." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") + "." + name, (file, name, *span))
        for file, modified in files
        for name, span in symbols(package / file, modified).items()
    ]


@functools.cache
def symbols(path: Path, modified: int) -> dict[str, tuple[int, int]]:
    """Functions, classes, methods and assigned names of a file, by dotted name: where their text begins and ends.

    A name that is defined twice (a property and its setter) stands for the text of both.
    """
    text = path.read_text()
    starts = [0, *itertools.accumulate(len(line) for line in text.splitlines(keepends=True))]
    found: dict[str, tuple[int, int]] = {}

    def note(name: str, node: ast.stmt) -> None:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        span = (starts[first - 1], starts[node.end_lineno or first])
        before = found.get(name, span)
        found[name] = (min(span[0], before[0]), max(span[1], before[1]))

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                note(prefix + node.name, node)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, prefix + node.name + ".")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        note(prefix + target.id, node)
            elif isinstance(node, ast.If | ast.Try | ast.With):
                visit(node.body, prefix)
                visit(getattr(node, "orelse", []), prefix)

    visit(ast.parse(text).body, "")
    return found
