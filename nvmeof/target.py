"""The target's side of a lease: how a subsystem comes to be offered, and how it ends (docs/nvmeof.md).

To export is: check devices and addresses, end what an older epoch of the lease
left, make the subsystem with its namespaces, name its host, and offer it at
its ports, last.  To withdraw is the same backwards, and begins with the
*fence*: namespaces are disabled, which waits for what is under way on the
devices; then the links to ports go, and with them the controllers of whoever
is connected.  What was removed is read again.

Steps are those of docs/decisions/0006-the-action-protocol.md: each can be
observed, repeated and taken back.  Ports are shared by all leases of a node:
who needs one makes it, who is the last at one removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, Unavailable
from farbus.linux.block import BlockDevices
from farbus.linux.nvmet import Nvmet
from farbus.linux.tls_keys import TlsKeys
from farbus.model.nvmeof import (
    AnaState,
    Export,
    SubsystemName,
    Transport,
    TransportAddress,
    subsystem_name,
)
from farbus.model.nvmet import (
    COMMON_ANA_GROUP,
    MAX_ANA_GROUPS,
    NODE_ANA_GROUP,
    PORTS,
    NamespaceUse,
    Target,
    TargetPort,
    access_wanted,
)
from farbus.model.value import Value
from farbus.nvmeof.comparison import (
    groups_of,
    host_differences,
    offer_differences,
    our_subsystems,
    subsystem_differences,
)
from farbus.nvmeof.keys import Keys, TlsKey
from farbus.nvmeof.tls import drop, held, hold, is_held

Result = dict[str, str]

TURN = "nvmet"
"""The turn of all that is written to a node's target: in the kernel most of it has one lock (nvmet_config_sem)."""

WRITE_S = 30.0
"""For what the kernel does at once: children start, configfs is written and read again."""

FENCE_S = 90.0
"""For what is under way on the devices to end; a drive's own time-out is 30 s (nvme_core.io_timeout)."""


def _no_keys(_: SubsystemName) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class TargetParts:
    """The doors of a node that exports.

    ``keys`` and ``tls_key`` give a subsystem's, None where the lease's secret
    is not known; ``tls_keys`` is None where nothing is ever offered by TLS.
    """

    nvmet: Nvmet
    blocks: BlockDevices
    keys: Callable[[SubsystemName], Keys | None] = _no_keys
    tls_keys: TlsKeys | None = None
    tls_key: Callable[[SubsystemName], TlsKey | None] = _no_keys


# The journal's bodies.


class ExportWork(Value, frozen=True, kw_only=True, tag="export"):
    """A subsystem is to be offered."""

    export: Export


class WithdrawWork(Value, frozen=True, kw_only=True, tag="withdraw"):
    """A subsystem of Farbus's is to end, whatever is left of it: one that no record knows, or that must go for good."""

    name: SubsystemName


class AccessWork(Value, frozen=True, kw_only=True, tag="access"):
    """ANA states of an export's groups are to change, from ``before`` to those of ``export``."""

    export: Export
    before: dict[str, dict[str, AnaState]] = {}


class AddressWork(Value, frozen=True, kw_only=True, tag="address"):
    """All that the node exports at one of its addresses is to have an ANA state there (:data:`NODE_ANA_GROUP`)."""

    address: TransportAddress
    state: AnaState
    before: AnaState


TargetWork = ExportWork | WithdrawWork | AccessWork | AddressWork

_DECODER: msgspec.json.Decoder[TargetWork] = msgspec.json.Decoder(TargetWork)


