"""Random steps, faults and kills: no device is lost, none is at two ports, every failure is reported.

Drivers and emulator run in one process under virtual time.  The truth is the
emulator's table; what the service says is compared with it after each step.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farbus.errors import FarbusError
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind, Faults, Rates
from farbus.hotplug.fabric.emulator.virtual import VirtualLoop, run_virtually
from farbus.hotplug.fabric.errors import DeviceElsewhere, MoveStranded, MoveUndone, OutcomeUnknown
from farbus.hotplug.fabric.service import ChassisService
from farbus.model.fabric import FabricStep
from tests.hotplug.fabric.testbed import DIALECTS, NODES, Bed, chassis_config, gpu

PORTS = sorted(NODES)
RATES = Rates(eof=0.03, error=0.03, hang=0.01, cut=0.03, false_negative=0.06, deny=0.03, stale=0.05, partial=0.05)

devices = st.integers(0, 7).map(gpu)
ports = st.sampled_from(PORTS)


class Chassis(RuleBasedStateMachine):
    dialect = "h3"

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.stack = contextlib.AsyncExitStack()
        self.kill_at: int | None = None
        self.writes = itertools.count(1)
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        self.bed = Bed(Path(self.directory.name) / "state.db", chassis_config(rates=RATES), speed=1.0, seed=7)
        await self.bed.start()
        self.service: ChassisService = await self.stack.enter_async_context(self.bed.service(self.dialect).running())

    def teardown(self) -> None:
        async def end() -> None:
            self.bed.store.on_write = lambda _: None
            await self.stack.aclose()
            await self.bed.stop()

        self.runner.run(end())
        self.runner.close()
        self.directory.cleanup()

    async def _restart(self) -> None:
        await self.bed.stop()
        await self.bed.start()

    def _do(self, work: object) -> object:
        """Run one call; a chassis that is killed within it is started anew, as its owner would."""

        async def do() -> object:
            assert asyncio.iscoroutine(work)
            call = asyncio.ensure_future(work)
            while not call.done():
                await asyncio.wait([call], timeout=2.0)
                if self.was_killed:
                    self.was_killed = False
                    await self._restart()
            try:
                return call.result()
            except FarbusError as error:
                return error

        return self.runner.run(do())

    was_killed = False

    def _on_write(self, _: str) -> None:
        if self.kill_at is not None and next(self.writes) >= self.kill_at:
            self.kill_at = None
            self.was_killed = True
            raise asyncio.CancelledError("killed")

    @rule(device=devices, port=ports)
    def assign(self, device: str, port: str) -> None:
        before = self.bed.ports()[device]
        result = self._do(self.service.assign(device, port))
        self._reported(device, {before, port}, port, result)
        if isinstance(result, DeviceElsewhere):
            assert before not in ("", port)

    @rule(device=devices)
    def unassign(self, device: str) -> None:
        before = self.bed.ports()[device]
        self._reported(device, {before, ""}, "", self._do(self.service.unassign(device)))

    @rule(device=devices, port=ports)
    def move(self, device: str, port: str) -> None:
        before = self.bed.ports()[device]
        result = self._do(self.service.move(device, port))
        self._reported(device, {before, port, ""}, port, result)
        now = self.bed.ports()[device]
        if isinstance(result, MoveUndone):
            assert now == before
        if isinstance(result, MoveStranded):
            assert device in self.service.stranded
        if now == "" and before:
            # Taken away and given to nobody: that is written down until it is mended.
            assert device in self.service.stranded

    def _reported(self, device: str, may_be: set[str], wanted: str, result: object) -> None:
        now = self.bed.ports()[device]
        assert now in may_be
        if isinstance(result, FarbusError):
            assert str(result).startswith("chassis falcon: ")
            assert "\n" not in str(result)
        else:
            assert now == wanted == result.port  # type: ignore[attr-defined]

    @rule()
    def list_all(self) -> None:
        view = self._do(self.service.list())
        if not isinstance(view, FarbusError):
            assert view.missing == ()  # type: ignore[attr-defined]
            assert len(view.devices) == 8  # type: ignore[attr-defined]

    @rule()
    def restart_the_chassis(self) -> None:
        self.runner.run(self._restart())

    @precondition(lambda self: self.kill_at is None)
    @rule(at=st.integers(1, 8))
    def kill_it_at_a_write(self, at: int) -> None:
        self.kill_at = at
        self.writes = itertools.count(1)
        self.bed.store.on_write = self._on_write

    @rule()
    def restart_the_service(self) -> None:
        async def restart() -> None:
            history = self.service.history
            await self.stack.aclose()
            service = self.bed.service(self.dialect, history=history)
            service.stranded.update(self.service.stranded)
            self.service = await self.stack.enter_async_context(service.running())

        self.runner.run(restart())

    @invariant()
    def none_is_lost_or_doubled(self) -> None:
        rows = self.bed.chassis.assigned()
        assert sorted(rows) == [f"00{number}300" for number in range(8)]
        assert set(rows.values()) <= {"", *PORTS}


def _machine(name: str) -> type:
    machine = type(f"Chassis_{name}", (Chassis,), {"dialect": name})
    case = machine.TestCase
    case.settings = settings(max_examples=12, stateful_step_count=20)
    return case


TestH3 = _machine("h3")
TestZones = _machine("zones")
TestConnections = _machine("connections")
TestBlocks = _machine("blocks")
TestComposed = _machine("composed")


# Seeds 1, 2 and 10: a stale reading hid that what was taken for failed had been done after all.
@pytest.mark.parametrize("seed", [1, 2, 5, 10])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_hundred_random_moves_with_faults_lose_nothing(dialect: str, seed: int) -> None:
    async def move() -> Counter[str]:
        bed = Bed(":memory:", chassis_config(rates=RATES), speed=1.0, seed=seed)
        drawn = random.Random(seed)
        outcomes: Counter[str] = Counter()
        async with bed.running(), bed.service(dialect).running() as service:
            for _ in range(100):
                device, port = gpu(drawn.randrange(8)), drawn.choice(PORTS)
                try:
                    moved = await service.move(device, port)
                except FarbusError as error:
                    outcomes[type(error).__name__] += 1
                    if bed.ports()[device] == "":
                        assert device in service.stranded
                else:
                    outcomes["moved"] += 1
                    assert bed.ports()[device] == port == moved.port
            # What is stranded is repaired by asking again.
            bed.chassis.faults = Faults()
            for device, stranded in list(service.stranded.items()):
                if bed.ports()[device] == "":
                    await service.assign(device, stranded.target)
            assert set(bed.ports().values()) <= set(PORTS)
            for _ in range(2):
                await service.list()
            assert service.stranded == {}
        return outcomes

    outcomes = run_virtually(move())
    assert sum(outcomes.values()) == 100
    assert outcomes["moved"] >= 85
    # Nobody else moves anything here.
    assert "DeviceElsewhere" not in outcomes
    assert run_virtually(move()) == outcomes


@pytest.mark.parametrize("seed", range(4))
def test_many_movers_at_once_lose_nothing(seed: int) -> None:
    """Two services in two dialects, each with several calls at once, that take devices from each other."""

    async def move() -> Counter[str]:
        bed = Bed(":memory:", chassis_config(rates=RATES, serial=False), speed=1.0, seed=seed)
        drawn = random.Random(seed)
        outcomes: Counter[str] = Counter()

        async def one(service: ChassisService, device: str, port: str) -> None:
            try:
                await service.move(device, port)
            except FarbusError as error:
                outcomes[type(error).__name__] += 1
            else:
                outcomes["moved"] += 1

        async with (
            bed.running(),
            bed.service("zones", parallel=4).running() as zones,
            bed.service("connections", parallel=4).running() as connections,
        ):
            for _ in range(10):
                calls = [
                    one(drawn.choice((zones, connections)), gpu(drawn.randrange(8)), drawn.choice(PORTS))
                    for _ in range(8)
                ]
                await asyncio.gather(*calls)
            bed.chassis.faults = Faults()
            # What was asked for last may still be under way.
            await asyncio.sleep(60)
            assert all(row.pending is None for row in map(bed.chassis.row, bed.chassis.devices))
            for device, port in bed.ports().items():
                assert port in ("", *PORTS)
                if not port:
                    assert device in zones.stranded or device in connections.stranded
                    await zones.assign(device, "30h")
            assert set(bed.ports().values()) <= set(PORTS)
        return outcomes

    outcomes = run_virtually(move())
    assert sum(outcomes.values()) == 80
    assert outcomes["moved"] >= 40


def test_unknown_outcomes_are_never_told_as_done() -> None:
    async def ask() -> None:
        silent = [Fault(kind=FaultKind.HANG, step=FabricStep.LIST, number=number) for number in range(3, 40)]
        bed = Bed(":memory:", chassis_config(script=tuple(silent)))
        async with bed.running(), bed.service("h3").running() as service:
            await service.list()
            with pytest.raises(OutcomeUnknown):
                await service.unassign(gpu(1))
            assert bed.ports()[gpu(1)] == ""

    run_virtually(ask())
