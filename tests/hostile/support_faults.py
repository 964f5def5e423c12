"""Processes that fit against one ledger file, side by side or killed. `python -m support_faults` starts them.

python -m support_faults together <ledger> <fork or spawn> <processes>    prints each one's release, or its refusal
python -m support_faults killed <ledger> <kills>                          prints how many releases were heard of
python -m support_faults resumed <ledger> <kills>      kills runs with a journal, and prints what each of them was told
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time

import numpy as np

from userdp import BudgetExceeded, Curator, Ledger, UserData
from userdp.paper.outlier_removal import OutlierRemoval
from userdp.privacy.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.statistics.moments import UserMean

# What a fit is here: 60 users, a noisy mean, charged to the ledger before data is read.
DATA = UserData.from_arrays(np.linspace(-1, 1, 180).reshape(180, 1), None, np.arange(180) // 3)
PLAN = Plan(60, (Step("mean", 0, 60, Clip(60, 10.0)),))
COST = PLAN.costs[0]
LONG_PLAN = Plan(
    60,
    (
        Step("first", 0, 60, Clip(60, 40.0, rounds=6)),
        Step("second", 0, 60, OutlierRemoval(60, 40.0, 20.0, 1e-6, 1e-9, 6)),
    ),
)


def fit(path):
    curator = Curator(DATA, PLAN, Ledger.open(path), purpose="fit")
    return float(curator.release("mean", UserMean(), 1.0)[0])


def one_fit(path, start, said):
    """In a process of its own: wait for the others, then fit once."""
    start.wait(1200)
    try:
        said.put(fit(path))
    except BudgetExceeded as error:
        said.put(str(error))


def together(path, method, processes):
    context = multiprocessing.get_context(method)
    start, said = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=one_fit, args=(path, start, said)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    print(json.dumps([said.get(timeout=1200) for _ in workers]))
    for worker in workers:
        worker.join(600)


def killed(path, kills):
    """Children, one after the other, fit over and over and say each release once they have it, until SIGKILL."""
    chance = random.Random(4711)
    fit(path)  # compiles what there is to compile
    heard = 1
    for _ in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            while True:
                fit(path)
                os.write(writer, b"r")
        os.close(writer)
        if chance.random() < 0.5:  # kill near the second release, or else during the first
            heard += len(os.read(reader, 1))
        time.sleep(chance.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while part := os.read(reader, 65536):
            heard += len(part)
        os.close(reader)
        print(heard, flush=True)
        sys.stdin.readline()  # the ledger is looked at meanwhile


def resumed(path, kills):
    """Runs of twelve releases with a journal beside the ledger, killed and begun again; a new one after each end."""
    chance, number = random.Random(4711), 0
    told = list(releases(path, f"{path}.warm"))  # compiles what there is to compile
    print(json.dumps(["warm", told]), flush=True)
    for _ in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            for release in releases(path, f"{path}.{number}"):
                os.write(writer, f"{release!r}\n".encode())
            os._exit(0)
        os.close(writer)
        heard, enough = b"", chance.randrange(12)
        while heard.count(b"\n") < enough and (part := os.read(reader, 65536)):
            heard += part
        time.sleep(chance.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        while part := os.read(reader, 65536):
            heard += part
        os.close(reader)
        whole = heard[: heard.rfind(b"\n") + 1].decode().split()
        print(json.dumps([number, [float(word) for word in whole]]), flush=True)
        number += os.waitstatus_to_exitcode(status) == 0


def releases(path, journal):
    curator = Curator(DATA, LONG_PLAN, Ledger.open(path), purpose="fit", checkpoint=journal)
    for label in ("first", "second"):
        for _ in range(6):
            yield float(curator.release(label, UserMean(), 10.0)[0])
    curator.close()


if __name__ == "__main__":
    if sys.argv[1] == "together":
        together(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        {"killed": killed, "resumed": resumed}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
