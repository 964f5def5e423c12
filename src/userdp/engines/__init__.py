"""Engines map a statistic over users: in this process, or on a cluster. They know no algorithm."""

from userdp.engines.local import LocalEngine

__all__ = ["LocalEngine"]
