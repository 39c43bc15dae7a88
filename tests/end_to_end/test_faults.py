"""A scheduler and real agents in this process: slow readers, hundreds of programs at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from farbus.agent.config import AgentConfig
from farbus.agent.daemon import serve
from farbus.agent.doors import Doors, real_doors
from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.model.cluster import HoldReady
from farbus.model.device import Route
from farbus.model.job import Job, Requests, TaskGroup
from farbus.model.states import JobState, NodeState
from farbus.scheduler import relay
from tests.agent.harness import MYSELF, AgentProcess
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(120)

MIB = 2**20


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def config_of(site: Site, name: str, **settings: object) -> AgentConfig:
    return AgentConfig(
        name=name,
        scheduler=site.address,
        address="127.0.0.1",
        peer_port=0,
        state=str(site.directory / name),
        socket=str(site.directory / f"{name}.sock"),
        credentials=site.credentials(name),
        physical_devices=False,
        run_as_self=True,
        end_on_stop=True,
        **settings,  # type: ignore[arg-type]
    )


async def until_ready(site: Site, name: str) -> None:
    async with site.client("root", Role.OPERATOR) as client:
        while all((status.node.name, status.state) != (name, NodeState.READY) for status in await client.list_nodes()):
            pass


@contextlib.asynccontextmanager
async def real_agent(site: Site, name: str, **settings: object) -> AsyncIterator[AgentConfig]:
    """Keep a real agent without devices for the block, after it has joined."""
    config = config_of(site, name, **settings)
    doors: Doors = real_doors(config)
    stop = asyncio.Event()
    running = asyncio.create_task(serve(config, doors=doors, stop=stop), name=name)
    try:
        ready = asyncio.create_task(until_ready(site, name))
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        assert not running.done(), "the agent ended"
        yield config
    finally:
        stop.set()
        await running


def task(*command: str, memory_bytes: int = MIB) -> Job:
    requests = Requests(cpu_milli=1, memory_bytes=memory_bytes)
    group = TaskGroup(name="main", command=command, requests=requests)
    return Job(id="", name="job", user="", groups=(group,), cwd="/")


async def ended(client: ClusterClient, job_id: str) -> JobState:
    return [status.state async for status in client.watch_job(job_id)][-1]


async def test_a_reader_that_stops_reading_holds_up_nobody_and_costs_little(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[relay.LogRelay] = []
    made = relay.LogRelay.__init__
    monkeypatch.setattr(relay.LogRelay, "__init__", lambda self, **more: (readers.append(self), made(self, **more))[1])
    size = 32 * MIB
    async with site.scheduler(), real_agent(site, "n1") as config, ClusterClient.local(socket=config.socket) as client:
        job_id, _ = await client.submit(task("head", "-c", str(size), "/dev/zero"))
        assert await ended(client, job_id) is JobState.SUCCEEDED
        slow = client.read_logs(job_id)
        first = await anext(slow)
        # Another reader of the same log gets all of it, while the first reads no further.
        assert sum([len(chunk.data) async for chunk in client.read_logs(job_id)]) == size
        (kept,) = [reader.size for reader in readers[0]._readers.values()]
        assert kept <= 2 * relay.CREDIT_BYTES
        rest = sum([len(chunk.data) async for chunk in slow])
        assert len(first.data) + rest == size


async def test_hundreds_of_programs_hold_at_once_and_all_is_given_back(site: Site) -> None:
    count = 200
    async with site.scheduler(), real_agent(site, "n1", cpu_milli=count) as config:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(ClusterClient.local(socket=config.socket)) for _ in range(count)]

            async def hold(client: ClusterClient) -> contextlib.AbstractAsyncContextManager[object]:
                events = client.hold(
                    name="run", requests=Requests(cpu_milli=1, memory_bytes=MIB), routes=(Route.LOCAL,)
                )
                async for event in events:
                    if isinstance(event, HoldReady):
                        break
                return contextlib.aclosing(events)

            for held in await asyncio.gather(*(hold(client) for client in clients)):
                await stack.enter_async_context(held)
            async with ClusterClient.local(socket=config.socket) as client:
                jobs = await client.list_jobs()
                assert [status.state for status in jobs] == [JobState.RUNNING] * count
        async with ClusterClient.local(socket=config.socket) as client:
            while await client.list_jobs():
                pass
            (node,) = await client.list_nodes()
            assert node.free == node.node.capacity


async def test_an_agent_that_stood_still_for_longer_than_the_lease_time_ends_what_is_no_longer_its(
    site: Site, tmp_path: Path
) -> None:
    async with (
        site.scheduler(lease_ttl_s=1.5, return_s=0.0, unreachable_limit_s=0.0),
        site.client(MYSELF, Role.USER) as client,
    ):
        agent = await AgentProcess.start(config_of(site, "n1"), tmp_path)
        try:
            await until_ready(site, "n1")
            job_id, _ = await client.submit(task("sh", "-c", "echo $$; exec sleep 1000"))
            output = client.read_logs(job_id, follow=True)
            program = psutil.Process(int((await anext(output)).data))
            os.kill(agent.process.pid, signal.SIGSTOP)
            assert await ended(client, job_id) is JobState.FAILED
            assert "node n1 was lost" in (await client.get_job(job_id)).reason
            os.kill(agent.process.pid, signal.SIGCONT)
            _, alive = await asyncio.to_thread(psutil.wait_procs, [program], 30)
            assert not alive
            await until_ready(site, "n1")
        finally:
            os.kill(agent.process.pid, signal.SIGCONT)
            await agent.stop()
