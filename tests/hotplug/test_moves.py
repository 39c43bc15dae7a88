"""Devices that come and go: what is done, what is refused, and what is undone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from farbus.agent.journal import Journal
from farbus.agent.steps import StepRunner, WedgedError
from farbus.errors import Conflict, FarbusError, NotFound, TimedOut, Unavailable
from farbus.hotplug.parts import Move, is_meant
from farbus.hotplug.sequences import HotAttach, HotDetach, HotMove, find_device, from_body, rehearse
from farbus.hotplug.steps import ScanBelow, UnassignDevice
from farbus.hotplug.working import WedgedRemoval
from farbus.linux.clock import FakeClock
from farbus.linux.nvidia import GpuReadiness
from farbus.model.device import DeviceKind
from farbus.model.holders import Holder, HolderKind, Look
from farbus.model.pci import Identity, IdentityKind
from tests.hotplug.harness import DRIVE, Node, a_move, functions
from tests.hotplug.machines import GIB, PORT_A, PORT_B, drive, gpu, plain

PROCESS = Holder(kind=HolderKind.PROCESS, name="python3", path="/dev/nvme0n1", pid=812, user="alice", cure="end it")
MOUNT = Holder(kind=HolderKind.MOUNT, name="/data", path="/dev/nvme0n1", cure="umount /data")


class Bench:
    """A node, and an agent's runner of steps."""

    def __init__(self, node: Node, runner: StepRunner, clock: FakeClock) -> None:
        self.node, self.runner, self.clock = node, runner, clock

    async def perform(self, work: HotMove) -> dict[str, str]:
        return await self.runner.perform(self.node.steps(work))

    async def attached(self, device: str = DRIVE) -> None:
        await self.perform(HotAttach(move=a_move(device)))
        self.node.pci.writes.clear()
        self.node.fabric.calls.clear()

    def detach(self, **changes: object) -> HotDetach:
        return HotDetach(move=a_move(DRIVE, drain_s=0.0, **changes))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    clock = FakeClock()
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="a-boot")
    async with asyncio.TaskGroup() as group:
        node = Node(tmp_path / "node", clock=clock)
        # What does not appear at once does not appear: nobody waits here.
        node.parts = dataclasses.replace(node.parts, appear_s=0.0)
        yield Bench(node, StepRunner(journal=journal, clock=clock, group=group), clock)
    await journal.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let others work until something is so."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was so")


# Attaching.


async def test_an_attached_drive_has_a_path_and_its_name(bench: Bench) -> None:
    result = await bench.perform(HotAttach(move=a_move()))
    assert result["identity"] == DRIVE
    assert result["address"] == "0000:01:00.0"
    assert result["path"] == "/dev/disk/by-id/nvme-FARBUS_Test_Drive_S1"
    assert result["weak"] == ""
    assert bench.node.fabric.calls == [f"assign {DRIVE} 30h"]
    # The bus below the port, and nothing else, was scanned.
    assert bench.node.pci.writes == [f"rescan below {PORT_A}"]


async def test_a_port_that_tells_of_what_is_plugged_in_needs_no_scan(bench: Bench) -> None:
    bench.node.fabric.announce = True
    await bench.perform(HotAttach(move=a_move()))
    assert bench.node.pci.writes == []
    assert bench.node.world()["drives"] == ["S1"]


async def test_windows_are_laid_anew_where_the_ports_own_driver_did_not(bench: Bench) -> None:
    bench.node.fabric.announce = bench.node.pci.lazy = True
    await bench.perform(HotAttach(move=a_move()))
    assert bench.node.pci.writes == ["remove 0000:01:00.0", f"rescan below {PORT_A}"]
    assert bench.node.pci.tree().at("0000:01:00.0").bars[0].assigned


async def test_a_device_that_nobody_can_name_is_found_below_its_port(bench: Bench) -> None:
    result = await bench.perform(HotAttach(move=a_move("0011")))
    assert (result["identity"], result["weak"]) == ("PCI-1234:11e8@slot-1", "yes")


