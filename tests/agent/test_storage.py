"""An agent that stores, and one that uses what is stored, as their schedulers see them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import pytest_asyncio
import structlog

from farbus.agent import storage, storage_host
from farbus.agent.config import AgentConfig
from farbus.agent.events import PreparedLease
from farbus.agent.storage_host import StorageHost
from farbus.agent.telemetry.storage import Overuse, StorageCollector
from farbus.api.authority import Authority, write_credentials
from farbus.api.identity import Role
from farbus.api.v1 import session_pb2
from farbus.errors import InvalidInput, NotFound, TimedOut, Unavailable
from farbus.linux.cgroups import FakeCgroups
from farbus.linux.fake_lvm import FakeLvm
from farbus.linux.fake_nvme import FakeNvme
from farbus.linux.fake_nvmet import FakeNvmet
from farbus.linux.nvmet import read_target
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.holders import Holder, HolderKind, Look
from farbus.model.nvmeof import Controller, IoLimit, SubsystemName, namespace_identity
from farbus.model.nvmet import NODE_ANA_GROUP, Target
from farbus.model.storage import LogicalIdentity
from farbus.model.volume import StorageUse, VolumePart
from farbus.nvmeof.keys import tls_key_of
from tests.agent.harness import MYSELF, AgentInProcess, ScriptedScheduler, ScriptedSessions
from tests.agent.kill_storage import host_on
from tests.agent.storing import (
    DRIVE_BYTES,
    MIB,
    Machine,
    as_message,
    bridge,
    devices_of,
    part_message,
    prepared_message,
    storage_lease,
    storing_config,
    storing_doors,
)


class FileCgroups(FakeCgroups):
    """Groups that a program can be put into, which does nothing."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def create(self, name: str, *, memory_bytes: int, cpu_milli: int) -> str:
        super().create(name, memory_bytes=memory_bytes, cpu_milli=cpu_milli)
        group = self._directory / name
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.procs").touch()
        return str(group)


class Node:
    """An agent on a machine of files, with a scheduler of its own."""

    def __init__(self, config: AgentConfig, machine: Machine, scheduler: ScriptedScheduler) -> None:
        self.config = config
        self.machine = machine
        self.scheduler = scheduler
        self.agent = AgentInProcess()
        self.starts = 0
        self.boot_id = "a-boot"
        self.cgroups = FileCgroups(self.machine.directory / "cgroups")

    @property
    def sessions(self) -> ScriptedSessions:
        """What the scheduler hears of it."""
        return self.scheduler.sessions

    async def start(self) -> None:
        """Start an agent, with doors of its own to the same machine."""
        self.machine = Machine(self.machine.directory)
        self.starts += 1
        doors = storing_doors(self.config, self.machine, boot_id=self.boot_id)
        self.cgroups = FileCgroups(self.machine.directory / "cgroups")
        self.agent.start(self.config, msgspec.structs.replace(doors, cgroups=self.cgroups))
        await self.sessions.connected(hellos=self.starts)

    async def stop(self) -> None:
        """Stop it; what it has made stays."""
        await self.agent.stop()

    async def restart(self) -> None:
        """Stop it and start the next one."""
        await self.stop()
        await self.start()

    def devices(self) -> dict[str, Device]:
        """What it has told last of its devices."""
        changed = [one.inventory_changed.node for one in self.sessions.said if one.HasField("inventory_changed")]
        return devices_of(changed[-1] if changed else self.sessions.hellos[-1].node)


@contextlib.asynccontextmanager
async def node(directory: Path, authority: Authority, name: str, **changes: object) -> AsyncIterator[Node]:
    """A node on a machine of its own."""
    directory.mkdir()  # noqa: ASYNC240 - a test
    scheduler = ScriptedScheduler(directory, authority)
    await scheduler.start()
    config = storing_config(
        AgentConfig(
            name=name,
            scheduler=scheduler.address,
            address="127.0.0.1",
            peer_port=0,
            state=str(directory / "state"),
            socket=str(directory / "agent.sock"),
            credentials=write_credentials(directory / "credentials", name, authority.issue(name, Role.NODE)),
            run_as_self=True,
        ),
        **changes,
    )
    one = Node(config, Machine(directory / "machine"), scheduler)
    try:
        yield one
    finally:
        await one.stop()
        await scheduler.stop()


@pytest_asyncio.fixture
async def storing(tmp_path: Path, authority: Authority) -> AsyncIterator[Node]:
    async with node(tmp_path / "one", authority, "n1") as one:
        yield one


@pytest_asyncio.fixture
async def using(tmp_path: Path, authority: Authority) -> AsyncIterator[Node]:
    async with node(tmp_path / "two", authority, "n2", storage=False) as one:
        yield one


async def gone(one: Node, name: str) -> None:
    """Wait until nothing is left of a logical volume."""
    async with asyncio.timeout(20):
        while name in one.machine.lvm._state()["volumes"]:  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(0)


def prepare(lease: object) -> session_pb2.PrepareDevices:
    return session_pb2.PrepareDevices(lease=as_message(lease))  # type: ignore[arg-type]


async def test_drives_of_the_group_are_offered_with_their_room_and_speed(storing: Node) -> None:
    (drive,) = await storing.machine.give("S1")
    storing.machine.lvm.plug("S2", DRIVE_BYTES)
    await storing.start()
    found = storing.devices()
    assert found[drive].kind is DeviceKind.NVME
    assert found[drive].bandwidth_bytes_per_s == 1_000_000_000
    assert found[drive].attributes["bandwidth"] == "measured"
    assert found[drive].attributes["health"] == "good"
    assert DRIVE_BYTES - 8 * MIB <= found[drive].memory_bytes < DRIVE_BYTES
    # The other one is offered whole.
    assert found["NVME-S2-Fake_drive"].bandwidth_bytes_per_s == 0
    # Measured once in a drive's life here.
    await storing.restart()
    assert storing.machine.speed.asked == []
    assert storing.devices()[drive].bandwidth_bytes_per_s == 1_000_000_000


