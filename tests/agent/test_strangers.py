"""What an earlier agent left and nobody can kill: its devices stay held, and the agent works."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from farbus.agent import jobs, remoting_host
from farbus.agent.config import AgentConfig
from farbus.agent.jobs import TaskRunner
from farbus.agent.logs import LogStore
from farbus.agent.remoting_host import RemotingHost
from farbus.errors import Conflict, TimedOut
from farbus.linux.cgroups import FakeCgroups
from farbus.linux.clock import FakeClock
from farbus.linux.processes import FakeChild, FakeProcesses, Program
from farbus.linux.users import SystemUsers
from tests.agent.harness import SmallSupervisor


class Hanging:
    """A program in a call of its driver: it heeds no signal until the call returns."""

    def __init__(self) -> None:
        self.returns = asyncio.Event()

    async def __call__(self, child: FakeChild) -> int:
        while not self.returns.is_set():
            try:
                await self.returns.wait()
            except asyncio.CancelledError:
                continue
        return -9


async def left_behind(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeProcesses, Hanging]:
    monkeypatch.setattr(remoting_host, "SUPERVISOR_END_S", 0.01)
    monkeypatch.setattr(jobs, "STRANGER_END_S", 0.01)
    hanging = Hanging()
    processes = FakeProcesses({"hangs": hanging})
    await processes.spawn(Program(name=name, what=name, argv=("hangs",), environment={}, cwd="/"))
    processes.restart()
    return processes, hanging


def host_of(config: AgentConfig, processes: FakeProcesses, group: asyncio.TaskGroup) -> RemotingHost:
    return RemotingHost(
        config=config,
        processes=processes,
        users=SystemUsers(),
        devices=dict,
        group=group,
        died=lambda _: None,
        supervisor=SmallSupervisor(),
    )


async def test_a_supervisor_that_cant_be_killed_is_wedged_and_does_not_stop_the_agent(
    config: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, hanging = await left_behind("lease.l1", monkeypatch)
    async with asyncio.TaskGroup() as group:
        host = host_of(config, processes, group)
        assert await host.end_strangers(["l1"]) == ()
        with pytest.raises(TimedOut, match="lease l1: its supervisor can't be killed"):
            await host.unprepare_devices("l1")
        hanging.returns.set()
        await host.unprepare_devices("l1")
    assert processes.children == {}


async def test_a_supervisor_that_is_in_no_record_and_cant_be_killed_stops_the_agent(
    config: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, hanging = await left_behind("lease.l1", monkeypatch)
    async with asyncio.TaskGroup() as group:
        with pytest.raises(Conflict, match=r"lease\.l1: left by an earlier agent, in no record"):
            await host_of(config, processes, group).end_strangers(["l2"])
    hanging.returns.set()


async def test_a_task_that_is_in_no_record_and_cant_be_killed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, hanging = await left_behind("task.j1.main.0", monkeypatch)
    async with asyncio.TaskGroup() as group:
        runner = TaskRunner(
            processes=processes,
            cgroups=FakeCgroups(),
            users=SystemUsers(),
            logs=LogStore(tmp_path, limit_bytes_per_task=1000, limit_bytes=1000),
            clock=FakeClock(),
            group=group,
            told=lambda _: None,
            run_as_self=True,
            allow_root=True,
        )
        with pytest.raises(Conflict, match=r"task\.j1\.main\.0: left by an earlier agent, in no record"):
            await runner.end_strangers()
    hanging.returns.set()
