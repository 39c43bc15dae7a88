"""What is measured of nodes: as heartbeats carry it, and as people and policies look at it.

``None`` means that nobody knows: the device has no such sensor, or the
collector is stale.
"""

from __future__ import annotations

from farbus.model.series import CollectorState, TelemetryUpdate
from farbus.model.states import NodeState
from farbus.model.value import Value


class DeviceTelemetry(Value, frozen=True, kw_only=True):
    """Use of one device: fraction of time busy (0 to 1) and memory in use, in bytes."""

    device: str
    busy_fraction: float = 0.0
    memory_used_bytes: int = 0


class Telemetry(Value, frozen=True, kw_only=True):
    """A heartbeat's news of its node: ``update``; the rest is how agents before version 0.2 said it."""

    cpu_busy_fraction: float = 0.0
    memory_used_bytes: int = 0
    devices: tuple[DeviceTelemetry, ...] = ()
    network_receive_bytes_per_s: float = 0.0
    network_send_bytes_per_s: float = 0.0
    update: TelemetryUpdate | None = None


class LinkTelemetry(Value, frozen=True, kw_only=True):
    """A network link: bytes a second, smoothed; ``speed_bytes_per_s`` is 0 where nobody knows it.

    ``age_s`` is how long ago it was measured.
    """

    name: str
    speed_bytes_per_s: float = 0.0
    receive_bytes_per_s: float = 0.0
    send_bytes_per_s: float = 0.0
    age_s: float = 0.0


class GpuTelemetry(Value, frozen=True, kw_only=True):
    """A GPU with who uses it; ``user`` is "another user" where the caller may not know."""

    device: str
    model: str = ""
    software: bool = False
    state: str = ""
    memory_bytes: int = 0
    busy_fraction: float | None = None
    memory_used_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hz: float | None = None
    pcie_receive_bytes_per_s: float | None = None
    pcie_send_bytes_per_s: float | None = None
    ecc_uncorrected_errors: int | None = None
    last_xid: int | None = None
    processes: int | None = None
    lease: str = ""
    job: str = ""
    user: str = ""
    client_node: str = ""


class SessionTelemetry(Value, frozen=True, kw_only=True):
    """A program that uses devices of the node by remoting: bytes a second from it and to it.

    ``transport`` is what carries its calls: ``shm``, ``unix``, ``tcp`` or ``tls``; empty where that is not known.
    ``server_pid`` is its server's process on the node; ``waiting_s`` is for how long that has had calls in work without
    finishing or taking any, 0 below 5 s.  ``stopped``: a signal (SIGSTOP) has stopped it; SIGCONT lets it go on.
    """

    lease: str
    job: str = ""
    user: str = ""
    client_node: str = ""
    client_pid: int = 0
    program: str = ""
    calls_per_s: float = 0.0
    receive_bytes_per_s: float = 0.0
    send_bytes_per_s: float = 0.0
    busy_fraction: float = 0.0
    memory_bytes: int | None = None
    transport: str = ""
    server_pid: int = 0
    waiting_s: float = 0.0
    stopped: bool = False


class NodeTelemetry(Value, frozen=True, kw_only=True):
    """A node at work.  Pressures are shares of time in which some task waited for the resource.

    ``seen_s`` is how long ago the node was heard.
    """

    node: str
    state: NodeState
    seen_s: float = 0.0
    cpu_milli: int = 0
    cpu_busy_fraction: float | None = None
    memory_bytes: int = 0
    memory_used_bytes: int | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    io_pressure: float | None = None
    links: tuple[LinkTelemetry, ...] = ()
    gpus: tuple[GpuTelemetry, ...] = ()
    sessions: tuple[SessionTelemetry, ...] = ()
    stale: tuple[CollectorState, ...] = ()


class ClusterTelemetry(Value, frozen=True, kw_only=True):
    """All nodes, by name."""

    nodes: tuple[NodeTelemetry, ...] = ()
