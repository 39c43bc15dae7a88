"""What all tests share."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# Deterministic: the same examples in every run.  `make campaign` looks for new ones, others in every run.
# No explanations of failures: they trace each line, and a failure is told only when its time limit has passed.
settings.register_profile(
    "farbus",
    derandomize="FARBUS_CAMPAIGN" not in os.environ,
    deadline=None,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("farbus")


def pytest_configure() -> None:
    """Keep the collector out of ast.parse; let Ctrl-C end children as it does at a terminal."""
    # CPython's ast.parse fails with a SystemError ("recursion depth mismatch") when the collector runs a
    # finaliser within it that parses too, as formatting a traceback does: seen with 3.11.2 and 3.11.7.
    gc.disable()
    # The scheduler's kernels of another build: make asan tests those with sanitizers.
    if kernels := os.environ.get("FARBUS_KERNELS"):
        spec = importlib.util.spec_from_file_location("farbus.scheduler._kernels", kernels)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["farbus.scheduler._kernels"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["farbus.scheduler._kernels"])
    # A shell starts its background jobs with SIGINT ignored, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _collected() -> Iterator[None]:
    """Collect what a module's tests have left."""
    yield
    gc.collect()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a short path: below it lie Unix sockets, whose paths have 108 bytes (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="farbus-") as directory:
        yield Path(directory)
