"""The bus of an agent's node: changes have its devices listed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.agent.bus import BusWatch
from farbus.errors import Unavailable
from farbus.linux.uevents import FakeUevents, Uevents
from farbus.model.pci import Lost, Uevent
from tests.hotplug.machines import PORT_A, PORT_B, drive, plain, two_ports


class Deaf:
    """A kernel that does not let us listen, as in some containers."""

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[Uevent | Lost]]:
        raise Unavailable("uevents: Operation not permitted")
        yield


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_changes_have_devices_listed_once(tmp_path: Path) -> None:
    pci, uevents, listings = two_ports(tmp_path), FakeUevents(), 0

    async def changed() -> None:
        nonlocal listings
        listings += 1

    running = asyncio.create_task(BusWatch(pci=pci, uevents=uevents, changed=changed).run())
    await settle()
    assert listings == 0
    pci.plug(PORT_A, drive(), announce=True)
    pci.plug(PORT_B, plain(), announce=True)
    uevents.send("add", "/devices/pci0000:00/0000:00:03.0/0000:01:00.0")
    uevents.send("add", "/devices/pci0000:00/0000:00:04.0/0000:02:00.0")
    await settle()
    assert listings == 1
    pci.unplug(PORT_A)
    uevents.lose()
    await settle()
    assert listings == 2
    running.cancel()


@pytest.mark.parametrize("uevents", [Deaf()])
async def test_a_kernel_that_does_not_let_us_listen_ends_the_watch_alone(uevents: Uevents, tmp_path: Path) -> None:
    async def changed() -> None:
        raise AssertionError

    await BusWatch(pci=two_ports(tmp_path), uevents=uevents, changed=changed).run()