async def test_a_bar_that_is_too_large_is_refused_before_anything_is_touched(bench: Bench) -> None:
    before = bench.node.world()
    with pytest.raises(Conflict, match=r"BAR 2 of .* \(128 GiB, 64-bit, prefetchable\).*hpmmioprefsize=256G") as caught:
        await bench.perform(HotAttach(move=a_move("0011", functions=functions(gpu()[:1]))))
    assert "room for 8 MiB at most" in str(caught.value)
    assert bench.node.world() == before
    assert bench.node.fabric.calls == []
    assert bench.node.pci.writes == []


async def test_a_device_without_a_driver_is_refused_before_anything_is_touched(bench: Bench) -> None:
    shape = functions((msgspec.structs.replace(plain()[0], driver="edu"),))
    with pytest.raises(Conflict, match="this kernel has no driver for 1234:11e8, which edu drove elsewhere"):
        await bench.perform(HotAttach(move=a_move("0011", functions=shape)))
    assert bench.node.fabric.calls == []


async def test_a_port_that_is_taken_is_refused(bench: Bench) -> None:
    bench.node.pci.plug(PORT_A, plain(), announce=True)
    with pytest.raises(Conflict, match=r"0000:01:00.0 \(1234:11e8\) is below port 0000:00:03.0 already"):
        await bench.perform(HotAttach(move=a_move()))
    assert bench.node.fabric.calls == []


async def test_a_bar_without_a_place_has_everything_undone(bench: Bench) -> None:
    before = bench.node.world()
    bench.node.pci.no_room = True
    with pytest.raises(Conflict, match=r"BAR 0 of 16 KiB of 0000:01:00.0 has no place below 0000:00:03.0"):
        await bench.perform(HotAttach(move=a_move(functions=functions(drive()))))
    assert bench.node.world() == before
    assert bench.node.fabric.calls[-1] == f"unassign {DRIVE}"


async def test_a_bar_that_nothing_tells_of_is_known_from_elsewhere(bench: Bench) -> None:
    # A plain 32-bit one without a place can't be told from none.
    bench.node.pci.no_room = True
    with pytest.raises(Conflict, match=r"BAR 0 of 0000:01:00.0 \(1 MiB\) has no place"):
        await bench.perform(HotAttach(move=a_move("0011", functions=functions(plain()))))
    assert bench.node.fabric.ports()["0011"] == ""


async def test_a_driver_that_does_not_come_has_everything_undone(bench: Bench) -> None:
    before = bench.node.world()
    bench.node.pci.no_driver = True
    with pytest.raises(TimedOut, match=r"0000:01:00.0 has no driver \(it would be nvme\) below 0000:00:03.0 after 0 s"):
        await bench.perform(HotAttach(move=a_move()))
    assert bench.node.world() == before


async def test_another_device_than_was_meant_is_given_back(bench: Bench) -> None:
    before = bench.node.world()
    with pytest.raises(TimedOut, match=r"it is not there, but 0000:01:00.0 \(1234:11e8\) is, below 0000:00:03.0"):
        await bench.perform(HotAttach(move=a_move(device="0011", serial="", vendor=0x10DE, device_id=0x2330)))
    assert bench.node.world() == before


async def test_a_device_of_another_kind_than_the_chassis_says_is_given_back(bench: Bench) -> None:
    before = bench.node.world()
    with pytest.raises(TimedOut, match=r"it is not there, but 0000:01:00.0 \(1234:11e8\) is, below 0000:00:03.0"):
        await bench.perform(HotAttach(move=a_move(device="0011", kind=DeviceKind.GPU)))
    assert bench.node.world() == before


async def test_a_drive_that_the_chassis_knows_as_another_is_given_back(bench: Bench) -> None:
    # The cables of two slots are crossed: for 0011, of which no serial is known, the drive S1 comes.
    device = bench.node.fabric._device
    bench.node.fabric._device = lambda name: device(DRIVE if name == "0011" else name)  # type: ignore[method-assign]
    before = bench.node.world()
    with pytest.raises(Conflict, match=f"{DRIVE} has come below {PORT_A}, which is device {DRIVE} of chassis chassis1"):
        await bench.perform(HotAttach(move=a_move(device="0011")))
    assert bench.node.world() == before


