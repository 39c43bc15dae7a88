"""A SQLite file with one writer thread, committed in groups.

Everything that touches the database runs in that thread, in the order in
which it was submitted; what is waiting when a transaction begins shares it,
so that a burst of a thousand small writes costs one fsync.  A future is
resolved after the commit.  A write that fails (disk full, I/O error, another
scheduler) breaks the store for good: the scheduler must then stop, and what
the file holds is the truth.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from farbus.errors import FarbusError, InvalidInput
from farbus.linux.files import FileLock

MAX_BATCH = 4_096
"""Works that share a transaction, so that the first of them does not wait for ever."""
BUSY_TIMEOUT_S = 5.0
"""How long a foreign lock on the file (a backup, a shell) is waited for."""
T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_Queued = tuple[Work[Any], "concurrent.futures.Future[Any]", bool]


class Store:
    """One open database; see the module.

    ``schema`` makes a new file, in the format numbered one more than there
    are ``upgrades``: each makes the next format of an older file.

    Raises :class:`Conflict` when another process has it open,
    :class:`FarbusError` when it can't be read.
    """

    def __init__(self, path: Path, schema: str, *, upgrades: Sequence[str] = ()) -> None:
        self.path = path
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._check: Work[None] | None = None
        self._failure: FarbusError | None = None
        self._lock = _lock(path)
        try:
            begun = self._lock.noted == _BEGUN
            if begun:
                _check_there(path)
            self._connection = _open(path, schema, upgrades, begun=begun)
            # A full disk at the first start leaves this out, until the next one.
            self._lock.note(_BEGUN)
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._serve, name="ledger", daemon=True)
        self._thread.start()

    def guard(self, check: Work[None]) -> None:
        """Run ``check`` at the start of each transaction; what it raises breaks the store."""
        self._check = check

    def submit(self, work: Work[T]) -> concurrent.futures.Future[T]:
        """Have ``work`` done within a transaction; the future holds its result once committed."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._queue.put((work, future, False))
        return future

    def read(self, work: Work[T]) -> concurrent.futures.Future[T]:
        """Like :meth:`submit`, for a work that writes nothing: its failure is only its caller's."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._queue.put((work, future, True))
        return future

    def close(self) -> None:
        """Commit what was submitted and let go of the file."""
        self._queue.put(None)
        self._thread.join()
        self._connection.close()
        self._lock.release()

    def _serve(self) -> None:
        ended = False
        while not ended:
            batch: list[_Queued] = []
            item = self._queue.get()
            while item is not None:
                batch.append(item)
                if len(batch) == MAX_BATCH:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            ended = item is None
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[_Queued]) -> None:
        batch = [queued for queued in batch if queued[1].set_running_or_notify_cancel()]
        results: list[Any] = []
        if self._failure is None:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                if self._check is not None:
                    self._check(self._connection)
                for work, _, reads in batch:
                    try:
                        results.append(work(self._connection))
                    except Exception as error:
                        if not reads:
                            raise
                        results.append(_Failed(_as_farbus_error(error, self.path)))
                self._connection.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                self._failure = _as_farbus_error(error, self.path)
        for index, (_, future, _) in enumerate(batch):
            if self._failure is not None:
                future.set_exception(self._failure)
            elif isinstance(results[index], _Failed):
                future.set_exception(results[index].error)
            else:
                future.set_result(results[index])


@dataclasses.dataclass(frozen=True, slots=True)
class _Failed:
    error: FarbusError


_BEGUN = b"begun\n"
"""What is noted in the lock once the database was made."""


def _lock(path: Path) -> FileLock:
    """Take the lock file beside the database."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FarbusError(f"can't make {path.parent}: {error.strerror}", hint="choose another --state") from error
    return FileLock(path.with_suffix(".lock"), what=f"the ledger {path}")


def _check_there(path: Path) -> None:
    """Refuse to begin anew where a database was: a lost ledger would grant devices that are in use."""
    try:
        lost = "" if path.stat().st_size else "is empty"
    except FileNotFoundError:
        lost = "is gone"
    if lost:
        raise _lost(path, lost)


def _lost(path: Path, how: str) -> FarbusError:
    return FarbusError(
        f"the ledger {path} {how}, though a scheduler has used this directory",
        hint=f"restore it from a backup; to count the devices' epochs from zero instead, "
        f"remove {path.with_suffix('.lock')}",
    )


def _open(path: Path, schema: str, upgrades: Sequence[str], *, begun: bool) -> sqlite3.Connection:
    try:
        # The secrets of leases are in it: the mode is set before the first byte is written,
        # and SQLite gives its -wal and -shm files the same.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise FarbusError(f"can't open the ledger {path}: {error.strerror}", hint="choose another --state") from error
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)
    try:
        # First of all: what is not ours, or not yet, is not to be touched.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        current = len(upgrades) + 1
        if version > current:
            raise FarbusError(
                f"the ledger {path} was written by a newer version of Farbus (format {version})",
                hint="upgrade this scheduler",
            )
        if version == 0 and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise FarbusError(f"{path} is a database of something else than a scheduler", hint="choose another --state")
        with contextlib.suppress(PermissionError):
            path.chmod(0o600)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise sqlite3.DatabaseError(" ".join(health.split()))
        if version == 0 and begun:
            # What it held stood in the -wal file, which a copy of the database alone leaves behind.
            raise _lost(path, "holds nothing without its -wal file")
        if version == 0:
            connection.executescript(f"BEGIN; {schema}; PRAGMA user_version = {current}; COMMIT;")
        for older in range(version or current, current):
            connection.executescript(f"BEGIN; {upgrades[older - 1]}; PRAGMA user_version = {older + 1}; COMMIT;")
    except BaseException as error:
        connection.close()
        raise _as_farbus_error(error, path) from error
    return connection


def _as_farbus_error(error: BaseException, path: Path) -> FarbusError:
    if isinstance(error, FarbusError):
        return error
    if isinstance(error, sqlite3.OperationalError) and not str(error).startswith("no such "):
        return FarbusError(f"can't use the ledger {path}: {error}", hint="see that its disk has room and is writable")
    if isinstance(error, sqlite3.DatabaseError):
        return FarbusError(
            f"the ledger {path} is damaged: {error}",
            hint="restore it from a backup; a new one would count the devices' epochs from zero",
        )
    if isinstance(error, InvalidInput | ValueError | msgspec.MsgspecError):
        return FarbusError(f"the ledger {path} is damaged: {error}", hint="restore it from a backup")
    return FarbusError(f"defect while using the ledger {path}: {type(error).__name__}: {error}")
