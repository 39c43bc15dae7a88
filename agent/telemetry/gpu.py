"""GPUs of one driver, by its NVML worker; real and software ones alike."""

from __future__ import annotations

from collections import Counter

from farbus.agent.telemetry.pipeline import PERIOD_S
from farbus.linux.nvml import ANSWER_TIMEOUT_S, GpuSample, Nvml
from farbus.model.metrics import Series, Values, series

MAX_XID_KINDS = 64
"""Different XID numbers that are counted for one GPU; there are about a hundred, and few that one GPU meets."""

_FIGURES = {
    "gpu_busy_ratio": "busy_fraction",
    "gpu_memory_busy_ratio": "memory_busy_fraction",
    "gpu_memory_used_bytes": "memory_used_bytes",
    "gpu_power_watts": "power_watts",
    "gpu_temperature_celsius": "temperature_celsius",
    "gpu_sm_clock_hertz": "sm_clock_hz",
    "gpu_memory_clock_hertz": "memory_clock_hz",
    "gpu_energy_joules_total": "energy_joules",
    "gpu_ecc_corrected_errors_total": "ecc_corrected_errors",
    "gpu_ecc_uncorrected_errors_total": "ecc_uncorrected_errors",
    "gpu_pcie_replays_total": "pcie_replays",
    "gpu_pcie_receive_bytes_per_second": "pcie_receive_bytes_per_s",
    "gpu_pcie_send_bytes_per_second": "pcie_send_bytes_per_s",
}
"""Metrics, and the fields of a sample that they are."""


class ProcessMemory:
    """Device memory of processes, as the drivers tell; by source, so that each replaces its own."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, int]] = {}

    def tell(self, source: str, memory: dict[int, int]) -> None:
        """Note what a driver told."""
        self._known[source] = memory

    def of(self, pid: int) -> int | None:
        """Return the bytes that a process has on all GPUs; None when no driver knows it."""
        found = [memory[pid] for memory in self._known.values() if pid in memory]
        return sum(found) if found else None


class GpuCollector:
    """Asks one driver."""

    period_s = PERIOD_S
    deadline_s = ANSWER_TIMEOUT_S + 5.0
    """Longer than the door's own time-out, which ends a worker that hangs."""

    def __init__(self, *, name: str, nvml: Nvml, memory: ProcessMemory) -> None:
        self.name = name
        self._nvml = nvml
        self._memory = memory
        self._xids: Counter[tuple[str, int]] = Counter()
        self._last_xid: dict[str, int] = {}

    async def sample(self) -> Values:
        """Ask for all GPUs; none where there is no driver."""
        found: dict[Series, float] = {}
        memory: Counter[int] = Counter()
        samples = await self._nvml.sample()
        for sample in samples:
            found |= self._figures(sample)
            for process in sample.processes:
                memory[process.pid] += process.memory_bytes or 0
        self._memory.tell(self.name, dict(memory))
        return found

    def _figures(self, sample: GpuSample) -> dict[Series, float]:
        uuid = sample.uuid
        found = {
            series(metric, uuid): float(value)
            for metric, field in _FIGURES.items()
            if (value := getattr(sample, field)) is not None
        }
        if sample.memory_bytes is not None:
            found[series("gpu_memory_free_bytes", uuid)] = float(max(0, sample.memory_bytes - sample.memory_used_bytes))
        found[series("gpu_processes", uuid)] = float(len(sample.processes))
        for xid in sample.xids:
            self._last_xid[uuid] = xid
            if (uuid, xid) in self._xids or sum(1 for known, _ in self._xids if known == uuid) < MAX_XID_KINDS:
                self._xids[uuid, xid] += 1
        if uuid in self._last_xid:
            found[series("gpu_last_xid", uuid)] = float(self._last_xid[uuid])
        found |= {
            series("gpu_xid_errors_total", uuid, xid): float(count)
            for (known, xid), count in self._xids.items()
            if known == uuid
        }
        return found
