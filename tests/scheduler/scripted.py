"""What the scheduler's tests share: a small cluster, first fit, and agents that do as they are told."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable

import msgspec

from farbus.model.decision import Decision, JobMiss, JobPlacement, PendingJob, RoundReport, Snapshot
from farbus.model.device import Device, DeviceKind, Route, share_id, whole_of
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort
from farbus.model.job import DevicePlacement, Job, Miss, Requests, TaskGroup, TaskPlacement, TaskState, TaskStatus
from farbus.model.lease import Lease
from farbus.model.move import MoveRequest, MoveStatus, NodeMove
from farbus.model.node import Node, Resources
from farbus.model.operation import Cordon
from farbus.model.profile import ApplicationProfile, ObservedRun
from farbus.model.states import DEVICE_STATES, VOLUME_STATES, DeviceState, JobState, LeaseState, VolumeState
from farbus.model.volume import AdoptRequest, AttachRequest, VolumePart, VolumeRequest, VolumeStatus
from farbus.scheduler import events
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.lifecycle import ClusterMachine
from farbus.scheduler.move_records import StoredMove
from farbus.scheduler.move_requests import plan_move
from farbus.scheduler.records import StoredProgress
from farbus.scheduler.runs import TaskRun, order_of
from farbus.scheduler.volume_plans import attachment_job, plan_adoption, plan_volume
from farbus.scheduler.volume_records import StoredVolume

GIB = 2**30
TTL_S = 15.0
HEARTBEAT_S = TTL_S / 5
"""How often agents renew when they are told nothing else."""


def gpu(identity: str) -> Device:
    return Device(id=f"GPU-{identity}", kind=DeviceKind.GPU, model="Software GPU", memory_bytes=GIB, software=True)


def halves_of(whole: Device) -> list[Device]:
    """Return a GPU as a node offers it that divides it in two."""
    return [
        msgspec.structs.replace(
            whole, id=share_id(whole.id, number), memory_bytes=whole.memory_bytes // 2, share_milli=500
        )
        for number in (1, 2)
    ]


def drive(identity: str, *, size: int = 100 * GIB, bandwidth: int = 4 * GIB) -> Device:
    return Device(
        id=f"NVME-{identity}", kind=DeviceKind.NVME, model="Drive", memory_bytes=size, bandwidth_bytes_per_s=bandwidth
    )


def storing(name: str, drives: int, *, gpus: int = 0, size: int = 100 * GIB) -> Node:
    """A node that offers drives."""
    more = tuple(drive(f"{name}-{index}", size=size) for index in range(drives))
    plain = node(name, gpus)
    return msgspec.structs.replace(plain, devices=plain.devices + more)


def node(name: str, gpus: int = 0, *, cpu_milli: int = 4000) -> Node:
    return Node(
        name=name,
        address="127.0.0.1",
        boot_id="boot-1",
        agent_version="1",
        capacity=Resources(cpu_milli=cpu_milli, memory_bytes=4 * GIB),
        devices=tuple(gpu(f"{name}-{index}") for index in range(gpus)),
    )


def job(
    job_id: str = "j1",
    *,
    gpus: int = 0,
    count: int = 1,
    on: str = "",
    interactive: bool = False,
    time_limit_s: float = 0.0,
    user: str = "ada",
    cpu_milli: int = 1000,
    priority: int = 0,
    submitted_at: float = 0.0,
    min_count: int = 0,
    routes: tuple[Route, ...] = (Route.LOCAL, Route.REMOTE),
) -> Job:
    group = TaskGroup(
        name="main",
        command=() if interactive else ("program",),
        count=count,
        min_count=min_count,
        node=on,
        requests=Requests(gpus=gpus, cpu_milli=cpu_milli),
        routes=routes,
    )
    return Job(
        id=job_id,
        name="job",
        user=user,
        groups=(group,),
        interactive=interactive,
        time_limit_s=time_limit_s,
        priority=priority,
        submitted_at=submitted_at,
    )


def first_fit(snapshot: Snapshot, pending: tuple[PendingJob, ...], **_: object) -> Decision:
    """The plainest decision maker that keeps the rules."""
    free = {view.name: [view.free.cpu_milli, view.free.memory_bytes] for view in snapshot.nodes}
    reached = {view.name: {reach.pool for reach in view.pools} for view in snapshot.nodes}
    movable = {
        (view.device.id, name)
        for view in snapshot.devices
        for name, pools in reached.items()
        if view.device.pool in pools
    }
    free_devices = {view.device.id: (view.device, view.node) for view in snapshot.devices if view.free}
    room = Room(free, free_devices, movable)
    placements, misses = [], []
    for waiting in pending:
        fitted = next(filter(None, (_fit_job(waiting.job, name, room) for name in waiting.job.flavours)), None)
        if fitted is not None:
            placement, room = fitted
            placements.append(placement)
            continue
        wanted = sum(group.count * group.requests.gpus for group in waiting.job.groups)
        permanent = any(
            group.count * group.requests.gpus
            > sum(group.requests.gpu_filter.takes_part(v.device) for v in snapshot.devices)
            for group in waiting.job.groups
        )
        # What is free in a chassis is at no node, and not everybody has it moved.
        at_nodes = sum(bool(owner) for _, owner in room.devices.values())
        phase = "gpu" if wanted > at_nodes else "compute"
        miss = Miss(phase=phase, resource="gpus", message=f"{wanted} GPUs are not free", permanent=permanent)
        misses.append(JobMiss(job=waiting.job.id, misses=(miss,), feasible_alone=not permanent))
    report = RoundReport(pending=len(pending), placed=len(placements), decision_ms=0.1, solves=0, certified=False)
    return Decision(placements=tuple(placements), misses=tuple(misses), report=report)


@dataclasses.dataclass
class Room:
    """What a round has left to give."""

    free: dict[str, list[int]]
    """Processors and memory by node."""
    devices: dict[str, tuple[Device, str]]
    """Free devices with their nodes."""
    movable: set[tuple[str, str]]
    """Devices with the nodes that they can be moved to."""


def _fit_job(job: Job, flavour: str, before: Room) -> tuple[JobPlacement, Room] | None:
    asked = job.in_flavour(flavour)
    room = Room({name: list(left) for name, left in before.free.items()}, dict(before.devices), before.movable)
    placed = [_fit_group(group, room) for group in asked.groups]
    if any(len(found) < group.least for found, group in zip(placed, asked.groups, strict=True)):
        return None
    tasks = tuple(task for found in placed for task in found)
    return JobPlacement(job=job.id, tasks=tasks, alternative=flavour), room


def _fit_group(group: TaskGroup, room: Room) -> list[TaskPlacement]:
    tasks: list[TaskPlacement] = []
    while len(tasks) < group.count:
        placed = _fit(group, f"{group.name}.{len(tasks)}", room)
        if placed is None:
            break
        tasks.append(placed)
    return tasks


def _fit(group: TaskGroup, task: str, room: Room) -> TaskPlacement | None:
    for name, left in room.free.items():
        if (group.node and group.node != name) or group.requests.cpu_milli > left[0]:
            continue
        if group.requests.memory_bytes > left[1]:
            continue
        routes = {
            each: _route(group, each, owner, name, room.movable)
            for each, (device, owner) in room.devices.items()
            if group.requests.gpu_filter.takes_part(device)
        }
        usable = [device for device in routes if routes[device] is not None]
        chosen = sorted(usable, key=lambda device: (room.devices[device][1] != name, device))[: group.requests.gpus]
        if len(chosen) < group.requests.gpus:
            return None
        left[0] -= group.requests.cpu_milli
        left[1] -= group.requests.memory_bytes
        places = tuple(
            DevicePlacement(device=device, node=room.devices[device][1], route=route)
            for device in chosen
            if (route := routes[device]) is not None
        )
        for device in chosen:
            del room.devices[device]
        return TaskPlacement(task=task, node=name, devices=places, why="first fit")
    return None


def _route(group: TaskGroup, device: str, owner: str, node: str, movable: set[tuple[str, str]]) -> Route | None:
    """Return how a free device can be given to a task."""
    if owner == node:
        return Route.LOCAL
    if Route.RECOMPOSED in group.routes and (device, node) in movable:
        return Route.RECOMPOSED
    return Route.REMOTE if owner else None


@dataclasses.dataclass
class Fabric:
    """A chassis, with a port for each node, that never gives a device to two."""

    devices: dict[str, Device]
    at: dict[str, str]
    """The node that each device is assigned to; empty for none."""
    name: str = "falcon"

    def assign(self, device: str, node: str) -> None:
        assert self.at[device] in ("", node), f"{device} is assigned to {self.at[device]}, and to be to {node}"
        self.at[device] = node

    def unassign(self, device: str, node: str) -> None:
        assert self.at[device] == node
        self.at[device] = ""

    def view(self, nodes: Iterable[str]) -> ChassisView:
        devices = tuple(
            FabricDevice(id=name, handle=f"h-{name}", kind=device.kind, port=self.at[name] and f"port-{self.at[name]}")
            for name, device in self.devices.items()
        )
        ports = tuple(FabricPort(id=f"port-{name}", node=name) for name in nodes)
        return ChassisView(chassis=self.name, ports=ports, devices=devices)


def about(command: events.Command) -> object:
    """Return what a command is about: what an agent is asked of one thing it does in turn."""
    if isinstance(command, events.PrepareDevices):
        return command.lease.id
    if isinstance(command, events.UnprepareDevices):
        return command.lease_id
    if isinstance(command, events.PrepareClient | events.StartTask | events.StopTask | events.UnprepareClient):
        return command.job_id, command.task
    if isinstance(command, events.MakeVolume | events.ResizeVolume | events.RemoveVolume):
        return command.part.device
    return getattr(command, "device", command)


def _are_one(one: str, other: str) -> bool:
    """Say whether two names are of the same hardware, or one of a part of the other."""
    return one == other or (whole_of(one) == whole_of(other) and (one == whole_of(one) or other == whole_of(other)))


@dataclasses.dataclass
class ScriptedAgent:
    """An agent as the protocol describes it; a test decides when it answers, and what it forgets."""

    node: Node
    session: int = 0
    deaths: int = 0
    device_side: dict[str, events.HeldLease] = dataclasses.field(default_factory=dict)
    client_side: dict[tuple[str, str], tuple[str, ...]] = dataclasses.field(default_factory=dict)
    tasks: dict[tuple[str, str], TaskStatus] = dataclasses.field(default_factory=dict)
    inbox: list[events.Command] = dataclasses.field(default_factory=list)
    epochs: dict[str, int] = dataclasses.field(default_factory=dict)
    late: list[events.PrepareDevices] = dataclasses.field(default_factory=list)
    """Preparations of an ended session that are still under way: no hello tells of them."""
    chassis: tuple[str, ...] = ()
    """Chassis that it has the credentials for."""
    fabric: Fabric | None = None
    moves: dict[str, NodeMove] = dataclasses.field(default_factory=dict)
    """Its parts of moves that are done, by the id under which they were asked for: what its journal has."""
    in_the_way: tuple[str, ...] = ()
    """What it says when it is asked whether it has room for a device."""
    called_off: dict[str, str] = dataclasses.field(default_factory=dict)
    """Who has called off moves that it was asked for, or may be."""
    serves: dict[str, events.ServeChassis] = dataclasses.field(default_factory=dict)
    used_cpu_milli: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    parts: dict[str, VolumePart] = dataclasses.field(default_factory=dict)
    """Parts of volumes on its drives, by the devices as which it offers them; they outlive it."""
    refuses: dict[type[events.Command], str] = dataclasses.field(default_factory=dict)
    """Commands about volumes that it can't carry out, and why."""
    divides: bool = False
    """Whether it offers each of its GPUs as two halves."""
    stages: bool = False
    """Whether programs wait for their files before they begin."""

    @property
    def name(self) -> str:
        return self.node.name

    def told(self) -> Node:
        """Return the node as it tells of itself."""
        devices: list[Device] = []
        for device in self.node.devices:
            shared = self.divides and device.kind is DeviceKind.GPU
            devices += halves_of(device) if shared else [device]
        return msgspec.structs.replace(self.node, devices=tuple(devices))

    def hello(self, session: int) -> events.NodeJoined:
        self.cut()
        self.session = session
        client = [events.HeldLease(lease_id=lease_id) for leases in self.client_side.values() for lease_id in leases]
        tasks = tuple(events.HeldTask(job_id=job_id, status=status) for (job_id, _), status in self.tasks.items())
        return events.NodeJoined(
            node=self.told(),
            session=session,
            held=(*self.device_side.values(), *client),
            tasks=tasks,
            instance=f"{self.node.name}-{self.deaths}",
            chassis=self.chassis,
        )

    def cut(self) -> None:
        """Lose the session: what is being prepared goes on, what waits is forgotten."""
        self.session = 0
        self.late += [command for command in self.inbox if isinstance(command, events.PrepareDevices)]
        self.inbox.clear()

    def die(self) -> None:
        """Lose everything, as step 1's agents do with their children."""
        self.deaths += 1
        self.device_side.clear()
        self.client_side.clear()
        self.tasks.clear()
        self.inbox.clear()
        self.late.clear()
        self.session = 0

    def do(self, command: events.Command) -> events.OutcomeArrived | None:
        """Carry out one command, after what was begun earlier."""
        while self.late:
            self.do(self.late.pop(0))
        endpoint, environment = "", {}
        match command:
            case events.HeartbeatReply(void=void):
                for lease_id in void:
                    self.device_side.pop(lease_id, None)
                for key, held in list(self.client_side.items()):
                    if set(held) & set(void):
                        del self.client_side[key]
                return None
            case events.PrepareDevices(lease=lease):
                here = {device.id for device in self.told().devices}
                missing = [leased.device for leased in lease.devices if leased.device not in here]
                if missing and lease.id not in self.device_side:
                    return self.answer(command, error=f"device {missing[0]}: not on node {self.name}")
                for leased in lease.devices if not lease.is_room else ():
                    assert leased.epoch >= self.epochs.get(leased.device, 0), "an old epoch came back"
                    self.epochs[leased.device] = leased.epoch
                    for held in self.device_side.values():
                        clash = any(_are_one(other.device, leased.device) for other in held.devices)
                        assert held.lease_id == lease.id or not clash, f"{leased.device} is under two leases"
                self._check_room(lease)
                endpoint = "127.0.0.1:7000" if lease.route is Route.REMOTE else ""
                self.device_side[lease.id] = events.HeldLease(
                    lease_id=lease.id, device_side=True, endpoint=endpoint, devices=lease.devices
                )
            case events.PrepareClient(job_id=job_id, task=task, leases=leases):
                if leases:
                    self.client_side[job_id, task] = tuple(prepared.lease.id for prepared in leases)
                environment = {"FARBUS_SESSION": f"/run/{job_id}-{task}"}
                for storage in (prepared.lease.storage for prepared in leases):
                    if storage is not None:
                        environment[f"FARBUS_STORAGE_{storage.name.upper()}"] = storage.path or f"/mnt/{storage.name}"
            case events.StartTask(job_id=job_id, task=task):
                if (job_id, task) not in self.tasks:
                    waits = self.stages and bool(command.stage_in)
                    status = TaskStatus(task=task, state=TaskState.RUNNING, node=self.name, unstarted=waits)
                    self.tasks[job_id, task] = status
                self.used_cpu_milli[job_id, task] = command.requests.cpu_milli
                running = [key for key, status in self.tasks.items() if status.state is TaskState.RUNNING]
                used = sum(self.used_cpu_milli[key] for key in running)
                assert used <= self.node.capacity.cpu_milli, f"node {self.name} is overcommitted by {running}"
            case events.StopTask(job_id=job_id, task=task):
                if (job_id, task) in self.tasks:
                    self.exit(job_id, task, -15)
            case events.UnprepareClient(job_id=job_id, task=task):
                self.client_side.pop((job_id, task), None)
                self.tasks.pop((job_id, task), None)
            case events.UnprepareDevices(lease_id=lease_id):
                self.device_side.pop(lease_id, None)
            case events.MakeVolume() | events.ResizeVolume() | events.RemoveVolume():
                return self._keep(command)
            case events.GrowClient(job_id=job_id, task=task):
                assert (job_id, task) in self.client_side, "what is not used here is to grow"
                return self.answer(command, error=self.refuses.get(type(command), ""))
            case events.ServeChassis(chassis=chassis):
                assert command.term >= self.serves.get(chassis, command).term, "an old naming came back"
                self.serves[chassis] = command
                return None
            case events.CancelMove(move_id=move_id, by=by):
                self.called_off[move_id] = by
                return None
            case events.DetachDevice() | events.AttachDevice():
                return self._move(command)
        return self.answer(command, endpoint=endpoint, environment=environment)

    def _check_room(self, lease: Lease) -> None:
        """Whose room it is to make has room for it, and what it is to give of a volume is there."""
        here = {device.id: device for device in self.node.devices}
        if lease.storage is None:
            return
        if lease.storage.volume:
            (leased,) = lease.devices
            part = self.parts[leased.device]
            assert (part.volume, part.part, part.parts) == (
                lease.storage.volume,
                lease.storage.part,
                lease.storage.parts,
            )
            assert lease.storage.size_bytes <= part.size_bytes
        for leased in lease.devices:
            assert leased.device in here, f"node {self.name} does not have {leased.device}"

    def _keep(self, command: events.MakeVolume | events.ResizeVolume | events.RemoveVolume) -> events.OutcomeArrived:
        """Make, enlarge or remove a part of a volume, once."""
        part = command.part
        if error := self.refuses.get(type(command), ""):
            return self.answer(command, error=error)
        here = {device.id: device for device in self.node.devices}
        if isinstance(command, events.RemoveVolume):
            held = [device.device for lease in self.device_side.values() for device in lease.devices]
            assert part.device not in held, "a part that is leased is to be removed"
            self.parts.pop(part.device, None)
            here.pop(part.device, None)
        else:
            known = self.parts.get(part.device)
            assert isinstance(command, events.MakeVolume) or known is not None, "what is to grow is not there"
            assert known is None or known.drives == part.drives, "it is on other drives"
            assert set(part.drives) <= here.keys()
            self.parts[part.device] = part
            here[part.device] = Device(
                id=part.device, kind=DeviceKind.VOLUME, model="volume", memory_bytes=part.size_bytes,
                attributes={"parts": str(part.parts), "drives": ",".join(part.drives)},
            )  # fmt: skip
        self.node = msgspec.structs.replace(self.node, devices=tuple(here.values()))
        return self.answer(command)

    def _move(self, command: events.DetachDevice | events.AttachDevice) -> events.OutcomeArrived:
        """Do this node's part of a move, once."""
        attach = isinstance(command, events.AttachDevice)
        verb = "attach" if attach else "detach"
        if command.dry_run:
            there = NodeMove(
                plan=(f"{verb} {command.device}",), in_the_way=self.in_the_way, expected_s=4.0 if attach else 3.0
            )
            return msgspec.structs.replace(self.answer(command), move=there)
        if command.move_id not in self.moves and command.move_id in self.called_off:
            return self.answer(command, error=f"called off by {self.called_off[command.move_id]}")
        if command.move_id not in self.moves:
            for held in self.device_side.values():
                clash = any(_are_one(leased.device, command.device) for leased in held.devices)
                assert not clash, "it is under a lease"
            held_here = {device.id: device for device in self.node.devices}
            if self.fabric is not None and self.fabric.at[command.device] not in ("", self.name):
                return self.answer(command, error=f"it is assigned to node {self.fabric.at[command.device]}")
            if isinstance(command, events.AttachDevice):
                assert self.fabric is not None
                self.fabric.assign(command.device, self.name)
                held_here[command.device] = self.fabric.devices[command.device]
            elif command.device not in held_here:
                # Asked for after a move that got stuck: what is neither here nor at our port is gone already.
                assert self.fabric is not None
                assert self.fabric.at[command.device] == ""
                return self.answer(command)
            else:
                del held_here[command.device]
                if self.fabric is not None:
                    self.fabric.unassign(command.device, self.name)
            self.node = msgspec.structs.replace(self.node, devices=tuple(held_here.values()))
            path = f"/dev/{command.device}" if attach else ""
            self.moves[command.move_id] = NodeMove(identity=command.device, path=path, changed=True)
        return msgspec.structs.replace(self.answer(command), move=self.moves[command.move_id])

    def move_locally(self, device: str) -> None:
        """Do what ``farbus detach --local`` does, or ``farbus attach --local`` of what is at no node."""
        assert self.fabric is not None
        here = {each.id: each for each in self.node.devices}
        if device in here:
            self.fabric.unassign(device, self.name)
            del here[device]
        elif not self.fabric.at[device]:
            self.fabric.assign(device, self.name)
            here[device] = self.fabric.devices[device]
        self.node = msgspec.structs.replace(self.node, devices=tuple(here.values()))

    def inventory(self) -> events.InventoryChanged:
        """Say what it has now."""
        return events.InventoryChanged(node=self.told(), session=self.session)

    def exit(self, job_id: str, task: str, code: int = 0, reason: str = "") -> events.TaskReported:
        status = TaskStatus(task=task, state=TaskState.EXITED, node=self.name, exit_code=code, reason=reason)
        self.tasks[job_id, task] = status
        return events.TaskReported(node=self.name, session=self.session, job_id=job_id, status=status)

    def answer(
        self,
        command: events.Command,
        *,
        error: str = "",
        endpoint: str = "",
        environment: dict[str, str] | None = None,
    ) -> events.OutcomeArrived:
        assert not isinstance(command, events.HeartbeatReply | events.ServeChassis | events.CancelMove)
        return events.OutcomeArrived(
            node=self.name,
            session=self.session,
            command_id=command.command_id,
            ok=not error,
            error=error,
            endpoint=endpoint,
            environment=environment or {},
        )


class Memory:
    """What a ledger keeps, in memory, as bytes are kept: nothing is shared with the machine."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[Job, JobState, bytes]] = {}
        self.seen: set[str] = set()
        """All jobs that were ever written."""
        self.tasks: dict[str, dict[str, bytes]] = {}
        self.leases: dict[str, events.PersistLease] = {}
        self.devices: dict[str, events.PersistDevice] = {}
        self.nodes: dict[str, events.PersistNode] = {}
        self.cordons: dict[tuple[str, str], Cordon] = {}
        self.waits: dict[str, int] = {}
        self.moves: dict[str, bytes] = {}
        self.ended_moves: dict[str, StoredMove] = {}
        self.volumes: dict[str, bytes] = {}
        self.gone_volumes: set[str] = set()
        self.chassis: dict[str, int] = {}
        self.runs: list[bytes] = []
        self.profiles: dict[tuple[str, str], ApplicationProfile] = {}

    def write(self, effect: events.Persist) -> None:
        match effect:
            case events.PersistJob():
                self.seen.add(effect.job.id)
                self.jobs[effect.job.id] = effect.job, effect.state, msgspec.json.encode(effect.progress)
                if effect.state in ("succeeded", "failed", "cancelled"):
                    del self.jobs[effect.job.id]
                    self.tasks.pop(effect.job.id, None)
            case events.PersistTasks(job_id=job_id, tasks=tasks):
                assert job_id in self.jobs, "tasks of a job that is not there"
                kept = {**self.tasks.get(job_id, {}), **dict(tasks)}
                self.tasks[job_id] = {task: run for task, run in kept.items() if run}
            case events.PersistLease():
                self.leases[effect.lease.id] = effect
                if effect.state is LeaseState.RELEASED:
                    del self.leases[effect.lease.id]
            case events.PersistDevice():
                self.devices[effect.id] = effect
            case events.PersistNode():
                self.nodes[effect.node.name] = effect
            case events.ForgetNode():
                self.nodes.pop(effect.name, None)
            case events.PersistCordon(cordon=None):
                del self.cordons[effect.kind, effect.name]
            case events.PersistCordon(cordon=cordon):
                self.cordons[effect.kind, effect.name] = cordon
            case events.PersistWaits():
                self.waits.update(effect.rounds)
            case events.PersistMove(move=move):
                assert move.id not in self.ended_moves, "an ended move came back"
                if move.holds:
                    self.moves[move.id] = msgspec.json.encode(move)
                    live = [each.device for each in self.live_moves()]
                    assert len(set(live)) == len(live), "a device has two moves"
                else:
                    del self.moves[move.id]
                    self.ended_moves[move.id] = move
            case events.PersistVolume(volume=volume):
                self.volumes[volume.id] = msgspec.json.encode(volume)
                if not volume.is_live:
                    del self.volumes[volume.id]
                    self.gone_volumes.add(volume.id)
                live = [each.name for each in self.live_volumes()]
                assert len(set(live)) == len(live), "a name has two volumes"
            case events.PersistChassis(name=name, term=term):
                assert term > self.chassis.get(name, 0), "a term was given twice"
                self.chassis[name] = term
            case events.PersistRun(run=run):
                self.runs.append(msgspec.json.encode(run))
            case events.PersistProfile(profile=profile):
                self.profiles[profile.application, profile.user] = profile
            case events.ForgetProfile(application=application, user=user):
                self.profiles = {
                    key: kept
                    for key, kept in self.profiles.items()
                    if key[0] != application or user not in (None, key[1])
                }
                self.runs = [
                    text
                    for text, run in zip(self.runs, self.decoded_runs(), strict=True)
                    if run.application != application or user not in (None, run.user)
                ]

    def live_moves(self) -> list[StoredMove]:
        return [msgspec.json.decode(text, type=StoredMove) for text in self.moves.values()]

    def live_volumes(self) -> list[StoredVolume]:
        return [msgspec.json.decode(text, type=StoredVolume) for text in self.volumes.values()]

    def decoded_runs(self) -> list[ObservedRun]:
        return [msgspec.json.decode(text, type=ObservedRun) for text in self.runs]

    def _progress(self, job_id: str, kept: bytes) -> StoredProgress:
        progress = msgspec.json.decode(kept, type=StoredProgress)
        progress.rounds_waited = max(progress.rounds_waited, self.waits.get(job_id, 0))
        runs = (msgspec.json.decode(run, type=TaskRun) for run in self.tasks.get(job_id, {}).values())
        progress.runs = sorted(runs, key=order_of)
        return progress

    def restore(self, machine: ClusterMachine, *, now: float, wall: float) -> None:
        machine.restore(
            jobs=[(job, state, self._progress(job.id, kept)) for job, state, kept in self.jobs.values()],
            leases=[(kept.lease, kept.state, kept.endpoint, kept.prepared) for kept in self.leases.values()],
            devices=[
                (kept.id, kept.node, kept.epoch, msgspec.json.decode(kept.device, type=Device) if kept.device else None)
                for kept in self.devices.values()
            ],
            nodes=[(kept.node, kept.seen_at) for kept in self.nodes.values()],
            cordons=self.cordons.values(),
            runs=self.decoded_runs(),
            profiles=self.profiles.values(),
            moves=self.live_moves(),
            chassis=self.chassis.items(),
            next_move=len(self.moves) + len(self.ended_moves) + 1,
            volumes=self.live_volumes(),
            next_volume=len(self.volumes) + len(self.gone_volumes) + 1,
            now=now,
            wall=wall,
        )


def _is_reply_alone(effects: list[events.Effect]) -> bool:
    """Say whether effects are the answer to a heartbeat and nothing else."""
    commands = [effect.command for effect in effects if isinstance(effect, events.SendToNode)]
    return len(effects) == len(commands) == 1 and isinstance(commands[0], events.HeartbeatReply)


def _as_it_is(effect: events.Effect) -> events.Effect:
    """Return an effect that later changes of a job do not change."""
    if not isinstance(effect, events.PersistJob):
        return effect
    progress = msgspec.json.decode(msgspec.json.encode(effect.progress), type=StoredProgress)
    return msgspec.structs.replace(effect, progress=progress)


class Cluster:
    """A machine, its ledger in memory, its agents and a clock that a test moves."""

    def __init__(self, *nodes: Node) -> None:
        self.now = 1000.0
        self.agents = {each.name: ScriptedAgent(each) for each in nodes}
        self.memory = Memory()
        self.ended: dict[str, events.JobStatus] = {}
        self.moves: dict[str, MoveStatus] = {}
        """Moves that have ended."""
        self.sent: list[tuple[str, events.Command]] = []
        self.unwritten: list[list[events.Effect]] | None = None
        """What comes of each event since the ledger's disk has become slow, which a kill of the scheduler loses; None
        while all is written at once."""
        self.faults: list[str] = []
        """What the machine found of its own that must not happen."""
        self._sessions = itertools.count(1)
        self._secrets = itertools.count(1)
        self.term = 0
        self.return_s = TTL_S
        self.restart_grace_s = 8 * TTL_S
        self.unreachable_limit_s = 0.0
        self.wall_ahead = 0.0
        self.boot_id = "boot-1"
        self.round_asked = False
        self.decision_maker: Callable[..., Decision] = first_fit
        self.answers_rehearsals = True
        """Whether nodes answer at once what a recomposition asks them before it begins."""
        self.looks_at_all = False
        """Whether it is checked that no task was passed over.  Then all of them are looked at after each event, which
        the machine does not do by itself."""
        self._devices: dict[str, DeviceState] = {}
        self._states: dict[str, tuple[str, VolumeState]] = {}
        self.gone: dict[str, VolumeStatus] = {}
        """The last word about volumes that are gone, by id."""
        self.machine = self._start()

    def _start(self) -> ClusterMachine:
        self.term += 1
        self.round_asked = False
        return ClusterMachine(
            term=self.term,
            lease_ttl_s=TTL_S,
            return_s=self.return_s,
            restart_grace_s=self.restart_grace_s,
            unreachable_limit_s=self.unreachable_limit_s,
            boot_id=self.boot_id,
            new_secret=lambda: f"{next(self._secrets):064x}",
        )

    @property
    def wall(self) -> float:
        return 1_700_000_000.0 + self.now + self.wall_ahead

    def reboot(self) -> None:
        """Boot the scheduler's machine: its monotonic clock begins anew."""
        self.boot_id += "+"
        self.wall_ahead += self.now
        self.now = 10.0
        self.restart()

    def restart(self) -> None:
        """Kill the scheduler and start it again: sessions end, the ledger stays."""
        for agent in self.agents.values():
            agent.cut()
        self.unwritten = None
        self.machine = self._start()
        self._devices = {}
        self._states = {}
        self.memory.restore(self.machine, now=self.now, wall=self.wall)
        self.machine.check_invariants(now=self.now)

    def tell(self, event: events.Event) -> None:
        self.carry_out(self.machine.handle(event, now=self.now, wall=self.wall))

    def carry_out(self, effects: Iterable[events.Effect]) -> None:
        if self.unwritten is None:
            self._put(effects)
            return
        # As the ledger's writer has it: what changes of a job later is in a later write.
        self.unwritten.append([_as_it_is(effect) for effect in effects])
        self.machine.check_invariants(now=self.now)
        self._check_devices()

    def write_down(self, most: int | None = None) -> None:
        """Write what comes of the first ``most`` events that were held back, and then send and show it."""
        assert self.unwritten is not None
        for _ in range(len(self.unwritten) if most is None else most):
            if self.unwritten:
                self._put(self.unwritten.pop(0))
        if most is None:
            self.unwritten = None
            self._check_tasks()

    def _put(self, effects: Iterable[events.Effect]) -> None:
        rehearsed: list[tuple[str, events.Command]] = []
        effects = list(effects)
        for effect in effects:
            match effect:
                case events.SendToNode(node=name, session=session, command=command):
                    if self.agents[name].session == session:
                        self.sent.append((name, command))
                        if isinstance(command, events.HeartbeatReply | events.ServeChassis | events.CancelMove):
                            self.agents[name].do(command)
                        elif self.answers_rehearsals and self._is_rehearsal(command):
                            rehearsed.append((name, command))
                        else:
                            self.agents[name].inbox.append(command)
                case events.CloseSession(node=name, session=session):
                    if self.agents[name].session == session:
                        self.agents[name].cut()
                case events.RunRound():
                    self.round_asked = True
                case events.FaultFound(told=told):
                    self.faults.append(told)
                case events.JobChanged(job_id=job_id, ended=ended):
                    if ended is not None:
                        assert job_id not in self.ended, "a job ended twice"
                        self.ended[job_id] = ended
                case events.MoveChanged(move_id=move_id, ended=over):
                    if over is not None:
                        assert move_id not in self.moves, "a move ended twice"
                        self.moves[move_id] = over
                case events.VolumeChanged(volume_id=volume_id, ended=last):
                    if last is not None:
                        assert volume_id not in self.gone, "a volume went twice"
                        self.gone[volume_id] = last
                case _:
                    self.memory.write(effect)
        if _is_reply_alone(effects):
            # Of all that is told nine in ten: what it may change it has said.
            return
        self.machine.check_invariants(now=self.now)
        if self.unwritten is None:
            self._check_tasks()
        self._check_devices()
        for name, command in rehearsed:
            outcome = self.agents[name].do(command)
            assert outcome is not None
            self.tell(outcome)

    def _is_rehearsal(self, command: events.Command) -> bool:
        """Say whether a recomposition waits for what is answered to a command."""
        if not isinstance(command, events.DetachDevice | events.AttachDevice) or not command.dry_run:
            return False
        record = self.machine.moves.get(command.move_id)
        return record is not None and bool(record.rehearses)

    def _check_tasks(self) -> None:
        """The ledger has all tasks as they are, and none was passed over that has anything left to do."""
        jobs = self.machine.jobs
        kept = {job_id: tasks for job_id, tasks in self.memory.tasks.items() if tasks}
        assert kept == {
            job_id: {run.task: msgspec.json.encode(run) for run in job.runs} for job_id, job in jobs.items() if job.runs
        }
        due = self.machine.next_wakeup()
        if self.looks_at_all and (due is None or due > self.now):
            # What a node is not asked for while it is away may be noted later.
            done = self.machine.look_at_all_tasks()
            for effect in done:
                assert isinstance(effect, events.PersistLease), "a task that has something left to do was not looked at"
                self.memory.write(effect)

    def _check_devices(self) -> None:
        """Every device has gone where the table of its states allows."""
        states = {status.device.id: status.state for status in self.machine.device_statuses()}
        for name, state in states.items():
            if self._devices.get(name, state) is not state:
                DEVICE_STATES.check(name, self._devices[name], state)
        self._devices = states
        volumes = {
            name: (record.volume.id, self.machine.volume_state(record.volume))
            for name, record in self.machine.volumes.items()
        }
        for name, (volume_id, found) in volumes.items():
            known, state = self._states.get(name, (volume_id, found))
            if known == volume_id and state is not found:
                VOLUME_STATES.check(name, state, found)
        self._states = volumes

    def join(self, *names: str) -> None:
        for name in names or tuple(self.agents):
            self.tell(self.agents[name].hello(next(self._sessions)))

    def lose(self, name: str) -> None:
        agent = self.agents[name]
        session = agent.session
        agent.cut()
        self.tell(events.NodeLost(node=name, session=session, reason="closed"))

    def stop(self, name: str) -> None:
        """End an agent that says so first; what it holds goes on."""
        self.tell(events.NodeLeaving(node=name, session=self.agents[name].session))
        self.lose(name)

    def submit(self, *jobs: Job) -> None:
        for each in jobs:
            self.tell(events.JobSubmitted(job=each))

    def give_fabric(self, *free: Device, to: Iterable[str] | None = None) -> Fabric:
        """Put all devices of the nodes, and ``free`` ones, into a chassis whose credentials the nodes ``to`` have."""
        at = {device.id: agent.name for agent in self.agents.values() for device in agent.node.devices}
        devices = {device.id: device for agent in self.agents.values() for device in agent.node.devices}
        fabric = Fabric(devices | {device.id: device for device in free}, at | {device.id: "" for device in free})
        for name, agent in self.agents.items():
            agent.fabric = fabric
            agent.chassis = (fabric.name,) if to is None or name in to else ()
        return fabric

    def read_chassis(self) -> None:
        """Have the serving agent read the chassis, and tell."""
        for record in self.machine.chassis.values():
            agent = self.agents.get(record.served_by)
            if agent is not None and agent.fabric is not None and agent.session:
                self.tell(
                    events.ChassisReported(
                        node=agent.name, session=agent.session, term=record.term, view=agent.fabric.view(self.agents)
                    )
                )

    def move(self, device: str, to: str = "", **more: object) -> str:
        """Ask for a move; return its id."""
        request = MoveRequest(device=device, node=to, **more)  # type: ignore[arg-type]
        move = plan_move(self.machine, request, by="ann", at=self.wall)
        self.tell(events.MoveAsked(move=move))
        return move.id

    def create(self, name: str = "data", size: int = 10 * GIB, *, user: str = "ada", **more: object) -> str:
        """Ask for a volume; return its id."""
        request = VolumeRequest(name=name, size_bytes=size, **more)  # type: ignore[arg-type]
        volume = plan_volume(
            self.machine, request, policy=DefaultPolicy(), user=user, by=user, at=self.wall, now=self.now
        )
        self.tell(events.VolumeAsked(volume=volume))
        return volume.id

    def adopt(self, name: str = "data", *, user: str = "ada", remove: bool = False) -> str:
        """Have parts that the ledger does not know taken into it; return the volume's id."""
        request = AdoptRequest(volume=name, user=user, remove=remove)
        volume = plan_adoption(self.machine, request, user=user, by="ann", at=self.wall)
        self.tell(events.VolumeAsked(volume=volume))
        return volume.id

    def attach(self, name: str, on: str, job_id: str = "j1", **more: object) -> None:
        """Ask for a volume on a node."""
        request = AttachRequest(volume=name, node=on, **more)  # type: ignore[arg-type]
        parts = len(self.machine.volumes[name].volume.parts)
        self.submit(attachment_job(request, job_id=job_id, user="ann", parts=parts, at=self.wall))

    def volume(self, name: str = "data") -> VolumeStatus:
        (found,) = [status for status in self.machine.volume_statuses() if status.name == name]
        return found

    def decide(self) -> None:
        """Run the round that was asked for."""
        self.round_asked = False
        snapshot, pending, generation = self.machine.round_input(self.now)
        decision = self.decision_maker(snapshot, pending)
        self.tell(events.RoundDecided(decision=decision, generation=generation))

    def step(self, name: str) -> events.Command | None:
        """Have one agent carry out its next command and answer it."""
        agent = self.agents[name]
        if not agent.inbox:
            return None
        command = agent.inbox.pop(0)
        outcome = agent.do(command)
        if outcome is not None:
            self.tell(outcome)
        kinds = events.DetachDevice | events.AttachDevice
        if isinstance(command, kinds | events.MakeVolume | events.ResizeVolume | events.RemoveVolume):
            self.tell(agent.inventory())
        return command

    def settle(self) -> None:
        """Run rounds and agents until nobody has anything to do."""
        for _ in range(10_000):
            if self.round_asked:
                self.decide()
            elif not sum(self.step(name) is not None for name in self.agents):
                return
        raise AssertionError("the cluster does not come to rest")

    def pass_time(self, seconds: float, *, heartbeats: bool = True, step_s: float = 1.0) -> None:
        """Let time pass in steps, after each of which agents with a session renew what they hold."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + step_s)
            for agent in self.agents.values() if heartbeats else ():
                if agent.session:
                    client = [lease for leases in agent.client_side.values() for lease in leases]
                    self.tell(
                        events.HeartbeatArrived(
                            node=agent.name, session=agent.session, lease_ids=(*agent.device_side, *client)
                        )
                    )
            self.tell(events.ClockTicked())

    def state_of(self, job_id: str) -> str:
        if job_id in self.ended:
            return self.ended[job_id].state.value
        return self.machine.jobs[job_id].state.value

    def reason_of(self, job_id: str) -> str:
        if job_id in self.ended:
            return self.ended[job_id].reason
        return self.machine.jobs[job_id].progress.reason
