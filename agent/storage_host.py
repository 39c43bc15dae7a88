"""The agent's dealings with storage: what it exports of its drives, and what its tasks use of others' and its own.

Device side: a part of a volume, which must be here, or room that is made for
the lease; for a remote route it is exported (:mod:`farbus.nvmeof.target`).
Client side: parts are connected, striped where there are several, and used as
they are wanted (:mod:`farbus.nvmeof.using`).  What is found is known by its
names alone, which are made of the lease, so that an agent that is restarted
takes hold of it, and ends what is no lease's any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import structlog

from farbus.agent.accounts import UserRules, choose_account
from farbus.agent.config import AgentConfig
from farbus.agent.events import PreparedLease
from farbus.agent.objects import claims
from farbus.agent.paths import UsedPaths
from farbus.agent.steps import Result, Step, TellsOverdue
from farbus.agent.volumes import GrowOrder
from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, TimedOut, Unavailable
from farbus.linux.clock import Clock
from farbus.linux.links import resolved
from farbus.linux.lvm import Lvm
from farbus.linux.nvmet import KnowsNoKeys
from farbus.linux.processes import DeviceLimit
from farbus.linux.users import Users
from farbus.model.device import Route
from farbus.model.lease import Lease
from farbus.model.nvmeof import (
    STRIPE_PREFIX,
    AnaState,
    Connection,
    Controller,
    ExpectedNamespace,
    Export,
    IoLimit,
    SubsystemName,
    Transport,
    TransportAddress,
    namespace_identity,
    normal_address,
    subsystem_name,
    transport_addresses,
)
from farbus.model.nvmet import COMMON_ANA_GROUP, NODE_ANA_GROUP
from farbus.model.storage import Account, LogicalIdentity, LogicalVolume
from farbus.model.volume import StorageGrant, StorageUse, VolumePart, storage_variable
from farbus.nvmeof.comparison import our_subsystems
from farbus.nvmeof.initiator import ClearEarlier, Connect, ConnectionStep, HandOver
from farbus.nvmeof.keys import Keys, LeaseKeys, TlsKey, keys_of, tls_key_of
from farbus.nvmeof.target import AddressWork, TargetParts, withdraw
from farbus.nvmeof.target import steps_of as target_steps
from farbus.nvmeof.tls import drop
from farbus.nvmeof.using import UsedPart, UseParts, UseWork, grow, part_here, part_there
from farbus.nvmeof.using import steps_of as use_steps
from farbus.nvmeof.volumes import ReadyWork, RoomWork, VolumeParts, export_of, rooms
from farbus.nvmeof.volumes import steps_of as volume_steps

_log = structlog.get_logger()

T = TypeVar("T")

TELL_S = 10.0
"""For what only says something."""

NOBODY = 65534
"""Whose nothing is (Linux's overflow uid)."""

_Strangers = AsyncIterator[tuple[str, Awaitable[object]]]
"""What is there of leases that nobody knows, and how each ends."""

PROBE = SubsystemName(lease="probe", epoch=0)
"""A host that nobody is, to ask the kernel whether it knows authentication."""


PROBE_S = 30.0
"""For the kernel to say whether it knows authentication: at once, unless a drive that does not answer has its lock."""

STRANGER_END_S = 90.0
"""For one thing that an earlier agent left to be ended, or looked for: a drive that does not answer would keep this one
from ever being ready."""

TLS_INSTEAD = "from Linux 6.15 on it takes any lease's key of TLS for a proof"


def lease_name(lease: Lease) -> SubsystemName:
    """Return what a lease is called among subsystems: by the highest epoch of what it has."""
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


def _work(lease: Lease, export: Export | None) -> RoomWork | ReadyWork:
    """Return what the device side of a lease is."""
    grant = grant_of(lease)
    if not grant.volume:
        drives = tuple(leased.device for leased in lease.devices)
        return RoomWork(lease=lease.id, size_bytes=grant.size_bytes, drives=drives, export=export)
    part = VolumePart(
        volume=grant.volume, part=grant.part, parts=grant.parts, size_bytes=grant.size_bytes,
        # Which drives it has the node knows.
        drives=(),
    )  # fmt: skip
    return ReadyWork(lease=lease.id, part=part, export=export)


def by_name(leases: Iterable[PreparedLease]) -> dict[str, tuple[PreparedLease, ...]]:
    """Return a task's leases by the storage that they are parts of, in the order of the parts.

    Raises :class:`Conflict` where one is missing or there twice.
    """
    found: dict[str, list[PreparedLease]] = {}
    for prepared in leases:
        found.setdefault(grant_of(prepared.lease).name, []).append(prepared)
    for name, parts in found.items():
        parts.sort(key=lambda one: grant_of(one.lease).part)
        numbers, wanted = [grant_of(one.lease).part for one in parts], grant_of(parts[0].lease).parts
        if numbers != list(range(wanted)):
            raise Conflict(f"storage {name}: parts {', '.join(map(str, numbers))} of {wanted}")
    return {name: tuple(parts) for name, parts in found.items()}


@dataclass(kw_only=True)
class Stopwatch:
    """How long it takes to attach one connection, from the first look of the first step to the end of the last.

    ``told`` hears it where it was connected meanwhile: not of one that was there, nor of one that failed.
    """

    clock: Clock
    told: Callable[[float], None]
    begun_s: float = 0.0
    connected: bool = False

    def begins(self, step: Step) -> None:
        """Note that a step is looked at."""
        if isinstance(step, ClearEarlier):
            self.begun_s, self.connected = self.clock.monotonic(), False

    def done(self, step: Step) -> None:
        """Note that a step was done, and not only found so."""
        if isinstance(step, Connect):
            self.connected = True
        elif isinstance(step, HandOver) and self.connected:
            self.told(self.clock.monotonic() - self.begun_s)


@dataclass(frozen=True)
class Scoped:
    """A step whose results are for its own sequence alone: they are kept under ``scope``.

    Its ``path`` is told to the task as ``variable`` where that is set; ``watch`` measures it with those around it.
    """

    step: Step
    scope: str
    variable: str = ""
    watch: Stopwatch | None = None

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
        return {key.removeprefix(f"{self.scope}/"): value for key, value in result.items() if key != self.variable}

    def _outside(self, result: Result) -> Result:
        told = {f"{self.scope}/{key}": value for key, value in result.items()}
        return {**told, self.variable: result["path"]} if self.variable else told

    async def observe(self, known: Result | None) -> Result | None:
        """Look at it."""
        if self.watch is not None:
            self.watch.begins(self.step)
        found = await self.step.observe(self._inside(known))
        return None if found is None else self._outside(found)

    async def do(self) -> Result:
        """Do it."""
        result = await self.step.do()
        if self.watch is not None:
            self.watch.done(self.step)
        if missing := result.get("missing"):
            # One address was enough: it is no failure, and somebody should look.
            _log.warning("addresses left out", action=self.kind, of=self.identity, missing=missing)
        return self._outside(result)

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
    authenticated: bool
    ana_group: int = COMMON_ANA_GROUP
    why_not: str = ""
    kind: str = "ProvideStorage"
    devices: tuple[str, ...] = ()
    deadline_s: float = TELL_S
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
        return {
            "endpoint": self.endpoint,
            "storage/authenticated": "yes" if self.authenticated else "no",
            "storage/ana_group": str(self.ana_group),
        }

    async def compensate(self) -> None:
        """What was told is not true any more when the lease is over."""


@dataclass(frozen=True, kw_only=True)
class CheckUser:
    """Who uses storage is known here.  Once it was, nothing hangs on it: a user database may be away for a while."""

    user: str
    error: FarbusError | None
    kind: str = "CheckUser"
    devices: tuple[str, ...] = ()
    deadline_s: float = TELL_S
    lasting: bool = False

    @property
    def identity(self) -> str:
        """The user."""
        return f"user {self.user}"

    async def observe(self, known: Result | None) -> Result | None:
        """It was known."""
        return known

    async def do(self) -> Result:
        """Raise why nothing can be given to him."""
        if self.error is not None:
            raise self.error
        return {}

    async def compensate(self) -> None:
        """Nothing was done."""


@dataclass(frozen=True, kw_only=True)
class StorageParts:
    """Through what a node stores and uses storage.

    ``path_of`` is where a logical volume's block device is while it is active.
    """

    lvm: Lvm
    target: TargetParts
    use: UseParts
    path_of: Callable[[LogicalIdentity], str]


async def _within(limit_s: float, work: Awaitable[T], what: str) -> T:
    """Wait for something for so long and no longer; raise :class:`TimedOut` that says so: it goes on in the kernel."""
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError as error:
        raise TimedOut(f"{what} still under way after {limit_s:g} s, and left", hint="see dmesg") from error


def _nobody_asks(_: float) -> None:
    """Where nobody keeps how long attaching took."""


class StorageHost:
    """The steps of both sides of leases of storage.

    ``ended`` is awaited when room is to be wiped, ``attached`` called with the seconds that attaching storage of
    another node took.
    """

    def __init__(
        self,
        *,
        config: AgentConfig,
        parts: StorageParts,
        users: Users,
        ended: Callable[[], Awaitable[None]],
        attached: Callable[[float], None] = _nobody_asks,
    ) -> None:
        self._config = config
        self._users = users
        self._ended = ended
        self._attached = attached
        self._secrets: dict[SubsystemName, str] = {}
        self._lvm, self._use, self._path_of = parts.lvm, parts.use, parts.path_of
        self._target = dataclasses.replace(parts.target, keys=self._keys, tls_key=self._tls_key)
        self._stored = VolumeParts(lvm=parts.lvm, target=self._target, ended=ended)
        self._addresses: tuple[TransportAddress, ...] = ()
        self._spares: frozenset[TransportAddress] = frozenset()
        self._authenticated = False
        self._recorded: dict[str, Result] = {}
        """What earlier agents have told of where leases are offered, and how."""
        self._given: dict[str, LogicalIdentity] = {}
        """What those leases have."""

    async def start(self) -> None:
        """Find out where this node's target listens, and whether its kernel can ask for a proof."""
        config = self._config
        self._addresses = config.target_addresses or tuple(
            config.encrypted(
                TransportAddress(transport=Transport.TCP, address=normal_address(address), service=config.nvmeof_port)
            )
            for address in (await resolved(config.address))[:1]
        )
        self._spares = frozenset(self._addresses[len(config.nvmeof_addresses) :] if config.nvmeof_addresses else ())
        if not config.storage:
            return
        wish = config.nvmeof_authentication
        self._authenticated = wish == "on" or (wish == "auto" and await self._can_authenticate())
        if not self._authenticated:
            why = "nvmeof_authentication is off" if wish == "off" else "its kernel knows no authentication"
            _log.warning("the NVMe target asks nobody for a proof of the lease", reason=why)
        elif self._asks_nobody():
            _log.warning("the NVMe target asks nobody for a proof of the lease", reason=TLS_INSTEAD)

    def _asks_nobody(self) -> bool:
        """Say whether this kernel asks nobody for a proof who comes by TLS, whoever's key of TLS that is."""
        return self._config.encrypts_storage and not self._target.nvmet.asks_over_tls()

    async def _can_authenticate(self) -> bool:
        try:
            await _within(PROBE_S, self._probe(), "to ask its kernel is")
        except KnowsNoKeys:
            return False
        except (FarbusError, OSError) as error:
            # Only the kernel's own word lets leases go without a proof: what failed just now may work for them.
            _log.warning("not known whether the NVMe target can ask for a proof; it is to", reason=str(error))
        return True

    async def _probe(self) -> None:
        """Raise :class:`KnowsNoKeys` where the kernel's target can't ask for a proof."""
        nvmet = self._target.nvmet
        await nvmet.load([Transport.TCP])
        # What it knows, it tells by the attributes of a host alone.
        await nvmet.make_host(PROBE.host_nqn, key=keys_of("00" * 32, PROBE).host)
        await nvmet.remove_host(PROBE.host_nqn)

    def _keys(self, name: SubsystemName) -> Keys | None:
        secret = self._secrets.get(name)
        return keys_of(secret, name) if secret else None

    def _tls_key(self, name: SubsystemName) -> TlsKey | None:
        secret = self._secrets.get(name)
        return tls_key_of(secret, name) if secret else None

    # Device side.

    def device_steps(self, lease: Lease) -> tuple[Step, ...]:
        """Make room or find the part; for a remote route, export it."""
        name, whose = lease_name(lease), stored_as(lease)
        if lease.secret:
            self._secrets[name] = lease.secret
        remote = lease.route is not Route.LOCAL
        addresses, authenticated, ana_group = self._offer_of(lease)
        provide = ProvideStorage(
            lease=lease,
            endpoint=",".join(map(str, addresses)) if remote else "",
            authenticated=authenticated,
            ana_group=ana_group,
            why_not=self._why_not(lease),
        )
        export = (
            export_of(
                name,
                whose,
                addresses,
                authenticated=authenticated,
                device=self._path_of(whose),
                ana_group=ana_group,
                states={address: AnaState.NON_OPTIMIZED for address in addresses if address in self._spares},
            )
            if remote
            else None
        )
        return (provide, *(Scoped(step, "storage") for step in volume_steps(self._stored, _work(lease, export))))

    def _why_not(self, lease: Lease) -> str:
        """Say why this node does not serve a lease; what was served is given up all the same."""
        if not self._config.storage:
            return f"node {self._config.name} stores nothing for others; set storage = true in its agent.toml"
        if lease.route is Route.RECOMPOSED:
            return f"this version can't give storage by the route {lease.route}"
        if lease.route is not Route.LOCAL and not self._addresses:
            return f"address {self._config.address} of node {self._config.name} can't be resolved there"
        if lease.route is not Route.LOCAL and self._config.nvmeof_authentication == "on" and self._asks_nobody():
            return f'node {self._config.name} has nvmeof_authentication = "on", and {TLS_INSTEAD}'
        return ""

    def _offer_of(self, lease: Lease) -> tuple[tuple[TransportAddress, ...], bool, int]:
        """Return where a lease is offered, whether by a proof alone, and in which ANA group.

        All as it is, whatever the settings say by now.
        """
        told = self._recorded.get(lease.id)
        if told is None:
            # With one address there is nothing to prefer, and nothing else to be sent to.
            group = NODE_ANA_GROUP if len(self._addresses) > 1 else COMMON_ANA_GROUP
            return self._addresses, self._authenticated, group
        addresses = transport_addresses(told["endpoint"]) if told["endpoint"] else ()
        group = int(told.get("storage/ana_group", COMMON_ANA_GROUP))
        return addresses, told.get("storage/authenticated") == "yes", group

    async def address_works(self) -> tuple[AddressWork, ...]:
        """Return what is to become of addresses at which something is offered, as the settings are now.

        One that is set no more is inaccessible from now on: initiators go on at
        the others, before anybody takes it from the node.
        """
        if not self._config.storage or not self._target.nvmet.is_loaded():
            return ()
        works = []
        for port in (await self._target.nvmet.target()).ports:
            address, state = port.at, port.states.get(str(NODE_ANA_GROUP))
            if port.is_ours and address is not None and state is not None and state != self._access_of(address):
                works.append(AddressWork(address=address, state=self._access_of(address), before=AnaState(state)))
        return tuple(works)

    def address_steps(self, work: AddressWork) -> tuple[Step, ...]:
        """Return the sequence of it."""
        return target_steps(self._target, work)

    def _access_of(self, address: TransportAddress) -> AnaState:
        """Return an address's state: that of the network which it is of, whether encrypted there or not."""

        def is_among(addresses: Collection[TransportAddress]) -> bool:
            return (address.transport, address.address) in {(one.transport, one.address) for one in addresses}

        if is_among(self._spares):
            return AnaState.NON_OPTIMIZED
        return AnaState.OPTIMIZED if is_among(self._addresses) else AnaState.INACCESSIBLE

    def remember(self, lease: Lease, told: Result) -> None:
        """Take in what an earlier agent has recorded of a lease (:class:`ProvideStorage`)."""
        self._recorded[lease.id] = told
        self._given[lease.id] = stored_as(lease)

    def forget(self, lease: Lease) -> None:
        """Drop what is kept of a lease that is over."""
        self._secrets.pop(lease_name(lease), None)
        self._recorded.pop(lease.id, None)
        self._given.pop(lease.id, None)

    # Client side.

    def client_steps(
        self, *, user: str, leases: tuple[PreparedLease, ...], attachment: bool, force: bool
    ) -> tuple[Step, ...]:
        """For each storage of a task: connect what is elsewhere, make it one device, use it as is wanted."""
        unknown: FarbusError | None = None
        try:
            account = self._account(user)
        except FarbusError as error:
            # An operator's is the whole node's.
            account, unknown = (Account(), None) if attachment else (Account(uid=NOBODY, gid=NOBODY), error)
        if not attachment and any(grant_of(one.lease).use is StorageUse.SWAP for one in leases):
            unknown = NotPermitted(
                f"storage of user {user}: swap space is the whole node's",
                hint="an operator may attach it: farbus volume",
            )
        steps: list[Step] = [CheckUser(user=user, error=unknown or self._disagreement(leases))]
        for name, parts in by_name(leases).items():
            steps += self._storage_steps(name, parts, account=account, force=force)
        return tuple(steps)

    def _disagreement(self, leases: Iterable[PreparedLease]) -> FarbusError | None:
        """Return why this node does not connect what is encrypted otherwise than it is set; None where all agrees."""
        for one in leases:
            if one.lease.route is Route.LOCAL or not one.endpoint:
                continue
            offered = self._connection(one).tls
            if offered != self._config.encrypts_storage:
                here, there = ("off", "on") if offered else ("on", "off")
                return Conflict(
                    f"storage {grant_of(one.lease).name}: nvmeof_tls is {there} on node {one.lease.device_node},"
                    f" and {here} on node {self._config.name}",
                    hint="set it to the same on all nodes, and restart their agents",
                )
        return None

    def _storage_steps(
        self, name: str, prepared: tuple[PreparedLease, ...], *, account: Account, force: bool
    ) -> Iterator[Step]:
        work = self._use_work(prepared, account=account, force=force)
        keys = {one.lease.id: self._lease_keys(one) for one in prepared}
        *before, last = use_steps(self._use, work, keys=keys)
        watches: dict[str, Stopwatch] = {}
        for step in before:
            watch = None
            if isinstance(step, ConnectionStep):
                # Each part comes over a connection of its own.
                watch = watches.setdefault(
                    step.connection.nqn, Stopwatch(clock=self._use.initiator.clock, told=self._attached)
                )
            yield Scoped(step, name, watch=watch)
        yield Scoped(last, name, storage_variable(name))

    def _use_work(self, prepared: tuple[PreparedLease, ...], *, account: Account, force: bool = False) -> UseWork:
        grant = grant_of(prepared[0].lease)
        return UseWork(
            id=prepared[0].lease.id,
            parts=tuple(self._part(one) for one in prepared),
            use=grant.use,
            file_system=grant.file_system,
            path=grant.path,
            read_only=grant.read_only,
            account=account,
            force=force,
        )

    def _lease_keys(self, prepared: PreparedLease) -> LeaseKeys:
        secret, name = prepared.lease.secret, lease_name(prepared.lease)
        return LeaseKeys(host=self._key_of(prepared), tls=tls_key_of(secret, name) if secret else None)

    def _key_of(self, prepared: PreparedLease) -> str:
        """Return what this node proves a lease by; an empty string where it does not, or has no secret of it."""
        secret = prepared.lease.secret if self._offers_proof else ""
        return keys_of(secret, lease_name(prepared.lease)).host if secret else ""

    def used_paths(self, leases: Iterable[PreparedLease]) -> tuple[UsedPaths, ...]:
        """Return how leases of storage of other nodes are connected."""
        return tuple(
            UsedPaths(
                connection=self._connection(one),
                storage=grant_of(one.lease).name,
                key=self._key_of(one),
            )
            for one in leases
            if one.lease.storage is not None and one.lease.route is not Route.LOCAL and one.endpoint
        )

    async def grow(self, leases: Iterable[PreparedLease], order: GrowOrder) -> None:
        """Let what a task has made of a volume have its new size.

        Raises :class:`NotFound` where it does not use it, and what
        :func:`farbus.nvmeof.using.grow` raises.
        """
        own = [one for one in leases if one.lease.storage is not None and one.lease.storage.volume == order.volume]
        for parts in by_name(own).values():
            # Whose it is has no part in it.
            await grow(self._use, self._use_work(parts, account=Account()), size_bytes=order.size_bytes)
            return
        raise NotFound(f"{order}: it is not used here")

    @property
    def _offers_proof(self) -> bool:
        """Whether this node proves its leases to targets: also to one that does not ask."""
        return self._config.nvmeof_authentication != "off"

    def _account(self, user: str) -> Account:
        """Return whose storage of ``user``'s tasks is; whether they may run as that is asked when they start."""
        account = choose_account(
            user,
            users=self._users,
            run_as_self=self._config.run_as_self,
            allow_root=True,
            rules=UserRules(user_map=self._config.user_map),
        )
        found = account or self._users.myself()
        return Account(uid=found.uid, gid=found.gid)

    def _part(self, prepared: PreparedLease) -> UsedPart:
        lease = prepared.lease
        if lease.route is Route.LOCAL:
            return part_here(self._path_of(stored_as(lease)), grant_of(lease).size_bytes)
        return part_there(self._connection(prepared))

    def _connection(self, prepared: PreparedLease) -> Connection:
        lease = prepared.lease
        namespace = ExpectedNamespace(
            identity=namespace_identity(stored_as(lease).exported_as),
            size_bytes=grant_of(lease).size_bytes,
            # Drives give room in pieces.
            or_more=True,
        )
        return Connection(
            name=lease_name(lease),
            addresses=transport_addresses(prepared.endpoint, field="endpoint"),
            namespaces=(namespace,),
            authenticated=self._offers_proof,
        )

    def io_limits(self, leases: Iterable[PreparedLease]) -> tuple[DeviceLimit, ...]:
        """Return what a task may do with each part of its storage that is granted a bandwidth.

        Raises :class:`NotFound` for a part that is not there: no program has it without its limit.
        """
        nvme = self._use.initiator.nvme
        found = []
        for prepared in leases:
            grant = prepared.lease.storage
            if grant is None or not grant.bandwidth_bytes_per_s:
                continue
            path, rate = self._part(prepared).path, grant.bandwidth_bytes_per_s
            number = nvme.block_number(nvme.leads_to(path))
            if not number:
                raise NotFound(f"limit storage {grant.name}: {path} is not there", hint="is its node reachable?")
            limit = IoLimit(read_bytes_s=rate, write_bytes_s=rate)
            found.append(DeviceLimit(path=path, number=number, limit=limit))
        return tuple(found)

    # What an earlier agent has left.

    async def end_strangers(self, device_sides: Collection[str], client_sides: Collection[str]) -> tuple[str, ...]:
        """End what is no lease's any more, the used before the stored; what can't be ended is told in the log."""
        ended: list[str] = []
        for find in (
            self._uses(client_sides),
            self._exports(device_sides),
            self._stored_here(device_sides),
            self._names(client_sides),
            self._tls_keys({*device_sides, *client_sides}),
        ):
            try:
                while (one := await _within(STRANGER_END_S, anext(find, None), "it is")) is not None:
                    # One that can't be ended keeps no other from its end.
                    if await self._is_done(*one):
                        ended.append(one[0])
            except (FarbusError, OSError) as error:
                _log.error("what an earlier agent left is not looked for", error=str(error))
        return tuple(ended)

    async def _is_done(self, name: str, ending: Awaitable[object]) -> bool:
        try:
            await _within(STRANGER_END_S, ending, "its end is")
        except (FarbusError, OSError) as error:
            _log.error("what an earlier agent left is not ended", what=name, error=str(error))
            return False
        return True

    async def _uses(self, known: Collection[str]) -> _Strangers:
        initiator = self._use.initiator
        for uuid in initiator.mapper.list():
            id = uuid.removeprefix(STRIPE_PREFIX.upper())
            if id not in known:
                yield f"stripe {id}", self._end_stripe(uuid, id)
        for controller in initiator.nvme.controllers():
            name = subsystem_name(controller.nqn)
            if name is not None and name.lease not in known:
                yield f"controller {controller.nqn}", self._end_controller(controller, name.lease)

    async def _names(self, known: Collection[str]) -> _Strangers:
        # After what was mounted there.
        for id in self._use.filesystems.given():
            if id not in known:
                yield f"path of lease {id}", self._take_names(id)

    async def _end_stripe(self, uuid: str, id: str) -> None:
        mapper = self._use.initiator.mapper
        if (found := await mapper.find(uuid)) is not None:
            await self._let_go(f"/dev/mapper/{found.name}", id)
            await mapper.remove(found.name)

    async def _end_controller(self, controller: Controller, lease: str) -> None:
        for path in controller.namespaces:
            await self._let_go(f"/dev/disk/by-id/nvme-uuid.{path.uuid}", lease)
        await self._use.initiator.nvme.disconnect(controller)

    async def _let_go(self, device: str, id: str) -> None:
        filesystems = self._use.filesystems
        await filesystems.unmount(device, filesystems.mount_point(id), lazy=True)
        await self._take_names(id)
        if filesystems.is_swap(device):
            await filesystems.swap_off(device)

    async def _take_names(self, id: str) -> None:
        # A node that is left gives its user whatever has that number next.
        await self._use.filesystems.clear_mount_point(id)
        await self._use.filesystems.take_node(id)

    async def _exports(self, known: Collection[str]) -> _Strangers:
        if not self._target.nvmet.is_loaded():
            return
        for name in our_subsystems(await self._target.nvmet.target()):
            if name.lease not in known:
                yield f"subsystem {name.nqn}", withdraw(self._target, name)

    async def _tls_keys(self, known: Collection[str]) -> _Strangers:
        tls_keys = self._target.tls_keys
        for name in {held.identity.name for held in tls_keys.held()} if tls_keys is not None else ():
            if name.lease not in known:
                yield f"key of TLS of {name.nqn}", drop(tls_keys, name)

    async def _stored_here(self, known: Collection[str]) -> _Strangers:
        if not self._config.storage:
            return
        for room in await rooms(self._stored):
            if room.identity.lease not in known and not room.going:
                yield str(room.identity), self._end_room(room)
        leased = {identity.name for lease, identity in self._given.items() if lease in known}
        for volume in await self._lvm.volumes():
            # What is being made or wiped is active too, and has records of its own.
            if volume.identity.volume and volume.active and volume.ready and volume.name not in leased:
                yield f"use of {volume.identity}", self._end_part(volume)

    async def _end_room(self, room: LogicalVolume) -> None:
        await self._let_go(room.path, room.identity.lease)
        await self._lvm.mark_going(room.identity)
        await self._ended()

    async def _end_part(self, volume: LogicalVolume) -> None:
        filesystems = self._use.filesystems
        await filesystems.unmount(volume.path, lazy=True)
        if filesystems.is_swap(volume.path):
            await filesystems.swap_off(volume.path)
        await self._lvm.deactivate(volume.identity)
