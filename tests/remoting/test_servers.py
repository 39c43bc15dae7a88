"""Programs whose devices sit at several servers: one list of devices, copies and events between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farbus.remoting.session import Server, write_session
from tests.remoting.conftest import require
from tests.remoting.harness import SHIM, Remote, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_images import ptx

Build = Callable[[str], Path]


@dataclass(kw_only=True)
class Servers:
    """Supervisors of several nodes, and one session file that names them all."""

    remotes: tuple[Remote, ...]
    session: Path

    def run(self, *command: str | Path, **changes: str) -> tuple[int, str, str]:
        done = self.remotes[0].run(*command, FARBUS_SESSION=str(self.session), **changes)
        return done.returncode, done.stdout, done.stderr


Start = Callable[..., Servers]


def block(remote: Remote, secret: bytes | None = None) -> Server:
    address, port = remote.supervisor.address
    return Server(address=address, port=port, secret=secret or remote.secret)


@pytest.fixture
def start(libcuda: Path, tmp_path: Path) -> Iterator[Start]:
    """Start supervisors, each of a node of its own: by their servers' FARBUS_SOFTGPU."""
    require(SHIM / "libcuda.so.1", "run make -C native")
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    with contextlib.ExitStack() as stack:

        def start_servers(*gpus: str, drivers: tuple[Path, ...] = (), nodes: tuple[str, ...] = ()) -> Servers:
            remotes = tuple(
                stack.enter_context(
                    remote_session(
                        libcuda=drivers[number] if drivers else libcuda,
                        folder=tmp_path,
                        environment={
                            "FARBUS_SOFTGPU_NODE": nodes[number] if nodes else f"{tmp_path}/{number}",
                            "FARBUS_SOFTGPU": gpu,
                        },
                    )
                )
                for number, gpu in enumerate(gpus)
            )
            session = tmp_path / "session"
            write_session(session, [block(remote) for remote in remotes])
            return Servers(remotes=remotes, session=session)

        yield start_servers


@pytest.fixture
def two(start: Start) -> Servers:
    return start("count=1", "count=1")


def nodes_of_the_same_addresses(libcuda: Path, folder: Path) -> tuple[str, str]:
    """Two nodes whose software GPUs have their memory at one address: by their UUIDs, as native/softgpu makes them."""
    seen: dict[int, str] = {}
    for number in range(1000):
        node = f"{folder}/like/{number}"
        command = [sys.executable, "-c", UUID_OF_FIRST_GPU, str(libcuda)]
        environment = os.environ | {"FARBUS_SOFTGPU_NODE": node}
        uuid = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
        place = uuid[0] ^ uuid[9]
        if place in seen:
            return seen[place], node
        seen[place] = node
    raise AssertionError("no two of a thousand")


#: Write the sixteen bytes to stdout.
UUID_OF_FIRST_GPU = """
import ctypes, sys
cuda, uuid = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(16)
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetUuid(uuid, 0) == 0
sys.stdout.buffer.write(uuid.raw)
"""


def test_program_of_two_servers_whose_memory_has_the_same_addresses(
    start: Start, build: Build, libcuda: Path, tmp_path: Path
) -> None:
    """The driver of either places everything where the other's lies, small things one beside the other."""
    servers = start("count=1", "count=1", nodes=nodes_of_the_same_addresses(libcuda, tmp_path))
    code, out, err = servers.run(build("remoting/servers/copies"))
    assert (code, out) == (0, "ok\n"), out + err


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("name", ["copies", "events", "threads"])
def test_program_of_two_servers(two: Servers, build: Build, name: str, transport: str) -> None:
    code, out, err = two.run(build(f"remoting/servers/{name}"), FARBUS_TRANSPORT=transport)
    assert (code, out) == (0, "ok\n"), out + err


def test_pinned_memory_of_two_servers_is_not_mapped(two: Servers, tmp_path: Path) -> None:
    code, _, err = two.run(build_calls("listing/mapped_memory", tmp_path), FARBUS_MAPPED_MEMORY="managed")
    assert code == 1
    assert err.startswith("farbus: FARBUS_MAPPED_MEMORY=managed needs GPUs of one server alone")


def test_who_asks_for_mapped_memory_of_two_servers_is_told_to_have_one(two: Servers, tmp_path: Path) -> None:
    code, _, err = two.run(build_calls("listing/mapped", tmp_path))
    assert code == 0, err
    (line,) = [line for line in err.splitlines() if "pinned memory is not mapped" in line]
    assert "; with GPUs of one node (without --gpu-span) FARBUS_MAPPED_MEMORY=managed lets kernels use it" in line