def from_body(body: str) -> TargetWork:
    """Read a recorded sequence's body; raise :class:`InvalidInput` for what is none."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"not work of a target: {error}") from error


def object_of(work: TargetWork) -> str:
    """Return what a sequence is about, in the journal.

    A change of access is not part of the subsystem's own sequence, by which that is taken back.
    """
    if isinstance(work, AddressWork):
        return f"address {work.address}"
    if isinstance(work, AccessWork):
        return f"access to {work.export.nqn}"
    return f"subsystem {(work.export.name if isinstance(work, ExportWork) else work.name).nqn}"


def is_resumable(work: TargetWork) -> bool:
    """Say whether another agent can go on with it: keys are not written down."""
    return not (isinstance(work, ExportWork) and work.export.needs_keys)


# Sizes and use.


def uses(parts: TargetParts, export: Export) -> dict[int, NamespaceUse]:
    """Return what went through the device of each namespace, by its number: whoever it was."""
    return {namespace.nsid: parts.blocks.use(namespace.device) for namespace in export.namespaces}


async def resized(parts: TargetParts, export: Export) -> None:
    """Have initiators told of new sizes, after the devices behind a subsystem have become bigger or smaller."""
    for namespace in export.namespaces:
        await parts.nvmet.revalidate_size(export.nqn, namespace.nsid)


# How it ends.


async def fence(parts: TargetParts, nqn: str) -> None:
    """End all use of a subsystem: when this returns, nothing that was sent to it changes a device any more.

    Disabling first, since it waits for what is under way; the links then take
    the controllers with them.  A port that offers nothing else goes too.
    """
    target = await parts.nvmet.target()
    subsystem = target.subsystem(nqn)
    if subsystem is not None:
        enabled = [namespace.nsid for namespace in subsystem.namespaces if namespace.enabled]
        await parts.nvmet.disable_namespaces(nqn, enabled)
    offering = target.ports_of(nqn)
    for port in offering:
        if port.is_ours:
            await parts.nvmet.withhold(port.id, nqn)
    await _tidy_ports(parts, await parts.nvmet.target())
    for port in offering:
        if not port.is_ours:
            raise Conflict(
                f"withdraw {nqn}: {port} offers it, which is not one of Farbus's",
                hint=f"rm /sys/kernel/config/nvmet/ports/{port.id}/subsystems/{nqn}",
            )


async def _tidy_ports(parts: TargetParts, target: Target) -> None:
    """Remove Farbus's ports that offer nothing, and groups of the others that nothing there is in."""
    for port in target.ports:
        if not port.is_ours:
            continue
        if not port.subsystems:
            await parts.nvmet.remove_port(port)
            continue
        for group in port.states:
            if int(group) != COMMON_ANA_GROUP and not target.group_is_used(port, int(group), but=""):
                await parts.nvmet.remove_group(port.id, int(group))


async def remove(parts: TargetParts, name: SubsystemName) -> None:
    """Remove a subsystem that is fenced, its key of TLS, and its host where no other epoch needs it; read all again."""
    target = await parts.nvmet.target()
    subsystem = target.subsystem(name.nqn)
    if subsystem is not None:
        await parts.nvmet.remove_subsystem(subsystem)
    if target.host(name.host_nqn) is not None and not _host_is_used(target, name):
        await parts.nvmet.remove_host(name.host_nqn)
    await drop(parts.tls_keys, name)
    left = await parts.nvmet.target()
    if left.subsystem(name.nqn) is not None or left.ports_of(name.nqn):
        raise Unavailable(f"withdraw {name.nqn}: it is still there after it was removed", hint="see dmesg")


def _host_is_used(target: Target, name: SubsystemName) -> bool:
    return any(name.host_nqn in one.hosts for one in target.subsystems if one.nqn != name.nqn)


async def withdraw(parts: TargetParts, name: SubsystemName) -> None:
    """End a subsystem of Farbus's, whole or half made.  Nothing happens where there is none."""
    await fence(parts, name.nqn)
    await remove(parts, name)


# Steps.


@dataclass(frozen=True, kw_only=True)
class TargetStep:
    """What all steps have."""

    parts: TargetParts
    name: SubsystemName
    lasting: bool = False
    """configfs is empty after a boot."""
    deadline_s: float = WRITE_S

    @property
    def identity(self) -> str:
        """The subsystem."""
        return f"subsystem {self.name.nqn}"

    @property
    def devices(self) -> tuple[str, ...]:
        """The one turn of all that is written to the target."""
        return (TURN,)


