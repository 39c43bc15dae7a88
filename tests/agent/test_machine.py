"""The node's machine alone: any order of events, and the cases that matter by name."""

from __future__ import annotations

import enum

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farbus.agent.actions import (
    Action,
    Answer,
    ForgetTask,
    PrepareClient,
    PrepareDevices,
    RecordExit,
    RecordFence,
    ReportClientEnded,
    ReportLeaseEnded,
    ReportTask,
    StartTask,
    StopTask,
    UnprepareClient,
    UnprepareDevices,
    Work,
)
from farbus.agent.events import (
    ActionDone,
    ClientReleased,
    ClientRequested,
    DevicesReleased,
    DevicesRequested,
    DevicesVanished,
    Event,
    HoldClaimed,
    LeasesRenewed,
    LeasesVoided,
    NodeRestored,
    PreparedLease,
    RestoredClient,
    RestoredDevices,
    RestoredTask,
    SessionOpened,
    StartRequested,
    StopRequested,
    SupervisorDied,
    TaskExited,
    TaskLaunched,
    TaskRun,
    TimePassed,
    WedgeEnded,
)
from farbus.agent.leases import HOLD_GRACE_S
from farbus.agent.machine import NodeMachine
from farbus.agent.objects import RUN_STATES, SIDE_STATES, DeviceSide, RunState, SideState
from farbus.errors import IllegalTransition
from farbus.model.device import Route
from farbus.model.job import TaskState, TaskStatus
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.states import StateTable
from farbus.model.volume import StorageGrant

TTL_S = 10.0


def lease(number: str = "l1", *, job: str = "j1", route: Route = Route.REMOTE) -> Lease:
    return Lease(
        id=number,
        job=job,
        task="main.0",
        user="ann",
        client_node="n1",
        device_node="n1",
        route=route,
        devices=(LeasedDevice(device=f"GPU-{number}", epoch=1),),
        term=1,
        secret="00" * 32,
    )


def run(job: str = "j1") -> TaskRun:
    return TaskRun(job=job, task="main.0", user="ann", command=("true",))


def machine() -> NodeMachine:
    one = NodeMachine(node="n1")
    one.handle(SessionOpened(lease_ttl_s=TTL_S, now=0.0))
    return one


def play(one: NodeMachine, *events: Event) -> list[Action]:
    """Handle events; return the last one's actions."""
    actions: list[Action] = []
    for event in events:
        actions = one.handle(event)
        one.validate()
    return actions


def done(actions: list[Action], *, ok: bool = True, **more: object) -> ActionDone:
    """Return the end of the only work among ``actions``."""
    (work,) = [action for action in actions if isinstance(action, Work)]
    return ActionDone(serial=work.serial, ok=ok, **more)  # type: ignore[arg-type]


def errors(actions: list[Action]) -> list[str]:
    """Return the errors of the answers, without the stories."""
    return [action.error.partition(" (")[0] for action in actions if isinstance(action, Answer) and not action.ok]


def prepared(one: NodeMachine, which: Lease) -> None:
    """Bring a lease's device side to prepared."""
    play(one, done(play(one, DevicesRequested(command="p", lease=which, now=0.0)), endpoint="a:1"))


def running(one: NodeMachine, job: str = "j1") -> None:
    """Bring a task to running."""
    play(one, done(play(one, StartRequested(command="s", run=run(job)))))


def test_a_lease_is_prepared_once_however_often_it_is_asked_for() -> None:
    one = machine()
    first = play(one, DevicesRequested(command="c1", lease=lease(), now=0.0))
    assert play(one, DevicesRequested(command="c2", lease=lease(), now=0.0)) == []
    assert play(one, done(first, endpoint="a:1")) == [
        Answer(command="c1", ok=True, endpoint="a:1"),
        Answer(command="c2", ok=True, endpoint="a:1"),
    ]
    assert play(one, DevicesRequested(command="c3", lease=lease(), now=0.0)) == [
        Answer(command="c3", ok=True, endpoint="a:1")
    ]


