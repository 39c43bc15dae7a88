"""The using node's side: block devices of this node or of others become what a task asked for, and are let go again.

Parts come first, in order: those of other nodes by the initiator's steps
(:mod:`farbus.nvmeof.initiator`), those of this node as they are.  Several
become one device (:class:`farbus.nvmeof.composition.CreateStripe`).  Then they are used:

* ``mount``: a file system, made where there is nothing at all, mounted in a directory of ours or in the one asked for;
* ``raw``: a device node of the task's user;
* ``swap``: more memory for the whole node;
* ``mmap``: a file of all the room there is, in a file system, for the task to map.

Backwards it is undone in reverse, and nothing is taken away while somebody holds it, unless it is forced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, Unavailable
from farbus.linux.block import BlockDevices
from farbus.linux.filesystems import FileSystems, described
from farbus.model.nvmeof import Connection, IoLimit, Stripe
from farbus.model.storage import CUT_OFF, Account, Format, Mounted, format_of
from farbus.model.value import Value, from_json
from farbus.model.volume import FileSystem, StorageUse
from farbus.nvmeof.composition import CreateStripe, choose_chunk
from farbus.nvmeof.initiator import APPEAR_S, DRAIN_INTERVAL_S, MARGIN_S, drain
from farbus.nvmeof.keys import LeaseKeys
from farbus.nvmeof.parts import DRAIN_S, Attach, InitiatorParts
from farbus.nvmeof.sequences import ConnectStep, connect_steps

Result = dict[str, str]

MAKE_S = 300.0
"""For a file system to be made or mended: xfs writes its log, e2fsck replays one; over a network."""

MOUNT_S = 120.0
"""For a journal to be replayed."""

SWAP_OFF_S = 600.0
"""For what is on swap space to go back to memory."""

FILL_S = 600.0
"""For a file of all the room there is: ext4 and xfs write extents only, but those of all of it."""

MEMORY_FILE = "memory"
"""The file that is mapped, in its file system."""


class UsedPart(Value, frozen=True, kw_only=True):
    """One part of what is used, by the path that it has here.

    ``connection`` is how it comes here from another node, whose only namespace
    it is then; None where this node stores it.  ``limit`` is for the programs of the work's group, on this part.
    """

    path: str
    size_bytes: int
    connection: Connection | None = None
    limit: IoLimit | None = None


class UseWork(Value, frozen=True, kw_only=True):
    """Parts that are to be used as one thing: the body of a sequence in the journal.

    ``id`` names it on this node, and what is made for it: a lease, or a task
    with the name of its storage request; letters, digits and ``._-``.  ``group`` is the
    control group that limits are for.  ``force`` takes away what is still held: only what is told back, once somebody
    has decided it.
    """

    id: str
    parts: tuple[UsedPart, ...]
    use: StorageUse = StorageUse.MOUNT
    file_system: FileSystem = FileSystem.EXT4
    path: str = ""
    """Where it is to be mounted; empty for a directory of our own."""
    read_only: bool = False
    account: Account = Account()
    chunk_bytes: int = 0
    """Of the stripe over several parts; 0 for the usual.  It has to be the same each time."""
    group: str = ""
    drain_s: float = DRAIN_S
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class UseParts:
    """The doors of a node that uses storage."""

    initiator: InitiatorParts
    blocks: BlockDevices
    filesystems: FileSystems


def object_of(work: UseWork) -> str:
    """Return what a sequence is about, in the journal."""
    return f"use of {work.id}"


def from_body(body: str) -> UseWork:
    """Read a recorded sequence's body; raise :class:`InvalidInput` for what is none."""
    return from_json(body, UseWork)


def resumable(work: UseWork) -> bool:
    """Say whether another agent can go on with it: keys are not written down."""
    return not any(part.connection is not None and part.connection.needs_keys for part in work.parts)


def part_here(path: str, size_bytes: int, *, limit: IoLimit | None = None) -> UsedPart:
    """Return a part that this node stores, by the path of its logical volume."""
    return UsedPart(path=path, size_bytes=size_bytes, limit=limit)