@dataclass(frozen=True, kw_only=True)
class CheckExport(TargetStep):
    """Preflight: nothing is touched before it is known that nothing stands against it."""

    export: Export
    kind: str = "CheckExport"

    async def observe(self, known: Result | None) -> Result | None:
        """It is done when it is on record."""
        return known

    async def do(self) -> Result:
        """Look; raise :class:`Conflict` or :class:`NotFound` where it won't do.  Returns sizes in bytes."""
        export, nvmet = self.export, self.parts.nvmet
        _check(export)
        await self._load(sorted({address.transport for address in export.addresses}))
        target = await nvmet.target()
        newer = [name for name in _epochs(target, self.name) if name.epoch > self.name.epoch]
        if newer:
            raise Conflict(f"export {export.nqn}: {newer[-1].nqn} is there already, which is newer")
        if export.authenticated and self.parts.keys(self.name) is None:
            raise Conflict(f"export {export.nqn}: its lease's secret is not known here")
        for address in export.addresses:
            _refuse_in_the_way(target, address, export.nqn)
        sizes = {}
        for namespace in export.namespaces:
            device = self.parts.blocks.look(namespace.device)
            if device.read_only:
                raise Conflict(f"export {export.nqn}: {namespace.device} is read-only")
            self._refuse_exported(target, device.number, namespace.device)
            await self.parts.blocks.prove_free(namespace.device)
            sizes[f"size_bytes.{namespace.nsid}"] = str(device.size_bytes)
        return sizes

    async def _load(self, transports: list[Transport]) -> None:
        """Load what serves the transports: one is enough, and where the others are missing is told by the offer."""
        failed: list[Unavailable] = []
        for transport in transports:
            try:
                await self.parts.nvmet.load([transport])
            except Unavailable as error:
                failed.append(error)
        if len(failed) == len(transports):
            raise failed[0]

    def _refuse_exported(self, target: Target, number: str, device: str) -> None:
        # The kernel does not: it opens devices without claiming them (nvmet_bdev_ns_enable).
        for subsystem in target.subsystems:
            name = subsystem_name(subsystem.nqn)
            if name is not None and name.lease == self.name.lease:
                # Of this lease: it is older and about to end, or this very one.
                continue
            for namespace in subsystem.namespaces:
                if namespace.enabled and self._number(namespace.device) == number:
                    raise Conflict(f"export {self.export.nqn}: {device} is exported as {subsystem.nqn} already")

    def _number(self, path: str) -> str:
        try:
            return self.parts.blocks.look(path).number
        except (NotFound, Conflict):
            return ""

    async def compensate(self) -> None:
        """Nothing was touched."""


@dataclass(frozen=True, kw_only=True)
class EndOlder(TargetStep):
    """What the lease had in lower epochs ends before it is offered anew: two initiators never write to one device."""

    kind: str = "EndOlder"
    deadline_s: float = FENCE_S

    async def observe(self, known: Result | None) -> Result | None:
        """It is done when there is none."""
        return None if await self._older() else {}

    async def do(self) -> Result:
        """Withdraw them all."""
        for name in await self._older():
            await withdraw(self.parts, name)
        return {}

    async def _older(self) -> list[SubsystemName]:
        target = await self.parts.nvmet.target()
        return [name for name in _epochs(target, self.name) if name.epoch < self.name.epoch]

    async def compensate(self) -> None:
        """Who was fenced stays so."""


