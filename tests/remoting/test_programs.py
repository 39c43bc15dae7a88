"""One behaviour of CUDA per program, through the whole path."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.harness import PROGRAMS, Remote
from tests.remoting.test_coverage import build_calls

#: Programs whose output is not just "ok" have tests of their own.
OTHERS = {"copies_until_lost", "devices", "pinned_steps", "short_copy", "streams_of_others", "wait_forever"}
BEHAVIOURS = sorted(path.stem for path in (PROGRAMS / "remoting").glob("*.cu") if path.stem not in OTHERS)


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_program(remote: Remote, build: Callable[[str], Path], name: str) -> None:
    done = remote.run(build(f"remoting/{name}"))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_printing_kernels_print_on_the_program_s_output(remote: Remote, build: Callable[[str], Path]) -> None:
    done = remote.run(build("suite/device_printf"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["cub_capture", "graphs", "textures"])
def test_a_library_s_captures_and_textures(remote: Remote, build: Callable[[str], Path], name: str) -> None:
    done = remote.run(build(f"suite/{name}"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_programs_have_a_server_each(remote: Remote, build: Callable[[str], Path]) -> None:
    program = build("remoting/wait_forever")
    running = [remote.start(program) for _ in range(2)]
    try:
        for each in running:
            assert each.stdout is not None
            assert each.stdout.readline() == "waiting\n"
        assert len(set(remote.supervisor.pids)) == 2
    finally:
        for each in running:
            each.kill()
            each.communicate()


def test_an_unsupported_function_says_its_name_once(remote: Remote, build: Callable[[str], Path]) -> None:
    done = remote.run(build("remoting/unsupported"))
    assert done.stderr.count("farbus: cuImportExternalMemory is not supported over remoting: ") == 1


def test_a_program_without_cuda_is_left_alone(remote: Remote) -> None:
    done = remote.run("/bin/echo", "hello", FARBUS_SESSION="/nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_the_shim_needs_libc_only(remote: Remote) -> None:
    shim = remote.environment()["LD_PRELOAD"].split(":")[0]
    dynamic = subprocess.run(["readelf", "-d", shim], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    # All parts of glibc: the loader, for thread-local variables, and where threads and dlopen were before 2.34.
    assert {name for name in needed if not name.startswith("ld-linux")} <= {
        "libc.so.6",
        "libpthread.so.0",
        "libdl.so.2",
    }
    assert "Library soname: [libcuda.so.1]" in dynamic


def test_the_shim_exports_the_driver_api_only(remote: Remote) -> None:
    shim = remote.environment()["LD_PRELOAD"].split(":")[0]
    listing = subprocess.run(["nm", "-D", "--defined-only", shim], capture_output=True, text=True, check=True).stdout
    strangers = [line for line in listing.splitlines() if not line.split()[-1].startswith("cu")]
    assert strangers == []


def test_several_devices(lease: Callable[..., Remote], build: Callable[[str], Path]) -> None:
    remote = lease(FARBUS_SOFTGPU="count=3", FARBUS_SOFTGPU_NODE="remoting-tests")
    done = remote.run(build("remoting/devices"))
    assert (done.returncode, done.stdout) == (0, "3\nok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
def test_streams_of_another_device(lease: Callable[..., Remote], build: Callable[[str], Path], transport: str) -> None:
    remote = lease(FARBUS_SOFTGPU="count=2", FARBUS_SOFTGPU_NODE="remoting-tests")
    done = remote.run(build("remoting/streams_of_others"), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("2,0", 2), ("0,7,1", 1), ("1,0,2", 3), ("0,1,2", 3)])
def test_visible_devices(lease: Callable[..., Remote], build: Callable[[str], Path], visible: str, count: int) -> None:
    remote = lease(FARBUS_SOFTGPU="count=3", FARBUS_SOFTGPU_NODE="remoting-tests")
    done = remote.run(build("remoting/devices"), CUDA_VISIBLE_DEVICES=visible)
    assert (done.returncode, done.stdout) == (0, f"{count}\nok\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("environment", "buses"),
    [
        ({}, "3 1 2"),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "3 1 2"),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "1 2 3"),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,0"}, "3 1"),
    ],
)
def test_order_of_devices(
    lease: Callable[..., Remote], tmp_path: Path, environment: dict[str, str], buses: str
) -> None:
    """The server's own order, or that of PCI addresses, which visible devices are then counted by."""
    remote = lease(FARBUS_SOFTGPU="count=3", CUDA_VISIBLE_DEVICES="2,0,1")
    done = remote.run(build_calls("listing/buses", tmp_path), **environment)
    assert (done.returncode, done.stdout.split()) == (0, buses.split()), done.stdout + done.stderr


@pytest.mark.parametrize("visible", ["", "7", "0,0", "1,0,1", "0,0,2"])
def test_no_visible_device(lease: Callable[..., Remote], build: Callable[[str], Path], visible: str) -> None:
    done = lease(FARBUS_SOFTGPU="count=3").run(build("remoting/devices"), CUDA_VISIBLE_DEVICES=visible)
    assert done.returncode == 1
    assert "cudaErrorNoDevice" in done.stdout
