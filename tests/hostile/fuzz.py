"""Coverage-guided fuzzing by atheris: `python fuzz.py <target> [options of libFuzzer]`; without a target it lists them.

`make fuzz SECONDS=600` runs all targets. An input that fails is saved in a file crash-...; the same bytes fail again
with `python fuzz.py <target> <file>`.
"""

from __future__ import annotations

import sys


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["userdp"]):
        import targets
    if len(sys.argv) < 2:
        print(*targets.TARGETS, sep="\n")
        return
    target = targets.TARGETS[sys.argv.pop(1)]
    atheris.Setup([*sys.argv, "-len_control=0", "-max_len=300"], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
