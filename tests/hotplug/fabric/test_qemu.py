"""The QEMU back end: a device is in at most one guest, whatever guests do."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.hotplug.fabric.emulator.chassis import EmulatedChassis
from farbus.hotplug.fabric.emulator.config import ChassisConfig, DeviceConfig, PortConfig, QemuDevice
from farbus.hotplug.fabric.emulator.qemu import QemuBackend
from farbus.hotplug.fabric.emulator.qmp import GuestLost, GuestOff, Qmp
from farbus.hotplug.fabric.emulator.store import Store
from farbus.linux.clock import SystemClock
from tests.hotplug.fabric.fake_guest import FakeGuest


def make_config(directory: Path, *, driver: str = "nvme", blockdev: bool = True) -> ChassisConfig:
    return ChassisConfig(
        name="falcon",
        ports=tuple(
            PortConfig(id=port, node=node, qmp=str(directory / f"{node}.qmp"), slots=("rp1", "rp2"))
            for port, node in (("30h", "alpha"), ("31h", "beta"))
        ),
        devices=tuple(
            DeviceConfig(
                id=f"00{number}",
                type="NVME",
                serial=f"S{number}",
                qemu=QemuDevice(
                    driver=driver,
                    properties={"serial": f"S{number}"} if driver == "nvme" else {},
                    blockdev={"driver": "null-co"} if blockdev else {},
                ),
            )
            for number in range(3)
        ),
    )


class Bench:
    """Two guests and a chassis that can be started anew over the same state."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = make_config(directory)
        self.alpha = FakeGuest(directory / "alpha.qmp")
        self.beta = FakeGuest(directory / "beta.qmp")
        self.backend: QemuBackend
        self.chassis: EmulatedChassis

    def build(self) -> EmulatedChassis:
        self.backend = QemuBackend(self.config, clock=SystemClock(), deleted_s=0.1, answer_s=0.1)
        self.chassis = EmulatedChassis(
            self.config,
            Store(self.directory / "state.db", durable=False),
            clock=SystemClock(),
            backend=self.backend,
            speed=0,
        )
        return self.chassis

    def guests_with(self, device: str) -> list[str]:
        guests = {"alpha": self.alpha, "beta": self.beta}
        return [name for name, guest in guests.items() if f"fabric-{device}" in guest.devices]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.alpha.start()
    await bench.beta.start()
    bench.build()
    yield bench
    await bench.chassis.close()
    for guest in (bench.alpha, bench.beta):
        if guest._server is not None:
            await guest.stop()


async def test_assigning_plugs_and_unassigning_unplugs(bench: Bench) -> None:
    assert (await bench.chassis.assign("000", "30h")).done
    assert bench.guests_with("000") == ["alpha"]
    assert bench.alpha.drives == {"fabric-000-drive"}
    assert (await bench.chassis.unassign("000")).done
    assert bench.guests_with("000") == []
    assert bench.alpha.drives == set()
    assert (await bench.chassis.assign("000", "31h")).done
    assert bench.guests_with("000") == ["beta"]


async def test_devices_get_slots_of_their_own_until_there_are_none(bench: Bench) -> None:
    assert [(await bench.chassis.assign(device, "30h")).done for device in ("000", "001")] == [True, True]
    assert sorted(bench.alpha.devices.values()) == ["rp1", "rp2"]
    outcome = await bench.chassis.assign("002", "30h")
    assert (outcome.done, outcome.remark) == (False, "no slot of port 30h is free")
    assert bench.chassis.row("002").holder == ""


async def test_a_guest_that_is_off_gets_no_more_than_it_has_slots(bench: Bench) -> None:
    await bench.alpha.stop()
    assert [(await bench.chassis.assign(f"00{number}", "30h")).done for number in range(3)] == [True, True, False]


async def test_a_guest_that_keeps_a_device_keeps_its_assignment(bench: Bench) -> None:
    await bench.chassis.assign("000", "30h")
    bench.alpha.lets_go = False
    outcome = await bench.chassis.unassign("000")
    assert not outcome.done
    assert "has not let 000 go" in outcome.remark
    assert bench.chassis.assigned()["000"] == "30h"
    bench.alpha.lets_go = True
    assert (await bench.chassis.unassign("000")).done


