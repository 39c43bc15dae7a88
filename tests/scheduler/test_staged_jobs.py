"""Jobs whose files must arrive first: what has not begun may be tried again, what has begun is not run twice."""

from __future__ import annotations

import msgspec
import pytest

from farbus.model.job import TaskState, TaskStatus
from farbus.scheduler import events
from farbus.scheduler.attempts import MAX_FAILURES
from tests.scheduler.scripted import TTL_S, Cluster, job, node


def arriving(*, count: int = 1, time_limit_s: float = 0.0) -> Cluster:
    """Bring a job to where its files travel; with two tasks there is one on each node."""
    cluster = Cluster(node("a"), node("c"))
    cluster.join()
    plain = job(count=count, cpu_milli=3000, time_limit_s=time_limit_s)
    cluster.submit(msgspec.structs.replace(plain, stage_in="0" * 64))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    return cluster


def told(cluster: Cluster, name: str, state: TaskState, **more: object) -> None:
    """Have an agent say where its task is."""
    agent = cluster.agents[name]
    (key,) = agent.tasks
    status = TaskStatus(task=key[1], state=state, node=name, **more)  # type: ignore[arg-type]
    agent.tasks[key] = status
    if agent.session:
        cluster.tell(events.TaskReported(node=name, session=agent.session, job_id=key[0], status=status))


def not_begun(cluster: Cluster, name: str = "a") -> None:
    told(cluster, name, TaskState.EXITED, exit_code=-9, reason="its files were still arriving", unstarted=True)


def begun(cluster: Cluster, name: str = "a") -> None:
    told(cluster, name, TaskState.RUNNING)


@pytest.mark.parametrize("in_hello", [False, True])
def test_a_job_whose_task_never_began_is_queued_again(in_hello: bool) -> None:
    cluster = arriving()
    if in_hello:
        cluster.lose("a")
    not_begun(cluster)
    if in_hello:
        cluster.join("a")
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    assert cluster.reason_of("j1") == "task main.0 did not begin on node a: its files were still arriving"
    cluster.pass_time(60.0)
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_such_attempts_are_bounded() -> None:
    cluster = arriving()
    for _ in range(MAX_FAILURES):
        not_begun(cluster)
        cluster.settle()
        cluster.pass_time(60.0)
        cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_a_task_that_could_not_begin_by_the_jobs_own_fault_fails_it() -> None:
    cluster = arriving()
    told(cluster, "a", TaskState.EXITED, exit_code=125, reason="in/a: arrived with another content")
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_a_node_that_is_lost_while_files_arrive_queues_the_job_again() -> None:
    cluster = arriving()
    cluster.lose("a")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "queued"


def test_a_program_that_has_begun_is_not_run_again() -> None:
    cluster = arriving()
    begun(cluster)
    cluster.lose("a")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_what_has_begun_stays_so_over_a_restart_of_the_scheduler() -> None:
    cluster = arriving()
    begun(cluster)
    cluster.restart()
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_a_job_is_not_queued_again_when_another_of_its_programs_has_begun() -> None:
    cluster = arriving(count=2)
    begun(cluster, "c")
    not_begun(cluster, "a")
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_a_job_of_several_tasks_none_of_which_has_begun_is_queued_again() -> None:
    cluster = arriving(count=2)
    not_begun(cluster, "a")
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    assert not cluster.agents["c"].tasks


def half_begun() -> Cluster:
    """Bring a job of two tasks without files to where one program runs and the other's start is not answered."""
    cluster = Cluster(node("a"), node("c"))
    cluster.join()
    cluster.submit(job(count=2, cpu_milli=3000))
    cluster.decide()
    while not isinstance(cluster.step("a"), events.StartTask):
        cluster.step("c")
    assert cluster.state_of("j1") == "preparing"
    assert cluster.agents["a"].tasks
    assert not cluster.agents["c"].tasks
    return cluster


def test_a_job_that_is_not_ready_is_not_queued_again_when_one_of_its_programs_has_begun() -> None:
    cluster = half_begun()
    cluster.lose("c")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_a_job_that_is_evicted_is_not_queued_again_when_one_of_its_programs_has_begun() -> None:
    cluster = half_begun()
    cluster.tell(events.JobEvicted(job_id="j1", node="c", reason="node c is drained"))
    cluster.settle()
    assert cluster.state_of("j1") == "cancelled"


@pytest.mark.parametrize("restarted", [False, True])
def test_the_time_limit_counts_from_when_the_files_have_arrived(restarted: bool) -> None:
    cluster = arriving(time_limit_s=30.0)
    cluster.pass_time(100.0)
    assert cluster.state_of("j1") == "running"
    begun(cluster)
    cluster.pass_time(29.0)
    if restarted:
        cluster.restart()
        cluster.join()
    assert cluster.state_of("j1") == "running"
    cluster.pass_time(1.0)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "time limit of 30 s" in cluster.reason_of("j1")


def test_the_time_limit_of_an_earlier_attempt_ends_no_later_one() -> None:
    cluster = arriving(time_limit_s=70.0)
    for name in ("a", "c"):
        cluster.lose(name)
        cluster.agents[name].die()
        cluster.join(name)
    cluster.settle()
    cluster.pass_time(60.0)
    cluster.settle()
    begun(cluster)
    cluster.pass_time(69.0)
    assert cluster.state_of("j1") == "running"
