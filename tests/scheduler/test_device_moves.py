"""Moves of devices between nodes, step by step: who is asked for what, and where the device is afterwards."""

from __future__ import annotations

import msgspec
import pytest

from farbus.agent.moving import MoveOutcome
from farbus.agent.session import move_answer
from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, Unavailable
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort, FabricStep, StepHistory
from farbus.model.move import MoveRequest, MoveState, NodeMove
from farbus.model.operation import Cordon, CordonKind
from farbus.model.pci import Function
from farbus.model.states import DeviceState
from farbus.scheduler import events
from farbus.scheduler.device_moves import MOVES_AHEAD
from farbus.scheduler.move_requests import plan_move
from farbus.scheduler.reports import read_node_move
from tests.scheduler.scripted import TTL_S, Cluster, gpu, job, node

MOVED = "GPU-a-0"


def cabled(*, free: bool = False) -> Cluster:
    """Nodes a (with a GPU) and b in one chassis, whose credentials both have; c has no cable."""
    cluster = Cluster(node("a", 1), node("b"), node("c"))
    fabric = cluster.give_fabric(*((gpu("spare"),) if free else ()), to=("a", "b"))
    assert fabric.name == "falcon"
    cluster.join()
    cluster.read_chassis()
    return cluster


def status(cluster: Cluster, device: str = MOVED) -> tuple[str, DeviceState, str]:
    """Return node, state and move of a device."""
    (found,) = [each for each in cluster.machine.device_statuses() if each.device.id == device]
    return found.node, found.state, found.move


def asked(cluster: Cluster) -> list[tuple[str, events.Command]]:
    return [each for each in cluster.sent if isinstance(each[1], events.DetachDevice | events.AttachDevice)]


def refuse(cluster: Cluster, name: str, error: str, **told: object) -> None:
    """Have a node answer its next command with a no."""
    agent = cluster.agents[name]
    command = agent.inbox.pop(0)
    move = NodeMove(**told)  # type: ignore[arg-type]
    cluster.tell(msgspec.structs.replace(agent.answer(command, error=error), move=move))


def test_a_device_is_detached_here_and_attached_there() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b", evict=True, drain_s=5.0)
    assert status(cluster) == ("a", DeviceState.MOVING, move)
    cluster.settle()
    first, second = asked(cluster)
    assert first == (
        "a",
        events.DetachDevice(
            command_id="m1.detach-device", move_id="m1", device=MOVED, chassis="falcon", evict=True, drain_s=5.0
        ),
    )
    assert second == (
        "b",
        events.AttachDevice(command_id="m1.attach-device", move_id="m1", device=MOVED, chassis="falcon", port="port-b"),
    )
    assert (cluster.moves[move].state, cluster.moves[move].path) == (MoveState.DONE, "/dev/GPU-a-0")
    assert status(cluster) == ("b", DeviceState.FREE, "")


def test_the_next_node_learns_what_the_first_one_saw() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    agent = cluster.agents["a"]
    command = agent.inbox.pop(0)
    function = Function(address="0000:17:00.0", vendor=0x10DE, device=0x2330, pci_class=0x030200)
    outcome = agent.do(command)
    assert outcome is not None
    cluster.tell(msgspec.structs.replace(outcome, move=NodeMove(functions=(function,))))
    _, attach = asked(cluster)[-1]
    assert isinstance(attach, events.AttachDevice)
    assert msgspec.json.decode(attach.functions, type=tuple[Function, ...]) == (function,)


def test_a_moving_device_is_given_to_nobody_and_its_epoch_has_risen() -> None:
    cluster = cabled()
    before = cluster.machine.devices[MOVED].epoch
    cluster.move(MOVED, "b")
    assert cluster.machine.devices[MOVED].epoch == before + 1
    cluster.submit(job(gpus=1))
    while cluster.round_asked:
        cluster.decide()
    assert cluster.state_of("j1") == "queued"
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    assert cluster.machine.leases["j1-1-0"].lease.devices[0].epoch == before + 2


def test_a_placement_on_a_device_that_is_moved_meanwhile_is_refused() -> None:
    cluster = cabled()
    cluster.submit(job(gpus=1))
    cluster.round_asked = False
    snapshot, pending, generation = cluster.machine.round_input(cluster.now)
    from tests.scheduler.scripted import first_fit

    cluster.move(MOVED, "b")
    cluster.tell(events.RoundDecided(decision=first_fit(snapshot, pending), generation=generation))
    assert not cluster.machine.leases
    assert cluster.state_of("j1") == "queued"


def test_a_device_with_a_lease_is_not_moved_and_its_job_is_named() -> None:
    cluster = cabled()
    cluster.submit(job(gpus=1))
    cluster.settle()
    with pytest.raises(Conflict, match="device GPU-a-0 is used by job j1 of ada on node a; farbus cancel j1"):
        cluster.move(MOVED, "b")


def test_a_device_on_its_way_is_not_moved_again() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    with pytest.raises(Conflict, match=r"on its way to node b \(move m1\)"):
        cluster.move(MOVED)


