"""For all tests here: userdp's own settings, which tests are slow, and whose mutants are meant."""

import os

import pytest
from hypothesis import HealthCheck, settings

import userdp_research  # noqa: F401 - registers its solvers
from userdp.solvers.solver import SOLVERS

os.environ["MUTANTS_OF"] = "research"
settings.register_profile(
    "userdp", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("userdp")

_SLOW_TESTS = {
    "test_the_clip_ends_near_the_median_length_of_gradients",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    others = [item for item in items if not _of_this_package(item)]  # shared tests of userdp's own solvers
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]
    for item in items:
        name = getattr(item, "originalname", item.name)
        if name in _SLOW_TESTS or name.startswith("test_audit_of_"):
            item.add_marker(pytest.mark.slow)


def _of_this_package(item):
    asked = getattr(item, "callspec", None)
    key = asked and (asked.params.get("solver"), asked.params.get("mode", "calibrated"))
    return key not in SOLVERS or SOLVERS[key].baseline
