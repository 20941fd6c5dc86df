"""What holds for all tests: how hard Hypothesis looks."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine must not fail a law: no deadline, and slow drawing is no fault.
settings.register_profile("dljob", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dljob")