@pytest.mark.parametrize(
    ("device", "to", "more", "error"),
    [
        ("GPU-none", "b", {}, NotFound("there is no device GPU-none")),
        (MOVED, "d", {}, NotFound("there is no node d")),
        (MOVED, "a", {}, Conflict("device GPU-a-0 is on node a already")),
        (MOVED, "b", {"port": "port-a"}, InvalidInput("port: port-a of chassis falcon leads to node a, not to node b")),
        (MOVED, "b", {"port": "nowhere"}, NotFound("chassis falcon: no port nowhere")),
        (MOVED, "", {"port": "port-b"}, InvalidInput("port: it is that of a node, and none is named")),
        (MOVED, "b", {"drain_s": -1.0}, InvalidInput("drain_s: -1 is not from 0 to 86400")),
        ("", "b", {}, InvalidInput("device: none is named")),
    ],
)
def test_what_can_not_be_is_refused(device: str, to: str, more: dict[str, object], error: FarbusError) -> None:
    cluster = cabled()
    with pytest.raises(type(error)) as told:
        cluster.move(device, to, **more)
    assert told.value.message.startswith(error.message)
    assert not cluster.machine.moves


def test_who_gives_the_beginning_of_an_id_is_asked_which_device_is_meant() -> None:
    with pytest.raises(NotFound, match=r"there is no device GPU-a; did you mean GPU-a-0\?"):
        cabled().move("GPU-a", "b")


def test_a_device_that_its_chassis_alone_has_at_the_node_is_refused_with_how_to_bring_it_there() -> None:
    cluster = cabled(free=True)
    fabric = cluster.agents["a"].fabric
    assert fabric is not None
    fabric.assign("GPU-spare", "a")
    cluster.read_chassis()
    with pytest.raises(Conflict) as told:
        cluster.move("GPU-spare", "a")
    assert str(told.value) == (
        "device GPU-spare is assigned to node a in chassis falcon already, and that node has no such device; "
        "farbus detach frees it; then attach it again"
    )


def test_nothing_brings_a_device_without_a_chassis_to_another_node() -> None:
    cluster = Cluster(node("a", 1), node("b"))
    cluster.join()
    with pytest.raises(Conflict, match="no chassis has device GPU-a-0: nothing brings it from node a to node b"):
        cluster.move(MOVED, "b")
    move = cluster.move(MOVED)
    cluster.settle()
    assert cluster.moves[move].state is MoveState.DONE
    assert asked(cluster)[0][1].chassis == ""  # type: ignore[union-attr]
    assert status(cluster) == ("", DeviceState.UNASSIGNED, "")


def test_a_node_that_is_away_is_neither_asked_nor_told() -> None:
    cluster = cabled()
    cluster.lose("b")
    with pytest.raises(Unavailable, match="node b can't be reached now"):
        cluster.move(MOVED, "b")


# --- failures ------------------------------------------------------------------------------------


def test_a_detach_that_is_refused_has_changed_nothing() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    refuse(cluster, "a", "still open in pid 7 (python3)")
    assert cluster.moves[move].state is MoveState.FAILED
    assert cluster.moves[move].error == "node a: still open in pid 7 (python3)"
    assert status(cluster) == ("a", DeviceState.FREE, "")


def test_a_detach_that_was_undone_says_so() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    refuse(cluster, "a", "the chassis said no", changed=True)
    assert cluster.moves[move].state is MoveState.UNDONE
    assert status(cluster) == ("a", DeviceState.FREE, "")


@pytest.mark.parametrize("to", ["", "b"])
def test_what_to_do_about_a_refusal_is_told_by_itself(to: str) -> None:
    cluster = cabled()
    move = cluster.move(MOVED, to)
    cluster.step("a") if to else None
    outcome = MoveOutcome(error="it is held by pid 7", hint="stop it")
    answer = move_answer("", outcome)
    node_name = to or "a"
    told = read_node_move(node_name, answer.move)
    assert told is not None
    refuse(cluster, node_name, answer.error, hint=told.hint)
    cluster.settle()
    assert (cluster.moves[move].error, cluster.moves[move].hint) == (
        f"node {node_name}: it is held by pid 7",
        "stop it",
    )


def test_an_attach_that_fails_has_the_first_node_take_it_back() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    cluster.step("a")
    refuse(cluster, "b", "no room for BAR 2")
    assert cluster.machine.move_statuses()[0].says == "node a is asked to take it back"
    cluster.settle()
    name, back = asked(cluster)[-1]
    assert isinstance(back, events.AttachDevice)
    assert (name, back.move_id, back.port) == ("a", "m1.back", "port-a")
    assert cluster.moves[move].state is MoveState.UNDONE
    assert cluster.moves[move].error == "node b: no room for BAR 2"
    assert status(cluster) == ("a", DeviceState.FREE, "")


def test_what_nobody_can_take_is_stuck_with_its_story_and_keeps_the_device() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    cluster.step("a")
    refuse(cluster, "b", "no room")
    refuse(cluster, "a", "the chassis does not answer")
    (stuck,) = cluster.machine.move_statuses()
    assert stuck.state is MoveState.STUCK
    assert stuck.error == "node b: no room; and it was not taken back: node a: the chassis does not answer"
    assert "farbus attach" in stuck.hint
    assert status(cluster) == ("", DeviceState.WEDGED, move)
    cluster.restart()
    cluster.join()
    assert cluster.machine.move_statuses()[0].state is MoveState.STUCK
    assert cluster.machine.mover_of(MOVED) == move


