"""Writes the golden files anew (`make golden`), and compares records with them.

Each record is made again from cells that differ in their last digits. If it then differs by more than a tenth of what
the test allows it would be a useless record, and the command fails.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import golden_cases
import numpy as np

FOLDER = Path(__file__).parent
# Names of what is computed from data, which may differ in its last digits, the more so if rows are in single precision;
# and of what is another one each time, or on each machine.
FITTED = {
    *("weights", "coef", "intercept", "bound", "phases", "affected_users", "scores", "prediction_range", "columns"),
    *("std_err", "conf_int", "noise_share", "best_score", "cv_results", "mean", "scale", "noise_std", "radius"),
    *("uncertainty", "predictions", "rows", "users", "by", "curve", "clipped"),
}
VOLATILE = {"created", "charged_at", "versions", "path", "output", "plot", "mark", "identity"}
EXACT = ("plans", "ledger")  # files with nothing that is computed from data
LOOSE, LOOSE_IN_SINGLE = 1e-6, 1e-4
STRICT = 1e-8  # of public numbers: another CPU's exponentials move what samples cost by 1.3e-9
LEAST = 1e-3  # of single numbers' sizes, which errors are relative to


def produced(area: str, name: str) -> Any:
    """A record as it is now."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return normalised(golden_cases.CASES[area][name](), None if area in EXACT else False)


def within(key: str, fitted: bool | None) -> bool | None:
    """Whether what has this name is computed from data; None where nothing is."""
    return fitted if fitted is None else fitted or key in FITTED


def normalised(value: Any, fitted: bool | None) -> Any:
    """As JSON has it, without dates, versions and paths; numbers of fits to ten digits."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {
            str(key): "normalised" if key in VOLATILE and one else normalised(one, within(key, fitted))
            for key, one in value.items()
        }
    if isinstance(value, np.ndarray | np.generic):
        return normalised(value.tolist(), fitted)
    if isinstance(value, list | tuple):
        return [normalised(one, fitted) for one in value]
    if isinstance(value, float):
        return (float(f"{value:.10g}") if fitted else value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        if value.startswith(('{"', '[{"', "[[")):
            return normalised(json.loads(value), fitted)
        text = value.replace(str(datetime.now(UTC).date()), "(today)")
        return re.sub(re.escape(tempfile.gettempdir()) + r"/[^/\s]+", "(folder)", text)
    return value


def differences(now: Any, kept: Any, loose: float, where: str = "", fitted: bool | None = False) -> Iterator[str]:
    """Where two records differ: numbers of fits by more than `loose`, relative to the largest of their list."""
    if isinstance(now, dict) and isinstance(kept, dict):
        if list(now) != list(kept):
            yield f"{where}: {sorted(now.keys() ^ kept.keys()) or 'another order of keys'}"
        for key in kept.keys() & now.keys():
            yield from differences(now[key], kept[key], loose, f"{where}/{key}", within(key, fitted))
    elif isinstance(now, list) and isinstance(kept, list):
        if len(now) != len(kept):
            yield f"{where}: {len(kept)} entries became {len(now)}"
        elif fitted and kept and all(isinstance(one, float) for one in [*now, *kept]):
            if not np.allclose(now, kept, rtol=0, atol=loose * max(map(abs, kept))):
                yield f"{where}: {kept} became {now}"
        else:
            for number, (one, other) in enumerate(zip(now, kept, strict=True)):
                yield from differences(one, other, loose, f"{where}/{number}", fitted)
    elif isinstance(now, float) and isinstance(kept, float):
        allowed = loose * max(abs(kept), LEAST) if fitted else STRICT * abs(kept)
        if not abs(now - kept) <= allowed:
            yield f"{where}: {kept!r} became {now!r}"
    elif type(now) is not type(kept) or now != kept:
        yield f"{where}: {kept!r} became {now!r}"


def changes(area: str, name: str, now: Any, before: Any, part: float = 1.0) -> list[str]:
    """What differs by more than a part of what is allowed."""
    loose = LOOSE_IN_SINGLE if "float32" in name else LOOSE
    return list(differences(now, before, part * loose, fitted=None if area in EXACT else False))


def kept(area: str) -> dict[str, Any]:
    """The records of a file."""
    return dict(json.loads((FOLDER / f"{area}.json").read_text(encoding="utf-8")))


def written(value: Any, indent: str = "") -> str:
    """JSON with as much in a line as fits into one."""
    text = json.dumps(value)
    if len(indent + text) <= 140 or not isinstance(value, dict | list) or not value:
        return text
    inner = indent + " "
    if isinstance(value, list) and not re.search('[a-z"{]', text):
        lines = textwrap.wrap(text, 140 - len(inner), initial_indent=inner, subsequent_indent=inner)
        return "\n".join(lines).lstrip()
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + written(one, inner) for one in value) + f"\n{indent}]"
    lines = (f"{inner}{json.dumps(key)}: {written(one, inner)}" for key, one in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def main() -> None:
    fragile = []
    for area, cases in golden_cases.CASES.items():
        golden_cases.NUDGE[:] = 0.0, 0
        records = {name: produced(area, name) for name in cases}
        (FOLDER / f"{area}.json").write_text(written(records) + "\n", encoding="utf-8")
        for seed in (1, 2):
            golden_cases.NUDGE[:] = 1e-12, seed
            for name, record in records.items():
                found = changes(area, name, produced(area, name), record, 0.1)
                fragile += [f"{area}, {name}: {change}" for change in found[:1]]
    if fragile:
        sys.exit("These hang on the last digits of their data, take other data or another seed:\n" + "\n".join(fragile))


if __name__ == "__main__":
    main()
