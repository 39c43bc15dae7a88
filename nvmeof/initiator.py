"""The steps by which namespaces of other nodes come here and go again (docs/decisions/0006-the-action-protocol.md).

To attach is: end what is left of earlier epochs, connect each address, prove
that the namespaces are those that were meant, hand over a path that stays.  To
detach is the same backwards.  Nothing is handed over before it is proven, and
nothing is taken away while somebody holds it, unless it is forced.

Connections belong to whoever finds them: a restarted agent looks for the names
of its leases (docs/decisions/0021), takes hold of what is there, and needs no
key for it, since the kernel has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from farbus.errors import Conflict, FarbusError, NotFound, Unavailable
from farbus.model.holders import Look
from farbus.model.nvmeof import (
    Connection,
    Controller,
    ControllerState,
    ExpectedNamespace,
    NamespacePath,
    TransportAddress,
    subsystem_name,
)
from farbus.nvmeof.keys import TlsKey
from farbus.nvmeof.parts import LOOK_INTERVAL_S, Attach, InitiatorParts
from farbus.nvmeof.tls import drop, held, hold, is_held

Result = dict[str, str]

PENDING_S = 10.0
"""How long a controller may be without a name before it is taken for half-made: somebody may be connecting it."""

CLEAR_S = 60.0
"""For the kernel to let go of a controller: what is in flight is waited for, or failed."""

CONNECT_S = 60.0
"""For one address: the kernel gives up a target that accepts and then is silent after as long (NVME_ADMIN_TIMEOUT)."""

APPEAR_S = 20.0
"""For namespaces to be found by the kernel and named by udev."""

RESIZE_S = 5.0
"""For a size to become what was expected: the kernel hears of a new one by an event."""

DRAIN_INTERVAL_S = 1.0
"""Between two looks at who holds a device: each reads all of /proc."""

MARGIN_S = 30.0
"""What a step may take beyond what it waits for, before its object is wedged: children start, disks write."""

GOING = frozenset({ControllerState.DELETING, ControllerState.DELETING_NO_IO, ControllerState.DEAD})
"""States that lead nowhere but out."""


@dataclass(frozen=True, kw_only=True)
class ConnectionStep:
    """What all steps about one connection have."""

    parts: InitiatorParts
    work: Attach
    connection: Connection

    @property
    def identity(self) -> str:
        """The subsystem."""
        return f"subsystem {self.connection.nqn}"

    @property
    def devices(self) -> tuple[str, ...]:
        """The lease, for which the kernel connects or disconnects one controller at a time, whatever the epoch."""
        return (f"nvmeof {self.connection.name.lease}",)

    def ours(self) -> tuple[Controller, ...]:
        """Return the connection's controllers, also those on their way out."""
        return controllers_of(self.parts, self.connection)

    def overdue(self) -> FarbusError | None:
        """Say which controllers the kernel is stuck with."""
        stuck = [one for one in self.ours() if one.state in GOING]
        if not stuck:
            return None
        told = ", ".join(f"{one.name} ({one.address}) is {one.state}" for one in stuck)
        return Unavailable(
            f"wedged: {told} and does not go",
            hint="the kernel waits for what is in flight, see dmesg; if it does not end, reboot the node",
        )


def controllers_of(parts: InitiatorParts, connection: Connection) -> tuple[Controller, ...]:
    """Return a connection's controllers by its name: as well those that an earlier agent has connected."""
    return of_connection(parts.nvme.controllers(), connection)


def of_connection(controllers: Iterable[Controller], connection: Connection) -> tuple[Controller, ...]:
    """Return those of a node's controllers that are a connection's."""
    nqn, host_nqn = connection.nqn, connection.name.host_nqn
    return tuple(one for one in controllers if one.nqn == nqn and one.host_nqn == host_nqn)


def namespace_of(controllers: tuple[Controller, ...], expected: ExpectedNamespace) -> NamespacePath | None:
    """Return a namespace by its identity, one that programs can use if there is one."""
    found = [path for one in controllers for path in one.namespaces if path.uuid == expected.identity.uuid]
    return next((path for path in found if path.device), found[0] if found else None)


def block_devices(parts: InitiatorParts, connection: Connection) -> list[str]:
    """Return the kernel names of a connection's block devices."""
    return sorted({path.device for one in controllers_of(parts, connection) for path in one.namespaces} - {""})