def part_there(connection: Connection, *, limit: IoLimit | None = None) -> UsedPart:
    """Return a part that another node exports, in a subsystem with one namespace."""
    (namespace,) = connection.namespaces
    return UsedPart(path=namespace.identity.by_id, size_bytes=namespace.size_bytes, connection=connection, limit=limit)


def stripe_of(work: UseWork) -> Stripe | None:
    """Return the stripe over several parts, in their order; None for one part.

    As much of each is used as of the smallest, in whole chunks.
    """
    if len(work.parts) < 2:
        return None
    chunk = work.chunk_bytes or choose_chunk()
    members = tuple(part.path for part in work.parts)
    usable = min(part.size_bytes for part in work.parts) // chunk * chunk
    if chunk & (chunk - 1) or not usable or len(set(members)) < len(members):
        raise InvalidInput(f"use of {work.id}: {len(members)} parts in chunks of {chunk} bytes do not fit")
    return Stripe(id=work.id, members=members, member_bytes=usable, chunk_bytes=chunk)


def device_of(work: UseWork) -> str:
    """Return the path of the block device that is used."""
    stripe = stripe_of(work)
    return stripe.path if stripe is not None else work.parts[0].path


def size_of(work: UseWork) -> int:
    """Return the size of the block device that is used, in bytes."""
    stripe = stripe_of(work)
    return stripe.size_bytes if stripe is not None else work.parts[0].size_bytes


def attach_of(work: UseWork) -> Attach:
    """Return what the initiator's steps are told."""
    return Attach(
        id=work.id,
        connections=tuple(part.connection for part in work.parts if part.connection is not None),
        stripe=stripe_of(work), group=work.group, drain_s=work.drain_s, force=work.force,
    )  # fmt: skip


async def grow(parts: UseParts, work: UseWork, *, size_bytes: int) -> None:
    """Let a mounted file system have its device's new size, once that is here.

    The storing node has made the part larger and told so
    (:func:`farbus.nvmeof.target.resized`).  Raises :class:`Conflict` for what
    does not grow while it is used: what is striped over several parts has its new size when it is used the next time.
    """
    if work.use is StorageUse.SWAP:
        raise Conflict(f"grow {work.id}: swap space keeps its size", hint="make a larger volume for it")
    if len(work.parts) > 1:
        raise Conflict(
            f"grow {work.id}: it is striped over {len(work.parts)} nodes", hint="detach it and attach it again"
        )
    device = device_of(work)
    await parts.initiator.until(
        lambda: "" if parts.blocks.look(device).size_bytes >= size_bytes else f"{device} has its old size",
        what=f"grow {work.id}",
        limit_s=APPEAR_S,
        hint="has the storing node been told to make it larger?",
    )
    if work.use in (StorageUse.MOUNT, StorageUse.MMAP) and not work.read_only:
        await parts.filesystems.grow(device, await _format(parts, device))


async def _format(parts: UseParts, device: str) -> Format:
    """Return the file system that is on a device; raise :class:`Conflict` for what is none that can be mounted."""
    there = await parts.filesystems.signature(device)
    if there is None or there.kind not in (Format.EXT4, Format.XFS):
        told = described(there) if there is not None else "nothing"
        raise Conflict(f"{device} holds {told}, and no file system", hint="use it as what it is, or have it wiped")
    return Format(there.kind)


# Steps.


@dataclass(frozen=True, kw_only=True)
class UseStep:
    """What all steps have."""

    parts: UseParts
    work: UseWork
    lasting: bool = False

    @property
    def identity(self) -> str:
        """What is used."""
        return f"use of {self.work.id}"

    @property
    def device(self) -> str:
        """The block device that is used."""
        return device_of(self.work)

    @property
    def devices(self) -> tuple[str, ...]:
        """The block device, which nobody else works on."""
        return (f"block device {self.device}",)

    def overdue(self) -> FarbusError | None:
        """There is nothing in particular to say."""
        return None

    def is_in_use(self) -> bool:
        """Say whether the block device is used as this work uses it, mounted or as swap space."""
        filesystems, use = self.parts.filesystems, self.work.use
        if use in (StorageUse.MOUNT, StorageUse.MMAP):
            return bool(filesystems.mounts(self.device))
        return use is StorageUse.SWAP and filesystems.is_swap(self.device)