def test_a_stuck_device_moves_when_it_is_asked_for_again() -> None:
    cluster = cabled()
    first = cluster.move(MOVED, "b")
    cluster.step("a")
    refuse(cluster, "b", "it hangs", stuck=True)
    assert cluster.machine.moves[first].move.state is MoveState.STUCK
    cluster.read_chassis()
    second = cluster.move(MOVED, "b")
    assert cluster.memory.ended_moves[first].taken_over_by == second
    cluster.settle()
    assert cluster.moves[second].state is MoveState.DONE
    assert status(cluster) == ("b", DeviceState.FREE, "")


def test_a_stuck_device_that_is_at_no_node_is_free_again_once_it_is_detached() -> None:
    cluster = cabled()
    first = cluster.move(MOVED, "b")
    cluster.step("a")
    refuse(cluster, "b", "no room")
    refuse(cluster, "a", "the chassis does not answer")
    cluster.read_chassis()
    assert status(cluster) == ("", DeviceState.WEDGED, first)
    second = cluster.move(MOVED, "")
    assert cluster.memory.ended_moves[first].taken_over_by == second
    cluster.settle()
    name, command = asked(cluster)[-1]
    assert (name, type(command), command.move_id) == ("a", events.DetachDevice, second)
    assert cluster.moves[second].state is MoveState.DONE
    assert status(cluster) == ("", DeviceState.UNASSIGNED, "")


def test_a_device_that_its_first_node_is_stuck_with_is_given_up_by_that_node() -> None:
    """The other one was never asked: it would say at once that it is gone, while the first one still takes it back."""
    cluster = cabled()
    first = cluster.move(MOVED, "b")
    # It was unassigned, and nothing could be read afterwards.
    agent = cluster.agents["a"]
    agent.fabric.unassign(MOVED, "a")  # type: ignore[union-attr]
    agent.node = msgspec.structs.replace(agent.node, devices=())
    refuse(cluster, "a", "whether it was done is not known", stuck=True)
    cluster.tell(agent.inventory())
    cluster.read_chassis()
    assert status(cluster)[1:] == (DeviceState.WEDGED, first)
    second = cluster.move(MOVED, "")
    assert cluster.machine.moves[second].move.from_node == "a"
    cluster.settle()
    assert status(cluster) == ("", DeviceState.UNASSIGNED, "")


def test_a_device_that_is_stuck_where_it_is_to_be_is_attached_there_again() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    cluster.step("a")
    agent = cluster.agents["b"]
    agent.fabric.assign(MOVED, "b")  # type: ignore[union-attr]
    refuse(cluster, "b", "the driver hangs", stuck=True)
    cluster.read_chassis()
    again = cluster.move(MOVED, "b")
    assert cluster.machine.moves[again].move.from_node == ""
    cluster.settle()
    assert cluster.moves[again].state is MoveState.DONE


def test_a_device_that_was_free_and_can_not_be_attached_is_free_again() -> None:
    cluster = cabled(free=True)
    move = cluster.move("GPU-spare", "b")
    refuse(cluster, "b", "no room")
    assert cluster.moves[move].state is MoveState.FAILED
    assert status(cluster, "GPU-spare") == ("", DeviceState.UNASSIGNED, "")


# --- nodes and schedulers that go ----------------------------------------------------------------


@pytest.mark.parametrize("away", ["a", "b"])
def test_a_node_that_is_lost_in_the_middle_is_waited_for(away: str) -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    if away == "b":
        cluster.step("a")
    cluster.lose(away)
    cluster.pass_time(10 * TTL_S)
    (waiting,) = cluster.machine.move_statuses()
    assert waiting.says.startswith(f"waits for node {away}, which can't be reached, last heard at 2023-")
    assert cluster.machine.mover_of(MOVED) == move
    cluster.join(away)
    cluster.settle()
    assert cluster.moves[move].state is MoveState.DONE
    assert status(cluster) == ("b", DeviceState.FREE, "")


def test_an_answer_that_was_lost_with_its_session_is_asked_for_again() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    agent = cluster.agents["a"]
    agent.do(agent.inbox.pop(0))
    cluster.lose("a")
    cluster.join("a")
    assert status(cluster) == ("a", DeviceState.MOVING, move)
    cluster.settle()
    assert [name for name, _ in asked(cluster)] == ["a", "a", "b"]
    assert cluster.moves[move].state is MoveState.DONE


def test_a_silent_node_is_asked_again_and_nothing_is_concluded() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    cluster.agents["a"].inbox.clear()
    cluster.pass_time(2000.0, step_s=3.0)
    assert [command.command_id for _, command in asked(cluster)] == ["m1.detach-device", "m1.detach-device.1.1"]  # type: ignore[union-attr]
    assert cluster.machine.move_statuses()[0].state is MoveState.DETACHING


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_restarted_scheduler_goes_on_with_it(steps: int) -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    for name in ("a", "b")[:steps]:
        cluster.step(name)
    cluster.restart()
    cluster.join()
    cluster.settle()
    if steps < 2:
        assert cluster.moves[move].state is MoveState.DONE
    assert cluster.memory.ended_moves[move].state is MoveState.DONE
    assert status(cluster) == ("b", DeviceState.FREE, "")


