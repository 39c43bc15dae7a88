"""Pinned memory that kernels use by its address: shared where program and GPU are on one node; else refused, or, where
the program asks for it, managed memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.disks import small_disk
from tests.remoting.cutter import Side
from tests.remoting.harness import ROOT, SANITIZED, Remote, lines_of_shim, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_managed import Build, run_on_the_software_gpu
from tests.remoting.test_resume import at_frames, at_random, run_cut
from tests.remoting.test_trace import calls

MAPPED = {"FARBUS_MAPPED_MEMORY": "managed"}
#: How pages come, and whether the program may touch any while the GPU works.
MODES = {"paging": ("meanwhile",), "copies": ()}
#: Random programs: seeds and steps.  All of these failed when copies within host memory were not waited for.
SEEDS = ["1", "2", "5", "8"]
STEPS = "600"
#: WIRE_PINNED_PIECES of native/wire/handle.h.
PIECES = 16384
#: Software GPU and program use words of a page at once, of which what fetches or sends it reads all.
no_race = pytest.mark.skipif("tsan" in Path(SANITIZED).name, reason="words of one page are used at once")
#: What the sanitizer leaves to programs is what crowded_driver.c has reserved.
no_room = pytest.mark.skipif("tsan" in Path(SANITIZED).name, reason="there are no other addresses")


@pytest.mark.parametrize("name", ["mapped_memory", "mapped_shared", "mapped_nodes"])
@pytest.mark.parametrize("asked", [{}, MAPPED], ids=["by itself", "asked for"])
def test_on_one_node_it_is_the_kernels_memory(remote: Remote, tmp_path: Path, asked: dict[str, str], name: str) -> None:
    done = remote.run(build_calls(f"listing/{name}", tmp_path), "meanwhile", FARBUS_TRANSPORT="shm", **asked)
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


@no_room
@pytest.mark.parametrize("name", ["mapped_memory", "mapped_shared", "mapped_nodes"])
def test_where_the_server_has_something_else_another_address_is_found(
    driver_before: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    with remote_session(libcuda=driver_before("crowded_driver"), folder=tmp_path, environment={}) as remote:
        done = remote.run(build_calls(f"listing/{name}", tmp_path), "meanwhile", FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


@no_room
def test_threads_that_look_for_another_address_at_once_find_one_each(
    driver_before: Callable[[str], Path], tmp_path: Path
) -> None:
    """Again and again, as it is a race which threads look at once."""
    program = build_calls("listing/mapped_killed", tmp_path)
    with remote_session(libcuda=driver_before("crowded_driver"), folder=tmp_path, environment={}) as remote:
        for _ in range(10):
            done = remote.run(program, "8", FARBUS_TRANSPORT="shm")
            assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


def test_where_devices_have_it_elsewhere_it_is_not_mapped(
    driver_before: Callable[[str], Path], build: Callable[[str], Path], tmp_path: Path
) -> None:
    environment = {"FARBUS_TEST_APART": "1"}
    with remote_session(libcuda=driver_before("crowded_driver"), folder=tmp_path, environment=environment) as remote:
        shared = remote.run(build("remoting/pinned_shared"), FARBUS_TRANSPORT="shm")
        refused = remote.run(build_calls("listing/pinned_in_kernel", tmp_path), "pinned", FARBUS_TRANSPORT="shm")
    assert (shared.returncode, shared.stdout) == (0, "ok\n"), shared.stderr
    assert (refused.returncode, refused.stdout) == (0, "ok\n"), refused.stderr


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("mode", MODES)
def test_elsewhere_it_can_be_managed_memory(remote: Remote, tmp_path: Path, mode: str, transport: str) -> None:
    program = build_calls("listing/mapped_memory", tmp_path)
    done = remote.run(program, *MODES[mode], FARBUS_MANAGED_MEMORY=mode, FARBUS_TRANSPORT=transport, **MAPPED)
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


@pytest.mark.parametrize("name", ["mapped_memory", "mapped_shared", "mapped_nodes"])
def test_on_the_software_gpu_itself(tmp_path: Path, name: str) -> None:
    done = run_on_the_software_gpu(build_calls(f"listing/{name}", tmp_path), tmp_path, "meanwhile")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("mode", [pytest.param("paging", marks=no_race), "copies"])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_program(remote: Remote, build: Build, mode: str, seed: str) -> None:
    strict = () if MODES[mode] else ("strict",)
    done = remote.run(
        build("remoting/mapped_random"), seed, STEPS, *strict,
        FARBUS_MANAGED_MEMORY=mode, FARBUS_TRANSPORT="tcp", **MAPPED,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", ""), done.stdout + done.stderr


@no_race
@pytest.mark.parametrize("seed", SEEDS)
def test_random_program_on_one_node(remote: Remote, build: Build, seed: str) -> None:
    done = remote.run(build("remoting/mapped_random"), seed, STEPS, FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


@pytest.mark.parametrize("seed", SEEDS)
def test_random_program_on_the_software_gpu_itself(build: Build, tmp_path: Path, seed: str) -> None:
    done = run_on_the_software_gpu(build("remoting/mapped_random"), tmp_path, seed, STEPS)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@no_race
def test_threads_share_pages(remote: Remote, build: Build) -> None:
    """One thread's waiting for all streams is not taken for the end of what others post meanwhile."""
    program = build("remoting/mapped_threads")
    done = remote.run(program, "1000", FARBUS_MANAGED_MEMORY="paging", FARBUS_TRANSPORT="tcp", **MAPPED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@no_race
def test_threads_share_pages_on_one_node(remote: Remote, build: Build) -> None:
    done = remote.run(build("remoting/mapped_threads"), "1000", FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


def test_threads_share_pages_on_the_software_gpu_itself(build: Build, tmp_path: Path) -> None:
    done = run_on_the_software_gpu(build("remoting/mapped_threads"), tmp_path, "1000")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_it_is_host_memory_to_copies(remote: Remote, tmp_path: Path, mode: str) -> None:
    program = build_calls("listing/mapped_copies", tmp_path)
    done = remote.run(program, "more", FARBUS_MANAGED_MEMORY=mode, FARBUS_TRANSPORT="tcp", **MAPPED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_pinned_memory_that_is_not_mapped_is_so_too(remote: Remote, tmp_path: Path, transport: str) -> None:
    done = remote.run(build_calls("listing/mapped_copies", tmp_path), "more", FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


def test_it_is_host_memory_to_copies_on_the_software_gpu_itself(tmp_path: Path) -> None:
    done = run_on_the_software_gpu(build_calls("listing/mapped_copies", tmp_path), tmp_path)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_cut_behind_every_frame(lease: Callable[..., Remote], tmp_path: Path, mode: str) -> None:
    """Faults, and words that are sent, wait until the session goes on."""
    program = build_calls("listing/mapped_memory", tmp_path)
    decide = at_frames(Side.SERVER, lambda length: length)
    code, out, err, cuts = run_cut(lease(tls=False), program, decide, FARBUS_MANAGED_MEMORY=mode, **MAPPED)
    assert (code, out, err) == (0, "ok\n", "")
    assert cuts >= 5


@no_race
@pytest.mark.parametrize("seed", range(3))
def test_random_program_cut_at_random(lease: Callable[..., Remote], build: Build, seed: int) -> None:
    program, decide = build("remoting/mapped_random"), at_random(seed, mean_bytes=20_000)
    code, out, err, cuts = run_cut(lease(tls=False), program, decide, FARBUS_MANAGED_MEMORY="paging", **MAPPED)
    assert (code, out, err) == (0, "ok\n", "")
    assert cuts > 0


@pytest.mark.parametrize("mode", MODES)
def test_streams_write_words_there_and_do_not_wait_for_them(remote: Remote, tmp_path: Path, mode: str) -> None:
    program = build_calls("listing/mapped_words", tmp_path)
    done = remote.run(program, FARBUS_MANAGED_MEMORY=mode, FARBUS_TRANSPORT="tcp", **MAPPED)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    assert done.stderr.count("can't wait for a word of managed or mapped memory") == 1


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_it_is_refused_where_it_is_not_asked_for(remote: Remote, tmp_path: Path, transport: str) -> None:
    program = build_calls("listing/pinned_in_kernel", tmp_path)
    done = remote.run(program, "pinned", FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert done.stderr.count("FARBUS_MAPPED_MEMORY=managed lets kernels use what CUDA allocates") == 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_memory_of_the_program_s_own_is_not_mapped(remote: Remote, tmp_path: Path, transport: str) -> None:
    done = remote.run(build_calls("listing/mapped_registered", tmp_path), FARBUS_TRANSPORT=transport, **MAPPED)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert done.stderr.count("memory that a program registers stays its own") == 1


@pytest.mark.parametrize("name", ["", "on disk"])
def test_files_in_memory_are_the_kernels_too(remote: Remote, tmp_path: Path, name: str) -> None:
    program = build_calls("listing/mapped_file", tmp_path)
    arguments = [str(ROOT / "native" / "build" / f"{tmp_path.name}.{os.getpid()}")] if name else []
    try:
        done = remote.run(program, *arguments, FARBUS_TRANSPORT="shm")
    finally:
        for made in arguments:
            Path(made).unlink(missing_ok=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert [line.startswith("farbus: pinned memory is not mapped: ") for line in done.stderr.splitlines()] == [True]


def test_a_file_that_there_is_no_room_for_is_the_program_s_own(remote: Remote, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_bytes=4 << 20) as disk:
        done = remote.run(build_calls("listing/mapped_sparse", tmp_path), str(disk.path), FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"FARBUS_TRANSPORT": "shm"}, "let CUDA allocate it"),
        ({"FARBUS_TRANSPORT": "tcp", "FARBUS_MAPPED_MEMORY": "managed"}, "let CUDA allocate it"),
        ({"FARBUS_TRANSPORT": "tcp"}, "what CUDA allocates (cudaHostAlloc, not cudaHostRegister)"),
    ],
    ids=["shared", "managed", "none"],
)
def test_who_asks_for_the_address_of_registered_memory_is_told_why_it_has_none(
    remote: Remote, tmp_path: Path, settings: dict[str, str], hint: str
) -> None:
    done = remote.run(build_calls("listing/registered_address", tmp_path), **settings)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert hint in line


def test_who_is_held_to_a_limit_is_told_of_limits(remote: Remote, tmp_path: Path) -> None:
    """The ring fits 4 MiB, the 8 MiB of pinned memory do not."""
    command = f"ulimit -f 4096; exec {build_calls('listing/pinned_in_kernel', tmp_path)} pinned 8192"
    done = remote.run("bash", "-c", command, FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    (line,) = lines_of_shim(done.stderr)
    assert "program and server could not both have it: by a limit of either (ulimit -n, -f, -v)" in line


def test_what_is_beyond_the_pieces_that_a_server_takes_is_not_offered(remote: Remote, tmp_path: Path) -> None:
    script = f"""
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
context, pieces = ctypes.c_void_p(), []
assert not driver.cuInit(0)
assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not driver.cuCtxSetCurrent(context)
def make():
    piece = ctypes.c_void_p()
    assert not driver.cuMemHostAlloc(ctypes.byref(piece), 64, 0)
    pieces.append(piece)
for _ in range({PIECES} + 2):
    make()
assert not driver.cuMemFreeHost(pieces.pop(0))
make()
make()
"""
    trace = tmp_path / "trace"
    done = remote.run(sys.executable, "-c", script, FARBUS_TRACE=str(trace), FARBUS_TRANSPORT="shm")
    assert (done.returncode, done.stderr) == (0, "")
    ways = [call.way for call in calls(trace) if call.name == "cuMemHostAlloc"]
    assert ways == ["called"] * PIECES + ["local"] * 2 + ["called", "local"]


def test_another_way_than_there_is_is_refused(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("listing/mapped_memory", tmp_path), FARBUS_MAPPED_MEMORY="1")
    assert done.returncode == 1
    assert done.stderr.startswith('farbus: FARBUS_MAPPED_MEMORY is "1": set it to managed\n')
