"""The cluster machine, step by step."""

from __future__ import annotations

import msgspec
import pytest

from farbus.model.device import Route
from farbus.model.job import TaskState, TaskStatus
from farbus.model.states import LeaseState
from farbus.scheduler import events
from farbus.scheduler.attempts import MAX_FAILURES
from farbus.scheduler.deciding import SET_ASIDE_S
from farbus.scheduler.steps import START_DEADLINE_S
from tests.scheduler.scripted import TTL_S, Cluster, first_fit, job, node


def running_remote() -> Cluster:
    """A job running on node c with the GPU of node a."""
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    return cluster


def verbs(cluster: Cluster) -> list[tuple[str, str]]:
    return [(name, type(command).__name__) for name, command in cluster.sent]


def test_a_job_goes_through_every_step_in_order() -> None:
    cluster = running_remote()
    cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"
    assert verbs(cluster) == [
        ("a", "PrepareDevices"),
        ("c", "PrepareClient"),
        ("c", "StartTask"),
        ("c", "UnprepareClient"),
        ("a", "UnprepareDevices"),
    ]
    assert not cluster.machine.leases


def test_the_client_side_gets_the_leases_with_their_endpoints() -> None:
    cluster = running_remote()
    prepare = next(command for _, command in cluster.sent if isinstance(command, events.PrepareClient))
    assert prepare.leases[0].endpoint == "127.0.0.1:7000"
    assert prepare.leases[0].lease.route is Route.REMOTE


def test_a_failing_program_fails_the_job_with_its_exit_status() -> None:
    cluster = running_remote()
    cluster.tell(cluster.agents["c"].exit("j1", "main.0", 3))
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert cluster.reason_of("j1") == "task main.0 on node c ended with exit status 3"


def test_every_grant_counts_the_devices_epoch() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    for number in (1, 2, 3):
        cluster.submit(job(f"j{number}", gpus=1))
        cluster.settle()
        lease = next(iter(cluster.machine.leases.values())).lease
        assert [leased.epoch for leased in lease.devices] == [number]
        cluster.tell(cluster.agents["a"].exit(f"j{number}", "main.0"))
        cluster.settle()


def test_a_task_that_was_ended_for_a_reason_did_not_succeed_whatever_its_exit_code() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(job(gpus=1))
    cluster.settle()
    cluster.tell(cluster.agents["a"].exit("j1", "main.0", 0, "its unit was stopped"))
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert cluster.reason_of("j1") == "task main.0 on node a ended with exit status 0: its unit was stopped"


def test_tasks_start_only_when_all_are_prepared() -> None:
    cluster = Cluster(node("a", 1), node("b", 1))
    cluster.join()
    cluster.submit(job(gpus=1, count=2, cpu_milli=3000))
    cluster.decide()
    while cluster.step("a"):
        pass
    assert ("a", "StartTask") not in verbs(cluster)
    cluster.settle()
    assert {("a", "StartTask"), ("b", "StartTask")} <= set(verbs(cluster))
    assert cluster.state_of("j1") == "running"


def starts(cluster: Cluster) -> dict[str, events.StartTask]:
    return {command.task: command for _, command in cluster.sent if isinstance(command, events.StartTask)}


def test_tasks_of_one_job_hear_where_the_first_of_them_is() -> None:
    """For a program whose processes are to find each other, on whichever nodes they are."""
    nodes = [msgspec.structs.replace(node(name, 1), address=f"10.0.0.{number}") for number, name in enumerate("ab")]
    cluster = Cluster(*nodes)
    cluster.join()
    cluster.submit(msgspec.structs.replace(job(gpus=1, count=2, cpu_milli=3000), environment={"SEED": "7"}))
    cluster.settle()
    first = cluster.machine.jobs["j1"].run("main.0")
    assert first is not None
    addresses = {"a": "10.0.0.0", "b": "10.0.0.1"}
    expected = {"SEED": "7", "FARBUS_FIRST_ADDRESS": addresses[first.node]}
    assert [starts(cluster)[task].environment for task in ("main.0", "main.1")] == [expected, expected]


def test_the_only_task_of_a_job_has_nobody_to_find() -> None:
    cluster = Cluster(node("a"))
    cluster.join()
    cluster.submit(job())
    cluster.settle()
    assert starts(cluster)["main.0"].environment == {}