async def test_what_is_set_of_a_drive_is_not_measured(storing: Node) -> None:
    (drive,) = await storing.machine.give("S1")
    storing.config = msgspec.structs.replace(storing.config, drive_bandwidth={"*fake drive*": 7})
    await storing.start()
    assert storing.devices()[drive].bandwidth_bytes_per_s == 7
    assert storing.devices()[drive].attributes["bandwidth"] == "configured"
    assert storing.machine.speed.asked == []


async def test_a_part_of_a_volume_is_made_grown_and_removed(storing: Node) -> None:
    drives = await storing.machine.give("S1", "S2")
    await storing.start()
    part = VolumePart(volume="data", size_bytes=64 * MIB, drives=drives)
    for _ in range(2):
        made = await storing.sessions.command(make_volume=session_pb2.MakeVolume(part=part_message(part)))
        assert (made.ok, made.error) == (True, "")
        # Told before it was answered.
        assert storing.devices()["VOL-data:0"].memory_bytes == 64 * MIB
    told = storing.devices()["VOL-data:0"]
    assert (told.kind, told.attributes["drives"], told.attributes["health"]) == (
        DeviceKind.VOLUME, ",".join(drives), "good"
    )  # fmt: skip
    larger = msgspec.structs.replace(part, size_bytes=128 * MIB)
    grown = await storing.sessions.command(resize_volume=session_pb2.ResizeVolume(part=part_message(larger)))
    assert (grown.ok, grown.error) == (True, "")
    assert storing.devices()["VOL-data:0"].memory_bytes == 128 * MIB
    for _ in range(2):
        removed = await storing.sessions.command(remove_volume=session_pb2.RemoveVolume(part=part_message(part)))
        assert (removed.ok, removed.error) == (True, "")
        assert "VOL-data:0" not in storing.devices()
    assert storing.machine.world()["volumes"] == []


async def test_what_can_not_be_done_to_a_volume_is_said_in_one_line(storing: Node) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    for part, error in (
        (VolumePart(volume="data", size_bytes=2 * DRIVE_BYTES, drives=drives), "no room"),
        (VolumePart(volume="data", size_bytes=MIB, drives=("NVME-other",)), "drive NVME-other is not in"),
        (VolumePart(volume="../data", size_bytes=MIB, drives=drives), "no name for a volume"),
        (VolumePart(volume="data", size_bytes=0, drives=drives), "0 bytes"),
        (VolumePart(volume="data", part=2, parts=2, size_bytes=MIB, drives=drives), "part 2 of 2"),
    ):
        outcome = await storing.sessions.command(make_volume=session_pb2.MakeVolume(part=part_message(part)))
        assert not outcome.ok
        assert error in outcome.error
        assert "\n" not in outcome.error
    part = VolumePart(volume="data", size_bytes=MIB, drives=drives)
    outcome = await storing.sessions.command(resize_volume=session_pb2.ResizeVolume(part=part_message(part)))
    assert "this node does not store it" in outcome.error
    assert storing.machine.world()["volumes"] == []


async def test_without_storage_every_order_about_volumes_and_leases_is_refused(using: Node) -> None:
    await using.start()
    part = VolumePart(volume="data", size_bytes=MIB, drives=("d",))
    outcome = await using.sessions.command(make_volume=session_pb2.MakeVolume(part=part_message(part)))
    assert (outcome.ok, "set storage = true" in outcome.error) == (False, True)
    outcome = await using.sessions.command(prepare_devices=prepare(storage_lease(drives=("d",))))
    assert (outcome.ok, "set storage = true" in outcome.error) == (False, True)


async def test_room_of_a_lease_is_exported_kept_by_a_restart_and_wiped_behind_its_end(storing: Node) -> None:
    drives = await storing.machine.give("S1", "S2")
    await storing.start()
    lease = storage_lease(drives=drives)
    outcome = await storing.sessions.command(prepare_devices=prepare(lease))
    assert (outcome.error, outcome.endpoint) == ("", "tcp://127.0.0.1:4420")
    (subsystem,) = (await storing.machine.target()).subsystems
    assert subsystem.nqn == "nqn.2026-11.io.farbus:lease:l1:1"
    assert storing.machine.host_key(subsystem.hosts[0]).startswith("DHHC-1:01:")
    free = storing.devices()[drives[0]].memory_bytes
    before = storing.machine.world()
    await storing.restart()
    assert storing.machine.world() == before
    # Nothing of it was touched: beside what the kernel was asked about authentication nothing was written.
    assert [call for call in storing.machine.nvmet.calls if ":probe" not in call[1]] == []
    (held,) = storing.sessions.hellos[-1].held
    assert (held.lease_id, held.device_side, held.endpoint, held.trouble) == ("l1", True, outcome.endpoint, "")
    again = await storing.sessions.command(prepare_devices=prepare(lease))
    assert (again.ok, again.endpoint) == (True, outcome.endpoint)
    over = await storing.sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))
    assert (over.ok, over.error) == (True, "")
    assert (await storing.machine.target()).subsystems == ()
    await gone(storing, "lease-l1")
    await storing.sessions.until(lambda: storing.devices()[drives[0]].memory_bytes == free)
    # A request that was still on its way comes too late.
    late = await storing.sessions.command(prepare_devices=prepare(lease))
    assert "lease l1 is stale" in late.error


