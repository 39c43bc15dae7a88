"""The door to lvm2: logical volumes of one volume group, on the drives that are given to it.

Drives are named by the node's device ids (``NVME-SERIAL-MODEL``) and found in
sysfs each time: the kernel's names change.  lvm2 is told by ``--devices``
which block devices it may look at at all, so that it neither reads nor writes
anybody else's group.  Whose a logical volume is stands in its tags; one
without them is somebody else's, and is left alone.

Each call is a process of its own, since a drive that does not answer holds
lvm2 up.  One that only reads is given :data:`READ_S`.  One that writes is
never killed, since half of a change is worse than a late one: who waits for it
has a deadline (:mod:`farbus.agent.steps`), lvm2 has locks, and the call goes on.

Sources: lvmreport(7), lvmdevices(8), lvcreate(8) of lvm2 2.03.16 and what it answered (tests/linux/lvm_contract.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, TimedOut, Unavailable
from farbus.linux.disposable import run_disposable
from farbus.linux.processes import kill_process
from farbus.linux.spawning import spawn
from farbus.linux.sysfs import KernelSysfs, own_drives
from farbus.model.storage import EXTENT_BYTES, LogicalIdentity, LogicalVolume, StorageDrive, stored_bytes
from farbus.model.value import Value

GROUP = "farbus"
"""The volume group's name, where nobody has chosen another."""

READ_S = 60.0
"""Longest that a report may take: lvm2 reads a label of each drive."""

WIPE_TURN_S = 5.0
"""For how long one child wipes before it tells how far it has come."""

WIPE_BYTES = 64 << 20
"""Wiped by one system call: about a second on a slow drive that has to be written to."""

LEAST_CHUNK_BYTES = 4 << 10
"""Least and, as an extent's size, largest chunk that lvm2 takes."""

Progress = Callable[[int, int], None]
"""Hears how many bytes are done, and of how many."""


def nobody_listens(_done: int, _total: int) -> None:
    """Where nobody wants to hear how far it is."""


class Lvm(Protocol):
    """One volume group of this machine.

    Everything raises :class:`Unavailable` where there is no lvm2 or a drive
    does not answer, and :class:`Conflict` for a logical volume that is not Farbus's.
    """

    async def drives(self) -> tuple[StorageDrive, ...]:
        """Return the drives of the group, by id; those that are missing too."""
        ...

    async def add_drive(self, drive: str) -> None:
        """Give a drive to the group, which is made with the first one.  Nothing happens where it has it already.

        Raises :class:`NotFound` where this node has no such drive, and
        :class:`Conflict` where it holds anything: a file system, a partition table, another group.
        """
        ...

    async def remove_drive(self, drive: str) -> None:
        """Take a drive out of the group, and the group's label from it.  Nothing happens where it is in no group.

        Raises :class:`Conflict` while a logical volume has a part of it.
        """
        ...

    async def forget_missing(self) -> None:
        """Forget drives that are missing.  Raises :class:`Conflict` while a logical volume has a part of one."""
        ...

    async def volumes(self) -> tuple[LogicalVolume, ...]:
        """Return all logical volumes of ours, by name; none where there is no group."""
        ...

    async def find(self, identity: LogicalIdentity) -> LogicalVolume | None:
        """Return one; None where there is none."""
        ...

    async def create(
        self, identity: LogicalIdentity, *, size_bytes: int, drives: Sequence[str], chunk_bytes: int = 0
    ) -> None:
        """Make one, of :func:`farbus.model.storage.stored_bytes`, striped over the drives where they are several.

        It is active, and ``unwiped_from`` its beginning.  Raises
        :class:`Conflict` where it is there or a drive has no room, and :class:`NotFound` for a drive that is not there.
        """
        ...

    async def extend(self, identity: LogicalIdentity, *, size_bytes: int) -> None:
        """Make it larger on the drives that it has; what is new is ``unwiped_from`` then.

        Nothing happens where it is as large.  Raises :class:`Conflict` where a drive has no room.
        """
        ...

    async def reduce(self, identity: LogicalIdentity, *, size_bytes: int) -> None:
        """Cut its end off: only what nobody has been told of (a failed :meth:`extend`)."""
        ...

    async def activate(self, identity: LogicalIdentity) -> None:
        """Let its block device be there.  Nothing happens where it is."""
        ...

    async def deactivate(self, identity: LogicalIdentity) -> None:
        """Take its block device away.  Raises :class:`Conflict` while it is open."""
        ...

    async def mark_going(self, identity: LogicalIdentity) -> None:
        """Say, for good, that it is to be wiped and removed.  Raises :class:`Conflict` while it is open."""
        ...

    async def wipe(self, identity: LogicalIdentity, *, progress: Progress = nobody_listens) -> None:
        """Have zeros read from ``unwiped_from`` on, on the drives themselves, and take that mark away.

        By the drives' own way where they have one that promises zeros (Write Zeroes),
        else by writing.  Raises :class:`Conflict` where somebody holds what is wiped from its beginning.
        """
        ...

    async def remove(self, identity: LogicalIdentity) -> None:
        """Remove it.  Nothing happens where there is none.  Raises :class:`Conflict` while it is open."""
        ...


