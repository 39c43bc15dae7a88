"""Openings: what would have to end so that a job has room, found by deciding as if it had ended.

The search asks the decision maker itself, on snapshots in which some jobs are
gone, so that routes, labels, gangs and every phase count as they do in rounds.
Explanations, preemption and defragmentation all begin here; they differ in
which jobs may end, and in which order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from farbus.model.decision import Decision, DeviceView, JobPlacement, PendingJob, Snapshot, StorageShare
from farbus.model.job import Job, add_room, room_of
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
    """What it takes of nodes, by their names."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Nodes by the devices that they have."""
    leases: tuple[str, ...] = ()
    shares: Mapping[str, tuple[StorageShare, ...]] = field(default_factory=dict)
    """What it has of drives that others have, too, by the drives."""

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

    def is_usable(name: str) -> bool:
        node = books.nodes.get(name)
        return node is not None and node.usable

    for run in job.runs:
        if run.occupies:
            add_room(room, {name: each for name, each in run.room.items() if is_usable(name)})
    leases = [lease for run in job.runs for lease in run.leases if lease in books.leases]
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
    shares: dict[str, tuple[StorageShare, ...]] = {}
    for lease_id in leases:
        lease = books.leases[lease_id].lease
        for leased in lease.devices:
            device = books.devices[leased.device]
            node = books.nodes.get(device.node)
            if not device.present or device.cordon is not None or node is None or not node.usable:
                continue
            if lease.is_room:
                shares[leased.device] = (*shares.get(leased.device, ()), device.shares[lease_id])
            else:
                devices[leased.device] = device.node
    return Holding(job=job, room=room, devices=devices, leases=tuple(leases), shares=shares)


def without(snapshot: Snapshot, holdings: Iterable[Holding]) -> Snapshot:
    """Return the cluster as if ``holdings`` had ended; what they do not touch are the same objects."""
    room: dict[str, Resources] = {}
    devices: set[str] = set()
    shares: dict[str, list[StorageShare]] = {}
    for held in holdings:
        add_room(room, held.room)
        devices.update(held.devices)
        for drive, its in held.shares.items():
            shares.setdefault(drive, []).extend(its)
    nodes = tuple(
        msgspec.structs.replace(view, free=(view.free + room[view.name]).within(view.capacity))
        if view.name in room
        else view
        for view in snapshot.nodes
    )
    views = tuple(
        msgspec.structs.replace(view, free=True) if view.device.id in devices else view for view in snapshot.devices
    )
    if shares:
        views = tuple(
            msgspec.structs.replace(view, shares=_less(view.shares, shares[view.device.id]))
            if view.device.id in shares
            else view
            for view in views
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
    wanted: dict[str, Resources] = {}
    devices: set[str] = set()
    for task in placement.tasks:
        add_room(wanted, room_of(asked[task.task], task))
        devices |= {place.device for place in task.devices}
    views = {view.name: view for view in snapshot.nodes if view.name in wanted}
    drives = _drives_of(snapshot, placement)
    chosen = [held for held in holdings if devices & held.devices.keys()]

    def short(held: Collection[Holding]) -> list[str]:
        free = {name: view.free for name, view in views.items()}
        for each in held:
            add_room(free, {name: room for name, room in each.room.items() if name in free})
        lacking = [name for name, view in views.items() if free[name].lacks(wanted[name], view.capacity)]
        return lacking + [name for name, drive in drives.items() if not drive.has_room(held)]

    for each in holdings:
        lacking = short(chosen)
        if not lacking:
            break
        if each not in chosen and any(name in each.room or name in each.shares for name in lacking):
            chosen.append(each)
    # From the back: what comes last is what should end least.
    for each in sorted(chosen, key=holdings.index, reverse=True):
        rest = [other for other in chosen if other is not each]
        if not devices & each.devices.keys() and not short(rest):
            chosen = rest
    return tuple(sorted(chosen, key=holdings.index))


def _less(shares: Sequence[StorageShare], ended: Iterable[StorageShare]) -> tuple[StorageShare, ...]:
    left = list(shares)
    for share in ended:
        # A snapshot may be older than the books.
        if share in left:
            left.remove(share)
    return tuple(left)


@dataclass(slots=True)
class _Drive:
    """A shared drive on which a placement has room."""

    view: DeviceView
    size_bytes: int = 0
    bandwidth_bytes_per_s: int = 0

    def has_room(self, ended: Iterable[Holding]) -> bool:
        """Say whether it has the room once some have ended."""
        device = self.view.device
        shares = _less(self.view.shares, [s for held in ended for s in held.shares.get(device.id, ())])
        taken = sum(share.size_bytes for share in shares) + self.size_bytes
        busy = sum(share.bandwidth_bytes_per_s for share in shares) + self.bandwidth_bytes_per_s
        return taken <= device.memory_bytes and busy <= device.bandwidth_bytes_per_s


def _drives_of(snapshot: Snapshot, placement: JobPlacement) -> dict[str, _Drive]:
    places = [place for task in placement.tasks for place in task.devices if place.size_bytes]
    if not places:
        return {}
    wanted = {place.device for place in places}
    found = {view.device.id: _Drive(view) for view in snapshot.devices if view.device.id in wanted}
    for place in places:
        if place.device in found:
            found[place.device].size_bytes += place.size_bytes
            found[place.device].bandwidth_bytes_per_s += place.bandwidth_bytes_per_s
    return found
