"""Every function that is implemented has a program that calls it and checks what it did."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting.spec import ENTRIES, Answer
from farbus.remoting.spec.checked import CHECKED
from tests.remoting.harness import PROGRAM_TIMEOUT_S, SHIM, Remote, remote_session
from tests.remoting.record import build_recorder, called_entries
from tests.softgpu import driver_programs
from tests.softgpu.test_driver_programs import NAMES

CALLS = Path(__file__).parent / "calls"
#: Programs of the software GPU's own tests, which run here through the shim.
BORROWED = sorted(
    {name for name in CHECKED.values() if name.startswith("driver_")}
    # Copy nodes that name memory of the program; modules of contexts that are made and destroyed again and again;
    # attributes of a kernel on two devices; what compiler and linker say; a context that is reset while it is retained;
    # copies between contexts, and what is done to managed memory, in their order;
    # allocations of no bytes; copy nodes whose addresses say whose memory it is; contexts that end while threads use
    # them; events that a launch records; callbacks of the log that end their thread.
    | {
        "driver_context_used",
        "driver_error_elsewhere",
        "driver_error_sticky",
        "driver_graph_nodes",
        "driver_graph_unified",
        "driver_peer_instructions",
        "driver_launch_events",
        "driver_library",
        "driver_link",
        "driver_log_exit",
        "driver_managed_waits",
        "driver_module",
        "driver_peer_order",
        "driver_pool_nothing",
    }
)
#: Programs of the software GPU's own tests that can't end well through the shim, and why.
NOT_OVER_REMOTING = {
    "driver_advice": "advice is kept for whole allocations, not for pages",
    "driver_capture_errors": "a wait for an event that a capture recorded which has ended reports it later",
    "driver_capture_nodes": "a captured copy of the program's memory is two nodes",
    "driver_context_grace": "a context that is destroyed waits for its kernels in the place of other calls",
    "driver_context_pinned": "who frees pinned memory, as a server does for a context, waits for its use without end",
    "driver_graph_update_memory": "the program is out of memory, and not the driver",
    "driver_log": "an image that is refused is told in the words of the shim",
    "driver_resolver": "it names functions of CUDA 2 as missing, which the shim has",
    "driver_virtual_host": "memory of the host that a driver gives is its own node's",
    "driver_virtual_orphaned": "what a process has exported ends with it",
}
#: The others that test_program does not run: nothing of theirs is counted on.
OTHERS = sorted(set(NAMES) - set(BORROWED) - set(NOT_OVER_REMOTING))
OWN = sorted(path.stem for path in CALLS.glob("*.c"))
#: Programs that call functions which the software GPU itself lacks.
SHIM_ONLY = {
    "call_arrays",
    "call_diagnostics",
    "call_linker",
    "call_local",
    "call_managed",
    "call_narrow",
    "call_old",
    "call_shared",
    "call_sparse",
}
#: Programs that want another driver, whose source is beside this file: what it does not define is the software GPU's.
DRIVERS = {"call_sparse": "sparse_driver"}
IMPLEMENTED = {entry.symbol: entry for entry in ENTRIES if entry.answer is not Answer.UNSUPPORTED}


def build_calls(name: str, folder: Path) -> Path:
    """Compile calls/<name>.c; any libcuda.so.1 may be loaded with it."""
    if not driver_programs.COMPILER:
        pytest.skip("no C compiler")
    program = folder / Path(name).name
    subprocess.run(
        [
            driver_programs.COMPILER, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", str(CALLS / f"{name}.c"),
            "-o", str(program), f"-L{SHIM}", "-l:libcuda.so.1",
        ],
        check=True,
    )  # fmt: skip
    return program


def build_any(name: str, folder: Path) -> tuple[Path, str]:
    """The program of that name and what it asks of the software GPU."""
    if name in OWN:
        return build_calls(name, folder), "count=2"
    return driver_programs.build(name, folder), driver_programs.options_of(name)


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (SHIM / "libcuda.so.1").exists():
        pytest.skip("native/build/shim is not built: run make -C native")
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    return build_recorder(tmp_path_factory.mktemp("record"))


def recorded(recorder: Path, record: Path) -> dict[str, str]:
    """The environment in which a program's calls are noted in `record`."""
    return {"LD_PRELOAD": str(recorder), "LD_LIBRARY_PATH": str(recorder.parent), "FARBUS_RECORD": str(record)}


@pytest.mark.parametrize("name", sorted({*BORROWED, *OWN}))
def test_program(
    libcuda: Path, driver_before: Callable[[str], Path], recorder: Path, tmp_path: Path, name: str
) -> None:
    program, options = build_any(name, tmp_path)
    record = tmp_path / "record"
    driver = driver_before(DRIVERS[name]) if name in DRIVERS else libcuda
    environment = {"FARBUS_SOFTGPU": options, "FARBUS_SOFTGPU_NODE": str(tmp_path)}
    with remote_session(libcuda=driver, folder=tmp_path, environment=environment) as remote:
        done = remote.run(program, **recorded(recorder, record))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {symbol for symbol, named in CHECKED.items() if named == name} <= called_entries(record)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("name", ["driver_array_planes", "driver_multicast", "driver_multicast_shared"])
def test_program_over_each_transport(lease: Callable[..., Remote], tmp_path: Path, name: str, transport: str) -> None:
    program, options = build_any(name, tmp_path)
    remote = lease(tls=False, FARBUS_SOFTGPU=options, FARBUS_SOFTGPU_NODE=str(tmp_path))
    done = remote.run(program, FARBUS_TRANSPORT=transport)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name in OWN if name not in SHIM_ONLY])
def test_program_on_the_software_gpu_itself(tmp_path: Path, name: str) -> None:
    program = build_calls(name, tmp_path)
    done = subprocess.run(
        [program],
        env=driver_programs.environment(str(tmp_path), "count=2", LD_BIND_NOW=""),
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif("FARBUS_ALL_PROGRAMS" not in os.environ, reason="FARBUS_ALL_PROGRAMS=1 runs it")
@pytest.mark.parametrize("name", OTHERS)
def test_program_of_the_software_gpu(lease: Callable[..., Remote], tmp_path: Path, name: str) -> None:
    program, options = build_any(name, tmp_path)
    done = lease(FARBUS_SOFTGPU=options, FARBUS_SOFTGPU_NODE=str(tmp_path)).run(program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_run_over_remoting_is_there() -> None:
    assert set(NOT_OVER_REMOTING) <= set(NAMES) - set(BORROWED)


def test_what_is_checked_is_implemented() -> None:
    assert set(CHECKED) <= set(IMPLEMENTED)


def test_as_many_functions_as_promised_are_shown_to_work() -> None:
    assert set(IMPLEMENTED) <= set(CHECKED)
