"""The journal: what is written stays, damage is set aside, older versions are carried over."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import msgspec
import pytest

from farbus.agent.journal import Direction, Journal
from farbus.agent.names import ROOM
from farbus.errors import FarbusError, Unavailable
from farbus.model.job import TaskState, TaskStatus

BOOT = "8093f254-0000-4000-8000-000000000001"


async def test_the_journal_is_private(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id=BOOT)
    await journal.started(object="lease l1", action="PrepareDevices", body="{}", at=1.0)
    modes = {os.stat(entry).st_mode & 0o777 for entry in os.scandir(tmp_path)}
    await journal.close()
    assert modes == {0o600}


async def test_a_damaged_journal_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database" * 1000)
    journal, aside = await Journal.open(path, boot_id=BOOT)
    assert await journal.sequences() == ()
    await journal.close()
    assert aside == f"{path}.broken-1"


async def test_a_journal_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FarbusError, match="of a newer version of Farbus"):
        await Journal.open(path, boot_id=BOOT)


async def test_a_journal_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file or directory"):
        await Journal.open(tmp_path / "nowhere" / "journal.db", boot_id=BOOT)


async def test_history_is_bounded_and_what_is_held_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.agent.journal.KEPT_STEPS", 10)
    monkeypatch.setattr("farbus.agent.journal.PRUNE_INTERVAL", 4)
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id=BOOT)
    held = await journal.started(object="lease held", action="PrepareDevices", body="{}", at=1.0)
    await journal.completed(held, error="", at=1.0)
    for number in range(40):
        sequence = 0
        for direction in (Direction.FORWARD, Direction.BACK):
            step = await journal.started(
                object=f"lease l{number}",
                action="PrepareDevices",
                body="{}",
                at=1.0,
                sequence=sequence,
                direction=direction,
            )
            sequence = sequence or step
            await journal.completed(step, error="", at=1.0)
    sequences = await journal.sequences()
    await journal.close()
    assert sequences[0][0].object == "lease held"
    assert sum(len(records) for records in sequences) <= 16


async def test_history_is_bounded_though_the_rounds_of_its_records_never_end_with_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farbus.agent.journal.KEPT_STEPS", 10)
    monkeypatch.setattr("farbus.agent.journal.PRUNE_INTERVAL", 4)
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id=BOOT)
    for number in range(40):
        # Each task takes four records, and the fourth is none that is completed.
        for direction in (Direction.FORWARD, Direction.BACK):
            step = await journal.started(
                object=f"task j{number}/main.0", action="StartTask", body="{}", at=1.0, direction=direction
            )
            await journal.completed(step, error="", at=1.0)
        status = TaskStatus(task="main.0", state=TaskState.EXITED)
        await journal.task_ended(f"j{number}", status, at=1.0)
        await journal.task_forgotten(f"j{number}", "main.0", at=1.0)
    sequences = await journal.sequences()
    await journal.close()
    assert sum(len(records) for records in sequences) <= 16


async def test_a_sequence_is_its_records_in_order_and_only_the_last_one_counts(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id=BOOT)
    for _ in range(2):
        first = await journal.started(object="lease l1", action="Bind", body="{}", at=1.0, length=2)
        await journal.completed(first, error="", at=1.0, result='{"driver":"vfio"}')
        second = await journal.started(
            object="lease l1", action="Serve", body="{}", at=1.0, sequence=first, position=1, length=2, lasting=True
        )
    (records,) = await journal.sequences()
    await journal.close()
    assert [(one.id, one.action, one.position, one.completed, one.lasting) for one in records] == [
        (first, "Bind", 0, True, False),
        (second, "Serve", 1, False, True),
    ]
    assert records[0].result == '{"driver":"vfio"}'


async def test_fences_only_rise(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id=BOOT)
    await journal.fence({"GPU-1": 5, "GPU-2": 1})
    await journal.fence({"GPU-1": 4, "GPU-2": 2})
    assert await journal.fences() == {"GPU-1": 5, "GPU-2": 2}
    await journal.close()


async def test_of_the_fences_of_rooms_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.agent.journal.ROOM_FENCES", 2)
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id=BOOT)
    await journal.fence({"GPU-1": 1})
    for number in range(4):
        await journal.fence({f"{ROOM}l{number}": number})
    assert await journal.fences() == {"GPU-1": 1, f"{ROOM}l2": 2, f"{ROOM}l3": 3}
    await journal.close()


async def test_the_status_of_an_ended_task_is_kept_until_it_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    status = TaskStatus(task="main.0", state=TaskState.EXITED, node="n1", exit_code=3)
    later = msgspec.structs.replace(status, exit_code=4)
    other = TaskStatus(task="main.1", state=TaskState.EXITED, node="n1", exit_code=0)
    journal, _ = await Journal.open(path, boot_id=BOOT)
    await journal.started(object="task j1/main.0", action="StartTask", body="{}", at=1.0)
    await journal.task_ended("j1", status, at=2.0)
    # Said again, as after a restart: the last word counts.
    await journal.task_ended("j1", later, at=2.5)
    await journal.task_ended("j1", other, at=3.0)
    await journal.close()
    journal, _ = await Journal.open(path, boot_id=BOOT)
    assert await journal.ended_tasks() == (("j1", later), ("j1", other))
    # Each has a sequence, also the one that was never started here, and nothing of either is left to do.
    last = {sequence[-1].object: sequence[-1] for sequence in await journal.sequences()}
    assert {name: record.direction for name, record in last.items()} == {
        "task j1/main.0": Direction.ENDED,
        "task j1/main.1": Direction.ENDED,
    }
    assert all(record.succeeded for record in last.values())
    await journal.task_forgotten("j1", "main.0", at=4.0)
    await journal.close()
    journal, _ = await Journal.open(path, boot_id=BOOT)
    assert await journal.ended_tasks() == (("j1", other),)
    await journal.close()


async def test_an_ended_sequence_has_nothing_left(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal, _ = await Journal.open(path, boot_id=BOOT)
    step = await journal.started(object="lease l1", action="PrepareDevices", body="{}", at=1.0)
    await journal.completed(step, error="no such device", at=2.0)
    ((record,),) = await journal.sequences()
    assert (record.completed, record.succeeded) == (True, False)
    await journal.sequence_ended("lease l1", action="PrepareDevices", at=3.0)
    await journal.close()
    journal, _ = await Journal.open(path, boot_id=BOOT)
    ((first, last),) = await journal.sequences()
    assert (first.direction, last.direction) == (Direction.FORWARD, Direction.ENDED)
    # Of an object that has none, nothing ends.
    await journal.sequence_ended("lease l2", action="PrepareDevices", at=4.0)
    assert len(await journal.sequences()) == 1
    await journal.close()


# As version 1 wrote them: a lease that is held, one that was given up, a task that runs, one that has ended.
VERSION_1 = """
CREATE TABLE step (
    id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, object TEXT NOT NULL, action TEXT NOT NULL, body TEXT NOT NULL,
    started_at REAL NOT NULL, completed_at REAL, error TEXT
) STRICT;
CREATE INDEX step_by_object ON step (object, id);
CREATE TABLE ended_task (
    job TEXT NOT NULL, task TEXT NOT NULL, status TEXT NOT NULL, PRIMARY KEY (job, task)
) STRICT;
INSERT INTO step (boot_id, object, action, body, started_at, completed_at, error) VALUES
    ('b', 'lease l1', 'PrepareDevices', '{"serial":1}', 1.0, 2.0, ''),
    ('b', 'lease l2', 'PrepareDevices', '{"serial":2}', 1.0, 2.0, ''),
    ('b', 'lease l2', 'UnprepareDevices', '{"serial":3,"lease_id":"l2"}', 3.0, 4.0, ''),
    ('b', 'task j1/main.0', 'StartTask', '{"serial":4}', 1.0, 2.0, ''),
    ('b', 'task j1/main.0', 'StopTask', '{"serial":5}', 3.0, NULL, NULL),
    ('b', 'task j2/main.0', 'StartTask', '{"serial":6}', 1.0, 2.0, ''),
    ('b', 'task j2/main.0', 'RecordExit', '{}', 3.0, 3.0, '');
INSERT INTO ended_task VALUES ('j2', 'main.0', '{"task":"main.0","state":"exited","node":"n1","exit_code":3}');
PRAGMA user_version = 1;
"""


async def test_a_journal_of_version_1_is_carried_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(VERSION_1)
    connection.close()
    journal, aside = await Journal.open(path, boot_id=BOOT)
    found = {
        records[0].object: [(one.action, one.direction.value, one.completed) for one in records]
        for records in await journal.sequences()
    }
    ended = await journal.ended_tasks()
    await journal.close()
    assert aside == ""
    assert found == {
        "lease l1": [("PrepareDevices", "forward", True)],
        "lease l2": [("PrepareDevices", "forward", True), ("PrepareDevices", "back", True)],
        "task j1/main.0": [("StartTask", "forward", True), ("StartTask", "back", False)],
        "task j2/main.0": [("StartTask", "forward", True), ("StartTask", "ended", True)],
    }
    assert [(job, status.exit_code) for job, status in ended] == [("j2", 3)]
