"""A job's attempts: grant its leases, prepare, start, and take everything back in reverse.  Pure.

Within an attempt nothing follows a script: after every event that touches a
job, :meth:`Attempts._advance` looks at what is confirmed and asks for the steps
that are missing.  Undo runs in reverse, never beside the step that it undoes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farbus.errors import Conflict
from farbus.model.decision import JobPlacement, StorageShare
from farbus.model.device import Route
from farbus.model.job import DevicePlacement, Job, TaskGroup, TaskPlacement, TaskState, TaskStatus, room_of
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.states import JobState, LeaseState
from farbus.model.volume import StorageGrant, volume_of
from farbus.scheduler import events
from farbus.scheduler.agenda import Look
from farbus.scheduler.cluster import persist_device
from farbus.scheduler.commander import RETRY_S, Commander
from farbus.scheduler.events import Verb
from farbus.scheduler.inference import ends_of, observed_run
from farbus.scheduler.queue import task_names
from farbus.scheduler.quotas import devices_of_lease
from farbus.scheduler.records import JobRecord, LeaseRecord, Verdict
from farbus.scheduler.runs import ClientSide, Program, TaskRun, Trait
from farbus.scheduler.situations import LONG_WAIT_ROUNDS
from farbus.scheduler.steps import Step
from farbus.scheduler.stored import grant_of, timed, with_storage
from farbus.scheduler.words import UNREACHABLE, describe_exit, describe_placement, describe_unreachable

MAX_FAILURES = 3
"""Attempts of a job that may fail before it started; then the job has failed."""
RAN_PERSIST_S = 60.0
"""Pause between two writes of how long an interactive job with a time limit has run: what a boot of the scheduler's
machine makes it forget."""
UNTOLD_END = "farbus run has ended without telling how its program did, as when it is killed by SIGKILL"
STORAGE_VARIABLE = "FARBUS_STORAGE_"
"""How the names of variables begin in which a node says where it has put storage."""
MAX_PATH = 4_096
"""Characters of it that are kept; Linux's PATH_MAX."""
ENDED_WELL = "it has ended well"
"""Why a task gives back what it has, though nobody wants that of it."""
MAX_STOP_TRIES = 3
"""Refused stops of a task after which UnprepareClient has to end what is left."""


