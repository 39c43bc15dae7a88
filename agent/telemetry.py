"""How busy a node is: rates between two looks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from farbus.errors import FarbusError
from farbus.linux.clock import Clock
from farbus.linux.node_facts import NodeFacts
from farbus.linux.nvml import Nvml
from farbus.model.telemetry import DeviceTelemetry, Telemetry


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What only counts up: processor seconds, bytes, at a monotonic time in seconds."""

    at: float
    cpu_busy_s: float
    cpu_all_s: float
    receive_bytes: int
    send_bytes: int


def rates(before: Counters, now: Counters) -> tuple[float, float, float]:
    """Return (fraction of processors busy, bytes received a second, bytes sent a second).

    A counter that went back (a link that was replaced) counts as none.
    """
    seconds = now.at - before.at
    if seconds <= 0:
        return 0.0, 0.0, 0.0
    cpu_all = now.cpu_all_s - before.cpu_all_s
    busy = (now.cpu_busy_s - before.cpu_busy_s) / cpu_all if cpu_all > 0 else 0.0
    receive = max(0, now.receive_bytes - before.receive_bytes) / seconds
    send = max(0, now.send_bytes - before.send_bytes) / seconds
    return min(1.0, max(0.0, busy)), receive, send


class Collector:
    """Takes samples; each tells of the time since the one before."""

    def __init__(self, *, facts: NodeFacts, nvmls: Sequence[Nvml], clock: Clock) -> None:
        self._facts = facts
        self._nvmls = tuple(nvmls)
        self._clock = clock
        self._before = self._count()

    def _count(self) -> Counters:
        busy, every = self._facts.cpu_seconds()
        links = self._facts.links()
        return Counters(
            at=self._clock.monotonic(),
            cpu_busy_s=busy,
            cpu_all_s=every,
            receive_bytes=sum(link.receive_bytes for link in links),
            send_bytes=sum(link.send_bytes for link in links),
        )

    async def sample(self) -> Telemetry:
        """Measure.  Devices whose driver does not answer are left out."""
        now = self._count()
        busy, receive, send = rates(self._before, now)
        self._before = now
        devices: list[DeviceTelemetry] = []
        for nvml in self._nvmls:
            try:
                samples = await nvml.sample()
            except FarbusError:
                # The inventory, which asks the same driver, has the log line.
                continue
            devices += [
                DeviceTelemetry(
                    device=sample.uuid,
                    busy_fraction=sample.busy_fraction,
                    memory_used_bytes=sample.memory_used_bytes,
                )
                for sample in samples
            ]
        return Telemetry(
            cpu_busy_fraction=busy,
            memory_used_bytes=self._facts.memory_used_bytes(),
            devices=tuple(devices),
            network_receive_bytes_per_s=receive,
            network_send_bytes_per_s=send,
        )
