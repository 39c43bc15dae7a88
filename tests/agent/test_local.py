"""An agent's socket: calls on behalf of the caller, devices for a terminal, and a scheduler that is away."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from farbus.agent.config import AgentConfig
from farbus.agent.local import Identifier, LocalCluster
from farbus.agent.service import AgentService
from farbus.api.client import ClusterClient
from farbus.api.identity import Identity, Role
from farbus.api.v1 import session_pb2
from farbus.errors import TimedOut, Unavailable
from farbus.linux.clock import FakeClock
from farbus.linux.users import SystemUsers
from farbus.model.cluster import HoldLost, HoldReady, HoldWaiting
from farbus.model.device import Route
from farbus.model.job import Job, Requests
from farbus.model.node import NodeStatus
from farbus.model.states import JobState
from tests.agent.harness import GPU, MYSELF, AgentInProcess, ScriptedScheduler, doors_with_gpu, lease
from tests.agent.test_agent import prepare_client, prepare_devices

REQUESTS = Requests(gpus=1)


async def test_calls_go_on_behalf_of_the_caller(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    async with ClusterClient.local(socket=config.socket) as client:
        chunks = [chunk.data async for chunk in client.read_logs("j1")]
        info = await client.cluster_info()
    assert chunks == [f"{MYSELF} at n1".encode()]
    assert (info.node, info.scheduler_version, info.scheduler_error) == ("n1", "test", "")


async def test_a_scheduler_that_is_away_is_said_to_be(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farbus.agent.local.SCHEDULER_PATIENCE_S", 0.0)
    agent.start(config)
    await scheduler.sessions.connected()
    await scheduler.stop()
    async with ClusterClient.local(socket=config.socket) as client:
        async with asyncio.timeout(20):
            # At first it may be the end of the session that is told.
            while "can't be reached" not in (info := await client.cluster_info()).scheduler_error:
                pass
        assert info.node == "n1"
        with pytest.raises(Unavailable, match=r"scheduler at .* can't be reached"):
            await client.list_jobs()
        with pytest.raises(Unavailable, match=r"scheduler at .* can't be reached"):
            async for _ in client.hold(name="x", requests=REQUESTS, routes=[Route.REMOTE]):
                pass


async def test_devices_are_held_while_the_caller_reads(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    held = lease(job="j9")
    async with ClusterClient.local(socket=config.socket) as client:
        events = client.hold(name="python", requests=REQUESTS, routes=[Route.REMOTE])
        assert isinstance(await anext(events), HoldWaiting)
        job = scheduler.cluster.job
        assert job is not None
        assert (job.user, job.interactive, job.groups[0].node, job.groups[0].command) == (MYSELF, True, "n1", ())
        # The agent says operator; the scheduler makes of it one of this node.
        assert (scheduler.cluster.callers[0].role, scheduler.cluster.callers[0].operates) == (Role.USER, True)
        devices = await scheduler.sessions.command(prepare_devices=prepare_devices(held))
        await scheduler.sessions.command(prepare_client=prepare_client(held, devices.endpoint))
        scheduler.cluster.states.put_nowait(JobState.RUNNING)
        ready = await anext(events)
        assert isinstance(ready, HoldReady)
        assert "FARBUS_SESSION" in ready.environment
        assert not scheduler.cluster.cancelled.is_set()
        await events.aclose()
        async with asyncio.timeout(20):
            await scheduler.cluster.cancelled.wait()


async def test_a_caller_is_told_when_its_devices_are_gone(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    held = lease(job="j9", route=Route.LOCAL)
    async with ClusterClient.local(socket=config.socket) as client:
        events = client.hold(name="python", requests=REQUESTS, routes=[Route.LOCAL])
        assert isinstance(await anext(events), HoldWaiting)
        await scheduler.sessions.command(prepare_devices=prepare_devices(held))
        await scheduler.sessions.command(prepare_client=prepare_client(held, ""))
        scheduler.cluster.states.put_nowait(JobState.RUNNING)
        ready = await anext(events)
        assert isinstance(ready, HoldReady)
        assert ready.environment["CUDA_VISIBLE_DEVICES"] == GPU
        released = session_pb2.UnprepareClient(job_id="j9", task="main.0")
        await scheduler.sessions.command(unprepare_client=released)
        assert await anext(events) == HoldLost(reason="job j9: its devices are gone from this node")


async def test_a_caller_whose_job_ends_is_told_why(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    async with ClusterClient.local(socket=config.socket) as client:
        events = client.hold(name="python", requests=REQUESTS, routes=[Route.REMOTE])
        await anext(events)
        scheduler.cluster.states.put_nowait(JobState.CANCELLED)
        assert await anext(events) == HoldLost(reason="job j9 is cancelled")


class Connections:
    """What is opened and closed of connections to a scheduler that is not there."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.answering = asyncio.Event()
        self.submitted = asyncio.Event()
        self.cancelled: list[str] = []

    def connect(self, caller: Identity) -> ClusterClient:
        self.opened.append(caller.name)
        return cast(ClusterClient, _Connection(self, caller.name))


