"""An emulated chassis: its state, how long it takes, what it does wrong. Dialects stand in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, Protocol

import msgspec

from farbus.errors import FarbusError
from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, PortConfig
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind, Faults
from farbus.hotplug.fabric.emulator.latency import fit
from farbus.hotplug.fabric.emulator.store import Row, Store, SystemRow
from farbus.linux.clock import Clock
from farbus.model.fabric import FabricStep


class BackendError(FarbusError):
    """A guest did not do what it was told.

    ``is_out`` says that the device is surely not in it.
    """

    def __init__(self, message: str, *, is_out: bool = False) -> None:
        super().__init__(message)
        self.is_out = is_out


class Backend(Protocol):
    """What assigning does beyond the chassis' own table."""

    async def plug(self, device: DeviceConfig, port: PortConfig) -> str:
        """Make ``device`` appear at ``port``, in the first of its ``slots`` that is free there.

        Returns the slot, empty where the guest is off and gets the device when it starts.
        Raises :class:`BackendError`.
        """
        ...

    async def unplug(self, device: DeviceConfig, port: PortConfig) -> None:
        """Return when ``device`` is surely not at ``port`` any more; raise :class:`BackendError` otherwise."""
        ...

    async def close(self) -> None:
        """Let go of what it talks to."""
        ...


class NoBackend:
    """Assigning changes the chassis' table and nothing else."""

    async def plug(self, device: DeviceConfig, port: PortConfig) -> str:
        """See :class:`Backend`."""
        return ""

    async def unplug(self, device: DeviceConfig, port: PortConfig) -> None:
        """See :class:`Backend`."""

    async def close(self) -> None:
        """See :class:`Backend`."""


class Outcome(NamedTuple):
    """What became of a step. ``status`` is the HTTP status that fits a step that was not done."""

    done: bool
    remark: str = ""
    status: int = 400


class Dropped(Exception):
    """The connection ends now, without a reply."""


class Hanging(Exception):
    """There is no reply, and the connection stays."""


