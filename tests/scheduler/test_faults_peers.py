"""Agents that a scheduler must bear: doubles, old and new ones, silent ones, those that vanish."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from farbus.api.client import ClusterClient
from farbus.api.session import NodeStream, open_session
from farbus.api.v1 import session_pb2
from farbus.model.states import JobState, LeaseState, NodeState
from farbus.scheduler import events, sessions
from tests.old_peers import as_first_version
from tests.proxy import proxy_to
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import job, node
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def until_state(client: ClusterClient, job_id: str, *states: JobState) -> JobState:
    async for status in client.watch_job(job_id):
        if status.state in states:
            return status.state
    raise AssertionError(f"job {job_id} ended as {(await client.get_job(job_id)).state}")


async def until_lost(client: ClusterClient, name: str) -> None:
    while all(status.state is not NodeState.LOST for status in await client.list_nodes() if status.node.name == name):
        pass


# Two agents of one name.


@pytest.mark.parametrize("difference", ["boot", "state directory"])
async def test_a_double_is_refused_in_one_line_while_the_first_goes_on(site: Site, difference: str) -> None:
    changes = {"boot_id": "boot-2"} if difference == "boot" else {}
    first = LightAgent(node("a", 1), instance="one")
    double = LightAgent(msgspec.structs.replace(node("a", 1), **changes), instance="two")
    async with site.scheduler(), site.client() as client, site.agent(first):
        job_id, _ = await client.submit(job("", gpus=1))
        await until_state(client, job_id, JobState.RUNNING)
        for _ in range(3):
            async with double.connected(site.address, site.credentials("a")):
                refused = double.welcome.result().refused.reason
                assert refused == "another agent is connected as node a; give each node a name of its own"
        await first.finish(job_id)
        assert await until_state(client, job_id, JobState.SUCCEEDED) is JobState.SUCCEEDED
        assert not double.commands


async def test_when_the_first_is_gone_the_second_gets_in(site: Site) -> None:
    second = LightAgent(node("a", 1), instance="two")
    async with site.scheduler(), site.client() as client:
        async with site.agent(LightAgent(node("a", 1), instance="one")):
            pass
        await until_lost(client, "a")
        async with site.agent(second):
            assert second.welcome.result().HasField("welcome")
            job_id, _ = await client.submit(job("", gpus=1))
            await second.until(events.StartTask, job_id)


async def test_an_agent_that_is_back_before_its_old_connection_was_missed_gets_in(site: Site) -> None:
    async with site.scheduler(), proxy_to(site.address) as proxy:
        before, after = LightAgent(node("a"), instance="one"), LightAgent(node("a"), instance="one")
        async with before.connected(proxy.address, site.credentials("a")):
            proxy.freeze()
            async with site.agent(after):
                assert after.welcome.result().HasField("welcome")


# Old and new.


class OldStream(NodeStream):
    """A session whose agent has the first version of the protocol."""

    def __init__(self, stream: NodeStream) -> None:
        self._stream = stream

    async def send(self, message: session_pb2.NodeMessage) -> None:
        await self._stream.send(as_first_version(message))

    async def __aiter__(self) -> AsyncIterator[session_pb2.SchedulerMessage]:
        async for message in self._stream:
            stripped = as_first_version(message)
            # What it does not know it passes over.
            if stripped.WhichOneof("message"):
                yield stripped


@pytest.fixture
def _old_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def open_old(**arguments: object) -> AsyncIterator[NodeStream]:
        async with open_session(**arguments) as stream:  # type: ignore[arg-type]
            yield OldStream(stream)

    monkeypatch.setattr("tests.scheduler.light_agent.open_session", open_old)


@pytest.mark.usefixtures("_old_agents")
async def test_agents_of_the_first_version_serve_a_job_from_end_to_end(site: Site) -> None:
    devices, client_node = LightAgent(node("a", 1)), LightAgent(node("c"))
    async with site.scheduler(), site.client() as client, site.agent(devices), site.agent(client_node):
        job_id, _ = await client.submit(job("", gpus=1, on="c"))
        client_node.logs[job_id, "main.0"] = [b"hello"]
        await until_state(client, job_id, JobState.RUNNING)
        await devices.beat()
        await devices.until(events.HeartbeatReply, "")
        assert [chunk.data async for chunk in client.read_logs(job_id)] == [b"hello"]
        await client_node.finish(job_id)
        await until_state(client, job_id, JobState.SUCCEEDED)
        assert await client.list_leases() == ()


async def test_a_message_of_a_newer_agent_is_passed_over(site: Site) -> None:
    agent = LightAgent(node("a", 1))
    async with site.scheduler(), site.client() as client, site.agent(agent):
        assert agent._stream is not None
        # Field 1000, a string: no version has it yet.
        await agent._stream.send(session_pb2.NodeMessage.FromString(b"\xc2\x3e\x01x"))
        job_id, _ = await client.submit(job("", gpus=1))
        await agent.until(events.StartTask, job_id)


@pytest.mark.parametrize("version", [0, 2])
async def test_another_version_of_the_protocol_is_refused_with_both_numbers(site: Site, version: int) -> None:
    agent = LightAgent(node("a"))
    greeting = agent.hello()
    greeting.hello.protocol = version
    agent.hello = lambda: greeting  # type: ignore[method-assign]
    async with site.scheduler(), agent.connected(site.address, site.credentials("a")):
        refused = agent.welcome.result().refused.reason
        assert f"the agent speaks version {version} of the protocol, this scheduler 1" in refused
        assert "install the same version of Farbus on both" in refused


# Silence.


async def test_a_session_without_a_hello_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELLO_TIMEOUT_S", 0.1)
    async with site.scheduler(), open_session(address=site.address, credentials=site.credentials("a")) as stream:
        (refused,) = [message.refused.reason async for message in stream]
        assert refused == "no hello came within 0.1 s"


async def test_a_node_that_vanished_is_lost_after_the_lease_time_and_its_devices_stay_its_own(site: Site) -> None:
    async with (
        site.scheduler(lease_ttl_s=1.0, return_s=0.0, unreachable_limit_s=0.0),
        site.client() as client,
        proxy_to(site.address) as proxy,
    ):
        agent = LightAgent(node("a", 1))
        async with agent.connected(proxy.address, site.credentials("a")):
            job_id, _ = await client.submit(job("", gpus=1))
            await until_state(client, job_id, JobState.RUNNING)
            proxy.freeze()
            assert await until_state(client, job_id, JobState.FAILED) is JobState.FAILED
            assert "node a" in (await client.get_job(job_id)).reason
            (lease,) = await client.list_leases()
            assert lease.state is LeaseState.RELEASING
            proxy.thaw()
        # It comes back and gives up what it held: only then the device is free.
        async with site.agent(agent):
            await agent.until(events.UnprepareDevices, "")
            while await client.list_leases():
                pass
