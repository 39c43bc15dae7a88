"""The libnvidia-ml.so.1 of programs with remote GPUs, by pynvml, against the software GPU's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farbus.remoting.codegen.management import exported
from farbus.remoting.session import Server, write_session
from farbus.remoting.supervisor import Supervisor
from tests.remoting.harness import BUILD, PROGRAM_TIMEOUT_S, SHIM, Remote
from tests.remoting.test_failures import wait_until

pynvml = pytest.importorskip("pynvml")

SCRIPTS = Path(__file__).parent / "scripts"
OPTIONS = "count=3,cc=8.6,mem=64MiB"

Lease = Callable[..., Remote]


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    """The environment that chooses the software GPUs of a node."""
    return {"FARBUS_SOFTGPU": OPTIONS, "FARBUS_SOFTGPU_NODE": str(tmp_path)}


@pytest.fixture
def some(libcuda: Path, tmp_path: Path, node: dict[str, str]) -> Iterator[Callable[[str | None], Remote]]:
    """Start a lease of some of the node's devices: what its servers get as CUDA_VISIBLE_DEVICES; None: all."""
    if not (SHIM / "libnvidia-ml.so.1").exists():
        pytest.skip("the client's NVML is not built: run make -C native")
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    with contextlib.ExitStack() as stack:

        def start(visible: str | None = None, *, driver: Path = libcuda) -> Remote:
            secret = secrets.token_bytes(32)
            lines: list[str] = []
            supervisor = stack.enter_context(
                Supervisor(
                    libcuda=str(driver), secret=secret, visible_devices=visible, environment=node, log=lines.append
                )
            )
            address, port = supervisor.address
            session = tmp_path / f"session-{port}"
            write_session(session, [Server(address=address, port=port, secret=secret)])
            return Remote(supervisor=supervisor, session=session, secret=secret, lines=lines)

        yield start


def python(remote: Remote, program: str, **changes: str) -> Any:
    """Run a program that prints JSON with the lease's NVML."""
    done = remote.run(sys.executable, "-c", program, **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def direct(node: dict[str, str]) -> Any:
    """What the software GPU's own NVML says on its node."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / "nvml_look.py"],
        env={**os.environ, **node, "LD_LIBRARY_PATH": str(BUILD / "softgpu")},
        capture_output=True,
        text=True,
        check=True,
        timeout=PROGRAM_TIMEOUT_S,
    )
    return json.loads(done.stdout)


#: Holds 8 MiB of a remote GPU in this process.
HOLD = """
import ctypes, json, os
import pynvml as n
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
               cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8 << 20))):
    assert result == 0, result
n.nvmlInit()
"""


def test_every_field_is_as_on_the_node_itself(some: Callable[..., Remote], node: dict[str, str]) -> None:
    done = some().run(sys.executable, SCRIPTS / "nvml_look.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == direct(node)
    assert done.stderr == ""


def test_used_memory_and_processes_are_those_of_the_lease(some: Callable[..., Remote]) -> None:
    told = python(
        some(),
        HOLD
        + """
h = n.nvmlDeviceGetHandleByIndex(0)
memory, newer = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
name = n.nvmlSystemGetProcessName(os.getpid())
print(json.dumps({
    "memory": [memory.total, memory.used, memory.free], "newer": [newer.total, newer.reserved, newer.used, newer.free],
    "mine": [[p.pid == os.getpid(), p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
    "others": n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(1)),
    "name": name if isinstance(name, str) else name.decode(),
}))""",
    )
    mib = 1 << 20
    assert told["memory"] == [64 * mib, 8 * mib, 56 * mib]
    assert told["newer"] == [64 * mib, 0, 8 * mib, 56 * mib]
    assert told["mine"] == [[True, 8 * mib]]
    assert told["others"] == []
    assert "python" in told["name"]


COUNT = """
import json
import pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([n.nvmlDeviceGetUUID(h) for h in handles]))
"""


def test_two_leases_of_a_node_see_their_own_devices_only(some: Callable[..., Remote]) -> None:
    a, b, c = python(some(), COUNT)
    first, second = some(a), some(f"{c},{b}")
    assert python(first, COUNT) == [a]
    # In the order of PCI addresses, whatever CUDA's is.
    assert python(second, COUNT) == [b, c]
    asked = python(
        second,
        f"""
