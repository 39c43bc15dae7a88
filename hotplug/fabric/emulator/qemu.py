"""Assigning as real hot-plug: ``device_add`` and ``device_del`` in QEMU guests, by their monitors.

A device is in at most one guest, by order alone: :class:`EmulatedChassis`
writes down who may have it before it is added, and has it added elsewhere
only after :meth:`QemuBackend.unplug` has returned, which is after

* QEMU's ``DEVICE_DELETED``, or QEMU saying that there is no such device, or
* nobody listening at the guest's socket: its QEMU has ended, and the device with it.

A guest that does not answer is none of these, and keeps the device.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from farbus.hotplug.fabric.emulator.chassis import BackendError
from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, PortConfig
from farbus.hotplug.fabric.emulator.qmp import ANSWER_S, GuestLost, GuestOff, Qmp, QmpError
from farbus.linux.clock import Clock

DELETED_S = 60.0
"""How long a guest may take to let a device go: its attention button alone waits 5 s (PCIe 6.7.1.5)."""

ASK_AGAIN_S = 10.0
"""A guest that was not listening when it was asked, as while it boots, is asked again."""

LOOK_AGAIN_S = 1.0
"""Between two looks whether a guest has come back."""

RECONNECTS = 2
"""New connections for one step, when connections break."""

PREFIX = "fabric-"

T = TypeVar("T")


def qemu_id(device: str) -> str:
    """Return the id of a device in guests: by it what is the fabric's is told from what is the guest's own."""
    if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", device):
        return PREFIX + device
    return PREFIX + hashlib.sha256(device.encode()).hexdigest()[:16]


class _Guest:
    """The monitor of the guest at one port, opened when it is needed and again when it broke."""

    def __init__(self, port: PortConfig, *, deleted_s: float, answer_s: float) -> None:
        self.port = port
        self._deleted_s = deleted_s
        self._answer_s = answer_s
        self.lock = asyncio.Lock()
        self.monitor: Qmp | None = None
        self._gone: dict[str, asyncio.Event] = {}
        self._failed: dict[str, str] = {}

    async def open(self) -> Qmp:
        """Return the open monitor; raise :class:`GuestOff` or :class:`GuestLost`."""
        if self.monitor is None or self.monitor.closed.is_set():
            self.monitor = None
            self.monitor = await Qmp.open(self.port.qmp, on_event=self._hear, answer_s=self._answer_s)
        return self.monitor

    def _hear(self, event: str, data: Any) -> None:
        name = str(data.get("device", ""))
        if event == "DEVICE_DELETED" and name in self._gone:
            self._gone[name].set()
        if event in ("DEVICE_UNPLUG_GUEST_ERROR", "MEM_UNPLUG_ERROR") and name in self._gone:
            self._failed[name] = "the guest refuses to let it go"
            self._gone[name].set()

    async def devices(self) -> dict[str, str]:
        """Return the fabric's devices in this guest by their id, with the slot that each is in."""
        monitor = await self.open()
        found = {}
        for each in await monitor.run("qom-list", path="/machine/peripheral"):
            name = str(each.get("name", ""))
            if name.startswith(PREFIX) and not name.endswith("-drive"):
                bus = await monitor.run("qom-get", path=f"/machine/peripheral/{name}", property="parent_bus")
                found[name] = str(bus).rpartition("/")[2]
        return found

    async def add(self, device: DeviceConfig, slots: Sequence[str]) -> str:
        """Plug a device into the first slot that is free, unless it is there; return the slot."""
        assert device.qemu is not None
        name = qemu_id(device.id)
        present = await self.devices()
        if name in present:
            return present[name]
        free = [slot for slot in slots if slot not in present.values()]
        if not free:
            raise BackendError(f"guest {self.port.node or self.port.id}: no slot is free", is_out=True)
        monitor = await self.open()
        properties = dict(device.qemu.properties)
        if device.qemu.blockdev:
            await self._drop_drive(monitor, name)
            await monitor.run("blockdev-add", **device.qemu.blockdev, **{"node-name": f"{name}-drive"})
            properties["drive"] = f"{name}-drive"
        await monitor.run("device_add", driver=device.qemu.driver, id=name, bus=free[0], **properties)
        return free[0]

    async def remove(self, device: DeviceConfig, clock: Clock) -> None:
        """Return when the device is surely out of this guest; raise :class:`BackendError` otherwise."""
        name = qemu_id(device.id)
        self._gone[name] = asyncio.Event()
        started = clock.monotonic()
        try:
            while True:
                monitor = await self.open()
                try:
                    await monitor.run("device_del", id=name)
                except QmpError as error:
                    if error.kind == "DeviceNotFound":
                        break
                    # It is being let go already, by an earlier call that was cut off.
                    if "unplug" not in error.message:
                        raise
                if await self._is_gone(name, monitor):
                    break
                if clock.monotonic() - started > self._deleted_s:
                    where = self.port.node or self.port.id
                    raise BackendError(f"guest {where} has not let {device.id} go after {self._deleted_s:.0f} s")
            if device.qemu is not None and device.qemu.blockdev:
                await self._drop_drive(await self.open(), name)
        finally:
            self._gone.pop(name, None)
            self._failed.pop(name, None)

    async def _is_gone(self, name: str, monitor: Qmp) -> bool:
        """Wait for the event; say whether the device is out."""
        ended = asyncio.ensure_future(monitor.closed.wait())
        heard = asyncio.ensure_future(self._gone[name].wait())
        try:
            await asyncio.wait(
                [ended, heard], timeout=min(ASK_AGAIN_S, self._deleted_s), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ended.cancel()
            heard.cancel()
        if reason := self._failed.pop(name, ""):
            raise BackendError(f"guest {self.port.node or self.port.id}: {reason}")
        # An event may have been missed while the connection was down, so the guest's own list decides.
        return name not in await self.devices()

    async def _drop_drive(self, monitor: Qmp, name: str) -> None:
        """Close a drive that no device has: the device's own hold on it ends with the device."""
        nodes = {str(node.get("node-name")) for node in await monitor.run("query-named-block-nodes", flat=True)}
        if f"{name}-drive" in nodes:
            await monitor.run("blockdev-del", **{"node-name": f"{name}-drive"})

    async def close(self) -> None:
        if self.monitor is not None:
            await self.monitor.close()


class QemuBackend:
    """A :class:`farbus.hotplug.fabric.emulator.chassis.Backend` over the guests of one chassis.

    Ports without a monitor have a table only, as devices without ``qemu``.
    """

    def __init__(
        self, config: ChassisConfig, *, clock: Clock, deleted_s: float = DELETED_S, answer_s: float = ANSWER_S
    ) -> None:
        self._clock = clock
        self._guests = {
            port.id: _Guest(port, deleted_s=deleted_s, answer_s=answer_s) for port in config.ports if port.qmp
        }

    async def plug(self, device: DeviceConfig, port: PortConfig) -> str:
        """See :class:`Backend`."""
        guest = self._guests.get(port.id)
        if guest is None or device.qemu is None:
            return ""
        async with guest.lock:
            try:
                return await self._connected(guest, lambda: guest.add(device, port.slots))
            except GuestOff:
                # A chassis assigns to a port whose node is off; the device is there when the node starts.
                return ""
            except QmpError as error:
                out = error.kind == "DeviceNotFound" or qemu_id(device.id) not in await self._seen(guest, device)
                raise BackendError(f"guest {port.node or port.id}: {error.message}", is_out=out) from error
            except GuestLost as error:
                raise BackendError(f"guest {port.node or port.id}: {error.message}") from error

    async def _connected(self, guest: _Guest, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work``, again where the connection broke: a new one tells whether the guest has ended."""
        for _ in range(RECONNECTS):
            try:
                return await work()
            except GuestLost:
                if guest.monitor is None or not guest.monitor.closed.is_set():
                    raise
                guest.monitor = None
        return await work()

    async def _seen(self, guest: _Guest, device: DeviceConfig) -> dict[str, str]:
        """Return what the guest has; the device too when that can't be found out."""
        try:
            return await guest.devices()
        except (GuestOff, GuestLost, QmpError):
            return {qemu_id(device.id): ""}

    async def unplug(self, device: DeviceConfig, port: PortConfig) -> None:
        """See :class:`Backend`."""
        guest = self._guests.get(port.id)
        if guest is None or device.qemu is None:
            return
        async with guest.lock:
            try:
                await self._connected(guest, lambda: guest.remove(device, self._clock))
            except GuestOff:
                return
            except (QmpError, GuestLost) as error:
                raise BackendError(f"guest {port.node or port.id}: {error.message}") from error

    async def strangers(self, known: set[str]) -> list[str]:
        """Return what guests have of the fabric's making that no device of ``known`` is."""
        names = {qemu_id(device) for device in known}
        found = []
        for port, guest in self._guests.items():
            async with guest.lock:
                try:
                    found += [f"port {port}: {name}" for name in await guest.devices() if name not in names]
                except (GuestOff, GuestLost, QmpError):
                    continue
        return found

    async def watch(self, reconcile: Callable[[str], Awaitable[list[str]]], tell: Callable[[str], None]) -> None:
        """Have each guest that comes back get what is assigned to it, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for guest in self._guests.values():
                tasks.create_task(self._watch_guest(guest, reconcile, tell), name=f"guest at port {guest.port.id}")

    async def _watch_guest(
        self, guest: _Guest, reconcile: Callable[[str], Awaitable[list[str]]], tell: Callable[[str], None]
    ) -> None:
        is_settled, told, was_asked = False, "", False
        while True:
            try:
                async with guest.lock:
                    monitor = await guest.open()
                if not is_settled:
                    troubles = await reconcile(guest.port.id)
                    is_settled = not troubles
                    words = "; ".join(troubles) or f"port {guest.port.id}: guest is there"
                    if words != told:
                        tell(words)
                        told = words
                if is_settled:
                    await monitor.closed.wait()
                    is_settled, told = False, ""
                    tell(f"port {guest.port.id}: guest is gone")
            except (GuestOff, GuestLost, QmpError) as error:
                is_settled = False
                if not was_asked:
                    # The path may be wrong, which nothing else would tell.
                    tell(f"port {guest.port.id}: {error}: what is assigned is plugged when its guest is there")
            was_asked = True
            await self._clock.sleep(LOOK_AGAIN_S)

    async def close(self) -> None:
        """See :class:`Backend`."""
        for guest in self._guests.values():
            await guest.close()
