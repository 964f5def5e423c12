"""Processes that fit against one ledger file, side by side or killed. `python -m support_faults` starts them.

python -m support_faults together <ledger> <fork or spawn> <processes>    prints each one's release, or its refusal
python -m support_faults killed <ledger> <kills>                          prints how many releases were heard of
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
from userdp.privacy.mechanisms.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.vectors.moments import UserMean

# What a fit is here: 60 users, a noisy mean, charged to the ledger before data is read.
DATA = UserData.from_arrays(np.linspace(-1, 1, 180).reshape(180, 1), None, np.arange(180) // 3)
PLAN = Plan(60, (Step("mean", 0, 60, Clip(60, 10.0)),))
COST = PLAN.costs[0]


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


if __name__ == "__main__":
    if sys.argv[1] == "together":
        together(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        killed(sys.argv[2], int(sys.argv[3]))