@dataclass(frozen=True, kw_only=True)
class FindPart(UseStep):
    """A part that this node stores is here, with its size, and nobody has it."""

    part: UsedPart
    kind: str = "FindPart"

    @property
    def deadline_s(self) -> float:
        """For udev, and for holders to let go."""
        return APPEAR_S + self.work.drain_s + MARGIN_S

    @property
    def says(self) -> str:
        """What is done."""
        return f"find {self.part.path}"

    def _lacking(self) -> str:
        try:
            size = self.parts.blocks.look(self.part.path).size_bytes
        except NotFound:
            return f"{self.part.path} is not there"
        if size < self.part.size_bytes:
            return f"{self.part.path} has {size} bytes, not {self.part.size_bytes}"
        return ""

    async def observe(self, known: Result | None) -> Result | None:
        """Look at it; that nobody has it is proven once."""
        return {"path": self.part.path} if known is not None and not self._lacking() else None

    async def do(self) -> Result:
        """Wait for it, and prove that it is free; raise :class:`Conflict` where it is not."""
        await self.parts.initiator.until(
            self._lacking, what=f"use {self.work.id}", limit_s=APPEAR_S, hint="is its logical volume active?"
        )
        if not self._is_used():
            await self.parts.blocks.prove_free(self.part.path)
        return {"path": self.part.path}

    def _is_used(self) -> bool:
        """Say whether an earlier try of this very work has it: by what this use holds, and no other."""
        striped = len(self.work.parts) > 1 and bool(self.parts.blocks.look(self.part.path).holders)
        return striped or self.is_in_use()

    async def compensate(self) -> None:
        """Wait until nobody holds it; raise :class:`Conflict` with who does.  Not where it is forced."""
        if self.work.force:
            return
        try:
            name = self.parts.blocks.look(self.part.path).name
        except (NotFound, Conflict):
            return
        await drain(self.parts.initiator, [name], what=f"let go of {self.part.path}", limit_s=self.work.drain_s)


@dataclass(frozen=True, kw_only=True)
class LimitPart(UseStep):
    """Programs of the work's group do no more with a part than was granted: here, where they are in a group."""

    part: UsedPart
    kind: str = "LimitPart"
    deadline_s: float = MARGIN_S

    @property
    def says(self) -> str:
        """What is done."""
        return f"limit what control group {self.work.group} may do with {self.part.path}"

    def _number(self) -> str:
        nvme = self.parts.initiator.nvme
        return nvme.block_number(nvme.leads_to(self.part.path))

    async def observe(self, known: Result | None) -> Result | None:
        """Read the limit."""
        cgroups, number = self.parts.initiator.cgroups, self._number()
        if cgroups is None or not number:
            return None
        return {} if cgroups.io_limit(self.work.group, number) == self.part.limit else None

    async def do(self) -> Result:
        """Set it; raise where this node's groups can't."""
        cgroups, number = self.parts.initiator.cgroups, self._number()
        if cgroups is None or self.part.limit is None:
            raise Unavailable(f"limit {self.part.path}: this node has no control groups")
        if not number:
            raise NotFound(f"limit {self.part.path}: it is not there")
        cgroups.limit_io(self.work.group, number, self.part.limit)
        return {}

    async def compensate(self) -> None:
        """Take it back; the group may be gone with its programs."""
        cgroups, number = self.parts.initiator.cgroups, self._number()
        if cgroups is None or not number:
            return
        try:
            if cgroups.io_limit(self.work.group, number) != IoLimit():
                cgroups.limit_io(self.work.group, number, IoLimit())
        except NotFound:
            return


