"""The output of tasks: limits, order, following, the end of the disk."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from farbus.agent.logs import LogStore
from farbus.errors import InvalidInput, NotFound


def store(directory: Path, *, limit: int = 2**20, total: int = 2**30) -> LogStore:
    return LogStore(directory, limit_bytes_per_task=limit, limit_bytes=total)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


async def read(logs: LogStore, job: str = "j1", *, follow: bool = False) -> list[tuple[int, bytes]]:
    return [(chunk.stream, chunk.data) async for chunk in logs.read(job, "main.0", follow=follow)]


async def test_streams_come_back_in_the_order_they_were_written(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer = logs.create("j1", "main.0")
    for stream, data in [(1, b"a"), (1, b"b"), (2, b"c"), (1, b"d")]:
        writer.append(stream, data)
    assert await read(logs) == [(1, b"ab"), (2, b"c"), (1, b"d")]
    writer.close()
    assert await read(store(tmp_path)) == [(1, b"ab"), (2, b"c"), (1, b"d")]


async def test_the_oldest_output_goes_first_and_is_said_to_be_gone(tmp_path: Path) -> None:
    logs = store(tmp_path, limit=8000)
    writer = logs.create("j1", "main.0")
    for number in range(1000):
        writer.append(1, b"line %06d\n" % number)
    writer.close()
    chunks = await read(logs)
    assert chunks[0] == (2, b"[farbus: older output was dropped]\n")
    lines = b"".join(data for stream, data in chunks if stream == 1).splitlines()
    assert lines[-1] == b"line 000999"
    assert lines == sorted(lines)
    assert sum(file.stat().st_size for file in segments(tmp_path)) <= 8000 + 1100


async def test_a_large_record_is_read_whole(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer = logs.create("j1", "main.0")
    writer.append(1, b"x" * 300_000)
    writer.close()
    assert await read(logs) == [(1, b"x" * 300_000)]


async def test_a_follower_sees_what_comes_and_ends_with_the_task(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer = logs.create("j1", "main.0")
    following = asyncio.create_task(read(logs, follow=True))
    await asyncio.sleep(0)
    writer.append(1, b"one")
    await asyncio.sleep(0)
    writer.append(2, b"two")
    writer.close()
    assert await following == [(1, b"one"), (2, b"two")]


async def test_a_follower_that_is_overtaken_goes_on_with_what_is_kept(tmp_path: Path) -> None:
    logs = store(tmp_path, limit=800)
    writer = logs.create("j1", "main.0")
    writer.append(1, b"first\n")
    chunks = logs.read("j1", "main.0", follow=True)
    assert (await anext(chunks)).data == b"first\n"
    for number in range(100):
        writer.append(1, b"line %06d\n" % number)
    writer.close()
    rest = [chunk.data async for chunk in chunks]
    assert rest[-1].endswith(b"line 000099\n")


async def test_half_a_record_at_the_end_is_left_out(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer = logs.create("j1", "main.0")
    writer.append(1, b"whole")
    writer.append(1, b"cut in the middle")
    writer.close()
    (file,) = segments(tmp_path)
    os.truncate(file, os.stat(file).st_size - 3)
    assert await read(logs) == [(1, b"whole")]


async def test_a_full_disk_loses_output_and_says_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = store(tmp_path)
    writer = logs.create("j1", "main.0")
    writer.append(1, b"kept")
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    writer.append(1, b"lost output")
    monkeypatch.setattr(os, "write", real)
    writer.close()
    assert await read(logs) == [(1, b"kept"), (2, b"[farbus: 11 bytes of output lost: disk]\n")]


async def test_the_logs_that_ended_first_go_when_all_are_too_large(tmp_path: Path) -> None:
    logs = store(tmp_path, total=2500)
    for number in range(4):
        writer = logs.create(f"j{number}", "main.0")
        writer.append(1, b"x" * 1000)
        writer.close()
        os.utime(segments(tmp_path / f"j{number}")[0], (number, number))
    logs.create("j9", "main.0").close()
    assert sorted(os.listdir(tmp_path)) == ["j2", "j3", "j9"]


async def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="can't name a file"):
        store(tmp_path).create("../j1", "main.0")
    with pytest.raises(NotFound, match="no output is kept"):
        await read(store(tmp_path))