async def test_a_scan_that_fails_has_the_assignment_undone(bench: Bench) -> None:
    bench.node.pci.refuse = "Input/output error"
    with pytest.raises(Unavailable, match=f"rescan below {PORT_A}: Input/output error"):
        await bench.perform(HotAttach(move=a_move()))
    assert bench.node.fabric.ports()[DRIVE] == ""


async def test_a_device_of_another_node_is_not_taken(bench: Bench) -> None:
    bench.node.fabric._save({**bench.node.fabric.ports(), DRIVE: "40h"})
    with pytest.raises(Conflict, match="is at port 40h"):
        await bench.perform(HotAttach(move=a_move()))
    assert bench.node.fabric.ports()[DRIVE] == "40h"


async def test_attributes_that_come_later_are_waited_for(bench: Bench) -> None:
    bench.node.parts = dataclasses.replace(bench.node.parts, appear_s=1000.0)
    bench.node.pci.no_driver = True
    attaching = asyncio.create_task(bench.perform(HotAttach(move=a_move())))
    await until(lambda: bool(bench.node.pci.tree().below(PORT_A)))
    # The driver comes with a uevent, and no time passes at all.
    bench.node.pci.no_driver = False
    bench.node.pci._forget("0000:01:00.0")
    bench.node.pci._enumerate(PORT_A)
    while not attaching.done():
        bench.node.uevents.send("bind", "/devices/pci0000:00/0000:00:03.0/0000:01:00.0")
        await asyncio.sleep(0)
    assert (await attaching)["identity"] == DRIVE


# Detaching.


async def test_a_detached_drive_is_removed_and_then_unassigned(bench: Bench) -> None:
    await bench.attached()
    await bench.perform(bench.detach())
    assert bench.node.pci.writes == ["remove 0000:01:00.0"]
    assert bench.node.fabric.calls == [f"unassign {DRIVE}"]
    assert bench.node.world()["there"] == []
    assert await bench.node.gate.is_closed(DRIVE)


async def test_a_held_device_is_not_touched_and_its_holders_are_told(bench: Bench) -> None:
    await bench.attached()
    before = bench.node.world()
    bench.node.holders.state = Look(holders=(PROCESS, MOUNT))
    with pytest.raises(Conflict) as caught:
        await bench.perform(bench.detach())
    assert str(caught.value) == (
        f"detach {DRIVE}: still held after 0 s: /dev/nvme0n1 is open in pid 812 (python3) of alice (end it); "
        "/dev/nvme0n1 is mounted on /data (umount /data); end what holds it"
    )
    assert bench.node.world() == before
    assert bench.node.pci.writes == []
    assert not await bench.node.gate.is_closed(DRIVE)


async def test_what_could_not_be_looked_at_is_no_proof(bench: Bench) -> None:
    await bench.attached()
    bench.node.holders.state = Look(unseen=("the open files of 3 processes can't be seen; only root may look at all",))
    with pytest.raises(Conflict, match="of 3 processes can't be seen"):
        await bench.perform(bench.detach())


async def test_a_holder_that_goes_in_time_is_waited_for(bench: Bench) -> None:
    await bench.attached()
    bench.node.holders.state = Look(holders=(PROCESS,))
    detaching = asyncio.create_task(bench.perform(HotDetach(move=a_move(drain_s=30.0))))
    # The step's own deadline, and the pause until it looks again.
    await until(lambda: bench.node.holders.looks >= 1 and bench.clock.sleepers >= 2)
    bench.node.holders.state = Look()
    await bench.clock.advance(1.0)
    await detaching
    assert bench.node.world()["there"] == []


async def test_who_comes_after_the_look_is_seen_before_the_removal(bench: Bench) -> None:
    await bench.attached()
    before = bench.node.world()
    bench.node.holders.arrive_at = {bench.node.holders.looks + 2: PROCESS}
    with pytest.raises(Conflict, match=f"remove {DRIVE}: /dev/nvme0n1 is open in pid 812"):
        await bench.perform(bench.detach())
    assert bench.node.pci.writes == []
    assert bench.node.world() == before


