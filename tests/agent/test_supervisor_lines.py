"""What a lease's supervisor says, in the agent's log: a server that has crashed is an error."""

from __future__ import annotations

import asyncio
import sys

import structlog

from farbus.agent.config import AgentConfig
from farbus.agent.remoting_host import RemotingHost
from farbus.linux.processes import FakeChild, FakeProcesses
from farbus.linux.users import SystemUsers
from farbus.model.device import Device, DeviceKind
from tests.agent.harness import GPU, SmallSupervisor, lease

CRASH = "farbus remoting l1: error: server 812 was killed by signal 11 (SIGSEGV); it served python3 (process 7)"
OTHER = "farbus remoting l1: refused 192.0.2.7 port 7: wrong secret"
DRIVERS = (
    "ptxas fatal: error: no kernel",
    "error: server 812 was killed",
    "farbus remoting l2: error: server 812 was killed",
    "kernel said farbus remoting l1: error: out of memory",
)
"""What a driver in a server may say on the same standard error."""


async def supervise(child: FakeChild) -> int:
    """A supervisor that sees a server crash."""
    child.write(b"listening 127.0.0.1:7000\n")
    for line in (CRASH, OTHER, *DRIVERS):
        child.write(f"{line}\n".encode(), stream=2)
    return 0


async def test_a_server_that_crashed_is_an_error_in_the_log(config: AgentConfig) -> None:
    processes = FakeProcesses({sys.executable: supervise})
    died = asyncio.Event()
    with structlog.testing.capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            host = RemotingHost(
                config=config,
                processes=processes,
                users=SystemUsers(),
                devices=lambda: {GPU: Device(id=GPU, kind=DeviceKind.GPU, model="Test GPU")},
                group=group,
                died=lambda _: died.set(),
                supervisor=SmallSupervisor(),
            )
            await host.prepare_devices(lease("l1"))
            await died.wait()
    said = [(each["log_level"], each["lease"], each["line"]) for each in logs if each["event"] == "supervisor"]
    assert ("error", "l1", CRASH) in said
    assert [level for level, _, line in said if line in (OTHER, *DRIVERS)] == ["info"] * (1 + len(DRIVERS))
