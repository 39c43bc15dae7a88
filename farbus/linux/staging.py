"""The door to tasks' directories: made for their users, filled, read and removed with their rights alone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from farbus.errors import FarbusError, InvalidInput, Unavailable
from farbus.linux.users import Account
from farbus.model.staging import CHUNK_BYTES, Manifest, StagedFile, check_path

STAGER = Path(__file__).with_name("stager.py")

CLEAR_TIMEOUT_S = 120.0
"""How long the removal of one task's files may take before it is given up until the next start."""


class TaskDirectories:
    """The directories of a node's tasks, each below ``base`` and its user's own (mode 0700)."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def path(self, name: str) -> Path:
        """Return where the directory of that name is."""
        return self.base / name

    def list(self) -> tuple[str, ...]:
        """Return the names of those that are there."""
        try:
            return tuple(sorted(entry.name for entry in self.base.iterdir()))
        except FileNotFoundError:
            return ()

    async def make(self, name: str, account: Account | None) -> Path:
        """Make an empty directory for a task, in the place of an older one of its name."""
        path = self.path(name)
        if path.exists():
            await self.remove(name)
        try:
            # Its parent is the agent's, so nobody can have put something else here before it changes hands.
            self.base.mkdir(mode=0o711, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
            if account is not None:
                os.chown(path, account.uid, account.gid, follow_symlinks=False)
        except OSError as error:
            raise Unavailable(f"make the directory of task {name}: {error.strerror}", hint=f"see {path}") from error
        return path

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
    ) -> AsyncIterator[tuple[StagedFile, bytes]]:
        """Yield the files at and below ``paths`` in pieces; the last piece of each has its digest, the others none.

        Raises :class:`FarbusError` for what is not there, is no regular file,
        or is more than the limits.
        """
        stager = await self._start("get", self.path(name), account, str(most_files), str(most_bytes), *paths)
        try:
            assert stager.stdout is not None
            while True:
                line = await self._message(stager, f"stage out of task {name}")
                if "end" in line:
                    return
                path, size = check_path(line["path"]), line["size"]
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
                            executable=line["executable"],
                        ),
                        data,
                    )  # fmt: skip
                    if not left:
                        break
        finally:
            await _reap(stager)

    async def remove(self, name: str) -> None:
        """Remove a directory with all that is in it, with its owner's rights; nothing happens where there is none."""
        path = self.path(name)
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        myself = os.geteuid()
        account = None
        if myself == 0 and status.st_uid != 0:
            account = Account(name=str(status.st_uid), uid=status.st_uid, gid=status.st_gid)
        stager = await self._start("clear", path, account)
        try:
            async with asyncio.timeout(CLEAR_TIMEOUT_S):
                await self._end(stager, f"remove {path}")
            path.rmdir()
        except TimeoutError as error:
            raise Unavailable(f"remove {path}: not done in {CLEAR_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise Unavailable(f"remove {path}: {error.strerror}") from error
        finally:
            await _reap(stager)

    async def _start(self, command: str, path: Path, account: Account | None, *rest: str) -> asyncio.subprocess.Process:
        identity = "-"
        if account is not None and account.uid != os.geteuid():
            identity = f"{account.uid}:{account.gid}:{','.join(map(str, account.groups))}"
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(STAGER), identity, command, str(path), *rest,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2 * CHUNK_BYTES,
                cwd="/", env={"LC_ALL": "C.UTF-8"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"start a stager: {error.strerror}") from error

    async def _message(self, stager: asyncio.subprocess.Process, what: str) -> dict[str, Any]:
        assert stager.stdout is not None
        line = await stager.stdout.readline()
        if not line:
            raise Unavailable(f"{what}: the stager died")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise InvalidInput(f"{what}: {message['error']}")
        return message

    async def _end(self, stager: asyncio.subprocess.Process, what: str) -> None:
        message = await self._message(stager, what)
        if "end" not in message:
            raise FarbusError(f"{what}: the stager said what it should not")


async def _reap(stager: asyncio.subprocess.Process) -> None:
    if stager.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stager.pid, 9)
    await stager.wait()
