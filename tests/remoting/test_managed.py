"""Managed memory: one behaviour per program, as on a GPU of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remoting.cutter import Side
from tests.remoting.harness import BUILD, PROGRAM_TIMEOUT_S, PROGRAMS, Remote
from tests.remoting.test_failures import PATIENCE_S, waiting_program
from tests.remoting.test_resume import at_frames, run_cut
from tests.softgpu import driver_programs

Build = Callable[[str], Path]

BEHAVIOURS = sorted(path.stem for path in (PROGRAMS / "remoting" / "managed").glob("*.cu"))
#: Pages that come when they are touched, and copies when the program has waited.
MODES = ["paging", "copies"]
#: Random programs: seeds and steps.  30 and 64 have host functions beside a thread's own stream.
SEEDS = ["1", "5", "30", "64"]
STEPS = "250"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_program(remote: Remote, build: Build, name: str, mode: str) -> None:
    done = remote.run(build(f"remoting/managed/{name}"), FARBUS_MANAGED_MEMORY=mode)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", ""), done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_program(remote: Remote, build: Build, seed: str, mode: str) -> None:
    done = remote.run(build("remoting/managed_random"), seed, STEPS, FARBUS_MANAGED_MEMORY=mode)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", ""), done.stdout + done.stderr


def run_on_the_software_gpu(program: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        env=driver_programs.environment(str(folder), "", LD_LIBRARY_PATH=str(BUILD / "softgpu"), LD_BIND_NOW=""),
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_program_on_the_software_gpu_itself(build: Build, tmp_path: Path, name: str) -> None:
    done = run_on_the_software_gpu(build(f"remoting/managed/{name}"), tmp_path)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("seed", SEEDS)
def test_random_program_on_the_software_gpu_itself(build: Build, tmp_path: Path, seed: str) -> None:
    done = run_on_the_software_gpu(build("remoting/managed_random"), tmp_path, seed, STEPS)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_mapped_host_memory_is_refused_with_its_reason(remote: Remote, build: Build, transport: str) -> None:
    done = remote.run(build("remoting/unmanaged/mapped"), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    assert done.stderr.count("CAN_MAP_HOST_MEMORY is 0") == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["attributes", "copies", "host_functions"])
def test_cut_behind_every_frame(lease: Callable[..., Remote], build: Build, name: str, mode: str) -> None:
    """Faults and what is fetched wait until the session goes on."""
    decide = at_frames(Side.SERVER, lambda length: length)
    program = build(f"remoting/managed/{name}")
    code, out, err, cuts = run_cut(lease(tls=False), program, decide, FARBUS_MANAGED_MEMORY=mode)
    assert (code, out, err) == (0, "ok\n", "")
    assert cuts >= 5


@pytest.mark.parametrize("mode", MODES)
def test_memory_of_a_lost_gpu_is_no_zero_and_no_hang(
    remote: Remote, build: Build, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FARBUS_MANAGED_MEMORY", mode)
    program = waiting_program(remote, build, "unmanaged/lost")
    (server,) = remote.supervisor.pids
    os.kill(server, signal.SIGKILL)
    out, err = program.communicate("\n", timeout=PATIENCE_S)
    assert (program.returncode, out) == (-signal.SIGSEGV, "touching\n"), out + err
    assert err.count("touching it ends the program") == (mode == "paging")


@pytest.mark.parametrize("mode", MODES)
def test_pages_that_the_program_drops_are_as_memory_of_its_own(remote: Remote, build: Build, mode: str) -> None:
    done = remote.run(build("remoting/unmanaged/dropped"), FARBUS_MANAGED_MEMORY=mode)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", ""), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["managed/add", "rows"])
def test_a_mode_that_there_is_not_is_refused(remote: Remote, build: Build, name: str) -> None:
    """Of a program that has no managed memory as well: it may have some another time."""
    done = remote.run(build(f"remoting/{name}"), FARBUS_MANAGED_MEMORY="foo")
    assert done.returncode == 1
    assert done.stderr == 'farbus: FARBUS_MANAGED_MEMORY is "foo": set it to paging or copies\n'
    assert "cudaErrorInvalidValue" in done.stdout


@pytest.mark.parametrize("mode", MODES)
def test_a_callback_of_the_log_that_touches_a_lost_page_does_not_hang(
    remote: Remote, build: Build, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FARBUS_MANAGED_MEMORY", mode)
    program = waiting_program(remote, build, "unmanaged/lost_told")
    (server,) = remote.supervisor.pids
    os.kill(server, signal.SIGKILL)
    out, err = program.communicate("\n", timeout=PATIENCE_S)
    assert program.returncode == -signal.SIGSEGV, out + err


@pytest.fixture
def large_pages(remote: Remote, shared_library: Callable[..., Path]) -> str:
    """What is preloaded where the machine's pages have 64 KiB, in which the shim can't tell words of 4 KiB apart."""
    return f"{shared_library('large_pages')}:{remote.environment()['LD_PRELOAD']}"


def test_larger_pages_refuse_managed_memory_and_say_so(remote: Remote, build: Build, large_pages: str) -> None:
    done = remote.run(build("remoting/unmanaged/refused"), LD_PRELOAD=large_pages)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    assert done.stderr == (
        "farbus: managed memory is not supported over remoting on a machine whose pages do not have 4 KiB; "
        "the attribute MANAGED_MEMORY is 0\n"
    )


def test_larger_pages_refuse_pinned_memory_as_managed_memory(remote: Remote, build: Build, large_pages: str) -> None:
    done = remote.run(
        build("remoting/rows"), LD_PRELOAD=large_pages, FARBUS_MAPPED_MEMORY="managed", FARBUS_TRANSPORT="tcp"
    )
    assert done.returncode != 0
    assert "FARBUS_MAPPED_MEMORY=managed needs a machine whose pages have 4 KiB: unset it\n" in done.stderr
