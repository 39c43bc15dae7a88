"""Serving an emulator in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from farbus.hotplug.fabric.config import read_credentials
from farbus.hotplug.fabric.emulator.chassis import Backend
from farbus.hotplug.fabric.emulator.config import EmulatorConfig
from farbus.hotplug.fabric.emulator.emulator import Emulator
from farbus.hotplug.fabric.emulator.faults import Fault
from farbus.hotplug.fabric.emulator.qemu import QemuBackend
from farbus.hotplug.fabric.emulator.server import Served, Server, make_certificate, server_tls
from farbus.hotplug.fabric.emulator.store import Store
from farbus.linux.clock import SystemClock
from farbus.linux.files import FileLock, make_state_directory

STATE_FILE = "fabric.db"


class BackendKind(enum.StrEnum):
    """What assigning does beyond the chassis' own table."""

    NONE = "none"
    QEMU = "qemu"


@contextlib.asynccontextmanager
async def serving(
    config: EmulatorConfig,
    directory: Path,
    *,
    backend: BackendKind,
    tell: Callable[[str], None],
) -> AsyncIterator[Sequence[Served]]:
    """Serve ``config`` inside the block; ``directory`` is where paths are relative to.

    ``tell`` gets one line for each event.  What an earlier process has begun is
    finished or undone before anybody can ask.
    """
    clock = SystemClock()
    config = _with_paths(config, directory)
    state = directory / config.state
    make_state_directory(state, mode=0o700, marks=("lock", STATE_FILE), what="an emulator's state")
    # Two emulators over one state could give one device to two guests.
    lock = FileLock(state / "lock", what=f"fabric emulator {state}")
    credentials = None
    if config.credentials:
        credentials = read_credentials(str(directory / config.credentials), what="emulator")
    tls = None
    if any(chassis.redfish for chassis in config.chassis):
        if config.certificate:
            tls = server_tls(directory / config.certificate, directory / config.key)
        else:
            tls = server_tls(*make_certificate(state, now=clock.wall()))
    guests: dict[str, QemuBackend] = {}
    if backend is BackendKind.QEMU:
        guests = {chassis.name: QemuBackend(chassis, clock=clock) for chassis in config.chassis}
    store = Store(state / STATE_FILE)
    backends: dict[str, Backend] = dict(guests)
    emulator = Emulator(config, store, clock=clock, credentials=credentials, backends=backends)
    for each in emulator.chassis.values():
        each.faults.told = functools.partial(_tell_fault, tell, each.config.name)
    server = Server()
    try:
        for trouble in await emulator.reconcile():
            tell(trouble)
        for chassis in config.chassis:
            if chassis.name in guests:
                for stranger in await guests[chassis.name].strangers({device.id for device in chassis.devices}):
                    tell(f"chassis {chassis.name}: {stranger}: in the guest, and not configured any more: left alone")
        served = await server.start(emulator, config, tls)
        watching = [
            asyncio.create_task(each.watch(emulator.chassis[name].reconcile, tell), name=f"guests of chassis {name}")
            for name, each in guests.items()
        ]
        try:
            yield served
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
    finally:
        await server.close()
        await emulator.stop()
        store.close()
        lock.release()


def _tell_fault(tell: Callable[[str], None], chassis: str, fault: Fault) -> None:
    tell(f"chassis {chassis}: fault: {fault}")


def _with_paths(config: EmulatorConfig, directory: Path) -> EmulatorConfig:
    """Return ``config`` with monitors below ``directory``. What QEMU opens itself (``blockdev``) is left to it."""
    chassis = []
    for each in config.chassis:
        ports = [
            msgspec.structs.replace(port, qmp=str(directory / port.qmp)) if port.qmp else port for port in each.ports
        ]
        chassis.append(msgspec.structs.replace(each, ports=tuple(ports)))
    return msgspec.structs.replace(config, chassis=tuple(chassis))


async def serve(config: EmulatorConfig, directory: Path, *, backend: BackendKind, tell: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; tell where."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with serving(config, directory, backend=backend, tell=tell) as served:
        for each in served:
            tell(f"chassis {each.chassis}: {each.dialect} at {each.url}")
        tell("ready")
        await ended.wait()
