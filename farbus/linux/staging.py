"""The door to tasks' directories: made for their users, filled, read and removed with their rights alone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import pwd
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import msgspec
import structlog

from farbus.errors import FarbusError, InvalidInput, Unavailable
from farbus.linux.names import shown
from farbus.linux.spawning import spawn
from farbus.linux.users import Account
from farbus.model.staging import CHUNK_BYTES, Manifest, StagedFile, check_path
from farbus.model.value import Value

_log = structlog.get_logger()

STAGER = Path(__file__).with_name("stager.py")

CLEAR_TIMEOUT_S = 120.0
"""How long the removal of one task's files may take before others get their turn: some ten million files."""

REAP_TIMEOUT_S = 5.0
"""How long a killed stager is waited for: in state D, on a disk that hangs, it ends when the kernel lets it."""

ASIDE = ".removed-"
"""How the names of directories begin that are to be removed; those of tasks begin with a job's."""


class _Said(Value, frozen=True, kw_only=True):
    """One line of a stager's: a file, whose bytes follow, or how it has ended."""

    path: str = ""
    size: int = 0
    executable: bool = False
    end: bool = False
    error: str = ""


class TaskDirectories:
    """The directories of a node's tasks, each below ``base`` and its user's own (mode 0700)."""

    def __init__(self, base: Path, *, subuid: Path = Path("/etc/subuid")) -> None:
        self.base = base
        self._subuid = subuid

    def path(self, name: str) -> Path:
        """Return where the directory of that name is."""
        return self.base / name

    def list(self) -> tuple[str, ...]:
        """Return the names of those that are there."""
        return tuple(name for name in self._names() if not name.startswith(ASIDE))

    def aside(self) -> tuple[str, ...]:
        """Return the names of those that have been set aside and not been removed yet."""
        return tuple(name for name in self._names() if name.startswith(ASIDE))

    def _names(self) -> tuple[str, ...]:
        try:
            return tuple(sorted(entry.name for entry in self.base.iterdir()))
        except FileNotFoundError:
            return ()

    def make(self, name: str, account: Account | None) -> Path:
        """Make an empty directory for a task; one of its name that is there is set aside."""
        self.set_aside(name)
        path = self.path(name)
        try:
            # Its parent is the agent's, so nobody can have put something else here before it changes hands.
            self.base.mkdir(mode=0o711, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
            if account is not None:
                os.chown(path, account.uid, account.gid, follow_symlinks=False)
        except OSError as error:
            raise Unavailable(f"make the directory of task {name}: {error.strerror}", hint=f"see {path}") from error
        return path

    def set_aside(self, name: str) -> str:
        """Give up a directory, however long its removal may take; return its new name, or none where it is not there.

        Raises :class:`Unavailable`.
        """
        aside = f"{ASIDE}{secrets.token_hex(8)}"
        try:
            os.rename(self.path(name), self.path(aside))
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise Unavailable(f"remove {self.path(name)}: {error.strerror}") from error
        return aside

    def owner(self, name: str) -> int:
        """Return the user id of a directory's owner; the agent's own where there is none."""
        try:
            return self.path(name).lstat().st_uid
        except OSError:
            return os.geteuid()

    async def write(
        self, name: str, account: Account | None, manifest: Manifest, contents: AsyncIterator[tuple[str, bytes]]
    ) -> None:
        """Write the files of ``manifest``; ``contents`` are pieces of them in order, each with its path.

        Raises :class:`FarbusError` for what did not come whole, or can't be written.
        """
        files = {file.path: file for file in manifest.files}
        stager = await self._start("put", self.path(name), account)
        try:
            assert stager.stdin is not None
            with contextlib.suppress(ConnectionError):
                # The stager's own word says why it broke off.
                current = ""
                async for path, data in contents:
                    if path != current:
                        file, current = files[path], path
                        line = {"path": path, "size": file.size, "sha256": file.sha256, "executable": file.executable}
                        stager.stdin.write(json.dumps(line).encode() + b"\n")
                    stager.stdin.write(data)
                    await stager.stdin.drain()
                stager.stdin.close()
            await self._end(stager, f"stage in for task {name}")
        finally:
            await _reap(stager)

    async def read(
        self, name: str, account: Account | None, paths: Sequence[str], *, most_files: int, most_bytes: int
    ) -> AsyncGenerator[tuple[StagedFile, bytes], None]:
        """Yield the files at and below ``paths`` in pieces; the last piece of each has its digest, the others none.

        Raises :class:`FarbusError` for what is not there, is no regular file,
        or is more than the limits.
        """
        stager = await self._start("get", self.path(name), account)
        try:
            assert stager.stdin is not None
            assert stager.stdout is not None
            with contextlib.suppress(ConnectionError):
                stager.stdin.write(json.dumps({"paths": paths, "files": most_files, "bytes": most_bytes}).encode())
                stager.stdin.close()
            while True:
                said = await self._said(stager, f"stage out of task {name}")
                if said.end:
                    return
                path, size = check_path(said.path), said.size
                found, left = hashlib.sha256(), size
                while True:
                    data = await stager.stdout.read(min(left, CHUNK_BYTES))
                    if left and not data:
                        # What it still has to say says why.
                        raise InvalidInput(f"stage out of task {name}: {path}: it was cut short while it was read")
                    found.update(data)
                    left -= len(data)
                    yield (
                        StagedFile(
                            path=path, size=size, sha256="" if left else found.hexdigest(),
                            executable=said.executable,
                        ),
                        data,
                    )  # fmt: skip
                    if not left:
                        break
        finally:
            await _reap(stager)

    async def clear(self, name: str) -> None:
        """Remove a directory that was set aside, with all that is in it.

        With its owner's rights; where those are not enough and the agent is
        root, with root's: an owner may have given files to his subordinate
        user ids, as containers without root do.  Raises :class:`FarbusError`;
        what has been removed stays removed.
        """
        path = self.path(name)
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        owner = Account(name=str(status.st_uid), uid=status.st_uid, gid=status.st_gid)
        if os.geteuid() or not owner.uid:
            await self._clear(path, None)
        else:
            try:
                await self._clear(path, owner)
            except InvalidInput:
                await self._clear(path, None, self._owners(owner.uid))
        try:
            path.rmdir()
        except OSError as error:
            raise Unavailable(f"remove {path}: {error.strerror}") from error

    async def _clear(self, path: Path, account: Account | None, *rest: str) -> None:
        stager = await self._start("clear", path, account, *rest)
        try:
            async with asyncio.timeout(CLEAR_TIMEOUT_S):
                await self._end(stager, f"remove {path}")
        except TimeoutError as error:
            raise Unavailable(f"remove {path}: not done in {CLEAR_TIMEOUT_S:g} s") from error
        finally:
            await _reap(stager)

    def _owners(self, uid: int) -> str:
        """Return who may own what a user's task leaves: the user, and his subordinate ids (subuid(5))."""
        owners = [str(uid)]
        names = {str(uid)}
        with contextlib.suppress(KeyError):
            names.add(pwd.getpwuid(uid).pw_name)
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for line in self._subuid.read_text().splitlines():
                name, *numbers = line.split(":")
                if name in names and len(numbers) == 2 and all(number.isdecimal() for number in numbers):
                    first, count = map(int, numbers)
                    owners.append(f"{first}-{first + count - 1}")
        return ",".join(owners)

    async def _start(self, command: str, path: Path, account: Account | None, *rest: str) -> asyncio.subprocess.Process:
        identity = "-"
        if account is not None and account.uid != os.geteuid():
            identity = f"{account.uid}:{account.gid}:{','.join(map(str, account.groups))}"
        try:
            return await spawn(
                sys.executable, "-I", "-S", str(STAGER), identity, command, str(path), *rest,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2 * CHUNK_BYTES,
                cwd="/", env={"LC_ALL": "C.UTF-8"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"start a stager: {error.strerror}") from error

    async def _said(self, stager: asyncio.subprocess.Process, what: str) -> _Said:
        assert stager.stdout is not None
        line = await stager.stdout.readline()
        if not line.endswith(b"\n"):
            raise Unavailable(f"{what}: the stager died")
        try:
            # Not decoded by msgspec, which takes no halves of surrogate pairs: the name that is no UTF-8 is to be told.
            said = msgspec.convert(json.loads(line), _Said)
        except (ValueError, msgspec.ValidationError) as error:
            raise FarbusError(f"{what}: the stager said what it should not") from error
        if said.error:
            raise InvalidInput(f"{what}: {shown(said.error)}")
        return said

    async def _end(self, stager: asyncio.subprocess.Process, what: str) -> None:
        if not (await self._said(stager, what)).end:
            raise FarbusError(f"{what}: the stager said what it should not")


async def _reap(stager: asyncio.subprocess.Process) -> None:
    if stager.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stager.pid, 9)
    try:
        async with asyncio.timeout(REAP_TIMEOUT_S):
            await stager.wait()
    except TimeoutError:
        _log.error("stager does not end", pid=stager.pid, reason="a call of the kernel hangs; see dmesg")