@dataclass(frozen=True, kw_only=True)
class MakeFileSystem(UseStep):
    """There is what is asked for on the device: made where it holds nothing at all, and never again."""

    lasting: bool = True
    kind: str = "MakeFileSystem"
    deadline_s: float = MAKE_S

    @property
    def says(self) -> str:
        """What is done."""
        return f"make {self._format} on {self.device}, if it holds nothing"

    @property
    def _format(self) -> Format:
        return Format.SWAP if self.work.use is StorageUse.SWAP else format_of(self.work.file_system)

    @property
    def _fits(self) -> tuple[Format, ...]:
        # A file system of the other kind has somebody's files.
        return (Format.SWAP,) if self.work.use is StorageUse.SWAP else (Format.EXT4, Format.XFS)

    async def observe(self, known: Result | None) -> Result | None:
        """Look for its signature; not where it is in use: a device whose paths are lost keeps waiting who reads it."""
        if known is not None and self.is_in_use():
            return known
        try:
            there = await self.parts.filesystems.signature(self.device)
        except NotFound:
            return None
        return {"format": there.kind} if there is not None and there.kind in self._fits else None

    async def do(self) -> Result:
        """Make it; raise :class:`Conflict` where there is anything else."""
        there = await self.parts.filesystems.signature(self.device)
        if there is not None and there.kind != CUT_OFF:
            raise Conflict(
                f"use {self.work.id} as {self.work.use}: it holds {described(there)}",
                hint="nothing was changed; use it as what it is, or remove the volume and make it anew",
            )
        if self.work.read_only:
            raise Conflict(f"use {self.work.id} read-only: it holds nothing", hint="use it without read_only first")
        await self.parts.filesystems.make(self.device, self._format)
        return {"format": self._format.value}

    async def compensate(self) -> None:
        """It is the volume's from now on."""


@dataclass(frozen=True, kw_only=True)
class MountStorage(UseStep):
    """It is mounted, whole and clean, where it was asked for, and its top is the task's user's."""

    kind: str = "MountStorage"

    @property
    def deadline_s(self) -> float:
        """For a check and a journal, or for who uses it to let go."""
        return max(MOUNT_S, self.work.drain_s + MARGIN_S)

    @property
    def says(self) -> str:
        """What is done."""
        return f"mount {self.device} on {self.point}"

    @property
    def point(self) -> str:
        """Where."""
        return self.work.path or self.parts.filesystems.mount_point(self.work.id)

    def _mounts(self) -> tuple[Mounted, ...]:
        return self.parts.filesystems.mounts(self.device, self.point)

    def _result(self) -> Result:
        return {"path": self.point, "mounted": self.point}

    async def observe(self, known: Result | None) -> Result | None:
        """Look for it among the mounts."""
        right = [
            one for one in self._mounts() if one.path == self.point and one.read_only == self.work.read_only
        ]  # fmt: skip
        return self._result() if right else None

    async def do(self) -> Result:
        """Check and mount it, and let the file system have what its volume got meanwhile."""
        filesystems, work = self.parts.filesystems, self.work
        own = filesystems.mount_point(work.id).rpartition("/")[0]
        if work.path and f"{work.path}/".startswith(f"{own}/"):
            # There is mounted by root's rights, and others' storage is.
            raise InvalidInput(
                f"mount {self.device} on {work.path}: below {own} are the agent's own directories",
                hint="name another path, or none",
            )
        if elsewhere := self._mounts():
            raise Conflict(f"mount {self.device}: it is mounted on {elsewhere[0].path} already")
        format = await _format(self.parts, self.device)
        await filesystems.check(self.device, format)
        await filesystems.mount(self.device, self.point, format, account=work.account, read_only=work.read_only)
        if not work.read_only:
            await filesystems.grow(self.device, format)
        return self._result()

    async def compensate(self) -> None:
        """Unmount it once nobody uses it; raise :class:`Conflict` with who does.  Forced, nobody is waited for."""
        clock, filesystems, work = self.parts.initiator.clock, self.parts.filesystems, self.work
        end = clock.monotonic() + work.drain_s
        while True:
            try:
                await filesystems.unmount(self.device, self.point, lazy=work.force)
                break
            except Conflict:
                left = end - clock.monotonic()
                if left <= 0:
                    raise
                await clock.sleep(min(DRAIN_INTERVAL_S, left))
        if not work.path:
            await filesystems.clear_mount_point(work.id)


