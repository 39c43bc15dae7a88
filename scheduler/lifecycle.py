"""The cluster machine: events in, effects out.  Pure: no I/O, no clock, no asyncio.

A job goes queued -> preparing -> running -> finishing -> ended (or queued
again).  Within an attempt the machine does not follow a script: after every
event that touches a job, :meth:`ClusterMachine._advance` looks at what is
confirmed and sends the commands that are missing, each at most once at a time
(a *slot*).  A lost session, a restarted agent and a restarted scheduler are
therefore all the same case: forget what was outstanding, compare with what the
node says it holds, and advance.

Order of an attempt: PrepareDevices on every lease's device node, PrepareClient
on the task's node, StartTask once *all* tasks of the job are prepared.  Undo
runs in reverse, never beside the step that it undoes.  A device is free again
when its node confirmed the release: by the outcome of UnprepareDevices, or by
a hello that no longer lists a lease which that node once confirmed.

What is persisted is emitted before what is sent, so that no node is asked for
something that the ledger does not know.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from farbus.model.decision import JobPlacement, PendingJob, Snapshot
from farbus.model.device import Device, Route
from farbus.model.job import Job, TaskPlacement, TaskState, TaskStatus
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.node import Node
from farbus.model.states import JOB_STATES, LEASE_STATES, JobState, LeaseState
from farbus.scheduler import events
from farbus.scheduler.cluster import MAX_ROUND_JOBS, ClusterState, persist_device
from farbus.scheduler.events import Effect, Event, Verb
from farbus.scheduler.queue import task_names
from farbus.scheduler.records import (
    ClientSide,
    DeviceRecord,
    JobRecord,
    LeaseRecord,
    NodeRecord,
    Program,
    StoredProgress,
    TaskRun,
    Verdict,
)
from farbus.scheduler.words import describe_exit, describe_placement, describe_time

MAX_FAILURES = 3
"""Attempts of a job that may fail before it started; then the job has failed."""
RETRY_S = 0.5
"""First pause before a failed step or attempt is tried again; it doubles each time."""
MAX_RETRY_S = 30.0
"""Longest such pause."""
PREPARE_DEADLINE_S = 120.0
"""Longest time a node may take to prepare: a supervisor start or a fabric assignment with its rescan."""
START_DEADLINE_S = 60.0
"""Longest time from StartTask to its outcome; the program itself may run on."""
STOP_GRACE_S = 10.0
"""From SIGTERM to SIGKILL when a task is stopped."""
UNDO_DEADLINE_S = 20.0
"""Longest time for a step of undo before it is asked again: more than STOP_GRACE_S, and more than an agent waits
for a supervisor to end."""
MAX_STOP_TRIES = 3
"""Refused stops of a task after which UnprepareClient has to end what is left."""

_DEADLINES = {
    Verb.PREPARE_DEVICES: PREPARE_DEADLINE_S,
    Verb.PREPARE_CLIENT: PREPARE_DEADLINE_S,
    Verb.START_TASK: START_DEADLINE_S,
    Verb.STOP_TASK: UNDO_DEADLINE_S,
    Verb.UNPREPARE_CLIENT: UNDO_DEADLINE_S,
    Verb.UNPREPARE_DEVICES: UNDO_DEADLINE_S,
}

_ACTIVE = (JobState.PREPARING, JobState.RUNNING, JobState.FINISHING)


@dataclasses.dataclass(slots=True)
class _Slot:
    """A step that some node has to do, with the command that asks for it."""

    verb: Verb
    node: str
    job: str = ""
    task: str = ""
    lease: str = ""
    stray: bool = False
    command_id: str = ""
    """The outstanding command; empty between tries."""
    tries: int = 0
    deadline: float = 0.0
    not_before: float = 0.0


class ClusterMachine(ClusterState):
    """All state of the scheduler, moved by :meth:`handle`."""

    def __init__(self, *, term: int, lease_ttl_s: float, new_secret: Callable[[], str]) -> None:
        super().__init__()
        self.term = term
        self.lease_ttl_s = lease_ttl_s
        self._new_secret = new_secret
        self._slots: dict[str, _Slot] = {}
        self._commands: dict[str, str] = {}
        """Slot of each outstanding command."""
        self._wakeups: list[tuple[float, str, str]] = []
        self._now = 0.0
        self._wall = 0.0
        self._effects: list[Effect] = []
        self._touched: dict[str, None] = {}
        """Jobs to advance, persist and announce before the event is done."""
        self._persist: set[str] = set()
        self._interactive: defaultdict[str, set[str]] = defaultdict(set)
        """Interactive jobs by the node of their program."""
        self._round_wanted = False
        self._round_running = False
        self._round_truncated = False
        self._handlers: dict[type, Callable[..., None]] = {
            events.NodeJoined: self._node_joined,
            events.NodeLost: self._node_lost,
            events.InventoryChanged: self._inventory_changed,
            events.HeartbeatArrived: self._heartbeat_arrived,
            events.OutcomeArrived: self._outcome_arrived,
            events.TaskReported: self._task_reported,
            events.LeaseEndedByNode: self._lease_ended_by_node,
            events.JobSubmitted: self._job_submitted,
            events.JobCancelled: self._job_cancelled,
            events.RoundDecided: self._round_decided,
            events.ClockTicked: self._clock_ticked,
        }

    # --- the door ------------------------------------------------------------------------

    def handle(self, event: Event, *, now: float, wall: float) -> list[Effect]:
        """Take in one event; return what has to be done, in this order.

        ``now`` is monotonic seconds and never goes back, ``wall`` seconds
        since the epoch.  The effects that persist come before those that
        anybody else can see.
        """
        self._now, self._wall = now, wall
        self._effects = []
        self._handlers[type(event)](event)
        while self._touched:
            job_id = next(iter(self._touched))
            del self._touched[job_id]
            self._advance(job_id)
        for job_id in sorted(self._persist):
            self._persist_job(self.jobs[job_id], new=False)
        self._persist.clear()
        if self._round_wanted and not self._round_running and len(self.queue):
            self._round_running = True
            self._round_wanted = False
            self._effects.append(events.RunRound())
        durable = [effect for effect in self._effects if isinstance(effect, events.Persist)]
        return durable + [effect for effect in self._effects if not isinstance(effect, events.Persist)]

    def round_input(self, now: float) -> tuple[Snapshot, tuple[PendingJob, ...], int]:
        """Return what the round that RunRound asked for decides on, with its generation."""
        self._round_wanted = False
        pending = self.pending(now)
        self._round_truncated = len(pending) == MAX_ROUND_JOBS
        return self.snapshot(now), pending, self.generation

    def next_wakeup(self) -> float | None:
        """Return the monotonic time by which a ClockTicked is due, None when nothing waits for time."""
        return self._wakeups[0][0] if self._wakeups else None

    # --- restart -------------------------------------------------------------------------

    def restore(
        self,
        *,
        jobs: Iterable[tuple[Job, JobState, StoredProgress]],
        leases: Iterable[tuple[Lease, LeaseState, str, bool]],
        devices: Iterable[tuple[str, str, int, Device | None]],
        nodes: Iterable[tuple[Node, float]],
        now: float,
        wall: float,
    ) -> None:
        """Take over what the ledger has: jobs that have not ended, leases that are not released.

        Every node starts without a session; those that stay away for the
        lease time from now are gone.
        """
        self._now, self._wall = now, wall
        for node, seen_at in nodes:
            record = self.node(node.name)
            record.node = node
            record.seen_at = seen_at
            record.seen = now - max(0.0, wall - seen_at)
        for device_id, owner, epoch, device in devices:
            self.devices[device_id] = DeviceRecord(id=device_id, node=owner, device=device, epoch=epoch)
            self.devices_of_node[owner].add(device_id)
            self.node(owner)
        for lease, lease_state, endpoint, prepared in leases:
            self.leases[lease.id] = LeaseRecord(
                lease=lease,
                state=lease_state,
                endpoint=endpoint,
                prepared=prepared,
                expires_at=now + self.lease_ttl_s,
                story=[lease_state.value],
            )
            self.leases_of_node[lease.device_node].add(lease.id)
            self._wake_at(now + self.lease_ttl_s, "lease", lease.id)
            for leased in lease.devices:
                self.devices[leased.device].lease = lease.id
        waiting: list[Job] = []
        for job, state, progress in jobs:
            found = JobRecord(job=job, state=state, progress=progress)
            self.jobs[job.id] = found
            if job.interactive:
                self._interactive[job.groups[0].node].add(job.id)
            if state is JobState.QUEUED:
                waiting.append(job)
                continue
            for run in progress.runs:
                if run.occupies:
                    self.occupy(run.node, run.requests)
            self._index(found)
            if state is JobState.RUNNING and job.time_limit_s:
                found.limit_at = now + min(job.time_limit_s, progress.started_at + job.time_limit_s - wall)
                self._wake_at(found.limit_at, "limit", job.id)
        self.queue = type(self.queue)(waiting)
        for record in self.nodes.values():
            self._watch_node(record, now + self.lease_ttl_s)
        self._round_wanted = True

    # --- nodes ---------------------------------------------------------------------------

    def _node_joined(self, event: events.NodeJoined) -> None:
        name = event.node.name
        record = self.node(name)
        if record.session:
            self._effects.append(
                events.CloseSession(node=name, session=record.session, reason="the agent opened another session")
            )
        self._forget_commands(name)
        record.node = event.node
        record.session = event.session
        record.instance = event.instance
        record.gone = False
        self._heard(record)
        self._effects.append(events.PersistNode(node=event.node, seen_at=self._wall))
        self._effects += self.take_inventory(event.node)
        self._watch_node(record, self._now + self.lease_ttl_s)
        self._reconcile_leases(record, {held.lease_id: held for held in event.held})
        self._reconcile_tasks(
            record,
            {(task.job_id, task.status.task): task.status for task in event.tasks},
            {held.lease_id for held in event.held},
        )
        self._remove_strays(record, event)
        self._end_unheld(record)
        self._touch_node(name)
        self._want_round()

    def _end_unheld(self, record: NodeRecord) -> None:
        """End interactive jobs that an earlier process of the agent held: their programs' connections ended with it."""
        for job_id in sorted(self._interactive[record.name]):
            job = self.jobs[job_id]
            if not job.progress.holder:
                job.progress.holder = record.instance
                self._persist.add(job_id)
            elif job.progress.holder != record.instance:
                self._cancel(job, f"nobody holds it any more: the agent of node {record.name} was restarted")

    def _reconcile_leases(self, record: NodeRecord, held: dict[str, events.HeldLease]) -> None:
        for lease_id in sorted(self.leases_of_node[record.name]):
            lease = self.leases[lease_id]
            claim = held.get(lease_id)
            is_held = claim is not None and (claim.device_side or lease.lease.route is Route.LOCAL)
            if is_held and claim is not None and lease.state is LeaseState.PREPARED:
                if claim.endpoint and claim.endpoint != lease.endpoint:
                    self._fail_lease(lease, f"its server on node {record.name} was restarted")
                lease.expires_at = self._now + self.lease_ttl_s
            elif not is_held and lease.prepared:
                if lease.state is LeaseState.PREPARED:
                    self._fail_lease(lease, f"the agent of node {record.name} no longer holds lease {lease_id}")
                    self._move_lease(lease, LeaseState.RELEASING)
                self._released(lease)

    def _reconcile_tasks(self, record: NodeRecord, tasks: dict[tuple[str, str], TaskStatus], held: set[str]) -> None:
        lost = f"the agent of node {record.name} was restarted"
        for job_id in sorted(self.jobs_of_node[record.name]):
            job = self.jobs[job_id]
            for run in job.progress.runs:
                if run.node != record.name:
                    continue
                status = tasks.get((job_id, run.task))
                if status is not None and run.is_alive:
                    self._apply_report(job, run, status)
                elif run.program is Program.RUNNING or (run.is_alive and job.state is JobState.FINISHING):
                    run.program, run.reason = Program.EXITED, lost
                    self._persist.add(job_id)
                    self._undo(job, JobState.FAILED, f"task {run.task} was lost: {lost}")
                if run.client is ClientSide.PREPARED and job.state is not JobState.FINISHING:
                    kept = any(lease in held for lease in run.leases) or status is not None
                    if not kept and (run.leases or job.job.interactive):
                        self._lose_run(job, run, lost)

    def _remove_strays(self, record: NodeRecord, hello: events.NodeJoined) -> None:
        """Have the node undo what it holds without right; until then it gets nothing new."""
        record.strays.clear()
        for held in hello.held:
            lease = self.leases.get(held.lease_id)
            if held.device_side and (lease is None or lease.lease.device_node != record.name):
                slot = _Slot(verb=Verb.UNPREPARE_DEVICES, node=record.name, lease=held.lease_id, stray=True)
                self._add_stray(record, f"{held.lease_id}.stray", slot)
        for task in hello.tasks:
            job = self.jobs.get(task.job_id)
            run = job.run(task.status.task) if job is not None else None
            known = run is not None and run.node == record.name and (run.client is not ClientSide.NONE)
            if not known and task.status.state is not TaskState.EXITED:
                slot = _Slot(verb=Verb.STOP_TASK, node=record.name, job=task.job_id, task=task.status.task, stray=True)
                self._add_stray(record, f"{task.job_id}.{task.status.task}.stray", slot)

    def _add_stray(self, record: NodeRecord, key: str, slot: _Slot) -> None:
        key = f"{record.name}.{key}"
        record.strays.add(key)
        self._slots[key] = slot
        self._ask(key)

    def _node_lost(self, event: events.NodeLost) -> None:
        record = self.nodes.get(event.node)
        if record is None or record.session != event.session:
            return
        record.session = 0
        record.seen, record.seen_at = self._now, self._wall
        self._forget_commands(event.node)
        if record.node is not None:
            self._effects.append(events.PersistNode(node=record.node, seen_at=self._wall))
        self._watch_node(record, self._now + self.lease_ttl_s)
        self.generation += 1

    def _node_gone(self, record: NodeRecord) -> None:
        """The node had no session for the lease time: what ran there is fenced."""
        record.gone = True
        reason = f"node {record.name} was lost: its agent has not been heard for {self.lease_ttl_s:g} s"
        for job_id in sorted(self.jobs_of_node[record.name]):
            job = self.jobs[job_id]
            for run in job.progress.runs:
                if run.node == record.name:
                    self._lose_run(job, run, reason)
            for lease_id in self._leases_of(job):
                if self.leases[lease_id].lease.device_node == record.name:
                    self._fail_lease(self.leases[lease_id], reason)
            self._touch(job_id)
        self.generation += 1

    def _lose_run(self, job: JobRecord, run: TaskRun, reason: str) -> None:
        if job.state is JobState.PREPARING:
            self._undo(job, JobState.QUEUED, reason)
        elif job.state is JobState.RUNNING and (run.is_alive or job.job.interactive):
            self._undo(job, JobState.FAILED, f"task {run.task} was lost: {reason}")

    def _fail_lease(self, lease: LeaseRecord, reason: str) -> None:
        """The lease can't be used any more: its job starts anew or, once it ran, fails."""
        job = self.jobs.get(lease.lease.job)
        if job is None:
            return
        if job.state is JobState.PREPARING:
            self._undo(job, JobState.QUEUED, reason)
        elif job.state is JobState.RUNNING:
            devices = ", ".join(leased.device for leased in lease.lease.devices)
            self._undo(job, JobState.FAILED, f"{devices} of task {lease.lease.task} was lost: {reason}")

    def _inventory_changed(self, event: events.InventoryChanged) -> None:
        record = self._session(event.node.name, event.session)
        if record is None:
            return
        record.node = event.node
        self._effects.append(events.PersistNode(node=event.node, seen_at=self._wall))
        self._effects += self.take_inventory(event.node)
        self._want_round()

    def _heartbeat_arrived(self, event: events.HeartbeatArrived) -> None:
        record = self._session(event.node, event.session)
        if record is None:
            return
        lost = event.telemetry is not None and not record.figures.take(event.telemetry, self._now)
        renewed, void = [], []
        for lease_id in dict.fromkeys(event.lease_ids):
            lease = self.leases.get(lease_id)
            if lease is None or event.node not in (lease.lease.device_node, lease.lease.client_node):
                void.append(lease_id)
            elif lease.state is not LeaseState.RELEASING:
                renewed.append(lease_id)
                if lease.lease.device_node == event.node:
                    lease.expires_at = self._now + self.lease_ttl_s
        self._send(record, events.HeartbeatReply(renewed=tuple(renewed), void=tuple(void), telemetry_lost=lost))

    def _session(self, name: str, session: int) -> NodeRecord | None:
        """Return the node if ``session`` is its session, and note that it was heard."""
        record = self.nodes.get(name)
        if record is None or record.session != session:
            return None
        self._heard(record)
        return record

    def _heard(self, record: NodeRecord) -> None:
        record.seen, record.seen_at = self._now, self._wall

    # --- outcomes ------------------------------------------------------------------------

    def _outcome_arrived(self, event: events.OutcomeArrived) -> None:
        key = self._commands.get(event.command_id)
        if self._session(event.node, event.session) is None or key is None:
            return
        if self._slots[key].node == event.node:
            self._settle(key, event)

    def _settle(self, key: str, outcome: events.OutcomeArrived, *, answered: bool = True) -> None:
        """A step was answered, or its deadline passed."""
        slot = self._slots[key]
        del self._commands[slot.command_id]
        slot.command_id = ""
        if slot.stray:
            self._settle_stray(key, slot, outcome)
            return
        job = self.jobs.get(slot.job)
        if slot.verb is Verb.UNPREPARE_DEVICES:
            if outcome.ok:
                self._released(self.leases[slot.lease])
            else:
                self._retry(key, f"lease {slot.lease} is not released on node {slot.node}: {outcome.error}")
        elif job is None or job.state not in _ACTIVE:
            del self._slots[key]
        elif slot.verb is Verb.PREPARE_DEVICES:
            del self._slots[key]
            self._settle_prepare_devices(job, slot, outcome)
        else:
            run = job.run(slot.task)
            assert run is not None, f"slot {key} without a run"
            self._settle_task_step(key, slot, job, run, outcome, answered=answered)
        if job is not None:
            self._touch(job.job.id)

    def _settle_prepare_devices(self, job: JobRecord, slot: _Slot, outcome: events.OutcomeArrived) -> None:
        lease = self.leases[slot.lease]
        if not outcome.ok:
            self._undo(job, JobState.QUEUED, f"node {slot.node} could not prepare its devices: {outcome.error}")
            return
        lease.prepared = True
        lease.endpoint = outcome.endpoint
        lease.expires_at = self._now + self.lease_ttl_s
        self._wake_at(lease.expires_at, "lease", slot.lease)
        self._move_lease(lease, LeaseState.PREPARED)

    def _settle_task_step(
        self,
        key: str,
        slot: _Slot,
        job: JobRecord,
        run: TaskRun,
        outcome: events.OutcomeArrived,
        *,
        answered: bool,
    ) -> None:
        self._persist.add(job.job.id)
        if slot.verb is Verb.UNPREPARE_CLIENT:
            if outcome.ok:
                del self._slots[key]
                run.client = ClientSide.NONE
                self._vacate(run)
            else:
                self._retry(key, f"task {run.task} is not cleared from node {slot.node}: {outcome.error}")
            return
        if slot.verb is Verb.STOP_TASK:
            if outcome.ok or slot.tries >= MAX_STOP_TRIES:
                del self._slots[key]
                if run.is_alive:
                    run.program = Program.EXITED
                    run.reason = run.reason or ("stopped" if outcome.ok else f"not stopped: {outcome.error}")
            else:
                self._retry(key, f"task {run.task} is not stopped on node {slot.node}: {outcome.error}")
            return
        del self._slots[key]
        if slot.verb is Verb.PREPARE_CLIENT:
            if outcome.ok:
                run.client = ClientSide.PREPARED
            else:
                self._undo(job, JobState.QUEUED, f"node {slot.node} could not prepare task {run.task}: {outcome.error}")
        elif not outcome.ok:
            # Without an answer it may have started: then the undo stops it.
            if run.program is Program.STARTING and answered:
                run.program, run.reason = Program.NONE, outcome.error
            self._undo(job, JobState.FAILED, f"task {run.task} could not start on node {slot.node}: {outcome.error}")
        elif run.program is Program.STARTING:
            run.program = Program.RUNNING

    def _settle_stray(self, key: str, slot: _Slot, outcome: events.OutcomeArrived) -> None:
        if not outcome.ok and slot.tries < MAX_STOP_TRIES and slot.verb is Verb.STOP_TASK:
            self._retry(key, "")
        elif slot.verb is Verb.STOP_TASK:
            slot.verb, slot.tries = Verb.UNPREPARE_CLIENT, 0
            self._ask(key)
        elif outcome.ok:
            del self._slots[key]
            self.nodes[slot.node].strays.discard(key)
            self._want_round()
        else:
            self._retry(key, "")

    def _retry(self, key: str, told: str) -> None:
        slot = self._slots[key]
        slot.not_before = self._now + min(MAX_RETRY_S, RETRY_S * 2 ** min(slot.tries, 10))
        self._wake_at(slot.not_before, "slot", key)
        job = self.jobs.get(slot.job)
        if job is not None and told:
            self._tell(job, told)
            self._announce(job)

    # --- what nodes report by themselves -------------------------------------------------

    def _task_reported(self, event: events.TaskReported) -> None:
        if self._session(event.node, event.session) is None:
            return
        job = self.jobs.get(event.job_id)
        run = job.run(event.status.task) if job is not None else None
        if job is not None and run is not None and run.node == event.node and run.is_alive:
            self._apply_report(job, run, event.status)

    def _apply_report(self, job: JobRecord, run: TaskRun, status: TaskStatus) -> None:
        if status.state is TaskState.PENDING or (status.state is TaskState.RUNNING and run.program is Program.RUNNING):
            return
        run.program = Program.RUNNING if status.state is TaskState.RUNNING else Program.EXITED
        self._persist.add(job.job.id)
        if run.program is Program.EXITED:
            run.exit_code, run.reason = status.exit_code, status.reason
            self._tell(job, f"task {run.task} {describe_exit(run)}")
            if status.exit_code != 0:
                self._undo(job, JobState.FAILED, f"task {run.task} on node {run.node} {describe_exit(run)}")
        self._announce(job)

    def _lease_ended_by_node(self, event: events.LeaseEndedByNode) -> None:
        if self._session(event.node, event.session) is None:
            return
        lease = self.leases.get(event.lease_id)
        if lease is not None and event.node in (lease.lease.device_node, lease.lease.client_node):
            self._fail_lease(lease, f"node {event.node} ended lease {event.lease_id}: {event.reason}")

    # --- people --------------------------------------------------------------------------

    def _job_submitted(self, event: events.JobSubmitted) -> None:
        record = JobRecord(job=event.job)
        if event.job.interactive:
            site = self.node(event.job.groups[0].node)
            record.progress.holder = site.instance if site.session else ""
            self._interactive[site.name].add(event.job.id)
        self._tell(record, f"queued by {event.job.user}")
        self.jobs[event.job.id] = record
        self.queue.add(event.job)
        self._persist_job(record, new=True)
        self._effects.append(events.JobChanged(job_id=event.job.id))
        self._want_round()

    def _job_cancelled(self, event: events.JobCancelled) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        if event.released and job.state is JobState.RUNNING:
            self._undo(job, JobState.SUCCEEDED, event.reason)
        else:
            self._cancel(job, event.reason or "released before its devices were ready")

    def _cancel(self, job: JobRecord, reason: str) -> None:
        if job.state is JobState.QUEUED:
            self._end(job, JobState.CANCELLED, reason)
        else:
            self._undo(job, JobState.CANCELLED, reason)

    # --- rounds --------------------------------------------------------------------------

    def _round_decided(self, event: events.RoundDecided) -> None:
        self._round_running = False
        if event.decision is None:
            self._round_wanted |= bool(event.error)
            return
        self._round_wanted |= self._round_truncated and bool(event.decision.placements)
        refused = False
        for placement in event.decision.placements:
            job = self.jobs.get(placement.job)
            if job is None or job.state is not JobState.QUEUED:
                continue
            problem = self.placement_problem(job, placement)
            if problem:
                refused = True
            else:
                self._grant(job, placement)
        # A plan that no longer fits is decided anew, but only on a changed
        # cluster: the same input would give the same plan again.
        if refused and self.generation != event.generation:
            self._round_wanted = True
        for miss in event.decision.misses:
            job = self.jobs.get(miss.job)
            if job is None or job.state is not JobState.QUEUED:
                continue
            if miss.feasible_alone:
                job.rounds_waited += 1
            if job.misses != miss.misses:
                job.misses = miss.misses
                self._announce(job)

    def _grant(self, job: JobRecord, placement: JobPlacement) -> None:
        """Write the leases of an attempt, one per task, device node and route."""
        progress = job.progress
        progress.attempt += 1
        progress.runs = []
        groups = dict(task_names(job.job))
        number = 0
        for task in placement.tasks:
            leases = []
            for (node, route), devices in _by_route(task).items():
                lease_id = f"{job.job.id}-{progress.attempt}-{number}"
                number += 1
                self._grant_lease(job, task, lease_id, node, route, devices)
                leases.append(lease_id)
            requests = job.job.groups[groups[task.task]].requests
            progress.runs.append(
                TaskRun(placement=task, group=groups[task.task], requests=requests, leases=tuple(leases))
            )
            self.occupy(task.node, requests)
            self._tell(job, describe_placement(task))
        self.generation += 1
        self.queue.remove(job.job)
        job.misses = ()
        self._index(job)
        self._move_job(job, JobState.PREPARING, "")

    def _grant_lease(
        self, job: JobRecord, task: TaskPlacement, lease_id: str, node: str, route: Route, devices: list[str]
    ) -> None:
        leased = []
        for device_id in devices:
            device = self.devices[device_id]
            device.epoch += 1
            device.lease = lease_id
            leased.append(LeasedDevice(device=device_id, epoch=device.epoch))
            self._effects.append(persist_device(device))
        lease = Lease(
            id=lease_id,
            job=job.job.id,
            task=task.task,
            user=job.job.user,
            client_node=task.node,
            device_node=node,
            route=route,
            devices=tuple(leased),
            term=self.term,
            secret=self._new_secret(),
        )
        record = LeaseRecord(lease=lease, expires_at=self._now + self.lease_ttl_s, story=[LeaseState.GRANTED.value])
        self.leases[lease_id] = record
        self.leases_of_node[node].add(lease_id)
        self._persist_lease(record)

    # --- the flow of a job ---------------------------------------------------------------

    def _advance(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            return
        if job.state is JobState.PREPARING:
            self._advance_preparing(job)
        if job.state is JobState.RUNNING and not job.job.interactive:
            runs = job.progress.runs
            if all(run.program is Program.EXITED and run.exit_code == 0 for run in runs):
                self._undo(job, JobState.SUCCEEDED, "")
        if job.state is JobState.FINISHING:
            self._advance_finishing(job)

    def _advance_preparing(self, job: JobRecord) -> None:
        runs = job.progress.runs
        for run in runs:
            waiting = [lease for lease in run.leases if self.leases[lease].state is LeaseState.GRANTED]
            for lease_id in waiting:
                lease = self.leases[lease_id].lease
                self._step(
                    f"{lease_id}.{Verb.PREPARE_DEVICES}",
                    _Slot(verb=Verb.PREPARE_DEVICES, node=lease.device_node, job=lease.job, lease=lease_id),
                )
            if not waiting and run.client is not ClientSide.PREPARED:
                if run.client is ClientSide.NONE:
                    run.client = ClientSide.PREPARING
                    self._persist.add(job.job.id)
                self._task_step(job, run, Verb.PREPARE_CLIENT)
        if not all(run.client is ClientSide.PREPARED for run in runs):
            return
        if not job.job.interactive:
            for run in runs:
                if run.program is Program.NONE:
                    run.program = Program.STARTING
                    self._persist.add(job.job.id)
                if run.program is Program.STARTING:
                    self._task_step(job, run, Verb.START_TASK)
            if any(run.program is Program.STARTING for run in runs):
                return
        job.progress.started_at = self._wall
        if job.job.time_limit_s:
            job.limit_at = self._now + job.job.time_limit_s
            self._wake_at(job.limit_at, "limit", job.job.id)
        self._move_job(job, JobState.RUNNING, "")

    def _undo(self, job: JobRecord, state: JobState, reason: str) -> None:
        """Have the attempt undone; afterwards the job is ``state``.

        The first verdict stands, except that a cancelled job does not go back
        into the queue.
        """
        verdict = Verdict(state=state, reason=reason)
        if job.state is JobState.FINISHING:
            told = job.progress.verdict
            assert told is not None, f"job {job.job.id} finishes without a verdict"
            if told.state is JobState.QUEUED and state is JobState.CANCELLED:
                job.progress.verdict = verdict
                self._tell(job, f"{state} after all: {reason}")
                self._announce(job)
                self._persist.add(job.job.id)
            return
        job.progress.verdict = verdict
        self._move_job(job, JobState.FINISHING, reason)

    def _advance_finishing(self, job: JobRecord) -> None:
        done = True
        for run in reversed(job.progress.runs):
            done = self._undo_run(job, run) and done
        if done:
            self._conclude(job)

    def _undo_run(self, job: JobRecord, run: TaskRun) -> bool:
        """Take the next step back; say whether nothing is left that could be waited for."""
        if self._is_gone(run.node):
            self._abandon(job, run)
        # One step at a time: what is under way is answered before it is undone.
        # A step that is not under way any more (its session ended) is not asked again.
        for verb in (Verb.PREPARE_CLIENT, Verb.START_TASK):
            if not self._drop_idle(self._task_slot(job, run, verb)):
                return False
        if run.is_alive:
            self._task_step(job, run, Verb.STOP_TASK)
            return False
        if not self._drop_idle(self._task_slot(job, run, Verb.STOP_TASK)):
            return False
        if run.client is not ClientSide.NONE:
            self._task_step(job, run, Verb.UNPREPARE_CLIENT)
            return False
        self._vacate(run)
        done = True
        for lease_id in run.leases:
            lease = self.leases.get(lease_id)
            if lease is not None:
                self._release(lease)
                done = done and self._is_gone(lease.lease.device_node)
        return done

    def _abandon(self, job: JobRecord, run: TaskRun) -> None:
        """Let go of a task on a node that is gone; should the node return, it is told to clear it."""
        if run.is_alive:
            run.program, run.reason = Program.EXITED, f"lost with node {run.node}"
        if run.client is not ClientSide.NONE:
            run.client = ClientSide.NONE
            self._persist.add(job.job.id)
        for verb in (Verb.PREPARE_CLIENT, Verb.START_TASK, Verb.STOP_TASK, Verb.UNPREPARE_CLIENT):
            self._drop_slot(self._task_slot(job, run, verb))

    def _release(self, record: LeaseRecord) -> None:
        lease = record.lease
        if not self._drop_idle(f"{lease.id}.{Verb.PREPARE_DEVICES}"):
            return
        if record.state is not LeaseState.RELEASING:
            self._move_lease(record, LeaseState.RELEASING)
        slot = _Slot(verb=Verb.UNPREPARE_DEVICES, node=lease.device_node, job=lease.job, lease=lease.id)
        self._step(f"{lease.id}.{Verb.UNPREPARE_DEVICES}", slot)

    def _released(self, record: LeaseRecord) -> None:
        """The device's side confirmed: the devices are free."""
        lease = record.lease
        self._move_lease(record, LeaseState.RELEASED)
        for leased in lease.devices:
            self.devices[leased.device].lease = ""
        del self.leases[lease.id]
        self.leases_of_node[lease.device_node].discard(lease.id)
        for verb in (Verb.PREPARE_DEVICES, Verb.UNPREPARE_DEVICES):
            self._drop_slot(f"{lease.id}.{verb}")
        self._touch(lease.job)
        self._want_round()

    def _conclude(self, job: JobRecord) -> None:
        progress = job.progress
        verdict = progress.verdict
        assert verdict is not None, f"job {job.job.id} finishes without a verdict"
        for run in progress.runs:
            for node in (run.node, *(place.node for place in run.placement.devices)):
                self.jobs_of_node[node].discard(job.job.id)
        if verdict.state is not JobState.QUEUED:
            self._end(job, verdict.state, verdict.reason)
            return
        progress.failures += 1
        if progress.failures >= MAX_FAILURES:
            self._end(job, JobState.FAILED, f"{verdict.reason} (attempt {progress.failures} of {MAX_FAILURES})")
            return
        progress.runs, progress.verdict = [], None
        job.not_before = self._now + RETRY_S * 2**progress.failures
        self._wake_at(job.not_before, "job", job.job.id)
        self.queue.add(job.job)
        self._move_job(job, JobState.QUEUED, verdict.reason)

    def _end(self, job: JobRecord, state: JobState, reason: str) -> None:
        if job.state is JobState.QUEUED:
            self.queue.remove(job.job)
        job.progress.ended_at = self._wall
        self._move_job(job, state, reason)
        del self.jobs[job.job.id]
        if job.job.interactive:
            self._interactive[job.job.groups[0].node].discard(job.job.id)
        self._persist.discard(job.job.id)
        self._persist_job(job, new=False)
        self._effects.append(events.JobChanged(job_id=job.job.id, ended=job.status()))

    # --- time ----------------------------------------------------------------------------

    def _clock_ticked(self, _: events.ClockTicked) -> None:
        while self._wakeups and self._wakeups[0][0] <= self._now:
            _due, kind, key = heapq.heappop(self._wakeups)
            if kind == "gone":
                self._check_node(key)
            elif kind == "lease":
                self._check_lease(key)
            elif kind == "limit":
                self._check_limit(key)
            elif kind == "slot":
                self._check_slot(key)
            elif kind == "job":
                self._want_round()

    def _watch_node(self, record: NodeRecord, due: float) -> None:
        """Look at the node at ``due``, unless an earlier look is coming, which will see to it."""
        if not record.watched:
            record.watched = True
            self._wake_at(due, "gone", record.name)

    def _check_node(self, name: str) -> None:
        record = self.nodes[name]
        record.watched = False
        due = record.seen + self.lease_ttl_s
        if due > self._now:
            self._watch_node(record, due)
            return
        if record.connected:
            reason = f"nothing was heard for {self.lease_ttl_s:g} s"
            self._effects.append(events.CloseSession(node=name, session=record.session, reason=reason))
            record.session = 0
            self._forget_commands(name)
        if not record.gone:
            self._node_gone(record)

    def _check_lease(self, lease_id: str) -> None:
        lease = self.leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.PREPARED:
            return
        if lease.expires_at > self._now:
            self._wake_at(lease.expires_at, "lease", lease_id)
        else:
            node = lease.lease.device_node
            self._fail_lease(lease, f"node {node} did not renew lease {lease_id} for {self.lease_ttl_s:g} s")

    def _check_limit(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        # The limit of an earlier attempt may be due; the present one has its own.
        if job is not None and job.state is JobState.RUNNING and job.limit_at <= self._now:
            self._undo(job, JobState.FAILED, f"it ran longer than its time limit of {job.job.time_limit_s:g} s")

    def _check_slot(self, key: str) -> None:
        slot = self._slots.get(key)
        if slot is None:
            return
        if not slot.command_id:
            if slot.not_before <= self._now:
                self._ask(key)
        elif slot.deadline <= self._now:
            outcome = events.OutcomeArrived(
                node=slot.node,
                session=0,
                command_id=slot.command_id,
                ok=False,
                error=f"{slot.verb} was not answered within {_DEADLINES[slot.verb]:g} s",
            )
            self._settle(key, outcome, answered=False)

    def _wake_at(self, when: float, kind: str, key: str) -> None:
        heapq.heappush(self._wakeups, (when, kind, key))

    # --- commands ------------------------------------------------------------------------

    def _task_slot(self, job: JobRecord, run: TaskRun, verb: Verb) -> str:
        return f"{job.job.id}-{job.progress.attempt}.{run.task}.{verb}"

    def _task_step(self, job: JobRecord, run: TaskRun, verb: Verb) -> None:
        self._step(self._task_slot(job, run, verb), _Slot(verb=verb, node=run.node, job=job.job.id, task=run.task))

    def _step(self, key: str, slot: _Slot) -> None:
        """Have a step done, unless it is asked for already or waits for its next try."""
        known = self._slots.setdefault(key, slot)
        if not known.command_id and known.not_before <= self._now:
            self._ask(key)

    def _ask(self, key: str) -> None:
        slot = self._slots[key]
        record = self.nodes.get(slot.node)
        if record is None or not record.connected:
            return
        # The first try has the same id in every term, so that a node that did
        # it already says so; a further try is a new question.
        slot.command_id = f"{key}.{slot.verb}" if slot.stray else key
        if slot.tries:
            slot.command_id += f".{self.term}.{slot.tries}"
        slot.tries += 1
        slot.deadline = self._now + _DEADLINES[slot.verb]
        self._commands[slot.command_id] = key
        self._wake_at(slot.deadline, "slot", key)
        self._send(record, self._command(slot))

    def _command(self, slot: _Slot) -> events.Command:
        command_id = slot.command_id
        if slot.verb is Verb.PREPARE_DEVICES:
            return events.PrepareDevices(command_id=command_id, lease=self.leases[slot.lease].lease)
        if slot.verb is Verb.UNPREPARE_DEVICES:
            return events.UnprepareDevices(command_id=command_id, lease_id=slot.lease)
        if slot.verb is Verb.STOP_TASK:
            return events.StopTask(command_id=command_id, job_id=slot.job, task=slot.task, grace_s=STOP_GRACE_S)
        if slot.verb is Verb.UNPREPARE_CLIENT:
            return events.UnprepareClient(command_id=command_id, job_id=slot.job, task=slot.task)
        record = self.jobs[slot.job]
        job = record.job
        run = record.run(slot.task)
        assert run is not None, f"no run of task {slot.task}"
        if slot.verb is Verb.PREPARE_CLIENT:
            leases = tuple(
                events.PreparedLease(lease=self.leases[lease].lease, endpoint=self.leases[lease].endpoint)
                for lease in run.leases
            )
            return events.PrepareClient(
                command_id=command_id, job_id=job.id, task=run.task, user=job.user, leases=leases
            )
        return events.StartTask(
            command_id=command_id,
            job_id=job.id,
            task=run.task,
            user=job.user,
            command=record.group(run).command,
            cwd=job.cwd,
            environment=job.environment,
            requests=run.requests,
            time_limit_s=job.time_limit_s,
        )

    def _send(self, record: NodeRecord, command: events.Command) -> None:
        self._effects.append(events.SendToNode(node=record.name, session=record.session, command=command))

    def _forget_commands(self, name: str) -> None:
        """A session ended: what it was asked is asked again in the next one."""
        for command_id, key in list(self._commands.items()):
            slot = self._slots[key]
            if slot.node == name:
                del self._commands[command_id]
                slot.command_id = ""
                slot.tries = max(0, slot.tries - 1)
                if slot.stray:
                    del self._slots[key]
        for key in self.nodes[name].strays:
            self._slots.pop(key, None)

    def _drop_idle(self, key: str) -> bool:
        """Forget a step, unless it is under way; say whether it is not."""
        slot = self._slots.get(key)
        if slot is not None and slot.command_id:
            return False
        self._slots.pop(key, None)
        return True

    def _drop_slot(self, key: str) -> None:
        slot = self._slots.pop(key, None)
        if slot is not None and slot.command_id:
            del self._commands[slot.command_id]

    # --- small steps ---------------------------------------------------------------------

    def _is_gone(self, name: str) -> bool:
        return self.node(name).gone

    def _index(self, job: JobRecord) -> None:
        for run in job.progress.runs:
            for node in (run.node, *(place.node for place in run.placement.devices)):
                self.node(node)
                self.jobs_of_node[node].add(job.job.id)

    def _leases_of(self, job: JobRecord) -> list[str]:
        return [lease for run in job.progress.runs for lease in run.leases if lease in self.leases]

    def _vacate(self, run: TaskRun) -> None:
        if run.occupies:
            self.vacate(run)
            self._want_round()

    def _touch(self, job_id: str) -> None:
        if job_id in self.jobs:
            self._touched[job_id] = None

    def _touch_node(self, name: str) -> None:
        for job_id in sorted(self.jobs_of_node[name]):
            self._touch(job_id)
        for lease_id in sorted(self.leases_of_node[name]):
            # Releases outlive their job when the node was gone.
            if self.leases[lease_id].state is LeaseState.RELEASING:
                self._release(self.leases[lease_id])

    def _want_round(self) -> None:
        self.generation += 1
        self._round_wanted = True

    def _announce(self, job: JobRecord) -> None:
        self._effects.append(events.JobChanged(job_id=job.job.id))
        self._touch(job.job.id)

    def _tell(self, job: JobRecord, line: str) -> None:
        job.tell(f"{describe_time(self._wall)} {line}")

    def _move_job(self, job: JobRecord, state: JobState, reason: str) -> None:
        JOB_STATES.check(job.job.id, job.state, state, job.progress.story)
        job.state = state
        job.progress.reason = reason
        self._tell(job, f"{state}: {reason}" if reason else state.value)
        self._persist.add(job.job.id)
        self._announce(job)

    def _move_lease(self, record: LeaseRecord, state: LeaseState) -> None:
        LEASE_STATES.check(record.lease.id, record.state, state, record.story)
        record.state = state
        record.story.append(state.value)
        self._persist_lease(record)

    def _persist_job(self, job: JobRecord, *, new: bool) -> None:
        progress = msgspec.json.encode(job.progress)
        self._effects.append(events.PersistJob(job=job.job, state=job.state, progress=progress, new=new))

    def _persist_lease(self, record: LeaseRecord) -> None:
        self._effects.append(
            events.PersistLease(
                lease=record.lease, state=record.state, endpoint=record.endpoint, prepared=record.prepared
            )
        )


def _by_route(task: TaskPlacement) -> dict[tuple[str, Route], list[str]]:
    devices: dict[tuple[str, Route], list[str]] = {}
    for place in task.devices:
        devices.setdefault((place.node, place.route), []).append(place.device)
    return devices
