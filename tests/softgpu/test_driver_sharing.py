"""A software GPU belongs to the node: processes share its memory, and killed ones leave nothing behind."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.softgpu.driver_programs import TIMEOUT_S, board_path, build, build_preload, environment

OPTIONS = "mem=64MiB"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return build("driver_hold_memory", tmp_path)


@contextmanager
def holder(program: Path, mebibytes: int, options: str = OPTIONS) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds memory until the block ends, and what it said of it."""
    process = subprocess.Popen(
        [str(program), str(mebibytes)],
        env=environment(str(program.parent), options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.communicate(timeout=TIMEOUT_S)


def test_memory_limit_is_shared(program: Path) -> None:
    with holder(program, 40) as (_, first):
        assert first == "64 CUDA_SUCCESS"
        with holder(program, 40) as (_, second):
            assert second == "24 CUDA_ERROR_OUT_OF_MEMORY"
        with holder(program, 24) as (_, third):
            assert third == "24 CUDA_SUCCESS"
    with holder(program, 64) as (_, alone):
        assert alone == "64 CUDA_SUCCESS"


def test_killed_process_gives_its_memory_back(program: Path) -> None:
    with holder(program, 8) as (_, witness):
        assert witness == "64 CUDA_SUCCESS"
        with holder(program, 40) as (victim, held):
            assert held == "56 CUDA_SUCCESS"
            victim.kill()
        with holder(program, 56) as (_, after):
            assert after == "56 CUDA_SUCCESS"


#: The program is opened before, as the tests' own files may lie there (.ci/in-memory).
SMALL_SHARED_MEMORY = (
    "unshare", "--mount", "sh", "-c",
    'exec 9<"$1" && shift && mount -t tmpfs -o size=8k tmpfs /dev/shm && exec /proc/self/fd/9 "$@"', "sh",
)  # fmt: skip


@pytest.mark.skipif(
    subprocess.run([*SMALL_SHARED_MEMORY, "/bin/true"], capture_output=True, check=False).returncode != 0,
    reason="no mounts of one's own (root)",
)
def test_full_shared_memory_is_an_error_and_no_signal(program: Path) -> None:
    done = subprocess.run(
        [*SMALL_SHARED_MEMORY, str(program), "8"], env=environment(str(program.parent), OPTIONS), input="",
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode > 0
    assert re.search(r"softgpu: /dev/shm/\S+: No space left on device; make room there\n", done.stderr), done.stderr


def test_stopped_process_keeps_its_memory(program: Path) -> None:
    with holder(program, 40) as (process, _):
        process.send_signal(19)
        try:
            with holder(program, 40) as (_, second):
                assert second == "24 CUDA_ERROR_OUT_OF_MEMORY"
        finally:
            process.send_signal(18)


def test_last_user_removes_the_board(program: Path) -> None:
    board = board_path(str(program.parent), program.parent)
    assert not board.exists()
    with holder(program, 8):
        with holder(program, 8):
            assert board.exists()
        assert board.exists()
    assert not board.exists()


def test_board_of_a_killed_user_is_taken_over_and_removed(program: Path) -> None:
    board = board_path(str(program.parent), program.parent)
    with holder(program, 40) as (victim, _):
        victim.kill()
    with holder(program, 64) as (_, after):
        assert after == "64 CUDA_SUCCESS"
        assert board.exists()
    assert not board.exists()


def test_board_of_a_killed_user_is_removed_by_any_other(program: Path) -> None:
    board = board_path(str(program.parent), program.parent)
    with holder(program, 8) as (victim, _):
        assert board.exists()
        victim.kill()
    subprocess.run(
        [str(program), "0"],
        env=environment(f"{program.parent}/another"),
        input="",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert not board.exists()


@pytest.mark.parametrize("call", ["posix_fallocate", "unlink"])
def test_process_killed_while_it_makes_or_removes_the_board_leaves_nothing(program: Path, call: str) -> None:
    board = board_path(str(program.parent), program.parent)
    preloaded = build_preload("killed_in_call", program.parent)
    victim = subprocess.run(
        [str(program), "8"],
        env=environment(str(program.parent), OPTIONS, LD_PRELOAD=str(preloaded), KILLED_IN=call),
        input="",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert victim.returncode == -signal.SIGKILL
    with holder(program, 64) as (_, after):
        assert after == "64 CUDA_SUCCESS"
    assert not list(board.parent.glob(f"{board.name}*"))


def test_model_in_use_wins_and_says_so(program: Path) -> None:
    with holder(program, 8):
        other = subprocess.run(
            [str(program), "0"],
            env=environment(str(program.parent), "mem=128MiB"),
            input="",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    assert other.stdout.split()[0] == "56"
    assert "in use with another model" in other.stderr


@pytest.mark.parametrize("setting", ["count", "cc", "mem", "sms", "workers", "watchdog_s", "grace_s", "strict"])
def test_refused_setting_is_told_with_what_it_can_be(program: Path, setting: str) -> None:
    refused = subprocess.run(
        [str(program), "0"],
        env=environment(str(program.parent), f"{setting}=99999999999999"),
        input="",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    first = refused.stderr.splitlines()[0]
    allowed = first.partition("(")[2]
    assert refused.returncode != 0
    assert f"{setting}=99999999999999 is not a value" in first
    assert setting in allowed
    assert allowed.endswith("0 or 1)")
