"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Deterministic: the same examples in every run.  `make campaign` looks for new ones with a seed.
settings.register_profile(
    "farbus", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("farbus")
