"""What an agent measures and sends with each heartbeat."""

from __future__ import annotations

from farbus.model.value import Value


class DeviceTelemetry(Value, frozen=True, kw_only=True):
    """Use of one device: fraction of time busy (0 to 1) and memory in use, in bytes."""

    device: str
    busy_fraction: float = 0.0
    memory_used_bytes: int = 0


class Telemetry(Value, frozen=True, kw_only=True):
    """Use of a node: processors (0 to 1), memory in bytes, links in bytes a second."""

    cpu_busy_fraction: float = 0.0
    memory_used_bytes: int = 0
    devices: tuple[DeviceTelemetry, ...] = ()
    network_receive_bytes_per_s: float = 0.0
    network_send_bytes_per_s: float = 0.0