import json
import pynvml as n
n.nvmlInit()
try:
    n.nvmlDeviceGetHandleByUUID("{a}")
except n.NVMLError as error:
    print(error.value)""",
    )
    assert asked == pynvml.NVML_ERROR_NOT_FOUND


def test_neither_memory_nor_processes_of_another_lease_are_told(some: Callable[..., Remote]) -> None:
    holder = some()
    other = some()
    holding = holder.start(sys.executable, "-c", HOLD + "print('holds', flush=True)\ninput()", PYTHONUNBUFFERED="1")
    try:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "holds\n"
        told = python(
            other,
            """
import json
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
memory = n.nvmlDeviceGetMemoryInfo(h)
print(json.dumps([memory.used, memory.free, len(n.nvmlDeviceGetComputeRunningProcesses(h))]))""",
        )
    finally:
        holding.kill()
        holding.communicate()
    assert told == [0, 56 << 20, 0]


def test_cuda_visible_devices_is_not_nvml_s(some: Callable[..., Remote]) -> None:
    remote = some()
    assert python(remote, COUNT, CUDA_VISIBLE_DEVICES="1") == python(remote, COUNT)


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"])
def test_it_is_asked_over_whatever_carries_the_session(some: Callable[..., Remote], transport: str) -> None:
    told = python(
        some(),
        HOLD + "print(json.dumps(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).used))",
        FARBUS_TRANSPORT=transport,
    )
    assert told == 8 << 20


def test_initialisations_are_counted(some: Callable[..., Remote]) -> None:
    assert python(
        some(),
        """
import json
import pynvml as n
def count():
    try:
        return n.nvmlDeviceGetCount()
    except n.NVMLError as error:
        return error.value
n.nvmlInit(); n.nvmlInit(); told = [count()]
n.nvmlShutdown(); told.append(count())
n.nvmlShutdown(); told.append(count())
n.nvmlInit(); told.append(count()); n.nvmlShutdown()
try:
    n.nvmlShutdown()
except n.NVMLError as error:
    told.append(error.value)
print(json.dumps(told))""",
    ) == [3, 3, pynvml.NVML_ERROR_UNINITIALIZED, 3, pynvml.NVML_ERROR_UNINITIALIZED]


def test_no_server_stays_where_only_identities_were_asked(some: Callable[..., Remote]) -> None:
    remote = some()
    program = remote.start(sys.executable, "-c", COUNT + "import sys; sys.stdout.flush(); input()")
    assert program.stdout is not None
    assert len(json.loads(program.stdout.readline())) == 3
    # Its end has been sent: the supervisor is the servers' parent and sees it when it comes.
    for pid in remote.supervisor.pids:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert remote.supervisor.pids == ()
    program.communicate("\n", timeout=PROGRAM_TIMEOUT_S)
    assert program.returncode == 0


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_library_that_is_closed_without_shutdown_leaves_no_server(
    some: Callable[..., Remote], transport: str
) -> None:
    """As those do that look for devices by a library that they load and unload."""
    script = """
import _ctypes, ctypes
for _ in range(2):
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    assert not nvml.nvmlInit_v2()
    assert not nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    assert not nvml.nvmlDeviceGetMemoryInfo(device, memory)
    print(memory[0], flush=True)
    input()
    _ctypes.dlclose(nvml._handle)
    print("libnvidia-ml" in open("/proc/self/maps").read(), flush=True)
    input()
"""
    remote = some()
    program = remote.start(sys.executable, "-c", script, FARBUS_TRANSPORT=transport)
    assert program.stdin is not None
    assert program.stdout is not None
    for _ in range(2):
        assert program.stdout.readline() == f"{64 << 20}\n"
        assert len(remote.supervisor.pids) == 1
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "False\n"
        wait_until(lambda: not remote.supervisor.pids, "its server has ended")
        program.stdin.write("\n")
        program.stdin.flush()
    assert program.communicate(timeout=PROGRAM_TIMEOUT_S)[1] in ("", None)
    assert program.returncode == 0


STEPS = """
import json, sys
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def used():
    try:
        return n.nvmlDeviceGetMemoryInfo(h).used
    except n.NVMLError as error:
        return f"error {error.value}"