@dataclass(frozen=True, kw_only=True)
class FillFile(UseStep):
    """There is a file of all the room, for the task to map.  Its ``path`` is the result."""

    lasting: bool = True
    kind: str = "FillFile"
    deadline_s: float = FILL_S

    @property
    def says(self) -> str:
        """What is done."""
        return f"make a file of all the room of {self.device}"

    async def observe(self, known: Result | None) -> Result | None:
        """Keep what was made: whether it is there is asked again where it is not on record."""
        mounted = self.parts.filesystems.mounts(self.device)
        return known if known and "path" in known and mounted else None

    async def do(self) -> Result:
        """Make it."""
        path = await self.parts.filesystems.allocate(self.device, MEMORY_FILE, account=self.work.account)
        return {"path": path}

    async def compensate(self) -> None:
        """It stays, with what is in it."""


@dataclass(frozen=True, kw_only=True)
class GiveNode(UseStep):
    """The task's user can open the block device.  Its ``path`` is the result."""

    kind: str = "GiveNode"
    deadline_s: float = MARGIN_S

    @property
    def says(self) -> str:
        """What is done."""
        return f"give {self.device} to user {self.work.account.uid}"

    async def observe(self, known: Result | None) -> Result | None:
        """Compare where the node leads."""
        nvme = self.parts.initiator.nvme
        number = nvme.block_number(nvme.leads_to(self.device))
        given = self.parts.filesystems.node(self.work.id)
        return known if known is not None and number and given == number else None

    async def do(self) -> Result:
        """Make a node."""
        path = await self.parts.filesystems.give_node(
            self.device, self.work.id, account=self.work.account, read_only=self.work.read_only
        )
        return {"path": path}

    async def compensate(self) -> None:
        """Remove the node; who has it open is found where the device is let go."""
        await self.parts.filesystems.take_node(self.work.id)


@dataclass(frozen=True, kw_only=True)
class SwapOn(UseStep):
    """The node swaps to it."""

    kind: str = "SwapOn"
    deadline_s: float = SWAP_OFF_S

    @property
    def says(self) -> str:
        """What is done."""
        return f"swap to {self.device}"

    async def observe(self, known: Result | None) -> Result | None:
        """Look whether it does."""
        return {"path": self.device} if self.parts.filesystems.is_swap(self.device) else None

    async def do(self) -> Result:
        """Begin."""
        await self.parts.filesystems.swap_on(self.device)
        return {"path": self.device}

    async def compensate(self) -> None:
        """End it, forced or not: what is on it is memory of programs."""
        await self.parts.filesystems.swap_off(self.device)


AnyUseStep = (
    ConnectStep | CreateStripe
    | FindPart | LimitPart | MakeFileSystem | MountStorage | FillFile | GiveNode | SwapOn
)  # fmt: skip


def steps_of(parts: UseParts, work: UseWork, *, keys: Mapping[str, LeaseKeys] | None = None) -> tuple[AnyUseStep, ...]:
    """Return the steps of a use, in order; ``keys`` are by the name of the lease.

    ``path`` of their result is what the task is told: a directory, a file or a block device.
    """
    if not work.parts:
        raise InvalidInput(f"use of {work.id}: it has no parts")
    attach, initiator = attach_of(work), parts.initiator
    steps: list[AnyUseStep] = []
    for part in work.parts:
        connection = part.connection
        if connection is None:
            steps.append(FindPart(parts=parts, work=work, part=part))
            continue
        steps += connect_steps(initiator, attach, connection, (keys or {}).get(connection.name.lease, LeaseKeys()))
    steps += [LimitPart(parts=parts, work=work, part=part) for part in work.parts if part.limit is not None]
    if attach.stripe is not None:
        steps.append(CreateStripe(parts=initiator, work=attach, stripe=attach.stripe))
    if work.use is StorageUse.RAW:
        return (*steps, GiveNode(parts=parts, work=work))
    steps.append(MakeFileSystem(parts=parts, work=work))
    if work.use is StorageUse.SWAP:
        return (*steps, SwapOn(parts=parts, work=work))
    steps.append(MountStorage(parts=parts, work=work))
    if work.use is StorageUse.MMAP and not work.read_only:
        steps.append(FillFile(parts=parts, work=work))
    return tuple(steps)