def test_a_failed_preparation_is_undone_and_tried_again() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.decide()
    cluster.step("a")
    agent = cluster.agents["c"]
    cluster.tell(agent.answer(agent.inbox.pop(), error="no room in /run"))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    assert "no room in /run" in cluster.reason_of("j1")
    assert not cluster.machine.leases
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_attempts_are_bounded() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(job(gpus=1))
    for _ in range(MAX_FAILURES):
        cluster.pass_time(60)
        cluster.decide()
        agent = cluster.agents["a"]
        prepare = next(command for command in agent.inbox if isinstance(command, events.PrepareDevices))
        agent.inbox.clear()
        cluster.tell(agent.answer(prepare, error="the GPU is wedged"))
        cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "the GPU is wedged" in cluster.reason_of("j1")


def test_a_program_that_can_not_start_is_not_tried_again() -> None:
    cluster = Cluster(node("a"))
    cluster.join()
    cluster.submit(job())
    cluster.decide()
    cluster.step("a")
    agent = cluster.agents["a"]
    cluster.tell(agent.answer(agent.inbox.pop(), error="program: no such file"))
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "no such file" in cluster.reason_of("j1")
    assert ("a", "StopTask") not in verbs(cluster)


def test_a_queued_job_is_cancelled_at_once() -> None:
    cluster = Cluster(node("a"))
    cluster.submit(job())
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ada"))
    assert cluster.state_of("j1") == "cancelled"


def test_a_preparing_job_is_undone_when_cancelled() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.decide()
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ada"))
    assert verbs(cluster) == [("a", "PrepareDevices")]  # undo waits for what is under way
    cluster.settle()
    assert cluster.state_of("j1") == "cancelled"
    assert verbs(cluster) == [("a", "PrepareDevices"), ("a", "UnprepareDevices")]


def test_a_running_job_is_stopped_when_cancelled() -> None:
    cluster = running_remote()
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ada"))
    cluster.settle()
    assert cluster.state_of("j1") == "cancelled"
    assert ("c", "StopTask") in verbs(cluster)
    assert cluster.ended["j1"].tasks[0].exit_code == 0


def test_a_job_that_waits_to_be_tried_again_can_be_cancelled_while_it_is_undone() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.decide()
    agent = cluster.agents["a"]
    cluster.tell(agent.answer(agent.inbox.pop(), error="wedged"))
    cluster.tell(events.JobCancelled(job_id="j1", reason="cancelled by ada"))
    cluster.settle()
    assert cluster.state_of("j1") == "cancelled"


def test_a_job_ends_at_its_time_limit() -> None:
    cluster = Cluster(node("a"))
    cluster.join()
    cluster.submit(job(time_limit_s=30))
    cluster.settle()
    cluster.pass_time(29)
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    cluster.pass_time(1)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "time limit of 30 s" in cluster.reason_of("j1")


def test_the_time_limit_counts_on_over_a_restart() -> None:
    cluster = Cluster(node("a"))
    cluster.join()
    cluster.submit(job(time_limit_s=30))
    cluster.settle()
    cluster.pass_time(20)
    cluster.restart()
    cluster.join()
    cluster.pass_time(10)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_a_short_loss_of_the_session_changes_nothing() -> None:
    cluster = running_remote()
    cluster.lose("a")
    cluster.lose("c")
    cluster.pass_time(TTL_S - 1)
    cluster.join()
    cluster.settle()
    cluster.pass_time(TTL_S * 2)
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_a_lost_device_node_ends_the_job_and_keeps_the_device() -> None:
    cluster = running_remote()
    cluster.lose("a")
    cluster.agents["a"].die()
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "node a was lost" in cluster.reason_of("j1")
    assert "GPU-a-0" in cluster.reason_of("j1")
    assert not cluster.agents["c"].tasks
    (lease,) = cluster.machine.leases.values()
    assert lease.state is LeaseState.RELEASING
    cluster.join("a")
    assert not cluster.machine.leases


def test_a_device_is_not_granted_again_before_its_node_confirmed() -> None:
    cluster = running_remote()
    cluster.lose("a")  # cut off, but alive and still holding
    cluster.pass_time(TTL_S)
    cluster.settle()
    cluster.submit(job("j2", gpus=1))
    cluster.settle()
    assert cluster.state_of("j2") == "queued"
    cluster.join("a")
    assert cluster.machine.leases
    cluster.settle()
    assert cluster.state_of("j2") == "running"


def test_a_lost_client_node_ends_the_job_and_frees_the_device() -> None:
    cluster = running_remote()
    cluster.lose("c")
    cluster.agents["c"].die()
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "node c was lost" in cluster.reason_of("j1")
    assert not cluster.machine.leases


