"""The agent's dealings with storage: what it exports of its drives, and what its tasks use of others' and its own.

Device side: a part of a volume, which must be here, or room that is made for
the lease; for a remote route it is exported (:mod:`farbus.nvmeof.target`).
Client side: parts are connected (:mod:`farbus.nvmeof.sequences`), striped
where there are several, and used as they are wanted
(:mod:`farbus.nvmeof.using`).  What is found is known by its names alone, which
are made of the lease, so that an agent that is restarted takes hold of it, and
ends what is no lease's any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from farbus.agent.config import AgentConfig
from farbus.agent.events import PreparedLease
from farbus.agent.objects import claims
from farbus.agent.steps import Result, Step, TellsOverdue
from farbus.errors import Conflict, FarbusError, InvalidInput, Unavailable
from farbus.linux.links import resolved
from farbus.linux.lvm import Lvm
from farbus.linux.users import Users
from farbus.model.device import Route
from farbus.model.lease import Lease
from farbus.model.nvmeof import (
    Connection,
    ExpectedNamespace,
    Export,
    ExportedNamespace,
    Stripe,
    SubsystemName,
    Transport,
    TransportAddress,
    namespace_identity,
    normal_address,
    transport_address,
)
from farbus.model.storage import LogicalIdentity
from farbus.model.volume import StorageGrant
from farbus.nvmeof.composition import choose_chunk
from farbus.nvmeof.keys import Keys, keys_of
from farbus.nvmeof.parts import Attach, InitiatorParts
from farbus.nvmeof.sequences import steps_of as attach_steps
from farbus.nvmeof.target import ExportWork, TargetParts
from farbus.nvmeof.target import steps_of as target_steps
from farbus.nvmeof.volumes import ActivatePart, CreatePart, VolumeParts, WipePart

_log = structlog.get_logger()

LOOK_DEADLINE_S = 60.0
"""Longest for what a step does beside wiping: lvm2 reads a label of each drive, and drives answer late under load."""


def lease_name(lease: Lease) -> SubsystemName:
    """Return what a lease is called among subsystems: the highest epoch of what it has."""
    return SubsystemName(lease=lease.id, epoch=max(claims(lease).values(), default=0))


def grant_of(lease: Lease) -> StorageGrant:
    """Return what a lease of storage gives."""
    if lease.storage is None:
        raise InvalidInput(f"lease {lease.id}: it gives no storage")
    return lease.storage


def stored_as(lease: Lease) -> LogicalIdentity:
    """Return whose logical volume a lease gives: a volume's, or its own."""
    grant = grant_of(lease)
    if grant.volume:
        return LogicalIdentity(volume=grant.volume, part=grant.part, parts=grant.parts)
    return LogicalIdentity(lease=lease.id)


def variable(name: str) -> str:
    """Return the variable by which a program finds its storage."""
    return f"FARBUS_STORAGE_{name.upper().replace('-', '_')}"


@dataclass(frozen=True)
class Scoped:
    """A step whose results are for the steps of its sequence alone: they are kept under ``scope``."""

    step: Step
    scope: str

    @property
    def kind(self) -> str:
        """The step's."""
        return self.step.kind

    @property
    def identity(self) -> str:
        """The step's."""
        return self.step.identity

    @property
    def devices(self) -> tuple[str, ...]:
        """The step's."""
        return self.step.devices

    @property
    def deadline_s(self) -> float:
        """The step's."""
        return self.step.deadline_s

    @property
    def lasting(self) -> bool:
        """The step's."""
        return self.step.lasting

    def _inside(self, result: Result | None) -> Result | None:
        if result is None:
            return None
        return {key.removeprefix(f"{self.scope}/"): value for key, value in result.items()}

    def _outside(self, result: Result) -> Result:
        return {f"{self.scope}/{key}": value for key, value in result.items()}

    async def observe(self, known: Result | None) -> Result | None:
        """Look at it."""
        found = await self.step.observe(self._inside(known))
        return None if found is None else self._outside(found)

    async def do(self) -> Result:
        """Do it."""
        return self._outside(await self.step.do())

    async def compensate(self) -> None:
        """Take it back."""
        await self.step.compensate()

    def overdue(self) -> FarbusError | None:
        """Say what it waits for, where it knows."""
        return self.step.overdue() if isinstance(self.step, TellsOverdue) else None


@dataclass(frozen=True, kw_only=True)
class ProvideStorage:
    """Where a lease's storage will be offered is on record, before anything is made of it."""

    lease: Lease
    endpoint: str
    why_not: str = ""
    kind: str = "ProvideStorage"
    devices: tuple[str, ...] = ()
    deadline_s: float = LOOK_DEADLINE_S
    lasting: bool = False

    @property
    def identity(self) -> str:
        """What is given."""
        return str(stored_as(self.lease))

    async def observe(self, known: Result | None) -> Result | None:
        """It is what was told to others."""
        return known

    async def do(self) -> Result:
        """Say it; raise where this node does not serve the lease."""
        if self.why_not:
            raise Unavailable(f"lease {self.lease.id}: {self.why_not}")
        return {"endpoint": self.endpoint}

    async def compensate(self) -> None:
        """What was told is not true any more when the lease is over."""


