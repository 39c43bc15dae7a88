"""Volumes: made, made larger, attached and removed, whatever dies meanwhile.  Pure.

A volume is an entry of the ledger that takes room on its drives for as long
as it is there (:mod:`farbus.scheduler.stored`).  What is wanted of it is written down
before a node is asked; each node's part is asked for until the node has
answered, and a node that is away is waited for.  A node that can't make its
part has said so to the person who asked: what the others made is taken back.  A node that
can't remove its part is asked again, later and later.

Whether a volume is attached or lost is nowhere written down: leases say the one,
the nodes' inventories the other.  Parts that a node has and the ledger does not
are told, and left alone.

An attachment is a job without a program.  Where it goes is known, so no round
is asked: it is granted as soon as its volume and its node are free for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from farbus.model.decision import JobPlacement
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.job import DevicePlacement, Job, Miss, TaskPlacement
from farbus.model.lease import Lease
from farbus.model.node import Node
from farbus.model.quantity import format_bytes
from farbus.model.states import VOLUME_STATES, JobState, LeaseState, VolumeState
from farbus.model.volume import VolumePart, VolumeStatus, health_trouble, volume_of
from farbus.scheduler import events
from farbus.scheduler.device_moves import DeviceMoves
from farbus.scheduler.events import Verb
from farbus.scheduler.records import DeviceRecord, JobRecord, LeaseRecord, NodeRecord, StorageTrouble
from farbus.scheduler.runs import ClientSide
from farbus.scheduler.steps import Step
from farbus.scheduler.volume_records import StoredVolume, VolumeRecord
from farbus.scheduler.words import describe_closed, describe_unreachable

STORAGE, VOLUME = "storage", "volume"
"""The phase and the resource of the miss of a job whose volume can't be used now."""

_OVER = {
    StorageTrouble.PATHS: "all paths to storage {} can be used again",
    StorageTrouble.OVERUSE: "storage {} keeps to its grant again",
}

_VERBS = {VolumeState.CREATING: Verb.MAKE_VOLUME, VolumeState.DELETING: Verb.REMOVE_VOLUME}
_DOING = {
    Verb.MAKE_VOLUME: "make its part",
    Verb.RESIZE_VOLUME: "make its part larger",
    Verb.REMOVE_VOLUME: "wipe and remove its part",
}