def say(*words):
    print(json.dumps(words), flush=True)
    input()
say(used())
say(used(), used(), n.nvmlDeviceGetName(h))
n.nvmlShutdown(); n.nvmlInit()
say(used())
"""


def test_a_server_that_is_gone_is_a_lost_gpu_and_no_hang(some: Callable[..., Remote]) -> None:
    remote = some()
    program = remote.start(sys.executable, "-c", STEPS)
    assert program.stdout is not None
    assert json.loads(program.stdout.readline()) == [0]
    (server,) = remote.supervisor.pids
    os.kill(server, signal.SIGKILL)
    # The supervisor sees it when it comes.
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    lost = f"error {pynvml.NVML_ERROR_GPU_IS_LOST}"
    out, err = program.communicate("\n\n\n", timeout=PROGRAM_TIMEOUT_S)
    gone, again = (json.loads(line) for line in out.splitlines())
    assert gone == [lost, lost, "Farbus Software GPU"]
    assert again == [0], "nvmlInit connects again"
    assert err.count("is lost for NVML") == 1


def test_a_lease_that_has_ended_is_a_lost_gpu(some: Callable[..., Remote]) -> None:
    remote = some()
    program = remote.start(sys.executable, "-c", STEPS)
    assert program.stdout is not None
    assert json.loads(program.stdout.readline()) == [0]
    remote.supervisor.stop()
    out, err = program.communicate("\n\n\n", timeout=PROGRAM_TIMEOUT_S)
    assert program.returncode == 1
    assert f"error {pynvml.NVML_ERROR_GPU_IS_LOST}" in out
    assert "NVMLError_GpuIsLost" in err


def test_a_child_of_fork_asks_by_itself_and_the_parent_goes_on(some: Callable[..., Remote]) -> None:
    assert python(
        some(),
        HOLD
        + """
h = n.nvmlDeviceGetHandleByIndex(0)
before = n.nvmlDeviceGetMemoryInfo(h).used
read, write = os.pipe()
if os.fork() == 0:
    told = [n.nvmlDeviceGetName(h), n.nvmlDeviceGetMemoryInfo(h).used, n.nvmlDeviceGetMemoryInfo(h).total]
    n.nvmlShutdown()
    os.write(write, json.dumps(told).encode())
    os._exit(0)
os.wait()
print(json.dumps([before, json.loads(os.read(read, 4096)), n.nvmlDeviceGetMemoryInfo(h).used]))""",
    ) == [8 << 20, ["Farbus Software GPU", 8 << 20, 64 << 20], 8 << 20]


def test_a_process_that_asked_nvml_leaves_cuda_to_its_children(some: Callable[..., Remote]) -> None:
    # PyTorch counts devices by NVML so that workers made by fork can still begin to use CUDA.
    told = python(
        some(),
        """
import ctypes, json, os
import pynvml as n
cuda = ctypes.CDLL("libcuda.so.1")
n.nvmlInit()
count = n.nvmlDeviceGetCount()
child = os.fork()
if child == 0:
    os._exit(cuda.cuInit(0))
print(json.dumps([count, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), cuda.cuInit(0)]))""",
    )
    assert told == [3, 0, 0]


def test_many_threads_ask_at_once(some: Callable[..., Remote]) -> None:
    wrong = python(
        some(),
        """
import json, threading
import pynvml as n
wrong = []
def ask():
    for turn in range(20):
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(turn % 3)
        if n.nvmlDeviceGetMemoryInfo(h).total != 64 << 20 or n.nvmlDeviceGetIndex(h) != turn % 3:
            wrong.append(turn)
        n.nvmlShutdown()
n.nvmlInit()
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(wrong))""",
    )
    assert wrong == []


def test_a_node_without_nvml_tells_memory_by_its_driver_and_shows_no_process(
    some: Callable[..., Remote], libcuda: Path, tmp_path: Path
) -> None:
    """An error for the processes would be PyTorch's own error when it asks after memory has run out."""
    alone = tmp_path / "driver"
    alone.mkdir()
    shutil.copy(libcuda, alone)
    told = python(
        some(driver=alone / libcuda.name),
        HOLD
        + """
h = n.nvmlDeviceGetHandleByIndex(0)
memory = n.nvmlDeviceGetMemoryInfo(h)
told = [memory.total, memory.used]
for call in (n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetPowerUsage):
    try:
        told.append(call(h))
    except n.NVMLError as error:
        told.append(error.value)
print(json.dumps(told))""",
    )
    refused = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert told == [64 << 20, 8 << 20, refused, [], refused]