@dataclass(frozen=True, kw_only=True)
class MakeRoom(CreatePart):
    """Room of a lease's own.  Backwards it is marked as going, and its lease is free: ``ended`` sees to its wiping."""

    ended: Callable[[], Awaitable[None]]

    async def compensate(self) -> None:
        """Remove what nobody has used; have wiped what somebody may have."""
        found = await self._find()
        if found is None or found.going:
            return
        if found.unwiped_from == 0:
            await self.parts.lvm.remove(self.whose)
        else:
            await self.parts.lvm.mark_going(self.whose)
        await self.ended()


class WipeRoom(WipePart):
    """What others have written there is gone before the lease has it."""

    async def compensate(self) -> None:
        """It is wiped once more, but later."""


@dataclass(frozen=True, kw_only=True)
class GiveStorage:
    """The program's variable names what it was given: the last step of each storage."""

    name: str
    path: Callable[[], Awaitable[str]]
    kind: str = "GiveStorage"
    devices: tuple[str, ...] = ()
    deadline_s: float = LOOK_DEADLINE_S
    lasting: bool = False

    @property
    def identity(self) -> str:
        """The storage."""
        return f"storage {self.name}"

    async def observe(self, known: Result | None) -> Result | None:
        """Those before it have looked."""
        return known

    async def do(self) -> Result:
        """Say where it is."""
        return {variable(self.name): await self.path()}

    async def compensate(self) -> None:
        """A variable needs no undoing."""


@dataclass(frozen=True, kw_only=True)
class StorageParts:
    """Through what a node stores and uses storage.

    ``path_of`` is where a logical volume's block device is.
    """

    lvm: Lvm
    target: TargetParts
    initiator: InitiatorParts
    path_of: Callable[[LogicalIdentity], str]


