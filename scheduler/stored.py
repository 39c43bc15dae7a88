"""Storage in the books: what leases and volumes have of drives, and whether a placement of storage holds.  Pure.

A drive that its node offers as storage is shared: each lease of room has its
bytes and its bytes a second of it, and so has each part of a volume for as
long as the volume is.  A part of a volume is a device of its own, which one
lease has at a time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from farbus.model.decision import StorageShare
from farbus.model.device import DeviceKind, Route
from farbus.model.job import DevicePlacement, GroupVariant, Job, StorageRequest, TaskGroup, TaskPlacement
from farbus.model.lease import Lease
from farbus.model.quantity import format_bytes
from farbus.model.states import VolumeState
from farbus.model.volume import StorageGrant, health_trouble, volume_of
from farbus.scheduler.phases.storage import STORAGE_ROUTES
from farbus.scheduler.records import DeviceRecord
from farbus.scheduler.volume_records import VolumeRecord

if TYPE_CHECKING:
    from farbus.scheduler.cluster import ClusterState


def routes_of(request: StorageRequest, group: TaskGroup | GroupVariant) -> tuple[Route, ...]:
    """Return how the storage of a group may be given."""
    return tuple(route for route in request.routes or group.routes if route in STORAGE_ROUTES)


def with_storage(task: TaskPlacement, group: TaskGroup) -> TaskPlacement:
    """Return a placement in which parts of volumes say which storage of their task they are."""
    names = {request.volume: request.name for request in group.storage if request.volume}
    if not names:
        return task
    devices = tuple(
        msgspec.structs.replace(place, storage=names.get(volume_of(place.device), place.storage))
        for place in task.devices
    )
    return msgspec.structs.replace(task, devices=devices)


def grant_of(
    volumes: Mapping[str, VolumeRecord], group: TaskGroup, places: Sequence[DevicePlacement]
) -> tuple[StorageGrant | None, StorageShare | None]:
    """Return what a lease of ``places`` gives of drives, and what it has of each of them beside others.

    Both are None for devices that are given whole; of a part of a volume the
    volume itself has what there is of the drives.
    """
    first = places[0]
    request = next((each for each in group.storage if each.name == first.storage), None)
    if request is None:
        return None, None
    about = {
        "name": request.name,
        "use": request.use,
        "file_system": request.file_system,
        "path": request.path,
        "read_only": request.read_only,
    }
    if request.volume:
        volume = volumes[request.volume].volume
        part = next(part for part in volume.parts if part.device == first.device)
        grant = StorageGrant(
            volume=volume.name,
            size_bytes=volume.part_bytes,
            bandwidth_bytes_per_s=-(-volume.bandwidth_bytes_per_s // len(volume.parts)),
            part=part.part,
            parts=part.parts,
            **about,  # type: ignore[arg-type]
        )
        return grant, None
    grant = StorageGrant(
        size_bytes=request.size_bytes,
        bandwidth_bytes_per_s=request.bandwidth_bytes_per_s,
        **about,  # type: ignore[arg-type]
    )
    return grant, _share(grant, len(places), request.profile)


def share_of(lease: Lease, asked: tuple[Job, str] | None) -> StorageShare:
    """Return what a lease of room has of each of its drives; ``asked`` is its job and the flavour that was chosen."""
    assert lease.storage is not None
    profile = ""
    if asked is not None:
        job = asked[0].in_flavour(asked[1])
        groups = [group for group in job.groups if lease.task.rpartition(".")[0] == group.name]
        profile = next((s.profile for group in groups for s in group.storage if s.name == lease.storage.name), "")
    return _share(lease.storage, len(lease.devices), profile)


def timed(share: StorageShare, job: Job, *, started_at: float, now: float, wall: float) -> StorageShare:
    """Return a share with the moments of its job, for those whose program's behaviour is known by a profile.

    ``started_at`` and ``now`` are monotonic, ``wall`` is seconds since the epoch, as deadlines are.
    """
    if not share.profile:
        return share
    due_at = now + job.due_at - wall
    return msgspec.structs.replace(share, started_at=started_at, due_at=due_at if math.isfinite(due_at) else None)


def _share(grant: StorageGrant, drives: int, profile: str) -> StorageShare:
    return StorageShare(
        size_bytes=-(-grant.size_bytes // drives),
        bandwidth_bytes_per_s=-(-grant.bandwidth_bytes_per_s // drives),
        profile=profile,
        drives=drives,
    )


def free_on(record: DeviceRecord, *, without: Collection[str] = ()) -> tuple[int, int]:
    """Return the bytes and bytes a second of a drive that nobody has; ``without`` names shares that do not count.

    Below zero where a drive has more parts that nobody knows than was left of it.
    """
    device = record.device
    if device is None or device.kind is not DeviceKind.NVME or device.bandwidth_bytes_per_s <= 0:
        return 0, 0
    shares = [share for key, share in record.shares.items() if key not in without]
    return (
        device.memory_bytes - record.orphan_bytes - sum(share.size_bytes for share in shares),
        device.bandwidth_bytes_per_s - sum(share.bandwidth_bytes_per_s for share in shares),
    )


def orphan_share(record: DeviceRecord) -> StorageShare | None:
    """Return what rounds are to see of parts that nobody knows: what is left of the drive at most; None for nothing."""
    if not record.orphan_bytes or record.device is None:
        return None
    left = record.device.memory_bytes - sum(share.size_bytes for share in record.shares.values())
    taken = min(record.orphan_bytes, left)
    return StorageShare(size_bytes=taken, is_volume=True) if taken > 0 else None


def is_ready(volumes: Mapping[str, VolumeRecord], device: DeviceRecord) -> bool:
    """Say whether a part of a volume is one that the ledger has there and that can be leased."""
    known = volumes.get(volume_of(device.id))
    if known is None or known.volume.state is not VolumeState.AVAILABLE:
        return False
    stored = zip(known.volume.parts, known.volume.nodes, strict=True)
    return any((part.device, node) == (device.id, device.node) for part, node in stored)


def storage_trouble(books: ClusterState, record: DeviceRecord) -> str:
    """Say what is wrong with a drive or a part of a volume: by its node's word, or because nobody knows the part."""
    assert record.device is not None
    if record.device.kind is DeviceKind.VOLUME:
        known = books.volumes.get(volume_of(record.id))
        if known is None:
            return f"the ledger has no volume {volume_of(record.id)}: its room is taken, and nobody can use it"
        part = next((at for at, part in enumerate(known.volume.parts) if part.device == record.id), None)
        if part is None:
            return f"volume {known.volume.name} has no such part"
        if known.volume.nodes[part] != record.node:
            return f"the ledger has this part of volume {known.volume.name} on node {known.volume.nodes[part]}"
    wedged = next((books.leases[key].trouble for key in record.shares if key in books.leases), "")
    return wedged or health_trouble(record.device.attributes)


