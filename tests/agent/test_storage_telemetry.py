"""What is measured of storage, and when a lease has more than it was granted."""

from __future__ import annotations

from pathlib import Path

import structlog

from farbus.agent.telemetry.storage import BREACH_SAMPLES, Exported, StorageCollector
from farbus.linux.block import FakeBlockDevices
from farbus.linux.clock import FakeClock
from farbus.linux.fake_nvme import FakeNvme
from farbus.model.metrics import series
from farbus.model.nvmeof import BlockStatistics, ControllerState, SmartLog
from farbus.model.nvmet import NamespaceUse
from farbus.nvmeof.paths import PathErrors, Reconnects
from tests.nvmeof.attaching import FIRST, SECOND, a_connection, a_target


class Statistics(FakeNvme):
    """What has gone over all paths, as a test sets it."""

    told = BlockStatistics()

    def statistics(self, device: str) -> BlockStatistics:
        return self.told


class World:
    """A collector and what it looks at."""

    def __init__(self, directory: Path) -> None:
        self.nvme, self.blocks, self.clock = Statistics(directory), FakeBlockDevices(), FakeClock()
        self.exported: tuple[Exported, ...] = ()
        self.errors = PathErrors()
        self.told: list[tuple[str, int, int]] = []
        self.device = directory / "device"
        self.device.touch()
        self.collector = StorageCollector(
            nvme=self.nvme,
            blocks=self.blocks,
            reconnects=Reconnects(),
            errors=self.errors,
            exported=lambda: self.exported,
            smart=lambda: {"d1": SmartLog(temperature_c=40, spare_percent=90, media_errors=2, error_log_entries=7)},
            clock=self.clock,
            told=lambda overuse: self.told.append((overuse.lease, overuse.bytes_per_s, overuse.granted_bytes_per_s)),
        )

    def use(self, written_bytes: int) -> None:
        """Let so much be written to what is exported."""
        self.blocks.uses[str(self.device)] = NamespaceUse(
            device=str(self.device), reads=0, read_bytes=0, read_ms=0, writes=1, written_bytes=written_bytes,
            write_ms=1, in_flight=0, busy_ms=1,
        )  # fmt: skip


async def test_paths_have_states_sums_and_a_latency(tmp_path: Path) -> None:
    world = World(tmp_path)
    connection = a_connection()
    world.nvme.offer(a_target(connection))
    for address in connection.addresses:
        await world.nvme.connect(connection, address)
    world.nvme.told = BlockStatistics(reads=10, read_bytes=4096, read_ms=20)
    first = await world.collector.sample()
    assert first[series("storage_path_up", "l1", FIRST)] == 1.0
    assert first[series("storage_path_info", "l1", SECOND, "live", "optimized")] == 1.0
    assert first[series("storage_path_read_bytes_total", "l1", FIRST)] == 4096.0
    assert series("storage_path_latency_seconds", "l1", FIRST) not in first
    world.nvme.told = BlockStatistics(reads=20, read_bytes=8192, read_ms=50)
    second = await world.collector.sample()
    assert second[series("storage_path_latency_seconds", "l1", FIRST)] == 0.003
    assert second[series("drive_temperature_celsius", "d1")] == 40.0
    assert second[series("drive_media_errors_total", "d1")] == 2.0
    assert second[series("drive_error_log_entries_total", "d1")] == 7.0


async def test_a_path_that_was_gone_begins_anew(tmp_path: Path) -> None:
    """And of leases that are over nothing is remembered."""
    world = World(tmp_path)
    connection = a_connection()
    world.nvme.offer(a_target(connection))
    for read in (10, 20):
        for address in connection.addresses:
            await world.nvme.connect(connection, address)
        world.nvme.told = BlockStatistics(reads=read, read_bytes=4096, read_ms=2 * read)
        found = await world.collector.sample()
        assert series("storage_path_latency_seconds", "l1", FIRST) not in found
        for controller in world.nvme.controllers():
            await world.nvme.disconnect(controller)
        assert series("storage_path_up", "l1", FIRST) not in await world.collector.sample()


async def test_errors_of_a_path_are_its_controller_s_until_that_does_not_answer(tmp_path: Path) -> None:
    world = World(tmp_path)
    connection = a_connection()
    world.nvme.offer(a_target(connection))
    for address in connection.addresses:
        await world.nvme.connect(connection, address)
    found = await world.collector.sample()
    assert series("storage_path_errors_total", "l1", FIRST) not in found
    world.nvme.smart["num_err_log_entries"] = 3
    await world.errors.look(world.nvme)
    found = await world.collector.sample()
    assert [found[series("storage_path_errors_total", "l1", one)] for one in (FIRST, SECOND)] == [3.0, 3.0]
    # Of one that is not live nobody asks, of one that says nonsense nothing is known.
    first, _ = world.nvme.controllers()
    world.nvme.set_state(first.name, ControllerState.CONNECTING)
    await world.errors.look(world.nvme)
    found = await world.collector.sample()
    assert series("storage_path_errors_total", "l1", str(first.address)) not in found
    del world.nvme.smart["critical_warning"]
    await world.errors.look(world.nvme)
    assert not any(one.metric == "storage_path_errors_total" for one in await world.collector.sample())


async def test_a_breach_is_told_once_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.exported = (Exported(lease="l1", path=str(world.device), granted_bytes_per_s=100),)
    total = 0
    told = []
    with structlog.testing.capture_logs() as lines:
        # In order, a burst, three intervals and more beyond the grant, in order again, beyond it once more.
        for seconds in (*[1] * 2, 4, 1, *[4] * (BREACH_SAMPLES + 2), 1, *[4] * BREACH_SAMPLES):
            total += 100 * seconds
            world.use(total)
            found = await world.collector.sample()
            told.append(found[series("storage_export_breaches_total", "l1")])
            await world.clock.advance(1.0)
    assert told[:6] == [0.0] * 6
    assert max(told) == 2.0
    # Whoever listens hears of it with each sample, and once that it is over.
    assert world.told == [("l1", 400, 100)] * 3 + [("l1", 0, 100), ("l1", 400, 100)]
    assert len([line for line in lines if line["event"].startswith("lease uses more")]) == 2
    world.exported = ()
    assert not any(one.metric.startswith("storage_export") for one in await world.collector.sample())


async def test_an_export_that_is_gone_has_no_figures(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.exported = (Exported(lease="l1", path=str(tmp_path / "nothing")),)
    found = await world.collector.sample()
    assert not any(one.metric.startswith("storage_export") for one in found)
