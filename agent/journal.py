"""The agent's journal: what was started, what was completed with which result, in which boot.

A *sequence* is what is done to one object, step by step, and later taken back
in reverse; its records share a number.  What a restarted agent needs to go on
stands in the records: the values of the sequence, and each step's result.

SQLite in WAL mode with synchronous=FULL: a record that :meth:`started` or
:meth:`completed` has returned for is on the disk.  One thread writes, so the
event loop never waits for it.  Lease secrets are never written.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from farbus.agent.names import ROOM, ROOM_FENCES
from farbus.errors import FarbusError, Unavailable
from farbus.model.job import TaskStatus
from farbus.model.value import Value, from_json, to_json

SCHEMA_VERSION = 2

KEPT_STEPS = 10_000
"""Completed steps kept as history."""

LAUNCH = "LaunchTask"
"""Action of the record around the start of a program whose files had to arrive first."""

PRUNE_INTERVAL = 256
"""Records between two removals of old history."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS step (
    id INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL,
    object TEXT NOT NULL,
    action TEXT NOT NULL,
    body TEXT NOT NULL,
    started_at REAL NOT NULL,
    completed_at REAL,
    error TEXT,
    sequence INTEGER NOT NULL DEFAULT 0,
    position INTEGER NOT NULL DEFAULT 0,
    length INTEGER NOT NULL DEFAULT 1,
    direction TEXT NOT NULL DEFAULT 'forward',
    lasting INTEGER NOT NULL DEFAULT 0,
    result TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX IF NOT EXISTS step_by_object ON step (object, id);
CREATE INDEX IF NOT EXISTS step_by_sequence ON step (sequence);
CREATE TABLE IF NOT EXISTS ended_task (
    job TEXT NOT NULL,
    task TEXT NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (job, task)
) STRICT;
CREATE TABLE IF NOT EXISTS fence (
    device TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL
) STRICT;
"""

# Version 1 knew one step for each piece of work, named by its direction, and kept no results.
_FROM_VERSION_1 = """
ALTER TABLE step ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE step ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
ALTER TABLE step ADD COLUMN length INTEGER NOT NULL DEFAULT 1;
ALTER TABLE step ADD COLUMN direction TEXT NOT NULL DEFAULT 'forward';
ALTER TABLE step ADD COLUMN lasting INTEGER NOT NULL DEFAULT 0;
ALTER TABLE step ADD COLUMN result TEXT NOT NULL DEFAULT '{}';
UPDATE step SET direction = 'back', action = 'PrepareDevices' WHERE action = 'UnprepareDevices';
UPDATE step SET direction = 'back', action = 'PrepareClient' WHERE action = 'UnprepareClient';
UPDATE step SET direction = 'back', action = 'StartTask' WHERE action = 'StopTask';
UPDATE step SET direction = 'ended', action = 'StartTask' WHERE action IN ('RecordExit', 'ForgetTask');
UPDATE step SET sequence = coalesce(
    (SELECT max(id) FROM step AS first
     WHERE first.object = step.object AND first.direction = 'forward' AND first.id <= step.id),
    id);
"""

# Of objects that are no more all steps may go; of others those of the last sequence stay.
_PRUNE = """
DELETE FROM step WHERE completed_at IS NOT NULL AND id <= ? AND (
    sequence < (SELECT max(sequence) FROM step AS later WHERE later.object = step.object)
    OR EXISTS (
        SELECT 1 FROM step AS last WHERE last.sequence = step.sequence AND last.completed_at IS NOT NULL AND (
            last.direction = 'ended'
            OR (last.direction = 'back' AND last.position = 0 AND last.error = '' AND last.action != 'StartTask')
            OR (last.direction = 'forward' AND last.error != '' AND last.action = 'StartTask')
        )
    )
)
"""

_COLUMNS = (
    "id, sequence, position, length, direction, boot_id, object, action, body, lasting, result,"
    " completed_at IS NOT NULL, coalesce(error, '')"
)

T = TypeVar("T")


class Direction(enum.StrEnum):
    """Which way a step was gone."""

    FORWARD = "forward"
    BACK = "back"
    ENDED = "ended"
    """Neither: what the sequence had made has ended by itself, as programs do."""


class Record(Value, frozen=True, kw_only=True):
    """One step as it was recorded.

    ``object`` is what the whole sequence is about (``lease L``, ``client
    J/T``, ``task J/T``), ``action`` the step's kind, ``body`` the values, as
    JSON, from which the sequence can be made again.  ``result`` is what the
    step gave, as JSON; ``error`` is empty until it is completed, and then says
    why it failed, if it did.
    """

    id: int
    sequence: int
    position: int
    length: int
    direction: Direction
    boot_id: str
    object: str
    action: str
    body: str
    lasting: bool
    result: str
    completed: bool
    error: str = ""

    @property
    def succeeded(self) -> bool:
        """Say whether it is done, and without an error."""
        return self.completed and not self.error


Sequence = tuple[Record, ...]
"""All records of one object's last sequence, in the order of their start."""


