"""What people see of the nodes' telemetry: with whose it is, as far as the caller may know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from farbus.api.identity import Identity
from farbus.model.device import DeviceKind, DeviceStatus, whole_of
from farbus.model.metrics import Series, series
from farbus.model.series import CollectorState
from farbus.model.states import NodeState
from farbus.model.telemetry import GpuTelemetry, LinkTelemetry, NodeTelemetry, SessionTelemetry
from farbus.scheduler.cluster import ClusterState
from farbus.scheduler.records import LeaseRecord, NodeRecord

ANOTHER_USER = "another user"

_MOST = 2**62
"""Largest whole number that is shown, of either sign: it and what is made of it fit their messages."""

_GPU_FIGURES = {
    "busy_fraction": "gpu_busy_ratio",
    "power_watts": "gpu_power_watts",
    "temperature_celsius": "gpu_temperature_celsius",
    "sm_clock_hz": "gpu_sm_clock_hertz",
    "pcie_receive_bytes_per_s": "gpu_pcie_receive_bytes_per_second",
    "pcie_send_bytes_per_s": "gpu_pcie_send_bytes_per_second",
}
_GPU_COUNTS = {
    "memory_used_bytes": "gpu_memory_used_bytes",
    "ecc_uncorrected_errors": "gpu_ecc_uncorrected_errors_total",
    "last_xid": "gpu_last_xid",
    "processes": "gpu_processes",
}
_OF_WHOLE_GPUS = ("memory_used_bytes", "processes")
"""What of a GPU is nothing of its shares."""

_SESSION_FIGURES = {
    "calls_per_s": "session_calls_per_second",
    "receive_bytes_per_s": "session_receive_bytes_per_second",
    "send_bytes_per_s": "session_send_bytes_per_second",
    "busy_fraction": "session_busy_ratio",
    "waiting_s": "session_waiting_seconds",
}


def node_telemetry(state: ClusterState, record: NodeRecord, caller: Identity, now: float) -> NodeTelemetry:
    """Return a node at work; of one that is lost, what it has and since when it is silent, without figures."""
    assert record.node is not None
    values: Mapping[Series, float] = record.figures.values if record.connected else {}
    memory = values.get(series("node_memory_total_bytes"))
    available = values.get(series("node_memory_available_bytes"))
    return NodeTelemetry(
        node=record.name,
        state=NodeState.READY if record.connected else NodeState.LOST,
        seen_s=max(0.0, now - record.seen),
        cpu_milli=record.node.capacity.cpu_milli,
        cpu_busy_fraction=values.get(series("node_cpu_busy_ratio")),
        memory_bytes=record.node.capacity.memory_bytes if memory is None else _whole(memory),
        memory_used_bytes=None if memory is None or available is None else _whole(memory - available),
        cpu_pressure=values.get(series("node_pressure_cpu_waiting_ratio")),
        memory_pressure=values.get(series("node_pressure_memory_waiting_ratio")),
        io_pressure=values.get(series("node_pressure_io_waiting_ratio")),
        links=tuple(
            LinkTelemetry(
                name=link.name,
                speed_bytes_per_s=link.speed_bytes_per_s,
                receive_bytes_per_s=link.receive_bytes_per_s,
                send_bytes_per_s=link.send_bytes_per_s,
                age_s=max(0.0, now - link.measured_at),
            )
            for link in (record.figures.links if record.connected else ())
        ),
        gpus=tuple(
            _gpu(status, state.leases.get(status.lease), values, caller)
            for status in state.device_statuses_of(record.name)
            if status.device.kind is DeviceKind.GPU
        ),
        sessions=_sessions(state, record.name, values, caller),
        stale=tuple(CollectorState(name=name, reason=reason) for name, reason in sorted(record.figures.stale.items()))
        if record.connected
        else (),
    )


def _whole(value: float) -> int:
    """Return what a node says as a whole number, whatever it says."""
    return int(max(-_MOST, min(_MOST, value)))


def _process(label: str) -> int:
    """Return the process id that a label is; 0 for anything else."""
    return _whole(int(label)) if label.isascii() and label.isdigit() else 0


def _gpu(
    status: DeviceStatus, record: LeaseRecord | None, values: Mapping[Series, float], caller: Identity
) -> GpuTelemetry:
    device = status.device
    known: dict[str, float | int] = {}
    # A share is as busy and as warm as its GPU; how much of its memory is used the driver does not tell of it.
    measured = whole_of(device.id)
    for field, metric in _GPU_FIGURES.items():
        if (value := values.get(series(metric, measured))) is not None:
            known[field] = value
    for field, metric in _GPU_COUNTS.items():
        if device.share_milli and field in _OF_WHOLE_GPUS:
            continue
        if (value := values.get(series(metric, measured))) is not None:
            known[field] = _whole(value)
    whose: dict[str, str] = {}
    if record is not None:
        lease = record.lease
        whose = {"user": ANOTHER_USER}
        if caller.may_manage(lease.user):
            whose = {"lease": lease.id, "job": lease.job, "user": lease.user, "client_node": lease.client_node}
    return GpuTelemetry(
        device=device.id,
        model=device.model,
        software=device.software,
        state=status.state.value,
        memory_bytes=device.memory_bytes,
        **known,  # type: ignore[arg-type]
        **whose,  # type: ignore[arg-type]
    )


def _sessions(
    state: ClusterState, node: str, values: Mapping[Series, float], caller: Identity
) -> tuple[SessionTelemetry, ...]:  # fmt: skip
    """Return the sessions with devices of ``node``: what it tells of others is not its to tell."""
    figures: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    transports: dict[tuple[str, ...], str] = {}
    for each, value in values.items():
        if each.metric.startswith("session_"):
            figures[each.labels][each.metric] = value
        elif each.metric == "transport_of_session":
            *session, transport = each.labels
            transports[tuple(session)] = transport
            # It is there from the first sample on, rates from the second.
            _ = figures[tuple(session)]
    found = []
    for labels, known in sorted(figures.items()):
        lease_id, server_pid, client_pid, program = labels
        record = state.leases.get(lease_id)
        if record is None or record.lease.device_node != node or not caller.may_manage(record.lease.user):
            continue
        memory = known.get("session_memory_bytes")
        found.append(
            SessionTelemetry(
                lease=lease_id,
                job=record.lease.job,
                user=record.lease.user,
                client_node=record.lease.client_node,
                server_pid=_process(server_pid),
                client_pid=_process(client_pid),
                program=program,
                memory_bytes=None if memory is None else _whole(memory),
                transport=transports.get(labels, ""),
                stopped="session_stopped" in known,
                **{field: known.get(metric, 0.0) for field, metric in _SESSION_FIGURES.items()},
            )
        )
    return tuple(found)
