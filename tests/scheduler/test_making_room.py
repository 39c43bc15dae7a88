"""Preemption and defragmentation: who ends for whom, never more than needed, never in vain."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from farbus.errors import Conflict, NotFound
from farbus.model.decision import Decision, PendingJob, Snapshot
from farbus.model.job import Job
from farbus.model.node import Node
from farbus.model.operation import Cordon, CordonKind
from farbus.model.rules import Quota, Rules
from farbus.scheduler import events
from farbus.scheduler.decision_maker import DecisionMaker, DecisionThread
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.making_room import RESERVATION_S
from farbus.scheduler.records import JobRecord
from farbus.scheduler.room_planner import RoomPlanner
from tests.scheduler.scripted import HEARTBEAT_S, TTL_S, Cluster, first_fit, job, node

MIN_RUN_S = 60.0


class Planned(Cluster):
    """A cluster whose rounds are followed by a look for plans, as the engine does it."""

    def __init__(self, *nodes: Node, **rules: object) -> None:
        super().__init__(*nodes)
        self.maker = DecisionMaker(DecisionThread(first_fit))
        self.join()
        self.rule(**rules)

    def rule(self, **rules: object) -> None:
        settings = {"preemption": True, "preemption_min_run_s": MIN_RUN_S, **rules}
        self.tell(events.RulesChanged(rules=Rules(**settings)))  # type: ignore[arg-type]

    @property
    def planner(self) -> RoomPlanner:
        return RoomPlanner(self.machine, self.maker, lambda: self.now)

    def decide(self) -> None:
        self.round_asked = False
        snapshot, pending, generation = self.machine.round_input(self.now)
        decision = first_fit(snapshot, pending) if pending else None
        self.tell(events.RoundDecided(decision=decision, generation=generation))
        if decision is not None and decision.misses:
            plan = asyncio.run(self.planner.preempt([missed.job for missed in decision.misses]))
            if plan is not None:
                self.tell(plan)

    def work(self, *jobs: Job) -> None:
        """Have jobs begin, one after the other."""
        for each in jobs:
            self.submit(each)
            self.settle()
            self.pass_time(1.0)

    def states(self, *names: str) -> list[str]:
        return [self.state_of(name) for name in names]


def moveable(name: str, **more: object) -> Job:
    return msgspec.structs.replace(job(name, **more), moveable=True)  # type: ignore[arg-type]


def test_a_job_of_higher_priority_takes_the_place_of_a_moveable_one_which_begins_anew() -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.work(job("j2", gpus=1, priority=5))
    assert cluster.states("j1", "j2") == ["queued", "running"]
    assert any("preempted by job j2 of priority 5" in line for line in cluster.machine.jobs["j1"].progress.story)
    assert cluster.machine.jobs["j1"].progress.failures == 0
    cluster.tell(events.JobCancelled(job_id="j2", reason="done"))
    cluster.settle()
    assert cluster.states("j1", "j2") == ["running", "cancelled"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (job("j1", gpus=1), job("j2", gpus=1, priority=5)),
        (moveable("j1", gpus=1), job("j2", gpus=1)),
        (moveable("j1", gpus=1, priority=5), job("j2", gpus=1, priority=5)),
    ],
    ids=["not moveable", "same priority", "same higher priority"],
)
def test_nobody_else_is_preempted(first: Job, second: Job) -> None:
    cluster = Planned(node("a", 1))
    cluster.work(first)
    cluster.pass_time(MIN_RUN_S)
    cluster.work(second)
    assert cluster.states("j1", "j2") == ["running", "queued"]


def test_it_is_off_unless_an_operator_sets_it() -> None:
    assert not Rules().preemption
    cluster = Planned(node("a", 1), preemption=False)
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.work(job("j2", gpus=1, priority=5))
    assert cluster.states("j1", "j2") == ["running", "queued"]


def test_a_job_runs_for_a_while_before_it_is_preempted() -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1), job("j2", gpus=1, priority=5))
    assert cluster.states("j1", "j2") == ["running", "queued"]
    cluster.pass_time(MIN_RUN_S)
    cluster.settle()
    assert cluster.states("j1", "j2") == ["queued", "running"]


def test_those_of_the_lowest_priority_end_and_no_more_than_needed() -> None:
    cluster = Planned(node("a", 3))
    cluster.work(moveable("j1", gpus=1, priority=2), moveable("j2", gpus=1), moveable("j3", gpus=1, priority=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.work(job("j4", gpus=1, priority=5))
    assert cluster.states("j1", "j2", "j3", "j4") == ["running", "queued", "running", "running"]
    cluster.work(job("j5", gpus=2, priority=5))
    assert cluster.states("j1", "j2", "j3", "j4", "j5") == ["queued", "queued", "queued", "running", "running"]


def test_one_that_makes_room_alone_ends_rather_than_two() -> None:
    cluster = Planned(node("a", 4))
    cluster.work(moveable("j1", gpus=2), moveable("j2", gpus=1), moveable("j3", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.work(job("j4", gpus=2, priority=5))
    assert cluster.states("j1", "j2", "j3", "j4") == ["queued", "running", "running", "running"]


def test_where_the_end_of_all_that_may_end_would_not_help_nobody_ends() -> None:
    cluster = Planned(node("a", 2))
    cluster.work(moveable("j1", gpus=1), job("j2", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.work(job("j3", gpus=2, priority=5))
    assert cluster.states("j1", "j2", "j3") == ["running", "running", "queued"]


def test_what_is_freed_piece_by_piece_goes_to_nobody_else() -> None:
    cluster = Planned(node("a", 1), node("b", 1), node("c"))
    cluster.work(moveable("j1", gpus=1, on="a"), moveable("j2", gpus=1, on="b"))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j3", gpus=2, on="c", priority=5))
    cluster.decide()
    # One node gives up its part at once, the other does not answer yet; smaller jobs of equal priority come meanwhile.
    while cluster.step("a") is not None:
        pass
    assert not any(lease.lease.device_node == "a" for lease in cluster.machine.leases.values())
    cluster.submit(job("j4", gpus=1, priority=5), job("j5", gpus=1))
    if cluster.round_asked:
        cluster.decide()
    assert cluster.states("j3", "j4", "j5") == ["queued", "queued", "queued"]
    cluster.settle()
    assert cluster.states("j3", "j4", "j5") == ["running", "queued", "queued"]
    assert not cluster.machine.reservations


@pytest.mark.parametrize("gpus", [0, 1])
def test_while_room_is_made_for_many_tasks_one_that_is_held_is_looked_at(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 8
    cluster = Planned(node("a", many, cpu_milli=8_000), node("b"))
    cluster.work(*(moveable(f"j{number}", gpus=gpus, on="a") for number in range(many)))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j9", gpus=gpus, count=many, on="a", priority=5))
    cluster.decide()
    assert cluster.states("j9") == ["queued"]
    whole, looks = cluster.machine.placement_problem, []

    def counted(record: JobRecord, *arguments: object, **more: object) -> str:
        looks.append(record.job.id)
        return whole(record, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster.machine, "placement_problem", counted)
    while cluster.machine.reservations:
        assert cluster.step("a") is not None
    assert cluster.states("j9") == ["preparing"]
    assert looks == ["j9"]


def test_room_that_is_not_free_in_time_is_let_go() -> None:
    cluster = Planned(node("a", 1), node("b", 1))
    cluster.work(moveable("j1", gpus=1, on="a"))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=2, priority=5, on="b"))
    cluster.decide()
    assert cluster.machine.reservations
    cluster.submit(job("j3", gpus=1, on="b"))
    cluster.decide()
    assert cluster.state_of("j3") == "queued"
    cluster.pass_time(RESERVATION_S + 1.0)
    assert not cluster.machine.reservations
    while cluster.round_asked:
        cluster.decide()
    assert cluster.state_of("j3") == "preparing"


def test_a_node_that_is_closed_meanwhile_ends_the_reservation() -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=1, priority=5))
    cluster.decide()
    cluster.tell(events.Cordoned(cordon=Cordon(kind=CordonKind.NODE, name="a", by="ann", at=0.0)))
    assert not cluster.machine.reservations
    cluster.settle()
    assert cluster.states("j1", "j2") == ["queued", "queued"]


def test_who_is_cancelled_while_room_is_made_leaves_it_to_others() -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=1, priority=5))
    cluster.decide()
    cluster.tell(events.JobCancelled(job_id="j2", reason="no more"))
    assert not cluster.machine.reservations
    cluster.settle()
    cluster.pass_time(2.0)
    cluster.settle()
    assert cluster.states("j1", "j2") == ["running", "cancelled"]


def test_a_plan_that_no_longer_holds_ends_nobody() -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=1, priority=5))
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    cluster.tell(events.RoundDecided(decision=first_fit(snapshot, pending), generation=generation))
    plan = asyncio.run(cluster.planner.preempt(["j2"]))
    assert plan is not None
    cluster.rule(quota=Quota(devices=0))
    cluster.tell(plan)
    assert cluster.states("j1", "j2") == ["running", "queued"]


def test_who_has_room_made_for_a_job_is_not_given_more_than_its_quota_beside_it() -> None:
    cluster = Planned(node("a", 2), node("b", 1), quotas={"ada": Quota(devices=2)})
    cluster.work(moveable("j1", gpus=2, on="a", user="bob"))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=2, on="a", priority=5))
    cluster.decide()
    assert cluster.states("j1", "j2") == ["finishing", "queued"]
    cluster.submit(job("j3", gpus=1, on="b"))
    cluster.decide()
    # It sleeps: no round after the other for as long as room is made.
    assert (cluster.state_of("j3"), cluster.round_asked) == ("queued", False)
    (miss,) = cluster.machine.jobs["j3"].misses
    assert miss.message == "ada has 0 of 2 devices, 2 more go to jobs ahead of this one; this job takes 1"
    cluster.settle()
    assert cluster.states("j2", "j3") == ["running", "queued"]
    cluster.tell(events.JobCancelled(job_id="j2", reason="done"))
    cluster.settle()
    assert cluster.state_of("j3") == "running"


def test_who_room_is_no_longer_made_for_leaves_his_quota_to_his_other_jobs() -> None:
    cluster = Planned(node("a", 2), node("b", 1), quotas={"ada": Quota(devices=2)})
    cluster.work(moveable("j1", gpus=2, on="a", user="bob"))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=2, on="a", priority=5))
    cluster.decide()
    cluster.submit(job("j3", gpus=1, on="b"))
    cluster.decide()
    cluster.tell(events.JobCancelled(job_id="j2", reason="no more"))
    cluster.settle()
    assert cluster.states("j2", "j3") == ["cancelled", "running"]


@pytest.mark.parametrize("moving", [False, True], ids=["preempted", "moved"])
def test_who_ends_while_the_plan_is_made_disturbs_nobody(moving: bool) -> None:
    cluster = Planned(node("a", 2), preemption=False)
    cluster.work(moveable("j1", gpus=1), moveable("j2", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.work(job("j3", gpus=2, priority=5))
    cluster.rule()

    def ends_one(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        if cluster.state_of("j1") == "running":
            cluster.tell(events.JobCancelled(job_id="j1", reason="no more"))
        return first_fit(snapshot, pending)

    cluster.maker = DecisionMaker(DecisionThread(ends_one))
    if moving:
        with contextlib.suppress(NotFound):
            cluster.tell(asyncio.run(cluster.planner.defragment("j3"))[1])
    else:
        plan = asyncio.run(cluster.planner.preempt(["j3"]))
        assert plan is not None
        cluster.tell(plan)
    cluster.settle()
    assert "cancelled" in cluster.states("j1")
    assert not cluster.machine.reservations


def test_a_restart_in_the_middle_ends_in_the_same_place() -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=1, priority=5))
    cluster.decide()
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.states("j1", "j2") == ["queued", "running"]
    assert cluster.machine.jobs["j1"].progress.failures == 0


def test_room_that_is_made_outlives_a_restart_and_goes_to_nobody_else() -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=1, priority=5, submitted_at=2.0))
    cluster.decide()
    # Of equal priority and ahead in the queue: it came too late for this room.
    cluster.submit(job("j3", gpus=1, priority=5, submitted_at=1.0))
    cluster.restart()
    assert cluster.machine.reservations.keys() == {"j2"}
    cluster.join()
    cluster.settle()
    assert cluster.states("j1", "j2", "j3") == ["queued", "running", "queued"]
    assert not cluster.machine.reservations


def test_a_node_that_does_not_come_back_after_a_restart_ends_the_reservation() -> None:
    cluster = Planned(node("a", 1), node("b"))
    cluster.work(moveable("j1", gpus=1, on="a"))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=1, priority=5, on="a"))
    cluster.decide()
    cluster.restart()
    assert cluster.machine.reservations
    cluster.join("b")
    cluster.pass_time(2 * TTL_S)
    assert not cluster.machine.reservations
    assert cluster.machine.jobs["j2"].progress.room is None


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_who_ends_by_himself_while_he_is_moved_does_not_begin_anew(code: int, state: str) -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=1, priority=5))
    cluster.decide()
    # Its end and the wish to stop it have crossed.
    cluster.tell(cluster.agents["a"].exit("j1", "main.0", code))
    cluster.settle()
    assert cluster.states("j1", "j2") == [state, "running"]


def test_who_is_told_to_stop_begins_anew_whatever_he_makes_of_the_signal() -> None:
    cluster = Planned(node("a", 1))
    cluster.work(moveable("j1", gpus=1))
    cluster.pass_time(MIN_RUN_S)
    cluster.submit(job("j2", gpus=1, priority=5))
    cluster.decide()
    cluster.tell(cluster.agents["a"].exit("j1", "main.0", 0, reason="it was stopped"))
    cluster.settle()
    assert cluster.states("j1", "j2") == ["queued", "running"]


# --- defragmentation -----------------------------------------------------------------------


def split() -> Planned:
    """Two nodes with a processor to spare each; a job wants two on one of them."""
    cluster = Planned(node("a", cpu_milli=3000), node("b", cpu_milli=3000), preemption=False)
    cluster.work(
        job("j1", on="a"),
        moveable("j2", cpu_milli=1000),
        job("j3", on="b", cpu_milli=2000),
        job("j4", cpu_milli=2000),
    )
    assert cluster.states("j1", "j2", "j3", "j4") == ["running", "running", "running", "queued"]
    return cluster


def test_a_plan_moves_a_job_to_where_there_is_room() -> None:
    cluster = split()
    plan, event = asyncio.run(cluster.planner.defragment("j4"))
    assert [(each.job, each.came_from[0].node, each.goes_to[0].node) for each in plan.moved] == [("j2", "a", "b")]
    assert [task.node for task in plan.placements] == ["a"]
    assert cluster.states("j2", "j4") == ["running", "queued"]
    cluster.tell(event)
    cluster.settle()
    assert cluster.states("j1", "j2", "j3", "j4") == ["running"] * 4
    assert not cluster.machine.reservations


def test_without_a_place_for_who_would_move_there_is_no_plan() -> None:
    cluster = split()
    cluster.work(job("j5", on="b"))
    with pytest.raises(NotFound, match="no moves of what is moveable make room for job j4"):
        asyncio.run(cluster.planner.defragment("j4"))


def test_who_has_nowhere_to_go_any_more_when_the_plan_is_carried_out_is_not_moved() -> None:
    cluster = split()
    _, event = asyncio.run(cluster.planner.defragment("j4"))
    # While the plan was made another job has come to where this one was to go.
    cluster.submit(job("j5", on="b", cpu_milli=1000))
    cluster.settle()
    assert cluster.state_of("j5") == "running"
    cluster.tell(event)
    cluster.settle()
    assert cluster.states("j2", "j4") == ["running", "queued"]
    assert not cluster.machine.reservations


def test_a_job_that_does_not_wait_needs_no_plan() -> None:
    with pytest.raises(Conflict, match="job j1 does not wait"):
        asyncio.run(split().planner.defragment("j1"))


def test_who_is_cancelled_while_he_is_moved_keeps_nothing() -> None:
    cluster = split()
    _, event = asyncio.run(cluster.planner.defragment("j4"))
    cluster.tell(event)
    cluster.tell(events.JobCancelled(job_id="j2", reason="no more"))
    cluster.settle()
    assert cluster.states("j2", "j4") == ["cancelled", "running"]
    assert not cluster.machine.reservations


# --- defragmentation by itself -------------------------------------------------------------


def look(cluster: Planned) -> events.RoomPlanned | None:
    """Have the planner look for moves, and carry out what it finds."""
    plan = asyncio.run(cluster.planner.defragment_next(cluster.wall))
    if plan is not None:
        cluster.tell(plan)
    return plan


def test_it_is_off_by_default() -> None:
    assert Rules().defragment_interval_s == 0.0


def test_a_job_that_misses_only_fragments_has_room_made_for_it() -> None:
    cluster = split()
    cluster.pass_time(MIN_RUN_S)
    plan = look(cluster)
    assert plan is not None
    assert plan.moved == ("j2",)
    cluster.settle()
    assert cluster.states("j1", "j2", "j3", "j4") == ["running"] * 4


def test_nobody_is_moved_who_has_not_run_for_a_while() -> None:
    assert look(split()) is None


def test_the_same_job_is_not_moved_again_within_the_pause() -> None:
    cluster = split()
    cluster.pass_time(MIN_RUN_S)
    look(cluster)
    cluster.settle()
    # The same again, the other way round.
    cluster.tell(events.JobCancelled(job_id="j1", reason="done"))
    cluster.tell(events.JobCancelled(job_id="j4", reason="done"))
    cluster.settle()
    cluster.work(job("j5", cpu_milli=2000), job("j6", cpu_milli=1000, on="a"))
    cluster.tell(events.JobCancelled(job_id="j3", reason="done"))
    cluster.settle()
    cluster.work(job("j7", cpu_milli=3000))
    cluster.tell(events.JobCancelled(job_id="j6", reason="done"))
    cluster.settle()
    assert cluster.states("j2", "j7") == ["running", "queued"]
    cluster.pass_time(MIN_RUN_S)
    assert look(cluster) is None
    cluster.restart()
    cluster.join()
    cluster.settle()
    cluster.pass_time(MIN_RUN_S)
    assert look(cluster) is None
    cluster.pass_time(Rules().defragment_pause_s, step_s=HEARTBEAT_S)
    plan = look(cluster)
    assert plan is not None
    assert plan.moved == ("j2",)


def crowd(**rules: object) -> Planned:
    """Three nodes with one task each of two thirds; two of them would have to share the third for a whole one."""
    cluster = Planned(*(node(name, cpu_milli=4000) for name in "abc"), preemption=False, **rules)
    cluster.work(
        *(job(f"j{number}", on=name, cpu_milli=2000) for number, name in ((1, "c"),)),
        *(moveable(f"j{number}", cpu_milli=1000) for number in (2, 3)),
    )
    return cluster


@pytest.mark.parametrize(("most", "moved"), [(1, None), (2, ("j2", "j3"))])
def test_no_more_jobs_are_moved_at_once_than_the_rules_allow(most: int, moved: tuple[str, ...] | None) -> None:
    cluster = crowd(defragment_jobs=most)
    cluster.work(job("j4", on="b", cpu_milli=2000))
    # Both of them are on a, where the whole of it is wanted.
    cluster.work(job("j5", on="a", cpu_milli=4000))
    cluster.pass_time(MIN_RUN_S)
    plan = look(cluster)
    assert (plan.moved if plan is not None else None) == moved
    if plan is not None:
        assert cluster.machine.moving() == 2
        assert look(cluster) is None


def test_where_what_is_free_is_not_enough_nobody_is_asked() -> None:
    cluster = split()
    cluster.work(job("j5", on="b", cpu_milli=1000))
    cluster.pass_time(MIN_RUN_S)
    asked = cluster.maker.asked
    assert look(cluster) is None
    assert cluster.maker.asked == asked


class Ruled(Planned):
    """A cluster whose scheduler has its rules from its configuration whenever it is started."""

    def _start(self) -> ClusterMachine:
        machine = super()._start()
        machine.rules = Rules(preemption=True, preemption_min_run_s=MIN_RUN_S)
        return machine


def test_who_waits_over_a_restart_takes_the_place_of_a_job_once_that_has_run_long_enough() -> None:
    cluster = Ruled(node("a", 1))
    cluster.work(moveable("j1", gpus=1), job("j2", gpus=1, priority=5))
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.states("j1", "j2") == ["running", "queued"]
    cluster.pass_time(MIN_RUN_S)
    cluster.settle()
    assert cluster.states("j1", "j2") == ["queued", "running"]


def test_who_waits_takes_the_place_of_a_job_when_the_operator_allows_it() -> None:
    cluster = Planned(node("a", 1), preemption=False)
    cluster.work(moveable("j1", gpus=1), job("j2", gpus=1, priority=5))
    cluster.pass_time(MIN_RUN_S)
    cluster.settle()
    assert cluster.states("j1", "j2") == ["running", "queued"]
    cluster.rule()
    cluster.pass_time(1.0)
    cluster.settle()
    assert cluster.states("j1", "j2") == ["queued", "running"]


async def test_a_plan_goes_by_what_is_there_when_it_is_looked_for() -> None:
    cluster = Planned(node("a"), node("b", 1))
    cluster.work(moveable("j1", on="a"), moveable("j2", gpus=1, on="b"))
    cluster.pass_time(MIN_RUN_S)
    # The first that waits can't be helped; while that is found out, one of those who could have ended for it ends.
    waiting = [
        job("j3", gpus=3, priority=6),
        job("j4", gpus=1, on="b", priority=5),
        job("j5", gpus=1, on="b", priority=5),
    ]
    for each in waiting:
        cluster.submit(each)

    class Ending(DecisionMaker):
        """Has a job end, and one that waits be cancelled, while the first decision is made."""

        async def decide(self, snapshot: Snapshot, pending: tuple[PendingJob, ...], **_: object) -> Decision:
            if cluster.state_of("j1") == "running":
                for name in ("j1", "j4"):
                    cluster.tell(events.JobCancelled(job_id=name, reason="by its owner"))
                while cluster.step("a") is not None:
                    pass
            return first_fit(snapshot, pending)

    planner = RoomPlanner(cluster.machine, Ending(DecisionThread(first_fit)), lambda: cluster.now)
    plan = await planner.preempt([each.id for each in waiting])
    assert cluster.states("j1", "j4") == ["cancelled", "cancelled"]
    assert plan is not None
    assert (plan.placement.job, plan.moved) == ("j5", ("j2",))