def test_a_restart_in_the_middle_of_the_way_back_goes_on_with_that() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    cluster.step("a")
    refuse(cluster, "b", "no room")
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.memory.ended_moves[move].state is MoveState.UNDONE
    assert status(cluster) == ("a", DeviceState.FREE, "")


def test_every_move_has_a_number_of_its_own_over_restarts() -> None:
    cluster = cabled()
    assert cluster.move(MOVED, "b") == "m1"
    cluster.settle()
    cluster.restart()
    cluster.join()
    cluster.read_chassis()
    assert cluster.move(MOVED, "a") == "m2"


def test_a_move_whose_node_is_off_for_good_is_stuck() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    cluster.lose("a")
    cluster.tell(events.NodeForgotten(node="a", reason="node a is off, says ann"))
    (stuck,) = cluster.machine.move_statuses()
    assert (stuck.state, stuck.error) == (MoveState.STUCK, "node a is off, says ann")


def test_a_move_that_comes_to_a_node_that_is_forgotten_waits_for_nobody() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    cluster.lose("b")
    cluster.tell(events.NodeForgotten(node="b", reason="node b is off, says ann"))
    cluster.settle()
    (ended,) = cluster.memory.ended_moves.values()
    assert (ended.state, ended.error) == (MoveState.UNDONE, "node b: it is forgotten")
    assert status(cluster) == ("a", DeviceState.FREE, "")


def test_a_device_that_a_forgotten_node_is_to_take_back_is_stuck() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    cluster.step("a")
    cluster.lose("a")
    cluster.tell(events.NodeForgotten(node="a", reason="node a is off, says ann"))
    refuse(cluster, "b", "no room")
    (stuck,) = cluster.machine.move_statuses()
    assert stuck.state is MoveState.STUCK
    assert stuck.error == "node b: no room; and it was not taken back: node a: it is forgotten"
    again = cluster.move(MOVED, "b")
    cluster.settle()
    assert cluster.moves[again].state is MoveState.DONE


def test_a_node_that_a_restarted_scheduler_has_not_heard_of_yet_is_waited_for() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    cluster.restart()
    cluster.join("a")
    cluster.step("a")
    (waiting,) = cluster.machine.move_statuses()
    assert waiting.state is MoveState.ATTACHING
    assert waiting.error == ""


def test_an_outcome_of_another_node_changes_nothing() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    liar = cluster.agents["c"]
    cluster.tell(events.OutcomeArrived(node="c", session=liar.session, command_id="m1.detach-device", ok=True))
    cluster.tell(
        events.MoveProgressed(
            node="c", session=liar.session, move_id="m1", step=1, steps=2, says="a lie", expected_s=1.0
        )
    )
    (waiting,) = cluster.machine.move_statuses()
    assert (waiting.state, waiting.says) == (MoveState.DETACHING, "node a is asked to give it")


# --- progress, dry runs --------------------------------------------------------------------------


def test_progress_is_told_with_the_expected_time_of_the_whole() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    agent = cluster.agents["a"]
    progress = events.MoveProgressed(
        node="a", session=agent.session, move_id="m1", step=2, steps=5, says="wait for holders", expected_s=9.0
    )
    cluster.tell(progress)
    (moving,) = cluster.machine.move_statuses()
    assert (moving.step, moving.steps, moving.says, moving.expected_s) == (2, 5, "wait for holders", 0.0)
    times = {FabricStep.ASSIGN: (20.0,), FabricStep.UNASSIGN: (10.0,), FabricStep.LIST: (1.0,)}
    record = cluster.machine.chassis["falcon"]
    cluster.tell(
        events.ChassisReported(
            node="a",
            session=agent.session,
            term=record.term,
            view=record.view,
            history=StepHistory(times=times),  # type: ignore[arg-type]
        )
    )
    assert cluster.machine.move_statuses()[0].expected_s == 9.0 + 22.0


def test_a_dry_run_tells_both_nodes_plans_and_leaves_no_entry() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b", dry_run=True)
    cluster.settle()
    over = cluster.moves[move]
    assert (over.state, over.plan) == (MoveState.DONE, ("a: detach GPU-a-0", "b: attach GPU-a-0"))
    assert over.expected_s == 7.0
    assert not cluster.memory.moves
    assert not cluster.memory.ended_moves
    assert cluster.machine.devices[MOVED].epoch == 0
    assert status(cluster) == ("a", DeviceState.FREE, "")


def test_a_dry_run_tells_who_is_in_the_way() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b", dry_run=True)
    refuse(cluster, "a", "it is in use", plan=("close it",), in_the_way=("pid 7 (python3)",))
    assert cluster.moves[move].state is MoveState.FAILED
    assert (cluster.moves[move].plan, cluster.moves[move].in_the_way) == (("a: close it",), ("a: pid 7 (python3)",))


def test_a_dry_run_ends_with_the_node_that_it_asks() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b", dry_run=True)
    cluster.lose("a")
    assert (cluster.moves[move].state, cluster.moves[move].error) == (MoveState.FAILED, "node a was lost")
    assert not len(cluster.machine.steps)


# --- inventories ---------------------------------------------------------------------------------


