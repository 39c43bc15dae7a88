"""An agent is killed, stopped or replaced, and what it has started goes on; the next one takes it up."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest
import pytest_asyncio

from farbus.agent.config import AgentConfig
from farbus.api.client import ClusterClient
from farbus.api.v1 import session_pb2
from farbus.errors import NotFound
from farbus.linux.children import process_exists
from farbus.model.cluster import HoldLost, HoldReady, HoldWaiting
from farbus.model.device import Route
from farbus.model.job import Requests
from farbus.model.states import JobState
from tests.agent.harness import (
    AgentInProcess,
    AgentProcess,
    ScriptedScheduler,
    ScriptedSessions,
    doors_with_gpu,
    lease,
)
from tests.agent.test_agent import (
    can_connect,
    prepare_client,
    prepare_devices,
    start_task,
    supervisors_of,
    unprepare_client,
)


@pytest.fixture
def leaving(config: AgentConfig) -> AgentConfig:
    """A service's settings: what runs goes on when it is stopped."""
    return msgspec.structs.replace(config, end_on_stop=False)


class Agents:
    """One agent after the other, of the same node."""

    def __init__(self, leaving: AgentConfig, ending: AgentConfig, directory: Path) -> None:
        self._leaving = leaving
        self._ending = ending
        self._directory = directory
        self._process: AgentProcess | None = None

    async def start(self) -> AgentProcess:
        self._process = await AgentProcess.start(self._leaving, self._directory)
        return self._process

    async def end(self) -> None:
        """End all that was left: by an agent whose stop does."""
        if self._process is not None:
            await self._process.kill()
        agent = AgentInProcess()
        agent.start(self._ending, doors_with_gpu(self._ending))
        await agent.stop()


@pytest_asyncio.fixture
async def agents(
    leaving: AgentConfig, config: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path
) -> AsyncIterator[Agents]:
    several = Agents(leaving, config, tmp_path)
    yield several
    await several.end()


async def end_of(sessions: ScriptedSessions, job: str) -> tuple[int, str]:
    """Wait until a task has ended, by a report or by a hello; return its exit code and the reason."""

    def ends() -> list[tuple[int, str]]:
        told = [*sessions.task_changes(job), *(task for hello in sessions.hellos for task in hello.tasks)]
        return [
            (one.status.exit_code, one.status.reason)
            for one in told
            if one.job_id == job and one.status.state == "exited"
        ]

    await sessions.until(lambda: bool(ends()))
    return ends()[0]


def tasks_of(sessions: ScriptedSessions) -> list[tuple[str, str, int]]:
    """Return what the last hello said of tasks: (job, state, exit code)."""
    return [(task.job_id, task.status.state, task.status.exit_code) for task in sessions.hellos[-1].tasks]


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_task_goes_on_and_ends_with_its_right_status(
    agents: Agents, scheduler: ScriptedScheduler, tmp_path: Path, how: str
) -> None:
    sessions = scheduler.sessions
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    first = await agents.start()
    await sessions.connected()
    await sessions.command(start_task=start_task("j1", "sh", "-c", f"echo one; read line < {fifo}; echo two; exit 3"))
    assert await sessions.log_has("j1", b"one")
    await getattr(first, how)()
    await agents.start()
    await sessions.connected(hellos=2)
    assert tasks_of(sessions) == [("j1", "running", 0)]
    following = asyncio.create_task(sessions.log("j1", follow=True))
    await asyncio.to_thread(fifo.write_text, "\n")
    assert (await sessions.exited("j1")).status.exit_code == 3
    assert await following == (b"one\ntwo\n", b"", "")


