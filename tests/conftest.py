"""For all tests: how long an example takes says nothing, because a first call compiles and machines are busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("userdp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("userdp")
