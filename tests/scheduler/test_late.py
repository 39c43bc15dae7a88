"""Tasks that a job runs without: placed later, each by itself, and no danger to the job."""

from __future__ import annotations

import pytest

from farbus.model.decision import Decision, PendingJob, Snapshot
from farbus.model.job import Job, JobStatus
from farbus.model.rules import Quota, Rules
from farbus.scheduler import events
from farbus.scheduler.attempts import MAX_FAILURES
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.round import decide
from farbus.scheduler.words import explain_job
from tests.scheduler.scripted import TTL_S, Cluster, job, node


def wide(name: str = "j1", **more: object) -> Job:
    """A job of three tasks with a GPU each that one of them is enough for."""
    return job(name, **{"gpus": 1, "count": 3, "min_count": 1, **more})  # type: ignore[arg-type]


def started(cluster: Cluster, name: str = "j1") -> list[str]:
    """Return the tasks of a job whose programs run."""
    return [task.task for task in status(cluster, name).tasks if task.state == "running"]


def status(cluster: Cluster, name: str = "j1") -> JobStatus:
    return cluster.ended[name] if name in cluster.ended else cluster.machine.jobs[name].status()


def crowded(*, more: Job | None = None, first_of: str = "ada") -> Cluster:
    """Two GPUs, one of which another job has; the wide one runs with one task."""
    cluster = Cluster(node("a", 1, cpu_milli=1000), node("b", 1, cpu_milli=1000))
    cluster.join()
    cluster.submit(job("j0", gpus=1, user=first_of))
    cluster.settle()
    cluster.submit(more or wide())
    cluster.settle()
    assert started(cluster) == ["main.0"]
    return cluster


def leave(cluster: Cluster, name: str = "j0") -> None:
    cluster.tell(events.JobCancelled(job_id=name, reason="done"))


def exits(cluster: Cluster, task: str, code: int = 0) -> None:
    for agent in cluster.agents.values():
        if ("j1", task) in agent.tasks:
            cluster.tell(agent.exit("j1", task, code))


def test_it_is_told_how_many_wait_and_why() -> None:
    cluster = crowded()
    assert status(cluster).tasks_waiting == 2
    lines = explain_job(status(cluster), ahead=0, nodes=2, now=cluster.wall)
    assert "tasks of it that wait for room: 2" in lines
    assert any("GPUs are not free" in line for line in lines)


def test_a_task_begins_when_there_is_room_with_a_lease_of_its_own() -> None:
    cluster = crowded()
    leave(cluster)
    cluster.settle()
    assert started(cluster) == ["main.0", "main.1"]
    leases = [lease for run in cluster.machine.jobs["j1"].runs for lease in run.leases]
    assert leases == ["j1-1-0", "j1-1-1"]
    assert status(cluster).tasks_waiting == 1


def test_the_job_ends_when_all_that_began_have_ended_well() -> None:
    cluster = crowded()
    leave(cluster)
    cluster.settle()
    exits(cluster, "main.0")
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    # One that waited has the room of the first.
    assert started(cluster) == ["main.1", "main.2"]
    exits(cluster, "main.1")
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    exits(cluster, "main.2")
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"
    assert not cluster.machine.late_jobs
    assert not cluster.machine.leases


def test_a_late_task_that_fails_fails_the_job() -> None:
    cluster = crowded()
    leave(cluster)
    cluster.settle()
    exits(cluster, "main.1", 3)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "main.1" in cluster.reason_of("j1")


def test_a_job_does_not_wait_for_a_task_that_has_not_begun() -> None:
    cluster = crowded()
    leave(cluster)
    while not cluster.machine.jobs["j1"].run("main.1"):
        cluster.decide() if cluster.round_asked else [cluster.step(name) for name in cluster.agents]
    exits(cluster, "main.0")
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"
    assert [task.task for task in status(cluster).tasks] == ["main.0"]
    assert not cluster.machine.leases
    assert all(not agent.device_side and not agent.tasks for agent in cluster.agents.values())


