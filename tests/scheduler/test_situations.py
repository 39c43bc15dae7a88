"""Nothing is looked at again whose situation did not change."""

from __future__ import annotations

import msgspec
import pytest

from farbus.model.cluster import LinkLoad
from farbus.model.decision import Decision, JobMiss, NodeView, PendingJob, RoundReport, Snapshot
from farbus.model.device import PoolReach, Route
from farbus.model.job import (
    Alternative,
    GroupVariant,
    Job,
    Miss,
    Requests,
    StorageRequest,
    TaskGroup,
    TaskState,
    TaskStatus,
)
from farbus.model.node import DIMENSIONS, Node, Resources
from farbus.model.rules import Quota, Rules
from farbus.scheduler import events, round, situations
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.deciding import LOAD_LOOK_S, LOAD_PATIENCE, MAX_ROUND_SHAPES, SET_ASIDE_S
from farbus.scheduler.decision_maker import fault_miss
from farbus.scheduler.quotas import QUOTA, devices_of
from farbus.scheduler.situations import LONG_WAIT_ROUNDS, Situations
from farbus.scheduler.views import Gains
from tests.scheduler.scripted import Cluster, ScriptedAgent, first_fit, job, node, storing


class Watched(Cluster):
    """A cluster that notes whom each round looked at."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__(*nodes)
        self.rounds: list[list[str]] = []

    def decide(self) -> None:
        self.round_asked = False
        snapshot, pending, generation = self.machine.round_input(self.now)
        decision = None
        if pending:
            self.rounds.append([entry.job.id for entry in pending])
            decision = self.answer(snapshot, pending)
        self.tell(events.RoundDecided(decision=decision, generation=generation))

    def answer(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        return first_fit(snapshot, pending)

    def finish(self, job_id: str) -> None:
        for run in list(self.machine.jobs[job_id].runs):
            agent = self.agents[run.node]
            status = TaskStatus(task=run.task, state=TaskState.EXITED, node=run.node)
            agent.tasks[job_id, run.task] = status
            self.tell(events.TaskReported(node=run.node, session=agent.session, job_id=job_id, status=status))

    def looks_at(self, job_id: str) -> int:
        return sum(job_id in seen for seen in self.rounds)


class Planned(Watched):
    """One whose rounds are the scheduler's own."""

    def answer(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        return round.decide(snapshot, pending, policy=DefaultPolicy())


def test_a_job_that_misses_a_device_is_not_looked_at_for_what_is_no_device() -> None:
    cluster = Watched(node("a", 1), node("b"))
    cluster.join()
    cluster.submit(job("j1", gpus=1))
    cluster.settle()
    cluster.submit(job("j2", gpus=1))
    cluster.settle()
    assert cluster.looks_at("j2") == 1
    for number in range(3, 20):
        cluster.submit(job(f"j{number}", on="b"))
        cluster.settle()
        cluster.finish(f"j{number}")
        cluster.settle()
    assert cluster.looks_at("j2") == 1
    cluster.finish("j1")
    cluster.settle()
    assert cluster.looks_at("j2") == 2
    assert cluster.state_of("j2") == "running"


def test_a_job_that_misses_processors_is_looked_at_when_a_node_of_its_has_more() -> None:
    cluster = Watched(node("a", cpu_milli=1000), node("b", cpu_milli=1000))
    cluster.join()
    cluster.submit(job("j1", on="a"), job("j2", on="b"), job("j3", on="a"))
    cluster.settle()
    looks = cluster.looks_at("j3")
    cluster.finish("j2")
    cluster.settle()
    assert cluster.looks_at("j3") == looks
    cluster.finish("j1")
    cluster.settle()
    assert cluster.state_of("j3") == "running"


@pytest.mark.parametrize("kind", ["processors", "devices"])
def test_what_a_round_gave_and_got_back_before_the_next_one_is_a_gain(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next snapshot shows as much free as the last one did, of which this job was told that it is taken."""
    gpus = 2 if kind == "devices" else 0
    cluster = Watched(node("a", gpus, cpu_milli=4000 if gpus else 2000))
    # It makes snapshots, which nobody does between two rounds.
    monkeypatch.setattr(cluster.machine, "check_invariants", lambda **_: None)
    cluster.join()
    cluster.submit(*(job(f"j{number}", gpus=gpus // 2) for number in (1, 2, 3)))
    cluster.decide()
    for _ in range(2):
        while cluster.step("a") is not None:
            pass
        for number in (1, 2):
            if f"j{number}" not in cluster.ended:
                cluster.finish(f"j{number}")
    assert cluster.rounds == [["j1", "j2", "j3"]]
    cluster.settle()
    assert cluster.state_of("j3") == "running"


def test_a_full_cluster_costs_no_decision_while_nothing_ends() -> None:
    cluster = Watched(node("a", 1))
    cluster.join()
    cluster.submit(*(job(f"j{number}", gpus=1) for number in range(50)))
    cluster.settle()
    decided = len(cluster.rounds)
    cluster.pass_time(600.0)
    cluster.settle()
    assert len(cluster.rounds) == decided


def test_rounds_waited_count_those_in_which_something_had_changed() -> None:
    cluster = Watched(node("a", 1), node("b"))
    cluster.join()
    cluster.submit(job("j1", gpus=1), job("j2", gpus=1))
    cluster.settle()
    waited = cluster.machine.jobs["j2"].progress.rounds_waited
    cluster.submit(job("j3", on="b"))
    cluster.settle()
    assert cluster.machine.jobs["j2"].progress.rounds_waited == waited == 1


def test_a_node_that_comes_back_wakes_who_needs_it() -> None:
    cluster = Watched(node("a", 1))
    cluster.join()
    cluster.lose("a")
    cluster.submit(job("j1", gpus=1))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    cluster.join("a")
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_whom_room_is_kept_for_is_in_every_round_that_might_take_it() -> None:
    assert LONG_WAIT_ROUNDS == round.HOLD_ROUNDS
    cluster = Watched(node("a", 1), node("b"))
    cluster.join()
    cluster.submit(job("j1", gpus=1), job("j2", gpus=1))
    cluster.machine.jobs["j2"].progress.rounds_waited = LONG_WAIT_ROUNDS
    cluster.settle()
    cluster.submit(job("j3", on="b"))
    cluster.settle()
    assert cluster.rounds[-1] == ["j2", "j3"]
    asked = len(cluster.rounds)
    cluster.pass_time(60.0)
    assert len(cluster.rounds) == asked


def with_volume(plain: Job) -> Job:
    (group,) = plain.groups
    request = StorageRequest(name="in", volume="data", devices=1, routes=(Route.LOCAL, Route.REMOTE))
    return msgspec.structs.replace(plain, groups=(msgspec.structs.replace(group, storage=(request,)),))


@pytest.mark.parametrize("names_volume", [False, True])
def test_whom_room_is_kept_for_keeps_its_users_other_jobs_from_nothing(*, names_volume: bool) -> None:
    """It sleeps, so others would wait behind it for good, and each round would ask for the next one."""
    cluster = Planned(storing("a", 1, gpus=1), node("b"))
    cluster.join()
    cluster.create()
    cluster.submit(job("j1", gpus=1, user="bob"))
    cluster.settle()
    first, second = job("j2", gpus=1), job("j3", on="b")
    if names_volume:
        first, second = with_volume(first), with_volume(second)
    else:
        cluster.tell(events.RulesChanged(rules=Rules(quotas={"ada": Quota(jobs=1)})))
    cluster.submit(first)
    cluster.machine.jobs["j2"].progress.rounds_waited = LONG_WAIT_ROUNDS
    cluster.settle()
    assert cluster.state_of("j2") == "queued"
    cluster.submit(second)
    cluster.settle()
    assert cluster.state_of("j3") == "running"


def test_the_end_of_a_long_wait_wakes_those_who_waited_behind_it() -> None:
    cluster = Watched(node("a", 1))
    cluster.join()
    cluster.submit(job("j1", gpus=1), job("j2", gpus=1), job("j3", gpus=1))
    cluster.settle()
    cluster.machine.jobs["j2"].progress.rounds_waited = LONG_WAIT_ROUNDS
    looks = cluster.looks_at("j3")
    cluster.tell(events.JobCancelled(job_id="j2", reason="no more"))
    cluster.settle()
    assert cluster.looks_at("j3") == looks + 1


def test_more_jobs_than_a_round_takes_have_their_turn_one_round_after_the_other() -> None:
    cluster = Watched(node("a", 1))
    cluster.join()
    cluster.submit(*(job(f"j{number}", gpus=1) for number in range(7)))
    seen = []
    while cluster.round_asked:
        cluster.round_asked = False
        snapshot, pending, generation = cluster.machine.round_input(cluster.now, most=3)
        seen.append(len(pending))
        decision = first_fit(snapshot, pending) if pending else None
        cluster.tell(events.RoundDecided(decision=decision, generation=generation))
    assert [number for number in seen if number] == [3, 3, 1]


def test_jobs_that_all_ask_for_something_else_have_their_turn_one_round_after_the_other() -> None:
    cluster = Watched(node("a", 0))
    cluster.join()
    wide = job("j0", gpus=9)
    for number in range(MAX_ROUND_SHAPES + 2):
        (group,) = wide.groups
        requests = msgspec.structs.replace(group.requests, cpu_milli=1_000_000 + number)
        group = msgspec.structs.replace(group, requests=requests)
        cluster.submit(msgspec.structs.replace(wide, id=f"j{number:03}", groups=(group,)))
    cluster.settle()
    assert [len(seen) for seen in cluster.rounds] == [MAX_ROUND_SHAPES, 2]


def test_a_job_with_which_no_decision_comes_about_is_set_aside_longer_each_time() -> None:
    class Failing(Watched):
        def answer(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
            sound = tuple(entry for entry in pending if entry.job.id != "j1")
            decision = first_fit(snapshot, sound)
            missed = tuple(fault_miss(entry.job.id, "boom") for entry in pending if entry.job.id == "j1")
            return msgspec.structs.replace(decision, misses=decision.misses + missed)

    cluster = Failing(node("a", 1))
    cluster.join()
    cluster.submit(job("j1"), job("j2"))
    cluster.settle()
    assert cluster.state_of("j2") == "running"
    (miss,) = cluster.machine.jobs["j1"].misses
    assert miss.message.startswith("boom; it is set aside until ")
    for pause in (SET_ASIDE_S, 2 * SET_ASIDE_S):
        looks = cluster.looks_at("j1")
        cluster.pass_time(pause - 1.0)
        cluster.submit(job(f"j{cluster.now}"))
        cluster.settle()
        assert cluster.looks_at("j1") == looks
        cluster.pass_time(2.0)
        cluster.settle()
        assert cluster.looks_at("j1") == looks + 1


# --- quotas --------------------------------------------------------------------------------


def limited(**quota: int) -> Watched:
    cluster = Watched(node("a", 4, cpu_milli=64_000))
    cluster.join()
    cluster.tell(events.RulesChanged(rules=Rules(quota=Quota(**quota))))
    return cluster


def test_who_has_all_that_he_may_have_waits_and_is_told_so_while_others_go_on() -> None:
    cluster = limited(devices=2)
    cluster.submit(job("j1", gpus=2), job("j2", gpus=1), job("j3", gpus=1, user="bob"), job("j4"))
    cluster.settle()
    assert [cluster.state_of(f"j{n}") for n in (1, 2, 3, 4)] == ["running", "queued", "running", "running"]
    (miss,) = cluster.machine.jobs["j2"].misses
    assert (miss.phase, miss.message) == (QUOTA, "ada has 2 of 2 devices; this job takes 1")
    assert cluster.machine.jobs["j2"].progress.rounds_waited == 0
    cluster.finish("j1")
    cluster.settle()
    assert cluster.state_of("j2") == "running"


def test_the_number_of_jobs_is_limited_in_the_order_of_the_queue() -> None:
    cluster = limited(jobs=2)
    cluster.submit(job("j1"), job("j2", priority=5), job("j3", priority=9), job("j4", user="bob"))
    cluster.settle()
    assert [cluster.state_of(f"j{n}") for n in (1, 2, 3, 4)] == ["queued", "running", "running", "running"]


def test_who_is_left_out_for_the_sake_of_one_that_finds_no_room_goes_in_his_place() -> None:
    cluster = limited(jobs=1)
    cluster.submit(job("j1", gpus=5, priority=1), job("j2"))
    cluster.settle()
    assert [cluster.state_of("j1"), cluster.state_of("j2")] == ["queued", "running"]


def test_a_quota_that_is_raised_holds_at_once_and_one_that_is_lowered_ends_nothing() -> None:
    cluster = limited(jobs=1)
    cluster.submit(job("j1"), job("j2"), job("j3"))
    cluster.settle()
    cluster.tell(events.RulesChanged(rules=Rules(quotas={"ada": Quota(jobs=2)})))
    cluster.settle()
    assert [cluster.state_of(f"j{n}") for n in (1, 2, 3)] == ["running", "running", "queued"]
    cluster.tell(events.RulesChanged(rules=Rules(quota=Quota(jobs=0))))
    cluster.settle()
    assert [cluster.state_of(f"j{n}") for n in (1, 2, 3)] == ["running", "running", "queued"]


def test_a_plan_that_is_late_is_held_to_the_quota_of_now() -> None:
    cluster = limited()
    cluster.submit(job("j1"))
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    cluster.tell(events.RulesChanged(rules=Rules(quota=Quota(jobs=0))))
    cluster.tell(events.RoundDecided(decision=first_fit(snapshot, pending), generation=generation))
    assert cluster.state_of("j1") == "queued"


def test_quotas_count_on_after_a_restart() -> None:
    cluster = limited(devices=2)
    cluster.submit(job("j1", gpus=2), job("j2", gpus=1))
    cluster.settle()
    cluster.restart()
    cluster.join()
    cluster.tell(events.RulesChanged(rules=Rules(quota=Quota(devices=2))))
    cluster.settle()
    assert [cluster.state_of("j1"), cluster.state_of("j2")] == ["running", "queued"]


# --- the network's load --------------------------------------------------------------------


class Held(Watched):
    """Jobs wait for a route while the network is busy."""

    busy = True

    def answer(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        if not self.busy:
            return first_fit(snapshot, pending)
        miss = Miss(phase="gpu", resource=situations.ROUTE, message="the network is busy")
        report = RoundReport(pending=len(pending), placed=0, decision_ms=0.0, solves=0, certified=False)
        misses = tuple(JobMiss(job=entry.job.id, misses=(miss,), feasible_alone=True) for entry in pending)
        return Decision(placements=(), misses=misses, report=report)


def loaded(cluster: Held, part: float) -> None:
    speed = 1e9
    link = LinkLoad(
        name="eth0",
        speed_bytes_per_s=speed,
        receive_bytes_per_s=part * speed,
        send_bytes_per_s=0.0,
        measured_at=cluster.now,
    )
    cluster.machine.links["a"] = (link,)
    # Where heartbeats take it from.
    cluster.machine.node("a").figures.links = (link,)


@pytest.fixture
def held() -> Held:
    cluster = Held(node("a", 1))
    cluster.machine.watches_load = True
    loaded(cluster, 0.9)
    cluster.join()
    cluster.submit(job("j1", gpus=1))
    cluster.settle()
    return cluster


def test_a_job_that_the_load_holds_back_is_looked_at_when_it_has_fallen(held: Held) -> None:
    held.pass_time(2 * LOAD_LOOK_S)
    assert held.looks_at("j1") == 1
    loaded(held, 0.1)
    held.busy = False
    held.pass_time(LOAD_LOOK_S + 1.0)
    held.settle()
    assert held.state_of("j1") == "running"


def test_its_patience_counts_though_the_load_stays(held: Held) -> None:
    for _ in range(int((LOAD_PATIENCE + 2) * LOAD_LOOK_S)):
        held.pass_time(1.0)
        loaded(held, 0.9)
        held.settle()
    assert held.looks_at("j1") == 2


def test_all_wake_together() -> None:
    known = Situations(("j1", "j2"))
    miss = Miss(phase="gpu", resource="gpu", message="none")
    for name in ("j1", "j2"):
        known.sleep(job(name, gpus=1), (miss,), rounds_waited=0)
    assert known.awake == set()
    known.wake_all()
    assert known.awake == {"j1", "j2"}


def test_all_that_a_job_can_ask_for_has_something_that_wakes_it() -> None:
    # Who adds what a job can ask for says in situations.py which gains may serve it: misses under a phase that is not
    # known there wake for anything, those of the phases compute and gpu only for what these fields tell.
    asked = {"gpus", "gpu_memory_bytes", "gpu_model", "gpu_share_milli", "remote_network_mbit_s", "gpu_span"}
    assert set(Requests.__struct_fields__) == asked | {dimension.name for dimension in DIMENSIONS}
    told = {"name", "command", "count", "min_count", "requests", "node", "labels", "routes", "storage"}
    # Flavour vectors wake for anything, and so do misses of services.
    told |= {"flavour", "service"}
    assert set(TaskGroup.__struct_fields__) == told


CPU_TOO = Alternative(name="cpu", groups=(GroupVariant(name="main", requests=Requests(cpu_milli=2000)),))


def test_a_job_with_alternatives_wakes_for_what_any_of_them_may_need() -> None:
    plain = job("plain", gpus=2)
    either = msgspec.structs.replace(job("either", gpus=2), alternatives=(CPU_TOO,))
    waiting = Situations()
    for each in (plain, either):
        waiting.sleep(each, (Miss(phase="gpu", resource="gpu", message="none"),), rounds_waited=0)
    capacity = Resources(cpu_milli=4000, memory_bytes=2**34)
    waiting.wake_for_gains(Gains(nodes=(NodeView(name="a", capacity=capacity, free=capacity),)))
    assert waiting.awake == {"either"}


def test_a_quota_counts_the_flavour_that_takes_most() -> None:
    more = Alternative(name="more", groups=(GroupVariant(name="main", requests=Requests(gpus=3)),))
    assert devices_of(msgspec.structs.replace(job(gpus=1, count=2), alternatives=(CPU_TOO, more))) == 6


def sleeping(*routes: Route) -> Situations:
    """A job that misses a GPU, which may come by these routes."""
    waiting = Situations()
    wanting = job("j1", gpus=1)
    wanting = msgspec.structs.replace(wanting, groups=(msgspec.structs.replace(wanting.groups[0], routes=routes),))
    waiting.sleep(wanting, (Miss(phase="gpu", resource="gpus", message="none"),), rounds_waited=0)
    return waiting


@pytest.mark.parametrize(
    ("route", "reaches", "wakes"),
    [(Route.RECOMPOSED, True, True), (Route.RECOMPOSED, False, False), (Route.REMOTE, True, False)],
)
def test_a_node_that_reaches_a_pool_as_of_now_wakes_whom_devices_may_be_moved_for(
    route: Route, reaches: bool, wakes: bool
) -> None:
    capacity = Resources(cpu_milli=4000, memory_bytes=2**32)
    view = NodeView(name="a", capacity=capacity, free=capacity, pools=(PoolReach(pool="p"),))
    waiting = sleeping(Route.LOCAL, route)
    waiting.wake_for_gains(Gains(nodes=(view,), reaching=(view,) if reaches else ()))
    assert waiting.is_asleep("j1") is not wakes


@pytest.mark.parametrize("route", [Route.LOCAL, Route.REMOTE])
def test_a_node_whose_sessions_are_taken_as_of_now_wakes_whom_gpus_may_be_lent(route: Route) -> None:
    cluster = Cluster(msgspec.structs.replace(node("a", 1), remoting_tls="on"))
    cluster.join()
    views, waiting = cluster.machine._views, sleeping(route)
    cluster.machine.snapshot(cluster.now)
    views.take_gains()
    changed = msgspec.structs.replace(cluster.agents["a"].node, remoting_tls="off")
    cluster.tell(events.InventoryChanged(node=changed, session=cluster.agents["a"].session))
    cluster.machine.snapshot(cluster.now)
    waiting.wake_for_gains(views.take_gains())
    assert waiting.is_asleep("j1") is (route is Route.LOCAL)
    assert not views.take_gains().lending


def test_what_a_node_reaches_is_gained_once() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    views = cluster.machine._views
    cluster.machine.snapshot(cluster.now)
    views.take_gains()
    reaching = msgspec.structs.replace(cluster.agents["a"].node, pools=(PoolReach(pool="p"),))
    cluster.tell(events.InventoryChanged(node=reaching, session=cluster.agents["a"].session))
    cluster.machine.snapshot(cluster.now)
    assert [view.name for view in views.take_gains().reaching] == ["a"]
    cluster.machine.node("a").cordon = None
    cluster.machine.snapshot(cluster.now)
    assert not views.take_gains().reaching


@pytest.mark.parametrize("name", ["device", "node"])
def test_a_new_device_or_node_wakes_who_misses_it(name: str) -> None:
    cluster = Watched(node("a"))
    cluster.join()
    cluster.submit(job("j1", gpus=1) if name == "device" else job("j1", cpu_milli=8000))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    if name == "device":
        agent = cluster.agents["a"]
        agent.node = node("a", 1)
        cluster.tell(events.InventoryChanged(node=agent.node, session=agent.session))
    else:
        cluster.agents["b"] = ScriptedAgent(node("b", cpu_milli=8000))
        cluster.join("b")
    cluster.settle()
    assert cluster.state_of("j1") == "running"