async def test_an_agent_on_a_copy_of_a_state_that_is_in_use_does_not_start_and_ends_nothing(
    agents: Agents, leaving: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    sessions = scheduler.sessions
    await agents.start()
    await sessions.connected()
    await sessions.command(start_task=start_task("j1", "sh", "-c", "echo $$; exec sleep 1000"))
    program = int(await sessions.log_has("j1", b"\n"))
    copy = tmp_path / "copy"
    await asyncio.to_thread(subprocess.run, ["cp", "-a", leaving.state, str(copy)], check=True)
    elsewhere = msgspec.structs.replace(leaving, state=str(copy), socket=str(tmp_path / "copy.sock"))
    # However often it is tried.
    for _ in range(2):
        said = await (await AgentProcess.start(elsewhere, tmp_path)).output()
        assert said.splitlines()[-1] == (
            f"farbus agent: state directory {copy} is a copy of one that another agent uses; "
            "stop that agent, or name an empty directory"
        )
    assert process_exists(program)


async def test_a_task_that_ended_while_no_agent_was_there_is_reported(
    agents: Agents, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    sessions = scheduler.sessions
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    first = await agents.start()
    await sessions.connected()
    await sessions.command(start_task=start_task("j1", "sh", "-c", f"echo $PPID; read line < {fifo}; echo two; exit 3"))
    keeper = psutil.Process(int(await sessions.log_has("j1", b"\n")))
    await first.kill()
    await asyncio.to_thread(fifo.write_text, "\n")
    await asyncio.to_thread(psutil.wait_procs, [keeper], 20)
    await agents.start()
    await sessions.connected(hellos=2)
    assert await end_of(sessions, "j1") == (3, "")
    assert (await sessions.log("j1"))[0].endswith(b"\ntwo\n")


async def test_a_task_whose_keeper_was_killed_too_is_said_to_have_ended(
    agents: Agents, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    first = await agents.start()
    await sessions.connected()
    await sessions.command(start_task=start_task("j1", "sh", "-c", "setsid sleep 1000 & echo $PPID $!; wait"))
    keeper, stray = (psutil.Process(int(word)) for word in (await sessions.log_has("j1", b"\n")).split())
    await first.kill()
    keeper.kill()
    await agents.start()
    await sessions.connected(hellos=2)
    assert await end_of(sessions, "j1") == (-9, "its keeper was killed")
    assert not process_exists(stray.pid)


async def test_a_stopped_task_ends_though_its_agent_is_another_one(
    agents: Agents, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    first = await agents.start()
    await sessions.connected()
    await sessions.command(start_task=start_task("j1", "sh", "-c", "trap 'exit 7' TERM; echo ready; sleep 1000 & wait"))
    assert await sessions.log_has("j1", b"ready")
    await first.kill()
    await agents.start()
    await sessions.connected(hellos=2)
    stop = session_pb2.StopTask(job_id="j1", task="main.0", grace_s=20)
    assert (await sessions.command(stop_task=stop)).ok
    assert (await sessions.exited("j1")).status.exit_code == 7


async def test_logs_that_are_too_much_go_when_an_agent_starts(
    agents: Agents, scheduler: ScriptedScheduler, leaving: AgentConfig
) -> None:
    old = leaving.logs_directory / "j0" / "main.0"
    old.mkdir(parents=True)
    (Path(leaving.state) / "lock").touch()
    with (old / "00000001.log").open("wb") as log:
        log.truncate(leaving.log_bytes + 1)
    await agents.start()
    await scheduler.sessions.connected()
    async with asyncio.timeout(20):
        while old.exists():
            await asyncio.to_thread(os.sched_yield)
    assert not old.parent.exists()


async def test_what_is_kept_of_a_task_goes_when_its_status_is_recorded(
    agents: Agents, scheduler: ScriptedScheduler, leaving: AgentConfig
) -> None:
    sessions = scheduler.sessions
    await agents.start()
    await sessions.connected()
    await sessions.command(start_task=start_task("j1", "true"))
    await sessions.exited("j1")
    assert (await sessions.command(unprepare_client=unprepare_client("j1"))).ok
    assert list(leaving.programs_directory.iterdir()) == []


async def test_what_the_journal_does_not_know_is_ended(
    agents: Agents, scheduler: ScriptedScheduler, leaving: AgentConfig
) -> None:
    sessions = scheduler.sessions
    first = await agents.start()
    await sessions.connected()
    await sessions.command(start_task=start_task("j1", "sh", "-c", "setsid sleep 1000 & echo $! $$; wait"))
    strangers = [psutil.Process(int(word)) for word in (await sessions.log_has("j1", b"\n")).split()]
    await first.kill()
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        (Path(leaving.state) / name).unlink(missing_ok=True)
    await agents.start()
    await sessions.connected(hellos=2)
    assert not [process.pid for process in strangers if process_exists(process.pid)]
    assert tasks_of(sessions) == []
    assert list(leaving.programs_directory.iterdir()) == []


async def test_a_lease_is_served_on_by_the_same_supervisor(
    agents: Agents, scheduler: ScriptedScheduler, leaving: AgentConfig
) -> None:
    sessions = scheduler.sessions
    held = lease(client_node="n2")
    first, second = AgentInProcess(), AgentInProcess()
    first.start(leaving, doors_with_gpu(leaving))
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(held))
    (supervisor,) = supervisors_of(leaving)
    await first.stop()
    second.start(leaving, doors_with_gpu(leaving))
    try:
        await sessions.connected(hellos=2)
        told = [(one.lease_id, one.device_side, one.endpoint) for one in sessions.hellos[1].held]
        assert told == [("l1", True, devices.endpoint)]
        assert supervisors_of(leaving) == [supervisor]
        assert can_connect(devices.endpoint)
        assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
        assert not process_exists(supervisor.pid)
    finally:
        await second.stop()


async def test_a_program_in_a_terminal_is_held_again(
    agents: Agents, scheduler: ScriptedScheduler, leaving: AgentConfig
) -> None:
    sessions, cluster = scheduler.sessions, scheduler.cluster
    held = lease(job="j9", route=Route.LOCAL)
    first, second = AgentInProcess(), AgentInProcess()
    first.start(leaving, doors_with_gpu(leaving))
    await sessions.connected()
    async with ClusterClient.local(socket=leaving.socket) as client:
        events = client.hold(name="python", requests=Requests(gpus=1), routes=[Route.LOCAL])
        assert isinstance(await anext(events), HoldWaiting)
        await sessions.command(prepare_devices=prepare_devices(held))
        give = prepare_client(held, "")
        give.interactive = True
        await sessions.command(prepare_client=give)
        cluster.states.put_nowait(JobState.RUNNING)
        assert isinstance(await anext(events), HoldReady)
        await first.stop()
        with pytest.raises(Exception, match="agent at"):
            await anext(events)
    second.start(leaving, doors_with_gpu(leaving))
    await sessions.connected(hellos=2)
    assert not cluster.cancelled.is_set()
    async with ClusterClient.local(socket=leaving.socket) as client:
        with pytest.raises(NotFound, match="job j8"):
            await anext(client.hold(name="", requests=Requests(), routes=[], job_id="j8"))
        again = client.hold(name="", requests=Requests(), routes=[], job_id="j9")
        cluster.states.put_nowait(JobState.RUNNING)
        ready = await anext(again)
        assert isinstance(ready, HoldReady)
        assert "CUDA_VISIBLE_DEVICES" in ready.environment
        await sessions.command(unprepare_client=unprepare_client("j9"))
        assert isinstance(await anext(again), HoldLost)
        await client.cancel_job("j9", released=True, exit_code=3)
        async with asyncio.timeout(20):
            await cluster.cancelled.wait()
    assert cluster.exit_code == 3
    await second.stop()