async def drain(parts: InitiatorParts, names: list[str], *, what: str, limit_s: float) -> None:
    """Return once nobody holds block devices; raise :class:`Conflict` with who still does after ``limit_s``."""
    if not names:
        return
    end = parts.clock.monotonic() + limit_s
    while True:
        look: Look = await parts.holders.look_at_blocks(names)
        if look.clear:
            # Asked of the kernel: what no list tells of, as a mount in a namespace that is hidden.
            await parts.holders.prove_blocks(names)
            return
        left = end - parts.clock.monotonic()
        if left <= 0:
            raise Conflict(f"{what}: still held after {limit_s:g} s: {look.told()}", hint="end what holds it")
        await parts.clock.sleep(min(DRAIN_INTERVAL_S, left))


@dataclass(frozen=True, kw_only=True)
class ClearEarlier(ConnectionStep):
    """Controllers of earlier epochs of the lease go, and those that have never come up.

    Linux refuses a namespace whose identity it has already, and what an earlier
    epoch still had to write has nowhere to go.
    """

    kind: str = "ClearEarlier"
    deadline_s: float = PENDING_S + CLEAR_S + MARGIN_S
    lasting: bool = False

    @property
    def says(self) -> str:
        """What is done."""
        return f"end connections of lease {self.connection.name.lease} of epochs before {self.connection.name.epoch}"

    def _stale(self) -> Iterator[Controller]:
        """Yield what has to go; raise :class:`Conflict` for what is in the way and may stay."""
        name = self.connection.name
        wanted = {expected.identity.uuid for expected in self.connection.namespaces}
        for controller in self.parts.nvme.controllers():
            other = subsystem_name(controller.nqn)
            if controller.half_made:
                if controller.host_nqn == name.host_nqn:
                    yield controller
                continue
            if other is not None and other.lease == name.lease:
                if other.epoch > name.epoch:
                    raise Conflict(
                        f"connect {self.connection.nqn}: epoch {other.epoch} of the lease is connected already",
                        hint="this order is from before: nothing is to be done",
                    )
                if other.epoch < name.epoch:
                    yield controller
                continue
            if not wanted.intersection(path.uuid for path in controller.namespaces):
                continue
            if other is None or controller.state is ControllerState.LIVE:
                whose = f"lease {other.lease}" if other is not None else controller.nqn
                raise Conflict(
                    f"connect {self.connection.nqn}: this node has the namespace already, connected for {whose}",
                    hint="disconnect that first",
                )
            # Another lease had it, and its target is gone: fenced.
            yield controller

    async def observe(self, known: Result | None) -> Result | None:
        """Look whether anything is left."""
        try:
            return {} if not list(self._stale()) else None
        except Conflict:
            # For do() to say.
            return None

    async def do(self) -> Result:
        """Disconnect, and wait until all of it is gone."""
        end = self.parts.clock.monotonic() + PENDING_S
        while any(one.half_made for one in list(self._stale())):
            left = end - self.parts.clock.monotonic()
            if left <= 0:
                break
            # An earlier agent's connect may still be under way, and nothing is deleted that is being connected.
            await self.parts.clock.sleep(min(LOOK_INTERVAL_S, left))
        for controller in list(self._stale()):
            await self.parts.nvme.disconnect(controller)
        await self.parts.until(
            lambda: ", ".join(f"{one.name} is {one.state}" for one in self._stale()),
            what=f"clear {self.connection.name.lease}",
            limit_s=CLEAR_S,
            hint="see dmesg",
        )
        return {}

    async def compensate(self) -> None:
        """What was over stays over."""


@dataclass(frozen=True, kw_only=True)
class HoldTlsKey(ConnectionStep):
    """The kernel has the key by which the connection is encrypted, also when it connects a lost path again.

    ``key`` is None where the agent that had it is gone.
    """

    key: TlsKey | None = field(default=None, repr=False)
    kind: str = "HoldTlsKey"
    deadline_s: float = MARGIN_S
    lasting: bool = False

    @property
    def says(self) -> str:
        """What is done."""
        return f"give the kernel the key of TLS of {self.connection.nqn}"

    async def observe(self, known: Result | None) -> Result | None:
        """Look for it by its name."""
        return {} if is_held(self.parts.tls_keys, self.connection.name, self.key) else None

    async def do(self) -> Result:
        """Add it; raise where this node can't."""
        await hold(self.parts.tls_keys, self.connection.name, self.key)
        return {}

    async def compensate(self) -> None:
        """Take it away: nothing is connected by it any more."""
        await drop(self.parts.tls_keys, self.connection.name)


