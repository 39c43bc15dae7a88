"""Files that jobs take along and put out, at the submitter's end."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from farbus.cli.jobfile import StageTable
from farbus.errors import Conflict, InvalidInput, NotFound
from farbus.model.quantity import format_bytes
from farbus.model.staging import CHUNK_BYTES, MAX_FILES, Manifest, StagedFile, check_files, check_path, digest
from farbus.model.value import Value

if TYPE_CHECKING:
    from farbus.api.staging import OutputFile, StagingClient

_READABLE = "give the path of a file that you can read"

TELL_EVERY_BYTES = 16 * 2**20
"""Bytes between two lines of progress on a terminal."""


class LocalFile(Value, frozen=True, kw_only=True):
    """A file here, and what it is in the job."""

    source: str
    staged: StagedFile


class Progress:
    """One line on a terminal that says how far it is; nothing elsewhere."""

    def __init__(self, verb: str, total: int) -> None:
        self._verb = verb
        self._total = total
        self._done = 0
        self._told = 0
        # A line that is written again and again takes a terminal that can do so.
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and total > TELL_EVERY_BYTES

    def add(self, size: int) -> None:
        """Count what has been done."""
        self._done += size
        if self._shown and (self._done - self._told >= TELL_EVERY_BYTES or self._done == self._total):
            self._told = self._done
            end = "\n" if self._done == self._total else ""
            share = f"{format_bytes(self._done)} of {format_bytes(self._total)}"
            sys.stderr.write(f"\r{self._verb} {share} \x1b[K{end}")
            sys.stderr.flush()


def parse_stage_in(word: str) -> StageTable:
    """Read ``FILE[:DEST]`` of the command line; raise :class:`InvalidInput` where it names no file."""
    source, colon, target = word.rpartition(":")
    if not colon or os.path.lexists(word):
        source, target = word, ""
    if not source:
        # As a variable that is not set leaves it: the whole directory is meant by nobody who does not say so.
        raise InvalidInput(f"--stage-in {word!r}: names no file", hint="give its path; . is this directory")
    return StageTable(source=source, to=target)


def find_files(tables: Sequence[StageTable], directory: Path) -> tuple[LocalFile, ...]:
    """Return the files that ``tables`` name, with their digests; relative paths begin at ``directory``.

    Raises :class:`NotFound` or :class:`InvalidInput` in one line that names the file.
    """
    found: list[tuple[str, str]] = []
    for table in tables:
        source = directory / table.source
        name = os.path.normpath(table.to) if table.to else os.path.basename(os.path.abspath(source))
        if table.to.endswith("/"):
            name = f"{name}/{os.path.basename(os.path.abspath(source))}"
        for path, target in _below(str(source), name):
            if len(found) == MAX_FILES:
                raise InvalidInput(f"{table.source}: more than {MAX_FILES} files", hint="pack them into an archive")
            found.append((path, target))
    progress = Progress("reading", sum(os.path.getsize(path) for path, _ in found))
    files = tuple(LocalFile(source=path, staged=_described(path, target, progress)) for path, target in found)
    check_files(tuple(file.staged for file in files))
    return files


def _below(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the regular files at and below a path, and what each is called in the job."""
    # Of directories too: there may be no end to how deep they go.
    check_path(target, what="stage_in")
    try:
        status = os.stat(source)
        if stat.S_ISREG(status.st_mode):
            yield source, target
        elif stat.S_ISDIR(status.st_mode):
            for name in sorted(os.listdir(source)):
                path = os.path.join(source, name)
                if os.path.islink(path) and os.path.isdir(path):
                    raise InvalidInput(f"stage_in {path}: leads to a directory", hint="name that directory itself")
                yield from _below(path, f"{target}/{name}")
        else:
            raise InvalidInput(f"stage_in {source}: is neither a file nor a directory", hint="leave it out")
    except OSError as error:
        raise NotFound(
            f"stage_in {source}: {error.strerror}", hint="give the path of a file that you can read"
        ) from error