def test_the_node_that_has_a_moved_device_reports_it_before_it_answers() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    cluster.step("a")
    agent = cluster.agents["b"]
    outcome = agent.do(agent.inbox.pop(0))
    cluster.tell(agent.inventory())
    assert status(cluster)[:2] == ("b", DeviceState.MOVING)
    assert outcome is not None
    cluster.tell(outcome)
    assert status(cluster) == ("b", DeviceState.FREE, "")


def test_what_a_node_still_reports_of_a_device_that_it_gave_is_not_believed() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    before = cluster.agents["a"].inventory()
    agent = cluster.agents["a"]
    outcome = agent.do(agent.inbox.pop(0))
    assert outcome is not None
    cluster.tell(outcome)
    cluster.tell(before)
    assert status(cluster)[0] == ""
    cluster.settle()
    assert status(cluster) == ("b", DeviceState.FREE, "")


def test_a_device_that_somebody_moved_by_hand_is_taken_over_whoever_reports_first() -> None:
    cluster = Cluster(node("a", 1), node("b"))
    cluster.join()
    a, b = cluster.agents["a"], cluster.agents["b"]
    b.node = msgspec.structs.replace(b.node, devices=a.node.devices)
    a.node = msgspec.structs.replace(a.node, devices=())
    cluster.tell(b.inventory())
    assert status(cluster) == ("a", DeviceState.FREE, "")
    cluster.tell(a.inventory())
    assert status(cluster) == ("b", DeviceState.FREE, "")


def test_a_cordon_moves_with_the_device() -> None:
    cluster = cabled()
    cluster.tell(events.Cordoned(cordon=Cordon(kind=CordonKind.DEVICE, name=MOVED, by="ann", at=0.0)))
    cluster.move(MOVED, "b")
    cluster.settle()
    assert status(cluster) == ("b", DeviceState.CORDONED, "")


# --- chassis -------------------------------------------------------------------------------------


def test_one_agent_serves_a_chassis_and_all_that_are_cabled_to_it_are_told() -> None:
    cluster = cabled()
    assert {name: agent.serves.get("falcon") for name, agent in cluster.agents.items()} == {
        "a": events.ServeChassis(chassis="falcon", term=1, node="a"),
        "b": events.ServeChassis(chassis="falcon", term=1, node="a", address=""),
        "c": events.ServeChassis(chassis="falcon", term=1, node="a", address=""),
    }


def test_another_agent_serves_in_a_higher_term_when_the_session_of_the_first_ends() -> None:
    cluster = cabled()
    cluster.lose("a")
    (chassis,) = cluster.machine.chassis_statuses()
    assert (chassis.served_by, chassis.term) == ("b", 2)
    assert cluster.agents["b"].serves["falcon"].node == "b"
    cluster.join("a")
    assert cluster.agents["a"].serves["falcon"] == events.ServeChassis(chassis="falcon", term=2, node="b")
    cluster.lose("a")
    cluster.lose("b")
    assert cluster.machine.chassis_statuses()[0].served_by == ""
    cluster.join("b")
    assert (cluster.machine.chassis_statuses()[0].served_by, cluster.machine.chassis_statuses()[0].term) == ("b", 3)


def test_the_term_of_a_chassis_grows_over_restarts() -> None:
    cluster = cabled()
    cluster.restart()
    cluster.join()
    assert cluster.machine.chassis_statuses()[0].term == 2


def test_what_an_agent_read_in_an_earlier_term_is_not_believed() -> None:
    cluster = cabled(free=True)
    before = cluster.machine.chassis["falcon"].view
    assert before is not None
    cluster.lose("a")
    cluster.join("a")
    session = cluster.agents["a"].session
    gone = msgspec.structs.replace(before, devices=())
    for term in (1, 2):
        cluster.tell(events.ChassisReported(node="a", session=session, term=term, view=gone))
    assert cluster.machine.chassis["falcon"].view == before


def test_no_device_is_moved_in_a_chassis_that_nobody_serves() -> None:
    cluster = Cluster(node("a", 1), node("b"), node("c"))
    cluster.give_fabric(to=("c",))
    cluster.join()
    cluster.read_chassis()
    cluster.lose("c")
    with pytest.raises(Unavailable, match="no agent serves chassis falcon"):
        cluster.move(MOVED, "b")


def test_a_node_is_told_who_serves_before_it_is_asked() -> None:
    cluster = cabled()
    del cluster.agents["a"].serves["falcon"]
    cluster.move(MOVED, "b")
    assert cluster.agents["a"].serves["falcon"].term == 1


def test_devices_that_are_free_in_a_chassis_are_listed_and_can_be_attached() -> None:
    cluster = cabled(free=True)
    assert status(cluster, "GPU-spare") == ("", DeviceState.UNASSIGNED, "")
    move = cluster.move("h-GPU-spare", "b")
    assert status(cluster, "GPU-spare") == ("", DeviceState.MOVING, move)
    cluster.settle()
    assert [name for name, _ in asked(cluster)] == ["b"]
    assert status(cluster, "GPU-spare") == ("b", DeviceState.FREE, "")
    assert {each.chassis for each in cluster.machine.device_statuses()} == {"falcon"}


