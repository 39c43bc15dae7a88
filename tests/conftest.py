"""What all tests share."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Deterministic: the same examples in every run.  `make campaign` looks for new ones with a seed.
settings.register_profile(
    "farbus", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("farbus")


# Before 3.11.5, CPython's ast.parse fails with a SystemError when the collector runs a finaliser within it that
# parses too (gh-106905), as formatting a traceback does.  Debian 12 has 3.11.2: there it collects between modules.
COLLECTS_BETWEEN_MODULES = sys.version_info < (3, 11, 5)


def pytest_configure() -> None:
    """Stop the collector where it can break ast.parse; let Ctrl-C end children as it does at a terminal."""
    if COLLECTS_BETWEEN_MODULES:
        gc.disable()
    # A shell starts its background jobs with SIGINT ignored, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _collected() -> Iterator[None]:
    """Collect what a module's tests have left."""
    yield
    if COLLECTS_BETWEEN_MODULES:
        gc.collect()