class Attempts(Commander):
    """How a job gets from the queue to its end."""

    # --- grants --------------------------------------------------------------------------

    def _grant(self, job: JobRecord, placement: JobPlacement) -> None:
        """Begin an attempt where the job was placed."""
        progress = job.progress
        job.runs.clear()
        progress.attempt += 1
        progress.leases = progress.late_failures = 0
        progress.alternative = placement.alternative
        if placement.alternative:
            self._tell(job, f"placed as its alternative {placement.alternative}")
        refused = self._grant_tasks(job, placement.tasks)
        self._leave_queue(job)
        self.accounts.take(job.job.user, jobs=1)
        job.misses = ()
        job.limit_at = job.late_after = 0.0
        self._move_job(job, JobState.PREPARING, "")
        for run, told in refused:
            self._refuse(job, run, told)

    def _grant_tasks(
        self, job: JobRecord, tasks: Iterable[TaskPlacement], *, late: bool = False
    ) -> list[tuple[TaskRun, str]]:
        """Begin tasks of an attempt with their leases; return those that can't have all of their devices, and why."""
        refused = []
        asked = job.asked
        groups = dict(task_names(asked))
        # Of a job with flavour vectors only some groups are there; what is kept of a run counts all of them.
        numbers = {group.name: number for number, group in enumerate(job.job.groups)}
        for placed in tasks:
            group = asked.groups[groups[placed.task]]
            task = with_storage(placed, group)
            run = TaskRun(placement=task, group=numbers[group.name], requests=group.requests, late=late)
            job.runs.add(run)
            self._index(job, run.nodes)
            for node, room in room_of(group.requests, task).items():
                self.occupy(node, room)
            self._tell(job, describe_placement(task))
            try:
                self._grant_leases(job, run, group)
            except Conflict as error:
                refused.append((run, error.message))
        self.generation += 1
        self._persist.add(job.job.id)
        return refused

    def _grant_leases(self, job: JobRecord, run: TaskRun, group: TaskGroup) -> None:
        """Write the leases of a task, one per device node, route and storage, and have moved what is to come to it."""
        for (node, route, *_), places in _by_lease(run.placement).items():
            if route is not Route.RECOMPOSED:
                grant, share = grant_of(self.volumes, group, places)
                devices = [place.device for place in places]
                self._grant_lease(job, run, node, route, devices, grant=grant, share=share)
        self._require_idle(job, run.moved_devices)
        run.moves = self._begin_moves(job, run)
        if run.moves:
            # Its lease is granted where they are then; to the user's quota they count from now on.
            self.accounts.take(job.job.user, devices=len(run.moved_devices))

    def _require_idle(self, job: JobRecord, devices: Iterable[str], *, shared: bool = False) -> None:
        """Raise :class:`Conflict` where somebody has one of the devices, and have that fault logged."""
        for device_id in devices:
            if told := self.holder_of(device_id, job.job.id, shared=shared):
                self._effects.append(events.FaultFound(job_id=job.job.id, told=told))
                raise Conflict(told)

    def _refuse(self, job: JobRecord, run: TaskRun, told: str) -> None:
        """A task can't have its devices: its job begins anew, which counts as a failed attempt, or does without it."""
        told = f"task {run.task} could not be given its devices: {told}"
        if run.is_spare:
            self._drop(job, run, told)
        else:
            self._undo(job, JobState.QUEUED, told)

    def _begin_moves(self, job: JobRecord, run: TaskRun) -> tuple[str, ...]:
        """Have devices moved to the node of a task; return the ids of the moves."""
        del job
        assert not run.moved_devices, "nobody moves devices here"
        return ()

    def _await_moves(self, job: JobRecord, run: TaskRun, moves: tuple[str, ...]) -> None:
        """Note for which moves a task still waits: what has come before the last of them is kept for its job."""
        run.moves = moves
        for device_id in run.moved_devices:
            device = self.devices.get(device_id)
            if device is None or device.reserved not in ("", job.job.id):
                continue
            device.reserved = job.job.id if moves and device_id not in self.move_of else ""

    def _grant_moved(self, job: JobRecord, run: TaskRun) -> None:
        """All devices have come: they are the node's own now."""
        self.accounts.give(job.job.user, devices=len(run.moved_devices))
        try:
            self._grant_lease(job, run, run.node, Route.LOCAL, list(run.moved_devices))
        except Conflict as error:
            self._refuse(job, run, error.message)
        self._persist.add(job.job.id)

    def _enqueue(self, job: Job) -> None:
        """Have a job wait for a round; where an attachment goes is known, so it waits for its volume alone."""
        self.queue.add(job)
        if job.attachment:
            self.attachments.add(job.id)
        else:
            self.situations.add(job.id)

    def _leave_queue(self, job: JobRecord) -> None:
        self.queue.remove(job.job)
        self.attachments.discard(job.job.id)
        self.situations.remove(job.job.id)
        if job.progress.rounds_waited >= LONG_WAIT_ROUNDS:
            # What was kept for it, and is more than it takes, is anybody's now.
            self._wake_all()
            self._want_round()

    def _grant_lease(
        self,
        job: JobRecord,
        run: TaskRun,
        node: str,
        route: Route,
        devices: list[str],
        *,
        grant: StorageGrant | None = None,
        share: StorageShare | None = None,
    ) -> None:
        """Write one lease of a task; with a ``share`` it has so much of each device, beside others.

        Every lease is granted here.  Raises :class:`Conflict` where somebody has
        one of the devices, or it is not there, whatever was decided, and has
        granted nothing then.
        """
        self._require_idle(job, devices, shared=share is not None)
        for device_id in devices:
            if self.devices[device_id].node != node:
                raise Conflict(f"device {device_id} is not at node {node}")
        lease_id = f"{job.job.id}-{job.progress.attempt}-{job.progress.leases}"
        job.progress.leases += 1
        if share is not None:
            share = timed(share, job.job, started_at=self._now, now=self._now, wall=self._wall)
        leased = []
        for device_id in devices:
            device = self.devices[device_id]
            device.epoch += 1
            if share is not None:
                device.shares = {**device.shares, lease_id: share}
            else:
                device.lease = lease_id
            leased.append(LeasedDevice(device=device_id, epoch=device.epoch))
            self._effects.append(persist_device(device))
        lease = Lease(
            id=lease_id,
            job=job.job.id,
            task=run.task,
            user=job.job.user,
            client_node=run.node,
            device_node=node,
            route=route,
            devices=tuple(leased),
            term=self.term,
            secret=self._new_secret(),
            storage=grant,
        )
        record = LeaseRecord(lease=lease, expires_at=self._now + self.lease_ttl_s, story=[LeaseState.GRANTED.value])
        self.leases[lease_id] = record
        self.accounts.take(lease.user, devices=devices_of_lease(lease))
        self.leases_of_node[node].add(lease_id)
        run.leases += (lease_id,)
        self._persist_lease(record)

    # --- forward -------------------------------------------------------------------------

    def _advance(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            return
        if job.state is JobState.PREPARING:
            self._advance_preparing(job)
        # A start that was asked for is waited for: its program may have begun.
        waits = job.job.interactive or job.job.attachment or job.runs.count(Trait.STARTING)
        if job.state is JobState.RUNNING and not waits and not job.runs.count(Trait.UNFINISHED):
            self._undo(job, JobState.SUCCEEDED, "")
        if job.state is JobState.RUNNING:
            self._begin_limit(job)
            self._advance_late(job)
        if job.state is JobState.FINISHING:
            self._advance_finishing(job)
        self._offer(job)

    def _offer(self, job: JobRecord) -> None:
        """See to it that rounds know of the tasks that a job does without."""

    def _advance_preparing(self, job: JobRecord) -> None:
        runs = job.runs
        due = runs.take_due()
        for run in due:
            if run.client is not ClientSide.PREPARED:
                self._prepare(job, run)
        if runs.count(Trait.UNPREPARED):
            return
        if job.job.attachment:
            # Its volume has been used there: what ends that is no failure of the attachment.
            job.progress.failures = 0
        elif not job.job.interactive:
            for run in list(runs) if runs.count(Trait.UNSTARTED) else due:
                self._start(job, run)
            if runs.count(Trait.STARTING):
                return
        job.progress.started_at = self._wall
        job.running_since = self._now
        self.loads.begin(job.job.id, ends_of(run.placement for run in runs), self._now)
        job.ran_before_s = 0.0
        self._time_shares(job)
        self._watch_ripe(job)
        self._move_job(job, JobState.RUNNING, "")

    def _time_shares(self, job: JobRecord) -> None:
        """Count what its program needs of drives from now on: until here it was prepared."""
        for lease_id in self._leases_of(job.runs):
            lease = self.leases[lease_id].lease
            for leased in lease.devices if lease.is_room else ():
                device = self.devices[leased.device]
                share = device.shares[lease_id]
                now = timed(share, job.job, started_at=self._now, now=self._now, wall=self._wall)
                if now != share:
                    device.shares = {**device.shares, lease_id: now}

    def _watch_ripe(self, job: JobRecord) -> None:
        """Have a running job looked at once it has run so long that it may be preempted."""
        if job.job.moveable and self.rules.preemption:
            ripe_at = job.running_since + self.rules.preemption_min_run_s
            self._agenda.add(max(self._now, ripe_at), Look.RIPE, job.job.id)

    def _prepare(self, job: JobRecord, run: TaskRun) -> None:
        """Ask for the next step towards the start of a task."""
        if run.moves:
            return
        waiting = [lease for lease in run.leases if self.leases[lease].state is LeaseState.GRANTED]
        for lease_id in waiting:
            lease = self.leases[lease_id].lease
            self._step(
                f"{lease_id}.{Verb.PREPARE_DEVICES}",
                Step(verb=Verb.PREPARE_DEVICES, node=lease.device_node, job=lease.job, lease=lease_id),
            )
        if not waiting and run.client is not ClientSide.PREPARED:
            if run.client is ClientSide.NONE:
                run.client = ClientSide.PREPARING
            self._task_step(job, run, Verb.PREPARE_CLIENT)

    def _start(self, job: JobRecord, run: TaskRun) -> None:
        if run.program is Program.NONE:
            run.program = Program.STARTING
        if run.program is Program.STARTING:
            self._task_step(job, run, Verb.START_TASK)

    # --- tasks that come later, and those that are taken back while their job goes on ------

    def _advance_late(self, job: JobRecord) -> None:
        for run in job.runs.take_due():
            if run.succeeded and not run.dropped:
                # What it had others may use while its job goes on; how it ended stays known.
                run.dropped = ENDED_WELL
            if run.dropped and not run.cleared:
                if self._undo_run(job, run):
                    self._end_taken_back(job, run)
            elif run.late and run.program in (Program.NONE, Program.STARTING):
                self._prepare(job, run)
                if run.client is ClientSide.PREPARED:
                    self._start(job, run)

    def _drop(self, job: JobRecord, run: TaskRun, reason: str) -> None:
        """Take a spare task back; its job goes on without it."""
        if run.dropped or job.state is not JobState.RUNNING:
            return
        run.dropped = reason
        job.progress.late_failures += 1
        job.late_after = self._now + RETRY_S * 2**job.progress.late_failures
        self._agenda.add(job.late_after, Look.JOB, job.job.id)
        self._tell(job, f"task {run.task} is taken back: {reason}")
        self._persist.add(job.job.id)
        self._announce(job)

    def _end_taken_back(self, job: JobRecord, run: TaskRun) -> None:
        """Nothing is left of a task that was taken back: forget one that may be placed again."""
        nodes = run.nodes
        if run.succeeded:
            job.runs.leave_nodes(run)
        else:
            job.runs.remove(run)
        for node in nodes:
            if not job.runs.at(node):
                self.jobs_of_node[node].discard(job.job.id)
        self._announce(job)
        self._want_round()

    # --- answers -------------------------------------------------------------------------

    def _settle_prepare_devices(self, job: JobRecord, step: Step, outcome: events.OutcomeArrived) -> None:
        lease = self.leases[step.lease]
        if not outcome.ok:
            self._fail_lease(lease, f"node {step.node} could not prepare its devices: {outcome.error}")
            return
        lease.prepared = True
        lease.endpoint = outcome.endpoint
        lease.expires_at = self._now + self.lease_ttl_s
        self._agenda.watch(lease.expires_at, Look.LEASE, step.lease)
        self._move_lease(lease, LeaseState.PREPARED)

    def _settle_task_step(
        self,
        key: str,
        step: Step,
        job: JobRecord,
        run: TaskRun,
        outcome: events.OutcomeArrived,
        *,
        answered: bool,
    ) -> None:
        if step.verb is Verb.UNPREPARE_CLIENT:
            if outcome.ok:
                self.steps.drop(key)
                run.client = ClientSide.NONE
                self._vacate(run)
            else:
                self._retry(key, f"task {run.task} is not cleared from node {step.node}: {outcome.error}")
            return
        if step.verb is Verb.STOP_TASK:
            if outcome.ok or step.tries >= MAX_STOP_TRIES:
                self.steps.drop(key)
                if run.is_alive:
                    run.lose(run.reason or ("stopped" if outcome.ok else f"not stopped: {outcome.error}"))
            else:
                self._retry(key, f"task {run.task} is not stopped on node {step.node}: {outcome.error}")
            return
        self.steps.drop(key)
        if step.verb is Verb.PREPARE_CLIENT:
            told = f"node {step.node} could not prepare task {run.task}: {outcome.error}"
            if outcome.ok:
                run.client = ClientSide.PREPARED
                if job.job.attachment:
                    run.path = _path_in(outcome.environment)
            elif run.is_spare:
                self._drop(job, run, told)
            else:
                self._undo(job, JobState.QUEUED, told)
        elif not outcome.ok:
            # Without an answer it may have started: then the undo stops it.
            if run.program is Program.STARTING and answered:
                run.program, run.reason = Program.NONE, outcome.error
            told = f"task {run.task} could not start on node {step.node}: {outcome.error}"
            if run.is_spare:
                self._drop(job, run, told)
            else:
                self._undo(job, JobState.FAILED, told)
        elif run.program is Program.STARTING:
            run.program = Program.RUNNING
            # Its node tells when its files have arrived.
            run.arriving = job.job.is_staged
            if run.late:
                # The job's state stays what it was: nothing else tells who watches it.
                self._announce(job)

    def _apply_report(self, job: JobRecord, run: TaskRun, status: TaskStatus) -> None:
        if status.state is TaskState.PENDING:
            return
        begins = status.state is TaskState.RUNNING
        if begins and run.program is Program.RUNNING and not run.arriving:
            return
        run.program = Program.RUNNING if begins else Program.EXITED
        run.arriving = status.unstarted
        if run.program is Program.EXITED:
            run.exit_code, run.reason = status.exit_code, status.reason
            self._persist.add(job.job.id)
            self._tell(job, f"task {run.task} {describe_exit(run)}")
            if run.is_spare:
                self._drop(job, run, f"it did not begin on node {run.node}: {run.reason}")
            elif status.unstarted and not self._has_begun(job):
                self._undo(job, JobState.QUEUED, f"task {run.task} did not begin on node {run.node}: {run.reason}")
            elif not run.succeeded:
                told = f"task {run.task} on node {run.node} {describe_exit(run)}"
                self._undo(job, JobState.FAILED, told + self._lenders_lost([run]))
        self._announce(job)

    def _lenders_lost(self, runs: Iterable[TaskRun]) -> str:
        """Say which nodes can't be reached that have devices of tasks.

        A program whose disk or GPU is gone fails by itself, and knows of no node.
        """
        lost: dict[str, list[str]] = {}
        for run in runs:
            for place in run.placement.devices:
                lender = self.nodes.get(place.node)
                if place.node not in ("", run.node) and (lender is None or not lender.connected):
                    lost.setdefault(place.node, []).append(place.device)
        told = ""
        for name, devices in lost.items():
            state = describe_unreachable(self.nodes[name].seen_at if name in self.nodes else 0.0)
            told += f"; node {name}, which has its {', '.join(dict.fromkeys(devices))}, {state}"
        return told

    def _end_interactive(self, job: JobRecord, event: events.JobCancelled) -> None:
        """End an attachment, or an interactive job whose program has ended, as that program did."""
        if job.job.attachment:
            self._undo(job, JobState.SUCCEEDED, event.reason)
            return
        (run,) = job.runs
        if event.exit_code is None:
            self._undo(job, JobState.FAILED, f"task {run.task}: {UNTOLD_END}")
            return
        run.program, run.exit_code = Program.EXITED, event.exit_code
        self._persist.add(job.job.id)
        told = f"task {run.task} {describe_exit(run)}"
        self._tell(job, told)
        if event.exit_code:
            self._undo(job, JobState.FAILED, told)
        else:
            self._undo(job, JobState.SUCCEEDED, event.reason)

    # --- back ----------------------------------------------------------------------------

    def _undo(self, job: JobRecord, state: JobState, reason: str, *, moved: bool = False) -> None:
        """Have the attempt undone; afterwards the job is ``state``.

        The first verdict stands, except that a cancelled job does not go back
        into the queue.
        """
        verdict = Verdict(state=state, reason=reason, moved=moved)
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

    def _has_begun(self, job: JobRecord) -> bool:
        """Say whether a program of the job's may have begun: what has begun is not run a second time."""
        if job.job.attachment:
            # Nothing of it can be lost by beginning anew.
            return False
        if job.job.interactive:
            return job.state is not JobState.PREPARING
        return job.runs.count(Trait.BEGUN) > 0

    def _after_loss(self, job: JobRecord) -> JobState:
        return JobState.FAILED if self._has_begun(job) else JobState.QUEUED

    def _lose_run(self, job: JobRecord, run: TaskRun, reason: str) -> None:
        if run.succeeded:
            # All that its job wanted of it is done.
            return
        if run.is_spare:
            self._drop(job, run, reason)
        elif job.state is JobState.PREPARING:
            self._undo(job, self._after_loss(job), reason)
        elif job.state is JobState.RUNNING and (run.is_alive or job.job.interactive or job.job.attachment):
            self._undo(job, self._after_loss(job), f"task {run.task} was lost: {reason}")

    def _fail_lease(self, lease: LeaseRecord, reason: str) -> None:
        """The lease can't be used any more: its job starts anew or, once it ran, fails."""
        job = self.jobs.get(lease.lease.job)
        run = job.run(lease.lease.task) if job is not None else None
        if job is None or run is None or lease.lease.id not in run.leases or run.succeeded:
            # Nobody has it any more: it is on its way back.  Or nobody uses it: it goes back when its job ends.
            return
        if run.is_spare:
            self._drop(job, run, reason)
        elif job.state is JobState.PREPARING:
            self._undo(job, self._after_loss(job), reason)
        elif job.state is JobState.RUNNING:
            devices = ", ".join(leased.device for leased in lease.lease.devices)
            self._undo(job, self._after_loss(job), f"{devices} of task {lease.lease.task} was lost: {reason}")

    def _cancel(self, job: JobRecord, reason: str) -> None:
        if job.state is JobState.QUEUED:
            self._end(job, JobState.CANCELLED, reason)
        else:
            self._undo(job, JobState.CANCELLED, reason)

    def _begin_limit(self, job: JobRecord) -> None:
        """Begin to count a job's time once all its programs have begun; its keepers count from there, too."""
        if job.job.time_limit_s and not job.limit_at and not self._is_arriving(job):
            progress = job.progress
            progress.started_monotonic, progress.started_boot, progress.ran_s = self._now, self.boot_id, 0.0
            self._persist.add(job.job.id)
            self._limit(job)

    @staticmethod
    def _is_arriving(job: JobRecord) -> bool:
        """Say whether a program that the job can't do without waits for its files."""
        return job.runs.count(Trait.AWAITED) > 0

    def _limit(self, job: JobRecord) -> None:
        """Have a job end at its time limit, counted by monotonic time from its start.

        After a boot of this machine nobody here knows how long it has run, and
        the wall clock may have been set: then it goes on from what was last
        written down.  The programs of tasks are ended in time by their
        keepers, which count too; nobody else counts an interactive job's.
        """
        progress = job.progress
        if not self.boot_id or progress.started_boot != self.boot_id:
            progress.started_monotonic, progress.started_boot = self._now - progress.ran_s, self.boot_id
            self._persist.add(job.job.id)
        job.limit_at = progress.started_monotonic + job.job.time_limit_s
        self._watch_limit(job)

    def _watch_limit(self, job: JobRecord) -> None:
        due = min(job.limit_at, self._now + RAN_PERSIST_S) if job.job.interactive else job.limit_at
        self._agenda.add(due, Look.LIMIT, job.job.id)

    def _check_limit(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        # The limit of an earlier attempt may be due; the present one has its own.
        if job is None or job.state is not JobState.RUNNING or not job.limit_at:
            return
        if job.limit_at <= self._now:
            self._undo(job, JobState.FAILED, f"it ran longer than its time limit of {job.job.time_limit_s:g} s")
        elif job.job.interactive:
            job.progress.ran_s = self._now - job.progress.started_monotonic
            self._persist.add(job_id)
            self._watch_limit(job)

    def _advance_finishing(self, job: JobRecord) -> None:
        for run in reversed(job.runs.take_due()):
            if self._undo_run(job, run):
                job.left.pop(run.task, None)
            else:
                job.left[run.task] = None
        if not job.left:
            self._conclude(job)

    def _undo_run(self, job: JobRecord, run: TaskRun) -> bool:
        """Take the next step back; say whether nothing is left that could be waited for."""
        if run.moves:
            # They go on to their end: the devices are then wherever that is, and nobody's.
            self._await_moves(job, run, ())
            self.accounts.give(job.job.user, devices=len(run.moved_devices))
        if run.client is ClientSide.NONE and not (run.is_alive or run.occupies or self._has_leases(run)):
            return True
        if self.is_gone(run.node):
            self._abandon(job, run)
        if self.steps.is_asked(self._task_key(job, run, Verb.UNPREPARE_CLIENT)):
            return False
        # One step at a time: what is under way is answered before it is undone.
        # A step that is not under way any more (its session ended) is not asked again.
        for verb in (Verb.PREPARE_CLIENT, Verb.START_TASK):
            if not self.steps.drop_idle(self._task_key(job, run, verb)):
                return False
        if run.is_alive:
            self._task_step(job, run, Verb.STOP_TASK)
            return False
        if not self.steps.drop_idle(self._task_key(job, run, Verb.STOP_TASK)):
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
                done = done and self.is_gone(lease.lease.device_node)
        return done

    def _abandon(self, job: JobRecord, run: TaskRun) -> None:
        """Let go of a task on a node that is gone; should the node return, it is told to clear it."""
        if run.is_alive:
            run.lose(f"lost with node {run.node}")
        if run.client is not ClientSide.NONE:
            run.client = ClientSide.NONE
        for verb in (Verb.PREPARE_CLIENT, Verb.START_TASK, Verb.STOP_TASK, Verb.UNPREPARE_CLIENT):
            self.steps.drop(self._task_key(job, run, verb))

    def _release(self, record: LeaseRecord) -> None:
        lease = record.lease
        if not self.steps.drop_idle(f"{lease.id}.{Verb.PREPARE_DEVICES}"):
            return
        if record.state is not LeaseState.RELEASING:
            self._move_lease(record, LeaseState.RELEASING)
        step = Step(verb=Verb.UNPREPARE_DEVICES, node=lease.device_node, job=lease.job, lease=lease.id)
        self._step(f"{lease.id}.{Verb.UNPREPARE_DEVICES}", step)

    def _released(self, record: LeaseRecord) -> None:
        """The device's side confirmed: the devices are free."""
        lease = record.lease
        self._move_lease(record, LeaseState.RELEASED)
        for leased in lease.devices:
            device = self.devices[leased.device]
            if lease.is_room:
                device.shares = {key: share for key, share in device.shares.items() if key != lease.id}
            else:
                device.lease = ""
        del self.leases[lease.id]
        self.accounts.give(lease.user, devices=devices_of_lease(lease))
        self.leases_of_node[lease.device_node].discard(lease.id)
        for verb in (Verb.PREPARE_DEVICES, Verb.UNPREPARE_DEVICES):
            self.steps.drop(f"{lease.id}.{verb}")
        self._effects += self.settle_claims(leased.device for leased in lease.devices)
        self._touch(lease.job, task=lease.task)
        self._want_round()

    def _conclude(self, job: JobRecord) -> None:
        progress = job.progress
        verdict = progress.verdict
        assert verdict is not None, f"job {job.job.id} finishes without a verdict"
        for run in list(job.runs):
            for node in run.nodes:
                self.jobs_of_node[node].discard(job.job.id)
            if run.is_spare:
                # Of what never began there is nothing to tell.
                job.runs.remove(run)
        self.accounts.give(job.job.user, jobs=1)
        self._want_round()
        if verdict.moved:
            verdict = _own_end(job.runs) or verdict
        if verdict.state is not JobState.QUEUED:
            reason = verdict.reason
            # It may not have been known yet when the program failed.
            if verdict.state is JobState.FAILED and UNREACHABLE not in reason:
                reason += self._lenders_lost(run for run in job.runs if not run.succeeded)
            self._end(job, verdict.state, reason)
            return
        progress.failures += not verdict.moved
        if progress.failures >= MAX_FAILURES and not verdict.moved:
            self._end(job, JobState.FAILED, f"{verdict.reason} (attempt {progress.failures} of {MAX_FAILURES})")
            return
        self.loads.end(job.job.id, self._now)
        job.runs.clear()
        progress.verdict, progress.unreachable, progress.started_at = None, [], 0.0
        progress.alternative = ""
        job.not_before = self._now + RETRY_S * 2**progress.failures
        self._agenda.add(job.not_before, Look.JOB, job.job.id)
        self._enqueue(job.job)
        self._move_job(job, JobState.QUEUED, verdict.reason)

    def _end(self, job: JobRecord, state: JobState, reason: str) -> None:
        if job.state is JobState.QUEUED:
            self._leave_queue(job)
        job.progress.ended_at = self._wall
        self._move_job(job, state, reason)
        del self.jobs[job.job.id]
        if job.job.interactive:
            self._interactive[job.job.groups[0].node].discard(job.job.id)
        self._persist.discard(job.job.id)
        self._changed_tasks.pop(job.job.id, None)
        job.progress.runs = list(job.runs)
        self._persist_job(job, new=False)
        status = job.status()
        # The wall clock may have been set meanwhile.
        seconds = job.ran_before_s + self._now - job.running_since
        run = observed_run(status, self.loads.end(job.job.id, self._now), seconds=seconds)
        if run is not None:
            self.inference.observe(run)
            self._effects.append(events.PersistRun(run=run))
        self._effects.append(events.JobChanged(job_id=job.job.id, ended=status))


def _own_end(runs: Iterable[TaskRun]) -> Verdict | None:
    """Say how a job has ended that was to be moved and whose programs were quicker; None where they were stopped."""
    runs = tuple(runs)
    if runs and all(run.succeeded for run in runs):
        return Verdict(state=JobState.SUCCEEDED, reason="")
    for run in runs:
        if run.program is Program.EXITED and run.exit_code > 0 and not run.reason:
            return Verdict(state=JobState.FAILED, reason=f"task {run.task} on node {run.node} {describe_exit(run)}")
    return None


def _by_lease(task: TaskPlacement) -> dict[tuple[str, Route, str, str], list[DevicePlacement]]:
    """Return the devices of each lease: storage has one of its own, and of a volume each part."""
    devices: dict[tuple[str, Route, str, str], list[DevicePlacement]] = {}
    for place in task.devices:
        part = place.device if volume_of(place.device) else ""
        devices.setdefault((place.node, place.route, place.storage, part), []).append(place)
    return devices


def _path_in(environment: Mapping[str, str]) -> str:
    """Return where a node says that it has put the storage of a task."""
    told = (value for name, value in sorted(environment.items()) if name.startswith(STORAGE_VARIABLE))
    return next(told, "")[:MAX_PATH]
