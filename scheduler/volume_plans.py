"""Where a new volume goes: by the rules of phase 3, on the cluster as it is now, or why nowhere.  Pure.

One node stores it where one has the drives; the policy's composition says how
many, as for a job's own room.  Where none has, it goes to as few nodes as will
do, with as many drives of each: stripes of one size are all that device-mapper knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from farbus.api.identity import valid_name
from farbus.errors import Conflict, InvalidInput, NotFound, Unavailable, Unsatisfiable
from farbus.model.decision import Snapshot
from farbus.model.device import DeviceKind
from farbus.model.job import Job, Requests, StorageRequest, TaskGroup
from farbus.model.quantity import format_bytes
from farbus.model.states import VolumeState
from farbus.model.volume import (
    MAX_PARTS,
    AdoptRequest,
    AttachRequest,
    VolumePart,
    VolumeRequest,
    check_volume_name,
    check_volume_size,
    stepped,
)
from farbus.scheduler.composition.rules import MOST_DRIVES
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.cluster import from_snapshot
from farbus.scheduler.phases.drives import Drives, StorageShape
from farbus.scheduler.phases.storage import STORAGE_ROUTES
from farbus.scheduler.phases.tables import Integers
from farbus.scheduler.quotas import check_volume_bytes
from farbus.scheduler.stored import free_on
from farbus.scheduler.volume_records import StoredVolume, VolumeRecord
from farbus.scheduler.volumes import Volumes
from farbus.scheduler.words import describe_closed

ANY_STRIPE = math.lcm(*range(1, MOST_DRIVES + 1))
"""What is a multiple of this many extents is of whole ones, over however many drives the policy chooses."""

LIST = "farbus volume list shows what there is"


def plan_volume(
    machine: Volumes, request: VolumeRequest, *, policy: Policy, user: str, by: str, at: float, now: float
) -> StoredVolume:
    """Return the volume that ``request`` means now; ``at`` in seconds since the epoch, ``now`` monotonic.

    Raises :class:`Conflict` for a name that is taken and a node that takes
    nothing new, :class:`NotFound` and :class:`Unavailable` for a node that is
    not there, :class:`Unsatisfiable` where no drives have so much free.
    """
    request.check()
    if request.name in machine.volumes:
        raise Conflict(f"there is a volume {request.name} already", hint=LIST)
    for part in range(MAX_PARTS):
        known = machine.devices.get(VolumePart(volume=request.name, part=part, size_bytes=0, drives=()).device)
        if known is not None and known.present:
            raise Conflict(
                f"node {known.node} has a part of another volume {request.name}, of which the ledger knows nothing",
                hint=f"choose another name; farbus volume orphans {request.name} --adopt or --remove",
            )
    if request.node:
        _check_node(machine, request.node)
    nodes, drives = _place(_drives_of(machine.snapshot(now), request.node), request, policy)
    size = stepped(-(-request.size_bytes // len(nodes)), len(drives[0]))
    parts = tuple(
        VolumePart(volume=request.name, part=index, parts=len(nodes), size_bytes=size, drives=own)
        for index, own in enumerate(drives)
    )
    volume = StoredVolume(
        id="",
        name=request.name,
        user=user,
        size_bytes=request.size_bytes,
        bandwidth_bytes_per_s=request.bandwidth_bytes_per_s,
        parts=parts,
        nodes=nodes,
        state=VolumeState.CREATING,
        at=at,
        done=(False,) * len(parts),
        by=by,
    )
    check_volume_bytes(user, volume.counted_bytes, has=machine.stored_bytes()[user], rules=machine.rules)
    return msgspec.structs.replace(volume, id=machine.new_volume_id())


def plan_adoption(machine: Volumes, request: AdoptRequest, *, user: str, by: str, at: float) -> StoredVolume:
    """Return the volume that parts which nodes have, and the ledger does not, are from now on.

    To be removed it takes no room: what the parts take may have been promised
    to others before they came.  Raises :class:`NotFound` where no node
    has such parts, and :class:`Conflict` where they are no whole volume, or the
    ledger has one of the name.
    """
    check_volume_name(request.volume, field="volume")
    if not valid_name(user):
        raise InvalidInput(f"user: {user[:80]!r} can't name a user", hint="use 1 to 63 letters, digits and -._@")
    name = request.volume
    if name in machine.volumes:
        where = ", ".join(dict.fromkeys(machine.volumes[name].volume.nodes))
        raise Conflict(
            f"the ledger has another volume {name}, on node {where}",
            hint="what other nodes have of that name can be removed once that one is deleted",
        )
    found = machine.orphan_parts(name)
    if not found:
        raise NotFound(
            f"no node has parts of a volume {name} that the ledger does not know",
            hint="farbus volume orphans lists such",
        )
    parts, nodes = zip(*found, strict=True)
    if not request.remove:
        parts = _adopted(machine, name, parts, nodes)
    return StoredVolume(
        id=machine.new_volume_id(),
        name=name,
        user=user,
        # Stripes are of one size: what a failed resize has left of some is no room that could be used.
        size_bytes=0 if request.remove else min(part.size_bytes for part in parts) * len(parts),
        parts=tuple(msgspec.structs.replace(part, size_bytes=0, drives=()) for part in parts)
        if request.remove
        else parts,
        nodes=nodes,
        state=VolumeState.DELETING if request.remove else VolumeState.AVAILABLE,
        at=at,
        done=(not request.remove,) * len(parts),
        by=by,
    )


def _adopted(
    machine: Volumes, name: str, parts: tuple[VolumePart, ...], nodes: tuple[str, ...]
) -> tuple[VolumePart, ...]:
    """Return the parts of a volume that is whole, with room of their drives that nobody else was promised."""
    remove = f"farbus volume orphans {name} --remove wipes and removes what there is"
    if [part.part for part in parts] != list(range(parts[0].parts)):
        own = zip(parts, nodes, strict=True)
        there = ", ".join(f"{part.device} of {part.parts} on node {node}" for part, node in own)
        raise Conflict(
            f"volume {name}: not each of its parts is there once: {there}", hint=f"bring their nodes back; {remove}"
        )
    for part, node in zip(parts, nodes, strict=True):
        if not part.drives or part.size_bytes <= 0:
            raise Conflict(
                f"volume {name}: node {node} does not say on which drives {part.device} is",
                hint=f"upgrade it; {remove}",
            )
        for each in part.drives:
            drive = machine.devices.get(each)
            if drive is None or not drive.present or drive.node != node:
                raise Conflict(f"volume {name}: drive {each} of {part.device} is not on node {node}", hint=remove)
            # What it is on itself is free for it, and what other parts that nobody knows are on was promised to nobody.
            free = free_on(drive)[0] + drive.orphan_bytes
            wanted = -(-part.size_bytes // len(part.drives))
            if wanted > free:
                raise Conflict(
                    f"volume {name}: {format_bytes(wanted)} of drive {each} on node {node} would be its, and "
                    f"{format_bytes(max(0, free))} are not promised to others",
                    hint=remove,
                )
    return parts


def check_resize(machine: Volumes, record: VolumeRecord, size_bytes: int) -> None:
    """Raise where a volume can't have that size: it only grows, on the drives that it has."""
    volume = record.volume
    check_volume_size(size_bytes)
    if volume.state is not VolumeState.AVAILABLE:
        raise Conflict(f"volume {volume.name} is {volume.state}", hint=LIST)
    if volume.resize_to:
        raise Conflict(f"volume {volume.name} is being made {format_bytes(volume.resize_to)} large", hint=LIST)
    if size_bytes < volume.size_bytes:
        raise InvalidInput(
            f"size: volume {volume.name} has {format_bytes(volume.size_bytes)}, and is never made smaller",
            hint="make another one, copy what is on it, and delete it",
        )
    if size_bytes == volume.size_bytes:
        raise Conflict(f"volume {volume.name} has {format_bytes(size_bytes)} already")
    grown = msgspec.structs.replace(volume, resize_to=size_bytes)
    check_volume_bytes(
        volume.user,
        grown.counted_bytes - volume.counted_bytes,
        has=machine.stored_bytes()[volume.user],
        rules=machine.rules,
    )
    for index, part in enumerate(volume.parts):
        for name in part.drives:
            drive = machine.devices[name]
            free, _ = free_on(drive, without=(part.device,))
            wanted = grown.share(index).size_bytes
            if not drive.present or wanted > free:
                has = f"{format_bytes(max(0, free))} of it at most" if drive.present else "none, since it is not there"
                raise Unsatisfiable(
                    f"volume {volume.name}: drive {name} of node {volume.nodes[index]} would have to give it "
                    f"{format_bytes(wanted)}, and can give {has}",
                    hint="ask for less, or make another volume",
                )


