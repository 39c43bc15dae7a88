"""Making room: jobs that are ended so that another one finds room, and what is kept for that one meanwhile.  Pure.

A plan says which jobs end and where the other job goes.  From then on its
room is *reserved*: no round sees it, what the ended jobs give back
included, so that nobody else takes what was freed for it piece by piece.  Once
all of it is free the job is granted just that placement, without another
round.  A reservation that can't be kept (a node was lost, a release is not
confirmed in time) lapses, and the job waits as before.  It stands in the
ledger with the job, and outlives a restart of the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from farbus.model.decision import JobPlacement
from farbus.model.job import Job, TaskPlacement, add_room, room_of
from farbus.model.node import Resources
from farbus.model.states import JobState
from farbus.scheduler import events
from farbus.scheduler.agenda import Look
from farbus.scheduler.deciding import Deciding
from farbus.scheduler.openings import holding_of
from farbus.scheduler.queue import requests_of
from farbus.scheduler.quotas import Admitted
from farbus.scheduler.records import JobRecord

RESERVATION_S = 120.0
"""How long room is kept for a job at most: six times as long as a node may take for a step of undo."""


@dataclass(slots=True)
class Reservation:
    """Room that is kept for one job."""

    job: Job
    placement: JobPlacement
    until: float
    rooms: dict[str, Resources]
    """What it takes of each node that takes part, nothing of one that gives a device alone."""
    held: TaskPlacement | None = None
    """A task for which somebody still had something at the last look: one is enough to wait for, of thousands."""


class MakingRoom(Deciding):
    """Plans that end some jobs for the sake of another."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.reservations: dict[str, Reservation] = {}
        """By the job for which room is kept."""

    def may_move(self, job: JobRecord, *, least_s: float = 0.0, now: float) -> bool:
        """Say whether a job may be ended to make room, having run for ``least_s`` seconds."""
        runs = job.state is JobState.RUNNING and job.job.moveable
        return runs and job.job.id not in self.reservations and now - job.running_since >= least_s

    def moving(self) -> int:
        """Return how many jobs are being moved: they end, or are about to begin where they were moved to."""
        return sum(
            1
            for job in self.jobs.values()
            if job.progress.moved_at
            and (
                (job.state is JobState.QUEUED and job.job.id in self.reservations)
                or (job.progress.verdict is not None and job.progress.verdict.moved)
            )
        )

    def _promised(self) -> Admitted:
        """Jobs for which room is kept: it is theirs once it is free, and then they count for their users' quotas."""
        promised = Admitted()
        for job_id in self.reservations:
            job = self.jobs.get(job_id)
            # One that is being moved itself counts until its end is confirmed.
            if job is not None and job.state is JobState.QUEUED:
                promised.add(job.job)
        return promised

    def _may_be_placed(self, job_id: str, now: float) -> bool:
        """A job for which room is kept needs no round."""
        return job_id not in self.reservations and super()._may_be_placed(job_id, now)

    def _rules_changed(self, event: events.RulesChanged) -> None:
        super()._rules_changed(event)
        for job in self.jobs.values():
            if job.state is JobState.RUNNING:
                # Whoever waits has looked already, and sleeps.
                self._watch_ripe(job)

    def _room_planned(self, event: events.RoomPlanned) -> None:
        """Carry a plan out, if it still holds; else nothing happens, and the job waits as before."""
        job = self.jobs.get(event.placement.job)
        if job is None or job.state is not JobState.QUEUED or job.job.id in self.reservations:
            return
        moved = [self.jobs[job_id] for job_id in event.moved if job_id in self.jobs]
        if len(moved) < len(event.moved) or not all(self.may_move(each, now=self._now) for each in moved):
            return
        if event.preempts and any(each.job.priority >= job.job.priority for each in moved):
            return
        if self.accounts.miss(job.job, self.rules, self._promised()) is not None:
            return
        placements = (event.placement, *event.again)
        if self._problem(placements, moved):
            return
        for placement in placements:
            self._reserve(placement)
        names = ", ".join(each.job.id for each in moved)
        self._tell(job, f"room is made for it by ending {names}")
        self._announce(job)
        for each in moved:
            if not event.preempts:
                each.progress.moved_at = self._wall
            self._undo(each, JobState.QUEUED, event.reason, moved=True)

    def _problem(self, placements: Iterable[JobPlacement], moved: Iterable[JobRecord]) -> str:
        """Say why jobs can't go where they are to go, all of them, once some have ended; empty where they can."""
        room: dict[str, Resources] = {}
        devices: set[str] = set()
        leases: set[str] = set()
        for each in moved:
            held = holding_of(self, each)
            devices.update(held.devices)
            leases.update(held.leases)
            add_room(room, held.room)
        for placement in placements:
            job = self.jobs[placement.job]
            told = self.placement_problem(job, placement, also_free=room, also_devices=devices, also_leases=leases)
            if told:
                return told
            for name, taken in _rooms_of(job.job, placement).items():
                room[name] = room.get(name, Resources()) - taken
        return ""

    def _reserve(self, placement: JobPlacement) -> None:
        job = self.jobs[placement.job]
        job.progress.room = placement
        self._persist.add(placement.job)
        self._keep_room(job.job, placement, self._now + RESERVATION_S)

    def _keep_room(self, job: Job, placement: JobPlacement, until: float) -> None:
        kept = self.reservations[job.id] = Reservation(job, placement, until, _rooms_of(job, placement))
        self._count(kept, 1)
        self._agenda.add(until, Look.ROOM, job.id)

    def _restore_rooms(self) -> None:
        """Keep what was kept for jobs before a restart; the time begins anew once the nodes had theirs to come back."""
        for job in self.jobs.values():
            placement = job.progress.room
            if placement is None:
                continue
            if all(place.device in self.devices for task in placement.tasks for place in task.devices):
                self._keep_room(job.job, placement, self._patient_until + RESERVATION_S)
            else:
                job.progress.room = None

    def _count(self, kept: Reservation, sign: int) -> None:
        """Keep from rounds what is kept for a job, or with a ``sign`` of -1 give it back to them."""
        for node, room in kept.rooms.items():
            self.reserve(node, room, sign)
        for task in kept.placement.tasks:
            for place in task.devices:
                self.devices[place.device].reserved = kept.job.id if sign > 0 else ""

    def _claim_rooms(self) -> None:
        """Grant what is kept for jobs once all of it is free; let go of what can't be kept."""
        for job_id, kept in list(self.reservations.items()):
            job = self.jobs.get(job_id)
            if job is None:
                self._let_go(job_id)
                continue
            if job.state is not JobState.QUEUED:
                # It was moved itself, and is not done with its end.
                continue
            closed = [node for node in map(self.node, kept.rooms) if not node.usable]
            if closed and self._now < self._patient_until and not any(node.cordon or node.trouble for node in closed):
                # It has not come back yet, or not given up what it holds without right.
                continue
            if closed:
                self._let_go(job_id, "a node on which room was made for it is not to be used any more")
                continue
            if kept.held is None or not self._is_held(kept, kept.held):
                kept.held = next((task for task in kept.placement.tasks if self._is_held(kept, task)), None)
            if kept.held is not None:
                continue
            self._count(kept, -1)
            if self.placement_problem(job, kept.placement):
                self._count(kept, 1)
            else:
                del self.reservations[job_id]
                job.progress.room = None
                self._grant(job, kept.placement)

    def _is_held(self, kept: Reservation, task: TaskPlacement) -> bool:
        """Say whether somebody has a device that is kept for a task, or too much of its nodes."""
        if any(self.devices[place.device].lease for place in task.devices):
            return True
        for name in {task.node, *(place.node for place in task.devices)} - {""}:
            node = self.node(name)
            if node.node is not None and (node.node.capacity - node.used).lacks(kept.rooms[name], node.node.capacity):
                return True
        return False

    def _let_go(self, job_id: str, told: str = "") -> None:
        """Let rounds have what was kept for a job."""
        kept = self.reservations.pop(job_id)
        self._count(kept, -1)
        job = self.jobs.get(job_id)
        if job is not None:
            job.progress.room = None
            self._persist.add(job_id)
            if told:
                self._tell(job, told)
            self._announce(job)
        self._wake_all()
        self._want_round()

    def _leave_queue(self, job: JobRecord) -> None:
        super()._leave_queue(job)
        if job.job.id in self.reservations:
            # Cancelled: what was kept for it is anybody's.
            self._let_go(job.job.id)

    def _check_room(self, job_id: str) -> None:
        kept = self.reservations.get(job_id)
        if kept is not None and kept.until <= self._now:
            self._let_go(job_id, f"the room that was made for it was not free within {RESERVATION_S:g} s")

    def _check_ripe(self, job_id: str) -> None:
        """A job has run so long that it may be preempted: those of higher priority have another look."""
        job = self.jobs.get(job_id)
        if job is None or not self.rules.preemption or not self.may_move(job, now=self._now):
            return
        for waiting in self.queue:
            if self.jobs[waiting].job.priority <= job.job.priority:
                break
            self.situations.wake(waiting)
        self._want_round()

    def check_invariants(self, *, now: float | None = None) -> None:
        """Raise AssertionError where the books are wrong; for tests."""
        super().check_invariants(now=now)
        devices = {
            place.device: job_id
            for job_id, kept in self.reservations.items()
            for task in kept.placement.tasks
            for place in task.devices
        }
        for job_id, job in self.jobs.items():
            for run in job.runs:
                if run.moves:
                    devices |= {device: job_id for device in run.moved_devices if device not in self.move_of}
        for device_id, device in self.devices.items():
            assert device.reserved == devices.get(device_id, ""), f"{device_id} is kept for {device.reserved!r}"
        rooms = {job_id: job.progress.room for job_id, job in self.jobs.items() if job.progress.room is not None}
        assert rooms == {job_id: kept.placement for job_id, kept in self.reservations.items()}, "what the ledger has"
        kept_of: dict[str, Resources] = {}
        for job_id, kept in self.reservations.items():
            assert job_id == kept.job.id
            asked = requests_of(kept.job, kept.placement)
            for task in kept.placement.tasks:
                add_room(kept_of, room_of(asked[task.task], task))
        for name, node in self.nodes.items():
            assert node.reserved == kept_of.get(name, Resources()), f"what is kept of node {name}"


def _rooms_of(job: Job, placement: JobPlacement) -> dict[str, Resources]:
    """Return what a job takes of each node that takes part in it where it is placed."""
    asked, rooms = requests_of(job, placement), dict[str, Resources]()
    for task in placement.tasks:
        add_room(rooms, room_of(asked[task.task], task))
        # What is free in a chassis is at no node.
        add_room(rooms, {place.node: Resources() for place in task.devices if place.node})
    return rooms
