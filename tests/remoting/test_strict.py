"""Programs on a driver that is as strict as NVIDIA's (strict_driver.c)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.remoting.session import write_session
from tests.remoting.harness import Remote, lines_of_shim, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_managed import MODES, STEPS
from tests.remoting.test_servers import block

Build = Callable[[str], Path]

#: Pinned memory is made, copied from and freed by 64 threads while streams wait for bytes of the client.
PROGRAMS = [
    "behind_host_function",
    "host_functions",
    "legacy_behind",
    "pageable_source",
    "pinned_shared",
    "streams_pinned",
]
MANAGED = ["allocated_meanwhile", "copies_meanwhile", "host_functions", "launches_meanwhile"]
SERVERS = ["allocated_meanwhile", "copies", "events", "threads"]


@pytest.fixture
def strict_driver(driver_before: Callable[[str], Path]) -> Path:
    return driver_before("strict_driver")


@pytest.fixture
def strict(strict_driver: Path, tmp_path: Path) -> Iterator[Remote]:
    with remote_session(libcuda=strict_driver, folder=tmp_path, environment={}, tls=False) as remote:
        yield remote


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(strict: Remote, build: Build, name: str, transport: str) -> None:
    """A call that waits in the driver keeps nobody from reading what a stream waits for."""
    done = strict.run(build(f"remoting/{name}"), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_a_kernel_that_is_launched_before_there_is_a_context_has_its_parameters(strict: Remote, build: Build) -> None:
    done = strict.run(build("suite/device_printf"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
def test_graphs_behind_host_functions(strict: Remote, tmp_path: Path, transport: str) -> None:
    done = strict.run(build_calls("call_graph_replays", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, lines_of_shim(done.stderr)) == (0, [])


def test_listed_functions_have_all_attributes(strict: Remote, tmp_path: Path) -> None:
    """MAX_THREADS_PER_BLOCK among them, which Triton asks for and launches are checked by."""
    done = strict.run(build_calls("call_code", tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MANAGED)
def test_managed_memory_in_host_functions(strict: Remote, build: Build, name: str, mode: str, transport: str) -> None:
    """What a host function touches comes back by nothing that waits for it, nor behind what stands in the driver."""
    done = strict.run(build(f"remoting/managed/{name}"), FARBUS_MANAGED_MEMORY=mode, FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", ""), done.stdout + done.stderr


@pytest.mark.parametrize("name", SERVERS)
def test_two_servers(strict_driver: Path, build: Build, tmp_path: Path, name: str) -> None:
    """A copy that a stream waits for needs nothing that the driver makes then, and is not behind an allocation."""
    with contextlib.ExitStack() as stack:
        remotes = [
            stack.enter_context(
                remote_session(
                    libcuda=strict_driver,
                    folder=tmp_path,
                    environment={"FARBUS_SOFTGPU_NODE": f"{tmp_path}/{number}", "FARBUS_SOFTGPU": "count=1"},
                )
            )
            for number in range(2)
        ]
        session = tmp_path / "session"
        write_session(session, [block(remote) for remote in remotes])
        done = remotes[0].run(build(f"remoting/servers/{name}"), FARBUS_SESSION=str(session))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_managed_memory_at_random(strict: Remote, build: Build, mode: str) -> None:
    done = strict.run(build("remoting/managed_random"), "5", STEPS, FARBUS_MANAGED_MEMORY=mode)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", ""), done.stdout + done.stderr