def attachment_job(request: AttachRequest, *, job_id: str, user: str, parts: int, at: float) -> Job:
    """Return the job without a program that keeps a volume of so many ``parts`` attached to a node."""
    storage = StorageRequest(
        name=request.volume,
        devices=parts,
        routes=STORAGE_ROUTES,
        volume=request.volume,
        use=request.use,
        file_system=request.file_system,
        path=request.path,
        read_only=request.read_only,
    )
    # What it takes of the node is nothing that others could be short of.
    group = TaskGroup(
        name="main",
        command=(),
        node=request.node,
        requests=Requests(cpu_milli=0, memory_bytes=0),
        routes=STORAGE_ROUTES,
        storage=(storage,),
    )
    name = f"volume-{request.volume}"
    return Job(id=job_id, name=name, user=user, groups=(group,), submitted_at=at, attachment=True)


def _check_node(machine: Volumes, name: str) -> None:
    node = machine.nodes.get(name)
    if node is None or node.node is None:
        raise NotFound(f"there is no node {name}", hint="farbus nodes lists them")
    if not node.connected:
        raise Unavailable(f"node {name} can't be reached now", hint="farbus nodes says since when")
    if not node.usable:
        why = describe_closed(node) or "it gives up what it holds without right"
        raise Conflict(f"node {name} takes nothing new: {why}", hint=f"farbus uncordon {name}")


