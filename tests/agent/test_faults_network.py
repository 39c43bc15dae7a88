"""An agent whose scheduler vanishes, hangs, or never answers, while TCP notices nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from farbus.agent import session
from farbus.agent.config import AgentConfig
from farbus.api.client import ClusterClient
from farbus.api.conversion import to_message
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import Unavailable
from tests.agent.harness import MYSELF, AgentInProcess, ScriptedScheduler, doors_with_gpu, lease
from tests.proxy import Proxy, proxy_to

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def proxy(scheduler: ScriptedScheduler) -> AsyncIterator[Proxy]:
    async with proxy_to(scheduler.address) as proxy:
        yield proxy


@pytest.fixture
def config(config: AgentConfig, proxy: Proxy) -> AgentConfig:
    return msgspec.structs.replace(config, scheduler=proxy.address)


async def error_of(config: AgentConfig, part: str) -> str:
    """Wait until the agent says ``part`` of its scheduler to those who ask it; return all that it says."""
    told = ""
    while part not in told:
        # It may not serve its socket yet.
        with contextlib.suppress(Unavailable):
            async with ClusterClient.local(socket=config.socket) as client:
                told = (await client.cluster_info()).scheduler_error
    return told


async def test_a_session_whose_peer_vanished_is_opened_anew_and_nothing_is_lost(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, proxy: Proxy
) -> None:
    sessions = scheduler.sessions
    agent.start(config, doors_with_gpu(config))
    await sessions.connected()
    prepare = session_pb2.PrepareDevices(lease=to_message(lease(client_node="n2"), types_pb2.Lease))
    prepared = await sessions.command(prepare_devices=prepare)
    proxy.freeze()
    assert "has not answered 3 heartbeats" in await error_of(config, "heartbeats")
    proxy.thaw()
    await sessions.connected(hellos=2)
    (held,) = sessions.hellos[1].held
    assert (held.lease_id, held.endpoint) == ("l1", prepared.endpoint)


async def test_a_scheduler_that_accepts_and_never_answers_is_given_up_and_tried_again(
    agent: AgentInProcess,
    config: AgentConfig,
    scheduler: ScriptedScheduler,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "WELCOME_TIMEOUT_S", 0.2)
    proxy.freeze()
    agent.start(config)
    told = await error_of(config, "did not answer")
    assert told == "the scheduler did not answer the hello in 0.2 s"
    assert proxy.connections >= 1
    monkeypatch.setattr(session, "WELCOME_TIMEOUT_S", 20.0)
    proxy.thaw()
    await scheduler.sessions.connected()


async def test_a_scheduler_that_reads_the_hello_and_never_answers_is_given_up(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WELCOME_TIMEOUT_S", 0.2)
    scheduler.sessions.silent = True
    agent.start(config)
    await error_of(config, "did not answer the hello")
    scheduler.sessions.silent = False
    await scheduler.sessions.connected(hellos=2)


async def test_a_command_of_a_newer_scheduler_is_refused_and_the_session_goes_on(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    agent.start(config)
    await sessions.connected()
    # A message with a number that no version has yet: field 1000, a string.
    await sessions.tell(session_pb2.SchedulerMessage.FromString(b"\xc2\x3e\x01x"))
    released = await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))
    assert released.ok
    assert len(sessions.hellos) == 1


async def test_a_scheduler_of_the_first_version_is_served(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    sessions.first_version = True
    agent.start(config, doors_with_gpu(config))
    await sessions.connected()
    one = to_message(lease(), types_pb2.Lease)
    devices = await sessions.command(prepare_devices=session_pb2.PrepareDevices(lease=one))
    assert devices.ok
    prepared = session_pb2.PreparedLease(lease=one, endpoint=devices.endpoint)
    client = await sessions.command(
        prepare_client=session_pb2.PrepareClient(job_id="j1", task="main.0", user=MYSELF, leases=[prepared])
    )
    assert client.environment["FARBUS_SESSION"]
    start = session_pb2.StartTask(job_id="j1", task="main.0", user=MYSELF, cwd="/", command=("echo", "hello"))
    assert (await sessions.command(start_task=start)).ok
    assert (await sessions.exited("j1")).status.exit_code == 0
    assert (await sessions.log("j1"))[0] == b"hello\n"
    gone = session_pb2.UnprepareClient(job_id="j1", task="main.0")
    assert (await sessions.command(unprepare_client=gone)).ok
    assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
    await sessions.until(lambda: any(said.HasField("heartbeat") for said in sessions.said))


async def test_a_refusal_is_told_and_tried_again(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    scheduler.sessions.refuse = "the agent speaks version 1 of the protocol, this scheduler 2"
    agent.start(config)
    told = await error_of(config, "refuses this node")
    assert "the agent speaks version 1" in told
    scheduler.sessions.refuse = ""
    await scheduler.sessions.connected(hellos=2)