def _described(path: str, target: str, progress: Progress) -> StagedFile:
    found, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            while data := file.read(CHUNK_BYTES):
                found.update(data)
                size += len(data)
                progress.add(len(data))
    except OSError as error:
        raise NotFound(
            f"stage_in {path}: {error.strerror}", hint="give the path of a file that you can read"
        ) from error
    return StagedFile(path=target, size=size, sha256=found.hexdigest(), executable=bool(mode & 0o100))


async def send_files(client: StagingClient, files: Sequence[LocalFile]) -> str:
    """Send what the scheduler does not have yet, and return the digest of the manifest."""
    manifest = Manifest(files=tuple(sorted((file.staged for file in files), key=lambda staged: staged.path)))
    encoded = manifest.encode()
    sources = {file.staged.sha256: file for file in files}
    missing = await client.missing([*sources, digest(encoded)])
    wanted = [(sources[sha256], received) for sha256, received in missing.items() if sha256 in sources]
    progress = Progress("sending", sum(file.staged.size - received for file, received in wanted))

    async def contents() -> AsyncIterator[tuple[str, int, int, bytes]]:
        for file, received in wanted:
            async for data in _pieces(file, received):
                yield file.staged.sha256, file.staged.size, received, data
                progress.add(len(data))
        for start in range(0, len(encoded), CHUNK_BYTES):
            yield digest(encoded), len(encoded), 0, encoded[start : start + CHUNK_BYTES]

    if missing:
        await client.put_files(contents())
    return digest(encoded)


async def _pieces(file: LocalFile, offset: int) -> AsyncIterator[bytes]:
    """Yield a file as it was described: what has been added since stays out, and less is told by the other side."""
    left = file.staged.size - offset
    with open(file.source, "rb") as opened:  # noqa: ASYNC230 - only looks the name up
        opened.seek(offset)
        if not left:
            yield b""
        while left and (data := await asyncio.to_thread(opened.read, min(left, CHUNK_BYTES))):
            left -= len(data)
            yield data
    if left:
        raise InvalidInput(f"stage_in {file.source}: became shorter while it was sent", hint="submit again")


async def fetch_output(
    client: StagingClient, job_id: str, directory: Path, *, by_task: bool, force: bool, tell: Callable[[str], None]
) -> int:
    """Fetch a job's output into ``directory``; return how many files came.

    With ``by_task`` each task's files go into a directory of its name.
    Files that are there with the same content stay, so that a fetch which
    broke off goes on where it was.  Raises :class:`Conflict` for one with
    another content.
    """
    files = await client.list_output(job_id)
    paths = [check_path(f"{file.task}/{file.path}" if by_task else file.path) for file in files]
    wanted = await asyncio.to_thread(_wanted, files, [directory / path for path in paths], force=force)
    progress = Progress("fetching", sum(files[index].size for index in wanted))
    if not wanted:
        return 0
    order = iter(wanted)
    # What a fetch that broke off has left of the first is gone on with.
    writer = await asyncio.to_thread(_Writer, directory, paths[wanted[0]], files[wanted[0]])
    try:
        asked = {index: files[index] for index in wanted}
        async for chunk in client.get_output(job_id, asked, offset=writer.received):
            if chunk.sha256:
                index = next(order)
                if chunk.sha256 != files[index].sha256:
                    # A scheduler of an earlier version goes by where the files stand in the list.
                    raise Conflict(f"job {job_id}: its files have changed since they were listed", hint="fetch again")
                if index != wanted[0]:
                    writer = await asyncio.to_thread(_Writer, directory, paths[index], files[index])
                if chunk.offset != writer.received:
                    await asyncio.to_thread(writer.begin_again)
                progress.add(writer.received)
            await asyncio.to_thread(writer.write, chunk.data)
            progress.add(len(chunk.data))
            if writer.is_whole:
                tell(writer.finish())
    finally:
        writer.drop()
    if next(order, None) is not None:
        raise InvalidInput(f"job {job_id}: not all of its files came", hint="fetch again: it goes on where it was")
    return len(wanted)


