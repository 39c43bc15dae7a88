"""Moves of devices between nodes: from the operator's word to the device's new place, whatever dies meanwhile.  Pure.

A move is an entry of the ledger.  While it lasts nobody is given the device;
its epoch has gone up with it.  First the node that has the device is asked to
detach it, then the one that is to have it to attach it.  Each node's part is
done or undone by that node alone, and asked for until the node has answered:
a node that is away is waited for.  Where the second node can't have the
device the first is asked to take it back.  What is neither done nor undone is
*stuck*, and keeps the device until somebody who has looked asks again.

A move that is called off goes no further: a node that was not asked for its
part is not asked, one that was ends it as soon as it can and takes it back,
and what was done before the word came is undone by the way back.

A dry run goes the same way, holds nothing, and leaves no entry.

A recomposition is the same entry, made by the scheduler for a job that a
round has placed: the job is given its lease when the device has come.  Where a
node is to give the device for it, both nodes are first asked by a dry run what
they would do, unless the second one has had this device since its session
began: a device is not taken from its node for one that has no room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from farbus.model.device import Route
from farbus.model.fabric import FabricStep
from farbus.model.move import MoveState, MoveStatus, NodeMove
from farbus.model.node import Node
from farbus.model.states import JobState
from farbus.scheduler import events
from farbus.scheduler.chassis import ServingChassis
from farbus.scheduler.cluster import persist_device
from farbus.scheduler.events import Verb
from farbus.scheduler.move_records import BACK, ChassisRecord, MoveRecord, StoredMove
from farbus.scheduler.records import DeviceRecord, JobRecord, NodeRecord
from farbus.scheduler.runs import TaskRun
from farbus.scheduler.steps import Step
from farbus.scheduler.words import describe_unreachable

MOVES_AHEAD = 1
"""Moves that are begun beside those that a chassis can be at: their nodes do their own part meanwhile.