def test_jobs_that_wait_go_first() -> None:
    cluster = crowded()
    cluster.submit(job("j2", gpus=1, priority=-5))
    cluster.settle()
    assert cluster.state_of("j2") == "queued"

    def by_rank(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        return decide(snapshot, pending, policy=DefaultPolicy())

    leave(cluster)
    while cluster.machine.leases.keys() & {"j0-1-0"}:
        [cluster.step(name) for name in cluster.agents]
    cluster.round_asked = False
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    assert [entry.job.id for entry in pending] == ["j2", "j1+main"]
    cluster.tell(events.RoundDecided(decision=by_rank(snapshot, pending), generation=generation))
    assert cluster.state_of("j2") == "preparing"
    assert status(cluster).tasks_waiting == 2


def test_the_decision_maker_places_as_many_as_find_room() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(wide(count=4, cpu_milli=1000))
    cluster.settle()
    cluster.agents["c"] = agent = type(cluster.agents["a"])(node("c", 2))
    cluster.join("c")
    assert agent.session
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    decision = decide(snapshot, pending, policy=DefaultPolicy())
    cluster.round_asked = False
    cluster.tell(events.RoundDecided(decision=decision, generation=generation))
    cluster.settle()
    assert started(cluster) == ["main.0", "main.1", "main.2"]
    assert status(cluster).tasks_waiting == 1


def test_what_is_full_is_not_looked_at_again() -> None:
    cluster = crowded()
    cluster.submit(job("j2"))
    cluster.round_asked = False
    _, pending, _ = cluster.machine.round_input(cluster.now)
    assert [entry.job.id for entry in pending] == ["j2"]


@pytest.mark.parametrize("verb", ["prepare-devices", "prepare-client", "start-task"])
def test_a_late_task_that_cannot_begin_is_taken_back_and_tried_again(verb: str) -> None:
    cluster = crowded()
    leave(cluster)
    failed = False
    while not failed:
        if cluster.round_asked:
            cluster.decide()
        for agent in cluster.agents.values():
            if agent.inbox and agent.inbox[0].command_id.endswith(f"{verb}") and "j1-1" in agent.inbox[0].command_id:
                command = agent.inbox.pop(0)
                cluster.tell(agent.answer(command, error="it broke"))
                failed = True
            else:
                cluster.step(agent.name)
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert started(cluster) == ["main.0"]
    assert any("task main.1 is taken back" in line for line in status(cluster).story)
    cluster.pass_time(5.0)
    cluster.settle()
    assert started(cluster) == ["main.0", "main.1"]


def test_after_some_failures_no_more_are_tried() -> None:
    cluster = crowded()
    leave(cluster)
    for _ in range(200):
        if cluster.round_asked:
            cluster.decide()
        for agent in cluster.agents.values():
            if agent.inbox and "j1-1.main.1.start-task" in agent.inbox[0].command_id:
                cluster.tell(agent.answer(agent.inbox.pop(0), error="no such program"))
            else:
                cluster.step(agent.name)
        cluster.pass_time(1.0)
    assert cluster.machine.jobs["j1"].progress.late_failures == MAX_FAILURES
    assert cluster.state_of("j1") == "running"
    assert not cluster.machine.late_jobs
    assert len(cluster.machine.leases) == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_node_that_is_lost_takes_the_job_along_only_once_the_task_has_begun(begun: bool) -> None:
    cluster = crowded()
    leave(cluster)
    while not (run := cluster.machine.jobs["j1"].run("main.1")) or (begun and run.program != "running"):
        cluster.decide() if cluster.round_asked else [cluster.step(name) for name in cluster.agents]
    assert run.node == "a"
    cluster.lose("a")
    cluster.agents["a"].die()
    cluster.pass_time(2 * TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == ("failed" if begun else "running")


@pytest.mark.parametrize("steps", range(8))
def test_a_restart_of_the_scheduler_in_between_changes_nothing(steps: int) -> None:
    cluster = crowded()
    leave(cluster)
    for _ in range(steps):
        if cluster.round_asked:
            cluster.decide()
        for name in cluster.agents:
            cluster.step(name)
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert started(cluster) == ["main.0", "main.1"]
    assert status(cluster).tasks_waiting == 1


@pytest.mark.parametrize("steps", range(8))
def test_a_cancelled_job_leaves_nothing_of_them(steps: int) -> None:
    cluster = crowded()
    leave(cluster)
    for _ in range(steps):
        if cluster.round_asked:
            cluster.decide()
        for name in cluster.agents:
            cluster.step(name)
    leave(cluster, "j1")
    cluster.settle()
    assert cluster.state_of("j1") == "cancelled"
    assert not cluster.machine.leases
    assert all(not agent.device_side and not agent.tasks for agent in cluster.agents.values())


def test_a_quota_holds_them_back_until_it_has_room() -> None:
    cluster = crowded()
    cluster.tell(events.RulesChanged(rules=Rules(quota=Quota(devices=1))))
    leave(cluster)
    cluster.settle()
    assert started(cluster) == ["main.0"]
    assert [miss.phase for miss in status(cluster).misses] == ["quota"]
    cluster.tell(events.RulesChanged(rules=Rules()))
    cluster.settle()
    assert started(cluster) == ["main.0", "main.1"]


def test_who_finds_no_room_keeps_none_of_their_users_quota_from_them() -> None:
    cluster = crowded(more=wide(user="ada"), first_of="bob")
    cluster.tell(events.RulesChanged(rules=Rules(quotas={"ada": Quota(devices=2)})))
    cluster.settle()
    leave(cluster)
    while any(cluster.step(name) for name in cluster.agents):
        pass
    # Both are looked at in the round that follows, and this one goes first.
    cluster.submit(job("j2", gpus=1, on="c"))
    cluster.settle()
    assert cluster.state_of("j2") == "queued"
    assert started(cluster) == ["main.0", "main.1"]


def test_the_limit_of_a_late_task_is_what_is_left_of_the_jobs() -> None:
    cluster = crowded(more=wide(time_limit_s=100.0))
    cluster.pass_time(40.0)
    leave(cluster)
    cluster.settle()
    starts = [command for _, command in cluster.sent if isinstance(command, events.StartTask)]
    assert [round(command.time_limit_s) for command in starts if command.job_id == "j1"] == [100, 60]
    cluster.pass_time(61.0)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "time limit" in cluster.reason_of("j1")


def test_who_watches_the_job_is_told_when_a_late_task_begins() -> None:
    cluster = crowded()
    leave(cluster)
    while not (run := cluster.machine.jobs["j1"].run("main.1")) or run.program != "starting":
        cluster.decide() if cluster.round_asked else [cluster.step(name) for name in cluster.agents]
    agent = cluster.agents[run.node]
    outcome = agent.do(agent.inbox.pop(0))
    assert outcome is not None
    effects = cluster.machine.handle(outcome, now=cluster.now, wall=cluster.wall)
    assert events.JobChanged(job_id="j1") in effects
