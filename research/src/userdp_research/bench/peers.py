"""Other libraries on the same users, each in an environment of its own.

A peer is a folder with `requirements.txt` (pinned) and `run.py`. It is called as

    python run.py DATA.npz SETTINGS.json

with X, y, groups, X_test, y_test in DATA.npz (the last feature is the constant 1, targets are 0 or 1, groups[i] is the
user of row i) and epsilon, delta, seed, passes, max_rows_per_user, row_norm and what --set adds in SETTINGS.json. The
last line that it prints is one JSON object with log_loss, auc, seconds and version.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import venv
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from userdp.data.tables import whole_file
from userdp_research.bench.cells import REPOSITORY, Cell, Record
from userdp_research.bench.real import best_scores, measure_real
from userdp_research.bench.solving import mean_and_spread
from userdp_research.bench.tasks import Task

_WANTED = ("log_loss", "auc", "seconds")


def find_peers(folder: Path | None) -> dict[str, Path]:
    """Peers by name; by default those in benchmarks/peers."""
    places = [folder] if folder else [base / "benchmarks" / "peers" for base in (Path.cwd(), REPOSITORY)]
    place = next((place for place in places if place.is_dir()), None)
    found = sorted(place.glob("*/run.py")) if place else []
    if not found:
        raise ValueError(f"Expected folders with run.py and requirements.txt in {places[0]}: give --peers.")
    return {script.parent.name: script.parent for script in found}


def peer_cells(
    peers: dict[str, Path],
    task: Task,
    users: Sequence[int | None],
    epsilons: Iterable[float],
    delta: float,
    repeats: int,
    passes: int,
    more: Record,
    envs: Path,
    timeout: float,
) -> list[Cell]:
    """Every peer at every epsilon. A peer whose files changed is run again."""
    context = {"path": str(task.path), "envs": str(envs), "timeout": timeout}
    size = {"command": "peers", "data": task.settings(), "delta": delta, "repeats": repeats, "passes": passes}
    cells = []
    for n, epsilon, (name, folder) in product(users, epsilons, peers.items()):
        settings = {"set": more, "users": n, "epsilon": epsilon, "peer": name, "files": _digest(folder)}
        cells.append(Cell(size | settings, context | {"folder": str(folder)}))
    return cells


def measure_peers(settings: Record, context: Record) -> Record:
    """One peer at one epsilon, or ours in the same table."""
    if settings["command"] == "real":
        return measure_real(settings, context)
    folder, envs = Path(context["folder"]), Path(context["envs"])
    python = environment(folder, envs)
    if python is None:
        return {"error": f"could not be installed: {envs / (folder.name + '.log')} says why"}
    task = Task.from_settings(settings["data"], context["path"])
    train = task.load(0, settings["users"])[0]
    best, found = best_scores(task.uncapped), []
    for seed in range(settings["repeats"]):
        asked = {key: settings[key] for key in ("epsilon", "delta", "passes")} | {"seed": seed}
        asked |= {"max_rows_per_user": task.cap, "row_norm": task.longest(train.n_features)} | settings["set"]
        data = _arrays(task, settings["users"], seed, envs)
        answer = _answer(python, folder, data, asked, envs, context["timeout"])
        if "error" in answer:
            return answer
        found.append(answer)
    return {
        "n_users": train.n_users,
        "n_weights": train.n_features,
        "best": best,
        "row_loss": mean_and_spread([answer["log_loss"] for answer in found]),
        "row_excess": mean_and_spread([answer["log_loss"] - best["row_loss"] for answer in found]),
        "auc": mean_and_spread([answer["auc"] for answer in found]),
        "seconds": [answer["seconds"] for answer in found],
        "peer_version": found[0].get("version"),
        "answers": found,
    }


def environment(folder: Path, envs: Path) -> Path | None:
    """The Python of the peer's own environment, made if it is not there; None if it cannot be made."""
    wanted = folder / "requirements.txt"
    content = wanted.read_bytes() if wanted.exists() else b""
    place = envs / f"{folder.name}-{hashlib.sha256(content).hexdigest()[:12]}"
    python, ready = place / "bin" / "python", place / "ready"
    if ready.exists():
        return python
    envs.mkdir(parents=True, exist_ok=True)
    try:
        venv.create(place, with_pip=True, clear=True)
        with open(envs / f"{folder.name}.log", "w") as log:
            command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-r", str(wanted)]
            if content.strip():
                subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True, env=_clean())
    except (OSError, subprocess.CalledProcessError):
        return None
    ready.touch()
    return python


def _answer(python: Path, folder: Path, data: Path, asked: Record, envs: Path, timeout: float) -> Record:
    settings = envs / f"{folder.name}.settings.json"
    settings.write_text(json.dumps(asked))
    command = [str(python), str((folder / "run.py").resolve()), str(data.resolve()), str(settings.resolve())]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=folder, env=_clean(), check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {timeout:g} seconds"}
    (envs / f"{folder.name}.run.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        return {"error": f"ended with code {done.returncode}: {envs / (folder.name + '.run.log')} says why"}
    try:
        answer: Record = json.loads(done.stdout.strip().splitlines()[-1])
        if not all(isinstance(answer[key], int | float) and math.isfinite(answer[key]) for key in _WANTED):
            raise ValueError
    except (ValueError, IndexError, KeyError, TypeError):
        return {"error": f"printed no JSON line with finite {', '.join(_WANTED)}"}
    return answer


def _arrays(task: Task, n_users: int | None, seed: int, envs: Path) -> Path:
    """The file that peers read: the same for all, and the users that our solvers have in this repeat."""
    name = hashlib.sha256(Cell({"data": task.settings(), "users": n_users, "seed": seed}).key.encode()).hexdigest()[:16]
    path = envs / f"data-{name}.npz"
    if path.exists():
        return path
    train, test = task.load(seed, n_users)
    groups = np.repeat(np.arange(train.n_users), np.diff(train.offsets))
    with whole_file(path) as new, open(new, "wb") as file:
        np.savez(file, X=train.dense(), y=train.targets, groups=groups, X_test=test.dense(), y_test=test.targets)
    return path


def _digest(folder: Path) -> str:
    """Of all files of the peer, and of those that peers share."""
    digest = hashlib.sha256()
    own = [path for path in folder.rglob("*") if path.suffix in (".py", ".txt")]
    for path in sorted([*own, *folder.parent.glob("*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _clean() -> dict[str, str]:
    """Without paths of this process, which would shadow the peer's packages."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {"PYTHONNOUSERSITE": "1"}
