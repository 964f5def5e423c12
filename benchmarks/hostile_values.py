"""Does it take longer if one user holds odd values? Time and memory of fits, with all else equal.

Every user has the same number of rows. One user's rows are ordinary, NaN, infinite, huge or subnormal; the ratio to the
ordinary ones is measured in one run, turn about, so that a busy machine slows all of them alike. To see what a
processor does with such values, a second part gives them to every user, which is no neighbour: it shows the most
that a fraction of users could cause.

    python benchmarks/hostile_values.py --quick
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
import tracemalloc

import numpy as np
from common import run_parts

from userdp import UserData, losses
from userdp.privacy.clip import clipped_total
from userdp.statistics.gradients import MeanGradient
from userdp.statistics.moments import SecondMoment
from userdp.statistics.rows import limit_threads

VALUES = {"ordinary": 0.3, "zero": 0.0, "subnormal": 1e-310, "small": 1e-160, "nan": math.nan, "infinite": math.inf}
VALUES |= {"huge": 1e308, "long": 1e6}


def make(value: float, fraction: float, n_users: int, rows: int, width: int) -> UserData:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n_users * rows, width))
    hostile = max(1, round(fraction * n_users)) * rows
    X[:hostile] = value * np.sign(X[:hostile])
    y = (rng.random(len(X)) < 0.5).astype(float)
    return UserData(X, y, np.arange(n_users + 1) * rows)


def seconds(work, *arguments) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def table(fraction: float):
    def part(repeats: int, quick: bool) -> list[dict]:
        n_users, rows, width = (2000, 50, 30) if quick else (20_000, 50, 30)
        data = {name: make(value, fraction, n_users, rows, width) for name, value in VALUES.items()}
        users = np.arange(n_users)
        statistics_of = {
            "gradients": MeanGradient(losses.logistic, np.full(width, 0.1)),
            "second moments": SecondMoment(),
            "clipped sum": lambda data, users, n: clipped_total(data.rows[:: len(data.rows) // n], 1.0, 40),
        }
        found = []
        np.seterr(all="ignore")
        for what, statistic in statistics_of.items():
            times: dict[str, list[float]] = {name: [] for name in VALUES}
            peaks = {}
            for turn, name in itertools.product(range(5 * repeats + 1), VALUES):
                taken = seconds(statistic, data[name], users, n_users)
                times[name] += [taken] if turn else []  # the first warms up
            for name in VALUES:
                tracemalloc.start()
                statistic(data[name], users, n_users)
                peaks[name] = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            middle = {name: statistics.median(taken) for name, taken in times.items()}
            for name in VALUES:
                row = {"statistic": what, "values": name, "users": "one" if fraction == 0 else "all"}
                row |= {"seconds": middle[name], "ratio": middle[name] / middle["ordinary"]}
                row["least_ratio"] = min(times[name]) / min(times["ordinary"])
                row["memory_ratio"] = peaks[name] / peaks["ordinary"]
                found.append(row)
        for row in found:
            times = f"{row['seconds'] * 1e3:8.2f} ms  time x{row['ratio']:.2f} (least x{row['least_ratio']:.2f})"
            print(
                f"{row['statistic']:15} {row['users']:4} {row['values']:10} {times} memory x{row['memory_ratio']:.2f}"
            )
        return found

    return part


if __name__ == "__main__":
    limit_threads(1)
    run_parts("hostile_values", __doc__, {"one user": table(0.0), "all users": table(1.0)})