async def test_leases_share_a_drive_up_to_its_room(storing: Node) -> None:
    (drive,) = await storing.machine.give("S1")
    await storing.start()
    for number, epoch in (("l2", 2), ("l1", 1)):
        # Whichever epoch comes first: the room is each one's own.
        lease = storage_lease(number, drives=(drive,), epoch=epoch, job=f"j{number}", size_bytes=128 * MIB)
        outcome = await storing.sessions.command(prepare_devices=prepare(lease))
        assert outcome.error == ""
    lease = storage_lease("l3", drives=(drive,), epoch=3, job="j3", size_bytes=DRIVE_BYTES - 200 * MIB)
    outcome = await storing.sessions.command(prepare_devices=prepare(lease))
    assert (outcome.ok, "no room" in outcome.error) == (False, True)
    assert len((await storing.machine.target()).subsystems) == 2


async def test_a_volume_in_use_is_not_removed(storing: Node) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    part = part_message(VolumePart(volume="data", size_bytes=64 * MIB, drives=drives))
    await storing.sessions.command(make_volume=session_pb2.MakeVolume(part=part))
    outcome = await storing.sessions.command(prepare_devices=prepare(storage_lease(volume="data")))
    assert outcome.error == ""
    refused = await storing.sessions.command(remove_volume=session_pb2.RemoveVolume(part=part))
    assert "lease l1 has it" in refused.error
    # Larger it may become, and who is connected is told.
    larger = part_message(VolumePart(volume="data", size_bytes=128 * MIB, drives=drives))
    grown = await storing.sessions.command(resize_volume=session_pb2.ResizeVolume(part=larger))
    assert grown.error == ""
    assert ("write", "subsystems/nqn.2026-11.io.farbus:lease:l1:1/namespaces/1/revalidate_size", "1") in (
        storing.machine.nvmet.calls
    )
    await storing.sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))
    found = await storing.machine.lvm.find(LogicalIdentity(volume="data"))
    assert found is not None
    assert found.ready
    removed = await storing.sessions.command(remove_volume=session_pb2.RemoveVolume(part=part))
    assert removed.error == ""


