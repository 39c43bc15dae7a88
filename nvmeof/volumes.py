"""The storing node's side: how a part of a volume, or room of a lease's own, comes to be, and how it ends.

To make is: a logical volume over the drives, wiped before anybody may read it.
To remove is: say so for good, wipe, and remove.  What is half made or half
wiped says so in its tags, so that whoever comes next, with or without a
journal, takes it for what it is (docs/volumes.md).

A lease's device side is :class:`RoomWork` (room of its own) or :class:`ReadyWork`
(a part of a volume), with the export where the route is a remote one.  Backwards the
export is fenced first; then a lease's own room is marked as going, while a volume stays.  From
then on nobody has it, and nobody waits for it: :class:`DropWork` wipes and removes it
afterwards, however long that takes.

What is made of a volume is never taken back once it is whole: a volume ends by :class:`RemoveWork` alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, Unavailable
from farbus.linux.lvm import Lvm
from farbus.model.nvmeof import (
    AnaState,
    Export,
    ExportedNamespace,
    SmartLog,
    SubsystemName,
    TransportAddress,
    namespace_identity,
)
from farbus.model.nvmet import COMMON_ANA_GROUP
from farbus.model.storage import LogicalIdentity, LogicalVolume, StorageDrive, identity_of, stored_bytes
from farbus.model.value import Value
from farbus.model.volume import StoredPart, VolumePart
from farbus.nvmeof.composition import choose_chunk
from farbus.nvmeof.target import AnyTargetStep, ExportWork, TargetParts
from farbus.nvmeof.target import steps_of as target_steps_of

Result = dict[str, str]

LVM_S = 120.0
"""For one change: lvm2 reads a label of each drive, writes to two places of each, and waits for udev."""

WIPE_BYTES_PER_S = 50_000_000
"""What the slowest drive that has to be written to is believed to write, while others use it."""


def _nobody_listens(_what: str, _done: int, _total: int) -> None:
    """Where nobody wants to hear how far a wipe is."""


async def _nobody_waits() -> None:
    """Where nobody is told that there is something to wipe."""


class Health(Protocol):
    """Who can ask drives for their health (:class:`farbus.linux.nvme.NvmeFabrics`)."""

    async def smart_log(self, device: str) -> SmartLog:
        """Return what a controller, by its kernel name, says of its health."""
        ...


@dataclass(frozen=True, kw_only=True)
class VolumeParts:
    """The doors of a node that stores.

    ``target`` is needed for works with an export.  ``told`` hears how many
    bytes are wiped, and of how many, by the name that errors have
    (``VOL-data:0``, ``room of lease L``).  ``ended`` is awaited when a lease's
    room has been marked as going: somebody has to do :class:`DropWork`.
    """

    lvm: Lvm
    target: TargetParts | None = None
    told: Callable[[str, int, int], None] = _nobody_listens
    ended: Callable[[], Awaitable[None]] = _nobody_waits


# The journal's bodies.


class MakeWork(Value, frozen=True, kw_only=True, tag="make"):
    """A part of a volume is to be there, wiped."""

    part: VolumePart


class ResizeWork(Value, frozen=True, kw_only=True, tag="resize"):
    """A part is to have ``part.size_bytes``, and no less than ``before_bytes``, which it has.

    Who uses it is told afterwards, by :func:`farbus.nvmeof.target.resized` and :func:`farbus.nvmeof.using.grow`.
    """

    part: VolumePart
    before_bytes: int


class RemoveWork(Value, frozen=True, kw_only=True, tag="remove"):
    """A part of a volume is to be wiped and to be no more.  There is no way back."""

    part: VolumePart


class RoomWork(Value, frozen=True, kw_only=True, tag="room"):
    """A lease is to have room of its own, exported where ``export`` is set.

    Backwards it is marked as going, for :class:`DropWork`.
    """

    lease: str
    size_bytes: int
    drives: tuple[str, ...]
    export: Export | None = None


class ReadyWork(Value, frozen=True, kw_only=True, tag="ready"):
    """A part of a volume is to be used by a lease, exported where ``export`` is set.  Backwards the volume stays."""

    lease: str
    part: VolumePart
    export: Export | None = None


class DropWork(Value, frozen=True, kw_only=True, tag="drop"):
    """Room of a lease that is over is to be wiped and to be no more."""

    lease: str
    size_bytes: int = 0


VolumeWork = MakeWork | ResizeWork | RemoveWork | RoomWork | ReadyWork | DropWork

_DECODER: msgspec.json.Decoder[VolumeWork] = msgspec.json.Decoder(VolumeWork)


def from_body(body: str) -> VolumeWork:
    """Read a recorded sequence's body; raise :class:`InvalidInput` for what is none."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"not work on volumes: {error}") from error


