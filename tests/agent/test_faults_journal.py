"""An agent whose journal was damaged between two of its lives: set aside, and the node looked at instead."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from farbus.agent.config import AgentConfig
from farbus.agent.daemon import serve
from farbus.agent.journal import Journal
from farbus.api.v1 import session_pb2
from farbus.errors import FarbusError
from tests.agent.harness import MYSELF, AgentInProcess, AgentProcess, ScriptedScheduler

pytestmark = pytest.mark.timeout(60)

STEPS = 200


async def record(path: Path) -> None:
    """Make a journal of several pages, as kill -9 leaves it: with its log beside it."""
    living = path.with_name("living.db")
    journal, _ = await Journal.open(living, boot_id="boot-1")
    for number in range(STEPS):
        serial = await journal.started(object=f"lease l{number}", action="PrepareDevices", body="{}", at=1.0)
        await journal.completed(serial, error="", at=2.0)
    for suffix in ("", "-wal"):
        shutil.copy(f"{living}{suffix}", f"{path}{suffix}")
    await journal.close()


def overwrite(path: Path) -> None:
    path.write_bytes(b"not a database " * 1000)
    # A log beside it would have all pages of so small a journal, and bring it back.
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def damage_a_page(path: Path) -> None:
    # Checkpointed first: the log would cover the damage.
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with path.open("r+b") as file:
        file.seek(2 * 4096 + 100)
        file.write(b"\xff" * 3000)


def is_there(path: str) -> bool:
    return Path(path).exists()


def shorten(path: str, by_bytes: int) -> None:
    os.truncate(path, os.path.getsize(path) - by_bytes)


def put_a_directory(path: Path) -> None:
    path.unlink()
    (path / "something").mkdir(parents=True)


def put_something_else(path: Path) -> None:
    overwrite(path)
    path.unlink()
    with sqlite3.connect(path) as connection:
        # Of the name that ours has.
        connection.execute("CREATE TABLE step (name TEXT)")
    connection.close()


def drop_a_column(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript("DROP TABLE step; CREATE TABLE step (name TEXT)")
    connection.close()


@pytest.mark.parametrize("spoil", [overwrite, damage_a_page, put_a_directory, put_something_else, drop_a_column])
async def test_a_damaged_journal_is_set_aside_whole(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "journal.db"
    await record(path)
    spoil(path)
    # SQLite takes up a log that lies beside what is a database, but not beside a directory.
    log = is_there(f"{path}-wal") and path.is_dir()
    journal, aside = await Journal.open(path, boot_id="boot-1")
    assert is_there(aside)
    assert is_there(f"{aside}-wal") == log
    assert not await journal.sequences()
    await journal.started(object="lease l1", action="PrepareDevices", body="{}", at=3.0)
    await journal.close()
    again, nothing = await Journal.open(path, boot_id="boot-1")
    assert (len(await again.sequences()), nothing) == (1, "")
    await again.close()


async def test_each_damaged_journal_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    kept = set()
    for _ in range(3):
        overwrite(path)
        journal, aside = await Journal.open(path, boot_id="boot-1")
        await journal.close()
        kept.add(aside)
    assert len(kept) == 3


@pytest.mark.parametrize("cut", [1, 4096, 3 * 4120 + 32 + 7])
async def test_of_a_truncated_log_what_is_whole_is_kept(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.db"
    await record(path)
    shorten(f"{path}-wal", cut)
    journal, aside = await Journal.open(path, boot_id="boot-1")
    steps = [record for sequence in await journal.sequences() for record in sequence]
    await journal.close()
    assert not aside
    assert 0 < len(steps) <= STEPS
    assert [step.id for step in steps] == list(range(1, len(steps) + 1))


async def test_an_empty_file_is_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.touch()
    journal, aside = await Journal.open(path, boot_id="boot-1")
    assert (await journal.sequences(), aside) == ((), "")
    await journal.close()


async def test_a_journal_of_a_newer_version_is_left_alone(config: AgentConfig, tmp_path: Path) -> None:
    path = Path(config.state) / "journal.db"
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(FarbusError, match="of a newer version of Farbus") as refused:
        await serve(config)
    assert "run that version" in refused.value.hint
    assert path.read_bytes() == before


async def test_an_agent_that_lost_its_journal_cleans_up_what_it_finds(
    config: AgentConfig, scheduler: ScriptedScheduler, agent: AgentInProcess, tmp_path: Path
) -> None:
    sessions = scheduler.sessions
    first = await AgentProcess.start(config, tmp_path)
    try:
        await sessions.connected()
        script = session_pb2.StartTask(
            job_id="j1", task="main.0", user=MYSELF, cwd="/", command=("sh", "-c", "echo $$; exec sleep 1000")
        )
        assert (await sessions.command(start_task=script)).ok
        program = psutil.Process(int(await sessions.log_has("j1", b"\n")))
    finally:
        await first.kill()
    overwrite(Path(config.state) / "journal.db")
    agent.start(config)
    await sessions.connected(hellos=2)
    # Either it is gone, or it is the agent's again, and said to be.
    told = {task.job_id: task.status.state for task in sessions.hellos[1].tasks}
    if told.get("j1") != "running":
        _, alive = await asyncio.to_thread(psutil.wait_procs, [program], 10)
        assert not alive
    assert "journal.db.broken-1" in os.listdir(config.state)