@dataclass(frozen=True, kw_only=True)
class MakeSubsystem(TargetStep):
    """The subsystem with its namespaces, which nobody can reach yet."""

    export: Export
    kind: str = "MakeSubsystem"
    deadline_s: float = FENCE_S

    async def observe(self, known: Result | None) -> Result | None:
        """Compare it."""
        target = await self.parts.nvmet.target()
        return None if subsystem_differences(target.subsystem(self.export.nqn), self.export) else {}

    async def do(self) -> Result:
        """Make it anew, unless it is offered as something else: then somebody uses what is not as recorded."""
        target = await self.parts.nvmet.target()
        found = target.subsystem(self.export.nqn)
        if found is not None:
            if target.ports_of(found.nqn):
                told = "; ".join(subsystem_differences(found, self.export))
                raise Conflict(
                    f"export {found.nqn}: it is offered otherwise than recorded: {told}", hint="withdraw it first"
                )
            await self.parts.nvmet.remove_subsystem(found)
        await self.parts.nvmet.make_subsystem(self.export.nqn, serial=self.export.serial)
        for namespace in self.export.namespaces:
            await self.parts.nvmet.make_namespace(self.export.nqn, namespace)
        made = (await self.parts.nvmet.target()).subsystem(self.export.nqn)
        if told := "; ".join(subsystem_differences(made, self.export)):
            # Linux 5.10 keeps 16 hexadecimal digits of a serial number (nvmet_subsys_attr_serial_store).
            raise Unavailable(
                f"export {self.export.nqn}: this kernel's target has made something else: {told}",
                hint="it was tried with Linux 6.1 and 6.12",
            )
        return {}

    async def compensate(self) -> None:
        """Remove it, and read that it is gone."""
        await fence(self.parts, self.name.nqn)
        await remove(self.parts, self.name)


@dataclass(frozen=True, kw_only=True)
class AllowHost(TargetStep):
    """The lease's host is made, with its keys, and is the only one that may connect."""

    export: Export
    kind: str = "AllowHost"

    async def observe(self, known: Result | None) -> Result | None:
        """Compare; keys that this sequence has not recorded are an earlier epoch's, for all that is known."""
        if self.export.authenticated and known is None:
            return None
        return None if host_differences(await self.parts.nvmet.target(), self.export) else {}

    async def do(self) -> Result:
        """Make the host anew: a key can be changed, but not taken away."""
        nvmet, name = self.parts.nvmet, self.name
        keys = self.parts.keys(name) if self.export.authenticated else None
        if self.export.authenticated and keys is None:
            raise Conflict(f"export {name.nqn}: its lease's secret is not known here")
        target = await nvmet.target()
        subsystem = target.subsystem(name.nqn)
        for host in subsystem.hosts if subsystem is not None else ():
            await nvmet.forbid_host(name.nqn, host)
        if target.host(name.host_nqn) is not None:
            await nvmet.remove_host(name.host_nqn)
        if keys is None:
            await nvmet.make_host(name.host_nqn)
        else:
            await nvmet.make_host(name.host_nqn, key=keys.host, controller_key=keys.controller)
        await nvmet.allow_host(name.nqn, name.host_nqn)
        return {"host": name.host_nqn}

    async def compensate(self) -> None:
        """Forbid it, and remove it with its keys where no other epoch needs it."""
        target = await self.parts.nvmet.target()
        if target.subsystem(self.name.nqn) is not None:
            await self.parts.nvmet.forbid_host(self.name.nqn, self.name.host_nqn)
        if target.host(self.name.host_nqn) is not None and not _host_is_used(target, self.name):
            await self.parts.nvmet.remove_host(self.name.host_nqn)


@dataclass(frozen=True, kw_only=True)
class HoldTlsKey(TargetStep):
    """The kernel has the key by which the lease's connections are encrypted."""

    kind: str = "HoldTlsKey"

    async def observe(self, known: Result | None) -> Result | None:
        """Look for it by its name; where the secret is known, the key must be made of it."""
        return {} if is_held(self.parts.tls_keys, self.name, self.parts.tls_key(self.name)) else None

    async def do(self) -> Result:
        """Add it; raise where this node can't."""
        await hold(self.parts.tls_keys, self.name, self.parts.tls_key(self.name))
        return {}

    async def compensate(self) -> None:
        """Take it away: nobody has connected by it, or nobody is left."""
        await drop(self.parts.tls_keys, self.name)


