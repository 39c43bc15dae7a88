"""Chassis as an agent reaches them: who serves, in which term, and what becomes of that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from farbus.agent.chassis import ChassisDesk, ChassisNews, Naming
from farbus.api.identity import Identity, Role
from farbus.errors import FarbusError, InvalidInput, NotPermitted, Unavailable, Unsatisfiable
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind
from farbus.hotplug.fabric.emulator.virtual import run_virtually
from farbus.hotplug.fabric.errors import DeviceElsewhere
from farbus.linux.clock import SystemClock
from farbus.model.fabric import (
    GIVEN_UP_FACTOR,
    ChassisReply,
    ChassisRequest,
    ChassisView,
    FabricStep,
    StepHistory,
)
from tests.agent.moving import ACCESS, CHASSIS, EmulatedFalcon
from tests.hotplug.machines import two_ports

HERE, THERE = Naming(term=1, node="n1"), Naming(term=1, node="n1", address="10.0.0.1:7412")


class Wire:
    """Other agents, by their addresses: as over a network, errors lose their kind but for the status."""

    def __init__(self) -> None:
        self.desks: dict[str, ChassisDesk] = {}
        self.caller = "n2"

    async def ask_chassis(self, node: str, endpoint: str, request: ChassisRequest) -> ChassisReply:
        if endpoint not in self.desks:
            raise Unavailable(f"the agent of node {node} at {endpoint} can't be reached")
        try:
            return await self.desks[endpoint].answer(Identity(name=self.caller, role=Role.NODE), request)
        except FarbusError as error:
            kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "farbus.errors")
            raise kind(error.message, hint=error.hint) from error


class Bench:
    """A chassis, two agents with its credentials and one without."""

    def __init__(self, directory: Path, group: asyncio.TaskGroup) -> None:
        self._directory, self.group = directory, group
        self.chassis = EmulatedFalcon(
            directory, {"30h": two_ports(directory / "bus1"), "31h": two_ports(directory / "bus2")}
        )
        self.wire = Wire()
        self.news: list[ChassisNews] = []
        self.opened: list[ChassisDesk] = []

    def desk(self, node: str, *, serves: bool = True) -> ChassisDesk:
        """Return an agent's desk; made again for a node it is that of the next agent."""
        desk = ChassisDesk(
            node=node,
            accesses={CHASSIS: ACCESS} if serves else {},
            asker=self.wire,
            clock=SystemClock(),
            group=self.group,
            directory=self._directory / f"fabric of {node}",
            driver=self.chassis.driver,
            patience_s=0.0,
            step_patience_s=0.0,
        )
        desk.told = self.news.append
        self.opened.append(desk)
        return desk


@contextlib.asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Bench]:
    async with asyncio.TaskGroup() as group:
        found = Bench(directory, group)
        assert await found.chassis.emulator.reconcile() == []
        yield found
        for desk in found.opened:
            await desk.close()
        await found.chassis.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as found:
        yield found


async def test_a_chassis_is_asked_through_the_agent_that_serves_it(bench: Bench) -> None:
    serving, other = bench.desk("n1"), bench.desk("n2", serves=False)
    bench.wire.desks[THERE.address] = serving
    await serving.name(CHASSIS, HERE)
    await other.name(CHASSIS, THERE)
    assert (await other.of(CHASSIS).assign("S1", "31h")).port == "31h"
    assert bench.chassis.assigned()["001300"] == "31h"
    # What that agent has measured counts for this one too.
    assert other.of(CHASSIS).expected_s is not None
    assert bench.news[-1].term == 1
    assert bench.news[-1].view.device("S1").port == "31h"


async def test_a_device_that_is_elsewhere_is_told_as_such_over_the_network_too(bench: Bench) -> None:
    serving, other = bench.desk("n1"), bench.desk("n2", serves=False)
    bench.wire.desks[THERE.address] = serving
    await serving.name(CHASSIS, HERE)
    await other.name(CHASSIS, THERE)
    await serving.of(CHASSIS).assign("S1", "30h")
    with pytest.raises(DeviceElsewhere) as caught:
        await other.of(CHASSIS).unassign("S1", source="31h")
    assert caught.value.at == "30h"


async def test_a_caller_who_leaves_takes_along_what_he_has_asked_of_another_agent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> ChassisReply:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("nobody answers")

    monkeypatch.setattr(bench.wire, "ask_chassis", hang)
    desk = bench.desk("n2", serves=False)
    await desk.name(CHASSIS, THERE)
    call = asyncio.create_task(desk.of(CHASSIS).list())
    await asked.wait()
    call.cancel()
    await asyncio.wait({call})
    await asyncio.sleep(0)
    assert ended.is_set()