class _Connection:
    def __init__(self, connections: Connections, user: str) -> None:
        self._connections = connections
        self._user = user

    async def list_nodes(self) -> tuple[NodeStatus, ...]:
        await self._connections.answering.wait()
        return ()

    async def submit(self, job: Job) -> tuple[str, None]:
        self._connections.submitted.set()
        await self._connections.answering.wait()
        return "j9", None

    async def cancel_job(self, job_id: str, *, released: bool, exit_code: int | None) -> None:
        self._connections.cancelled.append(job_id)

    async def close(self) -> None:
        self._connections.closed.append(self._user)


class _Present:
    error = ""
    lost_at = 0.0


def user(name: str) -> Identity:
    return Identity(name=name, role=Role.USER, node="n1")


def local_cluster(connections: Connections, group: asyncio.TaskGroup) -> LocalCluster:
    return LocalCluster(
        node="n1",
        connect=connections.connect,
        scheduler=_Present(),
        service=cast(AgentService, None),
        group=group,
        clock=FakeClock(),
    )


@pytest.mark.parametrize("answered", [False, True], ids=["before the answer", "as it comes"])
async def test_a_job_whose_caller_leaves_while_it_is_submitted_ends_at_once(answered: bool) -> None:
    connections = Connections()
    async with asyncio.TaskGroup() as group:
        local = local_cluster(connections, group)
        events = local.hold(user("ann"), name="python", requests=REQUESTS, routes=(Route.REMOTE,), wait_limit_s=0.0)
        call = asyncio.ensure_future(anext(events))
        await connections.submitted.wait()
        if answered:
            connections.answering.set()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        connections.answering.set()
    assert connections.cancelled == ["j9"]


async def test_the_connection_that_was_idle_longest_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.agent.local.MAX_CLIENTS", 2)
    connections = Connections()
    async with asyncio.TaskGroup() as group:
        local = local_cluster(connections, group)
        busy = group.create_task(local.list_nodes(user("ann")))
        await asyncio.sleep(0)
        connections.answering.set()
        for name in ("bob", "ann", "cid"):
            await local.list_nodes(user(name))
        await busy
        connections.answering.clear()
        calls = [group.create_task(local.list_nodes(user(name))) for name in ("ann", "cid")]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="2 users have calls under way"):
            await local.list_nodes(user("dan"))
        connections.answering.set()
        await asyncio.gather(*calls)
    assert connections.opened == ["ann", "bob", "cid"]
    assert connections.closed == ["bob"]


async def test_a_wait_for_devices_has_its_limit(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    async with ClusterClient.local(socket=config.socket) as client:
        events = client.hold(name="python", requests=REQUESTS, routes=[Route.REMOTE], wait_limit_s=0.2)
        async with contextlib.aclosing(events):
            assert isinstance(await anext(events), HoldWaiting)
            with pytest.raises(TimedOut, match=r"job j9: no devices after 0\.2 s; farbus explain j9 says why"):
                await anext(events)
    async with asyncio.timeout(20):
        await scheduler.cluster.cancelled.wait()


@pytest.mark.parametrize(("operators", "role"), [(None, Role.OPERATOR), ((), Role.USER), (("somebody",), Role.USER)])
def test_root_of_a_node_is_an_operator_unless_the_settings_name_others(
    config: AgentConfig, operators: tuple[str, ...] | None, role: Role
) -> None:
    named = config.operators if operators is None else operators
    identify = Identifier(node="n1", users=SystemUsers(), operators=named)
    assert identify(0, 0, 1) == Identity(name="root", role=role, node="n1")