@dataclass(frozen=True, kw_only=True)
class OfferSubsystem(TargetStep):
    """Ports and links: from here on it can be connected to.

    One address is enough.  Where the node has not got another, or nothing that
    serves its transport, that is told in the result as ``missing``.
    """

    export: Export
    kind: str = "OfferSubsystem"
    deadline_s: float = FENCE_S

    async def observe(self, known: Result | None) -> Result | None:
        """Compare where it is offered, but for where it could not be."""
        target = await self.parts.nvmet.target()
        missing = known.get("missing", "") if known is not None else ""
        without = {address for address in self.export.addresses if str(address) in missing.split()}
        offered = tuple(address for address in self.export.addresses if address not in without)
        compared = msgspec.structs.replace(self.export, addresses=offered)
        return None if offer_differences(target, compared) else self._result(target, missing)

    async def do(self) -> Result:
        """Make the ports that are not there yet, set the groups, and link."""
        nvmet, nqn = self.parts.nvmet, self.export.nqn
        target = await nvmet.target()
        for port in target.ports_of(nqn):
            if port.is_ours and not any(port.is_at(address) for address in self.export.addresses):
                await nvmet.withhold(port.id, nqn)
        # Half of a port is of no use; and what was cut off gives the same numbers when it is done again.
        await _tidy_ports(self.parts, await nvmet.target())
        target = await nvmet.target()
        taken = {port.id for port in target.ports}
        failed: dict[TransportAddress, FarbusError] = {}
        for address in self.export.addresses:
            _refuse_in_the_way(target, address, nqn)
            found = target.port_at(address)
            number = found.id if found is not None else _free_port(taken)
            taken.add(number)
            if found is None:
                await nvmet.make_port(number, address)
            await _set_groups(self.parts, target, self.export, address, found, number)
            try:
                await nvmet.offer(number, nqn)
            except (NotFound, Unavailable) as error:
                failed[address] = error
        if len(failed) == len(self.export.addresses):
            raise next(iter(failed.values()))
        if failed:
            # A port that nothing is offered at is half of one.
            await _tidy_ports(self.parts, await nvmet.target())
        return self._result(await nvmet.target(), " ".join(map(str, failed)))

    def _result(self, target: Target, missing: str) -> Result:
        ports = {
            f"port.{address}": str(port.id) for address in self.export.addresses if (port := target.port_at(address))
        }
        return {**ports, "missing": missing} if missing else ports

    async def compensate(self) -> None:
        """Fence it: somebody may have connected already."""
        await fence(self.parts, self.export.nqn)


@dataclass(frozen=True, kw_only=True)
class FenceSubsystem(TargetStep):
    """No use of the subsystem is left, and none can begin."""

    kind: str = "FenceSubsystem"
    deadline_s: float = FENCE_S

    async def observe(self, known: Result | None) -> Result | None:
        """It is done when no namespace is enabled and no port offers it."""
        target = await self.parts.nvmet.target()
        subsystem = target.subsystem(self.name.nqn)
        enabled = subsystem is not None and any(namespace.enabled for namespace in subsystem.namespaces)
        return None if enabled or target.ports_of(self.name.nqn) else {}

    async def do(self) -> Result:
        """Fence it."""
        await fence(self.parts, self.name.nqn)
        return {}

    async def compensate(self) -> None:
        """Who was fenced stays so."""


@dataclass(frozen=True, kw_only=True)
class RemoveSubsystem(TargetStep):
    """Nothing of the subsystem is left."""

    kind: str = "RemoveSubsystem"

    async def observe(self, known: Result | None) -> Result | None:
        """It is gone, and its host, where it was nobody else's; and no port of ours is left over."""
        target = await self.parts.nvmet.target()
        host = target.host(self.name.host_nqn) is not None and not _host_is_used(target, self.name)
        left = host or target.subsystem(self.name.nqn) is not None or held(self.parts.tls_keys, self.name)
        return None if left else {}

    async def do(self) -> Result:
        """Remove it, and read that it is gone."""
        await _tidy_ports(self.parts, await self.parts.nvmet.target())
        await remove(self.parts, self.name)
        return {}

    async def compensate(self) -> None:
        """What is gone is gone: an export makes another."""