def object_of(work: VolumeWork) -> str:
    """Return what a sequence is about, in the journal: what is stored, or what a lease has of it."""
    if isinstance(work, MakeWork | ResizeWork | RemoveWork):
        return f"stored {work.part.device}"
    return f"storage of lease {work.lease}"


def resumable(work: VolumeWork) -> bool:
    """Say whether another agent can go on with it: keys are not written down."""
    return not (isinstance(work, RoomWork | ReadyWork) and work.export is not None and work.export.needs_keys)


def identity(work: VolumeWork) -> LogicalIdentity:
    """Return whose the logical volume of a work is."""
    if isinstance(work, RoomWork | DropWork):
        return LogicalIdentity(lease=work.lease)
    return identity_of(work.part)


def device_path(one: LogicalIdentity, *, group: str = "farbus") -> str:
    """Return the path that a logical volume has while it is active."""
    return f"/dev/{group}/{one.name}"


def export_of(
    name: SubsystemName,
    one: LogicalIdentity,
    addresses: Sequence[TransportAddress],
    *,
    authenticated: bool = False,
    device: str = "",
    ana_group: int = COMMON_ANA_GROUP,
    states: Mapping[TransportAddress, AnaState] = {},
) -> Export:
    """Return the export of a logical volume for a lease: the same identity each time, whoever has it.

    ``device`` is its path; empty for that in the usual group.  ``states`` are
    those of ``ana_group`` at addresses where it is not to be optimized.
    """
    namespace = ExportedNamespace(
        device=device or device_path(one), identity=namespace_identity(one.exported_as), ana_group=ana_group
    )
    return Export(
        name=name,
        namespaces=(namespace,),
        addresses=tuple(addresses),
        authenticated=authenticated,
        states={str(address): {str(ana_group): state} for address, state in states.items()},
    )


# What is there.


async def stored(
    parts: VolumeParts, *, health: Health | None = None, exported: Sequence[str] = ()
) -> tuple[StoredPart, ...]:
    """Return the parts of volumes that this node has, each with its troubles: SMART too, where ``health`` is given.

    ``exported`` are paths of devices that the target offers.
    """
    drives = {drive.id: drive for drive in await parts.lvm.drives()}
    ill = {name: await drive_troubles(drive, health) for name, drive in drives.items()}
    found = []
    for volume in await parts.lvm.volumes():
        if not volume.identity.volume:
            continue
        part = VolumePart(
            volume=volume.identity.volume, part=volume.identity.part, parts=volume.identity.parts,
            size_bytes=volume.size_bytes, drives=volume.drives,
        )  # fmt: skip
        troubles = [*_troubles(volume)]
        for drive in volume.drives:
            troubles += ill.get(drive, (f"drive {drive} is not in the volume group",))
        found.append(StoredPart(part=part, troubles=tuple(troubles), exported=volume.path in exported))
    return tuple(found)


async def drive_troubles(drive: StorageDrive, health: Health | None) -> tuple[str, ...]:
    """Return what an operator should know of a drive, in words; empty for one in good health."""
    if drive.missing:
        return (f"drive {drive.id} is missing",)
    if health is None or not drive.controller:
        return ()
    try:
        told = (await health.smart_log(drive.controller)).troubles
    except FarbusError as error:
        return (f"drive {drive.id}: its health is not known: {error.message}",)
    return tuple(f"drive {drive.id}: {trouble}" for trouble in told)


def _troubles(volume: LogicalVolume) -> tuple[str, ...]:
    if volume.going:
        return ("it is being removed",)
    if volume.unwiped_from == 0:
        return ("it is being made",)
    if volume.unwiped_from > 0:
        return ("it is being made larger",)
    return ()


async def rooms(parts: VolumeParts) -> tuple[LogicalVolume, ...]:
    """Return the room that leases have of their own: what is of no lease any more is to be dropped."""
    return tuple(volume for volume in await parts.lvm.volumes() if volume.identity.lease)


# Steps.


@dataclass(frozen=True, kw_only=True)
class VolumeStep:
    """What all steps have."""

    parts: VolumeParts
    whose: LogicalIdentity
    lasting: bool = True
    """What is on drives outlives a boot."""
    deadline_s: float = LVM_S

    @property
    def identity(self) -> str:
        """Whose the logical volume is."""
        return str(self.whose)

    @property
    def devices(self) -> tuple[str, ...]:
        """The logical volume alone: of the group, lvm2 has a lock of its own."""
        return (f"logical volume {self.whose.name}",)

    async def _find(self) -> LogicalVolume | None:
        return await self.parts.lvm.find(self.whose)

    def _told(self, done: int, total: int) -> None:
        self.parts.told(str(self.whose), done, total)


