"""Paths to storage of other nodes, as the node sees them that uses it: told when they are lost, and connected again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest
import pytest_asyncio

from farbus.agent.journal import Journal
from farbus.agent.paths import LAST_WAIT_S, LOOK_S, PathTrouble, PathWatch, UsedPaths
from farbus.agent.steps import StepRunner
from farbus.linux.clock import FakeClock
from farbus.linux.fake_nvme import FakeTarget
from farbus.model.nvmeof import Connection, Controller, ControllerState
from farbus.nvmeof.keys import LeaseKeys
from farbus.nvmeof.parts import Attach
from farbus.nvmeof.sequences import steps_of
from tests.nvmeof.attaching import FIRST, KEY, SECOND, Node, a_connection, a_target


class Watched:
    """A node that uses a namespace over two paths, and what is told of it."""

    def __init__(self, node: Node, runner: StepRunner, clock: FakeClock) -> None:
        self.node = node
        self.clock = clock
        self.connection = a_connection()
        self.used = True
        self.key = ""
        self.told: list[PathTrouble] = []
        self.watch = PathWatch(
            parts=node.parts, runner=runner, clock=clock, used=self._used, told=self.told.append
        )  # fmt: skip

    def _used(self) -> list[UsedPaths]:
        return [UsedPaths(connection=self.connection, storage="data", key=self.key)] if self.used else []

    async def attach(self, target: FakeTarget, connection: Connection | None = None, *, key: str = "") -> None:
        self.connection = connection or self.connection
        self.node.nvme.offer(target)
        for step in steps_of(
            self.node.parts, Attach(id="l1", connections=(self.connection,)), keys={"l1": LeaseKeys(host=key)}
        ):
            await step.do()
        self.node.nvme.calls.clear()

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.clock.advance(LOOK_S)
            await self.watch.look()

    def states(self) -> dict[str, str]:
        return {str(one.address): one.state.value for one in self.node.nvme.controllers()}


@pytest_asyncio.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    clock = FakeClock()
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="a-boot")
    async with asyncio.TaskGroup() as group:
        runner = StepRunner(journal=journal, clock=clock, group=group)
        yield Watched(Node(tmp_path / "node", clock=clock), runner, clock)
    await journal.close()


BOTH = {FIRST: "live", SECOND: "live"}


async def test_where_all_paths_work_nothing_is_said_or_done(watched: Watched) -> None:
    await watched.attach(a_target(watched.connection))
    await watched.look(3)
    assert (watched.told, watched.node.nvme.calls, watched.states()) == ([], [], BOTH)


async def test_a_path_that_was_silent_is_told_and_connected_once_it_answers(watched: Watched) -> None:
    await watched.attach(a_target(watched.connection, cut=(SECOND,)))
    await watched.look(3)
    told = PathTrouble(
        lease="l1", trouble=f"of 2 paths to storage data 1 can be used: {SECOND} is not connected"
    )  # fmt: skip
    # Not at the first look, and from then on again and again: who listens may have come only now.
    assert watched.told == [told, told]
    watched.node.nvme.offer(a_target(watched.connection))
    await watched.look(8)
    assert watched.states() == BOTH
    assert watched.told[-1] == PathTrouble(lease="l1", trouble="")
    assert [one.trouble for one in watched.told].count("") == 1


async def test_what_the_kernel_has_given_up_is_connected_again(watched: Watched) -> None:
    await watched.attach(a_target(watched.connection))
    watched.node.nvme.lose("nvme0")
    await watched.look()
    assert watched.states() == BOTH
    # It was back before anybody was told.
    await watched.look(3)
    assert watched.told == []


async def test_what_the_kernel_still_tries_is_left_to_it(watched: Watched) -> None:
    await watched.attach(a_target(watched.connection))
    watched.node.nvme.set_state("nvme1", ControllerState.CONNECTING)
    await watched.look(2)
    assert watched.told == [
        PathTrouble(lease="l1", trouble=f"of 2 paths to storage data 1 can be used: {SECOND} is connecting")
    ]
    assert watched.node.nvme.calls == []


async def test_a_silent_path_is_tried_less_and_less_often(watched: Watched) -> None:
    await watched.attach(a_target(watched.connection, cut=(SECOND,)))
    day = int(86_400 / LOOK_S)
    await watched.look(day // 24)
    # 15, 30, ... 480 s, and from then on each ten minutes.
    assert len(watched.node.nvme.calls) == 1 + 6 + (3600 - 945) // int(LAST_WAIT_S)


@pytest.mark.parametrize("problem", [OSError(errno.EMFILE, "Too many open files"), ZeroDivisionError("planted")])
async def test_whatever_a_try_meets_the_next_one_is_made(watched: Watched, problem: Exception) -> None:
    await watched.attach(a_target(watched.connection))
    watched.node.nvme.lose("nvme0")

    async def meet(*_: object, **__: object) -> NoReturn:
        raise problem

    connect, watched.node.nvme.connect = watched.node.nvme.connect, meet  # type: ignore[method-assign]
    await watched.look()
    assert watched.states() == {SECOND: "live"}
    watched.node.nvme.connect = connect  # type: ignore[method-assign]
    await watched.look(2)
    assert watched.states() == BOTH


async def test_controllers_are_looked_at_once_for_all_leases(watched: Watched) -> None:
    connections = [a_connection(f"l{number}") for number in range(5)]
    watched.node.nvme.offer(*map(a_target, connections))
    looks, controllers = 0, watched.node.nvme.controllers

    def counted() -> tuple[Controller, ...]:
        nonlocal looks
        looks += 1
        return controllers()

    watched.node.nvme.controllers = counted  # type: ignore[method-assign]
    watched.watch._used = lambda: [UsedPaths(connection=one, storage="data") for one in connections]
    await watched.watch.look()
    assert looks == 1


async def test_a_restarted_agent_proves_its_host_by_what_the_kernel_has(watched: Watched) -> None:
    connection = a_connection(authenticated=True)
    await watched.attach(a_target(connection, key=KEY), connection, key=KEY)
    watched.node.nvme.lose("nvme0")
    await watched.look()
    assert watched.states() == BOTH
    (call,) = watched.node.nvme.calls
    assert KEY in call.configuration
    assert not any(KEY in word for word in call.arguments)


async def test_what_is_being_attached_or_detached_is_left_alone(watched: Watched) -> None:
    watched.node.nvme.offer(a_target(watched.connection))
    await watched.look(3)
    await watched.attach(a_target(watched.connection))
    await watched.look()
    for name in ("nvme0", "nvme1"):
        watched.node.nvme.lose(name)
    await watched.look(3)
    assert watched.states() == {}
    # That none is left is told all the same, for as long as the lease is.
    assert watched.told[-1].trouble.startswith("of 2 paths to storage data none can be used: ")
    watched.used = False
    watched.told.clear()
    await watched.look(3)
    assert watched.told == []


async def test_the_key_is_in_no_record_and_no_repr(watched: Watched, tmp_path: Path) -> None:
    connection = a_connection(authenticated=True)
    watched.key = KEY
    await watched.attach(a_target(connection, key=KEY), connection, key=KEY)
    watched.node.nvme.lose("nvme0")
    await watched.look()
    assert watched.states() == BOTH
    assert KEY not in repr(watched._used())
    assert all(KEY.encode() not in file.read_bytes() for file in tmp_path.glob("journal.db*"))  # noqa: ASYNC240 - a test
