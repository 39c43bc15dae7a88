"""The output of tasks: limits, order, following, the end of the disk."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from farbus.agent import logs as logs_module
from farbus.agent.logs import LogStore
from farbus.errors import InvalidInput, NotFound
from farbus.linux import output
from farbus.linux.keeper import OutputLog
from farbus.linux.output import Piece, Position, read_pieces
from farbus.linux.processes import FakeChild, FakeProcesses, Program


def store(directory: Path, *, limit: int = 2**20, total: int = 2**30) -> LogStore:
    return LogStore(directory, limit_bytes_per_task=limit, limit_bytes=total)


def writer_of(logs: LogStore, job: str = "j1") -> OutputLog:
    """Make a log and return what its keeper writes with."""
    return OutputLog(str(logs.create(job, "main.0")), limit_bytes=logs.limit_bytes_per_task)


async def until_term(child: FakeChild) -> int:
    return await child.next_signal()


async def live(logs: LogStore) -> FakeChild:
    """Start a program whose output is in the store."""
    output = logs.create("j1", "main.0")
    door = FakeProcesses({"until_term": until_term})
    child = await door.spawn(
        Program(
            name="t", what="t", argv=("until_term",), environment={}, output=str(output),
            output_bytes=logs.limit_bytes_per_task,
        )
    )  # fmt: skip
    assert isinstance(child, FakeChild)
    logs.attach("j1", "main.0", child)
    return child


def segments(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


async def read(logs: LogStore, job: str = "j1", *, follow: bool = False) -> list[tuple[int, bytes]]:
    return [(chunk.stream, chunk.data) async for chunk in logs.read(job, "main.0", follow=follow)]


async def test_streams_come_back_in_the_order_they_were_written(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer = writer_of(logs)
    for stream, data in [(1, b"a"), (1, b"b"), (2, b"c"), (1, b"d")]:
        writer.append(stream, data)
    assert await read(logs) == [(1, b"ab"), (2, b"c"), (1, b"d")]
    writer.close()
    assert await read(store(tmp_path)) == [(1, b"ab"), (2, b"c"), (1, b"d")]


async def test_the_oldest_output_goes_first_and_is_said_to_be_gone(tmp_path: Path) -> None:
    logs = store(tmp_path, limit=8000)
    writer = writer_of(logs)
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
    writer = writer_of(logs)
    writer.append(1, b"x" * 300_000)
    writer.close()
    assert await read(logs) == [(1, b"x" * 300_000)]


async def test_a_follower_sees_what_comes_and_ends_with_the_task(tmp_path: Path) -> None:
    logs = store(tmp_path)
    child = await live(logs)
    following = asyncio.create_task(read(logs, follow=True))
    await asyncio.sleep(0)
    child.write(b"one")
    await asyncio.sleep(0)
    child.write(b"two", stream=2)
    child.signal(15)
    assert await following == [(1, b"one"), (2, b"two")]


async def test_a_reader_goes_on_from_the_position_of_its_last_chunk(tmp_path: Path) -> None:
    logs = store(tmp_path, limit=800)
    writer = writer_of(logs)
    for number in range(20):
        writer.append(1 + number % 2, b"line %06d\n" % number)
    chunks = [chunk async for chunk in logs.read("j1", "main.0", follow=False)]
    for number, chunk in enumerate(chunks, start=1):
        rest = [one async for one in logs.read("j1", "main.0", follow=False, position=chunk.position)]
        assert rest == chunks[number:]


async def test_a_log_without_its_program_is_read_to_its_end(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer_of(logs).append(1, b"all there is")
    assert await read(store(tmp_path), follow=True) == [(1, b"all there is")]


async def test_a_follower_waits_for_a_program_that_has_not_begun(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer = writer_of(logs)
    following = asyncio.create_task(read(logs, follow=True))
    await asyncio.sleep(0)
    assert not following.done()
    writer.append(1, b"at last")
    logs.ended("j1", "main.0")
    assert await following == [(1, b"at last")]


async def test_a_note_follows_what_is_there(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer_of(logs).append(1, b"output\n")
    logs.note("j1", "main.0", "note\n")
    assert await read(logs) == [(1, b"output\n"), (2, b"note\n")]


async def test_a_reader_that_is_overtaken_goes_on_with_what_is_kept(tmp_path: Path) -> None:
    logs = store(tmp_path, limit=800)
    writer = writer_of(logs)
    writer.append(1, b"first\n")
    chunks = logs.read("j1", "main.0", follow=False)
    assert (await anext(chunks)).data == b"first\n"
    for number in range(100):
        writer.append(1, b"line %06d\n" % number)
    rest = [chunk.data async for chunk in chunks]
    assert rest[0] == b"[farbus: older output was dropped]\n"
    assert rest[-1].endswith(b"line 000099\n")


async def test_a_segment_that_goes_while_it_is_looked_for_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = store(tmp_path, limit=800)
    writer = writer_of(logs)
    for number in range(20):
        writer.append(1, b"line %06d\n" % number)
    first, *rest = segments(tmp_path)
    listed = output.segments

    def listed_before_it_goes(directory: Path) -> list[int]:
        numbers = listed(directory)
        first.unlink(missing_ok=True)
        return numbers

    monkeypatch.setattr(output, "segments", listed_before_it_goes)
    chunks = await read(logs)
    assert rest
    assert chunks[0] == (2, b"[farbus: older output was dropped]\n")
    assert chunks[-1][1].endswith(b"line 000019\n")
    assert len([data for _, data in chunks if data == chunks[0][1]]) == 1


async def test_half_a_record_at_the_end_is_left_out(tmp_path: Path) -> None:
    logs = store(tmp_path)
    writer = writer_of(logs)
    writer.append(1, b"whole")
    writer.append(1, b"cut in the middle")
    writer.close()
    (file,) = segments(tmp_path)
    os.truncate(file, os.stat(file).st_size - 3)
    assert await read(logs) == [(1, b"whole")]


async def test_a_full_disk_loses_output_and_says_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = store(tmp_path)
    writer = writer_of(logs)
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
        writer = writer_of(logs, f"j{number}")
        writer.append(1, b"x" * 1000)
        writer.close()
        logs.ended(f"j{number}", "main.0")
        os.utime(segments(tmp_path / f"j{number}")[0], (number, number))
    logs.create("j9", "main.0")
    assert sorted(os.listdir(tmp_path)) == ["j2", "j3", "j9"]


async def test_logs_of_earlier_agents_count_and_those_of_running_tasks_stay(tmp_path: Path) -> None:
    first = store(tmp_path)
    for number in range(4):
        writer = writer_of(first, f"j{number}")
        writer.append(1, b"x" * 1000)
        writer.close()
        os.utime(segments(tmp_path / f"j{number}")[0], (number, number))
    logs = store(tmp_path, total=2500)
    await attached(logs, "j0")
    await logs.look()
    assert sorted(os.listdir(tmp_path)) == ["j0", "j2", "j3"]


async def test_what_is_no_log_of_ours_stays(tmp_path: Path) -> None:
    """A link in the directory's place leads anywhere, perhaps to /var/log."""
    other = tmp_path / "nginx" / "sites"
    other.mkdir(parents=True)
    (other / "access.log").write_bytes(b"x" * 1000)
    writer_of(store(tmp_path), "j0").append(1, b"x" * 1000)
    await store(tmp_path, total=0).look()
    assert sorted(os.listdir(tmp_path)) == ["nginx"]
    assert (other / "access.log").exists()