async def test_a_disk_that_the_kernel_uses_is_not_removed(bench: Bench) -> None:
    await bench.attached()
    bench.node.holders.busy = "/dev/nvme0n1"
    with pytest.raises(Conflict, match="/dev/nvme0n1 is in use by the kernel; lsblk shows what stands on it"):
        await bench.perform(bench.detach())
    assert bench.node.pci.writes == []


async def test_eviction_is_a_cure_where_nothing_but_programs_holds_a_device(bench: Bench) -> None:
    await bench.attached()
    bench.node.holders.state = Look(holders=(PROCESS,))
    with pytest.raises(Conflict, match=r"\(end it\); end what holds it, or use --evict$"):
        await bench.perform(bench.detach())


async def test_programs_and_sessions_are_evicted_where_that_is_asked_for(bench: Bench) -> None:
    await bench.attached()
    bench.node.gate.sessions = (Holder(kind=HolderKind.SESSION, name="lease l1"),)
    bench.node.holders.state = Look(holders=(PROCESS,))
    await bench.perform(bench.detach(evict=True))
    assert bench.node.holders.evicted == ["python3"]
    assert bench.node.gate.sessions == ()


async def test_mounts_are_never_evicted(bench: Bench) -> None:
    await bench.attached()
    bench.node.holders.state = Look(holders=(PROCESS, MOUNT))
    with pytest.raises(Conflict, match=r"is mounted on /data \(umount /data\); end what holds it$"):
        await bench.perform(bench.detach(evict=True))
    assert bench.node.holders.evicted == ["python3"]
    assert bench.node.world()["drives"] == ["S1"]


async def test_our_own_worker_is_no_holder_and_lets_go_during_the_removal(bench: Bench) -> None:
    await bench.attached()
    bench.node.holders.state = Look(holders=(Holder(kind=HolderKind.OWN, name="NVML worker", pid=5),))
    bench.node.nvml.running = True
    seen: list[bool] = []
    remove = bench.node.pci.remove

    async def removing(address: str) -> None:
        seen.append(bench.node.nvml.running)
        await remove(address)

    bench.node.pci.remove = removing  # type: ignore[method-assign]
    await bench.perform(bench.detach())
    assert seen == [False]


async def test_what_is_called_as_our_own_and_does_not_let_go_is_a_holder(bench: Bench) -> None:
    await bench.attached()
    bench.node.holders.state = Look(
        holders=(Holder(kind=HolderKind.OWN, name="NVML worker", path="/dev/nvidia0", pid=5),)
    )

    @contextlib.asynccontextmanager
    async def in_vain() -> AsyncIterator[None]:
        # It hangs in the driver, or is no worker of ours.
        yield

    bench.node.nvml.running = True
    bench.node.nvml.released = in_vain  # type: ignore[method-assign]
    with pytest.raises(Conflict, match=r"/dev/nvidia0 is open in pid 5 \(NVML worker\)"):
        await bench.perform(bench.detach())
    assert not any(write.startswith("remove") for write in bench.node.pci.writes)
    assert bench.node.world()["drives"] == ["S1"]


async def test_a_fabric_that_refuses_has_the_device_brought_back(bench: Bench) -> None:
    await bench.attached()
    before = bench.node.world()
    bench.node.fabric.refuse = "chassis1: connection refused"
    with pytest.raises(Unavailable, match="connection refused"):
        await bench.perform(bench.detach())
    assert bench.node.pci.writes == ["remove 0000:01:00.0", f"rescan below {PORT_A}"]
    assert bench.node.world() == before


# Readings of the chassis that are stale, each once.


async def test_a_drive_that_a_stale_reading_has_free_is_unassigned_all_the_same(bench: Bench) -> None:
    free = bench.node.fabric.ports()
    await bench.attached()
    bench.node.fabric.stale = [free]
    await bench.perform(bench.detach())
    assert bench.node.fabric.ports()[DRIVE] == ""


