"""What an agent measures of storage of other nodes: how long attaching takes, and errors of its paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from farbus.agent import node_devices, storage
from farbus.agent.events import PreparedLease
from farbus.agent.journal import Journal
from farbus.agent.steps import Result, StepRunner, Steps
from farbus.api.authority import Authority
from farbus.errors import Conflict, FarbusError
from farbus.linux.clock import FakeClock, SystemClock
from farbus.linux.fake_nvme import FakeNvme
from farbus.linux.nvme import NvmeFabrics
from farbus.nvmeof.paths import PathErrors
from tests.agent.harness import MYSELF, PATIENCE_S
from tests.agent.kill_storage import LocalRaw, StorageUsed, StripeMapped, host_on
from tests.agent.storing import Machine, storage_lease
from tests.agent.test_storage import Node, client_side, node


class Bench:
    """Steps of a task's side, led on a machine where time passes by connecting alone."""

    def __init__(self, directory: Path, runner: StepRunner, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = Machine(directory / "machine")
        self.runner = runner
        self.measured: list[float] = []
        self.host = host_on(self.machine, clock=clock, attached=self.measured.append)
        connect = self.machine.nvme._connect

        async def slow(*arguments: Any) -> Any:
            await clock.advance(self.takes_s)
            return await connect(*arguments)

        self.takes_s = 2.5
        monkeypatch.setattr(self.machine.nvme, "_connect", slow)

    async def attach(self, used: StorageUsed) -> None:
        """Attach what was not attached."""
        await self.runner.forward(used.steps_by(self.host))

    async def detach(self, used: StorageUsed) -> None:
        """Give it back."""
        await self.runner.back(used.steps_by(self.host))


@pytest_asyncio.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b")
    clock = FakeClock()
    async with asyncio.TaskGroup() as group:
        runner = StepRunner(journal=journal, clock=clock, group=group)
        yield Bench(tmp_path, runner, clock, monkeypatch)
    await journal.close()


def used(bench: Bench, kind: type[StorageUsed] = StorageUsed) -> StorageUsed:
    """Return storage of another machine, which offers it."""
    one = kind(bench.machine.directory)
    one.offer(bench.machine)
    return one


async def test_what_was_connected_is_measured(bench: Bench) -> None:
    lent = used(bench)
    await bench.attach(lent)
    assert bench.measured == [2.5]
    await bench.detach(lent)
    bench.takes_s = 0.5
    await bench.attach(lent)
    assert bench.measured == [2.5, 0.5]


async def test_each_part_is_measured_by_itself(bench: Bench) -> None:
    await bench.attach(used(bench, StripeMapped))
    assert bench.measured == [2.5, 2.5]


async def test_what_is_there_already_is_not_measured(bench: Bench) -> None:
    lent = used(bench)
    await bench.attach(lent)
    bench.measured.clear()
    steps = lent.steps_by(bench.host)
    # Asked for once more, it is found; a later agent takes hold of it by its records.
    await bench.attach(lent)
    known: dict[int, Result] = {position: {} for position in range(len(steps.steps))}
    assert await bench.runner.adopt(steps, known) is not None
    assert bench.measured == []


async def test_what_failed_is_not_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lent = used(bench)
    (target,) = bench.machine.nvme.targets().values()
    bench.machine.nvme.withdraw(target.nqn)
    with pytest.raises(FarbusError, match="connect"):
        await bench.attach(lent)
    await bench.detach(lent)
    # Connected, and then found to be something else.
    lent.offer(bench.machine)
    with monkeypatch.context() as another:
        another.setattr("farbus.nvmeof.initiator.VerifyNamespaces._lacking", refuse)
        with pytest.raises(Conflict, match="another"):
            await bench.attach(lent)
        await bench.detach(lent)
    assert bench.measured == []
    await bench.attach(lent)
    assert bench.measured == [2.5]


def refuse(_: object) -> str:
    raise Conflict("it is another")


async def test_storage_of_the_node_itself_is_not_measured(bench: Bench) -> None:
    local = LocalRaw(bench.machine.directory.parent)
    await local._prepare(bench.machine)
    prepared = PreparedLease(lease=local._lease(), endpoint="")
    steps = bench.host.client_steps(user=MYSELF, leases=(prepared,), attachment=False, force=False)
    await bench.runner.forward(Steps(object="client j1/main.0", body="{}", steps=steps))
    assert bench.measured == []


def told(one: Node) -> list[float]:
    """Return what a node has said of attaching, beginning with its first words."""
    said = [hello.node for hello in one.sessions.hellos]
    said += [message.inventory_changed.node for message in one.sessions.said if message.HasField("inventory_changed")]
    return [each.storage_attach_s for each in said]


async def test_a_node_tells_what_it_has_measured_and_goes_on_with_it_after_a_restart(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, connect = [1000.0], FakeNvme._connect

    async def slow(*arguments: Any) -> Any:
        now[0] += 3.456
        return await connect(*arguments)

    monkeypatch.setattr(SystemClock, "monotonic", lambda _: now[0])
    monkeypatch.setattr(FakeNvme, "_connect", slow)
    monkeypatch.setattr(node_devices, "INVENTORY_INTERVAL_S", 0.01)
    async with (
        node(tmp_path / "one", authority, "n1") as storing,
        node(tmp_path / "two", authority, "n2", storage=False) as using,
    ):
        drives = await storing.machine.give("S1")
        await storing.start()
        await using.start()
        assert told(using) == [0.0]
        asked = await client_side(storing, using, storage_lease(drives=drives))
        assert (await using.sessions.command(prepare_client=asked)).error == ""
        await using.sessions.until(lambda: told(using)[-1] == 3.5)
        await using.restart()
        assert using.sessions.hellos[-1].node.storage_attach_s == 3.5
        # Who only stores has measured nothing.
        assert set(told(storing)) == {0.0}


async def test_times_that_can_not_be_read_are_measured_anew(tmp_path: Path, authority: Authority) -> None:
    async with node(tmp_path / "two", authority, "n2", storage=False) as using:
        await using.start()
        await using.stop()
        (Path(using.config.state) / "attach_times.json").write_text('{"times": "soon"}')
        await using.start()
        assert told(using) == [0.0, 0.0]


async def test_an_agent_reads_the_errors_of_its_paths_again_and_again(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, known = PathErrors.look, asyncio.Event()

    async def looked(self: PathErrors, nvme: NvmeFabrics) -> None:
        await look(self, nvme)
        if any(self.of(controller.name) is not None for controller in nvme.controllers()):
            known.set()

    monkeypatch.setattr(PathErrors, "look", looked)
    monkeypatch.setattr(storage, "SMART_S", 0.01)
    async with (
        node(tmp_path / "one", authority, "n1") as storing,
        node(tmp_path / "two", authority, "n2", storage=False) as using,
    ):
        drives = await storing.machine.give("S1")
        await storing.start()
        await using.start()
        asked = await client_side(storing, using, storage_lease(drives=drives))
        assert (await using.sessions.command(prepare_client=asked)).error == ""
        known.clear()
        async with asyncio.timeout(PATIENCE_S):
            await known.wait()