class Journal:
    """The journal in one file.  Methods may be awaited from one event loop.

    ``refused`` is called with the reason when the disk does not take a record.
    """

    def __init__(self, connection: sqlite3.Connection, writer: ThreadPoolExecutor, boot_id: str) -> None:
        self._connection = connection
        self._writer = writer
        self._boot_id = boot_id
        self.refused: Callable[[str], None] = _nobody_asks
        self._pruned_at = 0

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

    async def started(
        self,
        *,
        object: str,
        action: str,
        body: str,
        at: float,
        sequence: int = 0,
        position: int = 0,
        length: int = 1,
        direction: Direction = Direction.FORWARD,
        lasting: bool = False,
    ) -> int:
        """Record that a step starts; return the record's number.  ``at`` is wall time.

        Without ``sequence`` it begins one, which is named by the record's number.
        """

        def write(connection: sqlite3.Connection) -> int:
            row = connection.execute(
                "INSERT INTO step (boot_id, object, action, body, started_at, sequence, position, length, direction,"
                " lasting) VALUES (?, ?, ?, ?, ?,"
                # The next row's number: one thread alone writes, and the newest row is never pruned.
                " coalesce(?, (SELECT coalesce(max(id), 0) + 1 FROM step)), ?, ?, ?, ?)",
                (
                    self._boot_id, object, action, body, at, sequence or None, position, length, direction.value,
                    int(lasting),
                ),
            )  # fmt: skip
            assert row.lastrowid is not None
            return row.lastrowid

        return await self._write(f"started {direction} {action}", write)

    async def completed(self, number: int, *, error: str, at: float, result: str = "{}") -> None:
        """Record how a step has ended: an empty ``error`` and its result, or why it failed."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE step SET completed_at = ?, error = ?, result = ? WHERE id = ?", (at, error, result, number)
            )
            self._prune(connection)

        await self._write("completed", write)

    async def task_launching(self, job: str, task: str, *, at: float) -> int:
        """Record that a task's files have arrived and its program is started now; return the record's number.

        From now on it may have run; once the record is completed, it has.
        """
        name = f"task {job}/{task}"

        def write(connection: sqlite3.Connection) -> int:
            row = connection.execute(
                "INSERT INTO step (boot_id, object, action, body, started_at, position, sequence)"
                " VALUES (?, ?, ?, '{}', ?, 1, (SELECT max(sequence) FROM step WHERE object = ?))",
                (self._boot_id, name, LAUNCH, at, name),
            )
            assert row.lastrowid is not None
            return row.lastrowid

        return await self._write("task launching", write)

    async def task_ended(self, job: str, status: TaskStatus, *, at: float) -> None:
        """Keep a task's status until the scheduler lets it go."""
        data = to_json(status).decode()

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.execute(
                    "INSERT OR REPLACE INTO ended_task (job, task, status) VALUES (?, ?, ?)", (job, status.task, data)
                )
                self._mark_ended(connection, job, status.task, data, at)
            self._prune(connection)

        await self._write("task ended", write)

    async def task_forgotten(self, job: str, task: str, *, at: float) -> None:
        """Drop a task's status."""

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.execute("DELETE FROM ended_task WHERE job = ? AND task = ?", (job, task))
                self._mark_ended(connection, job, task, "{}", at)
            self._prune(connection)

        await self._write("task forgotten", write)

    async def sequence_ended(self, object: str, *, action: str, at: float) -> None:
        """Record that nothing is left of an object's last sequence; ``action`` is the kind of its first step."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO step (boot_id, object, action, body, started_at, completed_at, error, direction, sequence)"
                " SELECT ?, object, ?, '{}', ?, ?, '', 'ended', max(sequence) FROM step WHERE object = ?"
                " GROUP BY object",
                (self._boot_id, action, at, at, object),
            )
            self._prune(connection)

        await self._write("sequence ended", write)

    def _mark_ended(self, connection: sqlite3.Connection, job: str, task: str, data: str, at: float) -> None:
        name = f"task {job}/{task}"
        connection.execute(
            "INSERT INTO step (boot_id, object, action, body, started_at, completed_at, error, direction, sequence)"
            " VALUES (?, ?, 'StartTask', ?, ?, ?, '', 'ended', coalesce("
            "(SELECT max(sequence) FROM step WHERE object = ?), (SELECT coalesce(max(id), 0) + 1 FROM step)))",
            (self._boot_id, name, data, at, at, name),
        )

    def _prune(self, connection: sqlite3.Connection) -> None:
        """Remove old history when enough has been written since the last time, by whomever."""
        (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM step").fetchone()
        if newest >= self._pruned_at + PRUNE_INTERVAL:
            connection.execute(_PRUNE, (newest - KEPT_STEPS,))
            self._pruned_at = newest

    async def fence(self, epochs: Mapping[str, int]) -> None:
        """Keep the least epoch that is not stale yet, for each device."""

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany(
                    "INSERT INTO fence (device, epoch) VALUES (?, ?)"
                    " ON CONFLICT (device) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                    list(epochs.items()),
                )
                if any(device.startswith(ROOM) for device in epochs):
                    connection.execute(
                        "DELETE FROM fence WHERE device LIKE :room AND rowid NOT IN"
                        " (SELECT rowid FROM fence WHERE device LIKE :room ORDER BY rowid DESC LIMIT :kept)",
                        {"room": f"{ROOM}%", "kept": ROOM_FENCES},
                    )

        await self._write("fence", write)

    async def fences(self) -> dict[str, int]:
        """Return the least epoch that is not stale yet, by device."""
        return dict(
            await self._run(lambda connection: connection.execute("SELECT device, epoch FROM fence").fetchall())
        )

    async def ended_tasks(self) -> tuple[tuple[str, TaskStatus], ...]:
        """Return (job, status) of the tasks whose status is kept."""
        rows = await self._run(
            lambda connection: connection.execute("SELECT job, status FROM ended_task ORDER BY job, task").fetchall()
        )
        return tuple((job, from_json(status, TaskStatus)) for job, status in rows)

    async def sequences(self) -> tuple[Sequence, ...]:
        """Return the last sequence of each object, in the order of their start."""
        rows = await self._run(
            lambda connection: connection.execute(
                f"SELECT {_COLUMNS} FROM step WHERE sequence IN (SELECT max(sequence) FROM step GROUP BY object)"  # noqa: S608
                " ORDER BY sequence, id"
            ).fetchall()
        )
        records = [_record(row) for row in rows]
        return tuple(tuple(group) for _, group in itertools.groupby(records, key=lambda record: record.sequence))

    async def check(self) -> None:
        """Write something that changes nothing; raise :class:`Unavailable` where the disk does not take it."""
        await self._run(lambda connection: connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}"))

    async def _write(self, what: str, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Write one record; every record goes through here, so that tests can stop the world around each."""
        try:
            return await self._run(operation)
        except Unavailable as error:
            self.refused(str(error))
            raise

    async def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        def attempt() -> T:
            try:
                return operation(self._connection)
            except sqlite3.Error as error:
                raise Unavailable(f"journal: {error}", hint="is the disk full or read-only?") from error

        return await asyncio.get_running_loop().run_in_executor(self._writer, attempt)