def test_an_agent_that_died_and_came_back_ends_its_jobs_at_once() -> None:
    cluster = running_remote()
    cluster.lose("c")
    cluster.agents["c"].die()
    cluster.join("c")
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "restarted" in cluster.reason_of("j1")


def test_a_node_lost_while_preparing_puts_the_job_back() -> None:
    cluster = Cluster(node("a", 1), node("b", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.decide()
    cluster.lose("a")
    cluster.agents["a"].die()
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert {record.lease.device_node for record in cluster.machine.leases.values()} == {"a", "b"}


def test_what_a_returned_node_holds_without_right_is_removed_before_it_is_used() -> None:
    cluster = running_remote()
    cluster.lose("c")  # cut off, its task runs on
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    cluster.submit(job("j2", on="c", cpu_milli=4000))
    cluster.join("c")
    assert ("j1", "main.0") in cluster.agents["c"].tasks
    assert cluster.machine.nodes["c"].strays
    cluster.settle()
    assert cluster.agents["c"].tasks.keys() == {("j2", "main.0")}


def test_a_returned_node_lets_go_of_the_ended_tasks_of_jobs_that_were_given_up() -> None:
    cluster = running_remote()
    cluster.lose("c")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    cluster.agents["c"].exit("j1", "main.0")  # fenced, while nobody heard of it
    cluster.agents["c"].client_side.clear()
    cluster.join("c")
    cluster.settle()
    assert not cluster.agents["c"].tasks
    assert not cluster.machine.nodes["c"].strays


def test_what_a_node_says_twice_that_it_holds_is_removed_once() -> None:
    cluster = Cluster(node("a", 1))
    stray = events.HeldTask(job_id="j9", status=TaskStatus(task="main.0", state=TaskState.RUNNING))
    held = events.HeldLease(lease_id="j9-1-0", device_side=True)
    agent = cluster.agents["a"]
    agent.session = 7
    cluster.tell(events.NodeJoined(node=agent.node, session=7, held=(held, held), tasks=(stray, stray)))
    asked = list(agent.inbox)
    assert [type(command) for command in asked] == [events.UnprepareDevices, events.StopTask]
    # Each answer comes twice, too.
    for command in (*asked, *asked):
        cluster.tell(agent.answer(command))
    cluster.settle()
    assert not cluster.machine.nodes["a"].strays
    cluster.tell(events.NodeLost(node="a", session=7, reason="closed"))


def test_what_one_node_says_that_it_holds_keeps_no_other_from_use() -> None:
    cluster = Cluster(node("a"), node("a.b"))
    running = TaskStatus(task="main.0", state=TaskState.RUNNING)
    for session, (name, job_id) in enumerate((("a", "b.j9"), ("a.b", "j9")), start=1):
        cluster.agents[name].session = session
        stray = events.HeldTask(job_id=job_id, status=running)
        cluster.tell(events.NodeJoined(node=cluster.agents[name].node, session=session, tasks=(stray,)))
    cluster.settle()
    assert all(record.usable for record in cluster.machine.nodes.values())


def test_a_second_attempt_is_not_answered_with_the_end_of_the_first() -> None:
    cluster = Cluster(node("a"), node("c"))
    cluster.join()
    cluster.submit(job(count=2, cpu_milli=3000))
    cluster.decide()
    cluster.step("a")
    cluster.step("c")
    agent = cluster.agents["a"]
    agent.do(agent.inbox.pop(0))  # while the other task has not started, and its answer is lost
    assert [len(cluster.agents[name].tasks) for name in ("a", "c")] == [1, 0]
    cluster.lose("a")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    (key,) = cluster.agents["a"].tasks
    cluster.agents["a"].exit(*key, -9)
    cluster.join("a")
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert {status.state for agent in cluster.agents.values() for status in agent.tasks.values()} == {"running"}


def test_a_lease_that_its_node_ended_fails_the_job() -> None:
    cluster = running_remote()
    agent = cluster.agents["a"]
    cluster.tell(
        events.LeaseEndedByNode(
            node="a", session=agent.session, lease_id="j1-1-0", device_side=True, reason="its server died"
        )
    )
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "its server died" in cluster.reason_of("j1")


def test_a_lease_that_is_not_renewed_ends() -> None:
    cluster = running_remote()
    cluster.agents["a"].device_side.clear()
    cluster.pass_time(TTL_S + 1)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "did not renew" in cluster.reason_of("j1")


def test_heartbeats_tell_what_is_void() -> None:
    cluster = running_remote()
    agent = cluster.agents["a"]
    cluster.tell(events.HeartbeatArrived(node="a", session=agent.session, lease_ids=("j1-1-0", "j9-1-0")))
    assert cluster.sent[-1] == ("a", events.HeartbeatReply(renewed=("j1-1-0",), void=("j9-1-0",)))


def test_a_silent_session_is_closed() -> None:
    cluster = running_remote()
    cluster.pass_time(TTL_S + 1, heartbeats=False)
    assert cluster.agents["a"].session == 0
    assert cluster.state_of("j1") == "failed" or cluster.state_of("j1") == "finishing"


def test_an_interactive_job_runs_once_it_is_prepared_until_it_is_cancelled() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c", interactive=True))
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert ("c", "StartTask") not in verbs(cluster)
    cluster.tell(events.JobCancelled(job_id="j1", reason="closed"))
    cluster.settle()
    assert cluster.state_of("j1") == "cancelled"
    assert not cluster.machine.leases


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed"), (-9, "failed"), (None, "failed")])
def test_an_interactive_job_ends_as_its_program_did(code: int | None, state: str) -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c", interactive=True))
    cluster.settle()
    cluster.tell(events.JobCancelled(job_id="j1", reason="", released=True, exit_code=code))
    cluster.settle()
    assert cluster.state_of("j1") == state
    assert [task.exit_code for task in cluster.ended["j1"].tasks] == ([] if code is None else [code])
    assert ("without telling how its program did" in cluster.ended["j1"].reason) == (code is None)
    assert not cluster.machine.leases


def test_an_interactive_job_ends_with_its_agent() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c", interactive=True))
    cluster.settle()
    cluster.lose("c")
    cluster.agents["c"].die()
    cluster.join("c")
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert not cluster.machine.leases


def test_an_interactive_job_that_waits_ends_with_its_agent() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job("j1", gpus=1), job("j2", gpus=1, on="c", interactive=True))
    cluster.settle()
    assert cluster.state_of("j2") == "queued"
    cluster.lose("c")
    cluster.agents["c"].die()
    cluster.join("c")
    assert cluster.state_of("j2") == "cancelled"
    assert cluster.reason_of("j2") == "nobody holds it any more: the agent of node c was restarted"


def test_an_interactive_job_that_is_undone_to_be_queued_ends_with_its_agent() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c", interactive=True))
    cluster.decide()
    cluster.step("a")
    cluster.lose("a")
    cluster.pass_time(TTL_S + 1)
    assert cluster.state_of("j1") == "finishing"
    cluster.lose("c")
    cluster.agents["c"].die()
    cluster.join("a", "c")
    cluster.settle()
    assert cluster.state_of("j1") == "cancelled"
    assert not cluster.machine.leases


def test_an_interactive_job_outlives_a_cut_and_a_restart_of_the_scheduler() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.join()
    cluster.submit(job(gpus=1, on="c", interactive=True))
    cluster.settle()
    cluster.lose("c")
    cluster.join("c")
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_an_interactive_job_submitted_before_its_agents_hello_is_kept() -> None:
    cluster = Cluster(node("a", 1), node("c"))
    cluster.submit(job(gpus=1, on="c", interactive=True))
    cluster.join()
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_a_doubled_outcome_changes_nothing() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(job(gpus=1))
    cluster.decide()
    agent = cluster.agents["a"]
    outcome = agent.do(agent.inbox.pop(0))
    assert outcome is not None
    cluster.tell(outcome)
    told = len(cluster.sent)
    cluster.tell(outcome)
    assert len(cluster.sent) == told


def test_a_command_without_an_answer_is_given_up_and_undone() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(job(gpus=1))
    cluster.decide()
    cluster.agents["a"].inbox.clear()
    cluster.pass_time(121)
    assert ("a", "UnprepareDevices") in verbs(cluster)
    cluster.settle()
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_a_start_without_an_answer_is_stopped_before_the_job_ends() -> None:
    cluster = Cluster(node("a"))
    cluster.join()
    cluster.submit(job())
    cluster.decide()
    cluster.step("a")
    agent = cluster.agents["a"]
    agent.do(agent.inbox.pop())
    cluster.pass_time(START_DEADLINE_S + 1)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert ("a", "StopTask") in verbs(cluster)


def test_an_undo_that_fails_is_tried_until_it_succeeds() -> None:
    cluster = running_remote()
    agent = cluster.agents["a"]
    cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
    cluster.step("c")
    for _ in range(5):
        unprepare = next(command for command in agent.inbox if isinstance(command, events.UnprepareDevices))
        agent.inbox.clear()
        cluster.tell(agent.answer(unprepare, error="busy"))
        assert cluster.machine.leases
        cluster.pass_time(31)
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"


def test_a_restart_continues_every_job() -> None:
    cluster = running_remote()
    cluster.submit(job("j2", gpus=1))
    cluster.settle()
    cluster.restart()
    assert cluster.state_of("j1") == "running"
    assert cluster.state_of("j2") == "queued"
    cluster.join()
    cluster.settle()
    cluster.pass_time(TTL_S * 2)
    assert cluster.state_of("j1") == "running"
    cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j1") == "succeeded"
    assert cluster.state_of("j2") == "running"


def test_a_restart_at_every_step_of_a_job_loses_nothing() -> None:
    for steps in range(12):
        cluster = Cluster(node("a", 1), node("c"))
        cluster.join()
        cluster.submit(job(gpus=1, on="c"))
        done = 0
        while done < steps:
            if cluster.round_asked:
                cluster.decide()
            elif cluster.agents["c"].tasks and not cluster.agents["c"].inbox:
                cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
                cluster.agents["c"].tasks.pop(("j1", "main.0"))
            else:
                cluster.step("a") or cluster.step("c")
            done += 1
        cluster.restart()
        cluster.join()
        cluster.settle()
        if "j1" not in cluster.ended and cluster.agents["c"].tasks:
            cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
            cluster.settle()
        assert cluster.state_of("j1") == "succeeded", steps
        assert not cluster.machine.leases


def test_no_more_is_placed_than_a_node_has() -> None:
    cluster = Cluster(node("a", cpu_milli=2000))
    cluster.join()
    cluster.submit(*(job(f"j{number}") for number in range(1, 6)))
    cluster.settle()
    assert [cluster.state_of(f"j{number}") for number in range(1, 6)].count("running") == 2


def test_a_plan_that_no_longer_fits_is_refused_and_decided_anew() -> None:
    cluster = Cluster(node("a", 1), node("b", 1))
    cluster.join()
    cluster.submit(job(gpus=1))
    cluster.round_asked = False
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    cluster.lose("a")
    cluster.tell(events.RoundDecided(decision=first_fit(snapshot, pending), generation=generation))
    assert cluster.state_of("j1") == "queued"
    assert cluster.round_asked
    cluster.settle()
    assert cluster.machine.jobs["j1"].runs.first.node == "b"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_program_that_fails_without_a_device_of_a_lost_node_says_which(*, is_known: bool) -> None:
    cluster = running_remote()
    if is_known:
        cluster.lose("a")
    cluster.tell(cluster.agents["c"].exit("j1", "main.0", 1))
    if not is_known:
        # It had its program fail before anybody knew of it.
        cluster.lose("a")
    cluster.pass_time(TTL_S + 1)
    cluster.settle()
    reason = cluster.ended["j1"].reason
    assert reason.startswith("task main.0 on node c ended with exit status 1; node a, which has its GPU-a-0, can't")
    assert reason.count("can't be reached") == 1


def test_a_plan_that_never_fitted_is_told_and_looked_at_again() -> None:
    cluster = Cluster(node("a"), node("b"))
    cluster.join()
    cluster.submit(job("j1", on="a"), job("j2", on="b"))
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    plan = first_fit(snapshot, pending)
    first, second = plan.placements
    wrong = msgspec.structs.replace(first, tasks=(msgspec.structs.replace(first.tasks[0], node="b"),))
    plan = msgspec.structs.replace(plan, placements=(wrong, second))
    cluster.tell(events.RoundDecided(decision=plan, generation=generation))
    (miss,) = cluster.machine.jobs["j1"].misses
    assert "the decision can't be carried out: task main.0 must run on node a" in miss.message
    assert cluster.state_of("j2") != "queued"
    cluster.pass_time(SET_ASIDE_S + 1)
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_a_job_that_waits_says_why_and_counts_rounds() -> None:
    cluster = Cluster(node("a", 1))
    cluster.join()
    cluster.submit(job("j1", gpus=1), job("j2", gpus=1))
    cluster.settle()
    status = cluster.machine.jobs["j2"].status()
    assert [miss.message for miss in status.misses] == ["1 GPUs are not free"]
    assert status.rounds_waited >= 1


def test_a_second_session_of_a_node_replaces_the_first() -> None:
    cluster = running_remote()
    cluster.join("a")
    cluster.settle()
    cluster.pass_time(TTL_S + 1)
    assert cluster.state_of("j1") == "running"


def test_events_of_an_old_session_are_ignored() -> None:
    cluster = running_remote()
    old = cluster.agents["c"].session
    cluster.join("c")
    cluster.tell(events.NodeLost(node="c", session=old, reason="late"))
    assert cluster.machine.nodes["c"].connected


def test_two_nodes_can_not_have_one_device() -> None:
    cluster = running_remote()
    thief = msgspec.structs.replace(node("c"), devices=node("a", 1).devices)
    cluster.tell(events.InventoryChanged(node=thief, session=cluster.agents["c"].session))
    assert cluster.machine.devices["GPU-a-0"].node == "a"


def test_a_scheduler_that_stood_still_ends_nothing() -> None:
    """SIGSTOP and SIGCONT of the scheduler: all heartbeats are late, and its own clock is why."""
    cluster = running_remote()
    cluster.now += 20 * TTL_S
    cluster.tell(events.ClockTicked())
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    cluster.pass_time(2 * TTL_S)
    assert cluster.state_of("j1") == "running"


def test_nodes_that_stay_away_after_a_scheduler_stood_still_are_gone() -> None:
    cluster = running_remote()
    cluster.now += 20 * TTL_S
    cluster.tell(events.ClockTicked())
    cluster.pass_time(TTL_S, heartbeats=False)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"


def test_a_restarted_scheduler_gives_nodes_time_to_come_back() -> None:
    cluster = running_remote()
    cluster.return_s = 4 * TTL_S
    cluster.now += 1000 * TTL_S
    cluster.restart()
    cluster.pass_time(4 * TTL_S - 1)
    assert cluster.state_of("j1") == "running"
    cluster.join()
    cluster.pass_time(2 * TTL_S)
    assert cluster.state_of("j1") == "running"
    assert not [command for _, command in cluster.sent if isinstance(command, events.StopTask)]


def test_a_device_whose_node_still_holds_it_is_not_granted_again_after_a_restart() -> None:
    cluster = running_remote()
    cluster.restart()
    cluster.join("c")
    cluster.pass_time(TTL_S)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    cluster.submit(job("j2", gpus=1, on="c"))
    cluster.settle()
    assert cluster.state_of("j2") == "queued"
    cluster.join("a")
    cluster.settle()
    assert cluster.state_of("j2") == "running"
    assert not [held for held in cluster.agents["a"].device_side if held.startswith("j1")]


def test_a_lease_that_its_nodes_gave_up_meanwhile_ends_its_job_and_frees_the_device() -> None:
    cluster = running_remote()
    cluster.restart()
    cluster.agents["a"].device_side.clear()
    cluster.agents["c"].die()
    cluster.join()
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert not cluster.machine.leases


def test_a_jump_of_the_wall_clock_ends_nothing_and_forgets_no_node() -> None:
    cluster = running_remote()
    cluster.wall_ahead = 30 * 86_400.0
    cluster.pass_time(3 * TTL_S)
    assert cluster.state_of("j1") == "running"
    cluster.wall_ahead *= 2
    cluster.restart()
    assert {view.name for view in cluster.machine.snapshot(cluster.now).nodes} == {"a", "c"}
    cluster.join()
    cluster.wall_ahead = -300 * 86_400.0
    cluster.pass_time(3 * TTL_S)
    assert cluster.state_of("j1") == "running"


def test_each_side_is_told_where_the_other_sides_agent_serves() -> None:
    a = msgspec.structs.replace(node("a", 1), peer_endpoint="10.0.0.1:7412")
    c = msgspec.structs.replace(node("c"), peer_endpoint="10.0.0.3:7412")
    cluster = Cluster(a, c)
    cluster.join()
    cluster.submit(job(gpus=1, on="c"))
    cluster.settle()
    devices = next(command for _, command in cluster.sent if isinstance(command, events.PrepareDevices))
    client = next(command for _, command in cluster.sent if isinstance(command, events.PrepareClient))
    assert devices.peer_endpoint == "10.0.0.3:7412"
    assert client.leases[0].peer_endpoint == "10.0.0.1:7412"