def test_a_failed_preparation_is_undone_before_it_is_answered() -> None:
    one = machine()
    failed = done(play(one, DevicesRequested(command="c1", lease=lease(), now=0.0)), ok=False, error="no driver")
    undo = play(one, failed)
    assert [type(action) for action in undo] == [UnprepareDevices]
    assert play(one, done(undo)) == [
        Answer(command="c1", ok=False, error="no driver (lease l1, story: preparing -> unpreparing -> absent)")
    ]
    assert not one.held()


def test_a_release_during_preparation_waits_for_it_and_undoes_it() -> None:
    one = machine()
    prepare = play(one, DevicesRequested(command="c1", lease=lease(), now=0.0))
    assert play(one, DevicesReleased(command="c2", lease_id="l1")) == [RecordFence(epochs={"GPU-l1": 2})]
    undo = play(one, done(prepare, endpoint="a:1"))
    assert [type(action) for action in undo] == [UnprepareDevices]
    answers = play(one, done(undo))
    assert [(answer.command, answer.ok) for answer in answers if isinstance(answer, Answer)] == [
        ("c1", False),
        ("c2", True),
    ]


def test_a_release_of_what_is_not_held_is_confirmed() -> None:
    assert play(machine(), DevicesReleased(command="c", lease_id="l1")) == [Answer(command="c", ok=True)]


def test_an_expired_lease_is_fenced_and_reported_once() -> None:
    one = machine()
    prepared(one, lease())
    assert play(one, TimePassed(now=TTL_S - 0.1)) == []
    undo = play(one, TimePassed(now=TTL_S))
    assert [type(action) for action in undo] == [RecordFence, UnprepareDevices]
    assert play(one, TimePassed(now=TTL_S + 1)) == []
    (report,) = play(one, done(undo))
    assert isinstance(report, ReportLeaseEnded)
    assert "not renewed for 10 s" in report.reason


def test_a_renewal_moves_the_expiry() -> None:
    one = machine()
    prepared(one, lease())
    play(one, LeasesRenewed(lease_ids=("l1",), now=5.0))
    assert play(one, TimePassed(now=TTL_S)) == []
    assert one.next_expiry() == 5.0 + TTL_S


def test_a_lease_that_cannot_be_given_up_stays_held_and_is_retried_when_asked() -> None:
    one = machine()
    prepared(one, lease())
    undo = play(one, DevicesReleased(command="c1", lease_id="l1"))
    told = "state D (lease l1, story: preparing -> prepared -> unpreparing -> wedged)"
    assert play(one, done(undo, ok=False, error="state D")) == [Answer(command="c1", ok=False, error=told)]
    assert [(held.lease.id, held.trouble) for held in one.held()] == [("l1", told)]
    again = play(one, DevicesReleased(command="c2", lease_id="l1"))
    assert play(one, done(again)) == [Answer(command="c2", ok=True)]


def test_a_story_tells_what_is_tried_again_and_again_only_twice() -> None:
    one = machine()
    prepared(one, lease())
    told = []
    for attempt in range(20):
        undo = play(one, DevicesReleased(command=f"c{attempt}", lease_id="l1"))
        (answer,) = play(one, done(undo, ok=False, error="state D"))
        assert isinstance(answer, Answer)
        told.append(answer.error)
    tried = " -> unpreparing -> wedged"
    assert told[0] == f"state D (lease l1, story: preparing -> prepared{tried})"
    assert set(told[1:]) == {f"state D (lease l1, story: preparing -> prepared{tried * 2})"}


def test_a_supervisor_that_dies_while_its_start_is_recorded_is_not_missed() -> None:
    one = machine()
    prepare = play(one, DevicesRequested(command="c1", lease=lease(), now=0.0))
    play(one, SupervisorDied(lease_id="l1", reason="it died"))
    undo = play(one, done(prepare, endpoint="a:1"))
    actions = play(one, done(undo))
    assert ReportLeaseEnded(lease=lease().without_secret(), device_side=True, reason="it died") in actions
    assert errors(actions) == ["it died"]