def test_the_shares_of_a_gpu_go_with_it() -> None:
    shares = tuple(msgspec.structs.replace(gpu("a-0"), id=f"GPU-a-0/{number}", share_milli=500) for number in (1, 2))
    cluster = Cluster(msgspec.structs.replace(node("a"), devices=(gpu("a-0"),)), node("b"))
    fabric = cluster.give_fabric()
    cluster.agents["a"].node = msgspec.structs.replace(cluster.agents["a"].node, devices=shares)
    cluster.join()
    cluster.read_chassis()
    with pytest.raises(InvalidInput, match="GPU-a-0/1 is a share of GPU-a-0"):
        cluster.move("GPU-a-0/1", "b")
    cluster.move(MOVED, "b")
    assert {each.state for each in cluster.machine.device_statuses() if "/" in each.device.id} == {DeviceState.MOVING}
    cluster.agents["a"].node = msgspec.structs.replace(cluster.agents["a"].node, devices=(gpu("a-0"),))
    cluster.settle()
    assert fabric.at[MOVED] == "b"
    assert status(cluster) == ("b", DeviceState.FREE, "")


# --- calling off ---------------------------------------------------------------------------------


def call_off(cluster: Cluster, move: str) -> None:
    cluster.tell(events.MoveCancelled(move_id=move, by="bob"))


def test_what_goes_back_already_is_not_called_off() -> None:
    cluster = cabled()
    cluster.move(MOVED, "b")
    cluster.step("a")
    cluster.lose("a")
    refuse(cluster, "b", "no room")
    (back,) = cluster.machine.move_statuses()
    assert back.says.startswith("waits for node a")
    call_off(cluster, back.id)
    assert cluster.machine.moves[back.id].move.called_off == ""


def test_what_was_not_asked_for_yet_is_dropped() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    cluster.lose("b")
    cluster.step("a")
    # b was never asked.
    call_off(cluster, move)
    cluster.settle()
    assert cluster.moves[move].state is MoveState.UNDONE
    assert cluster.moves[move].error == "called off by bob"
    assert status(cluster) == ("a", DeviceState.FREE, "")
    assert [name for name, _ in asked(cluster)] == ["a", "a"]


def test_a_node_that_was_asked_is_told_and_its_answer_ends_the_move() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    call_off(cluster, move)
    assert cluster.agents["a"].called_off == {move: "bob"}
    assert cluster.machine.move_statuses()[0].says == "called off by bob; node a is asked to give it"
    cluster.settle()
    assert (cluster.moves[move].state, cluster.moves[move].error) == (MoveState.FAILED, "node a: called off by bob")
    assert status(cluster) == ("a", DeviceState.FREE, "")


@pytest.mark.parametrize("to", ["b", ""])
def test_what_was_done_before_the_word_came_goes_back(to: str) -> None:
    cluster = cabled()
    move = cluster.move(MOVED, to)
    agent = cluster.agents["a"]
    outcome = agent.do(agent.inbox.pop(0))
    assert outcome is not None
    call_off(cluster, move)
    cluster.tell(outcome)
    cluster.settle()
    assert (cluster.moves[move].state, cluster.moves[move].error) == (MoveState.UNDONE, "called off by bob")
    assert status(cluster) == ("a", DeviceState.FREE, "")
    assert agent.fabric is not None
    assert agent.fabric.at[MOVED] == "a"


def test_a_second_node_that_has_not_begun_does_not_begin() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    cluster.step("a")
    call_off(cluster, move)
    cluster.settle()
    assert cluster.moves[move].state is MoveState.UNDONE
    assert cluster.moves[move].error == "node b: called off by bob"
    assert status(cluster) == ("a", DeviceState.FREE, "")


def test_a_move_that_is_done_when_the_word_comes_is_done() -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    cluster.step("a")
    agent = cluster.agents["b"]
    outcome = agent.do(agent.inbox.pop(0))
    assert outcome is not None
    call_off(cluster, move)
    cluster.tell(outcome)
    cluster.tell(agent.inventory())
    assert cluster.moves[move].state is MoveState.DONE
    assert status(cluster) == ("b", DeviceState.FREE, "")


@pytest.mark.parametrize("away", ["a", "b"])
def test_a_node_that_is_away_hears_of_it_before_it_is_asked_again(away: str) -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    if away == "b":
        cluster.step("a")
    cluster.lose(away)
    call_off(cluster, move)
    assert cluster.machine.mover_of(MOVED) == move
    cluster.join(away)
    cluster.settle()
    assert cluster.moves[move].error == f"node {away}: called off by bob"
    assert status(cluster) == ("a", DeviceState.FREE, "")


@pytest.mark.parametrize("steps", [0, 1])
def test_a_restarted_scheduler_knows_what_was_called_off(steps: int) -> None:
    cluster = cabled()
    move = cluster.move(MOVED, "b")
    for _ in range(steps):
        cluster.step("a")
    call_off(cluster, move)
    cluster.restart()
    cluster.join()
    cluster.settle()
    assert cluster.moves[move].state in (MoveState.FAILED, MoveState.UNDONE)
    assert status(cluster) == ("a", DeviceState.FREE, "")


def test_a_move_for_a_job_that_is_called_off_puts_the_job_back() -> None:
    cluster = cabled()
    cluster.submit(msgspec.structs.replace(job(gpus=1, on="b", routes=(Route.RECOMPOSED,))))
    cluster.decide()
    (record,) = cluster.machine.moves.values()
    call_off(cluster, record.move.id)
    cluster.step("a")
    assert cluster.state_of("j1") == "queued"
    assert "called off by bob" in cluster.moves[record.move.id].error


