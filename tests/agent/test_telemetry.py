"""Collectors and their pipeline: rates, isolation, what each finds."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from farbus.agent.inventory import GpuSource
from farbus.agent.telemetry.collectors import Sources, make_collectors
from farbus.agent.telemetry.gpu import GpuCollector, ProcessMemory
from farbus.agent.telemetry.host import HostCollector
from farbus.agent.telemetry.network import NetworkCollector
from farbus.agent.telemetry.pipeline import MAX_SERIES, Collector, Pipeline
from farbus.agent.telemetry.rates import RateTable, busy_fraction, increase
from farbus.agent.telemetry.sessions import SessionCollector
from farbus.errors import NotFound, Unavailable
from farbus.linux.clock import FakeClock
from farbus.linux.links import NetworkLink
from farbus.linux.node_facts import FakeNodeFacts
from farbus.linux.nvml import FakeNvml, Gpu, GpuList, GpuSample
from farbus.linux.process_states import FakeProcessStates
from farbus.linux.shared_memory import FakeSharedMemory
from farbus.model.device import Route
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.metrics import Series, Values, series
from farbus.model.series import CollectorState
from farbus.remoting import status
from farbus.remoting.spec import OPERATIONS

RECEIVED = series("node_network_receive_bytes_total", "eth0")
RECEIVE_RATE = series("node_network_receive_bytes_per_second", "eth0")

# Rates.


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (100, 150, 50),
        (100, 100, 0),
        (2**32 - 10, 5, 15),  # wrapped
        (2**31, 5, 5),  # began again: nowhere near the end
        (1000, 400, 400),
    ],
)
def test_a_counter_grows_wraps_or_begins_again(before: int, now: int, grown: int) -> None:
    assert increase(before, now, wraps_at=2**32) == grown


def test_a_rate_is_of_the_time_between_two_readings() -> None:
    table = RateTable()
    assert table.rates({RECEIVED: 1000.0}, 10.0) == {}
    assert table.rates({RECEIVED: 3000.0}, 12.0) == {RECEIVE_RATE: 1000.0}
    assert table.rates({RECEIVED: 3000.0}, 12.0) == {}


def test_a_link_that_was_away_begins_anew() -> None:
    table = RateTable()
    table.rates({RECEIVED: 1000.0}, 10.0)
    table.rates({}, 12.0)
    assert table.rates({RECEIVED: 5000.0}, 14.0) == {}


def test_waiting_for_a_disk_is_no_work() -> None:
    before = {"user": 1.0, "system": 1.0, "idle": 10.0, "iowait": 0.0}
    now = {"user": 2.0, "system": 2.0, "idle": 14.0, "iowait": 2.0}
    assert busy_fraction(before, now) == 0.25
    assert busy_fraction(now, now) is None


# The pipeline.


class Scripted:
    """A collector that does what a test tells it."""

    name = "scripted"
    period_s = 2.0
    deadline_s = 5.0

    def __init__(self) -> None:
        self.found: Values = {series("node_load1"): 1.0}
        self.error: Exception | None = None
        self.heeds = True
        """Whether it ends when it is cancelled while it hangs."""
        self.samples = 0
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    def hang(self) -> None:
        """Answer no more."""
        self._goes_on.clear()

    def recover(self) -> None:
        """Answer again."""
        self._goes_on.set()

    async def sample(self) -> Values:
        self.samples += 1
        while not self._goes_on.is_set():
            try:
                await self._goes_on.wait()
            except asyncio.CancelledError:
                if self.heeds:
                    raise
        if self.error:
            raise self.error
        return self.found


class Running:
    """A pipeline of two collectors under a clock that a test moves: one is well, one is scripted."""

    def __init__(self, *collectors: Collector) -> None:
        self.clock = FakeClock()
        self.pipeline = Pipeline(collectors, clock=self.clock)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Running:
        self._task = asyncio.create_task(self.pipeline.run())
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Move the clock on in steps, each long enough for what it wakes."""
        for _ in range(round(seconds)):
            await self.clock.advance(1.0)
            await self.settle()


