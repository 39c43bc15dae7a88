"""The agent's journal: what was started, what was completed, in which boot.

SQLite in WAL mode with synchronous=FULL: a record that :meth:`started` or
:meth:`completed` has returned for is on the disk.  One thread writes, so the
event loop never waits for it.  Lease secrets are never written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from farbus.errors import FarbusError, Unavailable
from farbus.model.job import TaskStatus
from farbus.model.value import Value, from_json, to_json

SCHEMA_VERSION = 1

KEPT_STEPS = 10_000
"""Completed steps kept as history."""

PRUNE_INTERVAL = 256
"""Steps between two removals of old history."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS step (
    id INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL,
    object TEXT NOT NULL,
    action TEXT NOT NULL,
    body TEXT NOT NULL,
    started_at REAL NOT NULL,
    completed_at REAL,
    error TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS step_by_object ON step (object, id);
CREATE TABLE IF NOT EXISTS ended_task (
    job TEXT NOT NULL,
    task TEXT NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (job, task)
) STRICT;
"""

# Of objects that are no more all steps may go; of others all but the last.
_PRUNE = """
DELETE FROM step WHERE completed_at IS NOT NULL AND id <= ? AND (
    id < (SELECT max(id) FROM step AS later WHERE later.object = step.object)
    OR (error = '' AND action IN ('UnprepareDevices', 'UnprepareClient', 'ForgetTask'))
    OR (error != '' AND action = 'StartTask')
)
"""

_MARK = (
    "INSERT INTO step (boot_id, object, action, body, started_at, completed_at, error) VALUES (?, ?, ?, ?, ?, ?, '')"
)

T = TypeVar("T")


class Step(Value, frozen=True, kw_only=True):
    """A piece of work as it was recorded.

    ``object`` is what it was done to (``lease L``, ``client J/T``, ``task
    J/T``), ``action`` its kind, ``body`` its values as JSON.  ``error`` is
    None until it is completed, then empty or why it failed.
    """

    id: int
    boot_id: str
    object: str
    action: str
    body: str
    completed: bool
    error: str = ""


class Journal:
    """The journal in one file.  Methods may be awaited from one event loop."""

    def __init__(self, connection: sqlite3.Connection, writer: ThreadPoolExecutor, boot_id: str) -> None:
        self._connection = connection
        self._writer = writer
        self._boot_id = boot_id

    @classmethod
    async def open(cls, path: str | Path, *, boot_id: str) -> tuple[Journal, str]:
        """Open or make the journal; return it with the name under which a broken one was set aside, or an empty name.

        Raises :class:`Unavailable` when the file can't be made or written.
        """
        writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        try:
            connection, aside = await asyncio.get_running_loop().run_in_executor(writer, _open, Path(path))
        except BaseException:
            writer.shutdown()
            raise
        return cls(connection, writer, boot_id), aside

    async def close(self) -> None:
        """Write out what is in the log, and close."""
        await self._run(lambda connection: connection.close())
        self._writer.shutdown()

    async def started(self, *, object: str, action: str, body: str, at: float) -> int:
        """Record that work starts; return the record's number.  ``at`` is wall time."""

        def write(connection: sqlite3.Connection) -> int:
            row = connection.execute(
                "INSERT INTO step (boot_id, object, action, body, started_at) VALUES (?, ?, ?, ?, ?)",
                (self._boot_id, object, action, body, at),
            )
            assert row.lastrowid is not None
            return row.lastrowid

        return await self._run(write)

    async def completed(self, number: int, *, error: str, at: float) -> None:
        """Record how work has ended; an empty ``error`` for success."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE step SET completed_at = ?, error = ? WHERE id = ?", (at, error, number))
            if number % PRUNE_INTERVAL == 0:
                connection.execute(_PRUNE, (number - KEPT_STEPS,))

        await self._run(write)

    async def task_ended(self, job: str, status: TaskStatus, *, at: float) -> None:
        """Keep a task's status until the scheduler lets it go."""
        data = to_json(status).decode()

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.execute(
                    "INSERT OR REPLACE INTO ended_task (job, task, status) VALUES (?, ?, ?)", (job, status.task, data)
                )
                connection.execute(_MARK, (self._boot_id, f"task {job}/{status.task}", "RecordExit", data, at, at))

        await self._run(write)

    async def task_forgotten(self, job: str, task: str, *, at: float) -> None:
        """Drop a task's status."""

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.execute("DELETE FROM ended_task WHERE job = ? AND task = ?", (job, task))
                connection.execute(_MARK, (self._boot_id, f"task {job}/{task}", "ForgetTask", "{}", at, at))

        await self._run(write)

    async def ended_tasks(self) -> tuple[tuple[str, TaskStatus], ...]:
        """Return (job, status) of the tasks whose status is kept."""
        rows = await self._run(
            lambda connection: connection.execute("SELECT job, status FROM ended_task ORDER BY job, task").fetchall()
        )
        return tuple((job, from_json(status, TaskStatus)) for job, status in rows)

    async def last_steps(self) -> tuple[Step, ...]:
        """Return the last step of each object, in the order of their start."""
        rows = await self._run(
            lambda connection: connection.execute(
                "SELECT id, boot_id, object, action, body, completed_at IS NOT NULL, coalesce(error, '') FROM step"
                " WHERE id IN (SELECT max(id) FROM step GROUP BY object) ORDER BY id"
            ).fetchall()
        )
        return tuple(
            Step(
                id=number,
                boot_id=boot,
                object=name,
                action=action,
                body=body,
                completed=bool(completed),
                error=error,
            )
            for number, boot, name, action, body, completed, error in rows
        )

    async def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        def attempt() -> T:
            try:
                return operation(self._connection)
            except sqlite3.Error as error:
                raise Unavailable(f"journal: {error}", hint="is the disk full or read-only?") from error

        return await asyncio.get_running_loop().run_in_executor(self._writer, attempt)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make the block's statements one transaction; outside of it each is its own, durable when it returns."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _open(path: Path) -> tuple[sqlite3.Connection, str]:
    try:
        return _connect(path), ""
    except sqlite3.DatabaseError as error:
        # OperationalError (disk, permission) is one too; only damage is worth a new start.
        if isinstance(error, sqlite3.OperationalError):
            raise Unavailable(
                f"journal {path}: {error}", hint="is its directory writable, and room on its disk?"
            ) from error
        aside = _free_name(path)
        os.replace(path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{aside}{suffix}")
        return _connect(path), str(aside)


def _connect(path: Path) -> sqlite3.Connection:
    # Made first, with its mode: SQLite gives its other files the mode of this one.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except IsADirectoryError as error:
        raise sqlite3.DatabaseError("it is a directory") from error
    except OSError as error:
        raise Unavailable(f"journal {path}: {error.strerror}", hint="is its directory there and writable?") from error
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        # First of all: what a newer version wrote is not to be touched.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise FarbusError(
                f"journal {path}: of a newer version of Farbus ({version} > {SCHEMA_VERSION})",
                hint="run that version, or move the file away",
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise sqlite3.DatabaseError(health)
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_name(f"{path.name}.broken-{number}")).exists():
        number += 1
    return name