async def test_a_guest_that_is_off_has_let_go(bench: Bench) -> None:
    await bench.chassis.assign("000", "30h")
    await bench.alpha.stop()
    assert (await bench.chassis.unassign("000")).done
    assert (await bench.chassis.assign("000", "31h")).done
    assert bench.guests_with("000") == ["beta"]


async def test_a_guest_that_does_not_answer_has_not(bench: Bench) -> None:
    await bench.chassis.assign("000", "30h")
    bench.alpha.silent = True
    bench.alpha.hang_up()
    outcome = await bench.chassis.unassign("000")
    assert not outcome.done
    assert "does not greet" in outcome.remark
    assert bench.chassis.row("000").holder == "30h"


async def test_a_refused_device_is_in_no_guest(bench: Bench) -> None:
    bench.beta.refuses = "no such driver"
    outcome = await bench.chassis.assign("000", "31h")
    assert (outcome.done, "no such driver" in outcome.remark) == (False, True)
    assert bench.chassis.row("000").holder == ""
    assert (await bench.chassis.assign("000", "30h")).done
    assert bench.guests_with("000") == ["alpha"]


async def test_a_guest_that_starts_gets_what_is_assigned_to_it(bench: Bench) -> None:
    await bench.alpha.stop()
    assert (await bench.chassis.assign("000", "30h")).done
    told: asyncio.Queue[str] = asyncio.Queue()
    watching = asyncio.create_task(bench.backend.watch(bench.chassis.reconcile, told.put_nowait))
    while "alpha.qmp: no QEMU listens there: what is assigned is plugged" not in await told.get():
        pass
    await bench.alpha.start()
    while await told.get() != "port 30h: guest is there":
        pass
    assert bench.guests_with("000") == ["alpha"]
    await bench.alpha.stop()
    while await told.get() != "port 30h: guest is gone":
        pass
    await bench.alpha.start()
    while await told.get() != "port 30h: guest is there":
        pass
    assert bench.guests_with("000") == ["alpha"]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_guest_that_starts_again_has_its_devices_in_the_slots_that_they_had(bench: Bench) -> None:
    for device in ("000", "001"):
        await bench.chassis.assign(device, "30h")
    await bench.chassis.unassign("000")
    await bench.chassis.assign("002", "30h")
    before = dict(bench.alpha.devices)
    assert sorted(before.values()) == ["rp1", "rp2"]
    await bench.alpha.stop()
    # Also by an emulator that was restarted meanwhile, and while nobody listens.
    await bench.chassis.close()
    bench.build()
    await bench.chassis.reconcile("30h")
    await bench.alpha.start()
    await bench.chassis.reconcile("30h")
    assert bench.alpha.devices == before


async def test_a_killed_emulator_never_leaves_a_device_in_two_guests(bench: Bench) -> None:
    """Killed before and after each write of a move, it starts anew and agrees with the guests again."""

    class Killed(Exception):
        pass

    for at in range(1, 30):
        writes = 0

        def on_write(_: str, at: int = at) -> None:
            nonlocal writes
            writes += 1
            if writes == at:
                raise Killed

        if bench.chassis.assigned()["000"] != "30h":
            await bench.chassis.unassign("000")
            await bench.chassis.assign("000", "30h")
        bench.chassis._store.on_write = on_write
        try:
            await bench.chassis.unassign("000")
            await bench.chassis.assign("000", "31h")
        except Killed:
            pass
        else:
            assert at > 14
            break
        assert len(bench.guests_with("000")) <= 1
        await bench.chassis.close()
        bench.chassis._store.close()
        bench.build()
        assert await bench.chassis.reconcile() == []
        port = bench.chassis.assigned()["000"]
        assert bench.guests_with("000") == {"": [], "30h": ["alpha"], "31h": ["beta"]}[port]
        assert await bench.backend.strangers({"000", "001", "002"}) == []
    else:
        pytest.fail("there is no end of writes")


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_a_device_is_in_one_guest_at_most(bench: Bench, seed: int) -> None:
    """Random steps while guests end, start, fall silent and keep devices, and the emulator is killed at its writes."""

    class Killed(Exception):
        pass

    drawn = random.Random(seed)
    guests = (bench.alpha, bench.beta)
    countdown = -1

    def on_write(_: str) -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise Killed

    async def trouble() -> None:
        nonlocal countdown
        guest = drawn.choice(guests)
        match drawn.randrange(5):
            case 0 if guest._server is not None:
                await guest.stop()
            case 0 | 1 if guest._server is None:
                await guest.start()
            case 2:
                guest.lets_go = not guest.lets_go
            case 3:
                guest.silent = not guest.silent
                guest.hang_up()
            case 4:
                countdown = drawn.randrange(1, 12)

    bench.chassis._store.on_write = on_write
    done = 0
    for _ in range(80):
        if drawn.random() < 0.3:
            await trouble()
        device = f"00{drawn.randrange(3)}"
        try:
            if drawn.random() < 0.5:
                outcome = await bench.chassis.assign(device, drawn.choice(("30h", "31h")))
            else:
                outcome = await bench.chassis.unassign(device)
            done += outcome.done
        except Killed:
            await bench.chassis.close()
            bench.chassis._store.close()
            bench.build()
            await bench.chassis.reconcile()
            bench.chassis._store.on_write = on_write
        for each in bench.chassis.devices:
            assert len(bench.guests_with(each)) <= 1
    assert done > 10
    # Once all guests are well again, they hold what is assigned to them and nothing else.
    countdown = -1
    for guest in guests:
        guest.lets_go, guest.silent = True, False
        guest.hang_up()
        if guest._server is None:
            await guest.start()
    for _ in range(5):
        # As the watch over guests does: what a connection that broke kept from being done is done by the next.
        if not (troubles := await bench.chassis.reconcile()):
            break
    assert troubles == []
    for each, port in bench.chassis.assigned().items():
        assert bench.guests_with(each) == {"": [], "30h": ["alpha"], "31h": ["beta"]}[port]