def test_what_is_current_does_not_matter_between_two_servers(start: Start, tmp_path: Path) -> None:
    servers = start("count=2", "count=1")
    code, out, err = servers.run(build_calls("servers/elsewhere", tmp_path))
    assert (code, out) == (0, "ok\n"), out + err


def test_objects_of_two_servers_do_not_mix(two: Servers, tmp_path: Path) -> None:
    code, out, err = two.run(build_calls("servers/mixed", tmp_path))
    assert code == 0, out + err
    assert "a graph whose work is on the devices of two servers is not supported over remoting" in err
    assert "waiting for an event between two servers can't be captured" in err
    assert "freeing memory of " in err
    assert "mapping memory of " in err


def test_the_end_of_one_server_leaves_the_other(two: Servers, build: Build) -> None:
    program = two.remotes[0].start(build("remoting/servers/one_lost"), FARBUS_SESSION=str(two.session))
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = two.remotes[1].supervisor.pids
    os.kill(server, signal.SIGKILL)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (0, "ok\n"), out + err
    assert err.count("the connection to the GPU at ") == 1


def test_copies_that_are_posted_to_a_lost_server_leave_nothing_behind(two: Servers, tmp_path: Path) -> None:
    program = two.remotes[0].start(build_calls("servers/posted_to_lost", tmp_path), FARBUS_SESSION=str(two.session))
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    two.remotes[1].supervisor.stop()
    out, err = program.communicate("\n", timeout=60)
    assert (program.returncode, out) == (0, "ok\n"), out + err


def listed(servers: Servers, build: Build, **changes: str) -> str:
    code, out, err = servers.run(build("remoting/servers/listed"), **changes)
    assert code == 0, out + err
    return out.splitlines()[0]


def test_devices_run_over_the_servers_in_the_file_s_order(start: Start, build: Build) -> None:
    servers = start("count=2,cc=8.0,sms=4", "count=1,cc=9.0,sms=8", "count=1,cc=7.5,sms=2")
    names = listed(servers, build)
    assert names.split()[:-1] == ["8.0", "4", "8.0", "4", "9.0", "8", "7.5", "2"]
    assert listed(servers, build, CUDA_DEVICE_ORDER="PCI_BUS_ID") == names
    chosen = listed(servers, build, CUDA_VISIBLE_DEVICES="2,0")
    assert chosen.split()[:-1] == ["9.0", "8", "8.0", "4"]


def test_devices_are_chosen_by_uuid_over_all_servers(start: Start, build: Build) -> None:
    servers = start("count=1,sms=4", "count=1,sms=8")
    (one,) = gpus(servers.remotes[1])
    assert listed(servers, build, CUDA_VISIBLE_DEVICES=one).split()[1:-1] == ["8"]


