"""A supervisor ends when it is told to, whichever of its threads the kernel tells."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remoting.test_failures import PATIENCE_S

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_TGKILL = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine)


@pytest.fixture
def supervisor(libcuda: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """One that listens, and the pipe that it lives by."""
    secret, secret_end = os.pipe()
    life, life_end = os.pipe()
    os.write(secret_end, bytes(32))
    os.close(secret_end)
    options = ["--libcuda", str(libcuda), "--secret-fd", str(secret), "--life-fd", str(life)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.remoting.supervisor", *options],
        pass_fds=(secret, life),
        stdout=subprocess.PIPE,
    )
    os.close(secret)
    os.close(life)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening ")
        yield process, life_end
    finally:
        process.kill()
        process.communicate()
        os.close(life_end)


def test_any_thread_may_be_told(supervisor: tuple[subprocess.Popen[bytes], int]) -> None:
    process, _ = supervisor
    threads = sorted(int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir())
    other = next(thread for thread in threads if thread != process.pid)
    if SYS_TGKILL is None:
        pytest.skip("the number of tgkill(2) is not known here")
    assert LIBC.syscall(SYS_TGKILL, process.pid, other, int(signal.SIGTERM)) == 0
    assert process.wait(PATIENCE_S) == 0


def test_it_ends_with_who_it_lives_by(supervisor: tuple[subprocess.Popen[bytes], int]) -> None:
    process, life_end = supervisor
    other = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, life_end)
    os.close(other)
    assert process.wait(PATIENCE_S) == 0