async def test_what_is_in_a_guest_and_not_assigned_to_it_is_taken_out(bench: Bench) -> None:
    await bench.chassis.assign("000", "30h")
    bench.alpha.lets_go = False
    row = bench.chassis.row("000")
    bench.chassis._write("000", type(row)(port="", holder="30h"))
    bench.alpha.lets_go = True
    assert await bench.chassis.reconcile() == []
    assert bench.guests_with("000") == []


async def test_nobody_at_a_socket_is_a_guest_that_is_off(tmp_path: Path) -> None:
    with pytest.raises(GuestOff):
        await Qmp.open(str(tmp_path / "none.qmp"), on_event=lambda *_: None)


needs_qemu = pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="needs qemu-system-x86_64")


@needs_qemu
async def test_a_real_qemu_takes_devices_and_is_off_when_it_ends(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    alpha = await _start_qemu(config.ports[0].qmp)
    beta = await _start_qemu(config.ports[1].qmp)
    backend = QemuBackend(config, clock=SystemClock(), deleted_s=0.2, answer_s=2.0)
    chassis = EmulatedChassis(
        config, Store(tmp_path / "state.db", durable=False), clock=SystemClock(), backend=backend, speed=0
    )
    try:
        for device, slot in (("000", "rp1"), ("001", "rp2")):
            outcome = await chassis.assign(device, "30h")
            assert outcome.done, outcome.remark
            assert chassis.row(device).slot == slot
        # Nothing runs in it that could let a device go.
        assert "has not let 000 go" in (await chassis.unassign("000")).remark
        # Stopped it does not answer, and keeps the device; ended it has none.
        alpha.send_signal(signal.SIGSTOP)
        assert not (await chassis.unassign("000")).done
        alpha.send_signal(signal.SIGCONT)
        alpha.kill()
        await alpha.wait()
        assert (await chassis.unassign("000")).done
        outcome = await chassis.assign("000", "31h")
        assert (outcome.done, chassis.row("000").holder) == (True, "31h"), outcome.remark
    finally:
        await chassis.close()
        for each in (alpha, beta):
            if each.returncode is None:
                each.kill()
                await each.wait()


async def _start_qemu(path: str) -> asyncio.subprocess.Process:
    ports = [word for n in (1, 2) for word in ("-device", f"pcie-root-port,id=rp{n},slot={n},chassis={n}")]
    process = await asyncio.create_subprocess_exec(
        "qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-m", "64", "-display", "none", "-nodefaults", "-S",
        "-qmp", f"unix:{path},server=on,wait=off", *ports,
    )  # fmt: skip
    while True:
        try:
            qmp = await Qmp.open(path, on_event=lambda *_: None)
        except (GuestOff, GuestLost):
            await asyncio.sleep(0.05)
        else:
            await qmp.close()
            return process
