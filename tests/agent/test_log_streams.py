"""Logs that a session reads: how many at a time, and whose."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from farbus.agent import log_streams, logs
from farbus.agent.log_streams import LogStreams
from farbus.agent.logs import LogStore
from farbus.api.v1 import session_pb2


class Reading:
    """One session's logs, of a task whose program has not begun: whoever follows it waits."""

    def __init__(self, directory: Path) -> None:
        store = LogStore(directory, limit_bytes_per_task=2**20, limit_bytes=2**20)
        store.create("j1", "main.0")
        self.logs = store
        self.refused: list[tuple[str, str]] = []
        self.sent: list[session_pb2.LogData] = []
        self.streams = LogStreams(logs=store, send=self._send, refuse=self._refuse)

    async def _send(self, message: session_pb2.NodeMessage) -> None:
        self.sent.append(message.log_data)

    def _refuse(self, message: session_pb2.NodeMessage) -> None:
        assert message.log_data.end
        self.refused.append((message.log_data.request_id, message.log_data.error))

    def ask(self, number: str, user: str) -> None:
        request = session_pb2.LogRequest(request_id=number, job_id="j1", task="main.0", follow=True, user=user)
        self.streams.start(request)


@pytest_asyncio.fixture
async def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reading]:
    monkeypatch.setattr(log_streams, "MAX_LOG_STREAMS", 3)
    monkeypatch.setattr(log_streams, "MAX_LOG_STREAMS_PER_USER", 2)
    reading = Reading(tmp_path)
    yield reading
    reading.streams.cancel_all()


async def test_no_user_takes_the_readers_of_the_others(reading: Reading) -> None:
    for number in ("1", "2", "3"):
        reading.ask(number, "ada")
    reading.ask("4", "eve")
    ((number, error),) = reading.refused
    assert number == "3"
    assert error.startswith("user ada reads 2 logs of this node already, the most that one user may; end one of them")


async def test_a_log_that_is_not_read_any_more_makes_room(reading: Reading) -> None:
    reading.ask("1", "ada")
    reading.ask("2", "ada")
    ending = reading.streams._streams["1"].task
    reading.streams.cancel("1")
    await asyncio.wait((ending,))
    reading.ask("3", "ada")
    assert not reading.refused


async def test_all_readers_together_are_limited(reading: Reading) -> None:
    for number, user in enumerate(("ada", "bob", "eve", "ann")):
        reading.ask(str(number), user)
    assert reading.refused == [("3", "3 logs of this node are being read; try again later")]


async def test_a_scheduler_that_does_not_tell_users_is_held_to_the_limit_of_all(reading: Reading) -> None:
    for number in range(4):
        reading.ask(str(number), "")
    assert [number for number, _ in reading.refused] == ["3"]


async def test_a_number_in_use_is_refused(reading: Reading) -> None:
    reading.ask("1", "ada")
    reading.ask("1", "eve")
    assert reading.refused == [("1", "log request 1 is being served already; ask under another number")]


async def test_a_task_that_never_began_has_no_log(reading: Reading) -> None:
    reading.streams.start(session_pb2.LogRequest(request_id="1", job_id="j2", task="main.0"))
    await asyncio.wait((reading.streams._streams["1"].task,))
    (said,) = reading.sent
    assert said.end
    assert said.missing
    assert said.error.startswith("task j2/main.0: no output is kept on this node")


async def test_all_tasks_of_a_job_are_one_stream(reading: Reading) -> None:
    reading.logs.ended("j1", "main.0")
    for task in ("main.1", "main.2", "main.3"):
        reading.logs.create("j1", task)
        reading.logs.note("j1", task, f"of {task}")
        reading.logs.ended("j1", task)
    tasks = dict.fromkeys(("main.0", "main.1", "main.2", "main.3"), 0)
    reading.streams.start(session_pb2.LogRequest(request_id="1", job_id="j1", tasks=tasks, user="ada"))
    await asyncio.wait((reading.streams._streams["1"].task,))
    assert reading.refused == []
    *said, end = reading.sent
    assert sorted((each.chunk.task, each.chunk.data) for each in said) == [
        (task, f"of {task}".encode()) for task in ("main.1", "main.2", "main.3")
    ]
    assert (end.end, end.error) == (True, "")


async def test_a_log_that_the_disk_does_not_give_back_ends_with_why(reading: Reading, tmp_path: Path) -> None:
    # Instead of a disk that fails: what can't be read either.
    os.mkdir(tmp_path / "j1" / "main.0" / "00000001.log")
    reading.streams.start(session_pb2.LogRequest(request_id="1", job_id="j1", task="main.0"))
    await asyncio.wait((reading.streams._streams["1"].task,))
    (said,) = reading.sent
    assert (said.end, said.missing) == (True, False)
    assert said.error == "task j1/main.0: its output can't be read: Is a directory"


async def test_a_log_whose_reading_is_a_defect_ends_too(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*_: object) -> list[object]:
        raise ValueError("planted")

    monkeypatch.setattr(logs, "read_pieces", planted)
    reading.streams.start(session_pb2.LogRequest(request_id="1", job_id="j1", task="main.0"))
    await asyncio.wait((reading.streams._streams["1"].task,))
    assert reading.refused == [("1", "task j1/main.0: a defect: ValueError('planted')")]