@dataclass(frozen=True, kw_only=True)
class SetAccess(TargetStep):
    """ANA states of the export's groups, at each of its ports."""

    export: Export
    before: dict[str, dict[str, AnaState]]
    kind: str = "SetAccess"

    async def observe(self, known: Result | None) -> Result | None:
        """Compare them."""
        return None if offer_differences(await self.parts.nvmet.target(), self.export) else {}

    async def do(self) -> Result:
        """Write them."""
        await self._set(self.export)
        return {}

    async def compensate(self) -> None:
        """Write what was before."""
        await self._set(msgspec.structs.replace(self.export, states=self.before))

    async def _set(self, export: Export) -> None:
        _check(export)
        target = await self.parts.nvmet.target()
        for address in export.addresses:
            port = target.port_at(address)
            if port is None or export.nqn not in port.subsystems:
                raise NotFound(f"ANA states of {export.nqn}: it is not offered at {address}")
            await _set_groups(self.parts, target, export, address, port, port.id)


@dataclass(frozen=True, kw_only=True)
class SetAddressAccess:
    """The ANA state of all that the node exports at an address."""

    parts: TargetParts
    address: TransportAddress
    state: AnaState
    before: AnaState
    kind: str = "SetAddressAccess"
    lasting: bool = False
    deadline_s: float = WRITE_S
    devices: tuple[str, ...] = (TURN,)

    @property
    def identity(self) -> str:
        """The address."""
        return f"address {self.address}"

    async def observe(self, known: Result | None) -> Result | None:
        """Compare; where nothing is offered there is nothing to be done."""
        target = await self.parts.nvmet.target()
        return {} if self._port(target, unlike=self.state) is None else None

    def _port(self, target: Target, *, unlike: AnaState) -> TargetPort | None:
        """Return the address's port where it has the group, in another state."""
        port = target.port_at(self.address)
        there = port is not None and port.states.get(str(NODE_ANA_GROUP), unlike) != unlike
        return port if there else None

    async def do(self) -> Result:
        """Write it; raise :class:`Conflict` where that would leave an initiator without a path."""
        target = await self.parts.nvmet.target()
        port = self._port(target, unlike=self.state)
        if port is None:
            return {}
        if self.state is AnaState.INACCESSIBLE:
            for nqn in port.subsystems:
                concerned = (subsystem := target.subsystem(nqn)) is not None and any(
                    namespace.ana_group == NODE_ANA_GROUP for namespace in subsystem.namespaces
                )
                others = (other for other in target.ports_of(nqn) if other.id != port.id)
                if concerned and not any(map(_may_be_used, others)):
                    raise Conflict(
                        f"{self.identity} of {nqn}: it is its only one that can be used",
                        hint="the address is in use until the lease ends",
                    )
        await self.parts.nvmet.set_access(port.id, NODE_ANA_GROUP, self.state)
        return {}

    async def compensate(self) -> None:
        """Write what was before."""
        port = self._port(await self.parts.nvmet.target(), unlike=self.before)
        if port is not None:
            await self.parts.nvmet.set_access(port.id, NODE_ANA_GROUP, self.before)


def _may_be_used(port: TargetPort) -> bool:
    return port.states.get(str(NODE_ANA_GROUP)) in (AnaState.OPTIMIZED, AnaState.NON_OPTIMIZED)


ExportStep = CheckExport | EndOlder | MakeSubsystem | AllowHost | HoldTlsKey | OfferSubsystem
WithdrawStep = FenceSubsystem | RemoveSubsystem
AnyTargetStep = ExportStep | WithdrawStep | SetAccess | SetAddressAccess


