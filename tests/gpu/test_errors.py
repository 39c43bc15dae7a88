"""What wrong calls report: errors.cu says the same over remoting as on the driver that the servers open.

That is the software GPU, or NVIDIA's driver where FARBUS_TEST_LIBCUDA names it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import PROGRAM_TIMEOUT_S, SHIM, remote_session

HERE = Path(__file__).parent
#: NVIDIA's driver 580.159 (CUDA 13.0) on an H100, natively.
RECORDED = HERE / "errors_h100.txt"
#: As many registers, as much shared memory per block and as large clusters as the recorded device's; and memory that
#: no machine has 64 times of.
SOFTWARE_GPU = "cc=9.0,mem=80GiB"
#: Registers are a guess of the software GPU's, which refuses no launch by it (docs/softgpu.md).
REGISTERS = ("(many_registers<<<", "  attribute 4: ")

#: What a program asks for, and whether TCP is encrypted.
TRANSPORTS = {"shm": ("shm", True), "tls": ("tcp", True), "tcp": ("tcp", False)}


@pytest.fixture(scope="module")
def program(compiled: Callable[..., Path]) -> Path:
    return compiled("errors", "-O1")


@pytest.fixture(scope="module")
def reported(program: Path, libcuda: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of the driver itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LD_"))}
    node = str(tmp_path_factory.mktemp("node"))
    done = subprocess.run(
        [program],
        env=environment
        | {"LD_LIBRARY_PATH": str(libcuda.parent), "FARBUS_SOFTGPU": SOFTWARE_GPU, "FARBUS_SOFTGPU_NODE": node},
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def without_the_hardware(lines: list[str]) -> list[str]:
    """The lines that a software GPU owes: without registers, and without what comes behind the reset of a context that
    an error has ended.  There NVIDIA's driver gives the process no other context, and the software GPU a new one."""
    kept = []
    is_reset = False
    for line in lines:
        if line.startswith("-- "):
            is_reset = False
        if not is_reset and not line.startswith(REGISTERS):
            kept.append(line)
        if line.startswith("cudaDeviceReset()"):
            is_reset = True
    return kept


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_report_over_remoting_what_they_report_on_the_driver_itself(
    program: Path, libcuda: Path, reported: list[str], tmp_path: Path, transport: str
) -> None:
    if not (SHIM / "libcuda.so.1").exists():
        pytest.skip("native/build/shim is not built: run make -C native")
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    asked, tls = TRANSPORTS[transport]
    environment = {"FARBUS_SOFTGPU": SOFTWARE_GPU, "FARBUS_SOFTGPU_NODE": str(tmp_path)}
    with remote_session(libcuda=libcuda, folder=tmp_path, environment=environment, tls=tls) as remote:
        done = remote.run(program, FARBUS_TRANSPORT=asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == reported


def test_the_software_gpu_reports_what_an_h100_does(reported: list[str]) -> None:
    if os.environ.get("FARBUS_TEST_LIBCUDA"):
        pytest.skip("the driver is not the software GPU")
    recorded = RECORDED.read_text().splitlines()
    assert len(reported) == len(recorded)
    assert without_the_hardware(reported) == without_the_hardware(recorded)
