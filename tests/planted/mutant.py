"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A bug: `new` instead of `old` in a file of the package, and the tests that must notice.

    `tests` are names that pytest takes, within the tests' folder: the fewer, the sooner it is caught.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