class Volumes(DeviceMoves):
    """The volumes that take room, and what attaches them."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.next_volume = 1
        """Number of the next volume that is written down."""
        self.volumes_of_node: defaultdict[str, set[str]] = defaultdict(set)
        """Volumes of which the node stores a part."""
        self.growing_volumes: set[str] = set()
        """Those whose users are to see that they have become larger."""

    # --- questions -----------------------------------------------------------------------

    def volume_statuses(self) -> tuple[VolumeStatus, ...]:
        """Return the volumes that take room, and the parts of others that nodes report, by name."""
        found = [self.volume_status(record) for record in self.volumes.values()]
        return tuple(sorted([*found, *self._orphans()], key=lambda status: status.name))

    def volume_status(self, record: VolumeRecord) -> VolumeStatus:
        """Return a volume as listings show it."""
        volume = record.volume
        lease = self.lease_of(volume)
        job = self.jobs.get(lease.job) if lease is not None else self.attachment_of(record)
        run = job.run(lease.task) if job is not None and lease is not None else None
        first = self.devices.get(volume.parts[0].device)
        request = (
            next((each for group in job.job.groups for each in group.storage if each.volume == volume.name), None)
            if job is not None
            else None
        )
        return VolumeStatus(
            name=volume.name,
            user=volume.user,
            state=self.volume_state(volume),
            size_bytes=volume.size_bytes or self._told_bytes(volume),
            bandwidth_bytes_per_s=volume.bandwidth_bytes_per_s,
            parts=volume.parts,
            nodes=volume.nodes,
            epoch=first.epoch if first is not None else 0,
            attached_to=lease.client_node if lease is not None else "",
            job=lease.job if lease is not None else job.job.id if job is not None else "",
            path=(run.path if run is not None else "") or (request.path if request is not None else ""),
            use=request.use.value if request is not None else "",
            troubles=tuple(dict.fromkeys(self._troubles(record))),
            at=volume.at,
            says=self._says(record, job)
            or self._says_waiting(record, job)
            or (volume.late if lease is not None and lease.id == volume.late_lease else ""),
            error=volume.error,
        )

    def _told_bytes(self, volume: StoredVolume) -> int:
        """Return what nodes say of the size of parts that are removed without having been counted."""
        devices = [self.devices[part.device].device for part in volume.parts if part.device in self.devices]
        return sum(device.memory_bytes for device in devices if device is not None)

    def stored_bytes(self) -> Counter[str]:
        """Return the bytes of each user's volumes; those that are to grow count as grown."""
        stored: Counter[str] = Counter()
        for record in self.volumes.values():
            if record.volume.is_live:
                stored[record.volume.user] += record.volume.counted_bytes
        return stored

    def volume_state(self, volume: StoredVolume) -> VolumeState:
        """Return where a volume is: as the ledger wants it, and of one that is there whether it can be, or is, used."""
        if volume.state is not VolumeState.AVAILABLE:
            return volume.state
        if any(self._losses(volume)):
            return VolumeState.LOST
        return VolumeState.ATTACHED if self.lease_of(volume) is not None else VolumeState.AVAILABLE

    def is_lost(self, name: str) -> bool:
        """Say whether a volume can't be reached now."""
        return name in self.volumes and self.volume_state(self.volumes[name].volume) is VolumeState.LOST

    def attachment_of(self, record: VolumeRecord) -> JobRecord | None:
        """Return the job that attaches a volume for an operator, or is to; None where none does."""
        found = (self.jobs[job_id] for job_id in record.jobs)
        return next((job for job in found if job.job.attachment), None)

    def lease_of(self, volume: StoredVolume) -> Lease | None:
        """Return a lease that has a part of the volume: all of them are one task's."""
        for part in volume.parts:
            device = self.devices.get(part.device)
            if device is not None and device.lease:
                return self.leases[device.lease].lease
        return None

    def _losses(self, volume: StoredVolume) -> Iterable[str]:
        """Yield what of a volume can't be reached, in words."""
        for part, name in zip(volume.parts, volume.nodes, strict=True):
            node = self.nodes.get(name)
            if node is None or node.node is None:
                yield f"node {name}, which has part {part.part}, was forgotten"
            elif not node.connected:
                yield f"node {name}, which has part {part.part}, {describe_unreachable(node.seen_at)}"
            elif not self._has(part.device, name):
                yield f"node {name} does not have part {part.part} any more"
            else:
                for drive in part.drives:
                    if not self._has(drive, name):
                        yield f"drive {drive} of part {part.part} is not on node {name} any more"

    def _has(self, device_id: str, node: str) -> bool:
        device = self.devices.get(device_id)
        return device is not None and device.present and device.node == node

    def _troubles(self, record: VolumeRecord) -> Iterable[str]:
        volume = record.volume
        if volume.state is VolumeState.AVAILABLE:
            yield from self._losses(volume)
            if not volume.resize_to and (uneven := _uneven(volume)):
                yield uneven
        for index, (part, name) in enumerate(zip(volume.parts, volume.nodes, strict=True)):
            for each in (part.device, *part.drives):
                device = self.devices.get(each)
                if device is not None and device.device is not None:
                    told = health_trouble(device.device.attributes)
                    if told:
                        yield f"{each} of node {name}: {told}"
            lease = self.leases.get(self.devices[part.device].lease) if part.device in self.devices else None
            if lease is not None:
                for trouble in (StorageTrouble.OVERUSE, StorageTrouble.PATHS):
                    if trouble in lease.storage_troubles:
                        yield lease.storage_troubles[trouble]
            if lease is not None and lease.trouble:
                yield f"node {name} can't give part {part.part} up: {lease.trouble}"
            if index in record.troubles:
                yield f"node {name}: {record.troubles[index]}"

    def _says(self, record: VolumeRecord, job: JobRecord | None) -> str:
        """Say what is being done, or waited for."""
        volume = record.volume
        if volume.is_changing:
            verb = self._verb_of_volume(volume)
            for index in self._undone(volume):
                name = volume.nodes[index]
                node = self.nodes.get(name)
                if node is None or not node.connected:
                    state = describe_unreachable(node.seen_at if node is not None else 0.0)
                    return f"waits for node {name}, which {state}"
                if index in record.troubles:
                    return f"node {name} is asked again to {_DOING[verb]}: {record.troubles[index]}"
                return f"node {name} is asked to {_DOING[verb]}, {index + 1} of {len(volume.parts)}"
            return self._says_growing(record) if volume.resize_to else "its nodes are to report it"
        if job is None:
            return ""
        if job.state is JobState.QUEUED and job.job.attachment:
            why = "; ".join(miss.message for miss in job.misses) or job.progress.reason
            return f"is to be attached to node {job.job.groups[0].node}" + (f": {why}" if why else "")
        if job.state is JobState.PREPARING:
            asked = next((run.node for run in job.runs if run.client is not ClientSide.PREPARED), "")
            return f"node {asked} prepares it" if asked else ""
        if job.state is JobState.FINISHING:
            told = job.progress.story[-1].partition(" ")[2] if job.progress.story else ""
            told = told.removeprefix(f"{JobState.FINISHING}: ")
            return f"is being detached: {told}" if told else "is being detached"
        return job.progress.reason

    def _says_waiting(self, record: VolumeRecord, job: JobRecord | None) -> str:
        """Say what an attachment waits for while another job has the volume."""
        attachment = self.attachment_of(record)
        return "" if attachment is None or attachment is job else self._says(record, attachment)

    def _says_growing(self, record: VolumeRecord) -> str:
        lease = self.lease_of(record.volume)
        node = self.nodes.get(lease.client_node) if lease is not None else None
        if node is None:
            return ""
        if not node.connected:
            return f"waits for node {node.name}, which uses it and {describe_unreachable(node.seen_at)}"
        return f"node {node.name}, which uses it, is asked to let its file system grow"

    def orphan_parts(self, name: str) -> list[tuple[VolumePart, str]]:
        """Return the parts of a volume that the ledger does not have, by the word of the nodes that have them."""
        found = []
        for device_id, device in self.devices.items():
            if volume_of(device_id) != name or name in self.volumes or device.device is None:
                continue
            part = _told_part(device.device)
            nodes = {device.node} if device.present else set()
            nodes |= {node for node in self._claims.get(device_id, ()) if self._connected(node)}
            found += [(part, node) for node in sorted(nodes)]
        return sorted(found, key=lambda each: (each[0].part, each[1]))

    def _count_orphans(self, node: str) -> None:
        """Note what parts that the ledger does not know take of a node's drives, as it tells of them."""
        taken: Counter[str] = Counter()
        here = self.devices_of_node[node]
        for device_id in here:
            record = self.devices[device_id]
            if not volume_of(device_id) or record.device is None or not record.present:
                continue
            part = _told_part(record.device)
            for drive in part.drives if not self._is_counted(device_id, node) else ():
                taken[drive] += -(-max(0, part.size_bytes) // len(part.drives))
        for device_id in here:
            drive_record = self.devices[device_id]
            if drive_record.orphan_bytes != taken[device_id]:
                drive_record.orphan_bytes = taken[device_id]

    def _is_counted(self, device_id: str, node: str) -> bool:
        """Say whether what a part takes is the ledger's: not so of one that it only knows to be removed."""
        known = self.volumes.get(volume_of(device_id))
        if known is None:
            return False
        stored = zip(known.volume.parts, known.volume.nodes, strict=True)
        return any((part.device, name) == (device_id, node) and part.drives for part, name in stored)

    def take_inventory(self, node: Node) -> list[events.PersistDevice]:
        """See :meth:`ClusterState.take_inventory`; parts that nobody knows take room of its drives."""
        changed = super().take_inventory(node)
        self._count_orphans(node.name)
        return changed

    def _orphans(self) -> Iterable[VolumeStatus]:
        """Yield parts of volumes that nodes have, and the ledger does not."""
        if not any(volume_of(device_id) for device_id in self.devices):
            return
        for device_id, device in sorted(self.devices.items()):
            known = device.device
            if known is None or known.kind is not DeviceKind.VOLUME or not device.present:
                continue
            name = volume_of(device_id)
            record = self.volumes.get(name)
            stored = zip(record.volume.parts, record.volume.nodes, strict=True) if record is not None else ()
            if any((part.device, node) == (device_id, device.node) for part, node in stored):
                continue
            yield _orphan(device_id, device.node, known.memory_bytes)
        for device_id, nodes in sorted(self._claims.items()):
            # Another node has the one that the ledger means.
            for node in sorted(nodes) if volume_of(device_id) else ():
                if self._connected(node):
                    yield _orphan(device_id, node, 0)

    def volume_miss(self, job: JobRecord, *, ahead: dict[str, str]) -> Miss | None:
        """Say what of the volumes that a job names can't be used now; None where nothing stands in its way.

        ``ahead`` are the volumes that other jobs of the round name, with the
        first of those jobs; this one's are added where it goes to the round.
        """
        for name in job.volumes:
            told = self._volume_problem(job.job, name)
            if not told and name in ahead:
                told = f"volume {name} goes to job {ahead[name]} first"
            if told and len(job.job.flavours) == 1:
                return Miss(phase=STORAGE, resource=VOLUME, message=told)
        for name in job.volumes:
            ahead.setdefault(name, job.job.id)
        return None

    def _volume_problem(self, job: Job, name: str) -> str:
        record = self.volumes.get(name)
        if record is None:
            return f"there is no volume {name} any more"
        volume = record.volume
        if volume.state is VolumeState.CREATING:
            return f"volume {name} is not made yet: {self._says(record, None)}"
        if volume.state is VolumeState.DELETING:
            return f"volume {name} is being deleted"
        if losses := list(self._losses(volume)):
            return f"volume {name} is lost: {losses[0]}"
        lease = self.lease_of(volume)
        if lease is not None:
            return self._used_by(name, lease)
        attachment = self.attachment_of(record)
        if attachment is not None and attachment.job.id != job.id:
            to = attachment.job.groups[0].node
            return f"volume {name} is to be attached to node {to} (job {attachment.job.id})"
        for part, node in zip(volume.parts, volume.nodes, strict=True):
            device = self.devices[part.device]
            if not self.nodes[node].usable:
                why = describe_closed(self.nodes[node]) or "it gives up what it holds without right"
                return f"node {node}, which has part {part.part} of volume {name}, takes nothing new: {why}"
            if device.cordon is not None:
                return f"part {part.device} of volume {name} is cordoned"
            if device.reserved and device.reserved != job.id:
                return f"volume {name} is kept for job {device.reserved}"
        return ""

    def _used_by(self, name: str, lease: Lease) -> str:
        job = self.jobs.get(lease.job)
        if job is None or job.state is JobState.FINISHING:
            trouble = self.leases[lease.id].trouble
            why = f": {trouble}" if trouble else ""
            return f"volume {name} is being given up by job {lease.job} on node {lease.client_node}{why}"
        if job.job.attachment:
            return f"volume {name} is attached to node {lease.client_node}"
        return f"volume {name} is used by job {lease.job} on node {lease.client_node}"

    # --- what is asked -------------------------------------------------------------------

    def new_volume_id(self) -> str:
        """Return an id that no other volume has or had."""
        self.next_volume += 1
        return f"v{self.next_volume - 1}"

    def _volume_asked(self, event: events.VolumeAsked) -> None:
        """Take room for a volume and have it made; who asked has seen that there is room, and no such volume."""
        volume = event.volume
        assert volume.name not in self.volumes, f"there is a volume {volume.name}"
        record = self._keep_volume(volume)
        self._put_volume(record, volume)
        self._advance_volume(record)

    def _keep_volume(self, volume: StoredVolume) -> VolumeRecord:
        record = self.volumes[volume.name] = VolumeRecord(volume)
        for node in volume.nodes:
            self.volumes_of_node[node].add(volume.name)
        return record

    def _volume_resize_asked(self, event: events.VolumeResizeAsked) -> None:
        record = self.volumes.get(event.name)
        if record is None or record.volume.is_changing:
            return
        self._change(record, resize_to=event.size_bytes, by=event.by)

    def _volume_deletion_asked(self, event: events.VolumeDeletionAsked) -> None:
        """Have a volume removed that nobody uses; who asked has seen to that."""
        record = self.volumes.get(event.name)
        if record is None or record.volume.state is VolumeState.DELETING or self.lease_of(record.volume) is not None:
            return
        self._change(record, state=VolumeState.DELETING, resize_to=0, by=event.by)

    def _change(self, record: VolumeRecord, *, error: str = "", **changes: object) -> None:
        """Begin a change: its nodes are asked for it by ids of its own."""
        volume = record.volume
        changed = msgspec.structs.replace(
            volume,
            change=volume.change + 1,
            done=(False,) * len(volume.parts),
            error=error,
            late="",
            late_lease="",
            **changes,
        )
        if changed.state is not volume.state:
            VOLUME_STATES.check(volume.name, volume.state, changed.state)
        record.troubles = {}
        self._end_growing(record)
        self._put_volume(record, changed)
        self._advance_volume(record)

    def restore_volumes(self, volumes: Iterable[StoredVolume], *, next_volume: int) -> None:
        """Take over what the ledger has of volumes, after its devices; what is not done goes on with their nodes."""
        self.next_volume = next_volume
        for volume in volumes:
            self._keep_volume(volume)
            for part, node in zip(volume.parts, volume.nodes, strict=True):
                for drive in part.drives:
                    if drive not in self.devices:
                        self.devices[drive] = self.new_device(drive, node)
                        self.devices_of_node[node].add(drive)
                        self.node(node)
            self._charge(volume)

    # --- going on ------------------------------------------------------------------------

    @staticmethod
    def _verb_of_volume(volume: StoredVolume) -> Verb:
        return _VERBS.get(volume.state, Verb.RESIZE_VOLUME)

    @staticmethod
    def _undone(volume: StoredVolume) -> list[int]:
        return [index for index, done in enumerate(volume.done) if not done]

    def _volume_key(self, volume: StoredVolume, index: int, *, change: int | None = None) -> str:
        return f"{volume.id}-{volume.change if change is None else change}.{index}"

    def _advance_volume(self, record: VolumeRecord) -> None:
        """Ask the nodes for their parts of the change, or conclude it."""
        volume = record.volume
        if not volume.is_changing:
            return
        verb = self._verb_of_volume(volume)
        for index in self._undone(volume):
            node = self.nodes.get(volume.nodes[index])
            if node is None or node.node is None:
                # Forgotten: what may be left there is told as nobody's, should it come back.
                self._part_lost(record, index)
                return
            # The undo of a step never runs beside it.
            if volume.change and not self._drop_earlier(volume, index):
                continue
            key = f"{self._volume_key(volume, index)}.{verb}"
            self._step(key, Step(verb=verb, node=volume.nodes[index], volume=volume.name, part=index))
        if not self._undone(volume) and not self._grow_use(record):
            self._conclude_volume(record)

    # --- who uses it ---------------------------------------------------------------------

    def _grow_use(self, record: VolumeRecord) -> bool:
        """Have the node that uses a volume let it grow there; say whether that is waited for.

        A node that is away is waited for as long as it has the lease: what is
        mounted there has its old size until it has said otherwise.
        """
        volume = record.volume
        lease = self.lease_of(volume)
        if not volume.resize_to or volume.error:
            return False
        job = self.jobs.get(lease.job) if lease is not None else None
        if record.growing and (lease is None or lease.id != record.growing):
            self._end_growing(record)
        if lease is None or job is None or job.state is JobState.FINISHING or record.grown:
            return False
        if len(volume.parts) > 1:
            told = f"node {lease.client_node} uses it with its old size until it is attached again"
            self._put_late(record, lease, f"{told}: it is striped over {len(volume.parts)} nodes")
            return False
        run = job.run(lease.task)
        record.growing = lease.id
        self.growing_volumes.add(volume.name)
        if run is not None and run.client is ClientSide.PREPARED:
            step = Step(
                verb=Verb.GROW_CLIENT, node=lease.client_node, job=lease.job, task=lease.task, volume=volume.name
            )
            self._step(self._grow_key(record), step)
        return True

    def _grow_key(self, record: VolumeRecord) -> str:
        return f"{self._volume_key(record.volume, 0)}.{Verb.GROW_CLIENT}.{record.growing}"

    def _end_growing(self, record: VolumeRecord) -> None:
        self.steps.drop(self._grow_key(record))
        record.growing, record.grown = "", False
        self.growing_volumes.discard(record.volume.name)

    def _settle_growing(self, key: str, step: Step, outcome: events.OutcomeArrived, *, answered: bool) -> None:
        """The node that uses a volume answered."""
        record = self.volumes.get(step.volume)
        if record is None or not record.growing or key != self._grow_key(record):
            self.steps.drop(key)
            return
        self.steps.drop(key)
        record.grown = True
        lease = self.lease_of(record.volume)
        if lease is not None and not answered:
            # Of an older version, or busy for ever: what it mounts the next time has the new size.
            self._put_late(record, lease, f"node {step.node} has not said whether it has its new size there")
        elif lease is not None and not outcome.ok:
            told = f"node {step.node} uses it with its old size until it is attached again"
            self._put_late(record, lease, f"{told}: {outcome.error}")
        self._advance_volume(record)

    def _put_late(self, record: VolumeRecord, lease: Lease, told: str) -> None:
        self._put_volume(record, msgspec.structs.replace(record.volume, late=told, late_lease=lease.id))

    def _advance_growing(self) -> None:
        """Go on with volumes whose users were away, were only coming, or have gone."""
        for name in sorted(self.growing_volumes):
            self._advance_volume(self.volumes[name])

    def _drop_earlier(self, volume: StoredVolume, index: int) -> bool:
        """Forget what was asked of a node by the change before; say whether nothing of it is under way."""
        earlier = self._volume_key(volume, index, change=volume.change - 1)
        return all(self.steps.drop_idle(f"{earlier}.{verb}") for verb in _DOING)

    def _drop_steps(self, volume: StoredVolume, index: int) -> None:
        for change in (volume.change - 1, volume.change):
            for verb in _DOING:
                self.steps.drop(f"{self._volume_key(volume, index, change=change)}.{verb}")

    def _part_lost(self, record: VolumeRecord, index: int) -> None:
        """The node of a part is off for good."""
        volume = record.volume
        self._drop_steps(volume, index)
        if volume.state is VolumeState.DELETING:
            self._part_done(record, index)
        elif volume.state is VolumeState.CREATING:
            self._change(
                record, state=VolumeState.DELETING, error=f"node {volume.nodes[index]} was forgotten meanwhile"
            )
        else:
            self._part_done(record, index, error=f"node {volume.nodes[index]} was forgotten")

    def _part_done(self, record: VolumeRecord, index: int, *, error: str = "") -> None:
        """A node has done its part of a change, or with an ``error`` will not."""
        volume = record.volume
        record.troubles.pop(index, None)
        done = tuple(each or number == index for number, each in enumerate(volume.done))
        grown = bool(volume.resize_to) and not error
        parts = tuple(
            volume.wanted_part(number) if number == index and grown else part
            for number, part in enumerate(volume.parts)
        )
        self._put_volume(record, msgspec.structs.replace(volume, done=done, parts=parts, error=volume.error or error))
        self._advance_volume(record)

    def _conclude_volume(self, record: VolumeRecord) -> None:
        """All nodes have done their parts of a change."""
        volume = record.volume
        if volume.state is VolumeState.DELETING:
            self._drop_volume(record)
        elif volume.resize_to:
            # Where a node refused it keeps its size; what is larger already stays so: no part is ever made smaller.
            size = volume.size_bytes if volume.error else volume.resize_to
            told = "; ".join(filter(None, [volume.error, _uneven(volume)])) if volume.error else ""
            self._end_growing(record)
            self._put_volume(record, msgspec.structs.replace(volume, size_bytes=size, resize_to=0, error=told))
            self._want_round()
        elif all(self._has(part.device, node) for part, node in zip(volume.parts, volume.nodes, strict=True)):
            VOLUME_STATES.check(volume.name, volume.state, VolumeState.AVAILABLE)
            self._put_volume(record, msgspec.structs.replace(volume, state=VolumeState.AVAILABLE))
            self._want_round()

    def _settle_volume(self, key: str, step: Step, outcome: events.OutcomeArrived, *, answered: bool) -> None:
        """A node answered for its part of a volume, or for its use of one."""
        if step.verb is Verb.GROW_CLIENT:
            self._settle_growing(key, step, outcome, answered=answered)
            return
        record = self.volumes.get(step.volume)
        if record is None or key != f"{self._volume_key(record.volume, step.part)}.{step.verb}":
            # Of the change before: that it is over was waited for.
            self.steps.drop(key)
            if record is not None:
                self._advance_volume(record)
            return
        told = f"node {step.node}: {outcome.error}"
        if outcome.ok:
            self.steps.drop(key)
            self._part_done(record, step.part)
        elif not answered or step.verb is Verb.REMOVE_VOLUME:
            # What it has done only the node knows, and what is to go must go.
            if answered:
                record.troubles[step.part] = outcome.error
            self._retry(key, "")
            self._effects.append(events.VolumeChanged(volume_id=record.volume.id))
        elif step.verb is Verb.MAKE_VOLUME:
            self.steps.drop(key)
            self._change(record, state=VolumeState.DELETING, error=told)
        else:
            self.steps.drop(key)
            self._part_done(record, step.part, error=told)

    def _command(self, step: Step) -> events.Command:
        if not step.volume:
            return super()._command(step)
        volume = self.volumes[step.volume].volume
        if step.verb is Verb.GROW_CLIENT:
            return events.GrowClient(
                command_id=step.command_id, job_id=step.job, task=step.task, volume=volume.name,
                size_bytes=volume.parts[0].size_bytes,
            )  # fmt: skip
        if step.verb is Verb.REMOVE_VOLUME:
            return events.RemoveVolume(command_id=step.command_id, part=volume.parts[step.part])
        part: VolumePart = volume.wanted_part(step.part)
        if step.verb is Verb.MAKE_VOLUME:
            return events.MakeVolume(command_id=step.command_id, part=part)
        return events.ResizeVolume(command_id=step.command_id, part=part)

    def _put_volume(self, record: VolumeRecord, volume: StoredVolume) -> None:
        record.volume = volume
        self._charge(volume)
        for node in dict.fromkeys(volume.nodes):
            self._count_orphans(node)
        self._effects.append(events.PersistVolume(volume=volume))
        self._effects.append(events.VolumeChanged(volume_id=volume.id))
        self.generation += 1

    def _charge(self, volume: StoredVolume) -> None:
        """Have drives hold what a volume has of them, or nothing any more; and have rounds look at its parts."""
        for index, part in enumerate(volume.parts):
            for drive in part.drives:
                device = self.devices[drive]
                kept = {key: share for key, share in device.shares.items() if key != part.device}
                shares = kept | {part.device: volume.share(index)} if volume.is_live else kept
                if shares != device.shares:
                    device.shares = shares
            if part.device in self.devices:
                self._views.changed_devices.add(part.device)

    def _drop_volume(self, record: VolumeRecord) -> None:
        """Forget a volume of which nothing is left."""
        status = self.volume_status(record)
        VOLUME_STATES.check(record.volume.name, record.volume.state, VolumeState.DELETED)
        self._end_growing(record)
        del self.volumes[record.volume.name]
        for node in record.volume.nodes:
            self.volumes_of_node[node].discard(record.volume.name)
        for index in range(len(record.volume.parts)):
            self._drop_steps(record.volume, index)
        self._put_volume(record, msgspec.structs.replace(record.volume, state=VolumeState.DELETED))
        ended = msgspec.structs.replace(status, state=VolumeState.DELETED, says="")
        self._effects.append(events.VolumeChanged(volume_id=record.volume.id, ended=ended))
        self._want_round()

    # --- attachments ---------------------------------------------------------------------

    def _note_volumes(self, job: Job) -> None:
        """A job names volumes for as long as it lives: none of them is deleted meanwhile."""
        for name in job.volumes:
            if name in self.volumes:
                self.volumes[name].jobs.add(job.id)
        self._tell_volumes(job)

    def _attach_waiting(self) -> None:
        """Grant attachments whose volume and node are free for them; tell the others what they wait for."""
        for job_id in self.queue.ordered(list(self.attachments)):
            job = self.jobs[job_id]
            if job.not_before > self._now:
                continue
            placement, told = self._attach(job)
            if placement is not None:
                self._grant(job, placement)
                continue
            misses = (Miss(phase=STORAGE, resource=VOLUME, message=told),)
            if job.misses != misses:
                job.misses = misses
                self._announce(job)

    def _attach(self, job: JobRecord) -> tuple[JobPlacement | None, str]:
        """Return where an attachment goes now, or why it waits."""
        (group,) = job.job.groups
        (request,) = group.storage
        over = self.accounts.miss(job.job, self.rules)
        if over is not None:
            return None, over.message
        told = self._volume_problem(job.job, request.volume)
        if told:
            return None, told
        node = self.nodes.get(group.node)
        if node is None or not node.connected:
            return None, f"node {group.node} can't be reached"
        if not node.usable:
            return None, f"node {group.node} takes nothing new: {describe_closed(node) or 'it gives up what it held'}"
        volume = self.volumes[request.volume].volume
        devices = tuple(
            DevicePlacement(
                device=part.device,
                node=name,
                route=Route.LOCAL if name == group.node else Route.REMOTE,
                storage=request.name,
            )
            for part, name in zip(volume.parts, volume.nodes, strict=True)
        )
        task = TaskPlacement(task=f"{group.name}.0", node=group.node, devices=devices, why="an operator wants it there")
        placement = JobPlacement(job=job.job.id, tasks=(task,))
        return placement, self.placement_problem(job, placement)

    def _announce(self, job: JobRecord) -> None:
        super()._announce(job)
        if job.volumes:
            self._tell_volumes(job.job)

    def _end(self, job: JobRecord, state: JobState, reason: str) -> None:
        super()._end(job, state, reason)
        if job.volumes:
            for name in job.volumes:
                if name in self.volumes:
                    self.volumes[name].jobs.discard(job.job.id)
            self._tell_volumes(job.job)

    def _move_lease(self, record: LeaseRecord, state: LeaseState) -> None:
        super()._move_lease(record, state)
        if record.lease.job in self.jobs:
            # What its storage was like nobody asks any more.
            for trouble in record.storage_troubles:
                self.jobs[record.lease.job].storage_troubles.get(trouble, {}).pop(record.lease.id, None)
            record.storage_troubles.clear()
        name = record.lease.storage.volume if record.lease.storage is not None else ""
        if name in self.volumes:
            self._effects.append(events.VolumeChanged(volume_id=self.volumes[name].volume.id))

    def _tell_volumes(self, job: Job) -> None:
        for name in job.volumes:
            if name in self.volumes:
                self._effects.append(events.VolumeChanged(volume_id=self.volumes[name].volume.id))

    # --- what happens meanwhile ----------------------------------------------------------

    def _may_take(self, record: DeviceRecord, node: str) -> bool:
        """Say whether a node that reports a device of another's has it now.

        A part of a volume of ours only its own node can have: another's of that name is another volume's.  A drive
        goes back to where parts and room of it are, if it is there, whoever has reported it meanwhile.
        """
        stores = self._node_of_part(record.id)
        if stores:
            return node == stores
        return super()._may_take(record, node) or node in self._nodes_of_shares(record)

    def _node_of_part(self, device_id: str) -> str:
        """Return which node stores a part of a volume of ours; empty for what is none."""
        known = self.volumes.get(volume_of(device_id))
        if known is None:
            return ""
        stored = zip(known.volume.parts, known.volume.nodes, strict=True)
        return next((name for part, name in stored if part.device == device_id), "")

    def _nodes_of_shares(self, record: DeviceRecord) -> set[str]:
        leases = (self.leases[name].lease.device_node for name in record.shares if name in self.leases)
        return {*leases, *filter(None, map(self._node_of_part, record.shares))}

    def check_invariants(self, *, now: float | None = None) -> None:
        """Raise AssertionError where the books are wrong; for tests."""
        super().check_invariants(now=now)
        stored = {(node, name) for name, record in self.volumes.items() for node in record.volume.nodes}
        noted = {(node, name) for node, names in self.volumes_of_node.items() for name in names}
        assert noted == stored, "which nodes store parts of which volumes"
        for name, record in self.volumes.items():
            volume = record.volume
            assert volume.name == name
            assert len(volume.parts) == len(volume.nodes) == len(volume.done), f"parts of volume {name}"
            users = {lease.lease.job for lease in self.leases.values() if _is_of(lease.lease, name)}
            assert len(users) <= 1, f"volume {name} is leased by {users}"
            assert not users or volume.state is VolumeState.AVAILABLE, f"volume {name} is leased, and {volume.state}"
            named = {job_id for job_id, job in self.jobs.items() if name in job.job.volumes}
            assert record.jobs == named, f"who names volume {name}"
            assert bool(record.growing) == (name in self.growing_volumes), f"whether volume {name} is growing"
            assert not record.growing or volume.resize_to, f"volume {name} grows without being asked to"
            assert sum(self.jobs[job_id].job.attachment for job_id in named) <= 1, f"volume {name} has two attachments"

    def _lease_overused(self, event: events.LeaseOverused) -> None:
        """A node tells, again and again, what a lease has of its drives beyond what it was granted."""
        record = self._told_of(event, StorageTrouble.OVERUSE)
        if record is None or record.lease.storage is None:
            return
        told = ""
        if event.bytes_per_s:
            used, granted = format_bytes(event.bytes_per_s), format_bytes(event.granted_bytes_per_s)
            told = f"node {event.node}: storage {record.lease.storage.name} uses {used}/s, and was granted {granted}/s"
        self._put_trouble(record, StorageTrouble.OVERUSE, told)

    def _lease_paths(self, event: events.LeasePaths) -> None:
        """A node tells, again and again, which paths to storage of another do not work."""
        record = self._told_of(event, StorageTrouble.PATHS)
        if record is not None:
            told = f"node {event.node}: {event.trouble}" if event.trouble else ""
            self._put_trouble(record, StorageTrouble.PATHS, told)

    def _told_of(self, event: events.LeaseOverused | events.LeasePaths, trouble: StorageTrouble) -> LeaseRecord | None:
        """Return the lease of storage that a node tells of; None where it has no say in that."""
        record = self.leases.get(event.lease_id)
        if self._session(event.node, event.session) is None or record is None or record.lease.storage is None:
            return None
        return record if trouble.teller(record.lease) == event.node else None

    def _put_trouble(self, record: LeaseRecord, trouble: StorageTrouble, told: str) -> None:
        lease, before = record.lease, record.storage_troubles.pop(trouble, "")
        if told:
            record.storage_troubles[trouble] = told
        job = self.jobs.get(lease.job)
        if before == told or job is None:
            return
        of_job = job.storage_troubles.setdefault(trouble, {})
        of_job.pop(lease.id, None)
        if told:
            of_job[lease.id] = told
        if not before or not told:
            # Its words change each time: that it began and ended is what happened.
            assert lease.storage is not None
            self._tell(job, told or f"node {trouble.teller(lease)}: {_OVER[trouble].format(lease.storage.name)}")
            self._persist.add(job.job.id)
        self._announce(job)

    def _node_joined(self, event: events.NodeJoined) -> None:
        super()._node_joined(event)
        name = event.node.name
        # What is still so it says again.
        runs = (run for job_id in self.jobs_of_node[name] for run in self.jobs[job_id].runs.at(name))
        used = self._leases_of(runs)
        for lease_id in sorted(self.leases_of_node[name].union(used)):
            record = self.leases[lease_id]
            for trouble in list(record.storage_troubles):
                if trouble.teller(record.lease) == name:
                    self._put_trouble(record, trouble, "")
        self._look_at_volumes_of(name)

    def _inventory_changed(self, event: events.InventoryChanged) -> None:
        super()._inventory_changed(event)
        self._look_at_volumes_of(event.node.name)

    def _forget_commands(self, name: str) -> None:
        super()._forget_commands(name)
        self._look_at_volumes_of(name, advance=False)

    def _node_forgotten(self, event: events.NodeForgotten) -> None:
        node: NodeRecord | None = self.nodes.get(event.node)
        super()._node_forgotten(event)
        if node is not None and node.node is None:
            self._look_at_volumes_of(event.node)

    def _look_at_volumes_of(self, name: str, *, advance: bool = True) -> None:
        """A node came, went, or has other devices: volumes that it stores may go on, or be lost."""
        for volume in sorted(self.volumes_of_node[name]):
            record = self.volumes[volume]
            self._effects.append(events.VolumeChanged(volume_id=record.volume.id))
            if advance:
                self._advance_volume(record)


def _is_of(lease: Lease, volume: str) -> bool:
    return lease.storage is not None and lease.storage.volume == volume


def _uneven(volume: StoredVolume) -> str:
    """Say which parts are larger than can be used; empty where none is.  Stripes are of one size."""
    larger = [
        f"part {part.part} on node {node} by {format_bytes(part.size_bytes - volume.part_bytes)}"
        for part, node in zip(volume.parts, volume.nodes, strict=True)
        if part.size_bytes > volume.part_bytes
    ]
    if not larger:
        return ""
    return (
        f"{', '.join(larger)} larger than it can be used for: farbus volume resize, asked again, makes the others alike"
    )


def _told_part(device: Device) -> VolumePart:
    """Return a part of a volume as its node tells of it: what it says is looked at by who adopts it."""
    told, parts = device.id.rpartition(":")[2], device.attributes.get("parts", "")
    drives = device.attributes.get("drives", "")
    number = int(told) if _is_count(told) else 0
    return VolumePart(
        volume=volume_of(device.id),
        part=number,
        parts=max(number + 1, int(parts) if _is_count(parts) else 1),
        size_bytes=device.memory_bytes,
        drives=tuple(drives.split(",")) if drives else (),
    )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 4


def _orphan(device_id: str, node: str, size_bytes: int) -> VolumeStatus:
    told = f"node {node} has {device_id}, of which the ledger knows nothing: it takes room, and is left alone"
    return VolumeStatus(
        name=volume_of(device_id),
        user="",
        state=VolumeState.LOST,
        size_bytes=size_bytes,
        nodes=(node,),
        troubles=(told,),
    )
