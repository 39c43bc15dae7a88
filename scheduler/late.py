"""Tasks that a job runs without (``min_count``) and that begin later, when there is room.  Pure.

To rounds the tasks of one group that a running job lacks are a job by itself,
of lower rank than any that waits: as many of them as find room are placed.  What is
placed is prepared and started beside what runs; until its program has begun
a late task is a *spare*, which its job can lose (:mod:`farbus.scheduler.attempts`).
From then on it is like any other task of the job.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from farbus.model.decision import JobPlacement
from farbus.model.job import Job, Miss
from farbus.model.states import JobState
from farbus.scheduler.agenda import Look
from farbus.scheduler.attempts import MAX_FAILURES
from farbus.scheduler.queue import MAX_PRIORITY
from farbus.scheduler.quotas import QUOTA, Admitted, devices_of_task
from farbus.scheduler.records import JobRecord
from farbus.scheduler.situations import Situations
from farbus.scheduler.volumes import Volumes

LATE_PRIORITY = 100 * MAX_PRIORITY
"""By how much the priority of such tasks is lowered: below that of every job that waits, however long."""

FAULT_PAUSE_S = 60.0
"""How long they are set aside where no decision comes about with them."""


class Late(Volumes):
    """The tasks that running jobs lack, as rounds see them."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.late_jobs: dict[str, tuple[str, int, Job]] = {}
        """For each job that stands for such tasks, by its id: the running job, the number of the group, the job."""
        self.late = Situations()
        """Which of them are worth a look."""
        self._late_of: dict[str, tuple[str, ...]] = {}
        self._late_over: dict[str, Miss] = {}
        """Those that this round leaves out because their users have all that they may have."""
        self._behind: set[str] = set()
        """Jobs, and such tasks, that it leaves out because others of their users go first."""

    def _offer(self, job: JobRecord) -> None:
        """Let rounds know of the tasks that a running job lacks, and of no others."""
        lacks = job.lacks
        if job.progress.late_failures >= MAX_FAILURES or job.progress.unreachable or self._is_arriving(job):
            lacks = {}
        known = self._late_of.get(job.job.id, ())
        if not lacks and not known:
            return
        found = []
        for index, count in lacks.items():
            group = job.job.groups[index]
            late_id = f"{job.job.id}+{group.name}"
            found.append(late_id)
            if late_id in known and self.late_jobs[late_id][2].groups[0].count == count:
                continue
            asked = replace(job.asked.groups[index], count=count, min_count=1)
            stands = replace(
                job.job, id=late_id, groups=(asked,), alternatives=(), priority=job.job.priority - LATE_PRIORITY
            )
            self.late_jobs[late_id] = (job.job.id, index, stands)
            self.late.remove(late_id)
            self.late.add(late_id)
            self._want_round()
        for late_id in set(known) - set(found):
            del self.late_jobs[late_id]
            self.late.remove(late_id)
        if found:
            self._late_of[job.job.id] = tuple(found)
        else:
            self._late_of.pop(job.job.id, None)
            if job.state is JobState.RUNNING:
                job.misses = ()

    def _end(self, job: JobRecord, state: JobState, reason: str) -> None:
        super()._end(job, state, reason)
        self._offer(job)

    def _wake_all(self) -> None:
        super()._wake_all()
        self.late.wake_all()

    def _late_pending(self, now: float, admitted: Admitted, promised: Admitted) -> list[Job]:
        """Return what a round is asked of such tasks, within their users' quotas, the first to be served first.

        They come behind what is ``admitted`` to the round, of which only what is ``promised`` is sure to be granted.
        """
        self._late_over = {}
        awake = [self.late_jobs[late_id] for late_id in self.late.awake]
        pending = []
        for job_id, _, stands in sorted(awake, key=lambda each: (-each[2].priority, each[2].submitted_at, each[2].id)):
            if self.jobs[job_id].late_after > now:
                continue
            room = self.accounts.room_for_devices(stands.user, self.rules, admitted)
            (group,) = stands.groups
            each = devices_of_task(group)
            count = group.count if room is None or not each else min(group.count, room // each)
            if count < 1 and (self.accounts.room_for_devices(stands.user, self.rules, promised) or 0) >= each:
                self._behind.add(stands.id)
                continue
            if count < 1:
                message = f"{stands.user} may have no more devices at a time"
                self._late_over[stands.id] = Miss(phase=QUOTA, resource="devices", message=message)
                continue
            admitted.devices[stands.user] += count * each
            pending.append(stands if count == group.count else replace(stands, groups=(replace(group, count=count),)))
        return pending

    def _grant_late(self, placement: JobPlacement) -> bool:
        """Place more tasks of a running job; say whether the plan holds."""
        job_id, index, stands = self.late_jobs[placement.job]
        job = self.jobs[job_id]
        tasks = placement.tasks[: job.lacks.get(index, 0)]
        (group,) = stands.groups
        room = self.accounts.room_for_devices(stands.user, self.rules)
        if room is not None and len(tasks) * devices_of_task(group) > room:
            return False
        if not tasks or self.placement_problem(JobRecord(job=stands), placement):
            return False
        job.misses = ()
        names = job.lacking(index, len(tasks))
        named = [replace(task, task=name) for task, name in zip(tasks, names, strict=True)]
        for run, told in self._grant_tasks(job, named, late=True):
            self._refuse(job, run, told)
        self._announce(job)
        return True

    def _late_fault(self, late_id: str, miss: Miss) -> None:
        """Set tasks aside because of which no decision comes about; after some tries for good."""
        job = self.jobs[self.late_jobs[late_id][0]]
        job.progress.late_failures += 1
        job.late_after = self._now + FAULT_PAUSE_S
        self._agenda.add(job.late_after, Look.JOB, job.job.id)
        job.misses = (miss,)
        self._announce(job)

    def _late_missed(self, late_id: str, misses: Iterable[Miss]) -> None:
        """Have such tasks wait until something has changed that they miss."""
        if late_id not in self.late_jobs:
            return
        job_id, _, stands = self.late_jobs[late_id]
        job, misses = self.jobs[job_id], tuple(misses)
        self.late.sleep(stands, misses, rounds_waited=0)
        if job.misses != misses:
            job.misses = misses
            self._announce(job)

    def check_invariants(self, *, now: float | None = None) -> None:
        """Raise AssertionError where the books are wrong; for tests."""
        super().check_invariants(now=now)
        offered = {late_id for found in self._late_of.values() for late_id in found}
        assert offered == set(self.late_jobs), "what running jobs lack"
        asleep = {late_id for late_id in offered if self.late.is_asleep(late_id)}
        assert self.late.awake == offered - asleep, "what running jobs lack, and situations"
        for job_id, index, stands in self.late_jobs.values():
            assert self.jobs[job_id].lacks[index] == stands.groups[0].count, f"what job {job_id} lacks"
