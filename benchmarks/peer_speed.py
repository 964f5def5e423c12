"""How fast are other libraries at the same job? Seconds of a training run over ours, interleaved in one run.

Everybody gets the same generated users in one file, and trains a logistic regression at the same user-level guarantee
with the same number of user gradients (`passes` over all users; diffprivlib, which takes no such number, runs to its
own end). Each is a process of its own, in the peers' own environments (benchmarks/peers, made when they are missing),
and is timed from rows in memory to weights, start and imports left out; ours is compiled before. A peer that takes
longer than `--timeout` seconds is not asked again.

    python benchmarks/peer_speed.py [--users 10000] [--passes 20] [--repeats 7] [--envs .userdp-peers]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import save
from rich.console import Console
from rich.table import Table
from speed import arrays, scenario

from userdp import LogisticRegression
from userdp.bench.generated import draw_users
from userdp.bench.peers import environment, find_peers

ROWS, FEATURES, EPSILON, DELTA = 20, 20, 1.0, 1e-6


def ours(data: Path, settings: Path) -> None:
    """What a peer's run.py does, by the default solver: prints one line."""
    asked, held = json.loads(settings.read_text()), np.load(data)
    X, y, groups = held["X"][:, :-1].copy(), held["y"] > 0, held["groups"]
    limit = asked["passes"] * len(X)

    def fitted() -> LogisticRegression:
        model = LogisticRegression(asked["epsilon"], asked["delta"], max_rows_per_user=ROWS, max_gradients=limit)
        return model.fit(X, y, groups=groups)

    fitted()  # compiles
    start = time.perf_counter()
    model = fitted()
    seconds = time.perf_counter() - start
    chances = np.clip(model.predict_proba(held["X_test"][:, :-1])[:, 1], 1e-12, 1 - 1e-12)
    loss = -np.mean(np.where(held["y_test"] > 0, np.log(chances), np.log1p(-chances)))
    sys.stdout.write(json.dumps({"seconds": seconds, "log_loss": float(loss), "gradients": model.n_gradients_}))


def job(folder: Path, users: int, passes: int) -> tuple[Path, Path]:
    """The files that everybody reads."""
    X, y, ids = arrays(users, ROWS, FEATURES)
    test = draw_users(scenario(ROWS, FEATURES), 5_000, 1)
    ones = np.ones((len(X), 1), np.float32)
    np.savez(
        folder / "data.npz",
        X=np.hstack([X.astype(np.float32), ones]),
        y=y.astype(np.float32),
        groups=ids,
        X_test=test.rows.astype(np.float32),
        y_test=(test.targets > 0).astype(np.float32),
    )
    asked = {"epsilon": EPSILON, "delta": DELTA, "passes": passes, "seed": 0, "max_rows_per_user": ROWS}
    (folder / "settings.json").write_text(json.dumps(asked | {"row_norm": float(np.sqrt(FEATURES + 1))}))
    return folder / "data.npz", folder / "settings.json"


def answer(command: list[str], timeout: float) -> dict:
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" or command[0] == sys.executable}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=own)
    except subprocess.TimeoutExpired:
        return {"error": f"more than {timeout:g} s"}
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr[-300:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--envs", type=Path, default=Path(".userdp-peers"))
    parser.add_argument("--ours", type=Path, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ours:
        ours(*asked.ours)
        return
    commands = {"userdp": [sys.executable, __file__, "--ours"]}
    for name, folder in find_peers(None).items():
        python = environment(folder, asked.envs)
        if python is None:
            Console().print(f"{name} could not be installed: {asked.envs / (name + '.log')} says why")
        else:
            commands[name] = [str(python), str(folder / "run.py")]
    told: dict[str, list[dict]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        files = [str(file) for file in job(Path(folder), asked.users, asked.passes)]
        for _ in range(asked.repeats):
            for name, command in commands.items():
                if not any("error" in one for one in told[name]):
                    told[name].append(answer([*command, *files], asked.timeout))
    rows = []
    for name, answers in told.items():
        good = [one for one in answers if "error" not in one]
        row = {"who": name, "runs": len(good), "error": next((one["error"] for one in answers if "error" in one), "")}
        if good:
            row["seconds"] = float(np.median([one["seconds"] for one in good]))
            row["times ours"] = row["seconds"] / float(np.median([one["seconds"] for one in told["userdp"]]))
            row["log loss"] = float(np.mean([one["log_loss"] for one in good]))
        rows.append(row)
    table = Table("who", "seconds", "times ours", "log loss", "runs", "")
    for row in rows:
        cells = (row.get("seconds"), row.get("times ours"), row.get("log loss"))
        shown = ["-" if cell is None else f"{cell:.3g}" for cell in cells]
        table.add_row(row["who"], *shown, str(row["runs"]), row["error"][:60])
    console = Console(width=120)
    console.print(
        f"{asked.users:,} users x {ROWS} rows x {FEATURES} features, {asked.passes} passes, epsilon {EPSILON:g}"
    )
    console.print(table)
    size = {"users": asked.users, "passes": asked.passes}
    console.print(f"Wrote {save('peer_speed', {'trainings': [size | row for row in rows]})}")


if __name__ == "__main__":
    main()
