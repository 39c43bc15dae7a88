"""The door to block devices that are exported: what they are, whether somebody has them, what goes through them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from farbus.errors import Conflict, NotFound, NotPermitted, Unavailable
from farbus.linux.disposable import run_disposable
from farbus.model.nvmet import NamespaceUse
from farbus.model.value import Value

SECTOR_BYTES = 512
"""The unit of sysfs, whatever the device's own is."""


class BlockDevice(Value, frozen=True, kw_only=True):
    """A block device by a path that stays.  ``name`` and ``number`` (major:minor) are the kernel's, for this boot."""

    path: str
    name: str
    number: str
    size_bytes: int
    read_only: bool = False
    holders: tuple[str, ...] = ()
    """Names of devices that stand on it."""


class BlockDevices(Protocol):
    """One machine's block devices."""

    def look(self, path: str) -> BlockDevice:
        """Return what is at ``path``.

        Raises :class:`NotFound` where nothing is, :class:`Conflict` for what is no block device.
        """
        ...

    async def prove_free(self, path: str) -> None:
        """Open it exclusively and close it again.

        Raises :class:`Conflict` where the kernel has it mounted, as swap, or as
        part of another device.  Programs that have merely opened it are not seen.
        """
        ...

    def use(self, path: str) -> NamespaceUse:
        """Return its counters."""
        ...


class KernelBlockDevices:
    """Looks at device nodes and in sysfs."""

    def __init__(self, *, sys: str | Path = "/sys") -> None:
        self._sys = Path(sys)

    def look(self, path: str) -> BlockDevice:
        """Read dev/block/MAJOR:MINOR."""
        number, place = self._place(path)
        try:
            return BlockDevice(
                path=path,
                name=place.name,
                number=number,
                size_bytes=int((place / "size").read_text()) * SECTOR_BYTES,
                read_only=(place / "ro").read_text().strip() == "1",
                holders=tuple(sorted(entry.name for entry in (place / "holders").iterdir())),
            )
        except (OSError, ValueError) as error:
            raise NotFound(f"{path}: it is gone from sysfs ({number})") from error

    def _place(self, path: str) -> tuple[str, Path]:
        try:
            status = os.stat(path)
        except OSError as error:
            raise NotFound(f"{path}: {error.strerror}", hint="ls -l /dev/disk/by-id shows what there is") from error
        if not stat.S_ISBLK(status.st_mode):
            raise Conflict(f"{path}: not a block device", hint="lsblk shows block devices")
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        return number, (self._sys / "dev/block" / number).resolve()

    async def prove_free(self, path: str) -> None:
        """Open with O_EXCL, in a child: a device that does not answer holds it up."""
        try:
            await run_disposable(open_exclusively, path)
        except OSError as error:
            message = f"{path}: {error.strerror}"
            if error.errno == errno.EBUSY:
                holders = ", ".join(self.look(path).holders)
                told = f"{path}: in use by {holders or 'the kernel'}"
                raise Conflict(told, hint="lsblk shows what is mounted or stands on it") from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise NotPermitted(message, hint="only root may") from error
            raise Unavailable(message, hint="see dmesg") from error

    def use(self, path: str) -> NamespaceUse:
        """Read dev/block/MAJOR:MINOR/stat."""
        _, place = self._place(path)
        try:
            fields = [int(word) for word in (place / "stat").read_text().split()]
        except (OSError, ValueError) as error:
            raise NotFound(f"{path}: it is gone from sysfs") from error
        return NamespaceUse(
            device=path,
            reads=fields[0],
            read_bytes=fields[2] * SECTOR_BYTES,
            read_ms=fields[3],
            writes=fields[4],
            written_bytes=fields[6] * SECTOR_BYTES,
            write_ms=fields[7],
            in_flight=fields[8],
            busy_ms=fields[9],
        )


def device_below(path: str, *, dev: str | Path = "/dev") -> str:
    """Return the block device that ``path`` is: itself, or what the file system of a directory or file is on.

    Raises :class:`NotFound` where nothing is, and :class:`Conflict` for a file system without a device of its own.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}", hint="findmnt shows what is mounted") from error
    if stat.S_ISBLK(status.st_mode):
        return path
    device = Path(dev) / f"block/{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    if not device.exists():
        raise Conflict(f"{path}: its file system is on no block device", hint="findmnt shows what is mounted")
    return str(device)


def open_exclusively(path: str) -> None:
    """Open a block device for writing as nobody else may have it.  May block for as long as it does not answer."""
    os.close(os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))


class FakeBlockDevices:
    """Files that stand for devices.  ``held`` says, by path, who has them; a directory is no block device."""

    def __init__(self, held: Mapping[str, str] | None = None) -> None:
        self.held = dict(held or {})
        self.uses: dict[str, NamespaceUse] = {}

    def look(self, path: str) -> BlockDevice:
        """Look at the file."""
        place = Path(path)
        if not place.exists():
            raise NotFound(f"{path}: No such file or directory", hint="ls -l /dev/disk/by-id shows what there is")
        if not place.is_file():
            raise Conflict(f"{path}: not a block device", hint="lsblk shows block devices")
        status = place.stat()
        return BlockDevice(path=path, name=place.name, number=f"7:{status.st_ino}", size_bytes=status.st_size)

    async def prove_free(self, path: str) -> None:
        """Raise where it is set."""
        self.look(path)
        if path in self.held:
            raise Conflict(f"{path}: in use by {self.held[path]}", hint="lsblk shows what is mounted or stands on it")

    def use(self, path: str) -> NamespaceUse:
        """Return what is set."""
        self.look(path)
        return self.uses[path]
