"""Goals of jobs and profiles of applications through the service: who sees what, and what a restart leaves."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec
import pytest

from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.errors import InvalidInput, NotFound, NotPermitted
from farbus.model.decision import Decision, PendingJob, Snapshot
from farbus.model.device import Route
from farbus.model.job import Goal, Job, JobStatus
from farbus.model.profile import ApplicationProfile, FlavourTime, ObservedRun
from farbus.model.states import JobState
from farbus.scheduler import events, ledger
from farbus.scheduler.decision_maker import DecisionMaker, DecisionThread
from farbus.scheduler.ledger import Ledger
from farbus.scheduler.words import describe_wishes
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import first_fit, job, node
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def asked(**wanted: object) -> Job:
    goal = wanted.pop("goal", Goal())
    application = wanted.pop("application", "")
    return msgspec.structs.replace(job("", **wanted), goal=goal, application=application)  # type: ignore[arg-type]


def profile(application: str = "job", *, user: str = "", seconds: float = 20.0) -> ApplicationProfile:
    time_ = FlavourTime(flavour=Route.LOCAL, count=3, median_s=seconds, spread_s=1.0)
    return ApplicationProfile(application=application, user=user, times=(time_,), sensitivity=0.5, sensitivity_count=2)


async def run_one(client: ClusterClient, agent: LightAgent, wanted: Job) -> str:
    job_id, _ = await client.submit(wanted)
    await agent.until(events.StartTask, job_id)
    await agent.finish(job_id)
    async for status in client.watch_job(job_id):
        if status.state is JobState.SUCCEEDED:
            break
    return job_id


async def test_what_was_learned_is_seen_by_its_user_and_operators_also_after_a_restart(site: Site) -> None:
    async with site.scheduler(), site.client("ada") as ada, site.agent(LightAgent(node("a"))) as a:
        await run_one(ada, a, asked(user="", application="solver"))
        (known,) = await ada.list_profiles()
        assert (known.user, known.application, known.set_by) == ("ada", "solver", "")
        assert [(each.flavour, each.count) for each in known.times] == [(None, 1)]
    async with (
        site.scheduler(),
        site.client("ada") as ada,
        site.client("bob") as bob,
        site.client("root", Role.OPERATOR) as operator,
    ):
        assert await ada.list_profiles() == await operator.list_profiles() == (known,)
        assert await bob.list_profiles() == ()
        (shown,) = await ada.list_profiles(application="solver")
        assert [run.seconds for run in shown.runs] == [known.times[0].median_s]
        assert await ada.list_profiles(application="other") == ()


async def test_an_operator_sets_and_forgets_and_a_user_does_not(site: Site) -> None:
    async with site.scheduler(), site.client("ada") as ada, site.client("root", Role.OPERATOR) as operator:
        with pytest.raises(NotPermitted):
            await ada.set_profile(profile())
        with pytest.raises(NotPermitted):
            await ada.forget_profile("job")
        kept = await operator.set_profile(profile())
        assert (kept.set_by, kept.times) == ("root", profile().times)
        await operator.set_profile(profile(user="bob"))
        assert await ada.list_profiles() == (kept,), "everybody's, and nobody else's"
    async with site.scheduler(), site.client("root", Role.OPERATOR) as operator:
        assert [each.user for each in await operator.list_profiles()] == ["", "bob"]
        assert [each.user for each in await operator.forget_profile("job", user="bob")] == ["bob"]
        with pytest.raises(NotFound, match="nothing is known of application job of user bob"):
            await operator.forget_profile("job", user="bob")
        assert await operator.forget_profile("job") == (kept,)
    async with site.scheduler(), site.client("root", Role.OPERATOR) as operator:
        assert await operator.list_profiles() == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"application": ""}, "application"),
        ({"application": "a\nb"}, "application"),
        ({"user": "u" * 200}, "user"),
        ({"times": ()}, "times"),
        ({"sensitivity": -1.0}, "sensitivity"),
        ({"sensitivity": math.nan}, "sensitivity"),
        ({"sensitivity_count": -1}, "sensitivity_count"),
        ({"times": (FlavourTime(count=0, median_s=1.0, spread_s=0.0),)}, r"times\[0\].count"),
        ({"times": (FlavourTime(count=1, median_s=math.inf, spread_s=0.0),)}, r"times\[0\].median_s"),
        ({"times": (FlavourTime(count=1, median_s=1.0, spread_s=-1.0),)}, r"times\[0\].spread_s"),
        ({"times": (FlavourTime(count=1, median_s=1.0, spread_s=0.0, sharing=0),)}, r"times\[0\].sharing"),
        ({"times": (FlavourTime(count=1, median_s=1.0, spread_s=0.0),) * 2}, "times .* twice"),
        ({"times": (FlavourTime(count=1, median_s=1.0, spread_s=0.0),) * 70}, "more than 64"),
    ],
)
async def test_a_profile_that_can_not_be_is_refused_with_the_field(
    site: Site, change: dict[str, object], told: str
) -> None:
    async with site.scheduler(), site.client("root", Role.OPERATOR) as operator:
        with pytest.raises(InvalidInput, match=told) as refused:
            await operator.set_profile(msgspec.structs.replace(profile(), **change))
        assert len(str(refused.value)) < 500


async def test_a_job_is_explained_with_its_goal_and_deadline(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("a"))) as a:
        await run_one(client, a, asked(cpu_milli=4000))
        goal = Goal(slo_s=1800.0, importance=2.0, deadline_s=7200.0)
        job_id, _ = await client.submit(asked(cpu_milli=4000, goal=goal))
        await a.until(events.StartTask, job_id)
        lines = (await client.explain(job_id)).lines
        assert "its goal: within 30 min from its start, importance 2; its like took 0 s" in lines
        (line,) = (each for each in lines if each.startswith("its deadline: "))
        assert line.endswith("from now")
        assert (await client.get_job(job_id)).job.goal == goal
    async with site.scheduler(), site.client() as client:
        assert (await client.get_job(job_id)).job.goal == goal


async def test_a_deadline_that_is_over_is_refused_by_the_schedulers_clock(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("a"))):
        with pytest.raises(InvalidInput, match=r"goal\.deadline_at: is over when the job is submitted"):
            await client.submit(asked(goal=Goal(deadline_at=time.time() - 60.0)))
        with pytest.raises(InvalidInput, match=r"goal\.deadline_at: is more than ten years away"):
            await client.submit(asked(goal=Goal(deadline_at=1e12)))
        await client.submit(asked(goal=Goal(deadline_at=time.time() + 3600.0)))


async def test_a_check_goes_by_what_is_known_and_by_the_deadline() -> None:
    asked_of: list[PendingJob] = []

    def decide(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        asked_of.extend(pending)
        return first_fit(snapshot, pending)

    maker = DecisionMaker(DecisionThread(decide))
    wanted = asked(goal=Goal(deadline_s=60.0), submitted_at=1_000.0)
    await maker.would_be(Snapshot(nodes=(), devices=()), wanted, profile=profile())
    maker.close()
    assert asked_of == [PendingJob(job=wanted, left_s=60.0, profile=profile())]


# In words.


def told(status: JobStatus, now: float, expected_s: float | None = None) -> tuple[str, ...]:
    return describe_wishes(status, now=now, expected_s=expected_s)


def test_wishes_are_told_in_words() -> None:
    waiting = JobStatus(job=asked(goal=Goal(deadline_s=60.0), submitted_at=1_000.0), state=JobState.QUEUED)
    assert told(waiting, 1_010.0) == ("its deadline: 1970-01-01T00:17:40Z, 50 s from now",)
    assert told(waiting, 1_010.0, 30.0) == ("its deadline: 1970-01-01T00:17:40Z, 50 s from now; its like took 30 s",)
    assert told(waiting, 1_090.0) == ("its deadline: 1970-01-01T00:17:40Z, missed by 30 s",)
    ended = msgspec.structs.replace(waiting, state=JobState.SUCCEEDED, ended_at=1_050.0)
    assert told(ended, 9_999.0) == ("its deadline: 1970-01-01T00:17:40Z, kept",)
    assert told(JobStatus(job=asked(), state=JobState.QUEUED), 1_010.0, 30.0) == ()


# In the ledger.


def run(number: int, *, application: str = "nw", user: str = "ada") -> events.PersistRun:
    return events.PersistRun(run=ObservedRun(application=application, user=user, seconds=float(number)))


def test_of_one_application_the_latest_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "RUNS_OF_ONE", 3)
    opened = Ledger(tmp_path)
    opened.write([run(1, application="rare"), *(run(number) for number in range(1, 8))]).result()
    opened.close()
    again = Ledger(tmp_path)
    assert [(each.application, each.seconds) for each in again.load().runs] == [
        ("rare", 1.0),
        ("nw", 5.0),
        ("nw", 6.0),
        ("nw", 7.0),
    ]
    again.close()


def test_of_all_runs_the_latest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEEP_RUNS", 2)
    opened = Ledger(tmp_path)
    opened.write([run(number, application=f"a{number}") for number in range(1, 6)]).result()
    opened.close()
    again = Ledger(tmp_path)
    assert [each.application for each in again.load().runs] == ["a4", "a5"]
    again.close()


def test_of_one_user_or_of_all_an_application_is_forgotten(tmp_path: Path) -> None:
    opened = Ledger(tmp_path)
    opened.write([run(1), run(2, user="bob"), run(3, application="other")])
    opened.write(
        [events.PersistProfile(profile=profile("nw")), events.PersistProfile(profile=profile("nw", user="ada"))]
    )
    opened.write([events.ForgetProfile(application="nw", user="ada")]).result()
    contents = opened.load()
    assert [each.user for each in contents.runs] == ["bob", "ada"]
    assert contents.profiles == [profile("nw")]
    opened.write([events.ForgetProfile(application="nw", user=None)]).result()
    contents = opened.load()
    assert [each.application for each in contents.runs] == ["other"]
    assert contents.profiles == []
    opened.close()