def test_a_task_gets_the_environment_of_its_client_side() -> None:
    one = machine()
    leases = (PreparedLease(lease=lease(), endpoint="a:1"),)
    prepare = play(one, ClientRequested(command="c1", job="j1", task="main.0", user="ann", leases=leases, now=0.0))
    play(one, done(prepare, environment={"FARBUS_SESSION": "/s"}))
    (start,) = play(one, StartRequested(command="c2", run=run()))
    assert isinstance(start, StartTask)
    assert start.environment == {"FARBUS_SESSION": "/s"}


def test_a_task_does_not_start_before_its_client_side_is_prepared() -> None:
    one = machine()
    play(one, ClientRequested(command="c1", job="j1", task="main.0", user="ann", leases=(), now=0.0))
    actions = play(one, StartRequested(command="c2", run=run()))
    assert errors(actions) == ["client j1/main.0 is preparing, not prepared"]


def test_a_program_that_ends_before_its_start_is_recorded_is_told_as_ended() -> None:
    one = machine()
    start = play(one, StartRequested(command="c1", run=run()))
    ended = play(one, TaskExited(job="j1", task="main.0", exit_code=0))
    assert [type(action) for action in ended] == [RecordExit, ReportTask]
    assert play(one, done(start)) == [Answer(command="c1", ok=True)]


def test_an_error_of_the_job_ends_the_task_and_one_of_the_node_does_not() -> None:
    one = machine()
    start = play(one, StartRequested(command="c1", run=run()))
    actions = play(one, done(start, ok=False, error="no such program", exit_code=127, blame_job=True))
    assert Answer(command="c1", ok=True) in actions
    assert one.task_statuses()[0][1].exit_code == 127
    start = play(one, StartRequested(command="c2", run=run("j2")))
    assert errors(play(one, done(start, ok=False, error="disk full"))) == ["disk full"]
    assert [job for job, _ in one.task_statuses()] == ["j1"]


def test_a_task_runs_to_the_scheduler_once_its_files_have_arrived() -> None:
    one = machine()
    staged = msgspec.structs.replace(run(), stage_out=("result",))
    (start,) = play(one, StartRequested(command="c", run=staged))
    states = [action.status.state for action in play(one, done([start])) if isinstance(action, ReportTask)]
    assert states == [TaskState.PENDING]
    ((_, status),) = one.task_statuses()
    assert status.state is TaskState.PENDING
    (report,) = play(one, TaskLaunched(job="j1", task="main.0"))
    assert isinstance(report, ReportTask)
    assert report.status.state is TaskState.RUNNING
    assert not play(one, TaskLaunched(job="j1", task="main.0"))


def test_a_task_whose_files_arrive_before_its_start_is_recorded_is_told_as_running() -> None:
    one = machine()
    staged = msgspec.structs.replace(run(), stage_out=("result",))
    (start,) = play(one, StartRequested(command="c", run=staged))
    assert not play(one, TaskLaunched(job="j1", task="main.0"))
    states = [action.status.state for action in play(one, done([start])) if isinstance(action, ReportTask)]
    assert states == [TaskState.RUNNING]


def test_the_exit_is_recorded_before_it_is_told() -> None:
    one = machine()
    running(one)
    actions = play(one, TaskExited(job="j1", task="main.0", exit_code=3))
    status = TaskStatus(task="main.0", state=TaskState.EXITED, node="n1", exit_code=3)
    assert actions == [RecordExit(job="j1", status=status), ReportTask(job="j1", status=status)]


def test_releasing_a_client_ends_its_task_first() -> None:
    one = machine()
    leases = (PreparedLease(lease=lease(), endpoint="a:1"),)
    play(one, done(play(one, ClientRequested(command="c", job="j1", task="main.0", user="ann", leases=leases, now=0))))
    running(one)
    stop = play(one, ClientReleased(command="c2", job="j1", task="main.0"))
    assert [type(action) for action in stop] == [StopTask]
    undo = play(one, TaskExited(job="j1", task="main.0", exit_code=-9))
    assert [type(action) for action in undo] == [RecordExit, ReportTask, UnprepareClient]
    assert play(one, done(undo)) == [Answer(command="c2", ok=True), ForgetTask(job="j1", task="main.0")]
    assert not one.task_statuses()