async def test_values_and_their_rates_are_there_after_each_period() -> None:
    collector = Scripted()
    collector.found = {RECEIVED: 1000.0}
    async with Running(collector) as running:
        assert running.pipeline.values() == {RECEIVED: 1000.0}
        collector.found = {RECEIVED: 5000.0}
        await running.pass_time(2)
        assert running.pipeline.values() == {RECEIVED: 5000.0, RECEIVE_RATE: 2000.0}
        assert collector.samples == 2


async def test_collectors_are_asked_together_however_long_their_samples_take() -> None:
    class Slow(Scripted):
        async def sample(self) -> Values:
            asked["slow"].append(running.clock.monotonic() - began)
            await running.clock.sleep(1.0)
            return self.found

    class Quick(Scripted):
        async def sample(self) -> Values:
            asked["quick"].append(running.clock.monotonic() - began)
            return self.found

    asked: dict[str, list[float]] = {"slow": [], "quick": []}
    running = Running(Slow(), Quick())
    began = running.clock.monotonic()
    async with running:
        await running.pass_time(6)
    assert asked == {"slow": [0.0, 2.0, 4.0, 6.0], "quick": [0.0, 2.0, 4.0, 6.0]}


async def test_a_sample_that_takes_longer_than_its_period_leaves_beats_out() -> None:
    class Slow(Scripted):
        async def sample(self) -> Values:
            asked.append(running.clock.monotonic() - began)
            await running.clock.sleep(3.0)
            return self.found

    asked: list[float] = []
    running = Running(Slow())
    began = running.clock.monotonic()
    async with running:
        await running.pass_time(8)
    assert asked == [0.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("NVML: its worker died"), "NVML: its worker died"),
        (ValueError("not a number"), "ValueError: not a number"),
    ],
)
async def test_one_that_raises_is_stale_and_the_others_go_on(error: Exception, reason: str) -> None:
    broken, well = Scripted(), Scripted()
    broken.name, well.found = "broken", {RECEIVED: 1.0}
    async with Running(broken, well) as running:
        broken.error = error
        await running.pass_time(4)
        assert running.pipeline.stale() == (CollectorState(name="broken", reason=reason),)
        # For a few periods its last figures are better than none.
        assert series("node_load1") in running.pipeline.values()
        await running.pass_time(4)
        assert series("node_load1") not in running.pipeline.values()
        assert RECEIVED in running.pipeline.values()
        broken.error = None
        await running.pass_time(2)
        assert running.pipeline.stale() == ()
        assert series("node_load1") in running.pipeline.values()


async def test_one_that_hangs_is_stale_and_the_others_go_on() -> None:
    hanging, well = Scripted(), Scripted()
    hanging.name, well.found = "hanging", {RECEIVED: 1.0}
    async with Running(hanging, well) as running:
        hanging.hang()
        before = well.samples
        await running.pass_time(8)
        assert running.pipeline.stale() == (CollectorState(name="hanging", reason="no answer after 5 s"),)
        assert well.samples == before + 4
        hanging.recover()
        await running.pass_time(8)
        assert running.pipeline.stale() == ()


async def test_one_that_does_not_even_end_when_cancelled_is_not_asked_again_until_it_does() -> None:
    hanging = Scripted()
    hanging.heeds = False
    async with Running(hanging) as running:
        hanging.hang()
        await running.pass_time(20)
        assert [state.reason for state in running.pipeline.stale()] == ["its last sample still hangs"]
        assert hanging.samples == 2
        hanging.recover()
        await running.pass_time(2)
        assert running.pipeline.stale() == ()


