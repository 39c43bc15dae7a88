"""The cluster machine: events in, effects out.  Pure: no I/O, no clock, no asyncio.

A job goes queued -> preparing -> running -> finishing -> ended (or queued
again).  Order of an attempt: PrepareDevices on every lease's device node,
PrepareClient on the task's node, StartTask once *all* tasks of the job are
prepared; undo in reverse.

The machine is built in layers, each of which knows those below it:
:mod:`farbus.scheduler.cluster` (the books), :mod:`farbus.scheduler.commander`
(steps and effects), :mod:`farbus.scheduler.attempts` (jobs),
:mod:`farbus.scheduler.liveness` (nodes and leases),
:mod:`farbus.scheduler.operations` (operators),
:mod:`farbus.scheduler.chassis` (who serves which chassis),
:mod:`farbus.scheduler.device_moves` (devices between nodes),
:mod:`farbus.scheduler.volumes` (storage with a name, and what attaches it),
:mod:`farbus.scheduler.late` (tasks that running jobs lack),
:mod:`farbus.scheduler.deciding` (rounds),
:mod:`farbus.scheduler.making_room` (jobs that end for others), and this module:
the door, restart and users.

What is persisted is emitted before what is sent, so that no node is asked for
something that the ledger does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from farbus.model.decision import StorageShare
from farbus.model.device import Device
from farbus.model.job import Job, add_room
from farbus.model.lease import Lease
from farbus.model.node import Node, Resources
from farbus.model.operation import Cordon, CordonKind
from farbus.model.profile import ApplicationProfile, ObservedRun
from farbus.model.rules import Rules
from farbus.model.states import JobState, LeaseState
from farbus.scheduler import events
from farbus.scheduler.agenda import Look
from farbus.scheduler.deciding import NO_RULES
from farbus.scheduler.events import Effect, Event, Verb
from farbus.scheduler.inference import ends_of
from farbus.scheduler.making_room import MakingRoom
from farbus.scheduler.move_records import StoredMove
from farbus.scheduler.quotas import devices_of_lease
from farbus.scheduler.records import LeaseRecord, StoredProgress
from farbus.scheduler.situations import Situations
from farbus.scheduler.steps import DEADLINES
from farbus.scheduler.stored import share_of, timed
from farbus.scheduler.volume_records import StoredVolume

_ACTIVE = (JobState.PREPARING, JobState.RUNNING, JobState.FINISHING)


class ClusterMachine(MakingRoom):
    """All state of the scheduler, moved by :meth:`handle`."""

    def __init__(
        self,
        *,
        term: int,
        lease_ttl_s: float,
        new_secret: Callable[[], str],
        boot_id: str = "",
        return_s: float | None = None,
        restart_grace_s: float = 0.0,
        unreachable_limit_s: float = 0.0,
        rules: Rules = NO_RULES,
        watches_load: bool = False,
        chassis_servers: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        super().__init__(
            term=term,
            lease_ttl_s=lease_ttl_s,
            new_secret=new_secret,
            boot_id=boot_id,
            return_s=return_s,
            restart_grace_s=restart_grace_s,
            unreachable_limit_s=unreachable_limit_s,
        )
        self.rules = rules
        self.watches_load = watches_load
        self.chassis_servers = dict(chassis_servers or {})
        self._handlers: dict[type, Callable[..., None]] = {
            events.NodeJoined: self._node_joined,
            events.NodeLost: self._node_lost,
            events.NodeLeaving: self._node_leaving,
            events.InventoryChanged: self._inventory_changed,
            events.HeartbeatArrived: self._heartbeat_arrived,
            events.OutcomeArrived: self._outcome_arrived,
            events.TaskReported: self._task_reported,
            events.LeaseEndedByNode: self._lease_ended_by_node,
            events.LeaseOverused: self._lease_overused,
            events.LeasePaths: self._lease_paths,
            events.JobSubmitted: self._job_submitted,
            events.JobCancelled: self._job_cancelled,
            events.Cordoned: self._cordoned,
            events.Uncordoned: self._uncordoned,
            events.JobEvicted: self._job_evicted,
            events.ProfileSet: self._profile_set,
            events.ProfileForgotten: self._profile_forgotten,
            events.NodeForgotten: self._node_forgotten,
            events.MoveAsked: self._move_asked,
            events.MoveCancelled: self._move_cancelled,
            events.MoveProgressed: self._move_progressed,
            events.ChassisReported: self._chassis_reported,
            events.VolumeAsked: self._volume_asked,
            events.VolumeResizeAsked: self._volume_resize_asked,
            events.VolumeDeletionAsked: self._volume_deletion_asked,
            events.RoundDecided: self._round_decided,
            events.RoomPlanned: self._room_planned,
            events.RulesChanged: self._rules_changed,
            events.ClockTicked: self._clock_ticked,
        }
        self._looks: dict[Look, Callable[[str], None]] = {
            Look.NODE: self._check_node,
            Look.LEASE: self._check_lease,
            Look.LIMIT: self._check_limit,
            Look.STEP: self._check_step,
            Look.JOB: lambda _: self._want_round(),
            Look.WAITS: lambda _: self._persist_waits(),
            Look.ROOM: self._check_room,
            Look.RIPE: self._check_ripe,
            Look.LOAD: lambda _: self._look_at_load(),
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
        self._notice_stall()
        self._handlers[type(event)](event)
        self._advance_touched()
        # Most events are heartbeats, and they bring nothing that anybody waits for.
        if not isinstance(event, events.HeartbeatArrived):
            self._serve_waiting()
        for job_id in sorted(self._persist):
            self._persist_job(self.jobs[job_id], new=False)
        self._persist.clear()
        for job_id in sorted(self._changed_tasks):
            self._persist_tasks(self.jobs[job_id])
        self._changed_tasks.clear()
        if self._round_wanted and not self._round_running and (len(self.queue) or self.late_jobs):
            self._round_running = True
            self._round_wanted = False
            self._effects.append(events.RunRound())
        durable = [effect for effect in self._effects if isinstance(effect, events.Persist)]
        return durable + [effect for effect in self._effects if not isinstance(effect, events.Persist)]

    def _serve_waiting(self) -> None:
        """Give those who wait for no round what they wait for, if it has come."""
        if self.reservations:
            self._claim_rooms()
            self._advance_touched()
        if self.growing_volumes:
            self._advance_growing()
        if self.attachments:
            self._attach_waiting()
            self._advance_touched()

    def _advance_touched(self) -> None:
        while self._touched:
            job_id = next(iter(self._touched))
            del self._touched[job_id]
            self._advance(job_id)

    def look_at_all_tasks(self) -> list[Effect]:
        """Look at all tasks of all jobs, and return what comes of it: nothing, as events look at those that they touch.

        For tests.
        """
        self._effects = []
        for job_id, job in self.jobs.items():
            job.runs.look_at_all()
            self._touch(job_id)
        self._advance_touched()
        return self._effects

    def next_wakeup(self) -> float | None:
        """Return the monotonic time by which a ClockTicked is due, None when nothing waits for time."""
        return self._agenda.next_due()

    # --- restart -------------------------------------------------------------------------

    def _restored_share(self, lease: Lease, asked: tuple[Job, StoredProgress] | None) -> StorageShare:
        """Return what a lease of room has of each of its drives, for a job as the ledger has it."""
        if asked is None:
            return share_of(lease, None)
        job, progress = asked
        ran_s = max(0.0, self._wall - progress.started_at) if progress.started_at else 0.0
        share = share_of(lease, (job, progress.alternative))
        return timed(share, job, started_at=self._now - ran_s, now=self._now, wall=self._wall)

    def restore(
        self,
        *,
        jobs: Iterable[tuple[Job, JobState, StoredProgress]],
        leases: Iterable[tuple[Lease, LeaseState, str, bool]],
        devices: Iterable[tuple[str, str, int, Device | None]],
        nodes: Iterable[tuple[Node, float]],
        cordons: Iterable[Cordon] = (),
        runs: Iterable[ObservedRun] = (),
        profiles: Iterable[ApplicationProfile] = (),
        moves: Iterable[StoredMove] = (),
        chassis: Iterable[tuple[str, int]] = (),
        next_move: int = 1,
        volumes: Iterable[StoredVolume] = (),
        next_volume: int = 1,
        now: float,
        wall: float,
    ) -> None:
        """Take over what the ledger has: jobs that have not ended, leases that are not released.

        Every node starts without a session; those that stay away for
        ``return_s`` from now are gone.  Until then no lease expires: its two
        nodes keep it between them.
        """
        self._now, self._wall = now, wall
        self.listening_since = now
        for observed in runs:
            self.inference.observe(observed)
        for profile in profiles:
            self.inference.set(profile)
        for node, seen_at in nodes:
            record = self.node(node.name)
            record.node = node
            record.seen_at = seen_at
            record.seen = now - max(0.0, wall - seen_at)
        for device_id, owner, epoch, device in devices:
            self.devices[device_id] = self.new_device(device_id, owner, device=device, epoch=epoch)
            self.devices_of_node[owner].add(device_id)
            if owner:
                self.node(owner)
        self.restore_moves(moves, chassis, next_move=next_move)
        self.restore_volumes(volumes, next_volume=next_volume)
        for cordon in cordons:
            if cordon.kind is CordonKind.NODE or cordon.name in self.devices:
                self._record_of(cordon.kind, cordon.name).cordon = cordon
        expires_at = self._patient_until
        jobs = tuple(jobs)
        leases = tuple(leases)
        by_id: dict[str, tuple[Job, StoredProgress]] = {}
        if any(lease.is_room for lease, *_ in leases):
            by_id = {job.id: (job, progress) for job, _, progress in jobs}
        for lease, lease_state, endpoint, prepared in leases:
            self.leases[lease.id] = LeaseRecord(
                lease=lease,
                state=lease_state,
                endpoint=endpoint,
                prepared=prepared,
                expires_at=expires_at,
                story=[lease_state.value],
            )
            self.leases_of_node[lease.device_node].add(lease.id)
            self.accounts.take(lease.user, devices=devices_of_lease(lease))
            self._agenda.watch(expires_at, Look.LEASE, lease.id)
            for leased in lease.devices:
                held = self.devices[leased.device]
                if lease.is_room:
                    held.shares = {**held.shares, lease.id: self._restored_share(lease, by_id.get(lease.job))}
                else:
                    held.lease = lease.id
        waiting: list[Job] = []
        used: dict[str, Resources] = {}
        for job, state, progress in jobs:
            found = self._take_job(job, state=state, progress=progress)
            if job.interactive:
                self._interactive[job.groups[0].node].add(job.id)
            if self.volumes and found.volumes:
                self._note_volumes(job)
            if state is JobState.QUEUED:
                waiting.append(job)
                continue
            found.running_since = now
            found.ran_before_s = max(0.0, wall - progress.started_at) if progress.started_at else 0.0
            if state is JobState.RUNNING:
                self._watch_ripe(found)
                self.loads.begin(job.id, ends_of(run.placement for run in found.runs), now)
            self.accounts.take(job.user, jobs=1)
            # A ledger of an earlier version does not know their number.
            progress.leases = max(progress.leases, sum(len(run.leases) for run in found.runs))
            for run in found.runs:
                if run.moves:
                    self._await_moves(found, run, run.moves)
                    self.accounts.take(job.user, devices=len(run.moved_devices))
                if run.occupies:
                    add_room(used, run.room)
            if state is JobState.RUNNING and job.time_limit_s and not self._is_arriving(found):
                self._limit(found)
        for name, room in used.items():
            self.occupy(name, room)
        self._restore_rooms()
        self.queue = type(self.queue)(waiting)
        self.situations = Situations(job.id for job in waiting if not job.attachment)
        self.attachments = {job.id for job in waiting if job.attachment}
        for record in self.nodes.values():
            self._watch_node(record, self._patient_until)
        # No round is wanted yet: without a node that has come back it could place nothing.

    # --- outcomes ------------------------------------------------------------------------

    def _outcome_arrived(self, event: events.OutcomeArrived) -> None:
        key = self.steps.key_of(event.command_id)
        if self._session(event.node, event.session) is None or key is None:
            return
        if self.steps[key].node == event.node:
            self._settle(key, event)

    def _settle(self, key: str, outcome: events.OutcomeArrived, *, answered: bool = True) -> None:
        """A step was answered, or its deadline passed."""
        step = self.steps.end_command(key)
        if step.move:
            self._settle_move(key, step, outcome, answered=answered)
            return
        if step.volume:
            self._settle_volume(key, step, outcome, answered=answered)
            return
        if step.stray:
            self._settle_stray(key, step, outcome)
            return
        job = self.jobs.get(step.job)
        if step.verb is Verb.UNPREPARE_DEVICES:
            if outcome.ok:
                self._released(self.leases[step.lease])
            else:
                self.leases[step.lease].trouble = outcome.error
                self._retry(key, f"lease {step.lease} is not released on node {step.node}: {outcome.error}")
        elif job is None or job.state not in _ACTIVE:
            self.steps.drop(key)
        elif step.verb is Verb.PREPARE_DEVICES:
            self.steps.drop(key)
            self._settle_prepare_devices(job, step, outcome)
        else:
            run = job.run(step.task)
            assert run is not None, f"step {key} without a run"
            self._settle_task_step(key, step, job, run, outcome, answered=answered)
        if job is not None:
            # A lease may be over by now.
            lease = self.leases.get(step.lease)
            self._touch(job.job.id, task=lease.lease.task if lease is not None else step.task)

    def _check_step(self, key: str) -> None:
        step = self.steps.get(key)
        if step is None:
            return
        if not step.command_id:
            if step.not_before <= self._now:
                self._ask(key)
        elif step.deadline <= self._now:
            outcome = events.OutcomeArrived(
                node=step.node,
                session=0,
                command_id=step.command_id,
                ok=False,
                error=f"{step.verb} was not answered within {DEADLINES[step.verb]:g} s",
            )
            self._settle(key, outcome, answered=False)

    # --- what nodes report by themselves -------------------------------------------------

    def _task_reported(self, event: events.TaskReported) -> None:
        if self._session(event.node, event.session) is None:
            return
        job = self.jobs.get(event.job_id)
        run = job.run(event.status.task) if job is not None else None
        if job is not None and run is not None and run.node == event.node and run.is_alive:
            self._apply_report(job, run, event.status)

    def _lease_ended_by_node(self, event: events.LeaseEndedByNode) -> None:
        if self._session(event.node, event.session) is None:
            return
        if not event.lease_id:
            job = self.jobs.get(event.job_id)
            run = job.run(event.task) if job is not None else None
            if job is not None and run is not None and run.node == event.node:
                self._lose_run(job, run, f"node {event.node} ended its side: {event.reason}")
            return
        lease = self.leases.get(event.lease_id)
        if lease is not None and event.node in (lease.lease.device_node, lease.lease.client_node):
            self._fail_lease(lease, f"node {event.node} ended lease {event.lease_id}: {event.reason}")

    # --- people --------------------------------------------------------------------------

    def _job_submitted(self, event: events.JobSubmitted) -> None:
        record = self._take_job(event.job)
        if event.job.interactive:
            site = self.node(event.job.groups[0].node)
            record.progress.holder = site.instance if site.session else ""
            self._interactive[site.name].add(event.job.id)
        self._tell(record, f"queued by {event.job.user}")
        self._enqueue(event.job)
        if record.volumes:
            self._note_volumes(event.job)
        self._persist_job(record, new=True)
        self._effects.append(events.JobChanged(job_id=event.job.id))
        self._want_round()

    def _job_cancelled(self, event: events.JobCancelled) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        if event.released and job.state is JobState.RUNNING:
            self._end_interactive(job, event)
        else:
            self._cancel(job, event.reason or "released before its devices were ready")

    # --- time ----------------------------------------------------------------------------

    def _clock_ticked(self, _: events.ClockTicked) -> None:
        for look, key in self._agenda.take_due(self._now):
            self._looks[look](key)