def _wipe_s(size_bytes: int) -> float:
    return LVM_S + size_bytes / WIPE_BYTES_PER_S


@dataclass(frozen=True, kw_only=True)
class CreatePart(VolumeStep):
    """A logical volume over the drives, which says of itself that it is not wiped yet."""

    size_bytes: int
    drives: tuple[str, ...]
    kind: str = "CreatePart"

    @property
    def says(self) -> str:
        """What is done."""
        return f"make {self.whose} of {self.size_bytes} bytes on {', '.join(self.drives)}"

    def _is_it(self, found: LogicalVolume) -> bool:
        size = stored_bytes(self.size_bytes, len(self.drives))
        return not found.going and (found.size_bytes, found.drives) == (size, self.drives)

    async def observe(self, known: Result | None) -> Result | None:
        """Compare what is there."""
        found = await self._find()
        return {} if found is not None and self._is_it(found) else None

    async def do(self) -> Result:
        """Make it; what an earlier try has left, which nobody has used, goes first."""
        found = await self._find()
        if found is not None and not self._is_it(found):
            if found.going:
                raise Conflict(f"make {self.whose}: one of that name is being removed", hint="wait until it is gone")
            if found.unwiped_from != 0:
                told = f"{found.size_bytes} bytes on {', '.join(found.drives)}"
                raise Conflict(f"make {self.whose}: it is there already, with {told}")
            await self.parts.lvm.remove(self.whose)
            found = None
        if found is None:
            there = {drive.id: drive for drive in await self.parts.lvm.drives()}
            chunk = choose_chunk(there[name].optimal_io_bytes for name in self.drives if name in there)
            await self.parts.lvm.create(
                self.whose, size_bytes=self.size_bytes, drives=self.drives,
                chunk_bytes=chunk if len(self.drives) > 1 else 0,
            )  # fmt: skip
        return {}

    async def compensate(self) -> None:
        """Remove what nobody has used; mark a lease's own, which somebody may have; a volume that is whole stays."""
        lvm, found = self.parts.lvm, await self._find()
        if found is not None and not found.going:
            # Of one whose drive is missing lvm2 changes nothing; what was on it is wiped when it is given out again.
            if found.unwiped_from == 0 or (self.whose.lease and found.partial):
                await lvm.remove(self.whose)
            elif self.whose.lease:
                await lvm.mark_going(self.whose)
        if self.whose.lease:
            await self.parts.ended()


@dataclass(frozen=True, kw_only=True)
class WipePart(VolumeStep):
    """Nothing can be read of what others have written: zeros are, on the drives themselves."""

    size_bytes: int
    kind: str = "WipePart"

    def __post_init__(self) -> None:
        """Give it as long as the slowest drive takes."""
        object.__setattr__(self, "deadline_s", _wipe_s(self.size_bytes))

    @property
    def says(self) -> str:
        """What is done."""
        return f"wipe {self.whose}"

    async def observe(self, known: Result | None) -> Result | None:
        """Look for its mark; what is gone needs none."""
        found = await self._find()
        return {} if found is None or found.unwiped_from < 0 or (found.going and found.partial) else None

    async def do(self) -> Result:
        """Wipe it."""
        found = await self._find()
        if found is not None and found.partial and not found.going:
            raise NotFound(f"wipe {self.whose}: a drive of it is missing", hint="put the drive back")
        await self.parts.lvm.wipe(self.whose, progress=self._told)
        return {}

    async def compensate(self) -> None:
        """A volume stays as it is; a lease's own room is wiped once more, but later."""


@dataclass(frozen=True, kw_only=True)
class ActivatePart(VolumeStep):
    """Its block device is there.  The result has its ``path`` and its ``size_bytes``."""

    lasting: bool = False
    kind: str = "ActivatePart"

    @property
    def says(self) -> str:
        """What is done."""
        return f"activate {self.whose}"

    async def observe(self, known: Result | None) -> Result | None:
        """Look for it."""
        found = await self._find()
        return self._result(found) if found is not None and found.ready and found.active else None

    async def do(self) -> Result:
        """Activate it; raise :class:`Conflict` or :class:`NotFound` for what can't be used."""
        found = await self._find()
        if found is None:
            raise NotFound(f"use {self.whose}: this node does not store it", hint="farbus volume list shows who does")
        if found.partial:
            raise Unavailable(f"use {self.whose}: a drive of it is missing", hint="put the drive back")
        if not found.ready:
            raise Conflict(f"use {self.whose}: {_troubles(found)[0]}", hint="wait until that is done")
        await self.parts.lvm.activate(self.whose)
        return self._result(found)

    def _result(self, found: LogicalVolume) -> Result:
        return {"path": found.path, "size_bytes": str(found.size_bytes)}

    async def compensate(self) -> None:
        """Deactivate it; raise :class:`Conflict` while somebody has it open."""
        await self.parts.lvm.deactivate(self.whose)