async def test_too_many_series_are_left_out_and_counted() -> None:
    collector = Scripted()
    collector.found = {series("node_network_up", number): 1.0 for number in range(MAX_SERIES + 5)}
    async with Running(collector) as running:
        assert len(running.pipeline.values()) == MAX_SERIES
        assert running.pipeline.reports()[0].left_out == 5


async def test_a_metric_that_no_table_has_is_told() -> None:
    collector = Scripted()
    collector.found = {Series("invented"): 1.0}
    async with Running(collector) as running:
        assert "metrics that no table has: invented" in running.pipeline.stale()[0].reason


# What each finds.


async def test_the_host_tells_processors_memory_and_pressure() -> None:
    facts = FakeNodeFacts()
    collector = HostCollector(facts=facts)
    assert series("node_cpu_busy_ratio") not in await collector.sample()
    facts.times = {"user": 2.0, "idle": 6.0}
    facts.pressures = {("io", "stalled"): 1.5, ("cpu", "stalled"): 0.0}
    found = await collector.sample()
    assert found[series("node_cpu_busy_ratio")] == 0.25
    assert found[series("node_cpu_seconds_total", "idle")] == 6.0
    assert found[series("node_memory_available_bytes")] == 7 * 2**30
    assert found[series("node_pressure_io_stalled_seconds_total")] == 1.5
    # "All tasks wait for a processor" means nothing for a whole node; the kernel prints zeros.
    assert not any(each.metric.startswith("node_pressure_cpu_stalled") for each in found)


async def test_links_are_told_each_for_itself() -> None:
    facts = FakeNodeFacts()
    facts.link_list = (
        NetworkLink(name="eth0", up=True, speed_mbit=10_000, receive_bytes=7, send_packets=3, receive_errors=2),
        NetworkLink(name="eth1", up=False),
    )
    found = await NetworkCollector(facts=facts).sample()
    assert found[series("node_network_speed_bytes", "eth0")] == 1.25e9
    assert found[RECEIVED] == 7.0
    assert found[series("node_network_transmit_packets_total", "eth0")] == 3.0
    assert found[series("node_network_receive_errs_total", "eth0")] == 2.0
    assert found[series("node_network_up", "eth1")] == 0.0
    assert series("node_network_speed_bytes", "eth1") not in found


def gpu(**fields: object) -> FakeNvml:
    sample = GpuSample(uuid="GPU-1", **{"busy_fraction": 0.5, "memory_used_bytes": 7, **fields})  # type: ignore[arg-type]
    return FakeNvml(GpuList(gpus=(Gpu(uuid="GPU-1", name="A GPU", memory_bytes=100),)), (sample,))


async def test_a_gpu_tells_what_it_can() -> None:
    nvml = gpu(memory_bytes=100, power_watts=300.0, ecc_uncorrected_errors=1)
    found = await GpuCollector(name="gpu", nvml=nvml, memory=ProcessMemory()).sample()
    assert found == {
        series("gpu_busy_ratio", "GPU-1"): 0.5,
        series("gpu_memory_used_bytes", "GPU-1"): 7.0,
        series("gpu_memory_free_bytes", "GPU-1"): 93.0,
        series("gpu_power_watts", "GPU-1"): 300.0,
        series("gpu_ecc_uncorrected_errors_total", "GPU-1"): 1.0,
        series("gpu_processes", "GPU-1"): 0.0,
    }


async def test_xid_errors_are_counted_by_number() -> None:
    nvml = gpu(xids=(31, 31, 79))
    collector = GpuCollector(name="gpu", nvml=nvml, memory=ProcessMemory())
    await collector.sample()
    nvml.samples = gpu(xids=(31,)).samples
    found = await collector.sample()
    assert found[series("gpu_xid_errors_total", "GPU-1", 31)] == 3.0
    assert found[series("gpu_xid_errors_total", "GPU-1", 79)] == 1.0
    assert found[series("gpu_last_xid", "GPU-1")] == 31.0


