"""Plans which moveable jobs end so that another one finds room: preemption and defragmentation.

Both ask the decision maker where the job would go (:mod:`farbus.scheduler.openings`).
Preemption ends jobs of strictly lower priority that have run for a while,
those of the lowest priority and the youngest first.  Defragmentation moves
any moveable job, if each has a place to go to: at an operator's wish, or now and
then by itself, where the rules say so, within their limits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import structlog

from farbus.errors import Conflict, FarbusError, NotFound
from farbus.model.decision import Decision, JobPlacement, PendingJob, Snapshot
from farbus.model.device import DeviceKind
from farbus.model.job import Job, TaskGroup
from farbus.model.node import DIMENSIONS, Resources
from farbus.model.operation import MovedJob, RoomPlan
from farbus.model.states import JobState
from farbus.scheduler import events
from farbus.scheduler.decision_maker import FAULT, DecisionMaker
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.openings import Found, Holding, find_opening, holding_of, without
from farbus.scheduler.quotas import QUOTA
from farbus.scheduler.records import JobRecord

_log = structlog.get_logger()

MAX_TRIED = 4
"""Jobs of a round that it could not place, for which a plan is looked for."""
MAX_SINGLES = 16
"""Jobs of which each is tried alone, where the first plan ends several."""
MAX_CANDIDATES = 4_096
"""Jobs that may end, of which plans are made; those that should end first."""


class RoomPlanner:
    """Looks for plans, on one machine."""

    def __init__(self, machine: ClusterMachine, maker: DecisionMaker, now: Callable[[], float]) -> None:
        self._machine = machine
        self._maker = maker
        self._now = now

    async def preempt(self, missed: Iterable[str]) -> events.RoomPlanned | None:
        """Return a plan for the first of the ``missed`` jobs of a round for which there is one."""
        machine = self._machine
        if not machine.rules.preemption:
            return None
        waiting = [job_id for job_id in missed if job_id in machine.queue]
        for job_id in machine.queue.ordered(waiting)[:MAX_TRIED]:
            # Anew for each: while decisions are waited for, jobs end and are cancelled.
            record = machine.jobs.get(job_id)
            if record is None or record.state is not JobState.QUEUED:
                continue
            candidates = self._candidates(least_s=machine.rules.preemption_min_run_s)
            below = [each for each in candidates if each.job.priority < record.job.priority]
            if not below:
                return None
            if job_id in machine.reservations or any(
                miss.permanent or miss.phase in (QUOTA, FAULT) for miss in record.misses
            ):
                continue
            try:
                found = await self._fewest(record.job, [holding_of(machine, each) for each in below])
            except FarbusError as error:
                _log.warning("no plan for preemption", job=job_id, reason=str(error))
                return None
            if found is not None and found.needed:
                reason = f"preempted by job {job_id} of priority {record.job.priority}"
                moved = tuple(held.job for held in found.needed)
                _log.info("preempting", job=job_id, moved=moved)
                return events.RoomPlanned(placement=found.placement, moved=moved, reason=reason, preempts=True)
        return None

    def _candidates(self, *, least_s: float) -> list[JobRecord]:
        now, machine = self._now(), self._machine
        found = [each for each in machine.jobs.values() if machine.may_move(each, least_s=least_s, now=now)]
        # The lowest priority first, and of one priority those whose end loses least work.
        return sorted(found, key=lambda each: (each.job.priority, -each.running_since))[:MAX_CANDIDATES]

    async def _fewest(self, job: Job, holdings: Sequence[Holding]) -> Found | None:
        snapshot = self._machine.snapshot(self._now())
        # Now, since jobs end while decisions are waited for.
        priority = {each.job: self._machine.jobs[each.job].job.priority for each in holdings}
        found = await find_opening(self._maker.decide, snapshot, job, holdings)
        if found is None or len(found.needed) <= 1:
            return found
        # Several of low priority where a single one of no higher priority would do: one end is less than two.
        last = priority[found.needed[-1].job]
        singles = [each for each in holdings if priority[each.job] <= last]
        for each in singles[:MAX_SINGLES]:
            single = await find_opening(self._maker.decide, snapshot, job, [each])
            if single is not None:
                return single
        return found

    async def defragment(self, job_id: str) -> tuple[RoomPlan, events.RoomPlanned]:
        """Return which jobs would move where so that a waiting one has room, and the event that carries it out.

        Raises :class:`NotFound` where there is no such plan and
        :class:`Conflict` for a job that does not wait.
        """
        machine = self._machine
        record = machine.jobs.get(job_id)
        if record is None or record.state is not JobState.QUEUED:
            raise Conflict(f"job {job_id} does not wait", hint="farbus jobs shows where it is")
        if job_id in machine.reservations:
            raise Conflict(f"room is being made for job {job_id} already", hint=f"watch farbus jobs {job_id}")
        plan = await self._moves(record.job, self._candidates(least_s=0.0))
        if plan is None:
            raise NotFound(
                f"no moves of what is moveable make room for job {job_id}",
                hint=f"farbus explain {job_id} says what would have to end",
            )
        return plan

    async def defragment_next(self, wall: float) -> events.RoomPlanned | None:
        """Return moves that make room for the first waiting job for which there are any, within the rules' limits.

        Only jobs are looked at that what is free would be enough for, if it
        were in one place.  ``wall`` is seconds since the epoch.
        """
        machine = self._machine
        rules = machine.rules
        most = rules.defragment_jobs - machine.moving()
        if most < 1:
            return None
        snapshot = machine.snapshot(self._now())
        tried = 0
        for job_id in tuple(machine.queue):
            record = machine.jobs.get(job_id)
            if record is None or job_id in machine.reservations or not record.misses:
                continue
            if any(miss.permanent or miss.phase in (QUOTA, FAULT) for miss in record.misses):
                continue
            if not _is_enough(snapshot, record.job):
                continue
            tried += 1
            if tried > MAX_TRIED:
                return None
            rested = [
                each
                for each in self._candidates(least_s=rules.preemption_min_run_s)
                # One that is to come yet was told by a clock that was set back since.
                if not 0 <= wall - each.progress.moved_at < rules.defragment_pause_s
            ]
            plan = await self._few_moves(record.job, rested, most)
            if plan is not None and plan.moved:
                _log.info("defragmenting", job=job_id, moved=plan.moved)
                return plan
        return None

    async def _few_moves(self, job: Job, records: Sequence[JobRecord], most: int) -> events.RoomPlanned | None:
        """Return a plan that moves ``most`` jobs at most: the first found, else one of a single job."""
        plan = await self._moves(job, records)
        if plan is None or len(plan[1].moved) <= most:
            return plan[1] if plan is not None else None
        for each in records[:MAX_SINGLES]:
            single = await self._moves(job, [each])
            if single is not None:
                return single[1]
        return None

    async def _moves(self, job: Job, records: Sequence[JobRecord]) -> tuple[RoomPlan, events.RoomPlanned] | None:
        """Return which of ``records`` would move where so that ``job`` has room; None where that helps nothing."""
        machine, job_id = self._machine, job.id
        records = [each for each in records if each.state is JobState.RUNNING]
        jobs = {each.job.id: each.job for each in records}
        came_from = {each.job.id: tuple(run.placement for run in each.runs) for each in records}
        holdings = [holding_of(machine, each) for each in records]
        snapshot = machine.snapshot(self._now())
        found = await find_opening(self._maker.decide, snapshot, job, holdings, also=jobs)
        placements = await self._all_placed(snapshot, job, found, jobs) if found is not None else None
        if placements is None:
            return None
        by_job = {placement.job: placement for placement in placements}
        own = by_job.pop(job_id)
        moved = tuple(
            MovedJob(
                job=other,
                user=jobs[other].user,
                came_from=came_from[other],
                goes_to=placement.tasks,
            )
            for other, placement in sorted(by_job.items())
        )
        plan = RoomPlan(job=job_id, placements=own.tasks, moved=moved)
        event = events.RoomPlanned(
            placement=own,
            moved=tuple(each.job for each in moved),
            again=tuple(by_job.values()),
            reason=f"moved to make room for job {job_id}",
        )
        return plan, event

    async def _all_placed(
        self, snapshot: Snapshot, job: Job, found: Found, jobs: dict[str, Job]
    ) -> tuple[JobPlacement, ...] | None:
        """Decide once more with those alone that have to end, then with all that the search had ended."""
        for ended in (found.needed, found.ended):
            pending = (PendingJob(job=job), *(PendingJob(job=jobs[held.job]) for held in ended))
            decision: Decision = await self._maker.decide(without(snapshot, ended), pending)
            if len(decision.placements) == len(pending):
                return decision.placements
        return None


def _is_enough(snapshot: Snapshot, job: Job) -> bool:
    """Say whether what is free is enough for a flavour of ``job``, wherever it is."""
    free = sum((view.free for view in snapshot.nodes), Resources())
    # Has something of each dimension that all nodes know theirs of.
    capacity = functools.reduce(Resources.within, (view.capacity for view in snapshot.nodes), _ANY)
    gpus = sum(view.free and view.device.kind is DeviceKind.GPU for view in snapshot.devices)
    return any(
        not free.lacks(_least(groups), capacity) and sum(group.least * group.requests.gpus for group in groups) <= gpus
        for groups in (job.in_flavour(name).groups for name in job.flavours)
    )


def _least(groups: Iterable[TaskGroup]) -> Resources:
    """Return what the tasks take that ``groups`` can't do without."""
    return sum((group.requests.resources * group.least for group in groups), Resources())


_ANY = Resources(**{dimension.name: dimension.most for dimension in DIMENSIONS})