# Drives.


class LocalDrive(Value, frozen=True, kw_only=True):
    """An NVMe drive of this machine: its first namespace is what is stored on."""

    id: str
    controller: str
    path: str
    size_bytes: int
    optimal_io_bytes: int = 0


_NAMESPACE = re.compile(r"(nvme[0-9]+)(?:c[0-9]+)?(n[0-9]+)")


def local_drives(*, sys: str | Path = "/sys", dev: str = "/dev") -> dict[str, LocalDrive]:
    """Return the drives on this machine's bus by id, as inventories name them."""
    found = {}
    for drive, controller in own_drives(KernelSysfs(str(sys)).nvme_controllers()).items():
        names = []
        for entry in _children(Path(sys) / "class/nvme" / controller.name):
            # A path (nvme0c1n1) is one of the namespace that its subsystem has (nvme0n1).
            if match := _NAMESPACE.fullmatch(entry.name):
                names.append((int(match[2][1:]), f"{match[1]}{match[2]}"))
        if not names:
            continue
        name = min(names)[1]
        block = Path(sys) / "class/block" / name
        found[drive] = LocalDrive(
            id=drive,
            controller=controller.name,
            path=f"{dev}/{name}",
            size_bytes=_number(block / "size") * 512,
            optimal_io_bytes=_number(block / "queue/optimal_io_size"),
        )
    return found


# Tags (lvm(8): letters, digits and _+.-/=!:&#).

_KEPT = re.compile(r"[A-Za-z0-9_+./:-]")


def tag(name: str, value: str = "") -> str:
    """Return the tag that says something of ours; what no tag may have is ``#`` with two hexadecimal digits."""
    written = "".join(chr(byte) if byte < 128 and _KEPT.match(chr(byte)) else f"#{byte:02x}" for byte in value.encode())
    return f"farbus.{name}={written}" if value else f"farbus.{name}"