LEASE = Lease(
    id="l1", job="j1", task="main.0", user="ada", client_node="gamma", device_node="alpha", route=Route.REMOTE,
    devices=(LeasedDevice(device="GPU-1", epoch=1),), term=1, secret="5e",
)  # fmt: skip


def status_bytes(
    *, calls: int = 5, waiting_since: int = 0, reading_since: int = 0, operation: int = 0, uncopied_mib: int = 0
) -> bytes:
    """A lease's status: one session has ended, one runs."""
    head = status.HEAD.pack(status.MAGIC, status.VERSION, 2, 1, 10, 1000, 2000, 1_000_000_000)
    rest = (waiting_since, reading_since, operation, uncopied_mib)
    slot = status.SLOT.pack(500, 77, b"train", calls, 300, 400, 500_000_000, b"shm", 0, *rest)
    return head.ljust(status.SLOT_BYTES, b"\0") + slot.ljust(status.SLOT_BYTES, b"\0") + bytes(status.SLOT_BYTES)


async def test_sessions_and_their_lease_are_told() -> None:
    memory = ProcessMemory()
    memory.tell("gpu", {500: 2**20})
    memory.tell("software gpu", {500: 2**20, 501: 1})
    shared = FakeSharedMemory({(900, status.MEMORY_NAME): status_bytes(uncopied_mib=3)})
    collector = SessionCollector(
        served=lambda: ((LEASE, 900),), shared=shared, states=FakeProcessStates(), memory=memory, clock=FakeClock()
    )
    found = await collector.sample()
    session = ("l1", 500, 77, "train")
    assert found[series("session_uncopied_bytes_total", *session)] == 3.0 * 2**20
    assert found[series("lease_info", "l1", "j1", "main.0", "ada", "gamma", "remote")] == 1.0
    assert found[series("session_calls_total", *session)] == 5.0
    assert found[series("session_send_bytes_total", *session)] == 400.0
    assert found[series("session_busy_seconds_total", *session)] == 0.5
    assert found[series("session_memory_bytes", *session)] == 2.0**21
    assert found[series("transport_of_session", *session, "shm")] == 1.0
    assert found[series("lease_sessions", "l1")] == 1.0
    assert found[series("lease_connections_total", "l1")] == 2.0
    assert found[series("lease_calls_total", "l1")] == 15.0
    assert found[series("lease_busy_seconds_total", "l1")] == 1.5


async def test_a_supervisor_that_is_just_ending_hides_no_other() -> None:
    shared = FakeSharedMemory({(900, status.MEMORY_NAME): status_bytes()})
    served = [(LEASE, 900), (LEASE, 901)]
    collector = SessionCollector(
        served=lambda: served, shared=shared, states=FakeProcessStates(), memory=ProcessMemory(), clock=FakeClock()
    )
    assert series("lease_sessions", "l1") in await collector.sample()
    del served[0]
    with pytest.raises(NotFound, match="of process 901"):
        await collector.sample()


WAITS = series("session_waiting_seconds", "l1", 500, 77, "train")
STOPPED = series("session_stopped", "l1", 500, 77, "train")
SYNCHRONIZE = next(each.opcode for each in OPERATIONS if each.name == "stream_synchronize")


