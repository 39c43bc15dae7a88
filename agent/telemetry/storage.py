"""Storage: what goes over paths to other nodes' namespaces, what others do with this node's, how its drives fare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from farbus.agent.telemetry.pipeline import PERIOD_S
from farbus.errors import FarbusError
from farbus.linux.block import BlockDevices
from farbus.linux.blocking import BlockingCaller
from farbus.linux.clock import Clock
from farbus.linux.nvme import NvmeFabrics
from farbus.model.metrics import Series, Values, series
from farbus.model.nvmeof import BlockStatistics, ControllerState, PathFigures, SmartLog, subsystem_name
from farbus.model.nvmet import NamespaceUse
from farbus.nvmeof.paths import PathErrors, Reconnects, figures

_log = structlog.get_logger()

MAX_PATHS = 128
MAX_EXPORTS = 256
"""Paths and exports of one node that have series of their own."""

BREACH_RATIO = 1.1
"""More than what was granted by this is a breach: what is measured and what is limited are cut at different moments."""

BREACH_SAMPLES = 3
"""Samples in a row in which it is: a cache that is written back is no breach."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A lease of storage that this node serves, by the path of its block device."""

    lease: str
    path: str
    granted_bytes_per_s: int = 0


class Overuse(msgspec.Struct, frozen=True, kw_only=True):
    """A lease has more than it was granted, in bytes a second; 0: not any more."""

    lease: str
    bytes_per_s: int
    granted_bytes_per_s: int


def _nobody_listens(_: Overuse) -> None:
    """Where nobody is told."""


