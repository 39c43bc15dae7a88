"""What is learned of applications from the runs that ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import InvalidInput
from farbus.model.cluster import LinkLoad
from farbus.model.decision import Snapshot
from farbus.model.device import Route
from farbus.model.job import DevicePlacement, Job, JobStatus, TaskPlacement
from farbus.model.profile import ObservedRun
from farbus.model.states import JobState
from farbus.scheduler.costs import drmaestro, inference
from farbus.scheduler.costs.inference import WINDOW, InferenceEngine, observed_run
from farbus.scheduler.round import decide
from farbus.scheduler.rounds import decision_maker
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
    assert InferenceEngine().profile("nw") is None


def test_a_flavour_is_told_by_median_spread_and_count() -> None:
    profile = learned(run(10), run(12), run(11), run(90)).profile("nw")
    assert profile is not None
    local = profile.time(Route.LOCAL)
    assert local is not None
    # One run of 90 s moves neither far.
    assert (local.count, local.median_s, local.spread_s) == (4, 11.5, 1.0)


def test_flavours_and_sharings_are_told_apart() -> None:
    profile = learned(run(10), run(20, flavour=Route.REMOTE), run(30, sharing=2), run(5, flavour=None)).profile("nw")
    assert profile is not None
    assert [(each.flavour, each.sharing, each.median_s) for each in profile.times] == [
        (None, 1, 5),
        (Route.LOCAL, 1, 10),
        (Route.LOCAL, 2, 30),
        (Route.REMOTE, 1, 20),
    ]
    assert profile.time(Route.RECOMPOSED) is None


def test_old_runs_are_forgotten() -> None:
    profile = learned(*(run(100) for _ in range(WINDOW)), *(run(10) for _ in range(WINDOW))).profile("nw")
    assert profile is not None
    assert profile.times[0].median_s == 10


def test_sensitivity_is_what_the_load_adds() -> None:
    # Twice as long with a full link: sf = 1.
    far = [run(10 * (1 + load), load=load, flavour=Route.REMOTE) for load in (0.0, 0.5, 1.0)]
    profile = learned(*far).profile("nw")
    assert profile is not None
    assert (profile.sensitivity, profile.sensitivity_count) == (pytest.approx(1.0), 2)
    assert profile.times[0].median_s == 10


@given(sensitivity=st.floats(0, 5), base=st.floats(1, 1e4))
def test_sensitivity_is_found_without_a_calm_run(sensitivity: float, base: float) -> None:
    far = [run(base * (1 + sensitivity * load), load=load, flavour=Route.REMOTE) for load in (0.3, 0.6, 0.9)]
    profile = learned(*far).profile("nw")
    assert profile is not None
    assert profile.sensitivity == pytest.approx(sensitivity, abs=1e-6, rel=1e-6)


def test_local_runs_say_nothing_of_the_network() -> None:
    profile = learned(run(10), run(30, load=0.9)).profile("nw")
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


def test_a_job_that_succeeded_is_observed_with_route_and_load_of_the_busier_end() -> None:
    links = {
        "a": (LinkLoad(name="eth0", speed_bytes_per_s=100, send_bytes_per_s=20, measured_at=9.0),),
        "b": (LinkLoad(name="eth0", speed_bytes_per_s=100, receive_bytes_per_s=70, measured_at=9.0),),
    }
    seen = observed_run(ended(), links, 10.0)
    assert seen == ObservedRun(application="nw", flavour=Route.REMOTE, network_load=0.7, seconds=30.0)
    seen = observed_run(ended(route=Route.LOCAL), links, 10.0)
    assert seen == ObservedRun(application="nw", flavour=Route.LOCAL, seconds=30.0)


def test_jobs_that_failed_or_were_in_a_persons_hands_tell_nothing() -> None:
    assert observed_run(ended(JobState.FAILED), {}, 0.0) is None
    assert observed_run(ended(interactive=True), {}, 0.0) is None


# What the policy makes of it.


def test_the_learned_time_is_the_local_one_and_the_goal_has_slack() -> None:
    profile = learned(run(100), run(300, flavour=Route.REMOTE)).profile("nw")
    assert profile is not None
    usable = drmaestro.learned(profile)
    assert usable is not None
    assert (usable.goal_s, usable.expected_s) == (pytest.approx(110), 100)


def test_a_learned_sensitivity_keeps_a_job_from_a_loaded_link() -> None:
    # b's link is full: a GPU of b would double the time that the job is known to take.
    known = learned(run(100), run(100, flavour=Route.REMOTE), run(200, load=1.0, flavour=Route.REMOTE)).profile("nw")
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
    cluster.machine.inference.observe(run(10, application=scripted.job().name))
    cluster.submit(scripted.job())
    _, (entry,), _ = cluster.machine.round_input(cluster.now)
    assert entry.profile == cluster.machine.inference.profile(entry.job.name)
    assert entry.profile is not None


def test_the_configuration_can_name_every_policy() -> None:
    for name in ("drmaestro", "kubecomp", "firmament", ""):
        decision = decision_maker(name)(Snapshot(nodes=(node("a"),), devices=()), (job("j"),))
        assert decision.placements