def test_what_changes_a_device_is_refused(some: Callable[..., Remote]) -> None:
    told = python(
        some(),
        """
import json
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
told = []
for call in (lambda: n.nvmlDeviceSetPersistenceMode(h, 1), lambda: n.nvmlDeviceResetGpuLockedClocks(h),
             lambda: n.nvmlDeviceSetComputeMode(h, 1)):
    try:
        told.append(call())
    except n.NVMLError as error:
        told.append(error.value)
print(json.dumps(told))""",
    )
    assert told == 3 * [pynvml.NVML_ERROR_NO_PERMISSION]


def test_gpus_of_a_lease_are_in_no_fabric(some: Callable[..., Remote]) -> None:
    told = python(
        some(),
        """
import ctypes
import json
import pynvml as n
n.nvmlInit()
h, info, old = n.nvmlDeviceGetHandleByIndex(0), n.c_nvmlGpuFabricInfoV_t(), n.c_nvmlGpuFabricInfo_t()
ctypes.memset(ctypes.byref(info), 0xFF, ctypes.sizeof(info))
ctypes.memset(ctypes.byref(old), 0xFF, ctypes.sizeof(old))
told = []
for version in (n.nvmlGpuFabricInfo_v2, 2 << 24 | 35, 0xFFFFFF):
    info.version = version
    try:
        n.nvmlDeviceGetGpuFabricInfoV(h, ctypes.byref(info))
        told.append([info.version == version, info.state, info.cliqueId, info.healthMask, *info.clusterUuid])
    except n.NVMLError as error:
        told.append(error.value)
n.nvmlDeviceGetGpuFabricInfo(h, ctypes.byref(old))
print(json.dumps([*told, old.state]))""",
    )
    wrong = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert told == [[True, *[0] * 19], wrong, wrong, 0]


def test_gpus_of_a_lease_reach_each_other_as_their_server_says(some: Callable[..., Remote]) -> None:
    told = python(
        some(),
        """
import json
import pynvml as n
n.nvmlInit()
a, b = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
(field,) = n.nvmlDeviceGetFieldValues(a, [n.NVML_FI_DEV_NVLINK_LINK_COUNT])
print(json.dumps([[n.nvmlDeviceGetP2PStatus(a, b, way) for way in (0, 1, 2)], field.nvmlReturn]))""",
    )
    ok, none = pynvml.NVML_P2P_STATUS_OK, pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    assert told == [[ok, ok, none], pynvml.NVML_ERROR_NOT_SUPPORTED]


INIT = """
import pynvml as n
try:
    n.nvmlInit()
except n.NVMLError as error:
    print(error.value)
"""


def test_nvml_does_not_start_without_a_session(some: Callable[..., Remote], tmp_path: Path) -> None:
    remote = some()
    assert python(remote, INIT, FARBUS_SESSION="/nowhere") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    address, port = remote.supervisor.address
    write_session(tmp_path / "other", [Server(address=address, port=port, secret=bytes(32))])
    assert python(remote, INIT, FARBUS_SESSION=str(tmp_path / "other")) == pynvml.NVML_ERROR_NO_PERMISSION
    remote.supervisor.stop()
    assert python(remote, INIT) == pynvml.NVML_ERROR_GPU_IS_LOST


def test_the_library_has_what_the_coverage_page_says_and_nothing_else() -> None:
    if shutil.which("objdump") is None or not (SHIM / "libnvidia-ml.so.1").exists():
        pytest.skip("needs objdump and the NVML that make -C native builds")
    table = subprocess.run(
        ["objdump", "-T", SHIM / "libnvidia-ml.so.1"], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(re.findall(r"\.text\s+\w+\s+(?:Base\s+)?(\w+)$", table, re.MULTILINE)) == list(exported())


def test_every_function_that_pynvml_calls_is_listed() -> None:
    source = Path(pynvml.__file__).read_text()
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source))
    assert called
    assert called - set(exported()) == set()
