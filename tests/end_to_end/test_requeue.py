"""A scheduler and a real agent that is restarted before the files of a task have arrived."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from farbus.agent.config import AgentConfig
from farbus.agent.staging import Staging
from farbus.api.client import ClusterClient
from farbus.model.job import Job, TaskGroup
from farbus.model.states import JobState
from tests.agent.harness import MYSELF, AgentInProcess
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(60)


async def until_state(client: ClusterClient, job_id: str, state: JobState) -> str:
    """Return the reason with which a job is in ``state``."""
    async for status in client.watch_job(job_id):
        if status.state is state:
            return status.reason
    raise AssertionError(f"{job_id}: {await client.get_job(job_id)}")


async def test_a_job_begins_after_all_when_its_agent_was_restarted_while_its_files_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    arriving = asyncio.Event()

    async def on_their_way(*_: object) -> Path:
        arriving.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing arrives")

    agent = AgentInProcess()
    async with site.scheduler(), site.client(MYSELF) as client:
        config = AgentConfig(
            name="n1",
            scheduler=site.address,
            address="127.0.0.1",
            peer_port=0,
            state=str(tmp_path / "n1"),
            socket=str(tmp_path / "n1.sock"),
            credentials=site.credentials("n1"),
            physical_devices=False,
            run_as_self=True,
            allow_root=True,
        )
        group = TaskGroup(name="main", command=("sh", "-c", "echo done > result"))
        job = Job(id="", name="job", user=MYSELF, groups=(group,), cwd="", stage_out=("result",))
        with monkeypatch.context() as patch:
            patch.setattr(Staging, "stage_in", on_their_way)
            agent.start(config)
            while not await client.list_nodes():
                pass
            job_id, _ = await client.submit(job)
            await arriving.wait()
            await until_state(client, job_id, JobState.RUNNING)
            await agent.stop()
        agent.start(msgspec.structs.replace(config, end_on_stop=True))
        try:
            reason = await until_state(client, job_id, JobState.QUEUED)
            assert reason.startswith("task main.0 did not begin on node n1: its files were still arriving when")
            await until_state(client, job_id, JobState.SUCCEEDED)
        finally:
            await agent.stop()