async def test_a_drive_that_a_stale_reading_has_free_is_scanned_for_again(bench: Bench) -> None:
    free = bench.node.fabric.ports()
    await bench.attached()
    before = bench.node.world()
    bench.node.fabric.refuse = "not now"
    # Removed, and not unassigned: to be taken back, where the first readings deny that it is ours.
    bench.node.fabric.stale = [free]
    with pytest.raises(Unavailable, match="not now"):
        await bench.perform(bench.detach())
    assert bench.node.world() == before


async def test_a_drive_is_had_back_though_a_stale_reading_has_it_here(bench: Bench) -> None:
    await bench.attached()
    here = bench.node.fabric.ports()
    step = bench.node.steps(bench.detach()).steps[-1]
    assert isinstance(step, UnassignDevice)
    await bench.node.steps(bench.detach()).steps[-2].do()
    await step.do()
    bench.node.fabric.stale = [here]
    await step.compensate()
    assert bench.node.fabric.ports() == here


# GPUs.


@pytest.fixture
def with_gpu(bench: Bench) -> Bench:
    """The first port has a GPU with its audio function, and a window for it."""
    node = bench.node
    small = tuple(msgspec.structs.replace(one, bars=()) for one in gpu())
    node.pci.plug(PORT_A, small, announce=True)
    node.fabric._save({**node.fabric.ports(), "0011": "30h"})
    node.gpus = {"0000:01:00.0": "GPU-1"}
    node.nvidia.gpus = {"0000:01:00.0": GpuReadiness(uuid="GPU-1", persistent=True)}
    return bench


@pytest.fixture
def comes_as_a_gpu(bench: Bench) -> Bench:
    """What is assigned as 0011 comes as a GPU, whose driver calls it GPU-1 as soon as it has it."""
    small = tuple(msgspec.structs.replace(one, bars=()) for one in gpu()[:1])
    bench.node.fabric._device = lambda _: small  # type: ignore[method-assign]
    bench.node.nvidia.gpus = {"0000:01:00.0": GpuReadiness(uuid="GPU-1")}
    return bench


async def test_a_gpu_that_has_come_is_known_by_its_uuid(comes_as_a_gpu: Bench) -> None:
    # Our own worker has initialised NVML before, and knows of no such GPU.
    comes_as_a_gpu.node.nvml.running = True
    result = await comes_as_a_gpu.perform(HotAttach(move=a_move("0011", uuid="GPU-1", kind=DeviceKind.GPU)))
    assert (result["identity"], result["weak"]) == ("GPU-1", "")
    assert not comes_as_a_gpu.node.nvml.running


async def test_a_gpu_that_is_pulled_out_while_it_is_verified_is_told_as_gone(comes_as_a_gpu: Bench) -> None:
    node = comes_as_a_gpu.node
    before, asked = node.world(), node.nvidia.readiness

    async def pulled(address: str) -> GpuReadiness:
        found = await asked(address)
        node.pci.unplug(PORT_A)
        return found

    node.nvidia.readiness = pulled  # type: ignore[method-assign]
    with pytest.raises(NotFound, match=f"attach 0011: it is not below {PORT_A} any more; see dmesg"):
        await comes_as_a_gpu.perform(HotAttach(move=a_move("0011", uuid="GPU-1", kind=DeviceKind.GPU)))
    assert node.world() == before


async def test_another_gpu_of_the_same_model_is_given_back(comes_as_a_gpu: Bench) -> None:
    before = comes_as_a_gpu.node.world()
    move = a_move("0011", uuid="GPU-2", vendor=0x10DE, device_id=0x2330)
    with pytest.raises(Conflict, match=f"attach 0011: GPU-1 has come below {PORT_A} instead"):
        await comes_as_a_gpu.perform(HotAttach(move=move))
    assert comes_as_a_gpu.node.world() == before


def gpu_move(**changes: object) -> HotDetach:
    return HotDetach(move=a_move("0011", uuid="GPU-1", serial="", drain_s=0.0, persistent=True, **changes))