async def client_side(storing: Node, using: Node, *leases: object) -> session_pb2.PrepareClient:
    """Have the device sides of leases prepared, and return what the other node is to be told."""
    prepared = []
    for lease in leases:
        outcome = await storing.sessions.command(prepare_devices=prepare(lease))
        assert outcome.error == ""
        prepared.append(prepared_message(lease, outcome.endpoint))  # type: ignore[arg-type]
    await bridge(storing.machine, using.machine)
    return session_pb2.PrepareClient(job_id="j1", task="main.0", user=MYSELF, leases=prepared)


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("mount", "/run/farbus/storage/l1"),
        ("raw", "/dev/farbus-storage/l1"),
        ("mmap", "/run/farbus/storage/l1/memory"),
    ],
)
async def test_storage_of_another_node_is_used_kept_by_a_restart_and_given_back(
    use: str, found: str, storing: Node, using: Node
) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    await using.start()
    old = using.machine.world()
    asked = await client_side(storing, using, storage_lease(drives=drives, use=use, name="my-data"))
    outcome = await using.sessions.command(prepare_client=asked)
    assert (outcome.error, dict(outcome.environment)) == ("", {"FARBUS_STORAGE_MY_DATA": found})
    before = using.machine.world()
    assert before != old
    await using.restart()
    assert using.machine.world() == before
    assert using.machine.nvme.calls == []
    (held,) = using.sessions.hellos[-1].held
    assert (held.lease_id, held.device_side, held.trouble) == ("l1", False, "")
    back = await using.sessions.command(unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0"))
    assert (back.ok, back.error) == (True, "")
    assert using.machine.world() == old


async def a_volume_used(storing: Node, using: Node, **grant: object) -> VolumePart:
    """Have one node use a volume that the other stores."""
    drives = await storing.machine.give("S1")
    await storing.start()
    await using.start()
    part = VolumePart(volume="data", size_bytes=64 * MIB, drives=drives)
    made = await storing.sessions.command(make_volume=session_pb2.MakeVolume(part=part_message(part)))
    assert made.error == ""
    asked = await client_side(storing, using, storage_lease(volume="data", **grant))
    asked.attachment = True
    assert (await using.sessions.command(prepare_client=asked)).error == ""
    return part


def grow_client(volume: str = "data", *, size_bytes: int = 128 * MIB) -> session_pb2.GrowClient:
    return session_pb2.GrowClient(job_id="j1", task="main.0", volume=volume, size_bytes=size_bytes)


async def test_what_is_mounted_of_a_volume_grows_with_it(storing: Node, using: Node) -> None:
    part = await a_volume_used(storing, using)
    device = namespace_identity("data:0").by_id
    before = await using.machine.filesystems.space(device)
    larger = part_message(msgspec.structs.replace(part, size_bytes=128 * MIB))
    assert (await storing.sessions.command(resize_volume=session_pb2.ResizeVolume(part=larger))).error == ""
    # The kernel hears of it from the target.
    (controller,) = using.machine.nvme.controllers()
    using.machine.nvme.resize(controller.nqn, 128 * MIB)
    for _ in range(2):
        grown = await using.sessions.command(grow_client=grow_client())
        assert (grown.ok, grown.error) == (True, "")
        assert (await using.machine.filesystems.space(device)).size_bytes == 2 * before.size_bytes


async def test_what_does_not_grow_while_it_is_used_says_so(storing: Node, using: Node) -> None:
    await a_volume_used(storing, using, use="swap")
    refused = await using.sessions.command(grow_client=grow_client())
    assert "swap space keeps its size" in refused.error
    unknown = await using.sessions.command(grow_client=grow_client("other"))
    assert unknown.error == "grow volume other of j1/main.0: it is not used here"


async def test_parts_of_several_leases_become_one_device(storing: Node, using: Node) -> None:
    first, second = await storing.machine.give("S1", "S2")
    await storing.start()
    await using.start()
    asked = await client_side(
        storing,
        using,
        storage_lease("l1", drives=(first,), part=0, parts=2),
        storage_lease("l2", drives=(second,), part=1, parts=2),
    )
    outcome = await using.sessions.command(prepare_client=asked)
    assert (outcome.error, dict(outcome.environment)) == ("", {"FARBUS_STORAGE_DATA": "/run/farbus/storage/l1"})
    assert using.machine.mapper.list() == ("FARBUS-l1",)
    back = await using.sessions.command(unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0"))
    assert back.error == ""
    assert (using.machine.mapper.list(), using.machine.nvme.controllers()) == ((), ())


async def test_a_part_that_is_missing_is_an_error(storing: Node, using: Node) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    await using.start()
    asked = await client_side(storing, using, storage_lease(drives=drives, part=1, parts=2))
    outcome = await using.sessions.command(prepare_client=asked)
    assert "storage data: parts 1 of 2" in outcome.error
    given_up = session_pb2.UnprepareClient(job_id="j1", task="main.0")
    assert (await using.sessions.command(unprepare_client=given_up)).error == ""


@pytest.mark.parametrize("endpoint", ["", "nonsense", "tcp://10.0.0.1:99999", "tcp://10.0.0.1:4420,", "rdma://x"])
async def test_storage_that_is_offered_nowhere_is_refused_and_held_by_nobody(endpoint: str, using: Node) -> None:
    await using.start()
    asked = session_pb2.PrepareClient(
        job_id="j1", task="main.0", user=MYSELF, leases=[prepared_message(storage_lease(drives=("NVME-X",)), endpoint)]
    )
    outcome = await using.sessions.command(prepare_client=asked)
    assert outcome.error.startswith("node n1 offers lease l1 where nothing can be: ")
    given_up = session_pb2.UnprepareClient(job_id="j1", task="main.0")
    assert (await using.sessions.command(unprepare_client=given_up)).error == ""


async def test_local_storage_is_undone_before_what_it_stands_on_when_the_lease_is_void(storing: Node) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    old = storing.machine.world()
    lease = storage_lease(drives=drives, route=Route.LOCAL)
    outcome = await storing.sessions.command(prepare_devices=prepare(lease))
    assert (outcome.error, outcome.endpoint) == ("", "")
    asked = session_pb2.PrepareClient(
        job_id="j1", task="main.0", user=MYSELF, leases=[prepared_message(lease, outcome.endpoint)]
    )
    outcome = await storing.sessions.command(prepare_client=asked)
    assert (outcome.error, dict(outcome.environment)) == ("", {"FARBUS_STORAGE_DATA": "/run/farbus/storage/l1"})
    storing.sessions.void.add("l1")
    await storing.sessions.until(lambda: {one.device_side for one in storing.sessions.ended_leases()} == {True, False})
    await gone(storing, "lease-l1")
    assert storing.machine.world() == old


async def test_who_holds_storage_is_named_and_a_void_lease_is_forced(storing: Node, using: Node) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    await using.start()
    old = using.machine.world()
    asked = await client_side(storing, using, storage_lease(drives=drives))
    assert (await using.sessions.command(prepare_client=asked)).error == ""
    using.machine.holders.state = Look(holders=(Holder(kind=HolderKind.PROCESS, name="812", user="ann"),))
    using.sessions.void.add("l1")
    await using.sessions.until(lambda: bool(using.sessions.ended_leases()))
    assert using.machine.world() == old


async def test_after_a_reboot_nothing_is_looked_for_and_the_lease_is_over(storing: Node, tmp_path: Path) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    outcome = await storing.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))
    assert outcome.error == ""
    await storing.stop()
    shutil.rmtree(storing.machine.directory / "config")
    state = storing.machine.lvm._state()
    state["volumes"]["lease-l1"]["active"] = False
    storing.machine.lvm._save(state)
    storing.boot_id = "another-boot"
    await storing.start()
    await gone(storing, "lease-l1")
    assert not storing.sessions.hellos[-1].held
    assert storing.machine.world()["volumes"] == []


def forget(one: Node) -> None:
    """Lose a journal."""
    for file in Path(one.config.state).glob("journal.db*"):
        file.unlink()


async def test_what_no_record_knows_is_ended(storing: Node, using: Node) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    await using.start()
    old, mine = storing.machine.world(), using.machine.world()
    asked = await client_side(storing, using, storage_lease(drives=drives))
    assert (await using.sessions.command(prepare_client=asked)).error == ""
    for one in (using, storing):
        await one.stop()
        forget(one)
        await one.start()
        assert not one.sessions.hellos[-1].held
    assert using.machine.world() == mine
    await gone(storing, "lease-l1")
    assert storing.machine.world() == old


