"""The columns of each listing, and how its cells are worded."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from farbus.cli.listing import Column, printable
from farbus.model.device import DeviceKind, DeviceStatus
from farbus.model.job import DevicePlacement, Job, JobStatus, TaskPlacement, TaskState, TaskStatus
from farbus.model.lease import LeaseStatus
from farbus.model.move import MoveStatus
from farbus.model.node import NodeStatus
from farbus.model.quantity import format_bytes, format_cpu, format_network
from farbus.model.states import JOB_STATES, JobState
from farbus.model.volume import VolumeStatus


def format_age(seconds: float) -> str:
    """Write a duration in its one or two largest units: ``42s``, ``7m10s``, ``3h05m``, ``2d4h``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def format_moment(seconds: float) -> str:
    """Write seconds since the epoch as a moment of this machine; nothing for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else ""


def _unique(names: Sequence[str]) -> str:
    return ",".join(dict.fromkeys(names))


def format_devices(devices: Sequence[DevicePlacement]) -> str:
    """Write where devices are: ``GPU-1, GPU-2 of alpha, remote; GPU-3 of beta, remote``."""
    groups: dict[tuple[str, str], list[str]] = {}
    for device in devices:
        groups.setdefault((device.node, device.route), []).append(device.device)
    return "; ".join(f"{', '.join(names)} of {node or 'a pool'}, {route}" for (node, route), names in groups.items())


def format_placement(placement: TaskPlacement) -> str:
    """Write where a task and its devices are: ``gamma (GPU-1 of alpha, remote)``."""
    return f"{placement.node} ({format_devices(placement.devices)})" if placement.devices else placement.node


def format_exit(tasks: Sequence[TaskStatus]) -> str:
    """Write the exit codes of the tasks that have ended; a signal is written as one, and what nobody knows as such."""
    return ",".join(dict.fromkeys(_exit(task) for task in tasks if task.state is TaskState.EXITED))


def _exit(task: TaskStatus) -> str:
    if task.exit_unknown:
        return "unknown"
    return f"signal {-task.exit_code}" if task.exit_code < 0 else str(task.exit_code)


def _job_seconds(status: JobStatus) -> float:
    if not status.started_at:
        return 0.0
    return (status.ended_at or time.time()) - status.started_at


def _flavour(status: JobStatus) -> Job:
    """Return the job as what it was placed."""
    known = any(each.name == status.alternative for each in status.job.alternatives)
    return status.job.in_flavour(status.alternative) if known else status.job


def _job_reason(status: JobStatus) -> str:
    if status.reason or status.state is JobState.SUCCEEDED:
        return status.reason
    told = "; ".join(miss.message for miss in status.misses)
    return f"tasks that wait: {status.tasks_waiting}: {told}" if told and status.tasks_waiting else told


def is_ended(status: JobStatus) -> bool:
    """Say whether nothing more becomes of the job."""
    return JOB_STATES.is_final(status.state)


def never_began(status: JobStatus) -> int:
    """Count the tasks beyond ``min_count`` for which there was no room before the job had succeeded."""
    if status.state is not JobState.SUCCEEDED:
        return 0
    began = Counter(task.task.rpartition(".")[0] for task in status.tasks)
    # Of a group that was chosen some task has begun; the others are instead of which it was.
    return sum(group.count - began[group.name] for group in _flavour(status).groups if began[group.name])


def describe_job(status: JobStatus) -> list[str]:
    """Return what is to be said about one job, in lines: tasks, placements, reasons, story."""
    lines = [f"job {status.job.id}: {status.state}" + (f": {status.reason}" if status.reason else "")]
    if status.alternative:
        lines.append(f"  as its alternative {status.alternative}")
    if status.tasks_waiting:
        lines.append(f"  tasks that wait for room: {status.tasks_waiting}")
    if left_out := never_began(status):
        lines.append(f"  tasks that never began, as there was no room before the others had ended: {left_out}")
    placements = {placement.task: placement for placement in status.placements}
    tasks = {task.task: task for task in status.tasks}
    for name in dict.fromkeys([*placements, *tasks]):
        words = [f"  task {name}:"]
        if name in tasks:
            words.append(tasks[name].state.value)
            if tasks[name].state is TaskState.EXITED:
                words.append(f"({'' if tasks[name].exit_code < 0 else 'code '}{_exit(tasks[name])})")
        if name in placements:
            words.append(f"on {format_placement(placements[name])}")
            if placements[name].why and not status.story:
                # A story tells the reasons itself.
                words[-1] += f": {placements[name].why}"
        if name in tasks and tasks[name].reason:
            words.append(f"- {tasks[name].reason}")
        lines.append(" ".join(words))
    lines += [f"  {line}" for line in _describe_wishes(status.job)]
    if status.state is not JobState.SUCCEEDED:
        lines += [f"  waits: {miss.phase}: {miss.message}" for miss in status.misses]
    lines += [f"  {line}" for line in status.story]
    return [printable(line) for line in lines]


def _describe_wishes(job: Job) -> list[str]:
    lines = []
    if job.application:
        lines.append(f"application {job.application}")
    if job.goal.slo_s:
        counts = f" (importance {job.goal.importance:g})" if job.goal.importance else ""
        lines.append(f"goal: within {format_age(job.goal.slo_s)} from its start{counts}")
    if not math.isinf(job.due_at):
        lines.append(f"deadline: {format_moment(job.due_at)}")
    return lines


JOB_COLUMNS: tuple[Column[JobStatus], ...] = (
    Column("ID", lambda status: status.job.id),
    Column("NAME", lambda status: status.job.name),
    Column("USER", lambda status: status.job.user),
    Column("STATE", lambda status: status.state.value, state=True),
    Column("NODES", lambda status: _unique([placement.node for placement in status.placements])),
    Column("GPUS", lambda s: str(sum(each.count * each.requests.gpus for each in _flavour(s).groups))),
    Column("EXIT", lambda status: format_exit(status.tasks)),
    Column("AGE", lambda status: format_age(time.time() - status.job.submitted_at), right=True),
    Column("RAN", lambda status: format_age(_job_seconds(status)), right=True),
    Column("PRIORITY", lambda status: str(status.job.priority), wide=True, right=True),
    Column(
        "DEADLINE", lambda status: "" if math.isinf(status.job.due_at) else format_moment(status.job.due_at), wide=True
    ),
    Column("TASKS", lambda status: str(sum(group.count for group in status.job.groups)), wide=True, right=True),
    Column("DEVICES", lambda s: _unique([d.device for p in s.placements for d in p.devices]), wide=True, identity=True),
    Column("ALTERNATIVE", lambda status: status.alternative, wide=True),
    Column("SUBMITTED", lambda status: format_moment(status.job.submitted_at), wide=True),
    Column("REASON", _job_reason, wide=True, prose=True),
)


def _gpu_count(status: NodeStatus) -> str:
    return str(sum(device.kind is DeviceKind.GPU for device in status.node.devices))


def _memory(status: NodeStatus) -> str:
    free, free_unit = format_bytes(status.free.memory_bytes).split(" ")
    whole, unit = format_bytes(status.node.capacity.memory_bytes).split(" ")
    # Once, where it is the same.
    shown = "" if free_unit == unit or free == "0" else f" {free_unit}"
    return f"{free}{shown} of {whole} {unit}"


def _network(status: NodeStatus) -> str:
    whole = status.node.capacity.network_mbit_s
    return f"{format_network(status.free.network_mbit_s)} of {format_network(whole)}" if whole else "not counted"


def _labels(status: NodeStatus) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(status.node.labels.items()))


NODE_COLUMNS: tuple[Column[NodeStatus], ...] = (
    Column("NAME", lambda status: status.node.name),
    Column("STATE", lambda status: status.state.value, state=True),
    Column("GPUS", _gpu_count, right=True),
    Column("CPUS FREE", lambda s: f"{format_cpu(s.free.cpu_milli)} of {format_cpu(s.node.capacity.cpu_milli)}"),
    Column("MEMORY FREE", _memory),
    Column("ADDRESS", lambda status: status.node.address),
    Column("SEEN", lambda status: f"{format_age(status.seen_s)} ago"),
    Column("NETWORK FREE", _network, wide=True),
    Column("VERSION", lambda status: status.node.agent_version, wide=True),
    Column("LABELS", _labels, wide=True),
    Column("CORDONED BY", lambda status: status.cordon, wide=True, prose=True),
    Column("BOOT", lambda status: status.node.boot_id, wide=True),
)


def _user_of(status: DeviceStatus) -> str:
    kept = f"kept for {status.kept_for}" if status.kept_for else ""
    return status.used_by or status.job or kept or (f"move {status.move}" if status.move else "")


DEVICE_COLUMNS: tuple[Column[DeviceStatus], ...] = (
    Column("ID", lambda status: status.device.id, identity=True),
    Column("NODE", lambda status: status.node),
    Column("KIND", lambda status: status.device.kind.value),
    Column("MODEL", lambda status: status.device.model),
    Column("MEMORY", lambda status: format_bytes(status.device.memory_bytes) if status.device.memory_bytes else ""),
    Column("STATE", lambda status: status.state.value, state=True),
    Column("USED BY", _user_of),
    Column("JOB", lambda status: status.job, wide=True),
    Column("LEASE", lambda status: status.lease, wide=True),
    Column("EPOCH", lambda status: str(status.epoch), wide=True, right=True),
    Column("COMPUTE", lambda status: status.device.compute_capability, wide=True),
    Column("PCI", lambda status: status.device.pci_address, wide=True),
    Column("CHASSIS", lambda status: status.chassis, wide=True),
    Column("MOVE", lambda status: status.move, wide=True),
    Column("KEPT FOR", lambda status: status.kept_for, wide=True),
    Column("CORDONED BY", lambda status: status.cordon, wide=True, prose=True),
    Column("SHARE", lambda s: f"{s.device.share_milli / 10:g} %" if s.device.share_milli else "", wide=True),
    Column("SOFTWARE", lambda status: "yes" if status.device.software else "no", wide=True),
    Column("TROUBLE", lambda status: status.trouble, wide=True, prose=True),
)

MOVE_COLUMNS: tuple[Column[MoveStatus], ...] = (
    Column("ID", lambda status: status.id),
    Column("DEVICE", lambda status: status.device, identity=True),
    Column("FROM", lambda status: status.from_node),
    Column("TO", lambda status: status.to_node),
    Column("STATE", lambda status: status.state.value, state=True),
    Column("STEP", lambda status: f"{status.step + 1}/{status.steps}" if status.steps else ""),
    Column("TOOK", lambda status: format_age(status.took_s), right=True),
    Column("USUALLY", lambda status: format_age(status.expected_s) if status.expected_s else "", right=True),
    Column("BY", lambda status: status.by),
    Column("SAYS", lambda status: status.error or status.says, prose=True),
    Column("CHASSIS", lambda status: status.chassis, wide=True),
    Column("PORT", lambda status: status.port, wide=True),
    Column("PATH", lambda status: status.path, wide=True),
    Column("BEGUN", lambda status: format_moment(status.at), wide=True),
    Column("HINT", lambda status: status.hint, wide=True, prose=True),
)


def format_volume_place(status: VolumeStatus) -> str:
    """Write where a volume is stored: ``3 drives of node beta``."""
    count = sum(len(part.drives) for part in status.parts)
    nodes = list(dict.fromkeys(status.nodes))
    return f"{count} drive{'s' if count > 1 else ''} of node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"


def _volume_health(status: VolumeStatus) -> str:
    if not status.troubles:
        return "ok"
    return f"{len(status.troubles)} trouble{'s' if len(status.troubles) > 1 else ''}"


VOLUME_COLUMNS: tuple[Column[VolumeStatus], ...] = (
    Column("NAME", lambda status: status.name),
    Column("USER", lambda status: status.user or "(nobody)"),
    Column("STATE", lambda status: status.state.value, state=True),
    Column("SIZE", lambda status: format_bytes(status.size_bytes), right=True),
    Column("DRIVES", lambda s: str(sum(len(part.drives) for part in s.parts) or ""), right=True),
    Column("STORED ON", lambda status: _unique(status.nodes)),
    Column("ATTACHED TO", lambda status: status.attached_to),
    Column("HEALTH", _volume_health, state=True),
    Column("SAYS", lambda status: status.says or status.error or next(iter(status.troubles), ""), prose=True),
    Column(
        "BANDWIDTH",
        lambda s: f"{format_bytes(s.bandwidth_bytes_per_s)}/s" if s.bandwidth_bytes_per_s else "",
        wide=True,
        right=True,
    ),
    Column("USE", lambda status: status.use, wide=True),
    Column("PATH", lambda status: status.path, wide=True),
    Column("JOB", lambda status: status.job, wide=True),
    Column("EPOCH", lambda status: str(status.epoch), wide=True, right=True),
    Column("MADE", lambda status: format_moment(status.at), wide=True),
    Column(
        "ON DRIVES", lambda s: _unique([drive for part in s.parts for drive in part.drives]), wide=True, identity=True
    ),
    Column("TROUBLES", lambda status: "; ".join(status.troubles), wide=True, prose=True),
)


ORPHAN_COLUMNS: tuple[Column[VolumeStatus], ...] = (
    Column("VOLUME", lambda status: status.name),
    Column("SIZE", lambda status: format_bytes(status.size_bytes), right=True),
    Column("NODE", lambda status: _unique(status.nodes)),
    Column("SAYS", lambda status: "; ".join(status.troubles), prose=True),
)


def _lease_storage(status: LeaseStatus) -> str:
    storage = status.lease.storage
    if storage is None:
        return ""
    part = f" ({storage.part + 1} of {storage.parts})" if storage.parts > 1 else ""
    return f"{storage.name}: {f'volume {storage.volume}' if storage.volume else format_bytes(storage.size_bytes)}{part}"


LEASE_COLUMNS: tuple[Column[LeaseStatus], ...] = (
    Column("ID", lambda status: status.lease.id),
    Column("JOB", lambda status: status.lease.job),
    Column("USER", lambda status: status.lease.user),
    Column("DEVICE", lambda status: _unique([device.device for device in status.lease.devices]), identity=True),
    Column("OF", lambda status: status.lease.device_node),
    Column("USED ON", lambda status: status.lease.client_node),
    Column("ROUTE", lambda status: status.lease.route.value),
    Column("STATE", lambda status: "wedged" if status.trouble else status.state.value, state=True),
    Column("STORAGE", _lease_storage, wide=True),
    Column("EXPIRES IN", lambda status: f"{max(0.0, status.expires_in_s):.1f} s", right=True),
    Column("TASK", lambda status: status.lease.task, wide=True),
    Column("EPOCH", lambda s: _unique([str(device.epoch) for device in s.lease.devices]), wide=True),
    Column("TERM", lambda status: str(status.lease.term), wide=True, right=True),
    Column("ENDPOINT", lambda status: status.endpoint, wide=True),
    Column("TROUBLE", lambda status: status.trouble, wide=True, prose=True),
)
