"""Storage: volumes, which have names and outlive leases, and what a lease gives of drives (decision 22)."""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Mapping

from farbus.errors import InvalidInput
from farbus.model.quantity import MAX_BYTES, format_bytes
from farbus.model.states import VolumeState
from farbus.model.value import Value

VOLUME_PREFIX = "VOL-"
"""How ids of devices begin that are parts of volumes."""

MAX_PARTS = 16
"""Nodes that a volume may be striped over."""

MAX_STRIPE = 64
"""Drives that may be used as one."""

MIN_SIZE = 2**20
"""Least size of a volume: no file system is smaller."""

MAX_NODE = 253
"""Characters of the name of a node."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class StorageUse(enum.StrEnum):
    """What the node that has storage does with the block device."""

    MOUNT = "mount"
    """A file system, made where there is no signature at all, mounted in a directory."""
    RAW = "raw"
    """The block device itself."""
    SWAP = "swap"
    """More memory for the whole node: only for what an operator attaches."""
    MMAP = "mmap"
    """A file as large as there is room for, in a file system, to be mapped: the memory extension of the workload-aware
    placement paper."""

    @property
    def is_mounted(self) -> bool:
        """Whether it has a file system, in a directory."""
        return self in (StorageUse.MOUNT, StorageUse.MMAP)


class FileSystem(enum.StrEnum):
    """What is made on first use."""

    EXT4 = "ext4"
    XFS = "xfs"


class StorageGrant(Value, frozen=True, kw_only=True):
    """What a lease gives of drives: all of a part of a volume, or room of its own for as long as the lease is.

    Without a ``volume`` the device's node makes room of ``size_bytes``, striped
    over the lease's drives, when it prepares the lease, and wipes and removes it
    when the lease is over.  Parts of one ``name`` become one device on the client's node, striped in
    the order of ``part``.
    """

    name: str
    """Of the storage request of the task."""
    volume: str = ""
    size_bytes: int
    """Of this part."""
    bandwidth_bytes_per_s: int = 0
    """Of this part: set aside on its drives, and the limit of the client's node; 0 for none."""
    part: int = 0
    parts: int = 1
    use: StorageUse = StorageUse.MOUNT
    file_system: FileSystem = FileSystem.EXT4
    path: str = ""
    """Where it is mounted; empty for a directory of the agent's own, whose name the program's environment has."""
    read_only: bool = False


class VolumeRequest(Value, frozen=True, kw_only=True):
    """A volume that somebody wants.

    ``stripe`` drives are used as one, 0 leaves that to the cluster; ``node`` names who is to store it, empty for whom
    the cluster finds best; ``bandwidth_bytes_per_s`` is set aside on the drives for as long as it is there, so that
    nobody who attaches it has to wait for that.
    """

    name: str
    size_bytes: int
    stripe: int = 0
    bandwidth_bytes_per_s: int = 0
    node: str = ""

    def check(self) -> None:
        """Raise :class:`InvalidInput` for what no cluster could do."""
        check_volume_name(self.name)
        check_volume_size(self.size_bytes)
        for field, value, most in (
            ("stripe", self.stripe, MAX_STRIPE),
            ("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, MAX_BYTES),
        ):
            if not 0 <= value <= most:
                raise InvalidInput(f"{field}: {value} is not from 0 to {most}")
        if len(self.node) > MAX_NODE or not self.node.isprintable():
            raise InvalidInput("node: it is not the name of a node", hint="farbus nodes lists them")


class AttachRequest(Value, frozen=True, kw_only=True):
    """A volume that an operator wants on a node, until it is detached."""

    volume: str
    node: str
    use: StorageUse = StorageUse.MOUNT
    path: str = ""
    file_system: FileSystem = FileSystem.EXT4
    read_only: bool = False


class AdoptRequest(Value, frozen=True, kw_only=True):
    """Parts of a volume that nodes have and the ledger does not are to be ``user``'s volume, or to be removed."""

    volume: str
    user: str = ""
    """Empty for the caller."""
    remove: bool = False


class VolumePart(Value, frozen=True, kw_only=True):
    """What one node stores of a volume: a logical volume over the drives, each of which has as much of it."""

    volume: str
    part: int = 0
    parts: int = 1
    size_bytes: int
    drives: tuple[str, ...]
    """Ids of the node's devices."""

    @property
    def device(self) -> str:
        """The id under which its node offers it."""
        return part_id(self.volume, self.part)


HEALTH, GOOD = "health", "good"
"""The attribute in which a node says of a part of a volume, or of a drive, what is wrong with it, in a line for people;
and what it says where nothing is."""

STEP_BYTES = 4 << 20
"""Drives give room in extents of so many bytes, as many on each drive of a stripe."""


def stepped(size_bytes: int, drives: int) -> int:
    """Return the least size of whole extents over so many drives that holds as much."""
    unit = STEP_BYTES * drives
    return -(-size_bytes // unit) * unit


def health_trouble(attributes: Mapping[str, str]) -> str:
    """Return what a device's node says is wrong with it; empty for nothing."""
    told = attributes.get(HEALTH, "")
    return "" if told == GOOD else told


class StoredPart(Value, frozen=True, kw_only=True):
    """A part as its node finds it: whether it can be used, and what its drives say of their health."""

    part: VolumePart
    troubles: tuple[str, ...] = ()
    exported: bool = False


class VolumeStatus(Value, frozen=True, kw_only=True):
    """A volume as listings show it; ``at`` is in seconds since the epoch."""

    name: str
    user: str
    state: VolumeState
    size_bytes: int
    bandwidth_bytes_per_s: int = 0
    parts: tuple[VolumePart, ...] = ()
    nodes: tuple[str, ...] = ()
    """Who stores each part."""
    epoch: int = 0
    attached_to: str = ""
    job: str = ""
    """The job that has it, or that attaches it for an operator."""
    path: str = ""
    use: str = ""
    troubles: tuple[str, ...] = ()
    at: float = 0.0
    says: str = ""
    """What is being done, or why it is not."""
    error: str = ""
    """Why what was asked for has failed; ``hint`` says what to do."""
    hint: str = ""


def storage_variable(name: str) -> str:
    """Return the variable of its environment by which a program finds the storage that is called so."""
    return f"FARBUS_STORAGE_{name.upper().replace('-', '_')}"


def part_id(volume: str, part: int) -> str:
    """Return the id of the device that is a part of a volume."""
    return f"{VOLUME_PREFIX}{volume}:{part}"


def volume_of(device: str) -> str:
    """Return the name of the volume that a device is a part of; empty for any other device."""
    if not device.startswith(VOLUME_PREFIX):
        return ""
    return device.removeprefix(VOLUME_PREFIX).rpartition(":")[0]


def check_volume_name(name: str, *, field: str = "name") -> str:
    """Return a volume's name; raise :class:`InvalidInput` for what is none."""
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"{field}: {name[:80]!r} is no name for a volume", hint="at most 40 of a-z, 0-9 and -, not at the ends"
        )
    return name


def is_mount_path(path: str) -> bool:
    """Say whether storage can be mounted there: an absolute path, written in the shortest way, and not the root."""
    return path.startswith("/") and path != "/" and posixpath.normpath(path) == path


def check_volume_size(size_bytes: int, *, field: str = "size") -> int:
    """Return a volume's size; raise :class:`InvalidInput` for what is none."""
    if not MIN_SIZE <= size_bytes <= MAX_BYTES:
        raise InvalidInput(
            f"{field}: {size_bytes} bytes are not from {format_bytes(MIN_SIZE)} to {format_bytes(MAX_BYTES)}",
            hint="write for example 100G",
        )
    return size_bytes