def _drives_of(snapshot: Snapshot, node: str) -> Snapshot:
    """Return what there is of the cluster for volumes: drives that are offered, and their nodes."""
    devices = tuple(
        view
        for view in snapshot.devices
        if view.device.kind is DeviceKind.NVME
        and view.device.bandwidth_bytes_per_s > 0
        and view.node
        and node in ("", view.node)
    )
    there = {view.node for view in devices}
    return msgspec.structs.replace(
        snapshot, nodes=tuple(view for view in snapshot.nodes if view.name in there), devices=devices
    )


def _place(
    snapshot: Snapshot, request: VolumeRequest, policy: Policy
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return who stores the parts, and on which drives."""
    cluster = from_snapshot(snapshot)
    drives = Drives(cluster, policy.storage_profiles)
    where = f"node {request.node}" if request.node else "the cluster"
    if not len(drives):
        raise Unsatisfiable(
            f"volume {request.name}: {where} offers no NVMe drives as storage",
            hint="farbus devices shows drives; a node offers them by farbus storage init (docs/install.md)",
        )
    shape = StorageShape(
        name=request.name,
        # Whole extents, over as many drives as it may come to.
        size_bytes=stepped(request.size_bytes, request.stripe or ANY_STRIPE),
        bytes_per_s=request.bandwidth_bytes_per_s,
        devices=request.stripe,
        profile="",
        left_s=float("inf"),
        routes=frozenset(STORAGE_ROUTES),
        subject=None,
    )

    def ids(chosen: Integers) -> tuple[str, ...]:
        return tuple(cluster.devices[row].id for row in drives.row[chosen].tolist())

    options = drives.options(shape, policy.composition)
    costs = [
        (int(options.cost[tier, column]), int(options.place[column]), tier, column)
        for tier, column in zip(*np.nonzero(options.capacity), strict=True)
    ]
    for _, place, tier, column in sorted(costs):
        own = drives.choose(shape, place, int(options.drives[tier, column]), bool(options.is_new[tier, column]))
        if len(own):
            return (cluster.names[place],), (ids(own),)
    for parts, each in _stripes(request.stripe):
        whole = stepped(request.size_bytes, parts * each)
        spread = msgspec.structs.replace(shape, devices=parts * each, size_bytes=whole)
        eligible = np.bincount(drives.node[drives.eligible(spread, parts * each)], minlength=cluster.size)
        # Those with the most of them: what is left elsewhere is left for those who need one node.
        hosts = [row for row in np.argsort(-eligible, kind="stable").tolist() if eligible[row] >= each][:parts]
        if len(hosts) == parts:
            found = tuple(ids(_choose(drives, spread, row, each)) for row in hosts)
            return tuple(cluster.names[row] for row in hosts), found
    raise Unsatisfiable(_shortage(drives, request, where), hint="ask for less, or add drives (farbus devices)")


def _stripes(stripe: int) -> Iterator[tuple[int, int]]:
    """Yield over how many nodes, with how many drives of each, a volume may be striped; few nodes first."""
    for parts in range(2, MAX_PARTS + 1):
        if stripe:
            if stripe % parts == 0:
                yield parts, stripe // parts
        else:
            for each in range(1, MOST_DRIVES + 1):
                yield parts, each


def _choose(drives: Drives, shape: StorageShape, place: int, count: int) -> Integers:
    """Return ``count`` drives of a node, each with room for its part of the whole stripe, the tightest first."""
    own = np.flatnonzero(drives.eligible(shape, shape.devices) & (drives.node == place))
    chosen: Integers = own[np.lexsort((own, drives.free_bytes[own], drives.free_bytes_per_s[own]))[:count]]
    return chosen


def _shortage(drives: Drives, request: VolumeRequest, where: str) -> str:
    """Say what was asked for, and the most that could be had now."""
    wanted = f"volume {request.name} of {format_bytes(request.size_bytes)}"
    if request.stripe:
        wanted += f" on {request.stripe} drives"
    if request.bandwidth_bytes_per_s:
        wanted += f" with {format_bytes(request.bandwidth_bytes_per_s)}/s"
    most = 0
    for number in (request.stripe,) if request.stripe else range(1, MOST_DRIVES * MAX_PARTS + 1):
        part_bytes_per_s = -(-request.bandwidth_bytes_per_s // number)
        usable = drives.ok & (drives.free_bytes_per_s >= part_bytes_per_s)
        free = np.sort(drives.free_bytes[usable].clip(min=0))[::-1]
        if len(free) < number:
            continue
        most = max(most, int(free[number - 1]) * number)
    if most:
        return f"{wanted}: {where} has no drives with so much free now; the most would be {format_bytes(most)}"
    count = int(drives.ok.sum())
    there = f"{count} of its {len(drives)} may be used now" if count < len(drives) else f"it has {count}"
    if count < max(1, request.stripe):
        return f"{wanted}: {where} has no {max(1, request.stripe)} drives for that; {there}"
    rates = np.sort(drives.free_bytes_per_s[drives.ok].clip(min=0))[::-1]
    numbers = (request.stripe,) if request.stripe else range(1, min(count, MOST_DRIVES * MAX_PARTS) + 1)
    fastest = max(int(rates[number - 1]) * number for number in numbers)
    if request.bandwidth_bytes_per_s > fastest:
        return f"{wanted}: {where} has no drives so fast free now; the most would be {format_bytes(fastest)}/s"
    return f"{wanted}: {where} has no drives for that now; {there}"
