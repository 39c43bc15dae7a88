"""What a lease's supervisor says, in the agent's log: a server that has crashed is an error."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest
import structlog

from farbus.agent.config import AgentConfig
from farbus.agent.remoting_host import RemotingHost
from farbus.linux.output import Piece
from farbus.linux.processes import FakeChild, FakeProcesses
from farbus.linux.users import SystemUsers
from farbus.model.device import Device, DeviceKind
from tests.agent.harness import GPU, SmallSupervisor, lease

PATIENCE_S = 30

CRASH = "farbus remoting l1: error: server 812 was killed by signal 11 (SIGSEGV); it served python3 (process 7)"
OTHER = "farbus remoting l1: refused 192.0.2.7 port 7: wrong secret"
DRIVERS = (
    "ptxas fatal: error: no kernel",
    "error: server 812 was killed",
    "farbus remoting l2: error: server 812 was killed",
    "kernel said farbus remoting l1: error: out of memory",
)
"""What a driver in a server may say on the same standard error."""


@contextlib.asynccontextmanager
async def agent(config: AgentConfig, processes: FakeProcesses) -> AsyncIterator[tuple[RemotingHost, asyncio.Event]]:
    """An agent's dealings with remoting, and what tells that a supervisor has ended; then it is gone at once."""
    died = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        started = asyncio.all_tasks()
        yield (
            RemotingHost(
                config=config,
                processes=processes,
                users=SystemUsers(),
                devices=lambda: {GPU: Device(id=GPU, kind=DeviceKind.GPU, model="Test GPU")},
                group=group,
                died=lambda _: died.set(),
                supervisor=SmallSupervisor(),
            ),
            died,
        )
        for task in asyncio.all_tasks() - started:
            if (task.get_name() or "").startswith("supervisor of lease"):
                task.cancel()


def lines(logs: Sequence[Mapping[str, object]]) -> list[tuple[object, object]]:
    return [(each["log_level"], each["line"]) for each in logs if each["event"] == "supervisor"]


async def test_a_server_that_crashed_is_an_error_in_the_log(config: AgentConfig) -> None:
    async def supervise(child: FakeChild) -> int:
        child.write(b"listening 127.0.0.1:7000\n")
        for line in (CRASH, OTHER, *DRIVERS):
            child.write(f"{line}\n".encode(), stream=2)
        return 0

    with structlog.testing.capture_logs() as logs:
        async with agent(config, FakeProcesses({sys.executable: supervise})) as (host, died):
            await host.prepare_devices(lease("l1"))
            await died.wait()
    said = lines(logs)
    assert ("error", CRASH) in said
    assert [level for level, line in said if line in (OTHER, *DRIVERS)] == ["info"] * (1 + len(DRIVERS))


async def test_lines_that_a_broken_disk_keeps_end_neither_lease_nor_agent(
    config: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = asyncio.Event()

    async def supervise(child: FakeChild) -> int:
        child.write(b"listening 127.0.0.1:7000\n")
        await goes_on.wait()
        return 0

    with structlog.testing.capture_logs() as logs:
        async with agent(config, FakeProcesses({sys.executable: supervise})) as (host, died):
            await host.prepare_devices(lease("l1"))
            monkeypatch.setattr(FakeChild, "output", broken)
            await until(lambda: any(each["event"] == "a supervisor's lines can't be read" for each in logs))
            assert not died.is_set()
            goes_on.set()
            await died.wait()


async def broken(*_: object, **__: object) -> AsyncIterator[Piece]:
    """What a supervisor has said, on a disk that does not give it back."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))
    yield  # makes this a generator


async def test_lines_that_a_broken_disk_keeps_hold_up_no_start(
    config: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def supervise(child: FakeChild) -> int:
        child.write(b"listening 127.0.0.1:7000\n")
        return 0

    processes = FakeProcesses({sys.executable: supervise})
    async with agent(config, processes) as (host, died):
        await host.prepare_devices(lease("l1"))
        await died.wait()
    await processes.close()
    monkeypatch.setattr(FakeChild, "output", broken)
    with structlog.testing.capture_logs() as logs:
        async with agent(config, processes) as (host, _):
            assert await host.end_strangers() == ("lease.l1",)
    assert [each["lease"] for each in logs if each["event"] == "a supervisor's lines can't be read"] == ["l1"]


async def until(holds: Callable[[], bool]) -> None:
    """Let the other tasks have their turns."""
    while not holds():  # noqa: ASYNC110 - what is logged sets no event
        await asyncio.sleep(0)


@pytest.mark.parametrize("ends", [False, True])
async def test_what_is_said_while_no_agent_is_there_the_next_one_logs(config: AgentConfig, ends: bool) -> None:
    """Once, also where the supervisor has ended meanwhile, so that its lease is lost."""
    goes_on, is_said = asyncio.Event(), asyncio.Event()

    async def supervise(child: FakeChild) -> int:
        child.write(b"listening 127.0.0.1:7000\n")
        child.write(f"{OTHER}\n".encode(), stream=2)
        await goes_on.wait()
        child.write(f"{CRASH}\n".encode(), stream=2)
        is_said.set()
        if not ends:
            await asyncio.Event().wait()
        return 0

    processes = FakeProcesses({sys.executable: supervise})
    with structlog.testing.capture_logs() as before:
        async with agent(config, processes) as (host, _):
            endpoint = await host.prepare_devices(lease("l1"))
            async with asyncio.timeout(PATIENCE_S):
                await until(lambda: ("info", OTHER) in lines(before))
    await processes.close()
    goes_on.set()
    await is_said.wait()
    with structlog.testing.capture_logs() as after:
        async with agent(config, processes) as (host, _):
            assert await host.adopt_devices(lease("l1"), endpoint) is not ends
            if ends:
                await host.end_strangers()
            async with asyncio.timeout(PATIENCE_S):
                await until(lambda: bool(lines(after)))
    assert lines(after) == [("error", CRASH)]