@pytest.mark.parametrize("use", [StorageUse.MOUNT, StorageUse.RAW])
async def test_a_part_of_a_volume_that_no_record_knows_to_be_used_is_used_no_more(
    use: StorageUse, storing: Node
) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    part = part_message(VolumePart(volume="data", size_bytes=64 * MIB, drives=drives))
    await storing.sessions.command(make_volume=session_pb2.MakeVolume(part=part))
    for number in ("l1", "l2"):
        lease = storage_lease(number, volume="data", route=Route.LOCAL, use=use, epoch=int(number[1:]))
        assert (await storing.sessions.command(prepare_devices=prepare(lease))).error == ""
        asked = session_pb2.PrepareClient(job_id="j1", task="main.0", user=MYSELF, leases=[prepared_message(lease, "")])
        outcome = await storing.sessions.command(prepare_client=asked)
        # The next one finds nothing of the first.
        assert outcome.error == ""
        await storing.stop()
        forget(storing)
        await storing.start()
        found = await storing.machine.lvm.find(LogicalIdentity(volume="data"))
        assert found is not None
        assert (found.ready, found.active) == (True, False)
        world = storing.machine.world()
        assert (world["mounts"], world["nodes"], storing.machine.filesystems.given()) == ([], [], ())


async def test_what_can_not_be_ended_keeps_nothing_else_from_its_end(
    storing: Node, using: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    drives = await storing.machine.give("S1", "S2")
    await storing.start()
    await using.start()
    for number, drive in zip(("l1", "l2"), drives, strict=True):
        lease = storage_lease(number, drives=(drive,), use=StorageUse.RAW, job=number)
        asked = await client_side(storing, using, lease)
        asked.job_id = number
        assert (await using.sessions.command(prepare_client=asked)).error == ""
    await using.stop()
    forget(using)
    first, _ = using.machine.nvme.controllers()
    disconnect = FakeNvme.disconnect

    async def refuse_one(door: FakeNvme, controller: Controller) -> None:
        if controller.nqn == first.nqn:
            raise Unavailable(f"disconnect {controller.name}: Input/output error")
        await disconnect(door, controller)

    monkeypatch.setattr(FakeNvme, "disconnect", refuse_one)
    await using.start()
    assert [one.nqn for one in using.machine.nvme.controllers()] == [first.nqn]


async def test_a_program_has_its_storage_and_no_more_of_it_than_was_granted(storing: Node) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    lease = storage_lease(drives=drives, route=Route.LOCAL, bandwidth_bytes_per_s=100 * MIB)
    assert (await storing.sessions.command(prepare_devices=prepare(lease))).error == ""
    client = session_pb2.PrepareClient(job_id="j1", task="main.0", user=MYSELF, leases=[prepared_message(lease, "")])
    assert (await storing.sessions.command(prepare_client=client)).error == ""
    command = ["sh", "-c", "echo $FARBUS_STORAGE_DATA; exec sleep 1000"]
    start = session_pb2.StartTask(job_id="j1", task="main.0", user=MYSELF, command=command)
    assert (await storing.sessions.command(start_task=start)).error == ""
    assert b"/run/farbus/storage/l1" in await storing.sessions.log_has("j1", b"l1")
    number = storing.machine.blocks.look("/dev/farbus/lease-l1").number
    assert storing.cgroups.io_limits == {
        ("j1.main.0", number): IoLimit(read_bytes_s=100 * MIB, write_bytes_s=100 * MIB)
    }
    # The device side waits for the program, and for what it had mounted.
    over = await storing.sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))
    assert over.error == ""
    assert storing.machine.world()["mounts"] == []
    await storing.sessions.exited("j1")
    await gone(storing, "lease-l1")


class OpenCollector(StorageCollector):
    """One whose listener a test can call."""

    listener: Callable[[Overuse], None]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        OpenCollector.listener = staticmethod(settings["told"])


def test_no_program_has_storage_without_its_limit(tmp_path: Path) -> None:
    lease = storage_lease(volume="data", route=Route.LOCAL, bandwidth_bytes_per_s=MIB)
    with pytest.raises(NotFound, match=r"limit storage data: /dev/farbus/vol-data\.0 is not there"):
        host_on(Machine(tmp_path / "machine")).io_limits([PreparedLease(lease=lease, endpoint="")])


async def test_who_takes_more_than_was_granted_is_told_to_the_scheduler(
    storing: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "StorageCollector", OpenCollector)
    await storing.start()
    OpenCollector.listener(Overuse(lease="l1", bytes_per_s=300, granted_bytes_per_s=100))
    told = session_pb2.LeaseOverused(lease_id="l1", bytes_per_s=300, granted_bytes_per_s=100)
    await storing.sessions.until(lambda: any(one.lease_overused == told for one in storing.sessions.said))