async def attached(logs: LogStore, job: str) -> None:
    """Let a task of a job run on."""
    door = FakeProcesses({"until_term": until_term})
    child = await door.spawn(Program(name="t", what="t", argv=("until_term",), environment={}))
    logs.attach(job, "main.0", child)


async def test_logs_without_output_are_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.agent.logs.MAX_LOGS", 2)
    logs = store(tmp_path)
    for number in range(4):
        logs.create(f"j{number}", "main.0")
        logs.ended(f"j{number}", "main.0")
    assert sorted(os.listdir(tmp_path)) == ["j2", "j3"]


async def test_a_start_looks_at_no_log_of_another_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = store(tmp_path)
    for number in range(4):
        writer_of(logs, f"j{number}").append(1, b"x")
        logs.ended(f"j{number}", "main.0")
    looked = set()
    scan = os.scandir

    def note(path: Path) -> object:
        looked.add(Path(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", note)
    logs.create("j9", "main.0")
    logs.ended("j9", "main.0")
    assert looked == {tmp_path / "j9" / "main.0"}


async def test_what_is_too_much_goes_in_several_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.agent.logs.REMOVED_AT_ONCE", 1)
    for number in range(4):
        writer = writer_of(store(tmp_path), f"j{number}")
        writer.append(1, b"x" * 1000)
        writer.close()
    await store(tmp_path, total=0).look()
    assert os.listdir(tmp_path) == []


async def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="can't name a file"):
        store(tmp_path).create("../j1", "main.0")
    with pytest.raises(NotFound, match="no output is kept"):
        await read(store(tmp_path))


async def test_the_output_of_several_tasks_comes_together_and_says_whose_it_is(tmp_path: Path) -> None:
    logs = store(tmp_path)
    for task, text in (("main.0", b"zero"), ("main.1", b"one")):
        writer = OutputLog(str(logs.create("j1", task)), limit_bytes=2**20)
        writer.append(1, text)
        writer.append(2, text)
        writer.close()
        logs.ended("j1", task)
    # One never began.
    positions = dict.fromkeys(("main.0", "main.1", "main.2"), 0)
    chunks = [chunk async for chunk in logs.read_several("j1", positions, follow=True)]
    found = {task: [chunk for chunk in chunks if chunk.task == task] for task in positions}
    assert [[(each.stream, each.data) for each in found[task]] for task in positions] == [
        [(1, b"zero"), (2, b"zero")],
        [(1, b"one"), (2, b"one")],
        [],
    ]
    first = {"main.0": found["main.0"][0].position, "main.1": found["main.1"][1].position}
    rest = [chunk async for chunk in logs.read_several("j1", first, follow=False)]
    assert rest == found["main.0"][1:]


async def test_of_several_tasks_one_has_some_of_its_output_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = store(tmp_path)
    tasks = [f"main.{number}" for number in range(5)]
    for task in tasks:
        writer = OutputLog(str(logs.create("j1", task)), limit_bytes=2**20)
        writer.append(1, b"some")
        writer.close()
        logs.ended("j1", task)
    looked: list[Path] = []

    def look(directory: Path, position: Position) -> list[Piece]:
        looked.append(directory)
        return read_pieces(directory, position)

    monkeypatch.setattr(logs_module, "read_pieces", look)
    chunks = logs.read_several("j1", dict.fromkeys(tasks, 0), follow=False)
    assert (await anext(chunks)).task == "main.0"
    for _ in range(20):
        await asyncio.sleep(0)
    # What was given is gone, one is in the middle and one waits for room there: the others have not looked yet.
    assert len(set(looked)) <= 3
    assert {chunk.task async for chunk in chunks} == set(tasks[1:])
