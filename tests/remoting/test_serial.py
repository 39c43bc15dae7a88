"""Programs with host functions, on a driver that treats those as NVIDIA's does (serial_driver.c)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remoting.harness import ROOT, Remote, remote_session
from tests.remoting.test_managed import MODES, STEPS

Build = Callable[[str], Path]

#: Pinned memory is made, copied from and freed by 64 threads while streams wait for bytes of the client.
PROGRAMS = ["behind_host_function", "host_functions", "pageable_source", "pinned_shared", "streams_pinned"]
MANAGED = ["host_functions", "launches_meanwhile"]


@pytest.fixture(scope="module")
def serial_driver(libcuda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not in PATH")
    driver = tmp_path_factory.mktemp("serial") / "libserial.so"
    source = ROOT / "tests" / "remoting" / "serial_driver.c"
    libraries = [str(libcuda), f"-Wl,-rpath,{libcuda.parent}", "-ldl"]
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,--no-as-needed", "-o", driver, source, *libraries],
        check=True,
    )
    return driver


@pytest.fixture
def serial(serial_driver: Path, tmp_path: Path) -> Iterator[Remote]:
    with remote_session(libcuda=serial_driver, folder=tmp_path, environment={}, tls=False) as remote:
        yield remote


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(serial: Remote, build: Build, name: str, transport: str) -> None:
    """A call that waits in the driver keeps nobody from reading what a stream waits for."""
    done = serial.run(build(f"remoting/{name}"), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MANAGED)
def test_managed_memory_in_host_functions(serial: Remote, build: Build, name: str, mode: str) -> None:
    """What a host function touches comes back without a function of the driver's, which would wait for it."""
    done = serial.run(build(f"remoting/managed/{name}"), FARBUS_MANAGED_MEMORY=mode)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", ""), done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_managed_memory_at_random(serial: Remote, build: Build, mode: str) -> None:
    done = serial.run(build("remoting/managed_random"), "5", STEPS, FARBUS_MANAGED_MEMORY=mode)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", ""), done.stdout + done.stderr
