"""Files that are written whole or not at all: made aside, then put in place in one step."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path` at the end. If anything fails, nothing is left of it."""
    path = Path(path)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name[:100]}.", dir=path.parent) as folder:
            new = Path(folder) / path.name
            yield new
            with open(new, "rb") as file:
                os.fsync(file.fileno())
            os.replace(new, path)
    except OSError as error:
        raise ValueError(f"Expected to write {path}: {error.strerror or 'it failed'}. Choose another place.") from None


def check_place(path: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> Path:
    """Refuse, before anything is computed or spent, a path that cannot be written or that is one of the sources."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file"
            raise ValueError(f"Expected to write a file at {path}, but it is {kind}: choose another name.")
        for source in map(Path, sources):
            if path.resolve() == source.resolve() or (path.exists() and source.exists() and path.samefile(source)):
                raise ValueError(f"Expected to write another file than {source}, which is needed: choose another name.")
        if not path.parent.is_dir():
            raise ValueError(f"Expected a folder at {path.parent} to write {path.name} to: make it first.")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"Expected to write {path}: {error.strerror or 'it failed'}. Choose another place.") from None
    return path