def describe_shares(record: DeviceRecord) -> str:
    """Say what has room on a drive: ``2 leases, 1 volume``; nothing where nothing has."""
    counts = Counter("volume" if volume_of(key) else "lease" for key in record.shares)
    return ", ".join(f"{count} {noun}{'s' * (count > 1)}" for noun, count in sorted(counts.items()))


def check_shares(books: ClusterState) -> None:
    """Raise AssertionError where what drives have given away is wrong; for tests."""
    wanted: defaultdict[str, dict[str, StorageShare]] = defaultdict(dict)
    for record in books.volumes.values():
        assert record.volume.is_live, f"volume {record.volume.name} is gone"
        for index, part in enumerate(record.volume.parts):
            for drive in part.drives:
                wanted[drive][part.device] = record.volume.share(index)
    for lease_id, lease in books.leases.items():
        for leased in lease.lease.devices if lease.lease.is_room else ():
            share = books.devices[leased.device].shares[lease_id]
            assert lease.lease.storage is not None
            plain = msgspec.structs.replace(share, started_at=None, due_at=None)
            assert plain == _share(lease.lease.storage, len(lease.lease.devices), share.profile), lease_id
            wanted[leased.device][lease_id] = share
    for device_id, device in books.devices.items():
        assert dict(device.shares) == wanted.get(device_id, {}), f"what {device_id} has given away"
        if device.shares and device.device is not None:
            size, rate = free_on(device)
            left = size + device.orphan_bytes, rate
            assert min(left) >= 0, f"drive {device_id} has given away more than it has: {left}"
            assert not device.lease, f"drive {device_id} is shared, and given whole"


