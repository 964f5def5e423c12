"""Reaching a Ray cluster, or starting Ray on this machine: once a process, and quietly."""

from __future__ import annotations

import os
import socket
import threading
import warnings

import ray

_STORE_BYTES = 2**29  # of a local Ray's object store, which long arguments alone go through
_CONNECTION = 10.0  # seconds to reach a cluster in
_CONNECTING = threading.Lock()
_REACHED_AS: list[str] = []  # how the cluster was called that this process is with


def connect(address: str | None, n_partitions: int | None) -> bool:
    """Reach the cluster, or start one here; whether all of it is this machine."""
    if address is not None and (not isinstance(address, str) or "://" in address):
        raise ValueError(
            f'Expected address={address!r} to be "host:6379", as `ray start --head` tells it, or "auto": a '
            "driver runs on a machine of the cluster. Nothing was spent."
        )
    with _CONNECTING:
        if not ray.is_initialized():
            _start(address, n_partitions)
        here = ray.get_runtime_context()
    if address not in (None, "auto", here.gcs_address, *_REACHED_AS):
        raise ValueError(
            f"Expected to reach Ray at address={address!r}; this process is with another one, which it tells "
            'as "auto": use that, or another process. Nothing was spent.'
        )
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]] == [here.get_node_id()]


def _start(address: str | None, n_partitions: int | None) -> None:
    """Connect to a cluster, or start Ray here, without dashboard and telemetry; what it logs stays there."""
    quiet = {"log_to_driver": False, "configure_logging": False, "include_dashboard": None}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if address is not None:
                if address != "auto":  # Ray itself would try for a minute
                    host, _, port = address.rpartition(":")
                    socket.create_connection((host, int(port)), timeout=_CONNECTION).close()
                ray.init(address=address, **quiet)
                _REACHED_AS[:] = [address]
                return
            free = os.statvfs("/dev/shm")
            room = min(_STORE_BYTES, free.f_bavail * free.f_frsize // 2)
            ray.init(
                address="local",
                num_cpus=max(n_partitions or 0, os.cpu_count() or 1),
                object_store_memory=max(room, 100 * 2**20),
                _system_config={"automatic_object_spilling_enabled": False},
                **quiet | {"include_dashboard": False},
            )
            _REACHED_AS.clear()
    except Exception:
        where = "a local Ray to start" if address is None else f"a Ray cluster at address={address!r}"
        raise RuntimeError(
            f"Expected {where}: it cannot be reached. Does it run, in the same version of Ray and Python, and may this "
            "machine reach it? Nothing was spent."
        ) from None