async def test_swap_is_an_operators_alone_whom_the_node_need_not_know(storing: Node, using: Node) -> None:
    drives = await storing.machine.give("S1")
    await storing.start()
    using.config = msgspec.structs.replace(using.config, run_as_self=False)
    await using.start()
    old = using.machine.world()
    asked = await client_side(storing, using, storage_lease(drives=drives, use="swap"))
    refused = await using.sessions.command(prepare_client=asked)
    assert "swap space is the whole node's" in refused.error
    asked.user, asked.attachment = "an-operator-of-the-cluster", True
    outcome = await using.sessions.command(prepare_client=asked)
    assert outcome.error == ""
    assert using.machine.filesystems.swaps() != []
    await using.restart()
    assert using.machine.filesystems.swaps() != []
    back = await using.sessions.command(unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0"))
    assert back.error == ""
    assert using.machine.world() == old


async def test_what_hangs_keeps_no_agent_from_starting(storing: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    drives = await storing.machine.give("S1", "S2")
    await storing.start()
    for name, drive in zip(("l1", "l2"), drives, strict=True):
        prepared = await storing.sessions.command(prepare_devices=prepare(storage_lease(name, drives=(drive,))))
        assert prepared.error == ""
    await storing.stop()
    forget(storing)

    async def hang(*_: object) -> NoReturn:
        # As where a drive does not answer.
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(FakeNvmet, "disable_namespaces", hang)
    monkeypatch.setattr(storage_host, "STRANGER_END_S", 0.5)
    with structlog.testing.capture_logs() as logs:
        await storing.start()
    told = [entry for entry in logs if entry["event"] == "what an earlier agent left is not ended"]
    assert {entry["what"].rpartition(":lease:")[2] for entry in told} >= {"l1:1", "l2:1"}
    assert "its end is still under way after 0.5 s, and left; see dmesg" in {entry["error"] for entry in told}


@pytest.mark.parametrize("door", ["nvmet", "lvm"])
async def test_leases_that_can_not_be_looked_at_are_held_as_recorded(
    storing: Node, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One drive that does not answer hides all of them, and the others work."""
    drives = await storing.machine.give("S1")
    await storing.start()
    prepared = await storing.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))
    assert prepared.error == ""
    exported = await storing.machine.target()
    await storing.stop()

    async def silent(*_: object) -> NoReturn:
        raise TimedOut("no answer for 30 s", hint="a drive may hang; see dmesg")

    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(*((FakeNvmet, "target") if door == "nvmet" else (FakeLvm, "find")), silent)
        await storing.start()
    assert ("held as recorded, not looked at", "lease l1") in {(each["event"], each.get("object")) for each in logs}
    again = await storing.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))
    assert (again.error, again.endpoint) == ("", prepared.endpoint)
    assert await storing.machine.target() == exported


async def test_a_stripe_that_is_not_understood_keeps_no_other_from_its_end(using: Node) -> None:
    mapper = using.machine.mapper
    await mapper._run(("create", "farbus-odd", "--uuid=FARBUS-odd"), "0 1 linear 7:2 0")
    # Of an agent that was killed while dmsetup made it, or dmsetup itself.
    mapper.cut_off = True
    await mapper._run(("create", "farbus-gone", "--uuid=FARBUS-gone"), "0 8 striped 1 8 7:2 0")
    with structlog.testing.capture_logs() as logs:
        await using.start()
    assert mapper.list() == ("FARBUS-odd",)
    told = [entry for entry in logs if entry["event"] == "what an earlier agent left is not ended"]
    assert [(entry["what"], "its table is not ours" in entry["error"]) for entry in told] == [("stripe odd", True)]


async def test_addresses_that_can_not_be_looked_at_end_no_agent(several: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: StorageHost) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(StorageHost, "address_works", refuse)
    drives = await several.machine.give("S1")
    with structlog.testing.capture_logs() as logs:
        await several.start()
        assert (await several.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))).error == ""
    assert "addresses of the NVMe target not looked at" in {entry["event"] for entry in logs}


async def test_a_node_without_a_target_has_nothing_to_end(using: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: FakeNvmet) -> object:
        raise Unavailable("NVMe target: no /sys/kernel/config/nvmet")

    monkeypatch.setattr(FakeNvmet, "is_loaded", lambda _: False)
    monkeypatch.setattr(FakeNvmet, "_read", refuse)
    with structlog.testing.capture_logs() as logs:
        await using.start()
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


# Several addresses.

FIRST, SIXTH, SPARE = "tcp://10.0.0.3:4420", "tcp://[fd00::3]:4420", "tcp://10.1.0.3:4420"
SEVERAL = {"nvmeof_addresses": ("10.0.0.3", "fd00::3"), "nvmeof_spare_addresses": ("10.1.0.3",)}


@pytest_asyncio.fixture
async def several(tmp_path: Path, authority: Authority) -> AsyncIterator[Node]:
    """A storing node with three addresses."""
    async with node(tmp_path / "several", authority, "n1", **SEVERAL) as one:
        yield one


def access(one: Node) -> dict[str, str]:
    """Return the ANA state of what a node exports, by address."""
    target = msgspec.convert(read_target(str(one.machine.directory / "config/nvmet")), Target)
    return {str(port.at): port.states[str(NODE_ANA_GROUP)] for port in target.ports}


async def test_a_lease_is_offered_at_all_addresses_and_used_by_all_that_answer(several: Node, using: Node) -> None:
    drives = await several.machine.give("S1")
    await several.start()
    await using.start()
    prepared = await several.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))
    assert (prepared.error, prepared.endpoint) == ("", f"{FIRST},{SIXTH},{SPARE}")
    assert access(several) == {FIRST: "optimized", SIXTH: "optimized", SPARE: "non-optimized"}
    await bridge(several.machine, using.machine, cut=(SIXTH,))
    asked = session_pb2.PrepareClient(
        job_id="j1", task="main.0", user=MYSELF,
        leases=[prepared_message(storage_lease(drives=drives), prepared.endpoint)],
    )  # fmt: skip
    outcome = await using.sessions.command(prepare_client=asked)
    assert outcome.error == ""
    found = {str(one.address): one.namespaces[0].ana_state for one in using.machine.nvme.controllers()}
    assert found == {FIRST: "optimized", SPARE: "non-optimized"}


async def test_an_address_that_is_set_no_more_is_inaccessible_before_it_goes(several: Node) -> None:
    drives = await several.machine.give("S1")
    await several.start()
    first, second = (storage_lease(name, drives=drives) for name in ("l1", "l2"))
    assert (await several.sessions.command(prepare_devices=prepare(first))).error == ""
    await several.stop()
    several.config = msgspec.structs.replace(
        several.config, nvmeof_addresses=("fd00::3",), nvmeof_spare_addresses=("10.0.0.3",)
    )
    await several.start()
    wanted = {FIRST: "non-optimized", SIXTH: "optimized", SPARE: "inaccessible"}
    async with asyncio.timeout(20):
        while access(several) != wanted:  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(0)
    # The lease is as it was, and the next one is not offered where none is to be.
    (held,) = several.sessions.hellos[-1].held
    assert (held.lease_id, held.endpoint) == ("l1", f"{FIRST},{SIXTH},{SPARE}")
    outcome = await several.sessions.command(prepare_devices=prepare(second))
    assert (outcome.error, outcome.endpoint) == ("", f"{SIXTH},{FIRST}")
    assert access(several) == wanted
    for name in ("l1", "l2"):
        await several.sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id=name))
    assert access(several) == {}


async def test_the_only_address_of_a_lease_stays_what_it_is(several: Node) -> None:
    drives = await several.machine.give("S1")
    await several.start()
    assert (await several.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))).error == ""
    await several.stop()
    several.config = msgspec.structs.replace(several.config, nvmeof_addresses=("10.0.0.9",), nvmeof_spare_addresses=())
    with structlog.testing.capture_logs() as logs:
        await several.start()
        async with asyncio.timeout(20):
            while not any(one["event"] == "address keeps its state" for one in logs):  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert access(several) == {FIRST: "inaccessible", SIXTH: "inaccessible", SPARE: "non-optimized"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"nvmeof_addresses": ("10.0.0.3:4420",)}, "nvmeof_addresses: '10.0.0.3:4420' is no IP address"),
        ({"nvmeof_addresses": ("fc://10.0.0.3",)}, "nvmeof_addresses: 'fc' is no transport"),
        ({"nvmeof_addresses": ("0.0.0.0",)}, "nvmeof_addresses: other nodes can't reach 0.0.0.0"),
        ({"nvmeof_addresses": ("fe80::1%eth0",)}, "nvmeof_addresses: other nodes can't reach fe80::1%eth0"),
        ({"nvmeof_addresses": ("10.0.0.3", "10.0.0.3")}, "nvmeof_addresses: the same address twice"),
        (
            {"nvmeof_addresses": ("10.0.0.3",), "nvmeof_spare_addresses": ("tcp://10.0.0.3",)},
            "nvmeof_addresses: the same address twice",
        ),
        ({"nvmeof_spare_addresses": ("10.0.0.3",)}, "nvmeof_spare_addresses: they are spare to nvmeof_addresses"),
        (
            {"nvmeof_addresses": tuple(f"10.0.0.{number}" for number in range(1, 10))},
            "nvmeof_addresses: with nvmeof_spare_addresses 9, more than 8",
        ),
    ],
)
def test_addresses_that_can_not_be_are_refused(settings: dict[str, object], told: str, config: AgentConfig) -> None:
    with pytest.raises(InvalidInput) as caught:
        msgspec.structs.replace(config, **settings).check()
    assert caught.value.message.startswith(told)


def test_an_address_may_be_of_several_transports(config: AgentConfig) -> None:
    both = msgspec.structs.replace(config, nvmeof_addresses=("rdma://10.0.0.3", "10.0.0.3"), nvmeof_port=4421)
    both.check()
    assert [str(one) for one in both.target_addresses] == ["rdma://10.0.0.3:4421", "tcp://10.0.0.3:4421"]


# TLS.

TLS = {"nvmeof_tls": "on"}
ENCRYPTED = "tcp+tls://127.0.0.1:4421"


def use_message(endpoint: str, drives: tuple[str, ...]) -> session_pb2.PrepareClient:
    """Ask for the use of what is offered at an endpoint."""
    return session_pb2.PrepareClient(
        job_id="j1", task="main.0", user=MYSELF,
        leases=[prepared_message(storage_lease(drives=drives), endpoint)],
    )  # fmt: skip


def tls_names(one: Node) -> list[SubsystemName]:
    return [held.identity.name for held in one.machine.nvme.tls_keys.held()]


@pytest_asyncio.fixture
async def both(tmp_path: Path, authority: Authority) -> AsyncIterator[tuple[Node, Node]]:
    """A storing and a using node that encrypt."""
    async with (
        node(tmp_path / "storing", authority, "n1", **TLS) as storing,
        node(tmp_path / "using", authority, "n2", **TLS) as using,
    ):
        yield storing, using


async def test_storage_is_encrypted_between_nodes_that_are_set_so(both: tuple[Node, Node]) -> None:
    storing, using = both
    drives = await storing.machine.give("S1")
    for one in both:
        await one.start()
    prepared = await storing.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))
    assert (prepared.error, prepared.endpoint) == ("", ENCRYPTED)
    await bridge(storing.machine, using.machine)
    outcome = await using.sessions.command(prepare_client=use_message(prepared.endpoint, drives))
    assert outcome.error == ""
    (controller,) = using.machine.nvme.controllers()
    (key,) = using.machine.nvme.tls_keys.held()
    assert (str(controller.address), controller.tls_key) == (ENCRYPTED, key.serial)
    assert tls_names(storing) == tls_names(using) == [SubsystemName(lease="l1", epoch=1)]
    # Restarted agents find all of it by its names.
    for one in both:
        await one.restart()
    (held,) = storing.sessions.hellos[-1].held
    assert held.endpoint == ENCRYPTED
    assert [one.name for one in using.machine.nvme.controllers()] == [controller.name]
    back = await using.sessions.command(unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0"))
    assert (back.error, tls_names(using)) == ("", [])
    await storing.sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))
    assert tls_names(storing) == []


async def test_nodes_that_differ_refuse_each_other_with_both_names(both: tuple[Node, Node]) -> None:
    _, using = both
    await using.start()
    for here, endpoint, says in (
        ("on", "tcp://10.0.0.1:4420", "nvmeof_tls is off on node n1, and on on node n2"),
        ("off", "tcp+tls://10.0.0.1:4421", "nvmeof_tls is on on node n1, and off on node n2"),
    ):
        await using.stop()
        using.config = msgspec.structs.replace(using.config, nvmeof_tls=here)
        await using.start()
        outcome = await using.sessions.command(prepare_client=use_message(endpoint, ("d1",)))
        assert says in outcome.error
        assert using.machine.nvme.controllers() == ()


async def test_what_is_connected_stays_so_when_the_settings_change(both: tuple[Node, Node]) -> None:
    storing, using = both
    drives = await storing.machine.give("S1")
    for one in both:
        await one.start()
    prepared = await storing.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))
    await bridge(storing.machine, using.machine)
    assert (await using.sessions.command(prepare_client=use_message(prepared.endpoint, drives))).error == ""
    for one in both:
        await one.stop()
        one.config = msgspec.structs.replace(one.config, nvmeof_tls="off")
        await one.start()
    (held,) = storing.sessions.hellos[-1].held
    assert held.endpoint == ENCRYPTED
    assert [str(one.address) for one in using.machine.nvme.controllers()] == [ENCRYPTED]
    # The next one is in the clear, at a port of its own.
    other = await storing.sessions.command(prepare_devices=prepare(storage_lease("l2", drives=drives)))
    assert (other.error, other.endpoint) == ("", "tcp://127.0.0.1:4420")


async def test_keys_of_leases_that_nobody_has_any_more_are_taken_away(both: tuple[Node, Node]) -> None:
    _, using = both
    key = tls_key_of("5e" * 32, SubsystemName(lease="gone", epoch=7))
    await using.machine.nvme.tls_keys.add(key.identity, key.psk)
    await using.start()
    assert tls_names(using) == []


async def test_an_address_is_preferred_in_the_clear_as_it_is_encrypted(tmp_path: Path, authority: Authority) -> None:
    async with node(tmp_path / "several", authority, "n1", **SEVERAL) as several:
        drives = await several.machine.give("S1")
        await several.start()
        assert (await several.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))).error == ""
        await several.stop()
        several.config = msgspec.structs.replace(several.config, nvmeof_tls="on")
        await several.start()
        outcome = await several.sessions.command(prepare_devices=prepare(storage_lease("l2", drives=drives)))
        assert outcome.error == ""
        # Who has connected before goes on as he did.
        clear = {FIRST: "optimized", SIXTH: "optimized", SPARE: "non-optimized"}
        tls = {one.replace("tcp:", "tcp+tls:").replace(":4420", ":4421"): state for one, state in clear.items()}
        assert access(several) == {**clear, **tls}


async def test_what_fails_as_the_agent_starts_lets_no_lease_go_without_a_proof(storing: Node) -> None:
    async def fails(*_: object) -> None:
        raise Unavailable("start a process for it: Resource temporarily unavailable")

    drives = await storing.machine.give("S1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeNvmet, "load", fails)
        await storing.start()
    outcome = await storing.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))
    assert outcome.error == ""
    assert [host.authenticated for host in (await storing.machine.target()).hosts] == [True]


async def test_a_kernel_that_does_not_say_whether_it_asks_for_a_proof_keeps_no_agent_from_starting(
    storing: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    drives = await storing.machine.give("S1")
    monkeypatch.setattr(storage_host, "PROBE_S", 0.01, raising=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeNvmet, "make_host", hang)
        await storing.start()
    outcome = await storing.sessions.command(prepare_devices=prepare(storage_lease(drives=drives)))
    assert outcome.error == ""
    assert [host.authenticated for host in (await storing.machine.target()).hosts] == [True]


async def test_where_the_kernel_takes_any_key_for_a_proof_who_wants_one_is_refused(both: tuple[Node, Node]) -> None:
    storing, _ = both
    drives = await storing.machine.give("S1")
    for wish, refused in (("auto", False), ("on", True)):
        storing.config = msgspec.structs.replace(storing.config, nvmeof_authentication=wish)
        with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as logs:
            patch.setattr(FakeNvmet, "asks_over_tls", lambda _: False)
            await storing.start()
            outcome = await storing.sessions.command(prepare_devices=prepare(storage_lease(f"l-{wish}", drives=drives)))
            await storing.stop()
        assert ("key of TLS for a proof" in outcome.error) is refused
        told = [one for one in logs if one["event"] == "the NVMe target asks nobody for a proof of the lease"]
        assert [one["log_level"] for one in told] == ["warning"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"nvmeof_tls": "auto"}, "nvmeof_tls: 'auto' is none of on, off"),
        ({**TLS, "nvmeof_tls_port": 4420}, "nvmeof_tls_port: 4420 is no port of its own"),
        ({"nvmeof_tls_port": 0}, "nvmeof_tls_port: 0 is no port of its own"),
        (
            {**TLS, "nvmeof_addresses": ("10.0.0.3", "rdma://10.0.0.3")},
            "nvmeof_addresses: rdma://10.0.0.3:4420 can't be encrypted, and nvmeof_tls is on",
        ),
    ],
)
def test_settings_of_tls_that_can_not_be_are_refused(
    settings: dict[str, object], told: str, config: AgentConfig
) -> None:
    with pytest.raises(InvalidInput) as caught:
        msgspec.structs.replace(config, **settings).check()
    assert caught.value.message == told
    assert caught.value.hint