class StorageCollector:
    """Reads sysfs: counters of paths and of the block devices behind exports.

    ``told`` hears of each lease that has more than it was granted, again with
    each sample, and once when that is over.
    """

    name = "storage"
    period_s = PERIOD_S
    deadline_s = 5.0

    def __init__(
        self,
        *,
        nvme: NvmeFabrics,
        blocks: BlockDevices,
        reconnects: Reconnects,
        errors: PathErrors,
        exported: Callable[[], Sequence[Exported]],
        smart: Callable[[], Mapping[str, SmartLog]],
        clock: Clock,
        told: Callable[[Overuse], None] = _nobody_listens,
    ) -> None:
        self._told = told
        self._nvme = nvme
        self._blocks = blocks
        self._reconnects = reconnects
        self._errors = errors
        self._exported = exported
        self._smart = smart
        self._clock = clock
        self._caller = BlockingCaller("storage telemetry")
        self._before: dict[Series, tuple[int, int]] = {}
        """Requests and milliseconds of each path that there was at the last look."""
        self._used: dict[str, tuple[float, int]] = {}
        """When the use of each export was looked at, and bytes until then."""
        self._over: dict[str, int] = {}
        self._breaches: dict[str, int] = {}

    async def sample(self) -> Values:
        """Look at all of it."""
        exported = tuple(self._exported())[:MAX_EXPORTS]
        paths, uses = await self._caller.call(lambda: self._read(exported))
        found: dict[Series, float] = {}
        before, self._before = self._before, {}
        for path in paths:
            found |= self._path(path, before)
        now = self._clock.monotonic()
        for one in exported:
            if (use := uses.get(one.lease)) is not None:
                found |= self._export(one, use, now)
        known = {one.lease for one in exported}
        for kept in (self._used, self._over, self._breaches):
            for lease in kept.keys() - known:
                del kept[lease]
        for drive, log in self._smart().items():
            found |= _health(drive, log)
        return found

    def _read(self, exported: Sequence[Exported]) -> tuple[tuple[PathFigures, ...], dict[str, NamespaceUse]]:
        uses = {}
        for one in exported:
            try:
                uses[one.lease] = self._blocks.use(one.path)
            except FarbusError:
                # Not there yet, or not any more.
                continue
        return figures(self._nvme, self._reconnects, self._errors)[:MAX_PATHS], uses

    def _path(self, path: PathFigures, earlier: Mapping[Series, tuple[int, int]]) -> dict[Series, float]:
        name = subsystem_name(path.nqn)
        labels = (name.lease if name is not None else path.nqn, str(path.address))
        told = path.statistics
        found = {
            series("storage_path_info", *labels, path.state.value, path.ana_state.value if path.ana_state else ""): 1.0,
            series("storage_path_up", *labels): float(path.state is ControllerState.LIVE),
            series("storage_path_reconnects_total", *labels): float(path.reconnects),
            series("storage_path_in_flight", *labels): float(told.in_flight),
            **_counters("storage_path", labels, told),
        }
        if path.errors is not None:
            found[series("storage_path_errors_total", *labels)] = float(path.errors)
        latency = series("storage_path_latency_seconds", *labels)
        requests, spent_ms = told.reads + told.writes, told.read_ms + told.write_ms
        before = earlier.get(latency)
        self._before[latency] = requests, spent_ms
        if before is not None and requests > before[0] and spent_ms >= before[1]:
            found[latency] = (spent_ms - before[1]) / (requests - before[0]) / 1000
        return found

    def _export(self, one: Exported, use: NamespaceUse, now: float) -> dict[Series, float]:
        told = BlockStatistics(
            reads=use.reads, read_bytes=use.read_bytes, read_ms=use.read_ms,
            writes=use.writes, written_bytes=use.written_bytes, write_ms=use.write_ms,
        )  # fmt: skip
        found = _counters("storage_export", (one.lease,), told)
        if one.granted_bytes_per_s:
            found[series("storage_export_granted_bytes_per_second", one.lease)] = float(one.granted_bytes_per_s)
            self._compare(one, told.read_bytes + told.written_bytes, now)
            found[series("storage_export_breaches_total", one.lease)] = float(self._breaches.get(one.lease, 0))
        return found

    def _compare(self, one: Exported, total: int, now: float) -> None:
        """Raise it where a lease has more than it was granted, again and again: nothing on this node limits it."""
        before = self._used.get(one.lease)
        self._used[one.lease] = now, total
        if before is None or now <= before[0] or total < before[1]:
            return
        rate = (total - before[1]) / (now - before[0])
        # Reads and writes are granted alike.
        if rate <= 2 * one.granted_bytes_per_s * BREACH_RATIO:
            if self._over.get(one.lease, 0) >= BREACH_SAMPLES:
                self._told(Overuse(lease=one.lease, bytes_per_s=0, granted_bytes_per_s=one.granted_bytes_per_s))
            self._over[one.lease] = 0
            return
        self._over[one.lease] = self._over.get(one.lease, 0) + 1
        if self._over[one.lease] >= BREACH_SAMPLES:
            # Whoever listens may have come only now.
            self._told(Overuse(lease=one.lease, bytes_per_s=int(rate), granted_bytes_per_s=one.granted_bytes_per_s))
        if self._over[one.lease] == BREACH_SAMPLES:
            self._breaches[one.lease] = self._breaches.get(one.lease, 0) + 1
            _log.warning(
                "lease uses more bandwidth than it was granted",
                lease=one.lease, bytes_per_s=int(rate), granted_bytes_per_s=one.granted_bytes_per_s,
            )  # fmt: skip


def _counters(noun: str, labels: tuple[str, ...], told: BlockStatistics) -> dict[Series, float]:
    return {
        series(f"{noun}_read_bytes_total", *labels): float(told.read_bytes),
        series(f"{noun}_written_bytes_total", *labels): float(told.written_bytes),
        series(f"{noun}_reads_total", *labels): float(told.reads),
        series(f"{noun}_writes_total", *labels): float(told.writes),
    }


def _health(drive: str, log: SmartLog) -> dict[Series, float]:
    found = {
        series("drive_critical_warning", drive): float(log.critical_warning),
        series("drive_spare_ratio", drive): log.spare_percent / 100,
        series("drive_used_ratio", drive): log.used_percent / 100,
        series("drive_media_errors_total", drive): float(log.media_errors),
        series("drive_error_log_entries_total", drive): float(log.error_log_entries),
        series("drive_unsafe_shutdowns_total", drive): float(log.unsafe_shutdowns),
        series("drive_read_bytes_total", drive): float(log.read_bytes),
        series("drive_written_bytes_total", drive): float(log.written_bytes),
    }
    if log.temperature_c is not None:
        found[series("drive_temperature_celsius", drive)] = float(log.temperature_c)
    return found
