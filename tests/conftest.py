"""For all tests: which are slow by their folder, and that the time of an example says nothing."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A first call compiles, and machines are busy.
settings.register_profile("userdp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("userdp")

# Attacks on what is shipped, and input of every bad kind: all of it is left to `make test-all`.
_SLOW = {Path(__file__).parent / name for name in ("audit", "hostile")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent in _SLOW:
            item.add_marker(pytest.mark.slow)
