"""The shim as programs get it: copies named by their content, which no upgrade changes under a program that runs.

A program is started with the path of the shim in LD_PRELOAD, which each program that it starts opens anew, for days
perhaps.  The files of an installation are replaced by the next one, and are missing while that goes on.  So an agent
keeps a copy of its own below its state directory, ``shims/DIGEST``; a new build becomes a new directory, and an old
one goes when no program that runs was started with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from farbus.errors import Unavailable

_DIGEST_LETTERS = 16
_MAKING = ".new-"
_OURS = re.compile(rf"[0-9a-f]{{{_DIGEST_LETTERS}}}|{re.escape(_MAKING)}.*")


class ShimCopies:
    """The copies in ``home`` of what is in the directory ``source``."""

    def __init__(self, home: Path, source: Path) -> None:
        self._home = home
        self._source = source
        self._copied: tuple[tuple[object, ...], Path] | None = None

    def current(self) -> Path:
        """Return a directory with the shim as it is installed now; make it if it is not there.

        Where programs can't be executed from (mount(8), noexec), libraries can't be either: the installation's
        own directory is returned.
        Raises :class:`Unavailable` in one line where the disk does not let it.
        """
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            if os.statvfs(self._home).f_flag & os.ST_NOEXEC:
                return self._source
            state = tuple((file.name, *_identity(file)) for file in self._files())
            if self._copied is None or self._copied[0] != state or not self._copied[1].is_dir():
                self._copied = (state, self._copy())
        except OSError as error:
            raise Unavailable(f"copy the shim to {self._home}: {error.strerror}") from error
        return self._copied[1]

    def _files(self) -> list[Path]:
        return _files_in(self._source)

    def _copy(self) -> Path:
        files = self._files()
        target = self._home / _digest(files)
        if target.is_dir():
            if _digest(_files_in(target)) == target.name:
                return target
            # A node that loses its power may keep the names of its last half minute, and not what was in the files.
            shutil.rmtree(target)
        self._home.chmod(0o755)
        making = Path(tempfile.mkdtemp(dir=self._home, prefix=_MAKING))
        try:
            for file in files:
                shutil.copyfile(file, making / file.name)
                (making / file.name).chmod(0o755)
            making.chmod(0o755)
            making.rename(target)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return target

    def remove_others(self, used: Collection[Path]) -> tuple[str, ...]:
        """Remove the copies that are neither current nor ``used``, and half-made ones; return their names.

        Nothing else: whatever else lies there, or where a link in its place leads, is not ours to remove.
        """
        kept = {path.name for path in used}
        with contextlib.suppress(Unavailable):
            kept.add(self.current().name)
        with contextlib.suppress(FileNotFoundError):
            others = [path for path in self._home.iterdir() if path.name not in kept and _OURS.fullmatch(path.name)]
            for path in others:
                shutil.rmtree(path, ignore_errors=True)
            return tuple(sorted(path.name for path in others))
        return ()


def _files_in(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.is_file())


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:_DIGEST_LETTERS]


def _identity(file: Path) -> tuple[int, int, int]:
    status = os.stat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns
