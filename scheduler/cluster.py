"""What the cluster has and who uses it: nodes, devices, leases, accounts.  Pure.

:class:`ClusterState` keeps the books and answers questions about them; what
moves a job or a lease is in the layers above, up to :mod:`farbus.scheduler.lifecycle`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from farbus.model.cluster import LinkLoad
from farbus.model.decision import JobPlacement, Snapshot
from farbus.model.device import Device, DeviceKind, DeviceStatus, PoolReach, Route, whole_of
from farbus.model.job import Job, add_room, room_of
from farbus.model.lease import LeaseStatus
from farbus.model.move import MoveState
from farbus.model.node import Node, NodeStatus, Resources, by_remoting_tls
from farbus.model.operation import Cordon, CordonKind
from farbus.model.states import DeviceState, JobState, NodeState
from farbus.model.value import to_json
from farbus.scheduler.events import PersistDevice
from farbus.scheduler.inference import InferenceEngine
from farbus.scheduler.loads import RunLoads
from farbus.scheduler.move_records import ChassisRecord, MoveRecord, Slots
from farbus.scheduler.queue import JobQueue, task_names
from farbus.scheduler.quotas import Accounts, devices_of_lease
from farbus.scheduler.records import DeviceRecord, JobRecord, LeaseRecord, NodeRecord
from farbus.scheduler.runs import TaskRun
from farbus.scheduler.situations import Situations
from farbus.scheduler.stored import StorageCheck, check_shares, describe_shares, is_ready, storage_trouble
from farbus.scheduler.views import Views, fresh_snapshot
from farbus.scheduler.volume_records import VolumeRecord
from farbus.scheduler.words import describe_closed, describe_cordon, describe_kept


class ClusterState:
    """The books.  Invariants: see :meth:`check_invariants`."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self.devices: dict[str, DeviceRecord] = {}
        self.leases: dict[str, LeaseRecord] = {}
        self.jobs: dict[str, JobRecord] = {}
        self.queue = JobQueue()
        self.situations = Situations()
        """Which jobs of the queue are worth a look."""
        self.accounts = Accounts()
        """What each user has."""
        self.jobs_of_node: defaultdict[str, set[str]] = defaultdict(set)
        """Jobs in an attempt with a task or a device on the node."""
        self.leases_of_node: defaultdict[str, set[str]] = defaultdict(set)
        """Leases of the node's devices that are not released."""
        self.devices_of_node: defaultdict[str, set[str]] = defaultdict(set)
        """Devices whose last known owner the node is."""
        self.moves: dict[str, MoveRecord] = {}
        """Moves of devices that hold them, and dry runs that have not ended."""
        self.move_of: dict[str, str] = {}
        """The move that holds a device, by the device's id."""
        self.chassis: dict[str, ChassisRecord] = {}
        """The chassis that agents have, or had, credentials for."""
        self.volumes: dict[str, VolumeRecord] = {}
        """Volumes that take room, by name."""
        self.attachments: set[str] = set()
        """Jobs of the queue that wait for a volume and nothing else."""
        self._slots: Slots | None = None
        self._claims: defaultdict[str, set[str]] = defaultdict(set)
        """Nodes that reported a device while it was another's."""
        self.links: dict[str, tuple[LinkLoad, ...]] = {}
        """Loads of the links of nodes whose heartbeats told of them."""
        self.inference = InferenceEngine()
        """What is known of applications, from the jobs that ended and from operators."""
        self.loads = RunLoads()
        """How loaded the links are that running jobs use."""
        self.listening_since = 0.0
        """Monotonic time since which this scheduler has listened without a break."""
        self._shares: defaultdict[str, set[str]] = defaultdict(set)
        """The shares of GPUs that were ever reported."""
        self.shape = 0
        """Counts changes of what nodes have: what was impossible may have become possible."""
        self._views = Views(self)
        self.generation = 0
        """Counts changes that a round could see."""

    # --- questions -----------------------------------------------------------------------

    def free_of(self, node: NodeRecord) -> Resources:
        """Return what is free on ``node``: nothing while it may not be used."""
        if node.node is None or not node.usable:
            return Resources()
        capacity = node.node.capacity
        return (capacity - node.used - node.reserved).within(capacity)

    def is_free(self, device: DeviceRecord) -> bool:
        """Say whether ``device`` may be leased now, or where no node has it, moved to one."""
        if not device.node:
            idle = not device.reserved and device.cordon is None and not self._is_used_otherwise(device)
            return idle and self._is_in_pool(device)
        node = self.nodes.get(device.node)
        free = device.present and not device.lease and not device.reserved and device.cordon is None
        if free and device.device is not None and device.device.kind is DeviceKind.VOLUME:
            free = is_ready(self.volumes, device)
        return free and node is not None and node.usable and not self._is_used_otherwise(device)

    def holder_of(self, device_id: str, job_id: str, *, shared: bool) -> str:
        """Say who has a device, or the same hardware by another name, so that it can't be leased to a job.

        Empty where nobody has.  What is ``shared`` others may have a share of, too.
        """
        device = self.devices[device_id]
        for held in (device, *self._other_names(device_id)):
            if held.lease:
                return f"device {held.id} has lease {held.lease}"
            if held.reserved not in ("", job_id):
                return f"device {held.id} is kept for job {held.reserved}"
        if device.shares and not shared:
            return f"device {device_id} is shared by {describe_shares(device)}"
        if move := self.mover_of(device_id):
            return f"device {device_id} is on the move ({move})"
        return ""

    def related(self, device_id: str) -> Collection[str]:
        """Return the shares of a GPU, or the GPU that a share is of: the same hardware by other names."""
        whole = whole_of(device_id)
        return self._shares.get(device_id, ()) if whole == device_id else (whole,)

    def _other_names(self, device_id: str) -> Iterator[DeviceRecord]:
        """Yield what is known of a device's hardware by other names."""
        return (self.devices[name] for name in self.related(device_id) if name in self.devices)

    def _is_in_pool(self, device: DeviceRecord) -> bool:
        found = self.slots.find(device.id)
        return found is not None and found[1].is_free and found[1].healthy and bool(found[0].served_by)

    def pool_of(self, device_id: str) -> str:
        """Return the fabric pool that a device is of: the chassis that has it, where an agent serves that."""
        found = self.slots.find(device_id)
        return found[0].name if found is not None and found[0].served_by else ""

    def reach_of(self, node: str) -> tuple[PoolReach, ...]:
        """Return the pools that a node is cabled to, with the seconds that attaching a device took there."""
        return tuple(
            PoolReach(pool=name, attach_s=record.attach_s)
            for name, record in sorted(self.chassis.items())
            if record.served_by and record.ports_of(node)
        )

    def destination_of(self, device_id: str) -> str:
        """Return the node to which a device is on its way; empty for none."""
        move = self.moves.get(self.mover_of(device_id))
        return move.move.to_node if move is not None and not move.move.state.has_ended else ""

    def _is_used_otherwise(self, device: DeviceRecord) -> bool:
        """Say whether a move has it, or somebody what it is a part of, or its parts.

        As where its node's ``gpu_shares`` were changed while it was leased, or where it came for a job to a node that
        divides it.
        """
        return bool(self.mover_of(device.id)) or any(
            other.lease or other.reserved for other in self._other_names(device.id)
        )

    def mover_of(self, device_id: str) -> str:
        """Return the id of the move that has a device, or the GPU that it is a share of; empty where none has."""
        if not self.move_of:
            # Rounds ask of each device that has changed.
            return ""
        return self.move_of.get(device_id, "") or self.move_of.get(whole_of(device_id), "")

    def hold_device(self, device_id: str, move_id: str) -> None:
        """Have a move hold a device, or with an empty id none."""
        if move_id:
            self.move_of[device_id] = move_id
        else:
            self.move_of.pop(device_id, None)
        self._views.changed_devices.update(
            name for name in (device_id, *self.related(device_id)) if name in self.devices
        )

    def snapshot(self, now: float) -> Snapshot:
        """Return the cluster as a round sees it."""
        return self._views.snapshot(now)

    def node_statuses(self, now: float) -> tuple[NodeStatus, ...]:
        """Return all nodes, by name."""
        return tuple(
            NodeStatus(
                node=record.node,
                state=_state_of(record),
                free=self.free_of(record),
                seen_s=max(0.0, now - record.seen),
                cordon=describe_closed(record),
            )
            for _, record in sorted(self.nodes.items())
            if record.node is not None
        )

    def device_statuses(self) -> tuple[DeviceStatus, ...]:
        """Return all devices that a node has, or had when it was lost, and those free in a chassis, by id."""
        found = [*self._device_statuses(self.devices), *self._unassigned_devices()]
        return tuple(sorted(found, key=lambda status: status.device.id))

    def device_states(self) -> Counter[tuple[DeviceKind, DeviceState]]:
        """Count the devices of :meth:`device_statuses`, without putting into words what each of them is at."""
        found = Counter(
            (record.device.kind, self._device_state(record, self.moves.get(self.mover_of(record.id))))
            for record in self.devices.values()
            if record.device is not None and self._is_listed(record)
        )
        found.update((status.device.kind, status.state) for status in self._unassigned_devices())
        return found

    def device_statuses_of(self, node: str) -> tuple[DeviceStatus, ...]:
        """Return the devices of one node, by id."""
        return tuple(self._device_statuses(sorted(self.devices_of_node.get(node, ()))))

    def _device_statuses(self, ids: Iterable[str]) -> Iterator[DeviceStatus]:
        for record in map(self.devices.__getitem__, ids):
            if record.device is None or not self._is_listed(record):
                continue
            lease = self.leases[record.lease].lease if record.lease else None
            move = self.moves.get(self.mover_of(record.id))
            trouble = self.leases[record.lease].trouble if record.lease else ""
            if record.shares or record.device.kind in (DeviceKind.VOLUME, DeviceKind.NVME):
                trouble = trouble or storage_trouble(self, record)
            if move is not None and move.move.state is MoveState.STUCK:
                trouble = f"move {move.move.id} is stuck: {move.move.error}"
            yield DeviceStatus(
                device=record.device,
                node=record.node,
                state=self._device_state(record, move),
                epoch=record.epoch,
                lease=record.lease,
                job=lease.job if lease else "",
                used_by=f"{lease.user} on {lease.client_node}" if lease else describe_shares(record),
                trouble=trouble,
                cordon=describe_cordon(record.cordon)
                or (describe_closed(self.nodes[record.node]) if record.node in self.nodes else ""),
                chassis=move.move.chassis if move is not None else self._chassis_of(record),
                move=move.move.id if move is not None else "",
                kept_for=describe_kept(self.kept_for(record.id)),
            )

    def _is_listed(self, record: DeviceRecord) -> bool:
        """Say whether listings have a device: not a name that is used no more for what is there by another.

        As a GPU that its node offers in shares since; where somebody still has it by the old name, that is listed, too.
        """
        return bool(record.present or record.lease or self.mover_of(record.id)) or not any(
            other.present for other in self._other_names(record.id)
        )

    def kept_for(self, device_id: str) -> Job | None:
        """Return the job for which a device, or the same hardware by another name, is kept; None for none."""
        # What is at no node has no record.
        own = [self.devices[device_id]] if device_id in self.devices else []
        records = (*own, *self._other_names(device_id))
        return next((self.jobs[each.reserved].job for each in records if each.reserved in self.jobs), None)

    def _device_state(self, record: DeviceRecord, move: MoveRecord | None) -> DeviceState:
        if move is not None:
            return DeviceState.WEDGED if move.move.state is MoveState.STUCK else DeviceState.MOVING
        if not record.node:
            return DeviceState.UNASSIGNED
        here = record.present or any(
            other.present and other.node == record.node for other in self._other_names(record.id)
        )
        if not (here and self._connected(record.node)):
            return DeviceState.LOST
        if record.lease:
            return DeviceState.WEDGED if self.leases[record.lease].trouble else DeviceState.LEASED
        if record.shares:
            wedged = any(self.leases[key].trouble for key in record.shares if key in self.leases)
            return DeviceState.WEDGED if wedged else DeviceState.LEASED
        return DeviceState.FREE if record.reserved or self.is_free(record) else DeviceState.CORDONED

    @property
    def slots(self) -> Slots:
        """What was read last of all chassis."""
        if self._slots is None:
            self._slots = Slots(self.chassis.values())
        return self._slots

    def _chassis_of(self, record: DeviceRecord) -> str:
        """Return the chassis that a device is in, as far as one was read."""
        found = self.slots.find(record.id)
        return found[0].name if found is not None else ""

    def _unassigned_devices(self) -> Iterator[DeviceStatus]:
        """Yield what is free in a chassis, or on its way, and is not in the books by a name that a node gave it."""
        if not any(record.view is not None for record in self.chassis.values()):
            return
        known_here = (self.slots.find(record.id) for record in self.devices.values() if record.device is not None)
        listed = {found[1] for found in known_here if found is not None}
        for chassis in self.chassis.values():
            for device in chassis.view.devices if chassis.view is not None else ():
                move = self.moves.get(self.move_of.get(device.id, ""))
                if device in listed or (not device.is_free and move is None):
                    continue
                state = DeviceState.UNASSIGNED
                if move is not None:
                    state = DeviceState.WEDGED if move.move.state is MoveState.STUCK else DeviceState.MOVING
                known = self.devices.get(device.id)
                yield DeviceStatus(
                    device=Device(id=device.id, kind=device.kind, model=device.model),
                    node="",
                    state=state,
                    epoch=known.epoch if known is not None else 0,
                    chassis=chassis.name,
                    move=move.move.id if move is not None else "",
                )

    def cordons(self) -> tuple[Cordon, ...]:
        """Return the cordons of nodes, then those of devices, by name."""
        nodes = [record.cordon for _, record in sorted(self.nodes.items())]
        devices = [record.cordon for _, record in sorted(self.devices.items())]
        return tuple(cordon for cordon in (*nodes, *devices) if cordon is not None)

    def lease_statuses(self, now: float) -> tuple[LeaseStatus, ...]:
        """Return the leases that are not released, without their secrets."""
        return tuple(
            LeaseStatus(
                lease=record.lease.without_secret(),
                state=record.state,
                expires_in_s=max(0.0, record.expires_at - now),
                endpoint=record.endpoint,
                trouble=record.trouble,
            )
            for _, record in sorted(self.leases.items())
        )

    def placement_problem(
        self,
        record: JobRecord,
        placement: JobPlacement,
        *,
        also_free: Mapping[str, Resources] = MappingProxyType({}),
        also_devices: Collection[str] = (),
        also_leases: Collection[str] = (),
    ) -> str:
        """Say why ``placement`` can't be committed now; an empty string when it can.

        Whatever decided, the ledger has the last word: every task once, on a
        usable node with room in every dimension, every device present, free, of the kind asked for.
        With ``also_free``, by node, ``also_devices`` and what leases ``also_leases`` have of drives: once these are
        free.
        """
        if placement.alternative not in record.job.flavours:
            return f"the job has no alternative {placement.alternative}"
        asked = record.job.in_flavour(placement.alternative)
        wanted = dict(task_names(asked))
        placed = {task.task for task in placement.tasks}
        if len(placed) != len(placement.tasks) or not placed <= wanted.keys():
            return "not every task is placed exactly once"
        tasks = Counter(wanted[task] for task in placed)
        for number, group in enumerate(asked.groups):
            if tasks[number] < group.least == group.count:
                return "not every task is placed exactly once"
            if tasks[number] < group.least:
                return f"{tasks[number]} of the {group.least} tasks that group {group.name} needs are placed"
        room: dict[str, Resources] = {}
        taken: set[str] = set()
        stored = StorageCheck(self, also_devices=also_devices, also_leases=also_leases)
        for task in placement.tasks:
            group = asked.groups[wanted[task.task]]
            node = self.nodes.get(task.node)
            if node is None or not node.usable:
                return f"node {task.node} can't be used now"
            if group.node and group.node != task.node:
                return f"task {task.task} must run on node {group.node}"
            labels = node.node.labels if node.node is not None else {}
            if any(labels.get(key) != value for key, value in group.labels.items()):
                return f"node {task.node} does not have the labels of task {task.task}"
            add_room(room, room_of(group.requests, task))
            if (group.storage or any(place.is_storage for place in task.devices)) and (
                problem := stored.problem(task, group)
            ):
                return problem
            whole = [place for place in task.devices if not place.is_storage]
            if len(whole) != group.requests.gpus:
                return f"task {task.task} has {len(whole)} devices of {group.requests.gpus}"
            for place in whole:
                device = self.devices.get(place.device)
                if (
                    place.device in taken
                    or device is None
                    or device.node != place.node
                    or not (self.is_free(device) or place.device in also_devices)
                ):
                    return f"device {place.device} is not free on node {place.node}"
                if device.device is None or device.device.kind is not DeviceKind.GPU:
                    return f"device {place.device} is not a GPU"
                if not group.requests.gpu_filter.takes(device.device):
                    return f"device {place.device} is not what task {task.task} asks for"
                if place.route not in group.routes or (place.route is Route.LOCAL) != (place.node == task.node):
                    return f"device {place.device} can't reach task {task.task} by route {place.route}"
                if place.route is Route.REMOTE and len(by_remoting_tls(self._reported(task.node, place.node))) > 1:
                    return f"nodes {task.node} and {place.node} differ in remoting_tls"
                if place.route is Route.RECOMPOSED and (problem := self._moving_problem(place.device, task.node)):
                    return problem
                taken.add(place.device)
        for name, taking in room.items():
            node = self.nodes[name]
            free = self.free_of(node) + also_free.get(name, Resources())
            if node.node is None or free.lacks(taking, node.node.capacity):
                return f"node {name} has no room"
        return ""

    def _reported(self, *names: str) -> list[Node]:
        """Return what those of the nodes have reported of themselves that are known."""
        records = [self.nodes[name] for name in names if name in self.nodes]
        return [record.node for record in records if record.node is not None]

    def _moving_problem(self, device_id: str, node: str) -> str:
        """Say why a device can't be moved to a node now; an empty string where it can."""
        found = self.slots.find(device_id)
        if found is None or not found[0].served_by:
            return f"device {device_id} is in no chassis that an agent serves"
        if not found[0].ports_of(node):
            return f"chassis {found[0].name} has no port of node {node}"
        return ""

    def _connected(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.connected

    # --- accounts ------------------------------------------------------------------------

    def occupy(self, name: str, room: Resources) -> None:
        """Count what tasks take against a node."""
        node = self.node(name)
        node.used += room

    def vacate(self, run: TaskRun) -> None:
        """Give back what a task's run occupies, once."""
        if run.occupies:
            run.occupies = False
            for name, room in run.room.items():
                self.node(name).used -= room
            self.generation += 1

    def reserve(self, name: str, room: Resources, sign: int) -> None:
        """Keep what a task will take of a node from rounds, or with a ``sign`` of -1 no longer."""
        node = self.node(name)
        node.reserved = node.reserved + room if sign > 0 else node.reserved - room

    def is_gone(self, name: str) -> bool:
        """Say whether a node had no session for the lease time."""
        return self.node(name).gone

    def node(self, name: str) -> NodeRecord:
        """Return the record of a node, a new one when it was never heard of."""
        if name not in self.nodes:
            self.nodes[name] = NodeRecord(name=name, noted=self._views.changed_nodes)
        return self.nodes[name]

    def new_device(self, device_id: str, owner: str, *, device: Device | None = None, epoch: int = 0) -> DeviceRecord:
        """Return the record of a device that was never heard of, not yet in the books."""
        if (whole := whole_of(device_id)) != device_id:
            self._shares[whole].add(device_id)
        return DeviceRecord(id=device_id, node=owner, device=device, epoch=epoch, noted=self._views.changed_devices)

    def _record_of(self, kind: CordonKind, name: str) -> NodeRecord | DeviceRecord:
        return self.node(name) if kind is CordonKind.NODE else self.devices[name]

    def take_inventory(self, node: Node) -> list[PersistDevice]:
        """Note which devices ``node`` has; return what the ledger must learn.

        A device that another connected node still reports, or that a lease
        holds on another node, stays where it is: two nodes can't have one.
        One that is moved is where it moves to.  Whoever reports a device that
        is another's has it as soon as that one reports it no more.
        """
        changed = []
        reported = {device.id: device for device in node.devices}
        for device_id in self.devices_of_node[node.name] - set(reported):
            self.devices[device_id].present = False
            changed += self._settle_claims(device_id)
        for device in reported.values():
            changed += self._take_device(node, device)
        self.generation += 1
        self.shape += 1
        return changed

    def _take_device(self, node: Node, device: Device) -> list[PersistDevice]:
        """Note that ``node`` has a device, or that it says so."""
        known = self.devices.get(device.id)
        record = known or self.new_device(device.id, node.name)
        if record.node != node.name and not self._may_take(record, node.name):
            # What is said during a move may be old: who has the device then, the move says.
            if not self.mover_of(device.id):
                self._claims[device.id].add(node.name)
            return []
        changed = known is None or record.node != node.name or record.device != device
        if changed:
            if record.node != node.name and record.present and self._connected(record.node):
                # It says so still.
                self._claims[device.id].add(record.node)
            self.devices_of_node[record.node].discard(device.id)
            self.devices_of_node[node.name].add(device.id)
            record.node, record.device = node.name, device
            self.devices[device.id] = record
        record.present = True
        return [persist_device(record)] if changed else []

    def _may_take(self, record: DeviceRecord, node: str) -> bool:
        """Say whether a node that reports a device of another's has it now."""
        move = self.moves.get(self.mover_of(record.id))
        if move is not None and not move.move.state.has_ended:
            return move.move.node == node
        return not record.lease and not (record.present and self._connected(record.node))

    def settle_claims(self, device_ids: Iterable[str]) -> list[PersistDevice]:
        """Give those of the devices that became free to whoever has reported them; return what the ledger must learn.

        As where a node was given another name while a lease had its device: it reports that once.
        """
        changed: list[PersistDevice] = []
        for device_id in sorted(self._claims.keys() & set(device_ids)):
            changed += self._settle_claims(device_id)
        if changed:
            self.generation += 1
            self.shape += 1
        return changed

    def _settle_claims(self, device_id: str) -> list[PersistDevice]:
        """Give a device that nobody has any more to a node that reported it meanwhile and still does."""
        for name in sorted(self._claims.pop(device_id, ())):
            node = self.nodes[name].node
            device = next((each for each in node.devices if each.id == device_id), None) if node is not None else None
            if node is not None and device is not None and self._connected(name):
                # Where it still is another's it is claimed again.
                changed = self._take_device(node, device)
                if changed:
                    return changed
        return []

    def check_invariants(self, *, now: float | None = None) -> None:
        """Raise AssertionError where the books are wrong; for tests.  ``now``: also in what a round sees then."""
        if now is not None:
            assert self.snapshot(now) == fresh_snapshot(self, now), "a change that rounds see was not noted"
        told = Counter((status.device.kind, status.state) for status in self.device_statuses())
        assert self.device_states() == told, "devices as they are counted and as they are listed"
        holders: dict[str, str] = {}
        for lease_id, record in self.leases.items():
            assert record.lease.devices, f"lease {lease_id} has no device"
            assert lease_id in self.leases_of_node[record.lease.device_node]
            for leased in record.lease.devices:
                if record.lease.is_room:
                    assert lease_id in self.devices[leased.device].shares, f"{lease_id} has no share of {leased.device}"
                    assert self.devices[leased.device].epoch >= leased.epoch, "its epoch is yet to come"
                    continue
                assert leased.device not in holders, f"{leased.device} is under {holders[leased.device]} and {lease_id}"
                holders[leased.device] = lease_id
                assert self.devices[leased.device].epoch == leased.epoch, "a newer grant exists"
        for device_id, move_id in self.move_of.items():
            move = self.moves[move_id].move
            assert move.holds, f"{device_id} is held by move {move_id}, which is over"
            assert move.device == device_id
            assert self.devices[device_id].epoch == move.epoch, "a newer grant exists"
            for name in (device_id, *self.related(device_id)):
                assert name not in holders, f"{name} is under {holders[name]} and move {move_id}"
            assert not self.devices[device_id].shares, f"{device_id} is shared, and on the move"
        for move_id, entry in self.moves.items():
            holds = self.move_of.get(entry.move.device) == move_id
            assert entry.move.holds == holds, f"move {move_id} of {entry.move.device}"
        for device_id, device in self.devices.items():
            assert device.lease == holders.get(device_id, ""), f"{device_id} says {device.lease!r}"
        check_shares(self)
        used: dict[str, Resources] = {}
        for job in self.jobs.values():
            job.runs.check()
            for run in job.runs:
                if run.occupies:
                    add_room(used, run.room)
        for name, node in self.nodes.items():
            assert node.used == used.get(name, Resources()), f"account of node {name}"
            if node.node is not None and node.connected:
                capacity = node.node.capacity
                assert not capacity.lacks(node.used, capacity), f"node {name} is overcommitted"
        queued = {job_id for job_id, job in self.jobs.items() if job.state is JobState.QUEUED}
        assert set(self.queue) == queued, "queue and jobs differ"
        asleep = {job_id for job_id in queued if self.situations.is_asleep(job_id)}
        assert self.attachments == {job_id for job_id in queued if self.jobs[job_id].job.attachment}, "attachments"
        assert self.situations.awake == queued - asleep - self.attachments, "queue and situations differ"
        active = Counter(job.job.user for job in self.jobs.values() if job.state is not JobState.QUEUED)
        assert self.accounts.jobs == active, "the accounts of users' jobs"
        granted: Counter[str] = Counter()
        for record in self.leases.values():
            granted[record.lease.user] += devices_of_lease(record.lease)
        for job in self.jobs.values():
            granted[job.job.user] += sum(len(run.moved_devices) for run in job.runs if run.moves)
        granted += Counter()
        assert self.accounts.devices == granted, "the accounts of users' devices"


def _state_of(record: NodeRecord) -> NodeState:
    if not record.connected:
        return NodeState.LOST
    return NodeState.CORDONED if record.cordon is not None or record.trouble else NodeState.READY


def persist_device(record: DeviceRecord) -> PersistDevice:
    """Return what the ledger keeps of a device."""
    known = to_json(record.device) if record.device is not None else b""
    return PersistDevice(id=record.id, node=record.node, epoch=record.epoch, device=known)
