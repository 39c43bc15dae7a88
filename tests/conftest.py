"""What all tests share."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from farbus.linux.tcp_ports import HeldPort
from tests.harness.said import said_by_commands
from tests.harness.whereabouts import whereabouts_of

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell what a command said that failed, and where each task of asyncio's waits when a test's time is up.

    The errors of commands and the stacks of threads do not show it.
    """
    report = yield
    report.sections += said_by_commands(call.excinfo.value if call.excinfo is not None else None)
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        loops = [one for one in gc.get_objects() if isinstance(one, asyncio.AbstractEventLoop) and not one.is_closed()]
        tasks = [task for loop in loops for task in asyncio.all_tasks(loop)]
        report.sections.append(("tasks", "\n".join(whereabouts_of(task) for task in tasks)))
    return report


@pytest.fixture(autouse=True, scope="module")
def _collected() -> Iterator[None]:
    """Collect what a module's tests have left."""
    yield
    gc.collect()


@pytest.fixture
def held_port() -> Iterator[HeldPort]:
    """A port for who is told it, and is there later, or never."""
    port = HeldPort()
    yield port
    port.close()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a short path, whatever TMPDIR: below it lie Unix sockets, paths of 108 bytes (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="farbus-", dir="/tmp") as directory:
        yield Path(directory)