@dataclass(frozen=True, kw_only=True)
class Connect(ConnectionStep):
    """A controller at each address; one is enough, and the missing ones are told.

    ``key`` proves the host; empty where none is wanted, or where the agent that
    had it is gone.
    """

    key: str = field(default="", repr=False)
    kind: str = "Connect"
    lasting: bool = False

    @property
    def deadline_s(self) -> float:
        """For each address in turn."""
        return len(self.connection.addresses) * CONNECT_S + APPEAR_S + MARGIN_S

    @property
    def says(self) -> str:
        """What is done."""
        return f"connect {self.connection.nqn} at {', '.join(map(str, self.connection.addresses))}"

    def _path(self, address: TransportAddress) -> Controller | None:
        for controller in self.ours():
            if controller.reaches(self.connection, address) and controller.state not in GOING:
                return controller
        return None

    def _whole(self) -> bool:
        paths = [self._path(address) for address in self.connection.addresses]
        return all(path is not None and path.has_times_of(self.connection) for path in paths)

    def _live(self) -> bool:
        return any(one.state is ControllerState.LIVE for one in self.ours())

    async def observe(self, known: Result | None) -> Result | None:
        """Keep what was connected as long as one path is left, also one that is lost for the moment.

        What is on no record is done only where all of it is there.
        """
        if known is not None:
            return known if any(one.state not in GOING for one in self.ours()) else None
        return {"missing": ""} if self._whole() and self._live() else None

    async def do(self) -> Result:
        """Connect one address after the other; raise what stopped the first if none comes up."""
        failed: list[FarbusError] = []
        for address in self.connection.addresses:
            try:
                if self.connection.authenticated and not self.key and self._path(address) is None:
                    raise Conflict(f"connect {address}: the agent that had the key is gone", hint="attach it again")
                await self.parts.nvme.connect(self.connection, address, key=self.key)
            except FarbusError as error:
                failed.append(error)
        if len(failed) == len(self.connection.addresses):
            raise failed[0] if len(failed) == 1 else _one_of(failed)
        await self.parts.until(
            lambda: "" if self._live() else "no controller is live",
            what=f"connect {self.connection.nqn}",
            limit_s=APPEAR_S,
            hint="see dmesg",
        )
        return {"missing": "; ".join(error.message.removeprefix("connect ") for error in failed)}

    def _left(self) -> tuple[Controller, ...]:
        """Return what is to go: half-made ones too, which only the host's name tells."""
        host_nqn = self.connection.name.host_nqn
        half = [one for one in self.parts.nvme.controllers() if one.half_made and one.host_nqn == host_nqn]
        return (*self.ours(), *half)

    async def compensate(self) -> None:
        """Disconnect each controller, and wait until all are gone."""
        for controller in self._left():
            await self.parts.nvme.disconnect(controller)
        await self.parts.until(
            lambda: ", ".join(f"{one.name} is {one.state}" for one in self._left()),
            what=f"disconnect {self.connection.nqn}",
            limit_s=CLEAR_S,
            hint="see dmesg",
        )


@dataclass(frozen=True, kw_only=True)
class MendPath(ConnectionStep):
    """One more path of a connection that has others: one that was given up, or was silent when it was attached.

    Without ``key`` the host is proven by that which the kernel has for the other paths.
    """

    address: TransportAddress
    key: str = field(default="", repr=False)
    kind: str = "MendPath"
    deadline_s: float = CONNECT_S + MARGIN_S
    lasting: bool = False

    @property
    def says(self) -> str:
        """What is done."""
        return f"connect {self.connection.nqn} at {self.address} again"

    def _others(self) -> tuple[Controller, ...]:
        """Return the paths that are left: without any it is detached, or to be attached as a whole."""
        return tuple(one for one in self.ours() if one.state not in GOING)

    async def observe(self, known: Result | None) -> Result | None:
        """Look for it."""
        others = self._others()
        return {} if not others or any(one.reaches(self.connection, self.address) for one in others) else None

    async def do(self) -> Result:
        """Connect it, where it is still wanted: this step has the lease's turn, as detaching has."""
        others = self._others()
        if not others:
            return {}
        key = self.key
        if self.connection.authenticated and not key:
            key = next((known for one in others if (known := self.parts.nvme.key_of(one))), "")
        await self.parts.nvme.connect(self.connection, self.address, key=key)
        return {}

    async def compensate(self) -> None:
        """Disconnect what has come of it, also half-made."""
        nqns = (self.connection.nqn, "")
        for one in self.parts.nvme.controllers():
            # Before the first handshake nothing tells that one is to be encrypted.
            address = msgspec.structs.replace(one.address, tls=self.address.tls)
            if (address, one.host_nqn) == (self.address, self.connection.name.host_nqn) and one.nqn in nqns:
                await self.parts.nvme.disconnect(one)