Not more: steps have deadlines, and what waits at the chassis behind many others would be given up for one that hangs.
"""

SCHEDULER = "scheduler"
"""Who asks for the moves of a recomposition, as listings show it."""


class DeviceMoves(ServingChassis):
    """The moves that are under way."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.next_move = 1
        """Number of the next move that is written down."""
        self._rehearsals = 0
        self._fitted: defaultdict[str, set[str]] = defaultdict(set)
        """Devices that each node has had, or would have had room for, since its session began."""

    def new_move_id(self, *, dry_run: bool) -> str:
        """Return an id that no other move has; those of dry runs are this scheduler's own."""
        if dry_run:
            self._rehearsals += 1
            return f"r{self.term}-{self._rehearsals}"
        self.next_move += 1
        return f"m{self.next_move - 1}"

    def move_statuses(self) -> tuple[MoveStatus, ...]:
        """Return the moves that hold their devices, oldest first."""
        return tuple(
            self.move_status(record, now=self._now) for record in self.moves.values() if not record.move.dry_run
        )

    def move_status(self, record: MoveRecord, *, now: float) -> MoveStatus:
        """Return a move as listings show it."""
        move, part = record.move, record.part()
        status = status_of(move)
        says = part.says
        node = self.nodes.get(move.node)
        if node is not None and not node.connected:
            says = f"waits for node {node.name}, which {describe_unreachable(node.seen_at)}"
        elif not move.state.has_ended and not record.begun and move.chassis:
            ahead = self._under_way_at(move.chassis)
            says = f"waits for its turn at chassis {move.chassis}, {ahead} are under way there"
        elif not move.state.has_ended and not says:
            says = f"node {move.node} is asked to {'take it back' if move.returning else _verb(move)}"
        if record.rehearsal:
            says = f"nodes {move.from_node} and {move.to_node} are asked whether it can be moved"
        if move.called_off and not move.state.has_ended and not move.returning:
            says = f"{_off(move)}; {says}"
        return msgspec.structs.replace(
            status,
            says=says,
            step=part.step,
            steps=part.steps,
            expected_s=self._expected_s(record),
            took_s=status.took_s if move.state.has_ended else max(0.0, now - record.began),
            plan=record.plan,
            in_the_way=record.in_the_way,
        )

    def _expected_s(self, record: MoveRecord) -> float:
        """Return how long all parts of a move are likely to take; 0 where nobody knows of one of them."""
        move = record.move
        wanted = [(move.id, move.from_node, FabricStep.UNASSIGN), (move.id, move.to_node, FabricStep.ASSIGN)]
        if move.returning:
            wanted.append((move.id + BACK, move.from_node, FabricStep.ASSIGN))
        chassis = self.chassis.get(move.chassis)
        total = 0.0
        for asked_as, name, step in wanted:
            if not name:
                continue
            told = record.parts.get(f"{asked_as}@{name}")
            seconds = told.expected_s if told is not None else 0.0
            if not seconds and chassis is not None:
                seconds = _usual_s(chassis, step)
            if not seconds:
                return 0.0
            total += seconds
        return total

    # --- beginning -----------------------------------------------------------------------

    def _move_asked(self, event: events.MoveAsked) -> None:
        """Take the device for the move; who asked has seen that it may be taken."""
        move = event.move
        if not move.dry_run:
            held = self.moves.get(self.move_of.get(move.device, ""))
            if held is not None:
                assert held.move.state is MoveState.STUCK, f"move {held.move.id} has {move.device}"
                self._drop_move(held, msgspec.structs.replace(held.move, taken_over_by=move.id))
            if move.device not in self.devices:
                self.devices[move.device] = self.new_device(move.device, "")
                self.devices_of_node[""].add(move.device)
            device = self.devices[move.device]
            device.epoch += 1
            self._effects.append(persist_device(device))
            move = msgspec.structs.replace(move, epoch=device.epoch)
        record = MoveRecord(move=move, began=self._now)
        self.moves[move.id] = record
        if move.holds:
            self.hold_device(move.device, move.id)
            self._claims.pop(move.device, None)
            self.generation += 1
        self._put_move(record, move)
        if move.job and move.from_node and move.device not in self._fitted[move.to_node]:
            self._rehearse(record)
        self._advance_move(record)

    def _rehearse(self, record: MoveRecord) -> None:
        """Ask both nodes what they would do, and have the move wait for it."""
        move = msgspec.structs.replace(record.move, id=self.new_move_id(dry_run=True), dry_run=True, job="")
        rehearsal = self.moves[move.id] = MoveRecord(move=move, began=self._now, rehearses=record.move.id)
        record.rehearsal = move.id
        self._advance_move(rehearsal)

    def _rehearsed(self, record: MoveRecord, ended: StoredMove) -> None:
        """Begin the move that waited for a dry run, or end it as the dry run has."""
        waiting = self.moves.get(record.rehearses)
        if waiting is None or waiting.rehearsal != ended.id:
            # It was called off meanwhile.
            return
        waiting.rehearsal = ""
        # Who holds it on the node that gives it may still let go.
        prefix = f"{ended.to_node}: "
        refused = [line.removeprefix(prefix) for line in record.in_the_way if line.startswith(prefix)]
        if ended.state is MoveState.FAILED or refused:
            error = ended.error or f"node {ended.to_node}: {'; '.join(refused)}"
            self._end_move(waiting, MoveState.FAILED, error=error, hint=ended.hint)
            return
        self._fitted[ended.to_node].add(ended.device)
        self._advance_move(waiting)

    def restore_moves(self, moves: Iterable[StoredMove], chassis: Iterable[tuple[str, int]], *, next_move: int) -> None:
        """Take over what the ledger has of moves, after its devices; they go on when their nodes are back."""
        self.next_move = next_move
        for name, term in chassis:
            self.chassis[name] = ChassisRecord(name=name, term=term)
        for move in moves:
            began = self._now - max(0.0, self._wall - move.at)
            # Whether its node was asked before that only the node knows.
            self.moves[move.id] = MoveRecord(move=move, began=began, asked=True)
            self.hold_device(move.device, move.id)

    def _move_cancelled(self, event: events.MoveCancelled) -> None:
        """Go no further with a move; who asked has seen that it can be called off."""
        record = self.moves.get(event.move_id)
        if record is None or record.move.state.has_ended or record.move.returning or record.move.called_off:
            return
        self._put_move(record, msgspec.structs.replace(record.move, called_off=event.by))
        if not record.asked:
            self.steps.drop(f"{record.move.asked_as}.{self._verb_of(record)}")
            self._move_failed(record, NodeMove(), _off(record.move))
        elif not record.begun:
            # A scheduler before this one may have asked: the node is, after the word that it is called off.
            record.begun = True
            self._advance_move(record)
        elif self.node(record.move.node).connected:
            self._tell_called_off(record.move)

    def _tell_called_off(self, move: StoredMove) -> None:
        self._send(self.node(move.node), events.CancelMove(move_id=move.asked_as, by=move.called_off))

    # --- for jobs ------------------------------------------------------------------------

    def _begin_moves(self, job: JobRecord, run: TaskRun) -> tuple[str, ...]:
        """Recompose: what a round has found in a pool comes to the task's node before its job starts."""
        moves = []
        for place in run.placement.devices:
            if place.route is not Route.RECOMPOSED:
                continue
            found = self.slots.find(place.device)
            assert found is not None, f"no chassis has {place.device}"
            chassis, slot = found
            move = StoredMove(
                id=self.new_move_id(dry_run=False),
                device=place.device,
                from_node=place.node,
                to_node=run.node,
                chassis=chassis.name,
                from_port=slot.port if place.node else "",
                port=chassis.ports_of(run.node)[0],
                by=SCHEDULER,
                at=self._wall,
                job=job.job.id,
                state=MoveState.DETACHING if place.node else MoveState.ATTACHING,
            )
            source = f" from node {place.node}" if place.node else ""
            self._tell(job, f"device {place.device} comes{source} to node {run.node} (move {move.id})")
            self._move_asked(events.MoveAsked(move=move))
            moves.append(move.id)
        return tuple(moves)

    def _tell_job(self, move: StoredMove) -> None:
        """The job for which a device was moved gets its lease, or goes back into the queue."""
        job = self.jobs.get(move.job)
        run = next((run for run in job.runs if move.id in run.moves), None) if job is not None else None
        if job is None or run is None:
            return
        if move.state is not MoveState.DONE:
            told = f"device {move.device} could not be moved to node {move.to_node}: {move.error}"
            if run.is_spare:
                self._drop(job, run, told)
            else:
                self._undo(job, JobState.QUEUED, told)
        else:
            self._await_moves(job, run, tuple(each for each in run.moves if each != move.id))
            if not run.moves:
                self._grant_moved(job, run)
            self._persist.add(job.job.id)
        self._touch(job.job.id)

    # --- going on ------------------------------------------------------------------------

    def _advance_move(self, record: MoveRecord) -> None:
        """Ask the node that has to do the next part."""
        move = record.move
        if move.state.has_ended or record.rehearsal:
            return
        if not record.begun:
            if not move.dry_run and not self._has_turn(move):
                return
            record.begun = True
        verb = Verb.DETACH_DEVICE if move.state is MoveState.DETACHING else Verb.ATTACH_DEVICE
        self._step(f"{move.asked_as}.{verb}", Step(verb=verb, node=move.node, move=move.id))

    def _under_way_at(self, chassis: str) -> int:
        """Return how many moves a chassis has to do with now; those whose node is away keep nobody waiting."""
        return sum(
            record.begun
            and record.move.chassis == chassis
            and not record.move.dry_run
            and not record.move.state.has_ended
            and self.node(record.move.node).connected
            for record in self.moves.values()
        )

    def _has_turn(self, move: StoredMove) -> bool:
        """Say whether a move may begin: what waits for a node that is away begins when that is back."""
        if not self.node(move.node).connected:
            return False
        known = self.chassis.get(move.chassis)
        parallel = known.parallel if known is not None else 1
        return not move.chassis or self._under_way_at(move.chassis) < parallel + MOVES_AHEAD

    def _take_turns(self, chassis: str) -> None:
        """Begin what waits for its turn at a chassis, the oldest first."""
        for record in list(self.moves.values()):
            if record.move.chassis == chassis and not record.begun:
                self._advance_move(record)

    def _ask(self, key: str) -> None:
        step = self.steps[key]
        if step.move and self.node(step.node).connected:
            record = self.moves[step.move]
            record.asked = True
            chassis = self.chassis.get(record.move.chassis)
            if chassis is not None:
                self._tell_server(chassis, step.node)
            if record.move.called_off and not record.move.returning:
                # First: a node that has not begun does not begin.
                self._tell_called_off(record.move)
        super()._ask(key)

    def _command(self, step: Step) -> events.Command:
        if not step.move:
            return super()._command(step)
        move = self.moves[step.move].move
        if step.verb is Verb.DETACH_DEVICE:
            return events.DetachDevice(
                command_id=step.command_id,
                move_id=move.asked_as,
                device=move.device,
                chassis=move.chassis,
                evict=move.evict,
                drain_s=move.drain_s,
                dry_run=move.dry_run,
            )
        return events.AttachDevice(
            command_id=step.command_id,
            move_id=move.asked_as,
            device=move.device,
            chassis=move.chassis,
            port=move.from_port if move.returning else move.port,
            functions=msgspec.json.encode(move.functions) if move.functions else b"",
            dry_run=move.dry_run,
        )

    def _settle_move(self, key: str, step: Step, outcome: events.OutcomeArrived, *, answered: bool) -> None:
        """A node answered for its part of a move."""
        record = self.moves[step.move]
        if not answered:
            # It is asked again: what it has done only it knows.
            self._retry(key, "")
            return
        self.steps.drop(key)
        move, told = record.move, outcome.move or NodeMove()
        part = record.part()
        part.expected_s = told.expected_s or part.expected_s
        if move.dry_run:
            self._settle_rehearsal(record, outcome, told)
        elif outcome.ok and move.state is MoveState.DETACHING:
            self._gone_from(move)
            functions = told.functions or move.functions
            if move.called_off:
                # It was done before the node heard.
                back = msgspec.structs.replace(move, returning=True, functions=functions, error=_off(move))
                self._go_on(record, msgspec.structs.replace(back, state=MoveState.ATTACHING))
            elif move.to_node:
                self._go_on(record, msgspec.structs.replace(move, state=MoveState.ATTACHING, functions=functions))
            else:
                self._end_move(record, MoveState.DONE)
        elif outcome.ok:
            self._come_to(move, move.node, told.identity)
            path = "" if move.returning else told.path
            self._end_move(record, MoveState.UNDONE if move.returning else MoveState.DONE, path=path)
        else:
            self._move_failed(record, told, f"node {step.node}: {_without_hint(outcome.error, told.hint)}")

    def _settle_rehearsal(self, record: MoveRecord, outcome: events.OutcomeArrived, told: NodeMove) -> None:
        move = record.move
        record.plan += tuple(f"{move.node}: {line}" for line in told.plan)
        record.in_the_way += tuple(f"{move.node}: {line}" for line in told.in_the_way)
        if not outcome.ok:
            error = f"node {move.node}: {_without_hint(outcome.error, told.hint)}"
            self._end_move(record, MoveState.FAILED, error=error, hint=told.hint)
        elif move.state is MoveState.DETACHING and move.to_node:
            self._go_on(record, msgspec.structs.replace(move, state=MoveState.ATTACHING, functions=told.functions))
        else:
            self._end_move(record, MoveState.DONE)

    def _move_failed(self, record: MoveRecord, told: NodeMove, error: str) -> None:
        move = record.move
        if move.returning:
            self._end_move(record, MoveState.STUCK, error=f"{move.error}; and it was not taken back: {error}")
        elif told.stuck:
            self._end_move(record, MoveState.STUCK, error=error)
        elif move.state is MoveState.ATTACHING and move.from_node:
            self._go_on(record, msgspec.structs.replace(move, returning=True, error=error, hint=told.hint))
        else:
            self._end_move(record, MoveState.UNDONE if told.changed else MoveState.FAILED, error=error, hint=told.hint)

    def _go_on(self, record: MoveRecord, move: StoredMove) -> None:
        record.asked = False
        self._put_move(record, move)
        node = self.nodes.get(move.node)
        if not move.dry_run and (node is None or node.node is None):
            # It was forgotten while another had its part: nobody would ever answer.
            self._move_failed(record, NodeMove(), f"node {move.node}: it is forgotten")
        else:
            self._advance_move(record)

    def _end_move(
        self, record: MoveRecord, state: MoveState, *, error: str = "", hint: str = "", path: str = ""
    ) -> None:
        move = record.move
        hint = hint or move.hint
        if state is MoveState.STUCK:
            hint = (
                "when you have looked: farbus attach it to the node that has it or is to have it, or farbus detach it"
            )
        ended = msgspec.structs.replace(
            move, state=state, error=error or move.error, hint=hint, path=path, ended_at=self._wall,
            stuck_at=move.node if state is MoveState.STUCK else "",
        )  # fmt: skip
        if ended.holds:
            self._put_move(record, ended)
            self.hold_device(ended.device, ended.id)
        else:
            self._drop_move(record, ended)
        self._take_turns(ended.chassis)
        if ended.job:
            self._tell_job(ended)

    def _drop_move(self, record: MoveRecord, ended: StoredMove) -> None:
        """Forget a move that holds its device no more."""
        status = self.move_status(record, now=self._now)
        record.move = ended
        del self.moves[ended.id]
        if not ended.dry_run:
            self.hold_device(ended.device, "")
            self._effects.append(events.PersistMove(move=ended))
            self._want_round()
        last = msgspec.structs.replace(
            status_of(ended),
            plan=status.plan,
            in_the_way=status.in_the_way,
            expected_s=status.expected_s,
            took_s=status.took_s,
        )
        self._effects.append(events.MoveChanged(move_id=ended.id, ended=last))
        if record.rehearses:
            self._rehearsed(record, ended)

    def _put_move(self, record: MoveRecord, move: StoredMove) -> None:
        record.move = move
        if not move.dry_run:
            self._effects.append(events.PersistMove(move=move))
        self._effects.append(events.MoveChanged(move_id=move.id))

    # --- where the device is -------------------------------------------------------------

    def _gone_from(self, move: StoredMove) -> None:
        """Nobody has the device now."""
        self._put_at(move, "")
        for name in (move.device, *self.related(move.device)):
            if name in self.devices:
                self._place(name, "")
                if name != move.device:
                    # Shares are what a node makes of a GPU.
                    self.devices[name].device = None

    def _come_to(self, move: StoredMove, node: str, identity: str) -> None:
        """The device is at a node; that it may be used the inventory of that node says, before this or after."""
        self._put_at(move, move.from_port if move.returning else move.port)
        self._fitted[node].add(move.device)
        known = self.devices[move.device]
        if identity and identity != move.device and not (known.present and known.node == node):
            # The chassis called it otherwise.
            known.device = None
        elif known.node != node:
            self._place(move.device, node)

    def _put_at(self, move: StoredMove, port: str) -> None:
        chassis = self.chassis.get(move.chassis)
        if chassis is not None:
            chassis.put(move.device, port)
            self._chassis_changed(chassis)

    def _place(self, device_id: str, node: str) -> None:
        device = self.devices[device_id]
        self.devices_of_node[device.node].discard(device_id)
        self.devices_of_node[node].add(device_id)
        device.node, device.present = node, False
        self.shape += 1
        self._effects.append(persist_device(device))
        self.generation += 1

    # --- what goes without a move --------------------------------------------------------

    def take_inventory(self, node: Node) -> list[events.PersistDevice]:
        """See :meth:`ClusterState.take_inventory`; what the node has no longer may be free in its chassis."""
        changed = super().take_inventory(node)
        for name in sorted(self.devices_of_node[node.name]):
            self._look_in_chassis(self.devices[name])
        return changed

    def _chassis_reported(self, event: events.ChassisReported) -> None:
        super()._chassis_reported(event)
        record = self.chassis.get(event.view.chassis)
        for node in sorted(record.nodes()) if record is not None else ():
            for name in sorted(self.devices_of_node.get(node, ())):
                self._look_in_chassis(self.devices[name])

    def _look_in_chassis(self, device: DeviceRecord) -> None:
        """Take a device from a node that has it no longer where its chassis says that it is free.

        It went by ``--local``, or somebody has unassigned it at the chassis.
        """
        if device.present or not self._connected(device.node):
            return
        if device.lease or device.shares or device.reserved or self._is_used_otherwise(device):
            return
        found = self.slots.find(device.id)
        if found is not None and found[0].served_by and found[1].is_free:
            self._place(device.id, "")
            self._want_round()

    # --- what happens meanwhile ----------------------------------------------------------

    def _node_joined(self, event: events.NodeJoined) -> None:
        super()._node_joined(event)
        # It may have been booted with other windows.
        self._fitted.pop(event.node.name, None)
        troubles = {held.move_id: held.trouble for held in event.moves if held.trouble}
        for record in list(self.moves.values()):
            if event.node.name in record.move.nodes:
                if record.move.asked_as in troubles and record.move.node == event.node.name:
                    record.part().says = f"node {event.node.name} tries again: {troubles[record.move.asked_as]}"
                self._advance_move(record)
                self._effects.append(events.MoveChanged(move_id=record.move.id))

    def _forget_commands(self, name: str) -> None:
        super()._forget_commands(name)
        for record in list(self.moves.values()):
            if record.move.node != name:
                continue
            if record.move.dry_run:
                self.steps.drop(f"{record.move.id}.{self._verb_of(record)}")
                self._end_move(record, MoveState.FAILED, error=f"node {name} was lost")
            else:
                self._effects.append(events.MoveChanged(move_id=record.move.id))
                self._take_turns(record.move.chassis)

    @staticmethod
    def _verb_of(record: MoveRecord) -> Verb:
        return Verb.DETACH_DEVICE if record.move.state is MoveState.DETACHING else Verb.ATTACH_DEVICE

    def _node_forgotten(self, event: events.NodeForgotten) -> None:
        """What a node that is off was doing it will not finish: somebody has to look where the device is."""
        node: NodeRecord | None = self.nodes.get(event.node)
        super()._node_forgotten(event)
        if node is None or node.node is not None:
            return
        for record in list(self.moves.values()):
            if record.move.node == event.node:
                self.steps.drop(f"{record.move.asked_as}.{self._verb_of(record)}")
                self._end_move(record, MoveState.STUCK, error=_both(record.move.error, event.reason))

    def _move_progressed(self, event: events.MoveProgressed) -> None:
        if self._session(event.node, event.session) is None:
            return
        record = self.moves.get(event.move_id.removesuffix(BACK))
        if record is None or (record.move.node, record.move.asked_as) != (event.node, event.move_id):
            return
        part = record.part()
        part.step, part.steps, part.says = event.step, event.steps, event.says
        part.expected_s = event.expected_s or part.expected_s
        self._effects.append(events.MoveChanged(move_id=record.move.id))