def test_releasing_a_local_lease_ends_the_task_that_uses_the_device() -> None:
    one = machine()
    prepared(one, lease(route=Route.LOCAL))
    running(one)
    stop = play(one, DevicesReleased(command="c", lease_id="l1"))
    assert [type(action) for action in stop] == [RecordFence, StopTask]
    undo = play(one, TaskExited(job="j1", task="main.0", exit_code=-9))
    assert isinstance(undo[-1], UnprepareDevices)


def test_a_second_stop_may_shorten_the_grace_and_not_lengthen_it() -> None:
    one = machine()
    running(one)
    play(one, StopRequested(command="c1", job="j1", task="main.0", grace_s=10))
    assert play(one, StopRequested(command="c2", job="j1", task="main.0", grace_s=20)) == []
    (stop,) = play(one, StopRequested(command="c3", job="j1", task="main.0", grace_s=1))
    assert isinstance(stop, StopTask)
    assert stop.grace_s == 1
    ended = play(one, TaskExited(job="j1", task="main.0", exit_code=-9))
    assert [action.command for action in ended if isinstance(action, Answer)] == ["c1", "c2", "c3"]


def test_a_stop_during_the_start_follows_it() -> None:
    one = machine()
    start = play(one, StartRequested(command="c1", run=run()))
    assert play(one, StopRequested(command="c2", job="j1", task="main.0", grace_s=1)) == []
    assert isinstance(play(one, done(start))[-1], StopTask)


def test_ended_tasks_of_an_earlier_agent_are_told_until_they_are_released() -> None:
    status = TaskStatus(task="main.0", state=TaskState.EXITED, node="n1", exit_code=-9, reason="the agent ended")
    one = NodeMachine(node="n1")
    play(one, NodeRestored(now=0.0, ended_tasks=(("j1", status),)))
    assert one.task_statuses() == (("j1", status),)
    actions = play(one, ClientReleased(command="c", job="j1", task="main.0"))
    assert actions == [ForgetTask(job="j1", task="main.0"), Answer(command="c", ok=True)]
    assert not one.task_statuses()


def restored(one: NodeMachine, **what: object) -> list[Action]:
    """Let a machine begin with what an earlier agent left."""
    return play(one, NodeRestored(now=100.0, lease_ttl_s=TTL_S, term=1, **what))  # type: ignore[arg-type]


def client(number: str = "l1", *, interactive: bool = False, lost: str = "") -> RestoredClient:
    return RestoredClient(
        job="j1",
        task="main.0",
        user="ann",
        leases=(PreparedLease(lease=lease(number).without_secret(), endpoint="a:1"),),
        environment={"FARBUS_SESSION": "/s"},
        interactive=interactive,
        lost=lost,
    )


def test_what_was_adopted_is_held_and_its_secret_is_not_asked_for() -> None:
    one = NodeMachine(node="n1")
    devices = RestoredDevices(lease=lease().without_secret(), endpoint="a:1")
    assert restored(one, devices=(devices,), clients=(client(),), tasks=(RestoredTask(run=run()),)) == []
    assert [(held.lease.id, held.device_side) for held in one.held()] == [("l1", True), ("l1", False)]
    assert one.running() == (("j1", "main.0"),)
    assert one.client_environment("j1", "main.0") == {"FARBUS_SESSION": "/s"}
    again = play(one, DevicesRequested(command="c1", lease=lease(), now=100.0))
    assert again == [Answer(command="c1", ok=True, endpoint="a:1")]
    # From now on the secret is known: another one is another lease.
    other = msgspec.structs.replace(lease(), secret="11" * 32)
    assert errors(play(one, DevicesRequested(command="c2", lease=other, now=100.0))) == [
        "lease l1 is held with other devices or another secret"
    ]