@dataclass(frozen=True, kw_only=True)
class ExtendPart(VolumeStep):
    """It is larger, which nobody has been told yet."""

    size_bytes: int
    before_bytes: int
    drives: tuple[str, ...]
    kind: str = "ExtendPart"

    @property
    def says(self) -> str:
        """What is done."""
        return f"make {self.whose} larger, {self.size_bytes} bytes"

    async def observe(self, known: Result | None) -> Result | None:
        """Compare its size."""
        found = await self._find()
        return None if found is None or found.size_bytes < self._wanted() else self._result(found)

    def _wanted(self) -> int:
        return stored_bytes(self.size_bytes, len(self.drives))

    def _result(self, found: LogicalVolume) -> Result:
        return {"size_bytes": str(found.size_bytes)}

    async def do(self) -> Result:
        """Extend it on the drives that it has."""
        await self.parts.lvm.extend(self.whose, size_bytes=self.size_bytes)
        found = await self._find()
        return self._result(found) if found is not None else {}

    async def compensate(self) -> None:
        """Cut it, as long as its end is not wiped: until then nobody has been told of it."""
        found = await self._find()
        if found is not None and not found.going and found.unwiped_from == self.before_bytes:
            await self.parts.lvm.reduce(self.whose, size_bytes=self.before_bytes)


@dataclass(frozen=True, kw_only=True)
class RetirePart(VolumeStep):
    """It is said, on the drives, that it goes: nobody uses it any more, whatever becomes of this agent."""

    kind: str = "RetirePart"

    @property
    def says(self) -> str:
        """What is done."""
        return f"take {self.whose} out of use"

    async def observe(self, known: Result | None) -> Result | None:
        """Look for its mark; what is gone needs none."""
        found = await self._find()
        return {} if found is None or found.going else None

    async def do(self) -> Result:
        """Mark it; raise :class:`Conflict` while somebody has it open."""
        await self.parts.lvm.mark_going(self.whose)
        return {}

    async def compensate(self) -> None:
        """There is no way back: it may be wiped by now."""


@dataclass(frozen=True, kw_only=True)
class DropPart(VolumeStep):
    """Nothing of it is left, and its room is free."""

    kind: str = "DropPart"

    @property
    def says(self) -> str:
        """What is done."""
        return f"remove {self.whose}"

    async def observe(self, known: Result | None) -> Result | None:
        """Look for it."""
        return None if await self._find() is not None else {}

    async def do(self) -> Result:
        """Remove it."""
        await self.parts.lvm.remove(self.whose)
        return {}

    async def compensate(self) -> None:
        """What is gone is gone."""


AnyVolumeStep = CreatePart | WipePart | ActivatePart | ExtendPart | RetirePart | DropPart | AnyTargetStep


def steps_of(parts: VolumeParts, work: VolumeWork) -> tuple[AnyVolumeStep, ...]:
    """Return the steps of a storing node's work, in order.

    The results of :class:`RoomWork` and :class:`ReadyWork` have ``path`` and
    ``size_bytes`` of the block device, and with an export what that has (``port.ADDRESS``).
    """
    whose = identity(work)
    if isinstance(work, MakeWork):
        part = work.part
        return (
            CreatePart(parts=parts, whose=whose, size_bytes=part.size_bytes, drives=part.drives),
            WipePart(parts=parts, whose=whose, size_bytes=part.size_bytes),
        )
    if isinstance(work, ResizeWork):
        part, more = work.part, work.part.size_bytes - work.before_bytes
        return (
            ExtendPart(
                parts=parts, whose=whose, size_bytes=part.size_bytes, before_bytes=work.before_bytes, drives=part.drives
            ),
            WipePart(parts=parts, whose=whose, size_bytes=max(0, more)),
        )
    if isinstance(work, RemoveWork | DropWork):
        size = work.part.size_bytes if isinstance(work, RemoveWork) else work.size_bytes
        return (
            RetirePart(parts=parts, whose=whose),
            WipePart(parts=parts, whose=whose, size_bytes=size),
            DropPart(parts=parts, whose=whose),
        )
    steps: list[AnyVolumeStep] = []
    if isinstance(work, RoomWork):
        steps += [
            CreatePart(parts=parts, whose=whose, size_bytes=work.size_bytes, drives=work.drives),
            WipePart(parts=parts, whose=whose, size_bytes=work.size_bytes),
        ]
    steps.append(ActivatePart(parts=parts, whose=whose))
    if work.export is not None:
        if parts.target is None:
            raise Unavailable(f"export {whose}: this node has no NVMe target")
        steps += target_steps_of(parts.target, ExportWork(export=work.export))
    return tuple(steps)
