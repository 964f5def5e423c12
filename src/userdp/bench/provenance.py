"""Where a measurement comes from: machine, versions, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import userdp

REPOSITORY = Path(userdp.__file__).parents[2]
_PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "opendp", "dp-accounting")


def provenance() -> dict[str, Any]:
    """What a reader needs to repeat a measurement; `commit` is None outside of a checkout."""
    return {
        "userdp": userdp.__version__,
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def _git(*arguments: str) -> str | None:
    if not (REPOSITORY / "pyproject.toml").exists():  # installed: a repository around it is somebody else's
        return None
    try:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