def _nobody_asks(_reason: str) -> None:
    """Do nothing: :attr:`Journal.refused` before there is somebody who wants to know."""


def _record(row: tuple[Any, ...]) -> Record:
    number, sequence, position, length, direction, boot, name, action, body, lasting, result, completed, error = row
    return Record(
        id=number,
        sequence=sequence,
        position=position,
        length=length,
        direction=Direction(direction),
        boot_id=boot,
        object=name,
        action=action,
        body=body,
        lasting=bool(lasting),
        result=result,
        completed=bool(completed),
        error=error,
    )


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make the block's statements one transaction; outside of it each is its own, durable when it returns."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        # A full disk has ended it already (sqlite.org/lang_transaction.html).
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _open(path: Path) -> tuple[sqlite3.Connection, str]:
    try:
        return _connect(path), ""
    except sqlite3.DatabaseError as error:
        # OperationalError (disk, permission) is one too; only damage is worth a new start.
        if isinstance(error, sqlite3.OperationalError) and not str(error).startswith("no such "):
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
        if version == 0 and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise sqlite3.DatabaseError("it is a database of something else")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise sqlite3.DatabaseError(health)
        if version == 1:
            connection.executescript(f"BEGIN IMMEDIATE;{_FROM_VERSION_1}PRAGMA user_version = 2;COMMIT;")
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
