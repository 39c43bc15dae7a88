"""Blocking calls in processes that can be left behind."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import psutil
import pytest

from farbus.errors import Conflict, Unavailable
from farbus.linux.disposable import run_disposable


def add(one: int, other: int) -> dict[str, int]:
    print("this is no part of the answer")
    return {"sum": one + other, "pid": os.getpid()}


def read_nothing(fifo: str) -> str:
    """Block, as a driver that does not answer does."""
    return Path(fifo).read_text()


def echo(name: str) -> str:
    return name


def refuse() -> None:
    raise Conflict("the device is in use", hint="stop its program")


def not_there() -> None:
    (Path("/") / "no" / "such" / "file").read_text()


def break_down() -> None:
    raise ValueError("a planted defect")


def vanish() -> None:
    os._exit(7)


def vanish_while_answering() -> None:
    # Beyond the standard ones it has one pipe, which takes its answer.
    (pipe,) = [one for one in range(3, 64) if _is_pipe(one)]
    os.write(pipe, b'{"value": ')
    os._exit(7)


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


async def test_a_call_is_made_in_another_process() -> None:
    answer = await run_disposable(add, 1, 2)
    assert answer["sum"] == 3
    assert answer["pid"] != os.getpid()


async def test_an_error_arrives_as_it_was_raised() -> None:
    with pytest.raises(Conflict, match="the device is in use; stop its program"):
        await run_disposable(refuse)
    with pytest.raises(FileNotFoundError, match="/no/such/file"):
        await run_disposable(not_there)


async def test_a_defect_and_a_death_are_told() -> None:
    with pytest.raises(Unavailable, match="break_down: ValueError: a planted defect"):
        await run_disposable(break_down)
    with pytest.raises(Unavailable, match="ended with 7 and no answer"):
        await run_disposable(vanish)
    with pytest.raises(Unavailable, match="ended with 7 and half an answer"):
        await run_disposable(vanish_while_answering)


async def test_names_that_are_no_utf_8_come_and_go(tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    assert await run_disposable(echo, name) == name
    with pytest.raises(FileNotFoundError) as caught:
        await run_disposable(read_nothing, name)
    assert caught.value.filename == name


async def test_a_call_that_blocks_is_left_behind(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    blocked = asyncio.create_task(run_disposable(read_nothing, str(fifo)))
    # Opened for reading by the child, and by nobody for writing.
    writer = await asyncio.to_thread(os.open, fifo, os.O_WRONLY)
    (child,) = [one for one in psutil.Process().children() if "disposable" in " ".join(one.cmdline())]
    blocked.cancel()
    await asyncio.gather(blocked, return_exceptions=True)
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [child], 20)
    os.close(writer)
    assert gone