# --- who may serve, and what is said twice -------------------------------------------------------


def serving(**servers: tuple[str, ...]) -> Cluster:
    """Nodes a and b, both with the credentials of the chassis that they are in; ``servers`` is the setting."""
    cluster = Cluster(node("a", 1), node("b"))
    cluster.give_fabric()
    cluster.machine.chassis_servers = servers
    cluster.join()
    return cluster


@pytest.mark.parametrize(
    ("servers", "named"),
    [({}, "a"), ({"falcon": ("b",)}, "b"), ({"falcon": ("x", "b*")}, "b"), ({"falcon": ("a", "b")}, "a")],
)
def test_a_chassis_is_served_by_a_node_that_may(servers: dict[str, tuple[str, ...]], named: str) -> None:
    assert serving(**servers).machine.chassis["falcon"].served_by == named


@pytest.mark.parametrize("servers", [{"falcon": ()}, {"falcon": ("c",)}, {"other": ("a", "b")}])
def test_a_chassis_is_served_by_nobody_where_none_may(servers: dict[str, tuple[str, ...]]) -> None:
    cluster = serving(**servers)
    assert "falcon" not in cluster.machine.chassis
    assert not any(isinstance(command, events.ServeChassis) for _, command in cluster.sent)


def test_a_node_that_may_not_serve_is_not_named_when_the_one_that_may_is_lost() -> None:
    cluster = serving(falcon=("b",))
    cluster.lose("b")
    assert cluster.machine.chassis["falcon"].served_by == ""
    cluster.join("a")
    assert cluster.machine.chassis["falcon"].served_by == ""
    cluster.join("b")
    assert (cluster.machine.chassis["falcon"].served_by, cluster.machine.chassis["falcon"].term) == ("b", 2)


def two_chassis(*, other: str) -> Cluster:
    """As :func:`cabled`, and the agent of c says that a chassis of its own has a device ``other`` at its port."""
    cluster = cabled()
    cluster.agents["c"].chassis = ("claims",)
    cluster.join("c")
    view = ChassisView(
        chassis="claims",
        ports=(FabricPort(id="1", node="c"),),
        devices=(FabricDevice(id=other, handle="1", kind=DeviceKind.GPU, port="1"),),
    )
    agent = cluster.agents["c"]
    cluster.tell(events.ChassisReported(node="c", session=agent.session, term=1, view=view))
    return cluster


def test_a_device_that_two_chassis_have_is_moved_by_neither() -> None:
    cluster = two_chassis(other=MOVED)
    with pytest.raises(Conflict, match=f"device {MOVED}: several have this name: falcon/{MOVED}, claims/{MOVED}"):
        cluster.move(MOVED, "b")
    assert cluster.machine.pool_of(MOVED) == ""


def test_what_is_called_alike_in_two_chassis_is_moved_by_its_id() -> None:
    # Each chassis counts its slots.
    cluster = two_chassis(other="h-GPU-a-0")
    with pytest.raises(Conflict, match="device h-GPU-a-0: several have this name: falcon/GPU-a-0, claims/h-GPU-a-0"):
        cluster.move("h-GPU-a-0", "b")
    move = cluster.move(MOVED, "b")
    cluster.settle()
    assert cluster.moves[move].state is MoveState.DONE


def test_a_drive_is_not_moved_for_one_whose_serial_it_begins_with() -> None:
    drives = {serial: f"NVME-{serial}-PM9A3" for serial in ("S1-2", "S1")}
    cluster = Cluster(node("a", 1), node("b"))
    cluster.give_fabric(to=("a", "b"))
    agent = cluster.agents["a"]
    devices = tuple(Device(id=name, kind=DeviceKind.NVME, model="PM9A3") for name in drives.values())
    agent.node = msgspec.structs.replace(agent.node, devices=devices)
    cluster.join()
    view = ChassisView(
        chassis="falcon",
        ports=(FabricPort(id="port-a", node="a"), FabricPort(id="port-b", node="b")),
        devices=tuple(
            FabricDevice(id=serial, handle=serial, kind=DeviceKind.NVME, serial=serial, port="port-a")
            for serial in reversed(drives)
        ),
    )
    cluster.tell(events.ChassisReported(node="a", session=agent.session, term=1, view=view))
    for serial, name in drives.items():
        for asked_for in (serial, name):
            request = MoveRequest(device=asked_for, node="b")
            assert plan_move(cluster.machine, request, by="ann", at=0.0).device == name
    record = cluster.machine.chassis["falcon"]
    record.put(drives["S1-2"], "")
    assert record.view is not None
    assert [device.serial for device in record.view.devices if not device.port] == ["S1-2"]


# --- many at once --------------------------------------------------------------------------------


