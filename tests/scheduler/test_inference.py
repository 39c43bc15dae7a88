"""What is learned of applications from the runs that ended."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import InvalidInput
from farbus.model.cluster import LinkLoad
from farbus.model.decision import Snapshot
from farbus.model.device import Route
from farbus.model.job import DevicePlacement, Goal, Job, JobStatus, TaskPlacement
from farbus.model.profile import ApplicationProfile, FlavourTime, ObservedRun
from farbus.model.quantity import MAX_SECONDS
from farbus.model.states import JobState
from farbus.scheduler import events, inference
from farbus.scheduler.costs import drmaestro
from farbus.scheduler.decision_maker import decision_maker
from farbus.scheduler.engine import Engine
from farbus.scheduler.explaining import BY_RUNS, Explaining
from farbus.scheduler.inference import WINDOW, InferenceEngine, observed_run
from farbus.scheduler.loads import RunLoads
from farbus.scheduler.round import decide
from tests.scheduler import scripted
from tests.scheduler.worlds import gpu, job, node


def run(seconds: float, *, load: float = 0.0, flavour: Route | None = Route.LOCAL, **more: Any) -> ObservedRun:
    return ObservedRun(
        application=more.pop("application", "nw"), flavour=flavour, network_load=load, seconds=seconds, **more
    )


def learned(*runs: ObservedRun) -> InferenceEngine:
    engine = InferenceEngine()
    for each in runs:
        engine.observe(each)
    return engine


def test_nothing_is_known_of_an_application_that_never_ran() -> None:
    assert InferenceEngine().learned("", "nw") is None


def test_a_flavour_is_told_by_median_spread_and_count() -> None:
    profile = learned(run(10), run(12), run(11), run(90)).learned("", "nw")
    assert profile is not None
    local = profile.time(Route.LOCAL)
    assert local is not None
    # One run of 90 s moves neither far.
    assert (local.count, local.median_s, local.spread_s) == (4, 11.5, 1.0)


def test_flavours_and_sharings_are_told_apart() -> None:
    profile = learned(run(10), run(20, flavour=Route.REMOTE), run(30, sharing=2), run(5, flavour=None)).learned(
        "", "nw"
    )
    assert profile is not None
    assert [(each.flavour, each.sharing, each.median_s) for each in profile.times] == [
        (None, 1, 5),
        (Route.LOCAL, 1, 10),
        (Route.LOCAL, 2, 30),
        (Route.REMOTE, 1, 20),
    ]
    assert profile.time(Route.RECOMPOSED) is None


def test_old_runs_are_forgotten() -> None:
    profile = learned(*(run(100) for _ in range(WINDOW)), *(run(10) for _ in range(WINDOW))).learned("", "nw")
    assert profile is not None
    assert profile.times[0].median_s == 10


def test_sensitivity_is_what_the_load_adds() -> None:
    # Twice as long with a full link: sf = 1.
    far = [run(10 * (1 + load), load=load, flavour=Route.REMOTE) for load in (0.0, 0.5, 1.0)]
    profile = learned(*far).learned("", "nw")
    assert profile is not None
    assert (profile.sensitivity, profile.sensitivity_count) == (pytest.approx(1.0), 2)
    assert profile.times[0].median_s == 10


@given(sensitivity=st.floats(0, 5), base=st.floats(1, 1e4))
def test_sensitivity_is_found_without_a_calm_run(sensitivity: float, base: float) -> None:
    far = [run(base * (1 + sensitivity * load), load=load, flavour=Route.REMOTE) for load in (0.3, 0.6, 0.9)]
    profile = learned(*far).learned("", "nw")
    assert profile is not None
    assert profile.sensitivity == pytest.approx(sensitivity, abs=1e-6, rel=1e-6)


def test_local_runs_say_nothing_of_the_network() -> None:
    profile = learned(run(10), run(30, load=0.9)).learned("", "nw")
    assert profile is not None
    assert (profile.sensitivity, profile.sensitivity_count) == (0, 0)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_APPLICATIONS", 2)
    engine = learned(run(1, application="a"), run(1, application="b"), run(1, application="a"), run(1, application="c"))
    assert [profile.application for profile in engine.profiles()] == ["a", "c"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", 0.0), ("seconds", float("nan")), ("network_load", 1.5), ("sharing", 0), ("application", "")],
)
def test_a_run_that_can_not_be_is_refused(field: str, value: object) -> None:
    good: dict[str, Any] = {"application": "nw", "seconds": 1.0}
    with pytest.raises(InvalidInput, match=f"observed run: {field}"):
        InferenceEngine().observe(ObservedRun(**{**good, field: value}))


def ended(state: JobState = JobState.SUCCEEDED, *, interactive: bool = False, route: Route = Route.REMOTE) -> JobStatus:
    lender = "b" if route is Route.REMOTE else "a"
    device = DevicePlacement(device="g", node=lender, route=route)
    job = Job(id="j1", name="nw", user="u", groups=(), interactive=interactive)
    placed = (TaskPlacement(task="main.0", node="a", devices=(device,)),)
    return JobStatus(job=job, state=state, placements=placed, started_at=1000.0, ended_at=1030.0)


def test_a_job_that_succeeded_is_observed_with_its_user_route_and_load() -> None:
    status = ended()
    shape = inference.shape_of(status.job)
    seen = observed_run(status, 0.7, seconds=30.0)
    assert seen == ObservedRun(
        application="nw", user="u", shape=shape, flavour=Route.REMOTE, network_load=0.7, seconds=30.0
    )
    seen = observed_run(ended(route=Route.LOCAL), 0.0, seconds=30.0)
    assert seen == ObservedRun(application="nw", user="u", shape=shape, flavour=Route.LOCAL, seconds=30.0)


def test_a_job_is_remembered_under_the_application_that_it_states() -> None:
    status = ended()
    status = msgspec.structs.replace(status, job=msgspec.structs.replace(status.job, application="solver"))
    seen = observed_run(status, 0.0, seconds=30.0)
    assert seen is not None
    assert seen.application == "solver"


def test_jobs_that_failed_or_were_in_a_persons_hands_tell_nothing() -> None:
    assert observed_run(ended(JobState.FAILED), 0.0, seconds=30.0) is None
    assert observed_run(ended(interactive=True), 0.0, seconds=30.0) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, MAX_SECONDS * 2])
def test_a_run_of_no_time_or_of_more_than_there_can_be_tells_nothing(seconds: float) -> None:
    assert observed_run(ended(), 0.0, seconds=seconds) is None


# One learner for policies and for people.


def seen(seconds: float, like: Job) -> ObservedRun:
    status = JobStatus(job=like, state=JobState.SUCCEEDED, started_at=100.0, ended_at=100.0 + seconds)
    found = observed_run(status, 0.0, seconds=seconds)
    assert found is not None
    return found


def test_the_median_of_the_latest_runs_is_expected_of_their_like() -> None:
    engine = learned(*(seen(seconds, scripted.job("j1")) for seconds in (10.0, 30.0, 20.0)))
    assert engine.expected_s(scripted.job("j9")) == 20.0
    # Nothing of another user's, or of what asks for something else.
    assert engine.expected_s(scripted.job("j9", user="bob")) is None
    assert engine.expected_s(scripted.job("j9", gpus=1)) is None
    for _ in range(inference.MAX_RUNS_EXPECTED):
        engine.observe(seen(90.0, scripted.job("j1")))
    assert engine.expected_s(scripted.job("j9")) == 90.0


def test_nobodys_runs_change_what_is_expected_of_others_jobs() -> None:
    engine = learned(seen(10.0, scripted.job(user="ada")), seen(900.0, scripted.job(user="bob")))
    for user, expected in (("ada", 10.0), ("bob", 900.0)):
        known = engine.known(scripted.job(user=user))
        assert known is not None
        assert [each.median_s for each in known.times] == [expected]
    assert engine.known(scripted.job(user="eve")) is None


def told(seconds: float, *, user: str = "", application: str = "job") -> ApplicationProfile:
    time = FlavourTime(flavour=Route.LOCAL, count=1, median_s=seconds, spread_s=0.0)
    return ApplicationProfile(application=application, user=user, times=(time,), set_by="ann")


def test_what_was_set_counts_before_what_was_learned_and_a_users_own_before_everybodys() -> None:
    engine = learned(seen(10.0, scripted.job(user="ada")))
    engine.set(told(20.0))
    assert engine.known(scripted.job(user="ada")) == told(20.0)
    assert engine.known(scripted.job(user="eve")) == told(20.0)
    engine.set(told(30.0, user="ada"))
    assert engine.known(scripted.job(user="ada")) == told(30.0, user="ada")
    # Learning goes on beside it, and is what is left where all that was set is forgotten.
    engine.observe(seen(14.0, scripted.job(user="ada")))
    assert engine.forget("job", "ada") == (told(30.0, user="ada"), engine_profile(12.0))
    assert engine.known(scripted.job(user="ada")) == told(20.0)
    engine.forget("job")
    assert engine.profiles() == ()


def engine_profile(seconds: float) -> ApplicationProfile:
    return ApplicationProfile(
        application="job", user="ada", times=(FlavourTime(count=2, median_s=seconds, spread_s=2.0),)
    )


def test_no_more_than_so_many_profiles_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_SET", 1)
    engine = InferenceEngine()
    engine.set(told(1.0))
    engine.check_room(told(2.0))
    with pytest.raises(InvalidInput, match="1 are set already"):
        engine.check_room(told(1.0, user="ada"))


def test_a_profile_is_shown_with_the_runs_that_it_was_learned_from() -> None:
    runs = [seen(seconds, scripted.job(user="ada")) for seconds in (10.0, 14.0)]
    engine = learned(*runs)
    (profile,) = engine.of("job")
    assert profile.runs == ()
    assert engine.with_runs(profile).runs == tuple(runs)
    assert engine.with_runs(told(1.0)) == told(1.0)


# How loaded the links of a run were.


def test_the_load_of_a_run_is_the_mean_from_its_start_to_its_end() -> None:
    loads = RunLoads()
    loads.note("a", 0.9, 0.0)
    loads.note("b", 0.2, 0.0)
    loads.begin("j1", ("a", "b"), 10.0)
    loads.note("a", 0.1, 20.0)
    # a: ten seconds of 0.9 and thirty of 0.1; b: 0.2 for as long as a figure holds, 30 s from its coming.
    assert loads.end("j1", 50.0) == pytest.approx((10 * 0.9 + 30 * 0.1) / 40)
    assert loads.end("j1", 60.0) == 0.0, "it is forgotten"


def test_a_run_without_remote_devices_has_no_load() -> None:
    loads = RunLoads()
    loads.note("a", 0.9, 0.0)
    loads.begin("j1", (), 10.0)
    assert loads.end("j1", 20.0) == 0.0


def test_a_run_that_ends_as_it_begins_has_no_load() -> None:
    loads = RunLoads()
    loads.note("a", 0.9, 0.0)
    loads.begin("j1", ("a",), 10.0)
    assert loads.end("j1", 10.0) == 0.0


# What the policy makes of it.


def test_the_learned_time_is_the_local_one_and_the_goal_has_slack() -> None:
    profile = learned(run(100), run(300, flavour=Route.REMOTE)).learned("", "nw")
    assert profile is not None
    usable = drmaestro.learned(profile)
    assert usable is not None
    assert (usable.goal_s, usable.expected_s) == (pytest.approx(110), 100)


def test_a_learned_sensitivity_keeps_a_job_from_a_loaded_link() -> None:
    # b's link is full: a GPU of b would double the time that the job is known to take.
    known = learned(run(100), run(100, flavour=Route.REMOTE), run(200, load=1.0, flavour=Route.REMOTE)).learned(
        "", "nw"
    )
    full = LinkLoad(name="eth0", speed_bytes_per_s=100, send_bytes_per_s=100, measured_at=0.0)
    busy = Snapshot(nodes=(node("a"), node("b", free_cpus=0)), devices=(gpu("g", "b"),), links={"b": (full,)})
    calm = msgspec.structs.replace(busy, links={})
    waiting = msgspec.structs.replace(job("nw", gpus=1), profile=known)
    policy = drmaestro.DRMaestroPolicy()
    assert not decide(busy, [waiting], policy=policy).placements
    assert decide(calm, [waiting], policy=policy).placements
    # Of an application that nobody knows, nothing is expected.
    assert decide(busy, [job("nw", gpus=1)], policy=policy).placements
    late = msgspec.structs.replace(waiting, rounds_waited=policy.postpone_rounds)
    assert decide(busy, [late], policy=policy).placements


def test_the_scheduler_gives_what_it_learned_to_the_next_round() -> None:
    cluster = scripted.Cluster(scripted.node("a"))
    cluster.join()
    cluster.machine.inference.observe(run(10, application=scripted.job().name, user="ada"))
    cluster.submit(scripted.job())
    _, (entry,), _ = cluster.machine.round_input(cluster.now)
    assert entry.profile == cluster.machine.inference.known(entry.job)
    assert entry.profile is not None


def test_the_job_s_own_goal_comes_before_the_one_assumed() -> None:
    known = learned(run(100), run(100, flavour=Route.REMOTE), run(200, load=1.0, flavour=Route.REMOTE)).learned(
        "", "nw"
    )
    full = LinkLoad(name="eth0", speed_bytes_per_s=100, send_bytes_per_s=100, measured_at=0.0)
    busy = Snapshot(nodes=(node("a"), node("b", free_cpus=0)), devices=(gpu("g", "b"),), links={"b": (full,)})
    policy = drmaestro.DRMaestroPolicy()
    for goal, placed in ((Goal(), False), (Goal(slo_s=150.0), False), (Goal(slo_s=250.0), True)):
        waiting = job("nw", gpus=1)
        waiting = msgspec.structs.replace(waiting, profile=known, job=msgspec.structs.replace(waiting.job, goal=goal))
        assert bool(decide(busy, [waiting], policy=policy).placements) == placed


def test_importance_scales_the_price_of_a_goal_that_is_missed() -> None:
    known = learned(run(100)).learned("", "nw")
    here = Snapshot(nodes=(node("a"),), devices=(gpu("g", "a"),))
    costs = []
    for importance in (0.0, 1.0, 5.5):
        waiting = job("nw", gpus=1)
        goal = Goal(slo_s=50.0, importance=importance)
        waiting = msgspec.structs.replace(waiting, profile=known, job=msgspec.structs.replace(waiting.job, goal=goal))
        costs.append(decide(here, [waiting], policy=drmaestro.DRMaestroPolicy()).placements[0].tasks[0].cost)
    # Ut = (50 - 100) / 50 = -1, times (10 - 5.5) / 9 = 1/2; counted in phase 1, in what it looks ahead to, in phase 2.
    assert costs[0] == costs[1]
    assert costs[1] - costs[2] == 3 * 500


def ran(cluster: scripted.Cluster, job_id: str, *, seconds: float = 30.0) -> None:
    """Submit a job, and let it run for so long and end well."""
    cluster.submit(scripted.job(job_id, submitted_at=cluster.wall))
    cluster.settle()
    cluster.pass_time(seconds)
    cluster.tell(cluster.agents["a"].exit(job_id, "main.0"))
    cluster.settle()


def test_what_was_learned_survives_a_restart() -> None:
    cluster = scripted.Cluster(scripted.node("a"))
    cluster.join()
    ran(cluster, "j1")
    known = cluster.machine.inference.known(scripted.job())
    assert known is not None
    assert [(each.flavour, each.median_s) for each in known.times] == [(None, 30.0)]
    cluster.restart()
    assert cluster.machine.inference.known(scripted.job()) == known
    assert cluster.machine.inference.expected_s(scripted.job()) == 30.0


def test_a_restart_puts_no_expected_end_off() -> None:
    cluster = scripted.Cluster(scripted.node("a"))
    cluster.join()
    cluster.submit(scripted.job("j1"))
    cluster.settle()
    cluster.pass_time(100.0)
    cluster.tell(cluster.agents["a"].exit("j1", "main.0"))
    cluster.submit(scripted.job("j2"))
    cluster.settle()
    cluster.pass_time(60.0)

    def expected_end() -> tuple[float | None, str]:
        explaining = Explaining(cast(Engine, SimpleNamespace(machine=cluster.machine)), lambda: cluster.now)
        return explaining.expected_end(cluster.machine.jobs["j2"])

    assert expected_end() == (pytest.approx(40.0), BY_RUNS)
    cluster.restart()
    cluster.join()
    assert expected_end() == (pytest.approx(40.0), BY_RUNS)


def test_what_was_set_survives_a_restart_and_what_was_forgotten_does_not() -> None:
    cluster = scripted.Cluster(scripted.node("a"))
    cluster.join()
    ran(cluster, "j1")
    cluster.tell(events.ProfileSet(profile=told(20.0)))
    cluster.tell(events.ProfileSet(profile=told(30.0, application="other")))
    cluster.restart()
    assert cluster.machine.inference.known(scripted.job()) == told(20.0)
    cluster.join()
    cluster.tell(events.ProfileForgotten(application="job", user=None))
    cluster.restart()
    assert cluster.machine.inference.profiles() == (told(30.0, application="other"),)


def test_a_run_is_learned_with_the_mean_load_of_the_links_that_it_used() -> None:
    cluster = scripted.Cluster(scripted.node("a"), scripted.node("b", gpus=1))
    cluster.join()
    cluster.submit(scripted.job("j1", gpus=1, on="a"))
    cluster.settle()
    for load in (0.8, 0.2):
        cluster.machine.loads.note("b", load, cluster.now)
        cluster.now += 5.0
    cluster.tell(cluster.agents["a"].exit("j1", "main.0"))
    cluster.settle()
    (run,) = cluster.memory.decoded_runs()
    assert (run.flavour, run.network_load) == (Route.REMOTE, pytest.approx(0.5))


def test_a_round_is_told_how_long_each_job_has_until_its_deadline() -> None:
    cluster = scripted.Cluster(scripted.node("a"))
    cluster.join()
    for name, goal in (("j1", Goal(deadline_s=100.0)), ("j2", Goal(deadline_at=cluster.wall + 50.0)), ("j3", Goal())):
        made = scripted.job(name, submitted_at=cluster.wall, cpu_milli=8000)
        cluster.submit(msgspec.structs.replace(made, goal=goal))
    for waited in (0.0, 60.0):
        cluster.now += waited
        _, pending, _ = cluster.machine.round_input(cluster.now)
        left = {entry.job.id: entry.left_s for entry in pending}
        assert left == {"j1": pytest.approx(100 - waited), "j2": pytest.approx(50 - waited), "j3": math.inf}
    cluster.restart()
    cluster.join()
    _, pending, _ = cluster.machine.round_input(cluster.now)
    assert {entry.job.id: entry.job.goal for entry in pending}["j1"] == Goal(deadline_s=100.0)
    assert {entry.job.id: entry.left_s for entry in pending} == left


def test_the_configuration_can_name_every_policy() -> None:
    for name in ("drmaestro", "kubecomp", "firmament", ""):
        decision = decision_maker(name)(Snapshot(nodes=(node("a"),), devices=()), (job("j"),))
        assert decision.placements
