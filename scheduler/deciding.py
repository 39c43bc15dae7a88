"""Rounds, as the machine sees them: who is looked at, what comes of it, who waits for what.  Pure.

A round sees the jobs that are awake (:mod:`farbus.scheduler.situations`) and
within their users' quotas (:mod:`farbus.scheduler.quotas`).  Of its plan
everything is held against the books once more before it is granted, job by
job: a plan that is late or was made on a cluster that has changed since does
no harm.
"""

from __future__ import annotations

from collections import Counter

from farbus.model.cluster import network_load
from farbus.model.decision import JobMiss, Neighbour, PendingJob, Snapshot
from farbus.model.job import Job, Miss
from farbus.model.rules import Rules
from farbus.model.states import JobState
from farbus.scheduler import events
from farbus.scheduler.agenda import Look
from farbus.scheduler.decision_maker import FAULT, fault_miss
from farbus.scheduler.late import Late
from farbus.scheduler.quotas import Admitted
from farbus.scheduler.records import JobRecord
from farbus.scheduler.situations import FLAVOUR, MAX_COMPANIONS, ROUTE
from farbus.scheduler.words import describe_time

MAX_ROUND_JOBS = 10_000
"""Waiting jobs that one round considers, from the front of the queue."""
MAX_ROUND_SHAPES = 256
"""Shapes of tasks among them: one of its own costs a round as much as hundreds that are alike."""
WAITS_PERSIST_S = 5.0
"""Pause between two writes of how long jobs have waited: what a kill loses of it only orders the queue."""
SET_ASIDE_S, MAX_SET_ASIDE_S = 60.0, 3_600.0
"""How long such a job is set aside at first, which doubles each time, and at most."""
LOAD_LOOK_S = 5.0
"""Pause between two looks at the network's load, while it holds jobs back."""
LOAD_FALL = 0.05
"""Part of a link by which its load must fall for another look at those jobs."""
LOAD_PATIENCE = 6
"""Looks after which those jobs have their turn all the same: how long they would rather wait counts in rounds."""
FLAVOUR_LOOK_S = 0.5
"""Pause before a job is looked at again whose flavour a policy would rather decide later: HIRE's threshold."""
NO_RULES = Rules()