def test_a_restored_lease_lasts_as_long_as_one_that_was_just_renewed() -> None:
    one = NodeMachine(node="n1")
    restored(one, devices=(RestoredDevices(lease=lease().without_secret(), endpoint="a:1"),))
    assert one.next_expiry() == 100.0 + TTL_S


def test_what_was_not_observed_is_given_up_the_task_first() -> None:
    one = NodeMachine(node="n1")
    devices = RestoredDevices(lease=lease().without_secret(), endpoint="a:1", lost="its supervisor is gone")
    stop, undo = restored(
        one, devices=(devices,), clients=(client(lost="its file is gone"),), tasks=(RestoredTask(run=run()),)
    )
    assert isinstance(stop, StopTask)
    assert isinstance(undo, UnprepareDevices)
    assert one.is_giving_up()
    ended = play(one, TaskExited(job="j1", task="main.0", exit_code=-9))
    assert [type(action) for action in ended] == [RecordExit, ReportTask, UnprepareClient]
    told = [*play(one, done(ended)), *play(one, done([undo]))]
    assert [(action.device_side, action.reason) for action in told if isinstance(action, ReportLeaseEnded)] == [
        (False, "its file is gone"),
        (True, "its supervisor is gone"),
    ]
    assert not one.is_giving_up()


def test_a_task_that_is_lost_has_ended_on_record() -> None:
    one = NodeMachine(node="n1")
    actions = restored(one, tasks=(RestoredTask(run=run(), lost="node n1 was rebooted while it ran"),))
    assert [type(action) for action in actions] == [RecordExit, ReportTask]
    assert one.task_statuses()[0][1].reason == "node n1 was rebooted while it ran"


def test_a_hold_that_nobody_claims_after_a_restart_ends() -> None:
    one = NodeMachine(node="n1")
    restored(one, clients=(client(interactive=True),))
    play(one, LeasesRenewed(lease_ids=("l1",), now=109.0))
    assert one.next_expiry() == 100.0 + HOLD_GRACE_S
    assert play(one, TimePassed(now=100.0 + HOLD_GRACE_S - 0.1)) == []
    undo = play(one, TimePassed(now=100.0 + HOLD_GRACE_S))
    (report,) = play(one, done(undo))
    assert isinstance(report, ReportLeaseEnded)
    assert "no program in a terminal came for it within 15 s" in report.reason


def test_a_hold_that_is_claimed_lasts() -> None:
    one = NodeMachine(node="n1")
    restored(one, clients=(client(interactive=True),))
    play(one, HoldClaimed(job="j1", task="main.0"), LeasesRenewed(lease_ids=("l1",), now=109.0))
    assert play(one, TimePassed(now=100.0 + HOLD_GRACE_S)) == []


def test_a_hold_without_devices_is_reported_by_its_task() -> None:
    one = NodeMachine(node="n1")
    restored(one, clients=(msgspec.structs.replace(client(interactive=True), leases=()),))
    (report,) = play(one, done(play(one, TimePassed(now=100.0 + HOLD_GRACE_S))))
    assert isinstance(report, ReportClientEnded)
    assert (report.job, report.task) == ("j1", "main.0")


def test_a_device_that_is_held_is_not_prepared_for_another_lease() -> None:
    one = machine()
    prepared(one, lease())
    other = msgspec.structs.replace(lease("l2"), devices=lease().devices)
    (answer,) = play(one, DevicesRequested(command="c", lease=other, now=0.0))
    assert answer == Answer(
        command="c",
        ok=False,
        error="device GPU-l1 is held by lease l1 on n1 (lease l1, story: preparing -> prepared)",
    )


