"""Openings: what would have to end so that a job has room, found by deciding as if it had ended.

The search asks the decision maker itself, on snapshots in which some jobs are
gone, so that routes, labels, gangs and every phase count as they do in rounds.
Explanations, preemption and defragmentation all begin here; they differ in
which jobs may end, and in which order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from farbus.model.decision import Decision, JobPlacement, PendingJob, Snapshot
from farbus.model.job import Job
from farbus.model.node import Resources
from farbus.scheduler.cluster import ClusterState
from farbus.scheduler.queue import requests_of
from farbus.scheduler.records import JobRecord

Ask = Callable[[Snapshot, tuple[PendingJob, ...]], Awaitable[Decision]]
"""Asks the decision maker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the end of one job would free, on nodes that may be used."""

    job: str
    room: Mapping[str, Resources] = field(default_factory=dict)
    """Processors and memory, by node."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Nodes by the devices that they have."""
    leases: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes on which something would be free, by name."""
        return tuple(sorted({*self.room, *self.devices.values()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An opening: the placement that a job would have, and which holdings have to end for it."""

    placement: JobPlacement
    needed: tuple[Holding, ...]
    ended: tuple[Holding, ...]
    """All that had ended when the placement was found."""


def holding_of(books: ClusterState, job: JobRecord) -> Holding:
    """Return what the end of ``job`` would free."""
    room: dict[str, Resources] = {}
    for run in job.progress.runs:
        node = books.nodes.get(run.node)
        if run.occupies and node is not None and node.usable:
            had = room.get(run.node, Resources())
            room[run.node] = Resources(
                cpu_milli=had.cpu_milli + run.requests.cpu_milli,
                memory_bytes=had.memory_bytes + run.requests.memory_bytes,
            )
    leases = [lease for run in job.progress.runs for lease in run.leases if lease in books.leases]
    return _with_leases(books, job.job.id, leases, room)


def left_behind(books: ClusterState) -> list[Holding]:
    """Return what leases hold whose jobs have ended, and whose nodes have not confirmed it yet."""
    leases: dict[str, list[str]] = {}
    for lease_id, record in books.leases.items():
        if record.lease.job not in books.jobs:
            leases.setdefault(record.lease.job, []).append(lease_id)
    return [_with_leases(books, job, held, {}) for job, held in sorted(leases.items())]


def _with_leases(books: ClusterState, job: str, leases: list[str], room: dict[str, Resources]) -> Holding:
    devices: dict[str, str] = {}
    for lease_id in leases:
        for leased in books.leases[lease_id].lease.devices:
            device = books.devices[leased.device]
            node = books.nodes.get(device.node)
            if device.present and device.cordon is None and node is not None and node.usable:
                devices[leased.device] = device.node
    return Holding(job=job, room=room, devices=devices, leases=tuple(leases))


def without(snapshot: Snapshot, holdings: Iterable[Holding]) -> Snapshot:
    """Return the cluster as if ``holdings`` had ended; what they do not touch are the same objects."""
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    devices: set[str] = set()
    for held in holdings:
        for node, resources in held.room.items():
            cpu[node] += resources.cpu_milli
            memory[node] += resources.memory_bytes
        devices.update(held.devices)
    nodes = tuple(
        msgspec.structs.replace(
            view,
            free=Resources(
                cpu_milli=min(view.capacity.cpu_milli, view.free.cpu_milli + cpu[view.name]),
                memory_bytes=min(view.capacity.memory_bytes, view.free.memory_bytes + memory[view.name]),
            ),
        )
        if view.name in cpu
        else view
        for view in snapshot.nodes
    )
    views = tuple(
        msgspec.structs.replace(view, free=True) if view.device.id in devices else view for view in snapshot.devices
    )
    return msgspec.structs.replace(snapshot, nodes=nodes, devices=views)


async def find_opening(
    ask: Ask, snapshot: Snapshot, job: Job, holdings: Sequence[Holding], *, also: Mapping[str, Job] | None = None
) -> Found | None:
    """Return where ``job`` would go once as few of ``holdings``, from the front, as will do have ended.

    None where the end of all of them would not help.  It takes as many
    decisions as the number of holdings has binary digits, and one more.

    ``also`` are jobs by their ids that must have a place of their own again
    once they have ended, which is how defragmentation differs from preemption.
    """

    async def placed(count: int) -> tuple[JobPlacement, ...] | None:
        again = [also[held.job] for held in holdings[:count]] if also is not None else []
        pending = (PendingJob(job=job), *(PendingJob(job=other) for other in again))
        decision = await ask(without(snapshot, holdings[:count]), pending)
        return decision.placements if len(decision.placements) == len(pending) else None

    found, most = await placed(len(holdings)), len(holdings)
    if found is None:
        return None
    least = 0
    while least < most:
        middle = (least + most) // 2
        trial = await placed(middle)
        if trial is None:
            least = middle + 1
        else:
            found, most = trial, middle
    placement = next(each for each in found if each.job == job.id)
    ended = holdings[:most]
    return Found(placement=placement, needed=needed(snapshot, job, placement, ended), ended=tuple(ended))


def needed(snapshot: Snapshot, job: Job, placement: JobPlacement, holdings: Sequence[Holding]) -> tuple[Holding, ...]:
    """Return which of ``holdings`` have to end for ``placement``, and none that need not: the first ones stay first."""
    asked = requests_of(job, placement)
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    devices: set[str] = set()
    for task in placement.tasks:
        requests = asked[task.task]
        cpu[task.node] += requests.cpu_milli
        memory[task.node] += requests.memory_bytes
        devices |= {place.device for place in task.devices}
    views = {view.name: view for view in snapshot.nodes if view.name in cpu}
    for name, view in views.items():
        cpu[name] -= view.free.cpu_milli
        memory[name] -= view.free.memory_bytes
    chosen = [held for held in holdings if devices & held.devices.keys()]

    def short(held: Collection[Holding]) -> list[str]:
        return [
            name
            for name in views
            if cpu[name] > sum(each.room[name].cpu_milli for each in held if name in each.room)
            or memory[name] > sum(each.room[name].memory_bytes for each in held if name in each.room)
        ]

    for each in holdings:
        lacking = short(chosen)
        if not lacking:
            break
        if each not in chosen and any(name in each.room for name in lacking):
            chosen.append(each)
    # From the back: what comes last is what should end least.
    for each in sorted(chosen, key=holdings.index, reverse=True):
        rest = [other for other in chosen if other is not each]
        if not devices & each.devices.keys() and not short(rest):
            chosen = rest
    return tuple(sorted(chosen, key=holdings.index))