class StorageCheck:
    """Holds the storage of one placement's tasks against the books, each beside those before it."""

    def __init__(
        self, books: ClusterState, *, also_devices: Collection[str] = (), also_leases: Collection[str] = ()
    ) -> None:
        self._books = books
        self._also_devices = also_devices
        self._also_leases = also_leases
        self._taken: dict[str, tuple[int, int]] = {}
        self._parts: set[str] = set()

    def problem(self, task: TaskPlacement, group: TaskGroup) -> str:
        """Say why the storage of a task can't be given so; an empty string where it can."""
        placed: defaultdict[str, list[DevicePlacement]] = defaultdict(list)
        for place in with_storage(task, group).devices:
            if place.is_storage:
                placed[place.storage].append(place)
        for request in group.storage:
            places = placed.pop(request.name, [])
            told = self._volume(request, places) if request.volume else self._room(request, places)
            if told:
                return f"storage {request.name} of task {task.task}: {told}"
            for place in places:
                near = place.node == task.node
                if place.route not in routes_of(request, group) or (place.route is Route.LOCAL) != near:
                    return f"device {place.device} can't reach task {task.task} by route {place.route}"
        return f"task {task.task} has storage that it did not ask for" if placed else ""

    def _volume(self, request: StorageRequest, places: Sequence[DevicePlacement]) -> str:
        known = self._books.volumes.get(request.volume)
        if known is None:
            return f"there is no volume {request.volume}"
        parts = zip(known.volume.parts, known.volume.nodes, strict=True)
        if sorted((place.device, place.node) for place in places) != sorted(
            (part.device, node) for part, node in parts
        ):
            return f"it is not all of volume {request.volume}"
        for place in places:
            device = self._books.devices.get(place.device)
            free = device is not None and (self._books.is_free(device) or place.device in self._also_devices)
            if not free or place.device in self._parts:
                return f"part {place.device} is not free on node {place.node}"
            self._parts.add(place.device)
        return ""

    def _room(self, request: StorageRequest, places: Sequence[DevicePlacement]) -> str:
        if not places or len({place.node for place in places}) > 1:
            return "it is not on drives of one node"
        if len({place.device for place in places}) < len(places) or request.devices not in (0, len(places)):
            return f"it is on {len(places)} drives"
        size, bandwidth = (-(-amount // len(places)) for amount in (request.size_bytes, request.bandwidth_bytes_per_s))
        for place in places:
            device = self._books.devices.get(place.device)
            if device is None or device.node != place.node or not self._books.is_free(device):
                return f"drive {place.device} is not free on node {place.node}"
            free = free_on(device, without=self._also_leases)
            taken = self._taken.get(place.device, (0, 0))
            left = free[0] - taken[0] - size, free[1] - taken[1] - bandwidth
            if left[0] < 0:
                return f"drive {place.device} has {format_bytes(max(0, left[0] + size))} free"
            if left[1] < 0:
                return f"drive {place.device} has {format_bytes(max(0, left[1] + bandwidth))}/s free"
            self._taken[place.device] = taken[0] + size, taken[1] + bandwidth
        return ""