def test_a_lease_that_was_released_can_not_be_had_again() -> None:
    one = machine()
    prepared(one, lease())
    fence, undo = play(one, DevicesReleased(command="c1", lease_id="l1"))
    assert fence == RecordFence(epochs={"GPU-l1": 2})
    play(one, done([undo]))
    (answer,) = play(one, DevicesRequested(command="c2", lease=lease(), now=0.0))
    assert isinstance(answer, Answer)
    assert "lease l1 is stale: its epoch of device GPU-l1 is 1, and 2 is the least" in answer.error
    # Neither after a restart.
    after = NodeMachine(node="n1")
    restored(after, fences={"GPU-l1": 2})
    assert "is stale" in errors(play(after, DevicesRequested(command="c3", lease=lease(), now=0.0)))[0]


def test_a_scheduler_that_was_replaced_is_not_obeyed() -> None:
    one = machine()
    play(one, SessionOpened(lease_ttl_s=TTL_S, now=0.0, term=5))
    actions = play(one, DevicesRequested(command="c", lease=lease(), now=0.0, term=4))
    assert errors(actions) == ["the scheduler of term 4 was replaced by that of term 5"]
    prepared(one, lease())
    assert play(one, LeasesVoided(lease_ids=("l1",), term=4)) == []


def test_a_device_that_is_pulled_out_ends_its_lease() -> None:
    one = machine()
    prepared(one, lease())
    ending = play(one, DevicesVanished(devices=("GPU-l1", "GPU-9")))
    (report,) = play(one, done(ending))
    assert isinstance(report, ReportLeaseEnded)
    assert report.reason == "lease l1 has ended: device GPU-l1 is gone from node n1"


def test_an_overdue_preparation_is_wedged_and_undone_when_it_has_ended() -> None:
    one = machine()
    prepare = play(one, DevicesRequested(command="c1", lease=lease(), now=0.0))
    overdue = done(prepare, ok=False, error="still not done", wedged=True)
    (answer,) = play(one, overdue)
    assert answer == Answer(command="c1", ok=False, error="still not done (lease l1, story: preparing -> wedged)")
    (held,) = one.held()
    assert held.trouble == "still not done (lease l1, story: preparing -> wedged)"
    undo = play(one, WedgeEnded(object="lease l1"))
    assert [type(action) for action in undo] == [UnprepareDevices]
    play(one, done(undo))
    assert not one.held()


def test_an_overdue_start_is_stopped_when_it_has_ended() -> None:
    one = machine()
    start = play(one, StartRequested(command="c1", run=run()))
    assert errors(play(one, done(start, ok=False, error="still not done", wedged=True))) == ["still not done"]
    (stop,) = play(one, WedgeEnded(object="task j1/main.0"))
    assert isinstance(stop, StopTask)
    # It had not started: what stopped it says so, since no program will.
    ended = play(one, done([stop]))
    assert [type(action) for action in ended] == [RecordExit, ReportTask]


def test_a_state_that_does_not_follow_raises_with_the_story() -> None:
    side = DeviceSide(name="lease l1", lease=lease())
    side.go(SideState.PREPARING)
    with pytest.raises(IllegalTransition, match=r"lease l1: preparing to absent is not legal \(story: preparing\)"):
        side.go(SideState.ABSENT)


@pytest.mark.parametrize(("table", "states"), [(SIDE_STATES, SideState), (RUN_STATES, RunState)])
def test_every_state_has_its_row_and_leads_to_an_end(
    table: StateTable[enum.StrEnum], states: type[enum.StrEnum]
) -> None:
    assert set(table.arrows) == set(states)
    ends = {SideState.ABSENT, RunState.EXITED} & set(states)
    for _ in states:
        ends |= {state for state in states if table.arrows[state] & ends}
    assert ends == set(states)


def room(number: str = "l1", *, epoch: int = 1, job: str = "j1", route: Route = Route.REMOTE) -> Lease:
    """Return a lease of room on the drive that all of these are on."""
    return msgspec.structs.replace(
        lease(number, job=job, route=route),
        devices=(LeasedDevice(device="NVME-1", epoch=epoch),),
        storage=StorageGrant(name="data", size_bytes=1 << 20),
    )