#: Load a library without a context, and ask for what is so on the only device.
LOADER = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
library, kernel, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
check(driver.cuInit(0))
check(driver.cuLibraryLoadData(ctypes.byref(library), sys.stdin.buffer.read() + bytes(8), None, None, 0, None, None, 0))
check(driver.cuLibraryGetKernel(ctypes.byref(kernel), library, b"store"))
check(driver.cuKernelGetAttribute(ctypes.byref(value), 0, kernel, 0))
print(value.value)
"""


def test_a_library_is_loaded_where_the_program_sees_a_device(start: Start, tmp_path: Path) -> None:
    servers = start("count=1", "count=1")
    (one,) = gpus(servers.remotes[1])
    script = tmp_path / "load.sh"
    (tmp_path / "store.ptx").write_bytes(ptx(1, 0))
    (tmp_path / "load.py").write_text(LOADER)
    script.write_text(f"exec {sys.executable} {tmp_path}/load.py < {tmp_path}/store.ptx\n")
    status, out, said = servers.run("sh", script, CUDA_VISIBLE_DEVICES=one)
    assert (status, out.strip(), said) == (0, "1024", "")


def gpus(remote: Remote) -> list[str]:
    """The UUIDs that NVML tells of a lease's devices."""
    done = remote.run(sys.executable, "-c", UUIDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


UUIDS = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
count, device, text = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
for index in range(count.value):
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetUUID(device, text, 96) == 0
    memory = (ctypes.c_ulonglong * 3)()
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    print(text.value.decode())
"""


def test_nvml_lists_the_devices_of_all_servers(start: Start) -> None:
    servers = start("count=2", "count=1")
    code, out, err = servers.run(sys.executable, "-c", UUIDS)
    assert code == 0, err
    assert out.split() == [*gpus(servers.remotes[0]), *gpus(servers.remotes[1])]


def test_nvml_lists_what_there_is_where_a_server_is_away(start: Start) -> None:
    servers = start("count=1", "count=2")
    first, second = servers.remotes
    gone = Server(address="127.0.0.1", port=1, secret=bytes(range(32)))
    for blocks in ([gone, block(second)], [block(second), gone], [block(second), block(first, bytes(32))]):
        write_session(servers.session, blocks)
        code, out, err = servers.run(sys.executable, "-c", UUIDS)
        assert (code, out.split()) == (0, gpus(second)), err
        # Each time it connects: for what does not change, and for what does.
        assert err.count("farbus:") == err.count("; the lease may have ended") + err.count("refuses the secret") == 2
    write_session(servers.session, [gone, gone])
    code, _, err = servers.run(sys.executable, "-c", UUIDS)
    assert code == 1
    assert "connect to 127.0.0.1:1: " in err


LATER = """
import ctypes, os
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
print("waiting", flush=True)
input()
for index in range(2):
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    print(nvml.nvmlDeviceGetMemoryInfo(device, memory))
"""


def test_a_server_that_goes_after_nvml_began_loses_its_own_devices(two: Servers) -> None:
    first = two.remotes[0]
    program = first.start(sys.executable, "-c", LATER, FARBUS_SESSION=str(two.session))
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    first.supervisor.stop()
    out, err = program.communicate("\n", timeout=60)
    assert (program.returncode, out) == (0, "15\n0\n"), err  # NVML_ERROR_GPU_IS_LOST


OLDER = """
int cuDriverGetVersion(int *version)
{
	*version = 12040;
	return 0;
}
"""


def test_the_oldest_driver_s_version_is_told(start: Start, build: Build, libcuda: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not in PATH")
    older = tmp_path / "libolder.so"
    subprocess.run(
        [
            compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", older, "-Wl,--no-as-needed",
            "-x", "none", libcuda, f"-Wl,-rpath,{libcuda.parent}",
        ],
        input=OLDER, text=True, check=True,
    )  # fmt: skip
    servers = start("count=1", "count=1", drivers=(libcuda, older))
    assert servers.run(build("remoting/servers/driver_version"))[1] == "12040\n"


def test_the_server_that_refuses_is_named(two: Servers, build: Build) -> None:
    first, second = two.remotes
    write_session(two.session, [block(first), block(second, bytes(32))])
    code, out, err = two.run(build("remoting/servers/listed"))
    assert code == 1, out
    address, port = second.supervisor.address
    assert f"{address}:{port} refuses the secret" in err
    assert err.count("farbus:") == 1


def test_a_server_that_is_not_there_is_named(two: Servers, build: Build) -> None:
    first, second = two.remotes
    gone = Server(address="127.0.0.1", port=1, secret=second.secret)
    write_session(two.session, [gone, block(first)])
    code, out, err = two.run(build("remoting/servers/listed"), FARBUS_TRANSPORT="tcp")
    assert code == 1, out
    assert "connect to 127.0.0.1:1: " in err


def test_a_block_without_a_secret_is_malformed(two: Servers, build: Build) -> None:
    two.session.write_text(two.session.read_text() + "server tcp 127.0.0.1 7\n")
    code, _, err = two.run(build("remoting/servers/listed"))
    assert code == 1
    assert "is malformed" in err


#: Programs of one device, and of as many as there are, that two servers must not disturb.
AS_WITH_ONE = (
    "address_taken",
    "allocate_in_stream",
    "default_direction",
    "devices",
    "errors",
    "fork_child",
    "handed_over",
    "host_functions",
    "many_blocked_threads",
    "no_cleanup",
    "reset",
    "streams_pinned",
    "symbols",
    "threads",
)


@pytest.mark.parametrize("name", AS_WITH_ONE)
def test_program_of_one_server_runs_as_before(two: Servers, build: Build, name: str) -> None:
    code, out, err = two.run(build(f"remoting/{name}"))
    assert (code, out.splitlines()[-1:]) == (0, ["ok"]), out + err