def many(count: int, *, parallel: int = 1) -> tuple[Cluster, list[str]]:
    """Ask for the moves of all devices of a to b."""
    cluster = Cluster(node("a", count), node("b"))
    fabric = cluster.give_fabric()
    cluster.join()
    session = cluster.agents["a"].session
    view = fabric.view(cluster.agents)
    cluster.tell(events.ChassisReported(node="a", session=session, term=1, view=view, parallel=parallel))
    return cluster, [cluster.move(f"GPU-a-{number}", "b") for number in range(count)]


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_chassis_is_asked_for_few_moves_at_a_time_and_for_all_in_their_order(parallel: int) -> None:
    cluster, moves = many(20, parallel=parallel)
    at_once = parallel + MOVES_AHEAD
    assert [command.move_id for _, command in asked(cluster)] == moves[:at_once]  # type: ignore[union-attr]
    waits = cluster.machine.move_statuses()[-1]
    assert waits.says == f"waits for its turn at chassis falcon, {at_once} are under way there"
    assert waits.state is MoveState.DETACHING
    most = 0
    while cluster.machine.moves:
        most = max(most, sum(record.asked for record in cluster.machine.moves.values()))
        cluster.step("a")
        cluster.step("b")
    assert most <= at_once
    assert list(cluster.moves) == moves
    assert all(move.state is MoveState.DONE for move in cluster.moves.values())


def test_what_waits_for_its_turn_is_called_off_at_once() -> None:
    cluster, moves = many(3)
    call_off(cluster, moves[2])
    assert (cluster.moves[moves[2]].state, cluster.moves[moves[2]].error) == (MoveState.FAILED, "called off by bob")
    assert status(cluster, "GPU-a-2") == ("a", DeviceState.FREE, "")


def test_a_move_that_is_stuck_or_whose_node_is_away_takes_nobodys_turn() -> None:
    cluster, _ = many(4)
    refuse(cluster, "a", "it hangs", stuck=True)
    cluster.step("a")
    # One is stuck, two wait for b, which is away then: the fourth is begun.
    cluster.step("a")
    assert [record.begun for record in cluster.machine.moves.values()] == [True, True, True, False]
    cluster.lose("b")
    assert [record.begun for record in cluster.machine.moves.values()] == [True, True, True, True]


def test_a_restarted_scheduler_does_no_more_at_once_than_before_and_all_of_it() -> None:
    cluster, moves = many(6)
    cluster.step("a")
    cluster.restart()
    cluster.sent.clear()
    cluster.join()
    assert len(asked(cluster)) == 1 + MOVES_AHEAD
    cluster.settle()
    assert sorted(cluster.moves) == moves
    assert all(move.state is MoveState.DONE for move in cluster.moves.values())


def test_what_an_earlier_scheduler_may_have_asked_for_is_called_off_at_its_node() -> None:
    cluster, moves = many(6)
    cluster.restart()
    cluster.join()
    call_off(cluster, moves[5])
    cluster.settle()
    assert cluster.moves[moves[5]].error == "node a: called off by bob"
    assert status(cluster, "GPU-a-5") == ("a", DeviceState.FREE, "")


def test_what_its_node_offers_by_this_name_is_there_by_it_whatever_else_is_told() -> None:
    cluster = cabled(free=True)
    cluster.move("GPU-spare", "b")
    agent = cluster.agents["b"]
    command = agent.inbox.pop(0)
    outcome = agent.answer(command)
    # The inventory comes first, as where the scheduler was away when the device came.
    agent.node = msgspec.structs.replace(agent.node, devices=(gpu("spare"),))
    cluster.tell(agent.inventory())
    cluster.tell(msgspec.structs.replace(outcome, move=NodeMove(identity="PCI-10de:2330@slot-7", changed=True)))
    assert status(cluster, "GPU-spare") == ("b", DeviceState.FREE, "")


# What goes without a move.


def take_away(cluster: Cluster, name: str = "a") -> None:
    """Have a node tell that it has nothing any more."""
    agent = cluster.agents[name]
    agent.node = msgspec.structs.replace(agent.node, devices=())
    cluster.tell(agent.inventory())


@pytest.mark.parametrize("first", ["node", "chassis"])
def test_what_went_by_local_is_free_in_its_chassis_whoever_tells_first(first: str) -> None:
    cluster = cabled()
    fabric = cluster.agents["a"].fabric
    assert fabric is not None
    fabric.unassign(MOVED, "a")
    tells = [lambda: take_away(cluster), cluster.read_chassis]
    for tell in tells if first == "node" else reversed(tells):
        assert status(cluster)[0] == "a"
        tell()
    assert status(cluster) == ("", DeviceState.UNASSIGNED, "")
    # Rounds may give it to a job again, and operators to a node.
    move = cluster.move(MOVED, "b")
    cluster.settle()
    assert cluster.moves[move].state is MoveState.DONE
    assert status(cluster) == ("b", DeviceState.FREE, "")


def test_what_is_pulled_out_or_not_listed_by_its_driver_stays_lost() -> None:
    cluster = cabled()
    take_away(cluster)
    cluster.read_chassis()
    assert status(cluster) == ("a", DeviceState.LOST, "")


def test_what_a_lease_has_stays_where_it_was() -> None:
    cluster = cabled()
    cluster.submit(job("j1", gpus=1, on="a"))
    cluster.decide()
    cluster.settle()
    fabric = cluster.agents["a"].fabric
    assert fabric is not None
    fabric.unassign(MOVED, "a")
    take_away(cluster)
    cluster.read_chassis()
    assert status(cluster)[0] == "a"