async def test_who_is_named_no_more_serves_nobody_and_asks_the_new_one(bench: Bench) -> None:
    first, second = bench.desk("n1"), bench.desk("n2")
    await first.name(CHASSIS, HERE)
    await first.of(CHASSIS).list()
    bench.wire.desks["10.0.0.2:7412"] = second
    await second.name(CHASSIS, Naming(term=2, node="n2"))
    await first.name(CHASSIS, Naming(term=2, node="n2", address="10.0.0.2:7412"))
    asked = ChassisRequest(chassis=CHASSIS, term=2, step="list")
    with pytest.raises(Unsatisfiable, match="not served by node n1"):
        await first.answer(Identity(name="n3", role=Role.NODE), asked)
    bench.wire.caller = "n1"
    assert (await first.of(CHASSIS).assign("S1", "30h")).port == "30h"
    # News of an older term changes nothing.
    await first.name(CHASSIS, HERE)
    with pytest.raises(Unsatisfiable):
        await first.answer(Identity(name="n3", role=Role.NODE), asked)


async def test_a_call_goes_on_with_the_agent_that_is_named_meanwhile(bench: Bench) -> None:
    gone = Naming(term=1, node="n3", address="10.0.0.3:7412")
    other, serving = bench.desk("n2", serves=False), bench.desk("n1")
    other._patience_s = 60.0
    await other.name(CHASSIS, gone)
    asking = asyncio.create_task(other.of(CHASSIS).list())
    await asyncio.sleep(0)
    await serving.name(CHASSIS, Naming(term=2, node="n1"))
    bench.wire.desks["10.0.0.1:7412"] = serving
    await other.name(CHASSIS, Naming(term=2, node="n1", address="10.0.0.1:7412"))
    assert (await asking).chassis == CHASSIS


async def test_a_step_waits_longer_than_a_reading_for_an_agent_to_be_named(bench: Bench) -> None:
    gone = Naming(term=1, node="n3", address="10.0.0.3:7412")
    other, serving = bench.desk("n2", serves=False), bench.desk("n1")
    other._step_patience_s = 60.0
    await other.name(CHASSIS, gone)
    with pytest.raises(Unavailable):
        await other.of(CHASSIS).list()
    assigning = asyncio.create_task(other.of(CHASSIS).assign("S1", "31h"))
    await asyncio.sleep(0)
    bench.wire.caller = "n2"
    await serving.name(CHASSIS, Naming(term=2, node="n1"))
    bench.wire.desks["10.0.0.1:7412"] = serving
    await other.name(CHASSIS, Naming(term=2, node="n1", address="10.0.0.1:7412"))
    assert (await assigning).port == "31h"


async def test_a_restarted_agent_goes_on_serving_and_asking_as_it_was_named(bench: Bench) -> None:
    for node, naming in (("n1", HERE), ("n2", THERE)):
        await bench.desk(node, serves=node == "n1").name(CHASSIS, naming)
    bench.wire.desks[THERE.address] = bench.desk("n1")
    assert (await bench.desk("n2", serves=False).of(CHASSIS).list()).chassis == CHASSIS


async def test_nobody_who_serves_is_an_error_that_says_so(bench: Bench) -> None:
    with pytest.raises(Unavailable, match="no agent serves it"):
        await bench.desk("n2", serves=False).of(CHASSIS).list()


async def test_who_was_never_named_asks_for_itself_and_serves_nobody(bench: Bench) -> None:
    desk = bench.desk("n1")
    assert (await desk.of(CHASSIS).list()).chassis == CHASSIS
    assert bench.news == []
    with pytest.raises(Unsatisfiable):
        await desk.answer(Identity(name="n2", role=Role.NODE), ChassisRequest(chassis=CHASSIS, term=0, step="list"))


async def test_times_that_were_measured_outlive_the_agent(bench: Bench) -> None:
    first = bench.desk("n1")
    await first.of(CHASSIS).list()
    assert bench.desk("n1").known[0].history == first.known[0].history
    assert first.known[0].history.times


async def test_a_chassis_may_be_called_as_the_file_of_the_namings(bench: Bench, tmp_path: Path) -> None:
    access = msgspec.structs.replace(ACCESS, name="serving")

    def opened() -> ChassisDesk:
        desk = ChassisDesk(
            node="n1", accesses={"serving": access}, asker=bench.wire, clock=SystemClock(), group=bench.group,
            directory=tmp_path / "fabric", driver=bench.chassis.driver,
        )  # fmt: skip
        bench.opened.append(desk)
        return desk

    first = opened()
    await first.name("serving", HERE)
    await first.of("serving").list()
    again = opened().known[0]
    assert (again.naming, again.history) == (HERE, first.known[0].history)


