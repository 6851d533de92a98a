"""How long hypothesis looks: enough to find what hides, and no deadline, since machines differ."""

from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
