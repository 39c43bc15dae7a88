"""Two whole agents and a whole scheduler that goes away for longer than the lease time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from farbus.agent.config import AgentConfig
from farbus.agent.peers import Peers
from farbus.api.client import ClusterClient
from farbus.api.identity import Identity, Role
from farbus.errors import Unsatisfiable
from farbus.model.job import Job, Requests, TaskGroup
from farbus.model.lease import PeerReply, PeerRequest
from farbus.model.states import JobState, LeaseState, NodeState
from farbus.model.value import to_json
from tests.agent.harness import MYSELF, ROOT, AgentInProcess, doors_with_gpu
from tests.proxy import proxy_to
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(120)

TTL_S = 2.0
SETTINGS = {"lease_ttl_s": TTL_S, "return_s": 15.0}


class Renewals:
    """Counts what agents answer each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replies: list[PeerReply] = []
        self.news = asyncio.Event()
        answer = Peers.renew

        async def renew(peers: Peers, caller: Identity, request: PeerRequest) -> PeerReply:
            reply = await answer(peers, caller, request)
            self.replies.append(reply)
            self.news.set()
            return reply

        monkeypatch.setattr(Peers, "renew", renew)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
async def agents(site: Site) -> AsyncIterator[dict[str, tuple[AgentInProcess, Callable[[], AgentConfig]]]]:
    """Node d has the GPU, node c none."""

    def config(name: str) -> AgentConfig:
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
            allow_root=True,
            end_on_stop=True,
            orphan_limit_s=5.0,
        )

    both = {name: (AgentInProcess(), lambda name=name: config(name)) for name in "dc"}
    yield both
    for agent, _ in both.values():
        await agent.stop()


AGENT_WITH_GPU = """
import asyncio, sys
from farbus.agent.config import AgentConfig
from farbus.agent.daemon import serve
from farbus.model.value import from_json
from tests.agent.harness import doors_with_gpu
config = from_json(sys.argv[1], AgentConfig)
asyncio.run(serve(config, doors=doors_with_gpu(config)))
"""


@contextlib.asynccontextmanager
async def process_with_gpu(config: AgentConfig) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the agent of the node with the GPU as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT_WITH_GPU, to_json(config), cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        await process.wait()


def job(fifo: Path) -> Job:
    """Return a job on node c with the GPU of node d, which ends when somebody writes into ``fifo``."""
    group = TaskGroup(name="main", command=("cat", str(fifo)), node="c", requests=Requests(gpus=1))
    return Job(id="", name="outage", user=MYSELF, groups=(group,), cwd="/")


async def until_state(client: ClusterClient, job_id: str, *states: JobState) -> None:
    async for status in client.watch_job(job_id):
        if status.state in states:
            return
    raise AssertionError(f"{job_id}: {await client.get_job(job_id)}")


async def test_a_job_outlives_a_scheduler_that_is_away_for_longer_than_the_lease_time(
    site: Site,
    agents: dict[str, tuple[AgentInProcess, Callable[[], AgentConfig]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    renewals = Renewals(monkeypatch)
    monkeypatch.setattr("farbus.agent.session.BACKOFF_MOST_S", TTL_S / 4)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    operator = ("root", Role.OPERATOR)
    async with site.scheduler(**SETTINGS):
        for agent, config in agents.values():
            settings = config()
            agent.start(settings, doors_with_gpu(settings) if settings.name == "d" else None)
        async with site.client(*operator) as client:
            job_id = await submit(client, job(fifo))
            await until_state(client, job_id, JobState.RUNNING)
    assert renewals.replies == []
    clock = asyncio.get_running_loop().time
    stopped = clock()
    await renewals.until(lambda: clock() - stopped > 2 * TTL_S)
    assert all(reply.renewed and not reply.void for reply in renewals.replies)
    async with site.scheduler(listen=site.address, **SETTINGS), site.client(*operator) as client:
        with fifo.open("w"):
            pass
        await until_state(client, job_id, JobState.SUCCEEDED)
        assert await client.list_leases() == ()


async def until_nodes(client: ClusterClient, state: NodeState) -> None:
    while {status.state for status in await client.list_nodes()} != {state}:
        pass


async def test_a_job_outlives_a_partition_between_the_scheduler_and_both_of_its_nodes(
    site: Site,
    agents: dict[str, tuple[AgentInProcess, Callable[[], AgentConfig]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    renewals = Renewals(monkeypatch)
    monkeypatch.setattr("farbus.agent.session.BACKOFF_MOST_S", TTL_S / 4)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with (
        site.scheduler(lease_ttl_s=TTL_S, return_s=0.0),
        proxy_to(site.address) as network,
        site.client("root", Role.OPERATOR) as client,
    ):
        for agent, config in agents.values():
            settings = msgspec.structs.replace(config(), scheduler=network.address)
            agent.start(settings, doors_with_gpu(settings) if settings.name == "d" else None)
        job_id = await submit(client, job(fifo))
        await until_state(client, job_id, JobState.RUNNING)
        network.freeze()
        await until_nodes(client, NodeState.LOST)
        clock = asyncio.get_running_loop().time
        lost = clock()
        await renewals.until(lambda: clock() - lost > TTL_S)
        assert all(reply.renewed and not reply.void for reply in renewals.replies)
        status = await client.get_job(job_id)
        assert (status.state, status.reason.partition(":")[0]) == (JobState.RUNNING, "unreachable")
        network.thaw()
        await until_nodes(client, NodeState.READY)
        status = await client.get_job(job_id)
        assert (status.state, status.reason) == (JobState.RUNNING, "")
        with fifo.open("w"):
            pass
        await until_state(client, job_id, JobState.SUCCEEDED)
        assert await client.list_leases() == ()


async def test_an_agent_that_stood_still_for_longer_than_the_lease_time_has_lost_its_leases(
    site: Site, agents: dict[str, tuple[AgentInProcess, Callable[[], AgentConfig]]], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    client_agent, client_config = agents["c"]
    async with (
        site.scheduler(lease_ttl_s=TTL_S, return_s=TTL_S, unreachable_limit_s=0.0),
        process_with_gpu(agents["d"][1]()) as process,
        site.client("root", Role.OPERATOR) as client,
    ):
        client_agent.start(client_config())
        first = await submit(client, job(fifo))
        await until_state(client, first, JobState.RUNNING)
        process.send_signal(signal.SIGSTOP)
        await until_state(client, first, JobState.FAILED)
        (lease,) = await client.list_leases()
        assert lease.state is LeaseState.RELEASING, "nobody has confirmed that the device is free"
        # The kernel still accepts in the stopped process's name; nobody answers.
        second = await submit(client, job(fifo))
        process.send_signal(signal.SIGCONT)
        await until_state(client, second, JobState.RUNNING)
        (lease,) = await client.list_leases()
        assert (lease.lease.job, [leased.epoch for leased in lease.lease.devices]) == (second, [2])
        with fifo.open("w"):
            pass
        await until_state(client, second, JobState.SUCCEEDED)


async def submit(client: ClusterClient, wanted: Job) -> str:
    """Submit once the nodes are there."""
    while True:
        try:
            job_id, _ = await client.submit(wanted)
        except Unsatisfiable:
            # The node with the GPU has not joined.
            await asyncio.sleep(0)
        else:
            return job_id
