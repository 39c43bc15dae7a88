"""A scheduler that stands still for longer than the lease time (SIGSTOP, a suspended machine), and then goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.agent import session as agent_session
from farbus.agent.events import Event, SessionOpened
from farbus.agent.light import LightAgent
from farbus.api.client import ClusterClient
from farbus.api.session import NodeStream, open_session
from farbus.linux.clock import SystemClock
from farbus.model.states import JobState, NodeState
from tests.scheduler.scripted import job, node
from tests.scheduler.site import Site
from tests.scheduler.test_service_killed import Process

pytestmark = pytest.mark.timeout(120)

LEASE_TTL_S = 1.5


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(Site(tmp_path))
    await process.start(lease_ttl_s=LEASE_TTL_S)
    yield process
    assert process.child is not None
    with contextlib.suppress(ProcessLookupError):
        process.child.send_signal(signal.SIGCONT)
        await process.stop()


class Agent:
    """A light agent with the real one's session, and what becomes of it."""

    def __init__(self, site: Site) -> None:
        self.sessions: asyncio.Queue[Event] = asyncio.Queue()
        self.light = LightAgent(
            node("a", 1),
            open_stream=self._dial,
            clock=SystemClock(),
            task_s=1e6,
            heard=self._hear,
        )
        self._site = site
        self.dials: asyncio.Queue[None] = asyncio.Queue()

    def _dial(self) -> contextlib.AbstractAsyncContextManager[NodeStream]:
        self.dials.put_nowait(None)
        return open_session(address=self._site.address, credentials=self._site.credentials("a"))

    def _hear(self, _node: str, event: Event) -> None:
        if isinstance(event, SessionOpened):
            self.sessions.put_nowait(event)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.light.run())
        try:
            await self.sessions.get()
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until_running(client: ClusterClient, job_id: str) -> None:
    async for status in client.watch_job(job_id):
        if status.state is JobState.RUNNING:
            return
    raise AssertionError(f"job {job_id} ended")


async def test_agents_give_it_up_and_are_back_when_it_goes_on_and_no_job_is_lost(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_session, "WELCOME_TIMEOUT_S", LEASE_TTL_S)
    agent = Agent(process.site)
    async with process.site.client() as client, agent.connected():
        job_id, _ = await client.submit(job("", gpus=1))
        await until_running(client, job_id)
        assert process.child is not None
        os.kill(process.child.pid, signal.SIGSTOP)
        # Dialled at first; again after three heartbeats without an answer, and once
        # more after the lease time without a welcome.
        for _ in range(3):
            await agent.dials.get()
        os.kill(process.child.pid, signal.SIGCONT)
        await agent.sessions.get()
        (status,) = await client.list_nodes()
        assert status.state is NodeState.READY
        found = await client.get_job(job_id)
        assert (found.state, found.reason) == (JobState.RUNNING, "")
        assert agent.light.machine.running() == ((job_id, "main.0"),)
