"""Engines map a statistic over users: in this process, or on a cluster. They know no algorithm."""

from __future__ import annotations

from typing import Any

from userdp.data.users import RemoteUsers, UserData
from userdp.engines.local import Contribution, EngineLost, LocalEngine

__all__ = ["Contribution", "EngineLost", "LocalEngine", "engine_of"]


def __getattr__(name: str) -> Any:
    """`RayEngine`, which loads Ray, on first use."""
    if name == "RayEngine":
        from userdp.engines.ray import RayEngine

        return RayEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def engine_of(data: Any, engine: Any) -> Any:
    """The engine that is meant: by itself or by its name, and by None the one that holds the data, or this process."""
    elsewhere = not isinstance(data, UserData) and isinstance(data, RemoteUsers)  # asks UserData for nothing
    if elsewhere and (engine is None or engine == "ray"):
        return data.engine
    if engine is None or engine == "local":
        return LocalEngine()
    if engine == "ray":
        from userdp.engines.ray import RayEngine

        return RayEngine()
    if isinstance(engine, str):
        raise ValueError(f'engine must be "local", "ray" or an engine, got {engine!r}. Nothing was spent.')
    return engine