def _one_of(errors: list[FarbusError]) -> FarbusError:
    """Return one error in one line that tells all of them."""
    told = "; ".join(error.message.removeprefix("connect ") for error in errors)
    return type(errors[0])(f"connect {told}", hint=errors[0].hint)


@dataclass(frozen=True, kw_only=True)
class VerifyNamespaces(ConnectionStep):
    """What is there is what was meant: UUID, NGUID, serial number and size, before anybody may touch it.

    What is to be encrypted must be so by the lease's own key.
    """

    kind: str = "VerifyNamespaces"
    deadline_s: float = APPEAR_S + RESIZE_S + MARGIN_S
    lasting: bool = False

    @property
    def says(self) -> str:
        """What is done."""
        return "verify identity and size of " + ", ".join(one.identity.uuid for one in self.connection.namespaces)

    async def observe(self, known: Result | None) -> Result | None:
        """Look again."""
        try:
            return {} if known is not None and not self._lacking() and not self._too_small() else None
        except Conflict:
            return None

    async def do(self) -> Result:
        """Wait for what the kernel has not found yet; raise :class:`Conflict` for what is another."""
        what = f"verify {self.connection.nqn}"
        self._prove_encrypted()
        await self.parts.until(
            self._lacking, what=what, limit_s=APPEAR_S,
            hint="dmesg tells of identities that the kernel has already, and refuses",
        )  # fmt: skip
        first_seen = self.parts.clock.monotonic()

        def size() -> str:
            wrong = self._lacking() or self._wrong_size()
            if wrong and self.parts.clock.monotonic() - first_seen >= RESIZE_S:
                raise Conflict(f"{what}: {wrong}", hint="nothing was handed over; has the volume another size there?")
            return wrong

        await self.parts.until(size, what=what, limit_s=APPEAR_S)
        return {}

    def _prove_encrypted(self) -> None:
        """Raise :class:`Conflict` where a controller is not encrypted by the lease's key."""
        if not self.connection.tls:
            return
        keys = {one.serial for one in held(self.parts.tls_keys, self.connection.name)}
        for one in self.ours():
            if one.state not in GOING and one.tls_key not in keys:
                how = (
                    f"encrypted by key {one.tls_key:08x}, which is not the lease's" if one.tls_key else "not encrypted"
                )
                raise self._another(f"{one.name} ({one.address}) is {how}")

    def _lacking(self) -> str:
        """Say what is not there yet; raise :class:`Conflict` for what never will be right."""
        controllers = self.ours()
        for position, expected in enumerate(self.connection.namespaces):
            identity = expected.identity
            paths = [path for one in controllers for path in one.namespaces if path.nsid == expected.nsid]
            for path in paths:
                for name, is_now, wanted in (
                    ("UUID", path.uuid, identity.uuid),
                    ("NGUID", path.nguid, identity.nguid),
                ):
                    if is_now and is_now != wanted:
                        raise self._another(f"namespace {expected.nsid} has {name} {is_now}, not {wanted}")
            for controller in controllers if position == 0 else ():
                if controller.serial and controller.serial != identity.serial:
                    raise self._another(f"the serial number is {controller.serial}, not {identity.serial}")
            if not any(path.uuid and path.nguid for path in paths):
                return f"namespace {expected.nsid} ({identity.uuid}) is not there"
            if namespace := namespace_of(controllers, expected):
                if not namespace.device:
                    return f"no path to namespace {expected.nsid} can be used ({namespace.ana_state or 'no state'})"
                if not namespace.size_bytes:
                    return f"namespace {expected.nsid} has no size yet"
        return ""

    def _wrong_size(self) -> str:
        for expected in self.connection.namespaces:
            found = namespace_of(self.ours(), expected)
            larger = expected.or_more and found is not None and found.size_bytes > expected.size_bytes
            if found is not None and found.size_bytes != expected.size_bytes and not larger:
                return f"namespace {expected.nsid} has {found.size_bytes} bytes, not {expected.size_bytes}"
        return ""

    def _too_small(self) -> bool:
        """Say whether there is less than what was verified: a volume may become larger while it is attached."""
        found = ((namespace_of(self.ours(), expected), expected) for expected in self.connection.namespaces)
        return any(one is not None and one.size_bytes < expected.size_bytes for one, expected in found)

    def _another(self, told: str) -> Conflict:
        return Conflict(
            f"verify {self.connection.nqn}: {told}", hint="nothing was handed over; what does the target export?"
        )

    async def compensate(self) -> None:
        """Nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class HandOver(ConnectionStep):
    """The path that stays leads to the namespace; from now on somebody may hold it."""

    kind: str = "HandOver"
    lasting: bool = False

    @property
    def deadline_s(self) -> float:
        """For udev, and for holders to let go."""
        return APPEAR_S + self.work.drain_s + MARGIN_S

    @property
    def says(self) -> str:
        """What is done."""
        return "hand over " + ", ".join(one.identity.by_id for one in self.connection.namespaces)

    async def observe(self, known: Result | None) -> Result | None:
        """Look where the paths lead."""
        return self._result() if known is not None and not self._lacking() else None

    async def do(self) -> Result:
        """Wait for udev's links; raise :class:`TimedOut` with what they lead to instead."""
        await self.parts.until(
            self._lacking, what=f"hand over {self.connection.nqn}", limit_s=APPEAR_S, hint="does udev run?"
        )
        return self._result()

    def _result(self) -> Result:
        paths = [expected.identity.by_id for expected in self.connection.namespaces]
        return {"path": paths[0], "paths": " ".join(paths)} if paths else {}

    def _lacking(self) -> str:
        controllers = self.ours()
        for expected in self.connection.namespaces:
            namespace, path = namespace_of(controllers, expected), expected.identity.by_id
            if namespace is None or not namespace.device:
                return f"namespace {expected.nsid} is not there"
            leads_to = self.parts.nvme.leads_to(path)
            if leads_to != namespace.device:
                return f"{path} leads to {leads_to or 'nothing'}, not to {namespace.device}"
        return ""

    async def compensate(self) -> None:
        """Wait until nobody holds it; raise :class:`Conflict` with who does.  Not where it is forced."""
        if self.work.force:
            return
        await drain(
            self.parts,
            block_devices(self.parts, self.connection),
            what=f"disconnect {self.connection.nqn}",
            limit_s=self.work.drain_s,
        )


