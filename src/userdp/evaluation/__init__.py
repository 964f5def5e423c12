"""Private scores of a model, with intervals, on users that it has not seen.

`userdp.evaluation.evaluate` is the public face; it is in `models.evaluating`, beside the estimators that it asks.
"""

from typing import Any

import userdp

__all__ = ["Evaluation", "evaluate"]


def __getattr__(name: str) -> Any:
    """A public name, on first use."""
    if name in __all__:
        return userdp.__getattr__(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
