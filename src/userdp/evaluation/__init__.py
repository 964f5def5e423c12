"""How good a model is, told privately: scores with intervals, of people it has not seen.

`userdp.evaluation.evaluate` is the public face; it is in `models.evaluating`, beside the estimators that it asks.
"""

from typing import Any

import userdp

_PUBLIC = ("Evaluation", "evaluate")


def __getattr__(name: str) -> Any:
    """A public name, on first use."""
    if name in _PUBLIC:
        return userdp.__getattr__(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
