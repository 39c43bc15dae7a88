"""The audit log: who did what to what, with what outcome; one line of JSON each.

A record is on the disk before its caller hears that the call is done.  What
arrives while a batch is being written shares the next one and its fsync.  The
file is rotated by size; several processes may append to one log.  A line
names calls, objects and people, never what a call carried.  Who calls more
often than a limit has one line a minute for the rest, so that nobody can push
what others did out of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from farbus.model.value import Value

_log = logging.getLogger(__name__)

FILE_NAME = "audit.jsonl"

MAX_FILE_BYTES = 16 * 2**20
"""Size at which a file is put aside: some 60,000 records."""

KEPT_FILES = 8
"""Files that were put aside and are kept."""

MAX_TEXT = 512
"""Characters of a name or an error in a record: callers choose them."""

LINES_PER_HOUR = 2_000
"""Records of their own that one caller gets: some ten days at this rate fill the log, and people are slower."""

NODE_LINES_PER_HOUR = 5_000
"""The same of all users that one node vouches for, since it chooses their names."""

REFUSALS_PER_HOUR = 5_000
"""The same of refused calls of everybody together."""

MAX_COUNTED = 4_096
"""Callers counted one by one; those who come later in the same hour share one count."""

SUM_INTERVAL_S = 60.0
"""How long calls beyond a limit are gathered before a line sums them up; a process that is killed loses these."""

SEVERAL = "several"
"""Who called, in a line that sums up the calls of more than one."""


class AuditRecord(Value, frozen=True, kw_only=True):
    """One call that changed something, or was refused."""

    at: str
    """When it ended: RFC 3339, UTC."""
    who: str
    role: str = ""
    node: str = ""
    """The node that vouched for who called."""
    peer: str = ""
    """The address it came from."""
    method: str
    target: str = ""
    outcome: str
    """``ok``, ``refused``, ``failed``; ``left`` where it was cut off before; ``begun`` in a stream's first line."""
    error: str = ""
    omitted: int = 0
    """How many calls beyond a limit this record stands for; 0 for a call's own."""


def now_text() -> str:
    """Return the present moment as records have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bounded(text: str) -> str:
    """Return ``text`` as a record may have it: on one line, not too long."""
    return "".join(each if each.isprintable() else " " for each in text)[:MAX_TEXT]


class _Counted(NamedTuple):
    """Whose records are counted together."""

    who: str
    role: str = ""
    node: str = ""


class AuditLog:
    """The log at ``path``, written from one event loop."""

    def __init__(self, path: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = path
        self._max_file_bytes = max_file_bytes
        self._waiting: list[tuple[AuditRecord, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._trouble = ""
        self._hour = -1
        self._counts: Counter[_Counted] = Counter()
        self._sums: Counter[tuple[_Counted, str, str]] = Counter()
        """Calls beyond a limit since the last sum: by whose limit it was, method and outcome."""
        self._timer: asyncio.TimerHandle | None = None

    async def record(self, record: AuditRecord) -> None:
        """Return once ``record`` is on the disk, or counted where it is beyond a limit.

        A disk that refuses is told in the log of the process, and ends no
        call: what was asked for has been done already.
        """
        written = self.post(record)
        if written is not None:
            await written

    def post(self, record: AuditRecord) -> asyncio.Future[None] | None:
        """Have ``record`` written, also if nobody waits for it; None for one beyond a limit."""
        exceeded = self._exceeded(record)
        if exceeded is None:
            return self._put(record)
        self._sums[exceeded, record.method, record.outcome] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SUM_INTERVAL_S, self.sum_up)
        return None

    def _exceeded(self, record: AuditRecord) -> _Counted | None:
        """Count a record; say whose limit it is beyond, and count nothing, where it is beyond one."""
        hour = int(asyncio.get_running_loop().time() // 3600)
        if hour != self._hour:
            self._hour = hour
            self._counts.clear()
        caller = _Counted(record.who, record.role, record.node)
        if caller not in self._counts and len(self._counts) >= MAX_COUNTED:
            caller = _Counted(SEVERAL)
        limits = {caller: LINES_PER_HOUR}
        if record.node:
            limits[_Counted(SEVERAL, node=record.node)] = NODE_LINES_PER_HOUR
        if record.outcome == "refused":
            limits[_Counted(SEVERAL, role="refused")] = REFUSALS_PER_HOUR
        for counted, limit in limits.items():
            if self._counts[counted] >= limit:
                return counted
        self._counts.update(limits.keys())
        return None

    def sum_up(self) -> None:
        """Have written what has been gathered of calls beyond their limits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sums, self._sums = self._sums, Counter()
        for (counted, method, outcome), number in sums.items():
            self._put(
                AuditRecord(
                    at=now_text(),
                    who=counted.who,
                    role=counted.role,
                    node=counted.node,
                    method=method,
                    outcome=outcome,
                    omitted=number,
                )
            )

    async def close(self) -> None:
        """Write what is left; nothing may be posted any more."""
        self.sum_up()
        while self._writing is not None:
            await asyncio.wait({self._writing})

    def _put(self, record: AuditRecord) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="audit")
        return written

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                trouble = ""
                try:
                    await asyncio.to_thread(
                        append_records, self.path, [record for record, _ in batch], max_file_bytes=self._max_file_bytes
                    )
                except OSError as error:
                    trouble = f"{self.path}: {error.strerror}"
                if trouble and trouble != self._trouble:
                    _log.error("audit records lost: %s", trouble)
                self._trouble = trouble
                for _, written in batch:
                    if not written.done():
                        written.set_result(None)
        finally:
            self._writing = None


def append_records(path: Path, records: Sequence[AuditRecord], *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
    """Append to the log at ``path`` and wait for the disk; put the file aside first when it is full."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path, max_file_bytes) as descriptor:
        data = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            # A process died while it wrote: what it began stays a line of its own.
            data = b"\n" + data
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)


@contextlib.contextmanager
def _locked(path: Path, max_file_bytes: int) -> Iterator[int]:
    """Open the file that has the name now, alone; one that is full is put aside."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            ours, named = os.fstat(descriptor), path.stat()
            if (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino):
                if ours.st_size < max_file_bytes:
                    yield descriptor
                    return
                _put_aside(path)
        except FileNotFoundError:
            # Another process put it aside between open and stat.
            continue
        finally:
            os.close(descriptor)


def _put_aside(path: Path) -> None:
    for number in range(KEPT_FILES, 0, -1):
        older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(older, path.with_name(f"{path.name}.{number}"))


def read_records(path: Path, *, since: str = "") -> Iterator[AuditRecord]:
    """Yield the records of a log from ``since`` (RFC 3339, UTC) on, oldest first; half-written lines are left out."""
    for number in range(KEPT_FILES, -1, -1):
        part = path if number == 0 else path.with_name(f"{path.name}.{number}")
        with contextlib.suppress(FileNotFoundError), open(part, "rb") as file:
            for line in file:
                with contextlib.suppress(msgspec.MsgspecError):
                    record = msgspec.json.decode(line, type=AuditRecord)
                    if record.at >= since:
                        yield record