class Watched:
    """A lease's server, looked at every few seconds of a clock that a test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._shared = FakeSharedMemory({})
        self.states = FakeProcessStates()
        served = [(LEASE, 900)]
        self._collector = SessionCollector(
            served=lambda: served, shared=self._shared, states=self.states, memory=ProcessMemory(), clock=self.clock
        )
        self.logs: list[tuple[object, ...]] = []
        self.events: list[str] = []
        self.told_stopped = False

    async def look(self, *, after_s: float = 0.0, **counted: int) -> float | None:
        """Look at what the server has counted by then; return for how long it waits, as is told."""
        await self.clock.advance(after_s)
        self._shared.files[900, status.MEMORY_NAME] = status_bytes(**counted)
        with structlog.testing.capture_logs() as logs:
            found = await self._collector.sample()
        self.told_stopped = STOPPED in found
        self.events += [each["event"].partition(" (")[0] for each in logs]
        self.logs += [(each["log_level"], each["pid"], each.get("operation")) for each in logs]
        return found.get(WAITS)


@pytest.mark.parametrize("counted", [{"waiting_since": 1}, {"reading_since": 1}])
async def test_a_server_that_hangs_in_one_call_is_said_once(counted: dict[str, int]) -> None:
    counted |= {"operation": SYNCHRONIZE}
    watched = Watched()
    assert await watched.look(**counted) is None
    assert await watched.look(after_s=4, **counted) is None
    assert await watched.look(after_s=2, **counted) == 6.0
    assert await watched.look(after_s=53, **counted) == 59.0
    assert not watched.logs
    assert await watched.look(after_s=1, **counted) == 60.0
    assert await watched.look(after_s=600, **counted) == 660.0
    hangs = ("warning", 500, "stream_synchronize")
    assert watched.logs == [hangs]
    # It has come back, and hangs again.
    assert await watched.look(after_s=3) is None
    assert watched.logs == [hangs, ("info", 500, None)]
    assert await watched.look(after_s=3, calls=6, **counted) is None
    assert await watched.look(after_s=60, calls=6, **counted) == 60.0
    assert watched.logs == [hangs, ("info", 500, None), hangs]


async def test_a_server_that_always_works_does_not_hang() -> None:
    """Calls of several threads may overlap for hours."""
    watched = Watched()
    for calls in range(5):
        assert await watched.look(after_s=60, calls=calls, waiting_since=1, reading_since=1) is None
    assert not watched.logs


async def test_a_call_that_began_a_moment_ago_does_not_hang() -> None:
    """As many calls as before are those of a program that did nothing meanwhile."""
    watched = Watched()
    assert await watched.look(waiting_since=1) is None
    began_ns = int((watched.clock.monotonic() + 599) * 1e9)
    assert await watched.look(after_s=600, waiting_since=began_ns) is None
    assert not watched.logs


@pytest.mark.parametrize("counted", [{}, {"waiting_since": 1}], ids=["between calls", "in a call"])
async def test_a_server_that_somebody_has_stopped_is_said_once(counted: dict[str, int]) -> None:
    watched = Watched()
    await watched.look(**counted)
    assert not watched.told_stopped
    watched.states.stopped.add(500)
    for _ in range(3):
        # It can't come back from a call before it goes on.
        assert await watched.look(after_s=60, **counted) is None
        assert watched.told_stopped
    assert watched.events == ["server is stopped"]
    watched.states.stopped.clear()
    assert await watched.look(after_s=3, **counted) is None
    assert not watched.told_stopped
    assert watched.events == ["server is stopped", "server goes on"]


async def test_a_server_that_has_gone_on_and_hangs_is_said() -> None:
    watched = Watched()
    watched.states.stopped.add(500)
    await watched.look(waiting_since=1)
    watched.states.stopped.clear()
    await watched.look(after_s=3, waiting_since=1)
    assert await watched.look(after_s=60, waiting_since=1) == 60.0
    assert watched.events[:2] == ["server is stopped", "server goes on"]
    assert watched.events[2].startswith("server has not come back from a call")


def test_the_table_makes_a_collector_for_each_part_of_a_node() -> None:
    sources = Sources(
        facts=FakeNodeFacts(),
        gpus=(GpuSource(FakeNvml(), False), GpuSource(FakeNvml(), True)),
        served=lambda: (),
        shared=FakeSharedMemory(),
        states=FakeProcessStates(),
        memory=ProcessMemory(),
        clock=FakeClock(),
    )
    assert [each.name for each in make_collectors(sources)] == ["host", "network", "gpu", "software gpu", "remoting"]