def read_tags(text: str) -> dict[str, list[str]]:
    """Return what tags of ours say, by name; others are left out."""
    found: dict[str, list[str]] = {}
    for one in text.split(","):
        name, _, value = one.partition("=")
        if name.startswith("farbus."):
            plain = re.sub(rb"#([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), value.encode())
            found.setdefault(name.removeprefix("farbus."), []).append(plain.decode(errors="replace"))
    return found


def tags_of(identity: LogicalIdentity, drives: Sequence[str]) -> list[str]:
    """Return the tags of a logical volume that was made just now."""
    if identity.volume:
        whose = [tag("volume", identity.volume), tag("part", str(identity.part)), tag("parts", str(identity.parts))]
    else:
        whose = [tag("lease", identity.lease)]
    # Numbered: lvm2 keeps tags as a set.
    return [*whose, *(tag(f"drive{number}", drive) for number, drive in enumerate(drives)), tag("unwiped", "0")]


def _identity(tags: Mapping[str, list[str]]) -> LogicalIdentity | None:
    """Return whose a logical volume is by its tags; None for tags that we would not have made."""
    try:
        if not all(one.isascii() and one.isdigit() for one in tags.get("unwiped", ())):
            return None
        if "volume" in tags:
            found = LogicalIdentity(volume=tags["volume"][0], part=int(tags["part"][0]), parts=int(tags["parts"][0]))
        else:
            found = LogicalIdentity(lease=tags["lease"][0])
        return found if found.name else None
    except (KeyError, ValueError, InvalidInput):
        return None


class Said(NamedTuple):
    """How lvm2 ended, and what it printed."""

    code: int
    out: str
    err: str


def _bytes(row: Mapping[str, str], field: str) -> int:
    """Read a number of bytes in a report; raise :class:`Unavailable` for what is none."""
    if not (row[field].isascii() and row[field].isdigit()):
        raise Unavailable(f"lvm2: {field} is {row[field]!r}, no number of bytes", hint="install lvm2, 2.03.12 or newer")
    return int(row[field])


_PV_FIELDS = "pv_name,vg_name,pv_size,pv_free,pv_missing,pv_tags"
_LV_FIELDS = "vg_name,lv_name,lv_size,lv_path,lv_active,lv_device_open,lv_health_status,lv_tags"


class KernelLvm:
    """Runs lvm2.  ``given`` are the drives that it may look at; all of this machine's where that is None."""

    def __init__(
        self,
        *,
        group: str = GROUP,
        given: Sequence[str] | None = None,
        sys: str | Path = "/sys",
        program: str = "lvm",
    ) -> None:
        self.group = group
        self._given = given
        self._sys = Path(sys)
        self._program = program

    # Drives.

    def _local(self) -> dict[str, LocalDrive]:
        found = local_drives(sys=self._sys)
        return found if self._given is None else {name: one for name, one in found.items() if name in self._given}

    def _drive(self, drive: str) -> LocalDrive:
        found = self._local().get(drive)
        if found is None:
            if self._given is not None and drive not in self._given:
                raise Conflict(f"drive {drive}: it is not among those that are given to Farbus")
            raise NotFound(f"drive {drive}: this node has none of that name", hint="farbus devices shows what it has")
        return found

    async def _physical(self) -> list[dict[str, str]]:
        """Return the physical volumes that may be looked at, also those without a group."""
        return await self._report("pvs", "pv", _PV_FIELDS, "--all")

    async def drives(self) -> tuple[StorageDrive, ...]:
        """Run pvs."""
        by_path = {one.path: one for one in self._local().values()}
        found = []
        for row in await self._physical():
            if row["vg_name"] != self.group:
                continue
            local = by_path.get(row["pv_name"])
            told = read_tags(row["pv_tags"]).get("drive", [""])[0]
            if local is None and not told:
                # One that somebody has put into the group by hand, and that is no drive: its room is not ours to give.
                continue
            found.append(
                StorageDrive(
                    id=local.id if local is not None else told,
                    size_bytes=_bytes(row, "pv_size"),
                    free_bytes=_bytes(row, "pv_free"),
                    path=local.path if local is not None else "",
                    controller=local.controller if local is not None else "",
                    missing=local is None or bool(row["pv_missing"]),
                    optimal_io_bytes=local.optimal_io_bytes if local is not None else 0,
                )
            )
        return tuple(sorted(found, key=lambda drive: drive.id))

    async def add_drive(self, drive: str) -> None:
        """Run pvcreate, which refuses what holds something; vgcreate or vgextend; and pvchange, which tells its id."""
        local, what = self._drive(drive), f"give drive {drive} to volume group {self.group}"
        rows = await self._physical()
        row = next((one for one in rows if one["pv_name"] == local.path and one["pv_size"] != "0"), None)
        if row is not None and row["vg_name"] not in ("", self.group):
            raise Conflict(f"{what}: it is in group {row['vg_name']}", hint="nothing was changed; choose another drive")
        if row is None or not row["vg_name"]:
            await self._change(what, "pvcreate", "--quiet", local.path)
            if any(one["vg_name"] == self.group for one in rows):
                await self._change(what, "vgextend", "--quiet", self.group, local.path)
            else:
                await self._change(
                    what, "vgcreate", "--quiet", "--physicalextentsize", f"{EXTENT_BYTES}b",
                    "--setautoactivation", "n", self.group, local.path,
                )  # fmt: skip
        if row is None or drive not in read_tags(row["pv_tags"]).get("drive", []):
            await self._change(what, "pvchange", "--addtag", tag("drive", drive), local.path)

    async def remove_drive(self, drive: str) -> None:
        """Run vgreduce, or vgremove for the last one, and pvremove."""
        local, what = self._drive(drive), f"take drive {drive} out of volume group {self.group}"
        rows = [row for row in await self._physical() if row["vg_name"] == self.group]
        row = next((one for one in rows if one["pv_name"] == local.path), None)
        if row is None:
            return
        if row["pv_free"] != row["pv_size"]:
            raise Conflict(f"{what}: logical volumes have parts of it", hint="remove those volumes first")
        if len(rows) > 1:
            await self._change(what, "vgreduce", self.group, local.path)
        else:
            await self._change(what, "vgremove", self.group)
        await self._change(what, "pvremove", local.path)

    async def forget_missing(self) -> None:
        """Run vgreduce, which refuses by itself where a logical volume is on one."""
        if any(drive.missing for drive in await self.drives()):
            await self._change(
                f"forget missing drives of volume group {self.group}", "vgreduce", "--removemissing", self.group
            )
            if left := [drive.id for drive in await self.drives() if drive.missing]:
                raise Conflict(
                    f"forget missing drives of volume group {self.group}: volumes have parts of {', '.join(left)}",
                    hint="remove those volumes first, or put the drive back",
                )

    # Logical volumes.

    async def volumes(self) -> tuple[LogicalVolume, ...]:
        """Run lvs."""
        rows = await self._report("lvs", "lv", _LV_FIELDS, "--select", f"vg_name={self.group}")
        found = [volume for row in rows if (volume := self._volume(row)) is not None]
        return tuple(sorted(found, key=lambda volume: volume.name))

    def _volume(self, row: Mapping[str, str]) -> LogicalVolume | None:
        tags = read_tags(row["lv_tags"])
        identity = _identity(tags)
        if row["vg_name"] != self.group or identity is None or identity.name != row["lv_name"]:
            return None
        drives: list[str] = []
        while told := tags.get(f"drive{len(drives)}"):
            drives.append(told[0])
        return LogicalVolume(
            identity=identity,
            size_bytes=_bytes(row, "lv_size"),
            drives=tuple(drives),
            path=row["lv_path"],
            active=row["lv_active"] == "active",
            open=row["lv_device_open"] == "open",
            partial="partial" in row["lv_health_status"],
            unwiped_from=min(map(int, tags["unwiped"])) if "unwiped" in tags else -1,
            going="going" in tags,
        )

    async def find(self, identity: LogicalIdentity) -> LogicalVolume | None:
        """Look for it among all."""
        return next((one for one in await self.volumes() if one.name == identity.name), None)

    async def _ours(self, identity: LogicalIdentity, what: str) -> LogicalVolume:
        found = await self.find(identity)
        if found is None:
            raise NotFound(f"{what}: there is no logical volume of it")
        return found

    async def create(
        self, identity: LogicalIdentity, *, size_bytes: int, drives: Sequence[str], chunk_bytes: int = 0
    ) -> None:
        """Run lvcreate, which has its tags with the same change."""
        what = f"make {identity}"
        if not drives or len(set(drives)) < len(drives):
            raise InvalidInput(f"{what}: it takes drives, each once")
        if size_bytes <= 0:
            raise InvalidInput(f"{what}: {size_bytes} bytes")
        paths = await self._paths(what, drives)
        size = stored_bytes(size_bytes, len(drives))
        tags = [word for one in tags_of(identity, drives) for word in ("--addtag", one)]
        await self._change(
            what, "lvcreate", "--yes", "--wipesignatures", "y", "--zero", "y", "--setautoactivation", "n",
            "--name", identity.name, "--size", f"{size}b", *_striped(what, len(drives), chunk_bytes), *tags,
            self.group, *paths,
        )  # fmt: skip

    async def _paths(self, what: str, drives: Sequence[str]) -> list[str]:
        there = {drive.id: drive for drive in await self.drives()}
        for drive in drives:
            if drive not in there:
                raise NotFound(f"{what}: drive {drive} is not in volume group {self.group}")
            if there[drive].missing:
                raise NotFound(f"{what}: drive {drive} of volume group {self.group} is missing")
        return [there[drive].path for drive in drives]

    async def extend(self, identity: LogicalIdentity, *, size_bytes: int) -> None:
        """Mark where it ended, before lvextend: what was cut off in between is wiped all the same."""
        what = f"make {identity} larger"
        found = await self._ours(identity, what)
        size = stored_bytes(size_bytes, len(found.drives))
        if found.going:
            raise Conflict(f"{what}: it is about to be removed")
        if size < found.size_bytes:
            raise Conflict(f"{what}: it has {found.size_bytes} bytes, and {size} would be less")
        if size == found.size_bytes:
            return
        paths = await self._paths(what, found.drives)
        if found.unwiped_from < 0:
            mark = tag("unwiped", str(found.size_bytes))
            await self._change(what, "lvchange", "--addtag", mark, self._full(identity))
        await self._change(
            what, "lvextend", "--yes", "--size", f"{size}b", *_striped(what, len(paths), 0), self._full(identity),
            *paths,
        )  # fmt: skip

    async def reduce(self, identity: LogicalIdentity, *, size_bytes: int) -> None:
        """Run lvreduce, and take away a mark beyond the end."""
        what = f"cut {identity}"
        found = await self._ours(identity, what)
        size = stored_bytes(size_bytes, len(found.drives))
        if size < found.size_bytes:
            await self._change(what, "lvreduce", "--yes", "--force", "--size", f"{size}b", self._full(identity))
        if found.unwiped_from >= size:
            mark = tag("unwiped", str(found.unwiped_from))
            await self._change(what, "lvchange", "--deltag", mark, self._full(identity))

    async def activate(self, identity: LogicalIdentity) -> None:
        """Run lvchange."""
        found = await self._ours(identity, f"activate {identity}")
        if not found.active:
            await self._change(f"activate {identity}", "lvchange", "--activate", "y", self._full(identity))

    async def deactivate(self, identity: LogicalIdentity) -> None:
        """Run lvchange."""
        found = await self.find(identity)
        if found is not None and found.active:
            await self._change(f"deactivate {identity}", "lvchange", "--activate", "n", self._full(identity))

    async def mark_going(self, identity: LogicalIdentity) -> None:
        """Change its tags."""
        what = f"remove {identity}"
        found = await self._ours(identity, what)
        if found.going:
            return
        if found.open:
            raise _in_use(what, found)
        old = ("--deltag", tag("unwiped", str(found.unwiped_from))) if found.unwiped_from > 0 else ()
        new = ("--addtag", tag("unwiped", "0"), "--addtag", tag("going"))
        await self._change(what, "lvchange", *old, *new, self._full(identity))

    async def wipe(self, identity: LogicalIdentity, *, progress: Progress = nobody_listens) -> None:
        """Let children zero one stretch after the other."""
        what = f"wipe {identity}"
        found = await self._ours(identity, what)
        if found.unwiped_from < 0:
            return
        await self.activate(identity)
        at, end = found.unwiped_from, found.size_bytes
        exclusive = at == 0
        while at < end:
            progress(at - found.unwiped_from, end - found.unwiped_from)
            try:
                at = await self._zero(found.path, at, end, exclusive=exclusive)
            except OSError as error:
                raise _of_errno(f"{what} from byte {at} on", error) from error
        progress(end - found.unwiped_from, end - found.unwiped_from)
        mark = tag("unwiped", str(found.unwiped_from))
        await self._change(what, "lvchange", "--deltag", mark, self._full(identity))

    async def _zero(self, path: str, at: int, end: int, *, exclusive: bool) -> int:
        return int(await run_disposable(zero_blocks, path, at, end, exclusive))

    async def remove(self, identity: LogicalIdentity) -> None:
        """Run lvremove."""
        found = await self.find(identity)
        if found is None:
            return
        what = f"remove {identity}"
        if found.open:
            raise _in_use(what, found)
        await self._change(what, "lvremove", "--yes", self._full(identity))

    def _full(self, identity: LogicalIdentity) -> str:
        return f"{self.group}/{identity.name}"

    # lvm2.

    async def _report(self, command: str, key: str, fields: str, *arguments: str) -> list[dict[str, str]]:
        if not self._local():
            # Without --devices it would look at everybody's.
            return []
        try:
            async with asyncio.timeout(READ_S):
                said = await self._run(
                    (
                        command, "--reportformat", "json", "--units", "b", "--nosuffix", *self._devices(),
                        *arguments, "--options", fields,
                    )
                )  # fmt: skip
        except TimeoutError:
            raise TimedOut(f"lvm {command}: no answer for {READ_S:g} s", hint="a drive may hang; see dmesg") from None
        if said.code:
            raise _error(f"lvm {command}", said.err)
        try:
            rows = msgspec.convert(json.loads(said.out)["report"][0][key], list[dict[str, str]])
        except (ValueError, KeyError, IndexError, TypeError, msgspec.ValidationError) as error:
            raise Unavailable(f"lvm {command}: its report can't be read: {said.out.strip()[:120]!r}") from error
        # Where lvm.conf says compact_output, what nothing has is left out.
        return [{**dict.fromkeys(fields.split(","), ""), **row} for row in rows]

    async def _change(self, what: str, command: str, *arguments: str) -> None:
        said = await self._run((command, *self._devices(), *arguments))
        if said.code:
            raise _error(what, said.err)

    def _devices(self) -> tuple[str, ...]:
        return ("--devices", ",".join(sorted(one.path for one in self._local().values())))

    async def _run(self, arguments: tuple[str, ...]) -> Said:
        reads = arguments[0] in ("lvs", "pvs")
        try:
            child = await spawn(
                self._program, *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True, env={**os.environ, "LC_ALL": "C", "LVM_SUPPRESS_FD_WARNINGS": "1"},
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"lvm2: {error.strerror}", hint="install lvm2, 2.03.12 or newer") from error
        try:
            out, err = await child.communicate()
        except BaseException:
            if reads:
                kill_process(child)
            raise
        return Said(child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


def _striped(what: str, drives: int, chunk_bytes: int) -> tuple[str, ...]:
    if chunk_bytes and (chunk_bytes & (chunk_bytes - 1) or not LEAST_CHUNK_BYTES <= chunk_bytes <= EXTENT_BYTES):
        raise InvalidInput(f"{what}: chunks of {chunk_bytes} bytes", hint="a power of two from 4 KiB to 4 MiB")
    if drives < 2:
        return ()
    chunk = ("--stripesize", f"{chunk_bytes}b") if chunk_bytes else ()
    return ("--stripes", str(drives), *chunk)


# In a child.

_PUNCH, _ZERO, _KEEP_SIZE = 0x02, 0x10, 0x01
"""linux/falloc.h."""

_BLKDISCARD = 0x1277
"""linux/fs.h: _IO(0x12, 119)."""

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)


def zero_blocks(path: str, at: int, end: int, exclusive: bool, turn_s: float = WIPE_TURN_S) -> int:
    """Have zeros read from ``at`` on, for some seconds; return how far it has come, all of it on the drive.

    Linux punches a hole into a block device only by a way that promises zeros
    (BLKDEV_ZERO_NOFALLBACK in blkdev_fallocate, block/fops.c), and by that the
    drive learns that nothing is there.  Where there is none, the drive is told
    so all the same, which promises nothing, and zeros are written after it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0))
    try:
        until = time.monotonic() + turn_s
        while at < end and time.monotonic() < until:
            length = min(WIPE_BYTES, end - at)
            if not _allocate(descriptor, _PUNCH | _KEEP_SIZE, at, length):
                with contextlib.suppress(OSError):
                    fcntl.ioctl(descriptor, _BLKDISCARD, struct.pack("QQ", at, length))
                if not _allocate(descriptor, _ZERO | _KEEP_SIZE, at, length):
                    _write_zeros(descriptor, at, length)
            at += length
        os.fsync(descriptor)
        return at
    finally:
        os.close(descriptor)


def _allocate(descriptor: int, mode: int, at: int, length: int) -> bool:
    """Call fallocate(2), of which Python has only the portable form; say whether it is supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, mode, ctypes.c_int64(at), ctypes.c_int64(length)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


def _write_zeros(descriptor: int, at: int, length: int) -> None:
    zeros = bytes(1 << 20)
    end = at + length
    while at < end:
        at += os.pwrite(descriptor, zeros[: end - at], at)


# Errors.

_ERRORS: tuple[tuple[str, type[FarbusError], str], ...] = (
    ("nsufficient free space", Conflict, "the node's drives have no room for it"),
    ("nsufficient suitable", Conflict, "the node's drives have no room for it"),
    ("already exists", Conflict, "lvs shows it"),
    ("in use", Conflict, "lsblk shows what stands on it"),
    ("is used by another device", Conflict, "lsblk shows what stands on it"),
    ("signature", Conflict, "it holds something: wipefs shows what; nothing was changed"),
    ("is partitioned", Conflict, "it has a partition table; nothing was changed"),
    ("excluded by a filter", Conflict, "it has a partition table or is not to be used; nothing was changed"),
    ("while PVs are missing", Conflict, "put the drive back, or remove what was on it and let it be forgotten"),
    ("still partial LVs", Conflict, "remove those volumes first, or put the drive back"),
    ("ermission denied", NotPermitted, "only root may"),
    ("not running as root", NotPermitted, "only root may"),
    ("unrecognized option '--devices'", Unavailable, "install lvm2, 2.03.12 or newer"),
    ("Failed to find", NotFound, "lvs shows what there is"),
    ("not found", NotFound, "lvs shows what there is"),
)


def _error(what: str, said: str) -> FarbusError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # Warnings come first, and often have nothing to do with it.
    lines = [line for line in lines if not line.startswith("WARNING")] or lines
    told = lines[0][:200] if lines else "lvm2 says nothing"
    for words, kind, hint in _ERRORS:
        if words in said:
            return kind(f"{what}: {next((line for line in lines if words in line), told)[:200]}", hint=hint)
    return Unavailable(f"{what}: {told}", hint="see dmesg")


def _in_use(what: str, found: LogicalVolume) -> Conflict:
    return Conflict(f"{what}: its device is in use", hint=f"lsblk {found.path} and lsof {found.path} show by whom")


def _of_errno(what: str, error: OSError) -> FarbusError:
    message = f"{what}: {error.strerror}"
    if error.errno == errno.EBUSY:
        return Conflict(message, hint="lsblk shows what is mounted or stands on it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotPermitted(message, hint="only root may")
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return NotFound(message)
    return Unavailable(message, hint="the drive may be failing: see dmesg")


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _number(path: Path) -> int:
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return 0