def steps_of(parts: TargetParts, work: TargetWork) -> tuple[AnyTargetStep, ...]:
    """Return the steps of a target's work, in order.

    An export ends by taking its steps back; :class:`WithdrawWork` is for
    what no record leads to, and is not taken back.
    """
    if isinstance(work, WithdrawWork):
        return (FenceSubsystem(parts=parts, name=work.name), RemoveSubsystem(parts=parts, name=work.name))
    if isinstance(work, AddressWork):
        return (SetAddressAccess(parts=parts, address=work.address, state=work.state, before=work.before),)
    export = work.export
    if isinstance(work, AccessWork):
        return (SetAccess(parts=parts, name=export.name, export=export, before=work.before),)
    return (
        CheckExport(parts=parts, name=export.name, export=export),
        EndOlder(parts=parts, name=export.name),
        MakeSubsystem(parts=parts, name=export.name, export=export),
        AllowHost(parts=parts, name=export.name, export=export),
        *((HoldTlsKey(parts=parts, name=export.name),) if export.tls else ()),
        OfferSubsystem(parts=parts, name=export.name, export=export),
    )


def _epochs(target: Target, name: SubsystemName) -> list[SubsystemName]:
    return [one for one in our_subsystems(target) if one.lease == name.lease and one != name]


def _check(export: Export) -> None:
    if not export.namespaces or not export.addresses:
        raise InvalidInput(f"export {export.nqn}: it needs a namespace and an address")
    for what, values in (
        ("namespace", [str(namespace.nsid) for namespace in export.namespaces]),
        ("device", [namespace.device for namespace in export.namespaces]),
        ("address", [str(address) for address in export.addresses]),
    ):
        if len(set(values)) < len(values):
            raise InvalidInput(f"export {export.nqn}: the same {what} twice")
    for group in groups_of(export):
        if not COMMON_ANA_GROUP <= group <= MAX_ANA_GROUPS:
            raise InvalidInput(f"export {export.nqn}: ANA group {group}", hint=f"from 1 to {MAX_ANA_GROUPS}")
        for address in export.addresses:
            if group == COMMON_ANA_GROUP and access_wanted(export.states, address, group) != AnaState.OPTIMIZED:
                raise InvalidInput(
                    f"export {export.nqn}: ANA group {group} is everybody's, and stays optimized",
                    hint="give its namespaces another group",
                )
    clear = [address for address in export.addresses if not address.tls]
    if export.tls and clear:
        raise InvalidInput(
            f"export {export.nqn}: {clear[0]} is not encrypted, and others are",
            hint="offer it by TLS at all or at none",
        )
    if export.authenticated and any(address.transport is Transport.LOOP for address in export.addresses):
        raise InvalidInput(f"export {export.nqn}: the loop transport knows no authentication")


def _refuse_in_the_way(target: Target, address: TransportAddress, nqn: str) -> None:
    for port in target.ports:
        if not port.is_in_the_way(address):
            continue
        if not port.is_ours:
            raise Conflict(
                f"export {nqn} at {address}: {port} listens there, which is not one of Farbus's",
                hint="choose another address or service",
            )
        if port.subsystems and port.tls != address.tls:
            how = "by" if port.tls else "without"
            raise Conflict(
                f"export {nqn} at {address}: {port} listens there {how} TLS for other leases",
                hint="set another nvmeof_tls_port",
            )


def _free_port(taken: set[int]) -> int:
    for number in PORTS:
        if number not in taken:
            return number
    raise Unavailable(f"NVMe target: all {len(PORTS)} ports of Farbus's are in use")


async def _set_groups(
    parts: TargetParts, target: Target, export: Export, address: TransportAddress, port: TargetPort | None, number: int
) -> None:
    """Give the export's groups their states at a port; raise :class:`Conflict` where one is another's too."""
    for group in groups_of(export):
        state = access_wanted(export.states, address, group)
        there = port.states.get(str(group)) if port is not None else None
        if group == COMMON_ANA_GROUP or there == state:
            continue
        shared = group != NODE_ANA_GROUP and port is not None and target.group_is_used(port, group, but=export.nqn)
        if shared:
            raise Conflict(
                f"export {export.nqn} at {address}: ANA group {group} is in use there, and {there}",
                hint="give its namespaces another group",
            )
        await parts.nvmet.set_access(number, group, state)