class StorageHost:
    """The steps of both sides of leases of storage.  ``ended`` is awaited when room is to be wiped."""

    def __init__(
        self, *, config: AgentConfig, parts: StorageParts, users: Users, ended: Callable[[], Awaitable[None]]
    ) -> None:
        self._config = config
        self._users = users
        self._ended = ended
        self._secrets: dict[SubsystemName, str] = {}
        self._parts = StorageParts(
            lvm=parts.lvm,
            target=TargetParts(nvmet=parts.target.nvmet, blocks=parts.target.blocks, keys=self._keys),
            initiator=parts.initiator,
            path_of=parts.path_of,
        )
        self._addresses: tuple[TransportAddress, ...] = ()
        self._authenticated = False

    async def start(self) -> None:
        """Find out where this node's target listens, and whether its kernel can ask for a proof."""
        config = self._config
        self._addresses = tuple(
            TransportAddress(transport=Transport.TCP, address=normal_address(address), service=config.nvmeof_port)
            for address in (await resolved(config.address))[:1]
        )
        if not config.storage:
            return
        self._authenticated = config.nvmeof_authentication == "on" or (
            config.nvmeof_authentication == "auto" and await self._can_authenticate()
        )
        if not self._authenticated:
            _log.warning(
                "the NVMe target asks nobody for a proof of his lease",
                reason="nvmeof_authentication is off" if config.nvmeof_authentication == "off" else "the kernel can't",
            )

    async def _can_authenticate(self) -> bool:
        """Ask the kernel, by a host that nobody is: what it can, it tells by nothing else."""
        nvmet = self._parts.target.nvmet
        try:
            await nvmet.make_host(PROBE.host_nqn, key=keys_of("00" * 32, PROBE).host)
        except FarbusError as error:
            _log.info("no authentication of the NVMe target", reason=str(error))
            return False
        await nvmet.remove_host(PROBE.host_nqn)
        return True

    def _keys(self, name: SubsystemName) -> Keys | None:
        secret = self._secrets.get(name)
        return keys_of(secret, name) if secret else None

    # Device side.

    def device_steps(self, lease: Lease) -> tuple[Step, ...]:
        """Make room or find the part; for a remote route, export it."""
        remote = lease.route is not Route.LOCAL
        name, identity = lease_name(lease), stored_as(lease)
        if lease.secret:
            self._secrets[name] = lease.secret
        provide = ProvideStorage(
            lease=lease,
            endpoint=",".join(map(str, self._addresses)) if remote else "",
            why_not=self._why_not(lease),
        )
        grant, parts, steps = grant_of(lease), VolumeParts(lvm=self._parts.lvm), list[Step]()
        if not grant.volume:
            drives = tuple(leased.device for leased in lease.devices)
            steps += [
                MakeRoom(parts=parts, whose=identity, size_bytes=grant.size_bytes, drives=drives, ended=self._ended),
                WipeRoom(parts=parts, whose=identity, size_bytes=grant.size_bytes),
            ]
        steps.append(ActivatePart(parts=parts, whose=identity))
        if remote:
            namespace = ExportedNamespace(
                device=self._parts.path_of(identity), identity=namespace_identity(identity.exported_as)
            )
            export = Export(
                name=name, namespaces=(namespace,), addresses=self._addresses, authenticated=self._authenticated
            )
            steps += target_steps(self._parts.target, ExportWork(export=export))
        return (provide, *(Scoped(step, "storage") for step in steps))

    def _why_not(self, lease: Lease) -> str:
        """Say why this node does not serve a lease; what was served is given up all the same."""
        if not self._config.storage:
            return f"node {self._config.name} stores nothing for others; set storage = true in its agent.toml"
        if lease.route is Route.RECOMPOSED:
            return f"this version can't give storage by the route {lease.route}"
        if lease.route is not Route.LOCAL and not self._addresses:
            return f"address {self._config.address} of node {self._config.name} can't be resolved there"
        return ""

    def forget(self, lease: Lease) -> None:
        """Drop the secret of a lease that is over."""
        self._secrets.pop(lease_name(lease), None)

    # Client side.

    def client_steps(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...], force: bool
    ) -> tuple[Step, ...]:
        """For each storage of a task: connect what is elsewhere, make it one device, use it as is wanted."""
        steps: list[Step] = []
        for name, parts in by_name(leases).items():
            steps += self._storage_steps(name, parts, job=job, task=task, user=user, force=force)
        return tuple(steps)

    def _storage_steps(
        self, name: str, prepared: tuple[PreparedLease, ...], *, job: str, task: str, user: str, force: bool
    ) -> Iterator[Step]:
        members = tuple(self._member(one.lease) for one in prepared)
        first = prepared[0].lease
        attach = Attach(
            id=first.id,
            connections=tuple(self._connection(one) for one in prepared if one.lease.route is not Route.LOCAL),
            stripe=plan_members(first.id, members) if len(members) > 1 else None,
            force=force,
        )
        keys = {
            one.lease.id: keys_of(one.lease.secret, lease_name(one.lease)).host
            for one in prepared
            if one.lease.secret and self._config.nvmeof_authentication != "off"
        }
        for step in attach_steps(self._parts.initiator, attach, keys=keys):
            yield Scoped(step, name)
        device = attach.stripe.path if attach.stripe is not None else members[0][0]
        del device

    def _member(self, lease: Lease) -> tuple[str, int]:
        """Return the path of a part on this node, and what of it may be used."""
        identity = stored_as(lease)
        if lease.route is Route.LOCAL:
            return self._parts.path_of(identity), grant_of(lease).size_bytes
        return namespace_identity(identity.exported_as).by_id, grant_of(lease).size_bytes

    def _connection(self, prepared: PreparedLease) -> Connection:
        lease = prepared.lease
        return Connection(
            name=lease_name(lease),
            addresses=tuple(transport_address(one, field="endpoint") for one in prepared.endpoint.split(",")),
            namespaces=(
                ExpectedNamespace(
                    identity=namespace_identity(stored_as(lease).exported_as),
                    size_bytes=grant_of(lease).size_bytes,
                    or_more=True,
                ),
            ),
            authenticated=self._config.nvmeof_authentication != "off",
        )


PROBE = SubsystemName(lease="probe", epoch=0)


def by_name(leases: Iterable[PreparedLease]) -> dict[str, tuple[PreparedLease, ...]]:
    """Return a task's leases by the storage that they are parts of, in the order of the parts.

    Raises :class:`Conflict` where one is missing or there twice.
    """
    found: dict[str, list[PreparedLease]] = {}
    for prepared in leases:
        found.setdefault(grant_of(prepared.lease).name, []).append(prepared)
    for name, parts in found.items():
        parts.sort(key=lambda one: grant_of(one.lease).part)
        numbers = [grant_of(one.lease).part for one in parts]
        if numbers != list(range(grant_of(parts[0].lease).parts)):
            raise Conflict(f"storage {name}: parts {numbers} of {grant_of(parts[0].lease).parts}")
    return {name: tuple(parts) for name, parts in found.items()}


def plan_members(id: str, members: Sequence[tuple[str, int]]) -> Stripe:
    """Return the stripe over paths with their sizes in bytes: as much of each as of the smallest, in whole chunks."""
    chunk = choose_chunk()
    usable = min(size for _, size in members) // chunk * chunk
    if not usable:
        raise InvalidInput(f"stripe {id}: a part is smaller than {chunk} bytes")
    return Stripe(id=id, members=tuple(path for path, _ in members), member_bytes=usable, chunk_bytes=chunk)