def status_of(move: StoredMove) -> MoveStatus:
    """Return a move as it stands in the ledger."""
    return MoveStatus(
        id=move.id,
        device=move.device,
        from_node=move.from_node,
        to_node=move.to_node,
        chassis=move.chassis,
        port=move.port,
        state=move.state,
        took_s=max(0.0, move.ended_at - move.at) if move.ended_at else 0.0,
        by=move.by,
        at=move.at,
        error=move.error,
        hint=move.hint,
        path=move.path,
    )


def _verb(move: StoredMove) -> str:
    return "give it" if move.state is MoveState.DETACHING else "take it"


def _without_hint(error: str, hint: str) -> str:
    """Return an error without what to do about it, where a node tells that by itself, too."""
    return error.removesuffix(f"; {hint}") if hint else error


def _off(move: StoredMove) -> str:
    return f"called off by {move.called_off}"


def _both(before: str, then: str) -> str:
    return f"{before}; {then}" if before else then


def _usual_s(chassis: ChassisRecord, step: FabricStep) -> float:
    """Return what a step and the readings around it took at a chassis; 0 where nothing was measured."""
    if not chassis.history.times.get(step):
        return 0.0
    return chassis.history.expected_s(step) + 2 * chassis.history.expected_s(FabricStep.LIST)