def test_rooms_on_one_drive_are_held_and_fenced_each_by_itself() -> None:
    one = machine()
    first, second = room("l1", epoch=1), room("l2", epoch=2)
    prepared(one, second)
    prepared(one, first)
    play(one, done(play(one, DevicesReleased(command="c1", lease_id="l2"))))
    # The older epoch is served on; what is over is not served again.
    assert [type(each) for each in play(one, DevicesRequested(command="c2", lease=first, now=0.0))] == [Answer]
    (late,) = errors(play(one, DevicesRequested(command="c3", lease=second, now=0.0)))
    assert late.startswith("lease l2 is stale: its epoch of device room of lease l2 is 2, and 3 is the least")
    (gone,) = play(one, DevicesVanished(devices=("NVME-1",)))[-1:]
    assert isinstance(gone, UnprepareDevices)


def test_local_storage_goes_after_what_uses_it_and_is_tried_where_that_is_wedged() -> None:
    one = machine()
    which = room(route=Route.LOCAL)
    prepared(one, which)
    leases = (PreparedLease(lease=which),)
    client = ClientRequested(command="c1", job="j1", task="main.0", user="ann", leases=leases, now=0.0)
    play(one, done(play(one, client)))
    *_, undo = play(one, DevicesReleased(command="c2", lease_id="l1"))
    assert isinstance(undo, UnprepareClient)
    assert undo.force
    stuck = play(one, done([undo], ok=False, error="still held"))
    (ending,) = [each for each in stuck if isinstance(each, Work)]
    assert isinstance(ending, UnprepareDevices)
    play(one, done([ending], ok=False, error="in use"))
    assert [bool(held.trouble) for held in one.held()] == [True, True]
    # When the scheduler asks again and it goes, what it stood on goes too.
    (again,) = play(one, ClientReleased(command="c3", job="j1", task="main.0"))
    after = play(one, done([again]))
    play(one, done([each for each in after if isinstance(each, Work)]))
    assert not one.held()


def test_storage_that_never_came_to_be_waits_for_no_client_that_was_to_have_it() -> None:
    one = machine()
    stored = room("l1", job="j1", route=Route.LOCAL)
    leases = (PreparedLease(lease=stored, endpoint="a:1"),)
    asked = ClientRequested(command="c1", job="j1", task="main.0", user="ann", leases=leases, now=0.0)
    assert [type(each) for each in play(one, asked)] == [PrepareClient]
    (making,) = [
        each for each in play(one, DevicesRequested(command="c2", lease=stored, now=0.0)) if isinstance(each, Work)
    ]
    failed = ActionDone(serial=making.serial, ok=False, error="no room")
    assert [type(each) for each in play(one, failed) if isinstance(each, Work)] == [UnprepareDevices]
    one.validate()


NUMBERS = st.sampled_from(["1", "2", "3", "4", "5"])


