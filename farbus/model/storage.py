"""What a node stores and how it is used, as values: drives, logical volumes, file systems (docs/volumes.md).

Words are those of lvm2: a *volume group* of drives, whose *extents* belong to
*logical volumes*; and of mount(8).  Which request, volume or lease something is
for is in :mod:`farbus.model.volume`.
"""

from __future__ import annotations

import enum
import hashlib
import re

from farbus.errors import InvalidInput
from farbus.model.value import Value
from farbus.model.volume import FileSystem, VolumePart, check_volume_name, part_id

EXTENT_BYTES = 4 << 20
"""What a volume group gives out at a time; lvm2's own choice, which is kept in each group's metadata."""

_LEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,47}")
"""Leases whose names a logical volume can have: device-mapper's may have 127 characters, and doubles each ``-``."""
_GROUP = re.compile(r"[A-Za-z0-9+_.][A-Za-z0-9+_.-]{0,99}")
"""What lvm(8) lets a group be called."""


def check_group_name(name: str, *, field: str = "volume_group") -> str:
    """Return the name of a volume group; raise :class:`InvalidInput` for what lvm2 would not take for one."""
    if _GROUP.fullmatch(name) is None:
        raise InvalidInput(f"{field}: {name[:80]!r} can't name a group", hint="use letters, digits and +_.-")
    return name


def stored_bytes(size_bytes: int, drives: int) -> int:
    """Return what is really there of a size over a number of drives: whole extents, as many on each."""
    unit = EXTENT_BYTES * max(1, drives)
    return -(-size_bytes // unit) * unit


class LogicalIdentity(Value, frozen=True, kw_only=True):
    """Whose a logical volume is: a part of a volume's, or a lease's own.  One of ``volume`` and ``lease`` is empty."""

    volume: str = ""
    part: int = 0
    parts: int = 1
    lease: str = ""

    @property
    def name(self) -> str:
        """What the logical volume is called in its group."""
        if self.volume:
            return f"vol-{check_volume_name(self.volume, field='volume')}.{self.part}"
        if not self.lease:
            raise InvalidInput("a logical volume of neither a volume nor a lease")
        if _LEASE.fullmatch(self.lease):
            return f"lease-{self.lease}"
        return f"lease-.{hashlib.sha256(self.lease.encode()).hexdigest()[:32]}"

    @property
    def exported_as(self) -> str:
        """What namespaces of it are made from (:func:`farbus.model.nvmeof.namespace_identity`)."""
        return f"{self.volume}:{self.part}" if self.volume else self.lease

    def __str__(self) -> str:
        return part_id(self.volume, self.part) if self.volume else f"room of lease {self.lease}"


def identity_of(part: VolumePart) -> LogicalIdentity:
    """Return whose the logical volume of a part is."""
    return LogicalIdentity(volume=part.volume, part=part.part, parts=part.parts)


class StorageDrive(Value, frozen=True, kw_only=True):
    """A drive of the volume group, by the id of the node's device.

    ``size_bytes`` and ``free_bytes`` are what logical volumes can have.
    ``path`` is the block device as the kernel calls it now, and ``controller``
    who answers for it; empty where it is ``missing``.
    """

    id: str
    size_bytes: int
    free_bytes: int
    path: str = ""
    controller: str = ""
    missing: bool = False
    optimal_io_bytes: int = 0
    """What it asks requests to be multiples of; 0 for no wish."""


class LogicalVolume(Value, frozen=True, kw_only=True):
    """A logical volume of ours as lvm2 has it.

    ``unwiped_from`` is from which byte on it may hold what somebody else has
    written; -1 for nowhere.  ``going`` says that it is about to be removed, and what was in it is lost.
    ``partial``: some of its drives are missing.  ``open``: somebody has its device open, the kernel too.
    """

    identity: LogicalIdentity
    size_bytes: int
    drives: tuple[str, ...]
    path: str
    active: bool
    open: bool = False
    partial: bool = False
    unwiped_from: int = -1
    going: bool = False

    @property
    def name(self) -> str:
        """What it is called in its group."""
        return self.identity.name

    @property
    def ready(self) -> bool:
        """Say whether it is whole, and holds nothing but its owner's data."""
        return self.unwiped_from < 0 and not self.going and not self.partial


class Signature(Value, frozen=True, kw_only=True):
    """What a block device says it holds.

    ``kind`` is blkid's word (``ext4``, ``xfs``, ``swap``, ``LVM2_member``,
    ``dos`` for a partition table), :data:`AMBIGUOUS` where there are several,
    :data:`UNKNOWN_DATA` where nothing is known that begins so, and it does not begin with zeros,
    and :data:`CUT_OFF` where a file system was being made.
    """

    kind: str
    uuid: str = ""
    label: str = ""


AMBIGUOUS = "ambiguous"
UNKNOWN_DATA = "data"
CUT_OFF = "cut off"


class Mounted(Value, frozen=True, kw_only=True):
    """A mount in this node's name space.  ``number`` is the device's, ``MAJOR:MINOR``."""

    path: str
    number: str
    kind: str
    read_only: bool = False
    options: tuple[str, ...] = ()


class Space(Value, frozen=True, kw_only=True):
    """What a file system has room for (statvfs(3)); ``available_bytes`` for users other than root."""

    size_bytes: int
    free_bytes: int
    available_bytes: int


class Account(Value, frozen=True, kw_only=True):
    """Whose a path is to be: the task's user."""

    uid: int = 0
    gid: int = 0


class Format(enum.StrEnum):
    """What can be made on a block device that holds nothing."""

    EXT4 = "ext4"
    XFS = "xfs"
    SWAP = "swap"


def format_of(file_system: FileSystem) -> Format:
    """Return what to make for a file system."""
    return Format(file_system.value)
