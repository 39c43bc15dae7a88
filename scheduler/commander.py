"""What every part of the cluster machine does: ask nodes for steps, move and persist jobs and leases.  Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from farbus.model.job import Job
from farbus.model.rules import Rules
from farbus.model.states import JOB_STATES, LEASE_STATES, JobState, LeaseState
from farbus.scheduler import events
from farbus.scheduler.agenda import Agenda, Look
from farbus.scheduler.cluster import ClusterState
from farbus.scheduler.events import Effect, Verb
from farbus.scheduler.records import JobRecord, LeaseRecord, NodeRecord, StoredProgress
from farbus.scheduler.runs import Runs, TaskRun
from farbus.scheduler.steps import STOP_GRACE_S, Step, StepBook
from farbus.scheduler.words import describe_time

RETRY_S = 0.5
"""First pause before a failed step or attempt is tried again; it doubles each time."""
MAX_RETRY_S = 30.0
"""Longest such pause."""
FIRST_ADDRESS = "FARBUS_FIRST_ADDRESS"
"""Variable of tasks with the address of the node that has their job's first task."""
MIN_LIMIT_S = 1.0
"""Least time limit of a task that starts when its job's is nearly over: 0 would be none."""


class Commander(ClusterState):
    """The books, with the means to change the world: steps, effects and an agenda.

    Layers above it: :class:`farbus.scheduler.attempts.Attempts` (jobs),
    :class:`farbus.scheduler.liveness.Liveness` (nodes), and the machine
    itself, :class:`farbus.scheduler.lifecycle.ClusterMachine`.
    """

    def __init__(self, *, term: int, lease_ttl_s: float, new_secret: Callable[[], str], boot_id: str = "") -> None:
        super().__init__()
        self.term = term
        self.boot_id = boot_id
        """The boot in which monotonic times are counted; empty where it is not known."""
        self.lease_ttl_s = lease_ttl_s
        self.rules = Rules()
        """What users may do, and what may be done to make room."""
        self._new_secret = new_secret
        self.steps = StepBook(term)
        self._agenda = Agenda()
        self._now = 0.0
        self._wall = 0.0
        self._effects: list[Effect] = []
        self._touched: dict[str, None] = {}
        """Jobs to advance, persist and announce before the event is done."""
        self._persist: set[str] = set()
        self._changed_tasks: dict[str, None] = {}
        """Jobs of whose tasks some have changed, to be written down."""
        self._interactive: defaultdict[str, set[str]] = defaultdict(set)
        """Interactive jobs by the node of their program."""
        self._round_wanted = False

    # --- steps ---------------------------------------------------------------------------

    def _task_key(self, job: JobRecord, run: TaskRun, verb: Verb) -> str:
        return f"{job.job.id}-{job.progress.attempt}.{run.task}.{verb}"

    def _task_step(self, job: JobRecord, run: TaskRun, verb: Verb) -> None:
        key = self._task_key(job, run, verb)
        # Of a job with a thousand tasks most are under way whenever one has an answer.
        if not self.steps.is_asked(key):
            self._step(key, Step(verb=verb, node=run.node, job=job.job.id, task=run.task))

    def _step(self, key: str, step: Step) -> None:
        """Have a step done, unless it is asked for already or waits for its next try."""
        known = self.steps.add(key, step)
        if not known.command_id and known.not_before <= self._now:
            self._ask(key)

    def _ask(self, key: str) -> None:
        record = self.nodes.get(self.steps[key].node)
        if record is None or not record.connected:
            return
        step = self.steps.ask(key, self._now)
        self._agenda.add(step.deadline, Look.STEP, key)
        self._send(record, self._command(step))

    def _forget_commands(self, name: str) -> None:
        """A session ended: what it was asked is asked again in the next one."""
        self.steps.lose_session(name)
        for key in self.nodes[name].strays:
            self.steps.drop(key)

    def _command(self, step: Step) -> events.Command:
        command_id = step.command_id
        if step.verb is Verb.PREPARE_DEVICES:
            lease = self.leases[step.lease].lease
            return events.PrepareDevices(
                command_id=command_id, lease=lease, peer_endpoint=self._peer_endpoint(lease.client_node)
            )
        if step.verb is Verb.UNPREPARE_DEVICES:
            return events.UnprepareDevices(command_id=command_id, lease_id=step.lease)
        if step.verb is Verb.STOP_TASK:
            return events.StopTask(command_id=command_id, job_id=step.job, task=step.task, grace_s=STOP_GRACE_S)
        if step.verb is Verb.UNPREPARE_CLIENT:
            return events.UnprepareClient(command_id=command_id, job_id=step.job, task=step.task)
        record = self.jobs[step.job]
        job = record.job
        run = record.run(step.task)
        assert run is not None, f"no run of task {step.task}"
        if step.verb is Verb.PREPARE_CLIENT:
            leases = tuple(
                events.PreparedLease(
                    lease=held.lease,
                    endpoint=held.endpoint,
                    peer_endpoint=self._peer_endpoint(held.lease.device_node),
                )
                for held in (self.leases[lease_id] for lease_id in run.leases)
            )
            return events.PrepareClient(
                command_id=command_id,
                job_id=job.id,
                task=run.task,
                user=job.user,
                leases=leases,
                interactive=job.interactive,
                attachment=job.attachment,
            )
        return events.StartTask(
            command_id=command_id,
            job_id=job.id,
            task=run.task,
            user=job.user,
            command=record.group(run).command,
            cwd=job.cwd,
            environment=self._environment(record),
            requests=run.requests,
            time_limit_s=self._left_s(record),
            stage_in=job.stage_in,
            stage_out=job.stage_out,
        )

    def _environment(self, record: JobRecord) -> dict[str, str]:
        """Return the job's environment, in one of several tasks with where its first one is, so that they can meet."""
        job = record.job
        if sum(group.count for group in job.groups) == 1:
            return job.environment
        first = record.runs.first
        assert first is not None, f"job {job.id} has no task"
        known = self.node(first.node).node
        # Of a node that was not heard since the scheduler began the name is known, which is its address by default.
        return {**job.environment, FIRST_ADDRESS: known.address if known is not None else first.node}

    def _left_s(self, record: JobRecord) -> float:
        """Return the time limit of a task that starts now: what is left of the job's, once that is counted."""
        if not record.limit_at:
            return record.job.time_limit_s
        return max(MIN_LIMIT_S, record.limit_at - self._now)

    def _peer_endpoint(self, name: str) -> str:
        known = self.node(name).node
        return known.peer_endpoint if known is not None else ""

    def _send(self, record: NodeRecord, command: events.Command) -> None:
        self._effects.append(events.SendToNode(node=record.name, session=record.session, command=command))

    def _retry(self, key: str, told: str) -> None:
        step = self.steps[key]
        step.not_before = self._now + min(MAX_RETRY_S, RETRY_S * 2 ** min(step.tries, 10))
        self._agenda.add(step.not_before, Look.STEP, key)
        job = self.jobs.get(step.job)
        if job is not None and told and not job.has_told(told):
            self._tell(job, told)
            self._persist.add(job.job.id)
            self._announce(job)

    # --- jobs and leases -----------------------------------------------------------------

    def _take_job(
        self, job: Job, *, state: JobState = JobState.QUEUED, progress: StoredProgress | None = None
    ) -> JobRecord:
        """Have a job in the books, new or as it is written down; return its record."""
        progress = progress or StoredProgress()
        runs = Runs(progress.runs, job=job.id, changed=self._changed_tasks)
        # What lives is written task by task.
        progress.runs = []
        record = self.jobs[job.id] = JobRecord(job=job, state=state, progress=progress, runs=runs)
        self._index(record, runs.nodes)
        return record

    def _index(self, job: JobRecord, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.node(node)
            self.jobs_of_node[node].add(job.job.id)

    def _leases_of(self, runs: Iterable[TaskRun]) -> list[str]:
        return [lease for run in runs for lease in run.leases if lease in self.leases]

    def _has_leases(self, run: TaskRun) -> bool:
        return any(lease in self.leases for lease in run.leases)

    def _vacate(self, run: TaskRun) -> None:
        if run.occupies:
            self.vacate(run)
            self._want_round()

    def _touch(self, job_id: str, *, task: str = "") -> None:
        """Have a job looked at, and of its tasks those that have changed and ``task``, for which something has come."""
        if job_id in self.jobs:
            self._touched[job_id] = None
            if task:
                self.jobs[job_id].runs.look(task)

    def _wake_all(self) -> None:
        """Have the next round look at all that waits."""
        self.situations.wake_all()

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
        job.runs.look_at_all()
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
        self._effects.append(events.PersistJob(job=job.job, state=job.state, progress=job.progress, new=new))

    def _persist_tasks(self, job: JobRecord) -> None:
        """Write those of a job's tasks that have changed."""
        tasks = tuple((task, msgspec.json.encode(run) if run else b"") for task, run in job.runs.take_unwritten())
        if tasks:
            self._effects.append(events.PersistTasks(job_id=job.job.id, tasks=tasks))

    def _persist_lease(self, record: LeaseRecord) -> None:
        self._effects.append(
            events.PersistLease(
                lease=record.lease, state=record.state, endpoint=record.endpoint, prepared=record.prepared
            )
        )