async def test_all_functions_of_a_gpu_are_removed_the_first_last(with_gpu: Bench) -> None:
    await with_gpu.perform(gpu_move())
    assert with_gpu.node.pci.writes == ["remove 0000:01:00.1", "remove 0000:01:00.0"]
    assert with_gpu.node.nvidia.gpus["0000:01:00.0"] == GpuReadiness(uuid="GPU-1", draining=True, persistent=False)


async def test_a_gpu_that_is_not_removed_after_all_is_as_before(with_gpu: Bench) -> None:
    with_gpu.node.holders.arrive_at = {2: PROCESS}
    with pytest.raises(Conflict):
        await with_gpu.perform(gpu_move())
    assert with_gpu.node.nvidia.gpus["0000:01:00.0"] == GpuReadiness(uuid="GPU-1", draining=False, persistent=True)
    assert not await with_gpu.node.gate.is_closed("0011")


async def test_a_gpu_without_a_driver_needs_no_quieting(with_gpu: Bench) -> None:
    with_gpu.node.nvidia.gpus = {}
    await with_gpu.perform(gpu_move())
    assert with_gpu.node.world()["there"] == []


# A removal that does not end.


async def test_a_wedged_removal_is_told_and_holds_up_the_node(bench: Bench) -> None:
    await bench.attached()
    bench.node.pci.plug(PORT_B, plain(), announce=True)
    bench.node.pci.hang = True
    detaching = asyncio.create_task(bench.perform(bench.detach(asked_at=1_700_000_000.0)))
    await until(lambda: bool(bench.node.pci.tree().removing()))
    while not detaching.done():
        await bench.clock.advance(100.0)
    with pytest.raises(WedgedError) as caught:
        await detaching
    assert str(caught.value) == (
        "wedged: the kernel has not finished removing 0000:01:00.0 since 22:13:20 UTC; until then it removes and scans "
        "nothing else; a driver waits for a reference that somebody holds, see dmesg; "
        "if it does not end, reboot the node"
    )
    # Nothing was undone, nothing was unassigned: the kernel still has it in its hands.
    assert bench.node.fabric.ports()[DRIVE] == "30h"
    with pytest.raises(WedgedRemoval):
        await bench.perform(HotAttach(move=msgspec.structs.replace(a_move("0011"), bridge=PORT_B, port="31h")))
    assert bench.node.fabric.calls == []
    for task in asyncio.all_tasks():
        if "RemoveFunctions" in task.get_name():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_an_agent_that_comes_after_sees_the_wedge(bench: Bench) -> None:
    await bench.attached()
    (bench.node.pci.directory / "sys/bus/pci/devices/0000:01:00.0/remove").unlink()
    with pytest.raises(WedgedRemoval, match=r"wedged: the kernel has not finished removing 0000:01:00.0; until then"):
        await bench.perform(bench.detach())
    assert bench.node.fabric.calls == []


# Plans.


async def test_a_rehearsal_changes_nothing_and_tells_the_steps(bench: Bench) -> None:
    await bench.attached()
    before = bench.node.world()
    bench.node.holders.state = Look(holders=(PROCESS,))
    told = await rehearse(bench.node.parts, bench.detach())
    assert told.steps == (
        f"cordon {DRIVE}",
        "wait until nothing holds it, for 0 s at most",
        "nothing to end in NVIDIA's driver: it is none of its GPUs",
        "look once more that nothing holds it, and remove 0000:01:00.0",
        f"unassign {DRIVE} in chassis chassis1 (7 s)",
    )
    assert told.in_the_way == ("/dev/nvme0n1 is open in pid 812 (python3) of alice",)
    assert told.expected_s == 10.0
    assert bench.node.world() == before
    assert bench.node.pci.writes == bench.node.fabric.calls == []


async def test_a_rehearsal_of_an_attach_tells_what_would_be_refused(bench: Bench) -> None:
    told = await rehearse(bench.node.parts, HotAttach(move=a_move("0011", functions=functions(gpu()))))
    assert len(told.steps) == 5
    assert "128 GiB" in told.in_the_way[0]
    assert bench.node.fabric.calls == []