class Deciding(Late):
    """What goes into rounds, and what comes out."""

    watches_load = False
    """Whether the policy holds jobs back because of the network's load."""
    _round_running = False
    _round_truncated = False

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self._waited: set[str] = set()
        """Jobs that have waited for a round which the ledger does not know of."""
        self._over: dict[str, Miss] = {}
        """Jobs that this round leaves out because their users have all that they may have."""
        self._loads: dict[str, float] = {}
        self._load_looks = 0

    def round_input(self, now: float, *, most: int = MAX_ROUND_JOBS) -> tuple[Snapshot, tuple[PendingJob, ...], int]:
        """Return what the round that RunRound asked for decides on, ``most`` jobs of it, with its generation."""
        self._round_wanted = False
        snapshot = self.snapshot(now)
        gains = self._views.take_gains()
        for situations in (self.situations, self.late):
            situations.wake_for_gains(gains)
            situations.wake_for_quota(self.accounts.eased)
        self.accounts.eased.clear()
        self._round_truncated = False
        pending = self._pending(now, most)
        self._round_truncated |= len(pending) >= most
        return snapshot, pending, self.generation

    def _pending(self, now: float, most: int) -> tuple[PendingJob, ...]:
        """Return the jobs that the round considers, first to be served first."""
        self._over, self._behind = {}, set()
        promised, admitted = self._promised(), self._promised()
        wall = self._wall + (now - self._now)
        awake = [job_id for job_id in self.situations.awake if self._may_be_placed(job_id, now)]
        if not awake:
            return tuple(map(self._late_entry, self._late_pending(now, admitted, promised)))
        long = [job_id for job_id in self.situations.companions() if self._may_be_placed(job_id, now)]
        companions = self.queue.ordered(long)[: min(MAX_COMPANIONS, most - 1)]
        # Who comes along again and again must not keep those from their turn who have not been looked at yet.
        shapes = set[int]().union(*(self.jobs[job_id].shapes for job_id in companions))
        most_shapes = len(shapes) + MAX_ROUND_SHAPES
        going: list[str] = []
        named: dict[str, str] = {}
        for job_id in self.queue.ordered(awake):
            record = self.jobs[job_id]
            shapes |= record.shapes
            if going and (len(shapes) > most_shapes or len(going) >= most - len(companions)):
                self._round_truncated = True
                break
            miss = self.accounts.miss(record.job, self.rules, admitted)
            if miss is None and record.volumes and (missed := self.volume_miss(record, ahead=named)) is not None:
                if self.volume_miss(record, ahead={}) is not None:
                    self._over[job_id] = missed
                else:
                    self._behind.add(job_id)
                    record.misses = (missed,)
            elif miss is None:
                admitted.add(record.job)
                going.append(job_id)
            elif self.accounts.miss(record.job, self.rules, promised) is not None:
                self._over[job_id] = miss
            else:
                self._behind.add(job_id)
                record.misses = (miss,)
        late = self._late_pending(now, admitted, promised)
        room = most - len(companions) - len(going)
        self._round_truncated |= len(late) > room
        # Nor from what their users may have: they sleep, so nothing of it is likely to be theirs in this round.
        for job_id in companions:
            record = self.jobs[job_id]
            if self.accounts.miss(record.job, self.rules, admitted) is None and (
                not record.volumes or self.volume_miss(record, ahead=named) is None
            ):
                admitted.add(record.job)
                going.append(job_id)
        entries = (self._entry(self.jobs[job_id], wall) for job_id in self.queue.ordered(going))
        return (*entries, *map(self._late_entry, late[:room]))

    def _entry(self, record: JobRecord, wall: float) -> PendingJob:
        return PendingJob(
            job=record.job,
            rounds_waited=record.progress.rounds_waited,
            left_s=record.job.due_at - wall,
            profile=self.inference.known(record.job),
            waited_s=self._now - record.undecided_since if record.undecided_since else 0.0,
            neighbours=self._neighbours(record.job),
        )

    def _promised(self) -> Admitted:
        """Return what waiting jobs are sure to be granted without a round."""
        return Admitted()

    def _neighbours(self, job: Job) -> tuple[Neighbour, ...]:
        """Return where the tasks run that ``job`` is to be near: those of another job of its user."""
        other = self.jobs.get(job.beside) if job.beside else None
        if other is None or other.job.user != job.user or other.state is not JobState.RUNNING:
            return ()
        tasks: Counter[str] = Counter()
        in_network: Counter[str] = Counter()
        for run in other.runs:
            if run.succeeded:
                continue
            tasks[run.placement.node] += 1
            in_network[run.placement.node] += other.group(run).service is not None
        return tuple(Neighbour(node=node, tasks=tasks[node], in_network=in_network[node]) for node in sorted(tasks))

    def _late_entry(self, stands: Job) -> PendingJob:
        return PendingJob(job=stands, profile=self.inference.known(stands))

    def _may_be_placed(self, job_id: str, now: float) -> bool:
        return self.jobs[job_id].not_before <= now

    # --- what a round decided ------------------------------------------------------------

    def _round_decided(self, event: events.RoundDecided) -> None:
        self._round_running = False
        for job_id, miss in self._over.items():
            self._miss(JobMiss(job=job_id, misses=(miss,), feasible_alone=False))
        self._over = {}
        for late_id, miss in self._late_over.items():
            self._late_missed(late_id, (miss,))
        self._late_over = {}
        if event.decision is None:
            self._round_wanted |= bool(event.error)
            if event.error:
                self._tell_failed(event.error)
            return
        # Whoever was looked at sleeps now or is placed: those behind have their turn.
        self._round_wanted |= self._round_truncated
        refused, unchanged, promised = False, self.generation == event.generation, self._promised()
        for placement in event.decision.placements:
            if placement.job in self.late_jobs:
                refused |= not self._grant_late(placement)
                continue
            job = self.jobs.get(placement.job)
            if job is None or job.state is not JobState.QUEUED or not self._may_be_placed(placement.job, self._now):
                continue
            problem = self.placement_problem(job, placement)
            if problem and unchanged:
                # A defect: it would be decided so again and again.  Nobody is to wait without a word for that.
                fault = fault_miss(job.job.id, f"the decision can't be carried out: {problem}")
                self._miss(fault)
            elif problem or self.accounts.miss(job.job, self.rules, promised) is not None:
                refused = True
            else:
                self._grant(job, placement)
        self._views.look(self._now)
        if refused:
            # Others may have been told that what it would have taken is gone.
            self._wake_all()
        # A plan that no longer fits is decided anew, but only on a changed
        # cluster: the same input would give the same plan again.
        if refused and self.generation != event.generation:
            self._round_wanted = True
        for missed in event.decision.misses:
            self._miss(missed)
        # They were left out for the sake of others that may not have been placed.
        self._round_wanted |= any(not self._behind.isdisjoint(each.awake) for each in (self.situations, self.late))
        self._behind = set()

    def _tell_failed(self, error: str) -> None:
        """Tell all that wait for a round why none comes about; the next one that does says more."""
        misses = (Miss(phase=FAULT, resource="round", message=f"no decision comes about for any job: {error}"),)
        for job_id in self.situations.awake:
            job = self.jobs[job_id]
            if job.misses != misses and self._may_be_placed(job_id, self._now):
                job.misses = misses
                self._announce(job)

    def _miss(self, miss: JobMiss) -> None:
        """Note what a job misses, and let it wait until that has changed."""
        if miss.job in self.late_jobs:
            faults = [each for each in miss.misses if each.phase == FAULT]
            if faults:
                self._late_fault(miss.job, faults[0])
            else:
                self._late_missed(miss.job, miss.misses)
            return
        job = self.jobs.get(miss.job)
        if job is None or job.state is not JobState.QUEUED:
            return
        misses = miss.misses
        if any(each.phase == FAULT for each in misses):
            misses = (self._set_aside(job, misses[0]),)
        else:
            if miss.feasible_alone:
                self._wait(job)
            if any(each.resource == FLAVOUR for each in misses):
                # Time alone changes what a policy would rather wait for.
                job.undecided_since = job.undecided_since or self._now
                job.not_before = self._now + FLAVOUR_LOOK_S
                self._agenda.add(job.not_before, Look.JOB, job.job.id)
            else:
                self.situations.sleep(job.job, misses, rounds_waited=job.progress.rounds_waited)
            if self.watches_load and not self._load_looks and any(each.resource == ROUTE for each in misses):
                self._look_at_load()
        if job.misses != misses:
            job.misses = misses
            self._announce(job)

    def _set_aside(self, job: JobRecord, miss: Miss) -> Miss:
        """Have a job wait because of which no decision comes about, so that it stops no other."""
        pause = min(MAX_SET_ASIDE_S, SET_ASIDE_S * 2**job.faults)
        job.faults += 1
        job.not_before = self._now + pause
        self._agenda.add(job.not_before, Look.JOB, job.job.id)
        told = f"{miss.message}; it is set aside until {describe_time(self._wall + pause)}"
        self._tell(job, told)
        return Miss(phase=FAULT, resource="job", message=told)

    def _wait(self, job: JobRecord) -> None:
        """Count a round; the ledger learns of many rounds of many jobs at once."""
        job.progress.rounds_waited += 1
        if not self._waited:
            self._agenda.add(self._now + WAITS_PERSIST_S, Look.WAITS, "")
        self._waited.add(job.job.id)

    def _persist_waits(self) -> None:
        waiting = [self.jobs[job_id] for job_id in sorted(self._waited) if job_id in self.jobs]
        self._waited.clear()
        rounds = tuple((job.job.id, job.progress.rounds_waited) for job in waiting)
        if rounds:
            self._effects.append(events.PersistWaits(rounds=rounds))

    # --- what changes beside the cluster -------------------------------------------------

    def _rules_changed(self, event: events.RulesChanged) -> None:
        self.rules = event.rules
        self.situations.wake_for_quota()
        self.late.wake_for_quota()
        self._want_round()

    def _look_at_load(self) -> None:
        """Wake jobs that a policy holds back once the load has fallen, or they have waited for some looks."""
        loads = {name: network_load(links, self._now) for name, links in self.links.items()}
        fell = any(load < self._loads.get(name, 0.0) - LOAD_FALL for name, load in loads.items())
        # From the highest load on: one that falls little by little counts, too.
        self._loads = loads if fell else {name: max(load, self._loads.get(name, 0.0)) for name, load in loads.items()}
        held = False
        if fell or self._load_looks >= LOAD_PATIENCE:
            self._load_looks = 0
            held = self.situations.wake_for_load()
            if held:
                self._want_round()
        if held or self.situations.waits_for_load:
            self._load_looks += 1
            self._agenda.watch(self._now + LOAD_LOOK_S, Look.LOAD, "")
        else:
            self._load_looks = 0