def _wanted(files: Sequence[OutputFile], targets: Sequence[Path], *, force: bool) -> list[int]:
    """Return which files are not here yet."""
    wanted = []
    for index, (file, target) in enumerate(zip(files, targets, strict=True)):
        if os.path.lexists(target):
            if _is_same(target, file):
                continue
            if not force:
                raise Conflict(f"{target}: is there already, with another content", hint="--force replaces it")
        wanted.append(index)
    return wanted


def _is_same(path: Path, file: OutputFile) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size:
        return False
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256


class _Writer:
    """Writes one file, which has its name when it is whole.

    Until then it is ``.farbus-DIGEST.part`` beside it, with which the next
    fetch goes on; another fetch at the same time gets a name of its own.
    """

    def __init__(self, directory: Path, path: str, file: OutputFile) -> None:
        self._file = file
        self._target = directory / path
        self.received = 0
        """Bytes that are here, from an earlier fetch or this one."""
        self._found = hashlib.sha256()
        try:
            self._make_parents(directory, path)
            self._opened: BinaryIO | None = self._open()
            self._go_on()
        except OSError as error:
            raise Conflict(f"{self._target}: {error.strerror}", hint="choose another directory with -C") from error

    def _open(self) -> BinaryIO:
        self._partial = str(self._target.parent / f".farbus-{self._file.sha256[:32]}.part")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.fdopen(os.open(self._partial, flags, 0o600), "r+b")
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that gave it its name meanwhile had it open before.
            if os.path.samestat(os.fstat(opened.fileno()), os.lstat(self._partial)):
                return opened
        except OSError:
            # Another fetch has it, or a file system that knows no locks.
            pass
        opened.close()
        handle, self._partial = tempfile.mkstemp(dir=self._target.parent, prefix=".farbus-")
        return os.fdopen(handle, "r+b")

    def _go_on(self) -> None:
        """Take up what an earlier fetch has left."""
        assert self._opened is not None
        while data := self._opened.read(CHUNK_BYTES):
            self._found.update(data)
            self.received += len(data)
        if self.received > self._file.size:
            self.begin_again()

    def begin_again(self) -> None:
        """Drop what is here."""
        assert self._opened is not None
        self._opened.seek(0)
        self._opened.truncate()
        self.received, self._found = 0, hashlib.sha256()

    def _make_parents(self, directory: Path, path: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        current = directory
        for name in path.split("/")[:-1]:
            current = current / name
            if current.is_symlink():
                raise Conflict(f"{current}: is a symbolic link", hint="choose another directory with -C")
            current.mkdir(exist_ok=True)

    @property
    def is_whole(self) -> bool:
        return self.received == self._file.size and self._opened is not None

    def write(self, data: bytes) -> None:
        assert self._opened is not None
        self.received += len(data)
        self._found.update(data)
        try:
            self._opened.write(data)
        except OSError as error:
            raise Conflict(f"{self._target}: {error.strerror}", hint="make room and fetch again") from error

    def finish(self) -> str:
        assert self._opened is not None
        if self._found.hexdigest() != self._file.sha256:
            self.begin_again()
            raise InvalidInput(f"{self._target}: did not arrive as it was sent", hint="fetch again")
        mask = os.umask(0)
        os.umask(mask)
        try:
            os.fchmod(self._opened.fileno(), (0o777 if self._file.executable else 0o666) & ~mask)
            self._opened.flush()
            os.replace(self._partial, self._target)
            # Last: it gives up the lock.
            self._opened.close()
        except OSError as error:
            raise Conflict(f"{self._target}: {error.strerror}", hint="choose another directory with -C") from error
        self._opened = None
        return str(self._target)

    def drop(self) -> None:
        """Close a file that did not become whole; leave what is worth going on with."""
        if self._opened is None:
            return
        worth = self.received >= CHUNK_BYTES and self._partial.endswith(".part")
        self._opened.close()
        self._opened = None
        if not worth:
            os.unlink(self._partial)