@dataclass(frozen=True, kw_only=True)
class LimitIo(ConnectionStep):
    """Programs of the lease do no more with the namespace than was granted.

    Here, and not on the target, where I/O is done by kernel workers that are
    in no program's control group.
    """

    kind: str = "LimitIo"
    deadline_s: float = MARGIN_S
    lasting: bool = False

    @property
    def says(self) -> str:
        """What is done."""
        return f"limit what control group {self.work.group} may do with it"

    def _numbers(self) -> list[str]:
        names = block_devices(self.parts, self.connection)
        return [number for name in names if (number := self.parts.nvme.block_number(name))]

    async def observe(self, known: Result | None) -> Result | None:
        """Read the limits."""
        cgroups, numbers = self.parts.cgroups, self._numbers()
        if cgroups is None or not numbers:
            return None
        right = all(cgroups.io_limit(self.work.group, number) == self.work.limit for number in numbers)
        return {} if right else None

    async def do(self) -> Result:
        """Set them; raise where this node's groups can't."""
        if self.parts.cgroups is None or self.work.limit is None:
            raise Unavailable(f"limit {self.connection.nqn}: this node has no control groups")
        for number in self._numbers():
            self.parts.cgroups.limit_io(self.work.group, number, self.work.limit)
        return {}

    async def compensate(self) -> None:
        """Take them back; the group may be gone with its programs."""
        if self.parts.cgroups is None or self.work.limit is None:
            return
        nothing = type(self.work.limit)()
        for number in self._numbers():
            try:
                if self.parts.cgroups.io_limit(self.work.group, number) != nothing:
                    self.parts.cgroups.limit_io(self.work.group, number, nothing)
            except NotFound:
                return
