"""Alternatives and tasks that come later, through the scheduler's door: submission, placement, commands, answers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from farbus.api.client import ClusterClient
from farbus.errors import Unsatisfiable
from farbus.model.device import Route
from farbus.model.job import Alternative, GroupVariant, Job, JobStatus, Requests
from farbus.model.states import JobState
from farbus.scheduler import events
from farbus.scheduler.decision_maker import decision_maker
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import job, node
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(60)

GIB = 2**30


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def either(*, gpus: int, count: int = 1, min_count: int = 0) -> Job:
    """A job that wants GPUs, or else two processors and a node's own GPU less."""
    requests = Requests(cpu_milli=2000, memory_bytes=GIB)
    variant = GroupVariant(name="main", requests=requests, routes=(Route.LOCAL,))
    wanted = msgspec.structs.replace(job("", gpus=gpus, count=count, min_count=min_count), user="")
    return msgspec.structs.replace(wanted, alternatives=(Alternative(name="processors", groups=(variant,)),))


async def until(client: ClusterClient, job_id: str, state: JobState) -> JobStatus:
    async for status in client.watch_job(job_id):
        if status.state is state:
            return status
    raise AssertionError(f"job {job_id} ended as {(await client.get_job(job_id)).state}")


async def test_a_job_runs_as_its_alternative_which_is_told(site: Site) -> None:
    async with (
        site.scheduler(decide=decision_maker("")),
        site.client() as client,
        site.agent(LightAgent(node("a", 1))) as a,
    ):
        job_id, _ = await client.submit(either(gpus=2))
        status = await until(client, job_id, JobState.RUNNING)
        assert status.alternative == "processors"
        assert any(
            "it was placed as its alternative processors" in line for line in (await client.explain(job_id)).lines
        )
        (start,) = [command for command in a.commands if isinstance(command, events.StartTask)]
        assert start.requests.cpu_milli == 2000
        await a.finish(job_id)
        assert (await until(client, job_id, JobState.SUCCEEDED)).alternative == "processors"
        (ended,) = await client.list_jobs(include_ended=True)
        assert ended.alternative == "processors"


async def test_a_check_says_what_each_way_would_need(site: Site) -> None:
    async with site.scheduler(decide=decision_maker("")), site.client() as client, site.agent(LightAgent(node("a", 1))):
        _, status = await client.submit(either(gpus=2), check_only=True)
        assert status is not None
        assert status.alternative == "processors"
        as_it_stands, other = status.flavours
        assert (as_it_stands.alternative, as_it_stands.gpus, as_it_stands.placements) == ("", 2, ())
        assert any(miss.permanent for miss in as_it_stands.misses)
        assert (other.alternative, other.gpus, other.cpu_milli) == ("processors", 0, 2000)
        assert [task.node for task in other.placements] == ["a"]


async def test_a_job_none_of_whose_ways_is_possible_is_refused(site: Site) -> None:
    async with site.scheduler(decide=decision_maker("")), site.client() as client, site.agent(LightAgent(node("a", 1))):
        large = either(gpus=9)
        (alternative,) = large.alternatives
        variant = msgspec.structs.replace(alternative.groups[0], requests=Requests(cpu_milli=64_000))
        alternative = msgspec.structs.replace(alternative, groups=(variant,))
        with pytest.raises(Unsatisfiable):
            await client.submit(msgspec.structs.replace(large, alternatives=(alternative,)))


async def test_tasks_that_a_job_runs_without_begin_when_a_node_joins(site: Site) -> None:
    async with (
        site.scheduler(decide=decision_maker("")),
        site.client() as client,
        site.agent(LightAgent(node("a", 1))) as a,
    ):
        job_id, _ = await client.submit(msgspec.structs.replace(job("", gpus=1, count=3, min_count=1), user=""))
        status = await until(client, job_id, JobState.RUNNING)
        assert status.tasks_waiting == 2
        assert [task.task for task in status.tasks] == ["main.0"]
        async with site.agent(LightAgent(node("b", 1))):
            async for status in client.watch_job(job_id):
                if sum(task.state == "running" for task in status.tasks) == 2:
                    break
            assert status.tasks_waiting == 1
            assert any("tasks of it that wait for room: 1" in line for line in (await client.explain(job_id)).lines)
            runs_on = {task.task: task.node for task in status.tasks}
            for task, name in runs_on.items():
                if name == "a":
                    await a.finish(job_id, task)
            assert len(await client.list_leases()) >= 1
            await client.cancel_job(job_id)
            await until(client, job_id, JobState.CANCELLED if "b" in runs_on.values() else JobState.SUCCEEDED)


async def test_a_job_with_alternatives_may_run_without_some_of_its_tasks(site: Site) -> None:
    async with (
        site.scheduler(decide=decision_maker("")),
        site.client() as client,
        site.agent(LightAgent(node("a", 1, cpu_milli=4000))) as a,
    ):
        job_id, _ = await client.submit(either(gpus=2, count=3, min_count=1))
        status = await until(client, job_id, JobState.RUNNING)
        assert status.alternative == "processors"
        assert (len(status.tasks), status.tasks_waiting) == (2, 1)
        await a.finish(job_id, "main.0")
        await a.finish(job_id, "main.1")
        await until(client, job_id, JobState.SUCCEEDED)