def test_what_was_given_up_outlives_the_agent_until_a_step_is_answered(tmp_path: Path) -> None:
    async def give_up() -> None:
        async with opened(tmp_path) as bench:
            hangs = Fault(kind=FaultKind.HANG, step=FabricStep.ASSIGN, after=True)
            bench.chassis.emulator.chassis[CHASSIS].faults.script = (hangs,)
            cold_s = StepHistory().deadline_s(FabricStep.ASSIGN)
            # It was done, as a reading shows, and nobody knows how long that took.
            await bench.desk("n1").of(CHASSIS).assign("S1", "30h")
            history = bench.desk("n1").known[0].history
            assert history.given_up == {FabricStep.ASSIGN: cold_s}
            assert FabricStep.ASSIGN not in history.times

            chassis = bench.desk("n1").of(CHASSIS)
            assert chassis.deadline_s(FabricStep.ASSIGN) == GIVEN_UP_FACTOR * cold_s
            await chassis.unassign("S1")
            await chassis.assign("S1", "30h")
            history = bench.desk("n1").known[0].history
            assert history.given_up == {}
            assert history.deadline_s(FabricStep.ASSIGN) == cold_s

    run_virtually(give_up())


async def test_a_port_of_another_node_is_refused(bench: Bench) -> None:
    desk = bench.desk("n1")
    await desk.name(CHASSIS, HERE)
    for step in ("assign", "unassign"):
        with pytest.raises(NotPermitted, match="port 30h leads to node n1, not to n2"):
            await desk.answer(
                Identity(name="n2", role=Role.NODE),
                ChassisRequest(chassis=CHASSIS, term=1, step=step, device="S1", port="30h"),
            )


async def test_a_chassis_is_read_as_soon_as_its_agent_is_named(bench: Bench) -> None:
    desk = bench.desk("n1")
    read = asyncio.Event()
    desk.read = lambda _: read.set()
    reading = asyncio.create_task(desk.keep_reading(lambda _: False))
    await asyncio.sleep(0)
    assert not read.is_set()
    await desk.name(CHASSIS, HERE)
    async with asyncio.timeout(30):
        await read.wait()
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading


async def test_who_asks_while_a_chassis_begins_to_be_served_is_answered(bench: Bench) -> None:
    desk = bench.desk("n1")
    await desk.name(CHASSIS, HERE)
    first, second = await asyncio.gather(desk.of(CHASSIS).list(), desk.of(CHASSIS).list())
    assert first == second


async def test_a_driver_that_breaks_ends_nothing_else(bench: Bench) -> None:
    desk = bench.desk("n1")
    await desk.name(CHASSIS, HERE)
    service = await desk._serve(desk.known[0])
    read, broken = service._driver.read, asyncio.Event()

    async def breaks() -> ChassisView:
        if broken.is_set():
            return await read()
        broken.set()
        raise ValueError("nobody has foreseen this")

    service._driver.read = breaks  # type: ignore[method-assign]
    reading = asyncio.create_task(desk.keep_reading(lambda _: True))
    await broken.wait()
    # Named anew it is read again, by the same task.
    await desk.name(CHASSIS, Naming(term=2, node="n1"))
    while not bench.news:
        assert not reading.done()
        await asyncio.sleep(0)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading


async def test_a_chassis_that_can_not_be_read_is_told_with_what_was_read_last_until_it_can(bench: Bench) -> None:
    desk = bench.desk("n1")
    told: asyncio.Queue[ChassisNews] = asyncio.Queue()
    desk.told = told.put_nowait
    await desk.name(CHASSIS, HERE)
    view = await desk.of(CHASSIS).list()
    assert (await told.get()).trouble == ""
    driver = (await desk._serve(desk.known[0]))._driver
    read = driver.read

    async def refuses() -> ChassisView:
        raise InvalidInput("chassis falcon: it refuses the password")

    driver.read = refuses  # type: ignore[method-assign]
    reading = asyncio.create_task(desk.keep_reading(lambda _: False))
    async with asyncio.timeout(30):
        news = await told.get()
        assert (news.view, news.trouble) == (view, "chassis falcon: it refuses the password")
        driver.read = read  # type: ignore[method-assign]
        assert await desk.of(CHASSIS).list() == view
        assert (await told.get()).trouble == ""
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
