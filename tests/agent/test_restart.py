"""An agent that ends, and the one after it: what runs goes on, what does not is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import psutil
import pytest
import pytest_asyncio

from farbus.agent.config import AgentConfig
from farbus.agent.doors import Doors
from farbus.api.conversion import to_message
from farbus.api.v1 import session_pb2, staging_pb2, staging_pb2_grpc, types_pb2
from farbus.linux.node_facts import KernelNodeFacts
from farbus.model.device import Route
from tests.agent.harness import (
    MYSELF,
    AgentInProcess,
    AgentProcess,
    ScriptedScheduler,
    ScriptedSessions,
    doors_with_gpu,
    lease,
)

Restart = Callable[..., Awaitable[session_pb2.NodeHello]]


class OtherBoot(KernelNodeFacts):
    """This machine after a reboot, as far as its kernel says."""

    def boot_id(self) -> str:
        return "another-boot"


def doors(config: AgentConfig, *, rebooted: bool = False) -> Doors:
    made = doors_with_gpu(config)
    return msgspec.structs.replace(made, facts=OtherBoot()) if rebooted else made


@pytest.fixture
def leaving(config: AgentConfig) -> AgentConfig:
    """Settings of an agent that leaves what runs."""
    return msgspec.structs.replace(config, end_on_stop=False)


@pytest_asyncio.fixture
async def restart(
    agent: AgentInProcess, config: AgentConfig, leaving: AgentConfig, scheduler: ScriptedScheduler
) -> AsyncIterator[Restart]:
    """Start an agent, then stop it and start the next; return that one's hello."""
    started = 0

    async def again(*, rebooted: bool = False) -> session_pb2.NodeHello:
        nonlocal started
        await agent.stop()
        started += 1
        agent.start(leaving, doors(leaving, rebooted=rebooted))
        await scheduler.sessions.connected(hellos=started)
        return scheduler.sessions.hellos[-1]

    await again()
    yield again
    # The last one ends what is left.
    await agent.stop()
    agent.start(config, doors(config))
    await scheduler.sessions.connected(hellos=started + 1)


async def start_task(sessions: ScriptedSessions, *command: str) -> None:
    outcome = await sessions.command(
        start_task=session_pb2.StartTask(job_id="j1", task="main.0", command=command, user=MYSELF, cwd="/")
    )
    assert outcome.ok, outcome.error


async def prepare(sessions: ScriptedSessions, *, route: Route = Route.REMOTE, interactive: bool = False) -> str:
    """Prepare both sides of a lease; return its endpoint."""
    message = to_message(lease(route=route), types_pb2.Lease)
    devices = await sessions.command(prepare_devices=session_pb2.PrepareDevices(lease=message))
    assert devices.ok, devices.error
    prepared = session_pb2.PreparedLease(lease=message, endpoint=devices.endpoint)
    client = session_pb2.PrepareClient(
        job_id="j1", task="main.0", user=MYSELF, leases=[prepared], interactive=interactive
    )
    assert (await sessions.command(prepare_client=client)).ok
    return devices.endpoint


def supervisors(endpoint: str) -> list[psutil.Process]:
    """Return who listens at an endpoint."""
    port = int(endpoint.rpartition(":")[2])
    listening = [one for one in psutil.net_connections("tcp") if one.laddr and one.laddr.port == port and one.pid]
    return [psutil.Process(one.pid) for one in listening if one.status == psutil.CONN_LISTEN]


def exit_codes(sessions: ScriptedSessions) -> list[int]:
    """Return the exit codes that the last agent has told."""
    told = [*sessions.hellos[-1].tasks, *sessions.task_changes("j1")]
    return [one.status.exit_code for one in told if one.status.state == "exited"]


