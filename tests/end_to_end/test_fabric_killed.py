"""Agents, scheduler and chassis are killed at random while devices move: none is lost, none is in two places.

Operators attach and detach, also by ``--local`` and also what a job has, and call some of that off; jobs ask for a GPU
that is at another node.  In the midst of it, at a random thing that is seen of it, a process is killed and started
again: the scheduler, the chassis, an agent, also the one that serves the chassis, so that another takes over.  One
request to the chassis in eight goes wrong.  From a seed, though no two runs of one are the same: processes are as fast
as they are.

``FARBUS_KILLS=200 FARBUS_KILLS_SEED=5 pytest tests/end_to_end/test_fabric_killed.py`` makes more of them, and others.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import enum
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from farbus.api.client import ClusterClient
from farbus.errors import FarbusError, Unavailable
from farbus.model.device import Route
from farbus.model.fabric import Dialect
from farbus.model.job import Job, Requests, TaskGroup
from farbus.model.move import MoveRequest, MoveState, MoveStatus
from farbus.model.states import JobState
from tests.end_to_end.fabric_site import DEVICE_OF, DEVICES, GPU, NAMES, PORTS, VENDOR_OF_GPU, FabricSite, until

KILLS = int(os.environ.get("FARBUS_KILLS", "8"))
SEED = int(os.environ.get("FARBUS_KILLS_SEED", "1"))

pytestmark = pytest.mark.timeout(120 + 30 * KILLS)

DONE = ("done", "job succeeded")
NOT_DONE = ("refused", "failed", "undone")
"""Of these is the device where it was; of a job that has failed, or where nobody knows, it may be in either place."""

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

SEEN_AT_MOST = 8
"""Of what is seen of a move (its steps as they are told), after how many something is killed at most."""

CALLED_OFF = 0.2
"""Of the moves by operators."""

NODES = tuple(PORTS.values())
SERVING = "the serving agent"
PARTS = ("scheduler", "chassis", SERVING, SERVING, *NODES)

NOT_THERE = 9
PROGRAM = f"""
grep -qx {VENDOR_OF_GPU} "$0"/sys/bus/pci/devices/*/vendor || exit {NOT_THERE}
until [ -e "$1" ]; do sleep 0.1; done
"""
"""A job's program: it ends well where its GPU is on the bus of its node from the beginning, and waits for a file."""


class Kind(enum.Enum):
    """What is asked for."""

    MOVE = enum.auto()
    LOCAL = enum.auto()
    JOB = enum.auto()


class Order(NamedTuple):
    """What is asked of a device, which is at ``source``; empty for free in the chassis."""

    device: str
    kind: Kind
    source: str
    target: str


class Ended(NamedTuple):
    """How something has ended that was asked for: as it was told, with why."""

    state: str
    error: str = ""


class Random:
    """What is done at random at one site."""

    def __init__(self, site: FabricSite, operator: ClusterClient, draw: random.Random) -> None:
        self.site, self.operator, self.draw = site, operator, draw
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.kills: collections.Counter[str] = collections.Counter()
        self._seen = asyncio.Condition()
        self._number = 0
        self._jobs = 0

    async def saw(self) -> None:
        """Count something that was seen: at one of these something is killed."""
        async with self._seen:
            self._number += 1
            self._seen.notify_all()

    async def kill_in_between(self, part: str, number: int, done: asyncio.Future[object]) -> None:
        """Kill a part when so much more has been seen, or else when all is done."""
        at = self._number + number
        reached = asyncio.create_task(self._until_seen(at))
        await asyncio.wait({reached, done}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        self.kills[part] += 1
        if part == SERVING:
            with contextlib.suppress(FarbusError):
                (chassis,) = await self.operator.list_chassis()
                part = chassis.served_by
        # Where the scheduler has not said yet who serves it, or is away, any will do.
        await self.site.kill(part if part in (*PARTS, *NODES) and part != SERVING else NODES[0])

    async def _until_seen(self, number: int) -> None:
        async with self._seen:
            await self._seen.wait_for(lambda: self._number >= number)

    async def settled(self) -> dict[str, str]:
        """Return where all devices are, once everybody says the same and nothing is on its way."""
        found: dict[str, str] = {}

        def agree(listed: object) -> bool:
            assert not self.site.faults, self.site.faults
            at = self.site.agreement(listed)  # type: ignore[arg-type]
            found.update(at or {})
            return at is not None

        await until(self.operator, agree)
        return found

    # What is asked for.

    async def move(self, device: str, to: str) -> Ended:
        """Have an operator move a device; say how that has ended, whoever was killed meanwhile."""
        before = {move.id for move in await self.moves()}
        try:
            return await self._watched(self.operator, MoveRequest(device=device, node=to, drain_s=0.1), local=False)
        except FarbusError as error:
            # Refused, or the scheduler is gone: what it has in its ledger goes on.
            told = Ended("refused", str(error))
        while True:
            new = [move for move in await self.moves() if move.id not in before]
            mine = [move for move in new if DEVICE_OF.get(move.device) == DEVICE_OF[device]]
            if not mine:
                return told
            if mine[-1].state.has_ended:
                return ended(mine[-1])

    async def _watched(self, client: ClusterClient, request: MoveRequest, *, local: bool) -> Ended:
        """Watch a move to its end; the cluster's operator may think better of it in the midst."""
        told: list[MoveStatus] = []
        call_off_at = self.draw.randrange(SEEN_AT_MOST) if not local and self.draw.random() < CALLED_OFF else -1
        async for status in client.move_device(request, local=local):
            if len(told) == call_off_at and not status.state.has_ended:
                # Refused where it can't be called off any more; then it goes on.
                with contextlib.suppress(FarbusError):
                    await client.cancel_move(status.id)
                    self.outcomes["called off"] += 1
            told.append(status)
            await self.saw()
        return ended(told[-1])

    async def moves(self) -> tuple[MoveStatus, ...]:
        """Return all moves, once the scheduler answers."""
        while True:
            with contextlib.suppress(FarbusError):
                await self.operator.channel.channel_ready()
                return await self.operator.list_moves(include_ended=True)

    async def move_locally(self, device: str, node: str, *, attach: bool) -> Ended:
        """Have an operator of a node attach or detach a device there, without the scheduler.

        Where the agent is killed nobody says how that ends; he asks again, and hears it from the next one, which first
        finishes or takes back what was begun.
        """
        request = MoveRequest(device=device, node=node if attach else "", drain_s=0.1)
        while True:
            try:
                async with ClusterClient.local(socket=str(self.site.socket(node))) as agent:
                    await agent.channel.channel_ready()
                    return await self._watched(agent, request, local=True)
            except Unavailable:
                self.outcomes["asked again by --local"] += 1
            except FarbusError as error:
                return Ended("refused", str(error))

    async def run_job(self, node: str) -> Ended:
        """Have a job want the GPU on a node; while it runs, the GPU is moved for nobody."""
        self._jobs += 1
        enough = self.site.directory / f"enough.{self._jobs}"
        group = TaskGroup(
            name="main",
            command=("sh", "-c", PROGRAM, str(self.site.directory / node), str(enough)),
            node=node,
            requests=Requests(gpus=1, cpu_milli=100),
            routes=(Route.LOCAL, Route.RECOMPOSED),
        )
        try:
            job, _ = await self.operator.submit(Job(id="", name="job", user="", groups=(group,)))
        except FarbusError as error:
            # It may be in the queue all the same, and is not to keep the GPU for ever.
            enough.touch()
            return Ended("not known", str(error))
        while True:
            # Anew where the scheduler is killed.
            with contextlib.suppress(FarbusError):
                await self.operator.channel.channel_ready()
                async for status in self.operator.watch_job(job):
                    await self.saw()
                    if status.state is JobState.RUNNING and not enough.exists():
                        await self._is_not_moved(job, node)
                        enough.touch()
                    if status.state in ENDED:
                        assert NOT_THERE not in [task.exit_code for task in status.tasks], status
                        return Ended(f"job {status.state.value}", status.reason or str(status.story))

    async def _is_not_moved(self, job: str, node: str) -> None:
        """Ask for the GPU of a job that runs: whatever is told, it stays."""
        told = await self.move(NAMES[GPU], self.draw.choice([name for name in NODES if name != node]))
        assert told.state != MoveState.DONE, told
        assert GPU in self.site.buses[node].has(), told
        # Who asks while the scheduler is away hears that.
        self.outcomes["refused for its job" if job in told.error else "refused while a job ran"] += 1

    # At random.

    async def turn(self) -> None:
        """Ask for something, or two things at once, kill something meanwhile, and see that all is as it was told."""
        at = await self.settled()
        orders = [self.draw_order(device, at) for device in self.draw.sample(sorted(DEVICES), self.draw.choice((1, 2)))]
        doing = asyncio.gather(*(self.carry_out(order) for order in orders))
        part, number = self.draw.choice(PARTS), self.draw.randrange(SEEN_AT_MOST)
        killing = asyncio.create_task(self.kill_in_between(part, number, doing))
        outcomes = await doing
        await killing
        now = await self.settled()
        for order, told in zip(orders, outcomes, strict=True):
            self.outcomes[told.state] += 1
            if told.state in DONE:
                assert now[order.device] == order.target, (order, told)
            else:
                assert told.error, order
            if told.state in NOT_DONE:
                assert now[order.device] == at[order.device], (order, told)
            assert now[order.device] in (at[order.device], order.target), (order, told)

    def draw_order(self, device: str, at: dict[str, str]) -> Order:
        """Draw what is asked of a device: that it moves, by whom, or a job that it is to move for."""
        node, other = at[device], self.draw.choice([name for name in NODES if name != at[device]])
        kinds = [Kind.MOVE, Kind.MOVE, Kind.LOCAL, *([Kind.JOB, Kind.JOB] if device == GPU and node else [])]
        match self.draw.choice(kinds):
            case Kind.LOCAL:
                return Order(device, Kind.LOCAL, node, "" if node else other)
            case Kind.JOB:
                return Order(device, Kind.JOB, node, other)
            case _:
                return Order(device, Kind.MOVE, node, other if not node or self.draw.random() < 0.7 else "")

    async def carry_out(self, order: Order) -> Ended:
        """Ask for it; return how it has ended."""
        if order.kind is Kind.JOB:
            return await self.run_job(order.target)
        if order.kind is Kind.LOCAL:
            node, attach = order.source or order.target, not order.source
            return await self.move_locally(NAMES[order.device], node, attach=attach)
        return await self.move(NAMES[order.device], order.target)


def ended(status: MoveStatus) -> Ended:
    """Return how a move has ended, after checking that a failure is told."""
    assert status.state.has_ended, status
    assert status.state is MoveState.DONE or status.error, status
    return Ended(status.state.value, status.error)


@pytest.fixture
def numbers(capsys: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """Lines that are printed at the end, also of a run that fails."""
    lines: list[str] = []
    yield lines
    with capsys.disabled():
        print("", *lines, sep="\n")


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_no_device_is_lost_or_given_twice(dialect: Dialect, short_path: Path, numbers: list[str]) -> None:
    site = FabricSite(short_path, dialect=dialect, seed=SEED)
    async with site.running() as operator:
        at_random = Random(site, operator, random.Random(f"{SEED} {dialect}"))
        try:
            await at_random.move(NAMES[GPU], "n1")
            for _ in range(KILLS):
                await at_random.turn()
            at = await at_random.settled()
        except BaseException:
            numbers.append(site.story())
            raise
        finally:
            numbers.append(f"{dialect}, seed {SEED}: {dict(at_random.outcomes)}; killed: {dict(at_random.kills)}")
    assert set(at) == set(DEVICES)
