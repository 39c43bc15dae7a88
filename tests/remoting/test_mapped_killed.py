"""Program or server is killed while pinned memory that both have is made, mapped, used by kernels and released: nothing
is left behind, who is left is told by the error of a lost session and no other, and the next program works."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remoting.harness import SANITIZER, Remote, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until
from tests.remoting.test_mapped import no_room

#: Where a process is killed: at which of the calls of that name since its context began, and whether behind it.
Point = tuple[str, int, bool]

#: Of a server; four pieces to each of four rounds of each thread.
SERVER: list[Point] = [
    *((call, at, behind) for call in ("mmap", "mremap", "munmap") for at in (1, 5) for behind in (False, True)),
    *(("recvmsg", at, True) for at in (1, 2, 6)),
    *(
        (call, at, at == 1)
        for call in (
            *("cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuMemHostUnregister", "cuCtxSynchronize"),
            *("cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuMemsetD32Async", "cuMemcpyHtoD_v2"),
        )
        for at in (1, 3)
    ),
]
#: Of a program, whose pieces move to where its server has room.
PROGRAM: list[Point] = [
    *((call, 1, False) for call in ("memfd_create", "fallocate", "sendmsg", "mremap", "munmap")),
    *((call, at, True) for call in ("memfd_create", "mmap", "sendmsg", "mremap", "munmap") for at in (1, 6)),
]
THREADS = "2"


@pytest.fixture
def killed_at(shared_library: Callable[..., Path], tmp_path: Path) -> Callable[[Point], dict[str, str]]:
    """What ends the first process there that has it in its environment, and comes that far."""

    def environment(point: Point) -> dict[str, str]:
        call, at, behind = point
        once = tmp_path / "once"
        once.touch()
        return {
            "LD_PRELOAD": f"{SANITIZER}:{shared_library('killing', '-ldl')}".lstrip(":"),
            "FARBUS_TEST_KILL": f"{call} {at} {'behind' if behind else 'before'}",
            "FARBUS_TEST_KILL_ONCE": str(once),
        }

    return environment


def of_sessions() -> list[str]:
    """Memory of sessions that this process, the supervisor's, has, or that has a name."""
    found = os.listdir("/dev/shm")
    for entry in os.listdir("/proc/self/fd"):
        # The one that reads the folder is gone.
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return sorted(name for name in found if any(f"farbus-remoting-{each}" in name for each in ("pinned", "session")))


@contextlib.contextmanager
def leaving_nothing(remote: Remote, program: Path, *arguments: str) -> Iterator[None]:
    """What is run meanwhile leaves nothing, and the next program works."""
    before = of_sessions()
    yield
    wait_until(lambda: not remote.supervisor.pids, "its server has ended")
    assert of_sessions() == before
    again = remote.run(program, *arguments, FARBUS_TRANSPORT="shm")
    assert (again.returncode, again.stdout, again.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("point", SERVER, ids=lambda point: "-".join(map(str, point)))
def test_a_killed_server_is_lost_and_nothing_else(
    killed_at: Callable[[Point], dict[str, str]], driver_before: Callable[[str], Path], tmp_path: Path, point: Point
) -> None:
    program, driver = build_calls("listing/mapped_killed", tmp_path), driver_before("killing_driver")
    with (
        remote_session(libcuda=driver, folder=tmp_path, environment=killed_at(point)) as remote,
        leaving_nothing(remote, program, THREADS, "files"),
    ):
        done = remote.run(program, THREADS, "files", FARBUS_TRANSPORT="shm")
        assert (done.returncode, done.stdout) == (0, "lost\n"), done.stderr
        (line,) = done.stderr.splitlines()
        assert "was killed by signal 9 (SIGKILL)); every CUDA call now fails" in line


@no_room
@pytest.mark.parametrize("point", PROGRAM, ids=lambda point: "-".join(map(str, point)))
def test_a_killed_program_leaves_nothing_and_the_next_works(
    killed_at: Callable[[Point], dict[str, str]], driver_before: Callable[[str], Path], tmp_path: Path, point: Point
) -> None:
    program, driver = build_calls("listing/mapped_killed", tmp_path), driver_before("crowded_driver")
    with (
        remote_session(libcuda=driver, folder=tmp_path, environment={}) as remote,
        leaving_nothing(remote, program, THREADS),
    ):
        changes = killed_at(point)
        changes["LD_PRELOAD"] = f"{remote.environment()['LD_PRELOAD']}:{changes['LD_PRELOAD']}".lstrip(":")
        done = remote.run(program, THREADS, FARBUS_TRANSPORT="shm", **changes)
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
