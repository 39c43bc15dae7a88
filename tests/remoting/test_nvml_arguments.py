"""Arguments and answers of NVML's functions arrive as they are, by an NVML that answers with its arguments."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farbus.remoting.session import Server, write_session
from farbus.remoting.supervisor import Supervisor
from tests.remoting.harness import BUILD, SHIM, Remote

pynvml = pytest.importorskip("pynvml")

SOURCE = Path(__file__).parent / "fake_nvml.c"

ASK = """
import ctypes, json, os
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(1)
def two(name, *places):
    values = [ctypes.c_uint(7), ctypes.c_uint(7)]
    given = [ctypes.byref(value) if place else None for value, place in zip(values, places)]
    return [n._nvmlGetFunctionPointer("nvmlDeviceGet" + name)(h, *given), *(value.value for value in values)]
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The software GPU's driver, with the fake NVML beside it."""
    library = BUILD / "softgpu" / "libcuda.so.1"
    if not library.exists() or not (SHIM / "libnvidia-ml.so.1").exists() or shutil.which("cc") is None:
        pytest.skip("needs a C compiler and what make -C native builds")
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    place = tmp_path_factory.mktemp("driver")
    shutil.copy(library, place)
    subprocess.run(
        ["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
         "-o", place / "libnvidia-ml.so.1", SOURCE],
        check=True,
    )  # fmt: skip
    return place / library.name


@pytest.fixture(scope="module")
def remote(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """A lease of two devices whose server has the fake NVML."""
    secret = secrets.token_bytes(32)
    place = tmp_path_factory.mktemp("lease")
    environment = {"FARBUS_SOFTGPU": "count=2,mem=64MiB", "FARBUS_SOFTGPU_NODE": str(place)}
    with contextlib.ExitStack() as stack:
        supervisor = stack.enter_context(Supervisor(libcuda=str(driver), secret=secret, environment=environment))
        address, port = supervisor.address
        write_session(place / "session", [Server(address=address, port=port, secret=secret)])
        yield Remote(supervisor=supervisor, session=place / "session", secret=secret)


def ask(remote: Remote, expression: str) -> Any:
    """What an expression of pynvml (``n``) and the second device (``h``) is."""
    done = remote.run(sys.executable, "-c", f"{ASK}\nprint(json.dumps({expression}))")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_of_two_modes_is_told_alone_where_nvidia_smi_asks_so(remote: Remote) -> None:
    """It prints gom.current and gom.pending each by a call without a place for the other."""
    assert ask(remote, "[two('GpuOperationMode', *places) for places in ((1, 1), (1, 0), (0, 1), (0, 0))]") == [
        [0, 11, 21], [0, 11, 7], [0, 7, 21], [2, 7, 7],
    ]  # fmt: skip
    assert ask(remote, "[two('EccMode', *places) for places in ((1, 0), (0, 1))]") == [[2, 7, 7], [2, 7, 7]]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion()]", ["driver 1", "library 2"]),
        ("[n.nvmlDeviceGetPciInfo(h).pciDeviceId, n.nvmlDeviceGetPciInfo(h).pciSubSystemId]", [0x233010DE, 101]),
        ("n.nvmlDeviceGetPowerUsage(h)", 101),
        ("n.nvmlDeviceGetMaxClockInfo(h, 2)", 201),
        ("n.nvmlDeviceGetClock(h, 2, 3)", 231),
        ("n.nvmlDeviceGetEccMode(h)", [11, 21]),
        ("n.nvmlDeviceGetRemappedRows(h)", [11, 20, 30, 40]),
        ("n.nvmlDeviceGetTotalEnergyConsumption(h)", (1 << 40) + 1),
        ("n.nvmlDeviceGetTotalEccErrors(h, 1, 0)", (1 << 40) + 101),
        ("n.nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 2)", 1021),
        ("n.nvmlDeviceGetSerial(h)", "serial 1"),
        ("n.nvmlDeviceGetInforomVersion(h, 2)", "object 21"),
        ("(lambda r: [r.gpu, r.memory])(n.nvmlDeviceGetUtilizationRates(h))", [11, 20]),
        ("(lambda v: [v.referenceTime, v.violationTime])(n.nvmlDeviceGetViolationStatus(h, 3))", [31, 1 << 40]),
        ("n.nvmlDeviceGetTemperatureV(h, 1)", 151),
        ("n.nvmlDeviceGetSupportedMemoryClocks(h)", [1, 11, 21]),
        ("n.nvmlDeviceGetSupportedGraphicsClocks(h, 9)", [91]),
        ("n.nvmlDeviceGetTopologyCommonAncestor(h, n.nvmlDeviceGetHandleByIndex(0))", 10),
        ("len(n.nvmlDeviceGetTopologyNearestGpus(h, 10))", 1),
        ("len(n.nvmlDeviceGetTopologyNearestGpus(h, 11))", 0),
        ("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBySerial(b'serial 1'))", 1),
        (
            "[[f.fieldId, f.timestamp, f.latencyUsec, f.valueType, f.nvmlReturn, f.value.ullVal]"
            " for f in n.nvmlDeviceGetFieldValues(h, [82, (186, 4), 91])]",
            [[82, 7, 8, 3, 0, 82001], [186, 7, 8, 3, 0, 186041], [91, 0, 0, 0, 3, 0]],
        ),
    ],
)
def test_an_answer_is_that_to_its_arguments(remote: Remote, expression: str, expected: Any) -> None:
    assert ask(remote, expression) == expected


def test_memory_is_the_device_s_where_that_of_processes_is_not_told(remote: Remote) -> None:
    told = ask(remote, "(lambda m: [m.total, m.used, m.free])(n.nvmlDeviceGetMemoryInfo(h))")
    assert told == [64 << 20, 30 << 20, 34 << 20]


def test_a_process_is_told_by_the_program_s_pid_and_others_are_not(remote: Remote) -> None:
    told = ask(remote, "[[p.pid == os.getpid(), p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)]")
    assert told == [[True, None]]