class EmulatedChassis:
    """One chassis. ``random`` draws latencies, ``speed`` scales them."""

    def __init__(
        self,
        config: ChassisConfig,
        store: Store,
        *,
        clock: Clock,
        backend: Backend | None = None,
        seed: int = 0,
        speed: float = 1.0,
    ) -> None:
        self.config = config
        self.devices: Mapping[str, DeviceConfig] = {device.id: device for device in config.devices}
        self.faults = Faults(rates=config.rates, script=config.script, seed=seed)
        self._store = store
        self._clock = clock
        self._backend = backend or NoBackend()
        self._speed = speed
        self._random = random.Random(seed + 1)  # noqa: S311 - it has to be the same every time
        self._latency = {step: fit(config.measured(step)) for step in FabricStep}
        self._all = asyncio.Lock()
        self._each = {device: asyncio.Lock() for device in self.devices}
        kept = store.read(config.name)
        self._rows = {name: kept.get(name, Row(port=device.port)) for name, device in self.devices.items()}
        for name, row in self._rows.items():
            if row.port and config.port(row.port) is None:
                self._rows[name] = msgspec.structs.replace(row, port="")
            if name not in kept:
                store.write(config.name, name, self._rows[name])
        self._systems = store.read_systems(config.name)
        self._before: dict[str, str] = self.assigned()

    def assigned(self) -> dict[str, str]:
        """Return the port of each device as it is; empty for none."""
        return {name: row.port for name, row in self._rows.items()}

    def row(self, device: str) -> Row:
        """Return the state of one device."""
        return self._rows[device]

    def system(self, port: str) -> SystemRow:
        """Return the system that the node at a port is part of."""
        return self._systems.get(port, SystemRow())

    def compose(self, port: str, name: str = "") -> None:
        """Compose a system of the node at a port; devices are assigned to it then."""
        self._write_system(port, SystemRow(name=name))

    def decompose(self, port: str) -> bool:
        """Take the system of a port away; return false where a device is assigned to it, or is about to be."""
        if any(port in (row.port, row.pending) for row in self._rows.values()):
            return False
        self._write_system(port, SystemRow(is_composed=False))
        return True

    # What dialects ask.

    async def look(self, *, is_slow: bool = True, has_devices: bool = True) -> tuple[dict[str, str], Fault | None]:
        """Return the ports of devices for a listing, and what shall go wrong with its reply.

        ``is_slow`` is false for parts of a listing that take no time of their own.
        """
        fault = self.faults.draw(FabricStep.LIST, has_devices=has_devices)
        async with self._turn():
            if is_slow:
                await self._take(FabricStep.LIST)
            listed = self.assigned()
            if fault is not None and fault.kind is FaultKind.STALE:
                listed = dict(self._before)
            elif fault is not None and fault.kind is FaultKind.PARTIAL:
                kept = self._random.sample(sorted(listed), len(listed) // 2)
                listed = {name: listed[name] for name in sorted(kept)}
        return listed, fault

    async def assign(self, device: str, port: str, *, deny: bool = False) -> Outcome:
        """Assign a free device."""
        if device not in self.devices:
            return Outcome(False, f"no device {device}", 404)
        if self.config.port(port) is None:
            return Outcome(False, f"no port {port}", 404)
        async with self._turn(device):
            row = self._rows[device]
            if row.port:
                return Outcome(row.port == port, f"device {device} is assigned to port {row.port}", 409)
            if self._is_full(port, but=device):
                return Outcome(False, f"no slot of port {port} is free", 409)
            self._begin(device, port)
            await self._take(FabricStep.ASSIGN)
            if deny:
                return self._give_up(device, "the switch did not take it")
            try:
                await self._plug(device, port)
            except BackendError as error:
                return self._give_up(device, error.message)
            self._finish(device, port)
            return Outcome(True, "done")

    def _is_full(self, port: str, *, but: str) -> bool:
        """Say whether other devices have, or are to have, all slots of a port; also while its guest is off."""
        at = self.config.port(port)
        assert at is not None
        others = [row for name, row in self._rows.items() if name != but]
        return bool(at.slots) and sum(port in (row.port, row.holder, row.pending) for row in others) >= len(at.slots)

    async def unassign(self, device: str, *, source: str = "", deny: bool = False) -> Outcome:
        """Take a device from its port; from ``source`` only, where that is given."""
        if device not in self.devices:
            return Outcome(False, f"no device {device}", 404)
        async with self._turn(device):
            row = self._rows[device]
            if not row.port and not row.holder:
                return Outcome(True, f"device {device} is at no port")
            if source and row.port != source:
                return Outcome(False, f"device {device} is not at port {source}", 409)
            self._begin(device, "")
            await self._take(FabricStep.UNASSIGN)
            if deny:
                return self._give_up(device, "the switch did not let it go")
            try:
                await self._unplug(device)
            except BackendError as error:
                return self._give_up(device, error.message)
            self._finish(device, "")
            return Outcome(True, "done")

    @contextlib.asynccontextmanager
    async def _turn(self, device: str = "") -> AsyncIterator[None]:
        lock = self._all if self.config.serial else self._each.get(device)
        if lock is None:
            yield
            return
        async with lock:
            yield

    async def _take(self, step: FabricStep) -> None:
        # Drawn also when it counts nothing, so that a seed means the same at every speed.
        seconds = self._latency[step].at(self._random.random())
        if self._speed:
            await self._clock.sleep(seconds * self._speed)

    # The table. Each line of it is durable before what it announces is begun.

    def _write(self, device: str, row: Row) -> None:
        self._store.write(self.config.name, device, row)
        self._rows[device] = row

    def _write_system(self, port: str, row: SystemRow) -> None:
        self._store.write_system(self.config.name, port, row)
        self._systems[port] = row

    def _begin(self, device: str, target: str) -> None:
        if target and not self.system(target).is_composed:
            # Who assigns by other means than composition gives the node a system too: all styles say the same.
            self.compose(target)
        self._write(device, msgspec.structs.replace(self._rows[device], pending=target))

    def _give_up(self, device: str, remark: str) -> Outcome:
        self._write(device, msgspec.structs.replace(self._rows[device], pending=None))
        return Outcome(False, remark, 500)

    def _finish(self, device: str, port: str) -> None:
        before = self.assigned()
        self._write(device, msgspec.structs.replace(self._rows[device], port=port, pending=None))
        self._before = before

    async def _plug(self, device: str, port: str) -> None:
        """Plug a device into a guest, once no other has it."""
        row = self._rows[device]
        if row.holder and row.holder != port:
            await self._unplug(device)
        at = self.config.port(port)
        assert at is not None
        self._write(device, msgspec.structs.replace(self._rows[device], holder=port))
        at = msgspec.structs.replace(at, slots=self._slots_for(device, at))
        try:
            slot = await self._backend.plug(self.devices[device], at)
        except BackendError as error:
            if error.is_out:
                self._write(device, msgspec.structs.replace(self._rows[device], holder=""))
            raise
        self._write(device, msgspec.structs.replace(self._rows[device], slot=slot or self._rows[device].slot))

    def _slots_for(self, device: str, at: PortConfig) -> tuple[str, ...]:
        """Return the slots of a port as a device is to try them: its own, those that are no other's, then the rest.

        What is assigned keeps its slot while its guest is off, as a card does in a chassis.
        """
        own = self._rows[device].slot
        others = {row.slot for name, row in self._rows.items() if name != device and row.holder == at.id}
        return tuple(sorted(at.slots, key=lambda slot: (slot != own, slot in others)))

    async def _unplug(self, device: str) -> None:
        """Return when no guest has the device any more."""
        row = self._rows[device]
        if not row.holder:
            return
        at = self.config.port(row.holder)
        if at is not None:
            await self._backend.unplug(self.devices[device], at)
        elif self.devices[device].qemu is not None:
            raise BackendError(f"it may be in the guest of port {row.holder}, which is not configured any more")
        self._write(device, msgspec.structs.replace(self._rows[device], holder="", slot=""))

    # Agreement with the guests, on start and whenever one comes back.

    async def reconcile(self, port: str = "") -> list[str]:
        """Finish or undo what was begun, and have each guest (that of ``port`` alone) hold what is assigned to it.

        Removals go first, so that a device is out of one guest before it is in
        another.  Returns what could not be done, a line each; nothing is forgotten by that.
        """
        troubles: list[str] = []
        for removing in (True, False):
            for name in self.devices:
                async with self._turn(name):
                    row = self._rows[name]
                    if port and port not in (row.holder, row.port):
                        continue
                    try:
                        if removing:
                            await self._settle(name, row)
                        elif row.port:
                            await self._plug(name, row.port)
                    except BackendError as error:
                        troubles.append(f"chassis {self.config.name}: device {name}: {error.message}")
        return troubles

    async def _settle(self, device: str, row: Row) -> None:
        """Void a step that was cut off: an assignment was not made, what was to be taken away still is there."""
        if row.pending is not None:
            self._write(device, msgspec.structs.replace(row, pending=None))
        if row.holder and row.holder != row.port:
            await self._unplug(device)

    async def close(self) -> None:
        """Let go of guests; the state stays."""
        await self._backend.close()


def raise_fault(fault: Fault | None, *, after: bool) -> None:
    """Raise what a fault means for a connection, before or after what was asked for was done."""
    if fault is None or fault.after is not after:
        return
    if fault.kind is FaultKind.EOF:
        raise Dropped
    if fault.kind is FaultKind.HANG:
        raise Hanging
