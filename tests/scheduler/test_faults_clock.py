"""A wall clock that jumps: leases and time limits go by monotonic time, the queue by who came first."""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from farbus.api.client import ClusterClient
from farbus.model.job import Goal
from farbus.model.states import JobState, LeaseState, NodeState
from farbus.scheduler import events
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import Cluster, job, node
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(60)

YEAR_S = 365 * 86_400.0

BOTH_WAYS = pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what moves the scheduler's wall clock.

    The whole process's can't be: gRPC's Python part would give its C part deadlines of another clock.
    """

    def jump(seconds: float) -> None:
        moved = types.SimpleNamespace(time=lambda: time.time() + seconds, perf_counter=time.perf_counter)
        for module in ("engine", "service"):
            monkeypatch.setattr(f"farbus.scheduler.{module}.time", moved)

    return jump


async def until_running(client: ClusterClient, job_id: str) -> None:
    async for status in client.watch_job(job_id):
        if status.state is JobState.RUNNING:
            return
    raise AssertionError(f"job {job_id} ended")


@BOTH_WAYS
async def test_what_runs_goes_on(site: Site, set_clock: Callable[[float], None], jump_s: float) -> None:
    agent = LightAgent(node("a", 1))
    async with site.scheduler(), site.client() as client, site.agent(agent):
        job_id, _ = await client.submit(job("", gpus=1, time_limit_s=3600.0))
        await until_running(client, job_id)
        set_clock(jump_s)
        await agent.beat()
        await agent.until(events.HeartbeatReply, "")
        (lease,) = await client.list_leases()
        assert lease.state is LeaseState.PREPARED
        assert 0 < lease.expires_in_s <= 15
        (status,) = await client.list_nodes()
        assert status.state is NodeState.READY
        assert (await client.get_job(job_id)).state is JobState.RUNNING
        await agent.finish(job_id)
        assert [status.state async for status in client.watch_job(job_id)][-1] is JobState.SUCCEEDED


@BOTH_WAYS
async def test_a_scheduler_restarted_after_a_jump_adopts_what_runs(
    site: Site, set_clock: Callable[[float], None], jump_s: float
) -> None:
    agent = LightAgent(node("a", 1))
    async with site.scheduler(), site.client() as client, site.agent(agent):
        job_id, _ = await client.submit(job("", gpus=1, time_limit_s=3600.0))
        await until_running(client, job_id)
    set_clock(jump_s)
    async with site.scheduler(), site.client() as client, site.agent(agent):
        assert (await client.get_job(job_id)).state is JobState.RUNNING
        await agent.finish(job_id)
        assert [status.state async for status in client.watch_job(job_id)][-1] is JobState.SUCCEEDED


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_clock_that_was_set_back_puts_nobody_ahead(
    site: Site, set_clock: Callable[[float], None], restarted: bool
) -> None:
    async with site.scheduler(), site.client() as client:
        first, _ = await client.submit(job("", gpus=1))
        set_clock(-YEAR_S)
        second, _ = await client.submit(job("", gpus=1)) if not restarted else ("", None)
    async with site.scheduler(), site.client() as client:
        second = second or (await client.submit(job("", gpus=1)))[0]
        agent = LightAgent(node("a", 1))
        async with site.agent(agent):
            await agent.until(events.StartTask, first)
            assert (await client.get_job(second)).state is JobState.QUEUED


@BOTH_WAYS
def test_a_time_limit_is_counted_by_monotonic_time(jump_s: float) -> None:
    cluster = Cluster(node("a"))
    cluster.join()
    cluster.submit(job(time_limit_s=100.0))
    cluster.settle()
    for effects_at in (cluster.now + 50, cluster.now + 99):
        cluster.now = effects_at
        cluster.machine.handle(events.HeartbeatArrived(node="a", session=1), now=cluster.now, wall=jump_s)
        cluster.machine.handle(events.ClockTicked(), now=cluster.now, wall=jump_s)
    assert cluster.state_of("j1") == "running"
    cluster.now += 2
    cluster.tell(events.ClockTicked())
    assert cluster.state_of("j1") == "finishing"


def limited(limit_s: float) -> Cluster:
    """A job that has run for twenty seconds when the scheduler ends."""
    cluster = Cluster(node("a"))
    cluster.join()
    cluster.submit(job(time_limit_s=limit_s))
    cluster.settle()
    cluster.pass_time(20.0)
    assert cluster.state_of("j1") == "running"
    return cluster


@BOTH_WAYS
def test_a_clock_that_is_set_while_the_scheduler_is_away_moves_no_time_limit(jump_s: float) -> None:
    cluster = limited(100.0)
    cluster.wall_ahead += jump_s
    cluster.restart()
    cluster.join()
    cluster.pass_time(79.0)
    assert cluster.state_of("j1") == "running"
    cluster.pass_time(1.0)
    assert cluster.state_of("j1") == "finishing"


@BOTH_WAYS
def test_a_boot_of_the_schedulers_machine_ends_no_job_early(jump_s: float) -> None:
    cluster = limited(100.0)
    cluster.wall_ahead += jump_s
    cluster.reboot()
    cluster.join()
    cluster.pass_time(99.0)
    assert cluster.state_of("j1") == "running"
    cluster.pass_time(1.0)
    assert cluster.state_of("j1") == "finishing"


def test_a_job_of_a_ledger_that_knows_no_boot_is_not_ended_early() -> None:
    cluster = limited(100.0)
    cluster.boot_id = ""
    cluster.restart()
    cluster.join()
    cluster.pass_time(99.0)
    assert cluster.state_of("j1") == "running"


def test_a_boot_gives_an_interactive_job_no_new_time_limit() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(job(time_limit_s=300, interactive=True, on="a", gpus=1))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    cluster.pass_time(200)
    for _ in range(2):
        # The second time what is left is counted from the first boot's, not anew.
        cluster.reboot()
        cluster.join()
        cluster.settle()
        cluster.pass_time(30)
        assert cluster.state_of("j1") == "running"
    cluster.pass_time(121)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert cluster.reason_of("j1") == "it ran longer than its time limit of 300 s"


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("jump_s", [-YEAR_S, -3_600.0, 3_600.0, YEAR_S])
def test_a_wall_clock_that_is_set_while_a_job_runs_teaches_no_other_time(jump_s: float, restarted: bool) -> None:
    cluster = Cluster(node("a"))
    cluster.join()
    cluster.submit(job())
    cluster.settle()
    cluster.pass_time(20.0)
    if restarted:
        cluster.restart()
        cluster.join()
    cluster.wall_ahead += jump_s
    cluster.pass_time(10.0)
    cluster.tell(cluster.agents["a"].exit("j1", "main.0"))
    cluster.settle()
    (run,) = cluster.memory.decoded_runs()
    assert run.seconds == pytest.approx(30.0)


async def test_a_clock_that_was_ahead_for_a_while_spoils_no_later_deadline(
    site: Site, set_clock: Callable[[float], None]
) -> None:
    async with site.scheduler(), site.client() as client:
        set_clock(YEAR_S)
        ids = [(await client.submit(job("")))[0]]
        set_clock(0.0)
        due_at = time.time() + 3_600.0
        for goal in (Goal(deadline_at=due_at), Goal(deadline_s=3_600.0)):
            ids.append((await client.submit(msgspec.structs.replace(job(""), goal=goal)))[0])
        first, *others = [(await client.get_job(job_id)).job for job_id in ids]
        assert [each.due_at for each in others] == [pytest.approx(due_at, abs=60.0)] * 2
        assert first.submitted_at < others[0].submitted_at < others[1].submitted_at
