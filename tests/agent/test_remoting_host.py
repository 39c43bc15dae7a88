"""Supervisors of leases, and what is asked of them at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from farbus.agent.config import AgentConfig
from farbus.agent.events import PreparedLease
from farbus.errors import FarbusError
from farbus.linux.processes import FakeChild, FakeProcesses
from farbus.model.device import Route
from tests.agent.harness import lease
from tests.agent.test_supervisor_lines import agent


async def test_what_is_given_up_while_its_supervisor_starts_is_served_by_nobody(config: AgentConfig) -> None:
    """A program has a GPU of its own node beside another node's; the lease of the first ends before it is prepared."""
    asked, listens, children = asyncio.Event(), asyncio.Event(), list[FakeChild]()

    async def supervise(child: FakeChild) -> int:
        children.append(child)
        asked.set()
        await listens.wait()
        child.write(b"listening 127.0.0.1:7000\n")
        await asyncio.Event().wait()
        return 0

    here, there = lease("l1", route=Route.LOCAL), lease("l2")
    both = (PreparedLease(lease=here), PreparedLease(lease=there, endpoint="127.0.0.1:7001"))
    async with agent(config, FakeProcesses({sys.executable: supervise})) as (host, _):
        await host.prepare_devices(here)
        preparing = asyncio.create_task(host.prepare_client(job="j1", task="main.0", user="ada", leases=both))
        await asked.wait()
        giving_up = asyncio.create_task(host.unprepare_devices("l1"))
        listens.set()
        await giving_up
        with contextlib.suppress(FarbusError):
            await preparing
        assert host.served() == ()
        assert [child.running for child in children] == [False]