async def test_a_device_is_found_by_its_name(bench: Bench) -> None:
    await bench.attached()
    address, move = find_device(bench.node.parts, bench.node.pci.tree(), DRIVE)
    assert (address, move.bridge, move.functions[0].driver) == ("0000:01:00.0", PORT_A, "nvme")
    with pytest.raises(NotFound, match="device GPU-9: not on this node's bus"):
        find_device(bench.node.parts, bench.node.pci.tree(), "GPU-9")


async def test_a_drive_is_not_found_by_a_serial_that_its_own_begins_with(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", clock=FakeClock())
    for port, serial in ((PORT_A, "S1-2"), (PORT_B, "S1")):
        node.pci.plug(port, drive(serial), announce=True)
    address, move = find_device(node.parts, node.pci.tree(), "S1")
    assert (address, move.device) == ("0000:02:00.0", "NVME-S1-FARBUS_Test_Drive")
    address, move = find_device(node.parts, node.pci.tree(), "S1-2")
    assert (address, move.device) == ("0000:01:00.0", "NVME-S1-2-FARBUS_Test_Drive")


def test_a_serial_that_two_drives_have_means_neither(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (other,) = drive("S1")
    node.pci.plug(PORT_A, drive("S1"), announce=True)
    node.pci.plug(PORT_B, (msgspec.structs.replace(other, model="OTHER"),), announce=True)
    with pytest.raises(
        Conflict, match=r"several have this serial: .* is NVME-S1-FARBUS_Test_Drive, .* is NVME-S1-OTHER"
    ):
        find_device(node.parts, node.pci.tree(), "S1")
    address, _ = find_device(node.parts, node.pci.tree(), "NVME-S1-OTHER")
    assert node.pci.tree().at(address).parent == PORT_B


def test_a_move_comes_out_of_the_journal_as_it_went_in() -> None:
    work = HotAttach(move=a_move(functions=functions(gpu())))
    assert from_body(msgspec.json.encode(work).decode()) == work
    assert from_body(msgspec.json.encode(HotDetach(move=work.move)).decode()) == HotDetach(move=work.move)
    with pytest.raises(FarbusError, match="not a move of a device"):
        from_body("{}")


def test_moves_name_sizes_in_bytes() -> None:
    assert isinstance(a_move(functions=functions(gpu())), Move)
    assert functions(gpu())[0].bars[1].size == 128 * GIB


def test_a_name_that_only_its_chassis_gives_does_not_make_a_device_the_one_that_is_meant(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.pci.plug(PORT_A, plain(), announce=True)
    (function,) = node.pci.tree().below(PORT_A)
    named = Identity(name="GPU-1", kind=IdentityKind.CHASSIS)
    gpu_move = a_move("GPU-1", kind=DeviceKind.GPU, uuid="GPU-1", serial="", vendor=0x10DE, device_id=0x2330)
    assert not is_meant(gpu_move, function, named)
    assert not is_meant(msgspec.structs.replace(gpu_move, vendor=0, device_id=0), function, named)
    assert is_meant(a_move("GPU-1", serial="", vendor=0x1234, device_id=0x11E8), function, named)


async def test_what_came_out_below_anothers_bridge_is_neither_removed_nor_taken_from_under_the_kernel(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, clock=FakeClock())
    # The chassis has both at one port, and filled its bridges in another order than was believed.
    node.fabric._save({DRIVE: "30h", "0011": "30h"})
    node.pci.plug(PORT_A, drive("S1"), announce=True)
    node.pci.plug(PORT_B, plain(), announce=True)
    parts = dataclasses.replace(node.parts, appear_s=0.0)
    move = a_move("0011", vendor=0x1234, device_id=0x11E8)
    scan = ScanBelow(parts=parts, move=move)
    with pytest.raises(TimedOut, match="it is not there"):
        await scan.do()
    with pytest.raises(Conflict, match=f"take back 0011: {DRIVE} is below {PORT_A} .* has both at port 30h"):
        await scan.compensate()
    assert [one.ids for one in node.pci.tree().functions if not one.is_bridge] == ["1b36:0010", "1234:11e8"]