class AnyOrder(RuleBasedStateMachine):
    """Commands, ends of work, deaths, expiry, in any order, lost and doubled.

    Checked: at most one piece of work per object; no two leases of one device
    are prepared by contradictory work; every command is answered exactly once,
    at the latest when everything has been released and all work has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.machine = machine()
        self.now = 0.0
        self.work: dict[int, Work] = {}
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.programs: set[str] = set()

    def feed(self, event: Event) -> None:
        for action in self.machine.handle(event):
            if isinstance(action, Answer):
                self.answered.append(action.command)
            elif isinstance(action, Work):
                busy = [self.object_of(other) for other in self.work.values() if not isinstance(other, StopTask)]
                if not isinstance(action, StopTask):
                    assert self.object_of(action) not in busy
                self.work[action.serial] = action

    @staticmethod
    def object_of(work: Work) -> str:
        match work:
            case PrepareDevices():
                return f"lease {work.lease.id}"
            case UnprepareDevices():
                return f"lease {work.lease.id}"
            case PrepareClient() | UnprepareClient():
                return f"client {work.job}"
            case StartTask():
                return f"task {work.run.job}"
            case StopTask():
                return f"task {work.job}"

    def command(self) -> str:
        self.asked.append(f"c{len(self.asked)}")
        return self.asked[-1]

    def lease(self, number: str) -> Lease:
        if number in "45":
            # Both on one drive.
            return room(f"l{number}", job=f"j{number}", route=Route.LOCAL if number == "4" else Route.REMOTE)
        return lease(f"l{number}", job=f"j{number}", route=Route.LOCAL if number == "2" else Route.REMOTE)

    @rule(number=NUMBERS)
    def devices_requested(self, number: str) -> None:
        self.feed(DevicesRequested(command=self.command(), lease=self.lease(number), now=self.now))

    @rule(number=NUMBERS)
    def devices_released(self, number: str) -> None:
        self.feed(DevicesReleased(command=self.command(), lease_id=f"l{number}"))

    @rule(number=NUMBERS)
    def client_requested(self, number: str) -> None:
        leases = (PreparedLease(lease=self.lease(number), endpoint="a:1"),)
        self.feed(
            ClientRequested(
                command=self.command(), job=f"j{number}", task="main.0", user="ann", leases=leases, now=self.now
            )
        )

    @rule(number=NUMBERS)
    def client_released(self, number: str) -> None:
        self.feed(ClientReleased(command=self.command(), job=f"j{number}", task="main.0"))

    @rule(number=NUMBERS)
    def start_requested(self, number: str) -> None:
        self.feed(StartRequested(command=self.command(), run=run(f"j{number}")))

    @rule(number=NUMBERS, grace_s=st.sampled_from([0.0, 1.0]))
    def stop_requested(self, number: str, grace_s: float) -> None:
        self.feed(StopRequested(command=self.command(), job=f"j{number}", task="main.0", grace_s=grace_s))

    @rule(number=NUMBERS)
    def supervisor_died(self, number: str) -> None:
        self.feed(SupervisorDied(lease_id=f"l{number}", reason="it died"))

    @rule(number=NUMBERS)
    def voided(self, number: str) -> None:
        self.feed(LeasesVoided(lease_ids=(f"l{number}",)))

    @rule(number=NUMBERS)
    def renewed(self, number: str) -> None:
        self.feed(LeasesRenewed(lease_ids=(f"l{number}",), now=self.now))

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0]))
    def time_passed(self, seconds: float) -> None:
        self.now += seconds
        self.feed(TimePassed(now=self.now))

    @precondition(lambda self: self.work)
    @rule(data=st.data(), ok=st.booleans(), blame_job=st.booleans())
    def work_ends(self, data: st.DataObject, ok: bool, blame_job: bool) -> None:
        serial = data.draw(st.sampled_from(sorted(self.work)))
        self.end(serial, ok=ok, blame_job=blame_job)

    def end(self, serial: int, *, ok: bool, blame_job: bool = False) -> None:
        work = self.work.pop(serial)
        if isinstance(work, StartTask) and ok:
            self.programs.add(work.run.job)
        if isinstance(work, StopTask) and ok and work.job in self.programs:
            self.programs.discard(work.job)
            self.feed(TaskExited(job=work.job, task="main.0", exit_code=-9))
        self.feed(ActionDone(serial=serial, ok=ok, error="" if ok else "trouble", exit_code=1, blame_job=blame_job))

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def program_ends(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.programs)))
        self.programs.discard(job)
        self.feed(TaskExited(job=job, task="main.0", exit_code=0))

    @invariant()
    def objects_are_sound(self) -> None:
        self.machine.validate()
        assert len(self.answered) == len(set(self.answered))

    def teardown(self) -> None:
        """Release everything, let all work succeed: nothing is held, and every command has its answer."""
        for number in ("1", "2", "3", "4", "5"):
            self.feed(ClientReleased(command=self.command(), job=f"j{number}", task="main.0"))
            self.feed(DevicesReleased(command=self.command(), lease_id=f"l{number}"))
        while self.work:
            self.end(min(self.work), ok=True)
        self.machine.validate()
        assert not self.machine.held()
        assert not self.machine.task_statuses()
        assert sorted(self.answered) == sorted(self.asked)


AnyOrder.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
