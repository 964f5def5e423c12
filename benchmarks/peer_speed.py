"""How fast are other libraries at the same job? Times of a training run over ours, interleaved in one run.

Everybody gets the same generated users, float32, in one file, and trains a logistic regression at the same user-level
guarantee: `passes` over all users, in steps of a twentieth of them (our default takes at most as many, in steps of its
own; diffprivlib, which takes no such number, runs to its own end). Each library is a process in its own environment
(research/peers, made when it is missing) with as many threads as there are cores, which trains once to warm up and
then when it is its turn. Peers are timed from rows grouped by user in memory to weights; their search for the noise
that epsilon and delta ask for is timed apart. Our time has grouping and planning in it. A peer that takes longer than
`--timeout` seconds for a training, or would at more users, is not asked. `--steps-per-pass 1` lets peers take all users
in each step.

    python benchmarks/peer_speed.py [--users 1000 10000 100000] [--passes 10] [--repeats 7] [--envs .userdp-peers]
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from common import save
from rich.console import Console
from rich.table import Table
from speed import arrays, scenario

from userdp import LogisticRegression, Solver
from userdp_research.bench.generated import draw_users
from userdp_research.bench.peers import environment, find_peers

ROWS, FEATURES, EPSILON, DELTA = 20, 20, 1.0, 1e-6
ROW_NORM = 2 * (FEATURES + 1) ** 0.5  # public, and twice the usual one: nobody cuts a row
OURS, OWN_END = "userdp", ("diffprivlib",)  # which does not take the number of passes
START_SECONDS = 120.0  # for imports, reading, and the search for the noise
TOLD = ("seconds", "cpu_seconds", "noise_seconds", "log_loss")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def ours(data: Path, settings: Path) -> None:
    """What a peer's run.py does, by the default solver: one training to warm up, and one for each line that comes."""
    asked, held = json.loads(settings.read_text()), np.load(data)
    X, y, groups = held["X"][:, :-1].copy(), held["y"] > 0, held["groups"]
    X_test, y_test = held["X_test"][:, :-1], held["y_test"] > 0

    def fitted() -> LogisticRegression:
        model = LogisticRegression(
            asked["epsilon"],
            asked["delta"],
            max_rows_per_user=ROWS,
            solver=Solver(max_gradients=asked["passes"] * len(X)),
        )
        return model.fit(X, y, groups=groups)

    fitted()
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        model = fitted()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        chances = np.clip(model.predict_proba(X_test)[:, 1], 1e-12, 1 - 1e-12)
        loss = -np.mean(np.where(y_test, np.log(chances), np.log1p(-chances)))
        line = {"seconds": wall, "cpu_seconds": cpu, "log_loss": float(loss), "passes": model.n_gradients_ / len(X)}
        print(json.dumps(line), flush=True)


def job(folder: Path, users: int, passes: int, steps_per_pass: int) -> list[str]:
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
    asked = {"epsilon": EPSILON, "delta": DELTA, "passes": passes, "steps_per_pass": steps_per_pass, "seed": 0}
    asked |= {"max_rows_per_user": ROWS, "row_norm": ROW_NORM, "in_turns": True}
    (folder / "settings.json").write_text(json.dumps(asked))
    return [str(folder / "data.npz"), str(folder / "settings.json")]


class Trainer:
    """A library's process, which trains when it is told to; `error` says why it does so no more."""

    def __init__(self, command: list[str], folder: Path, timeout: float) -> None:
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" or command[0] == sys.executable}
        own |= dict.fromkeys(THREADS, str(len(os.sched_getaffinity(0))))
        self.error, self._timeout, self._log = "", timeout, folder / "stderr"
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=own
            )
        self._line(START_SECONDS + timeout, "ready")

    def turn(self) -> dict[str, Any] | None:
        """One training, timed."""
        if self.error:
            return None
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._line(self._timeout, "{")
        return None if line is None else json.loads(line)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self, seconds: float, begins: str) -> str | None:
        """The next line that begins so: libraries print other things too."""
        stream, end = self._process.stdout, time.monotonic() + seconds
        assert stream
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while selector.select(max(0.0, end - time.monotonic())):
                line = stream.readline()
                if line.startswith(begins):
                    return line
                if not line:
                    self.error = self._log.read_text().strip()[-300:] or "ended"
                    return None
        self.error = f"more than {seconds:g} s"
        self.stop()
        return None


def measured(commands: dict[str, list[str]], users: int, asked: argparse.Namespace) -> list[dict]:
    """Medians of everybody's times on so many users."""
    told: dict[str, list[dict]] = {name: [] for name in commands}
    trainers: dict[str, Trainer] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        files = job(folder, users, asked.passes, asked.steps_per_pass)
        try:
            for name, command in commands.items():
                (folder / name).mkdir()
                trainers[name] = Trainer([*command, *files], folder / name, asked.timeout)
            for _ in range(asked.repeats):
                for name, trainer in trainers.items():
                    answer = trainer.turn()
                    told[name] += [] if answer is None else [answer]
        finally:
            for trainer in trainers.values():
                trainer.stop()
    if not told[OURS]:
        raise SystemExit(f"Expected our own training to run: {trainers[OURS].error}")
    rows = []
    for name, answers in told.items():
        row = {"users": users, "who": name, "runs": len(answers), "error": trainers[name].error}
        if answers:
            row["passes"] = answers[0].get("passes", None if name in OWN_END else float(asked.passes))
            row |= {key: float(np.median([one.get(key, 0.0) for one in answers])) for key in TOLD}
        rows.append(row)
    base = rows[0]
    for row in rows:
        if row["runs"]:
            row |= {f"times our {key}": row[key] / base[key] for key in ("seconds", "cpu_seconds")}
            row["times ours with noise"] = (row["seconds"] + row["noise_seconds"]) / base["seconds"]
    return rows


def show(rows: list[dict]) -> None:
    names = ["users", "who", "passes", "seconds", "cpu_seconds", "noise_seconds", "times our seconds"]
    names += ["times our cpu_seconds", "times ours with noise", "log_loss", "runs", "error"]
    table = Table(*names)
    for row in rows:
        cells = (row.get(name, "") for name in names)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell or "")[:60] for cell in cells))
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--steps-per-pass", type=int, default=20, help="of the peers")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds, for one training")
    parser.add_argument("--only", nargs="+", help="only these peers")
    parser.add_argument("--envs", type=Path, default=Path(".userdp-peers"))
    parser.add_argument("--ours", type=Path, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ours:
        ours(*asked.ours)
        return
    commands = {OURS: [sys.executable, __file__, "--ours"]}
    for name, folder in find_peers(None).items():
        if asked.only and name not in asked.only:
            continue
        python = environment(folder, asked.envs)
        if python is None:
            Console().print(f"{name} could not be installed: {asked.envs / (name + '.log')} says why")
        else:
            commands[name] = [str(python), str(folder / "run.py")]
    rows: list[dict] = []
    for users, after in zip_longest(sorted(asked.users), sorted(asked.users)[1:]):
        found = measured(commands, users, asked)
        show(found)
        rows += found
        for row in found:
            if row["error"] or row["seconds"] * (after or 0) / users > asked.timeout:
                del commands[row["who"]]
    part = "trainings" if asked.steps_per_pass > 1 else "whole steps"
    Console().print(f"Wrote {save('peer_speed', {part: rows})}")


if __name__ == "__main__":
    main()
