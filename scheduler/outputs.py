"""What tasks have put out: a list of files for each, below ``JOB/TASK.json``; the contents are kept elsewhere.

``JOB/.TASK.part`` lists what has come of an output that is being sent, or
whose sending broke off: a line for each file that was begun (without its
digest), and one for each that is whole.  All methods but those that only look
into the index work in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from farbus.errors import Unavailable
from farbus.model.staging import StagedFile
from farbus.model.value import Value
from farbus.scheduler.contents import Key, user_directory

MAX_NOTES = 100_000
"""Lines about an output that is being sent: those of five attempts with as many files as there may be."""

NOTES_AT_ONCE = 256
NOTE_EVERY_BYTES = 16 * 2**20
"""After so many files, or bytes in them, notes are written: what a scheduler that is killed may get a second time."""


class TaskOutput(Value, frozen=True, kw_only=True):
    """What a task has put out, as it is kept."""

    user: str
    task: str
    at: float
    files: tuple[StagedFile, ...]


class _Summary(Value, frozen=True, kw_only=True):
    """What is remembered of a list."""

    user: str
    at: float
    files: int
    bytes: int


class Outputs:
    """All lists below ``base``; :meth:`load` comes first."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._index: dict[str, dict[str, _Summary]] = {}
        self._files: Counter[str] = Counter()
        """In all lists of each user."""
        self._loading = asyncio.Lock()
        self._loaded = False

    async def load(self) -> None:
        """Read what an earlier process has left, once."""
        async with self._loading:
            if not self._loaded:
                for job_id, tasks in (await asyncio.to_thread(self._read_index)).items():
                    self._index[job_id] = {}
                    for task, summary in tasks.items():
                        self._add(job_id, task, summary)
                self._loaded = True

    def _read_index(self) -> dict[str, dict[str, _Summary]]:
        directories = sorted(self._base.iterdir()) if self._base.exists() else ()
        return {
            directory.name: {output.task: _summary(output) for output in self._lists(directory)}
            for directory in directories
        }

    # --- the index -----------------------------------------------------------------------

    def jobs(self) -> tuple[tuple[str, float], ...]:
        """Return the jobs that have put something out, and when each did last."""
        return tuple(
            (job, max((each.at for each in tasks.values()), default=0.0)) for job, tasks in self._index.items()
        )

    def bytes_of(self, job_id: str, *, besides: str) -> int:
        """Return the bytes that the tasks of a job have put out, without one of them."""
        return sum(each.bytes for task, each in self._index.get(job_id, {}).items() if task != besides)

    def files_of(self, user: str) -> int:
        """Return how many files stand in the lists of a user's jobs."""
        return self._files[user]

    def _add(self, job_id: str, task: str, summary: _Summary | None) -> None:
        """Put a list into the index in the place of an earlier one, or take it out."""
        tasks = self._index.setdefault(job_id, {})
        if (earlier := tasks.pop(task, None)) is not None:
            self._files[earlier.user] -= earlier.files
        if summary is not None:
            tasks[task] = summary
            self._files[summary.user] += summary.files

    # --- lists ---------------------------------------------------------------------------

    async def write(self, job_id: str, output: TaskOutput) -> None:
        """Keep what a task has put out; it is there as a whole, or not at all."""
        await asyncio.to_thread(self._write, job_id, output)
        self._add(job_id, output.task, _summary(output))

    def _write(self, job_id: str, output: TaskOutput) -> None:
        directory = self._directory(job_id)
        partial = directory / f".{output.task}"
        with open(partial, "wb") as file:
            file.write(msgspec.json.encode(output))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, directory / f"{output.task}.json")
        self._notes(job_id, output.task).unlink(missing_ok=True)

    def _directory(self, job_id: str) -> Path:
        directory = self._base / job_id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory

    async def read(self, job_id: str) -> tuple[TaskOutput, ...]:
        """Return what a job has put out, in the order of its tasks' names."""
        return await asyncio.to_thread(lambda: tuple(self._lists(self._base / job_id)))

    def _lists(self, directory: Path) -> Iterator[TaskOutput]:
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(directory.glob("[!.]*.json")):
                with contextlib.suppress(msgspec.MsgspecError):
                    yield msgspec.json.decode(path.read_bytes(), type=TaskOutput)

    async def keys(self, job_id: str, user: str, *, since: float) -> set[Key]:
        """Return the contents that a job's outputs name, and those of one that was being sent ``since`` then."""
        return await asyncio.to_thread(self._keys, self._base / job_id, user_directory(user), since)

    def _keys(self, directory: Path, owner: str, since: float) -> set[Key]:
        keys = {(user_directory(each.user), file.sha256) for each in self._lists(directory) for file in each.files}
        for path in directory.glob(".*.part"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime >= since:
                    keys |= {(owner, file.sha256) for file in _read_notes(path).values() if file.sha256}
        return keys

    async def remove(self, job_id: str) -> None:
        """Forget what a job has put out."""
        for task in tuple(self._index.get(job_id, ())):
            self._add(job_id, task, None)
        self._index.pop(job_id, None)
        await asyncio.to_thread(shutil.rmtree, self._base / job_id, ignore_errors=True)

    # --- what is being sent --------------------------------------------------------------

    def _notes(self, job_id: str, task: str) -> Path:
        return self._base / job_id / f".{task}.part"

    async def begun(self, job_id: str, task: str) -> dict[str, StagedFile]:
        """Return what has come of a task's output, by path; without a digest what was only begun."""
        return await asyncio.to_thread(_read_notes, self._notes(job_id, task))

    @contextlib.asynccontextmanager
    async def sending(self, job_id: str, task: str, *, wall: Callable[[], float]) -> AsyncIterator[Notes]:
        """Note what comes of a task's output, for a call that goes on where this one breaks off."""
        self._index.setdefault(job_id, {})
        await asyncio.to_thread(self._directory, job_id)
        notes = Notes(self._notes(job_id, task))
        try:
            yield notes
        finally:
            await notes.end(wall())


class Notes:
    """What has come of one task's output, line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[StagedFile] = []
        self._waiting_bytes = 0

    async def begin(self, file: StagedFile) -> None:
        """Note a file that begins."""
        self._waiting.append(file)
        await self._write()

    async def add(self, file: StagedFile) -> None:
        """Note a file that has come."""
        self._waiting.append(file)
        self._waiting_bytes += file.size
        if len(self._waiting) >= NOTES_AT_ONCE or self._waiting_bytes >= NOTE_EVERY_BYTES:
            await self._write()

    async def end(self, at: float) -> None:
        """Write what is left, and when that was."""
        if self._waiting:
            await self._write()
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(os.utime, self._path, (at, at))

    async def _write(self) -> None:
        lines = b"".join(msgspec.json.encode(file) + b"\n" for file in self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        await asyncio.to_thread(_append, self._path, lines)


def _append(path: Path, lines: bytes) -> None:
    try:
        with open(path, "ab") as notes:
            notes.write(lines)
    except OSError as error:
        raise Unavailable(f"the scheduler can't note a file: {error.strerror}", hint="ask its operator") from error


def _read_notes(path: Path) -> dict[str, StagedFile]:
    found: dict[str, StagedFile] = {}
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return found
    if len(lines) > MAX_NOTES:
        path.unlink(missing_ok=True)
        return found
    for line in lines:
        # The last one may be half of one, where a process died: that file comes again.
        with contextlib.suppress(msgspec.MsgspecError):
            file = msgspec.json.decode(line, type=StagedFile)
            found[file.path] = file
    return found


def _summary(output: TaskOutput) -> _Summary:
    return _Summary(
        user=output.user, at=output.at, files=len(output.files), bytes=sum(file.size for file in output.files)
    )