async def test_a_task_outlives_its_agent_with_its_output_and_its_exit_code(
    restart: Restart, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    await start_task(
        scheduler.sessions, "sh", "-c", f"echo one; while ! test -e {go}; do sleep 0.1; done; echo two; exit 7"
    )
    hello = await restart()
    assert [(task.job_id, task.status.state) for task in hello.tasks] == [("j1", "running")]
    go.touch()
    exited = await scheduler.sessions.exited("j1")
    assert (exited.status.exit_code, exited.status.reason) == (7, "")
    assert (await scheduler.sessions.log("j1"))[0] == b"one\ntwo\n"


async def test_an_agent_says_last_that_another_takes_up_what_goes_on(
    restart: Restart, scheduler: ScriptedScheduler
) -> None:
    await start_task(scheduler.sessions, "sleep", "1000")
    await restart()
    assert [one.HasField("leaving") for one in scheduler.sessions.said].count(True) == 1


async def test_an_agent_that_leaves_nothing_promises_nothing(restart: Restart, scheduler: ScriptedScheduler) -> None:
    await restart()
    assert not [one for one in scheduler.sessions.said if one.HasField("leaving")]


async def test_an_agent_that_was_killed_leaves_the_same(
    leaving: AgentConfig, config: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    first = await AgentProcess.start(leaving, tmp_path)
    try:
        await scheduler.sessions.connected()
        await start_task(scheduler.sessions, "sleep", "1000")
    finally:
        await first.kill()
    second = await AgentProcess.start(config, tmp_path)
    try:
        await scheduler.sessions.connected(hellos=2)
    finally:
        await second.stop()
    (task,) = scheduler.sessions.hellos[1].tasks
    assert (task.job_id, task.status.state) == ("j1", "running")


class FilesOnTheirWay(staging_pb2_grpc.StagingServicer):
    """A scheduler's end from which nothing ever arrives."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Get(self, request: staging_pb2.GetRequest, context: object) -> AsyncIterator[staging_pb2.ContentChunk]:
        self.asked.set()
        await asyncio.Event().wait()
        yield staging_pb2.ContentChunk()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_task_whose_files_were_arriving_is_told_not_to_have_begun(
    leaving: AgentConfig, config: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path, killed: bool
) -> None:
    staging = FilesOnTheirWay()
    await scheduler.stop()
    scheduler.services = (lambda _caller, server: staging_pb2_grpc.add_StagingServicer_to_server(staging, server),)
    await scheduler.start()
    first = await AgentProcess.start(leaving, tmp_path)
    try:
        await scheduler.sessions.connected()
        start = session_pb2.StartTask(
            job_id="j1", task="main.0", command=("true",), user=MYSELF, cwd="/", stage_in="0" * 64
        )
        assert (await scheduler.sessions.command(start_task=start)).ok
        await staging.asked.wait()
    finally:
        await (first.kill() if killed else first.stop())
    second = await AgentProcess.start(config, tmp_path)
    try:
        await scheduler.sessions.connected(hellos=2)
    finally:
        await second.stop()
    (task,) = scheduler.sessions.hellos[1].tasks
    assert (task.status.state, task.status.unstarted) == ("exited", True)
    assert task.status.reason == "its files were still arriving when the agent of node n1 ended"


async def test_the_exit_of_a_program_that_ended_without_an_agent_is_told(
    agent: AgentInProcess, restart: Restart, scheduler: ScriptedScheduler
) -> None:
    await start_task(scheduler.sessions, "sh", "-c", "echo $$; exec sleep 1000")
    pid = int(await scheduler.sessions.log_has("j1", b"\n"))
    await agent.stop()
    # Its status is kept until an agent has it on record.
    psutil.Process(pid).terminate()
    await restart()
    # In its hello or right after it, as it comes.
    await scheduler.sessions.until(lambda: -15 in exit_codes(scheduler.sessions))
    # And is forgotten when the scheduler lets it go: the next agent has nothing to tell.
    gone = session_pb2.UnprepareClient(job_id="j1", task="main.0")
    assert (await scheduler.sessions.command(unprepare_client=gone)).ok
    assert not (await restart()).tasks


async def test_a_lease_is_served_on_by_the_same_supervisor(restart: Restart, scheduler: ScriptedScheduler) -> None:
    endpoint = await prepare(scheduler.sessions)
    (before,) = supervisors(endpoint)
    hello = await restart()
    assert [(held.lease_id, held.device_side, held.endpoint) for held in hello.held] == [
        ("l1", True, endpoint),
        ("l1", False, endpoint),
    ]
    assert [(held.job_id, held.task) for held in hello.clients] == [("j1", "main.0")]
    # Asked again, with the secret that no journal has, it is the same lease.
    assert await prepare(scheduler.sessions) == endpoint
    assert supervisors(endpoint) == [before]


async def test_a_lease_whose_supervisor_has_ended_is_given_up_and_the_rest_is_kept(
    agent: AgentInProcess, restart: Restart, scheduler: ScriptedScheduler, leaving: AgentConfig
) -> None:
    endpoint = await prepare(scheduler.sessions)
    await agent.stop()
    for process in supervisors(endpoint):
        process.kill()
        process.wait(20)
    hello = await restart()
    assert [(held.lease_id, held.device_side) for held in hello.held] == [("l1", False)]
    # What was given up can be had again at once.
    message = to_message(lease(), types_pb2.Lease)
    assert (await scheduler.sessions.command(prepare_devices=session_pb2.PrepareDevices(lease=message))).ok


async def test_after_a_reboot_nothing_is_held_and_the_instance_is_another(
    restart: Restart, scheduler: ScriptedScheduler, leaving: AgentConfig
) -> None:
    await prepare(scheduler.sessions)
    before = scheduler.sessions.hellos[-1].instance
    hello = await restart(rebooted=True)
    assert not hello.held
    assert not hello.clients
    assert not list(leaving.sessions_directory.iterdir())
    assert hello.instance != before


async def test_an_agent_that_is_restarted_is_the_same_instance(restart: Restart, scheduler: ScriptedScheduler) -> None:
    before = scheduler.sessions.hellos[-1].instance
    assert (await restart()).instance == before
