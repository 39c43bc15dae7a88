"""What the scheduler knows of a node's telemetry: its series, and the smoothed load of its links.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from farbus.model.cluster import LinkLoad
from farbus.model.metrics import Series, series
from farbus.model.series import SeriesDecoder
from farbus.model.telemetry import Telemetry

LOAD_HALF_LIFE_S = 10.0
"""A link's load is smoothed so that what was measured this long ago counts half: a burst is no load, a copy of
gigabytes is."""

NETWORK_COLLECTOR = "network"


class NodeFigures:
    """The telemetry of one node."""

    def __init__(self) -> None:
        self._decoder = SeriesDecoder()
        self._names: list[str] = []
        self.links: tuple[LinkLoad, ...] = ()
        self.heard_at: float | None = None
        """Monotonic time of the last telemetry; None before the first."""

    @property
    def values(self) -> Mapping[Series, float]:
        """What was last told of each series."""
        return self._decoder.values

    @property
    def stale(self) -> Mapping[str, str]:
        """Collectors that are stale, with their reasons."""
        return self._decoder.stale

    def take(self, telemetry: Telemetry, now: float) -> bool:
        """Take in a heartbeat's telemetry; False when an update is missing and all must be told again."""
        if telemetry.update is None:
            self._decoder.values = _of_old_agent(telemetry)
        elif not self._decoder.take(telemetry.update):
            return False
        elif telemetry.update.started or telemetry.update.ended:
            self._names = sorted({each.labels[0] for each in self.values if each.metric == "node_network_up"})
        self.heard_at = now
        if NETWORK_COLLECTOR not in self.stale:
            self._smooth(now)
        return True

    def _smooth(self, now: float) -> None:
        values = self._decoder.values
        before = {link.name: link for link in self.links}
        links = []
        for name in self._names:
            speed = values.get(series("node_network_speed_bytes", name), 0.0)
            received = values.get(series("node_network_receive_bytes_per_second", name))
            sent = values.get(series("node_network_transmit_bytes_per_second", name))
            if received is None or sent is None:
                # Its counters were read only once so far.
                continue
            known = before.get(name)
            if known is not None:
                weight = 1.0 - 0.5 ** ((now - known.measured_at) / LOAD_HALF_LIFE_S)
                received = known.receive_bytes_per_s + weight * (received - known.receive_bytes_per_s)
                sent = known.send_bytes_per_s + weight * (sent - known.send_bytes_per_s)
            links.append(
                LinkLoad(
                    name=name,
                    speed_bytes_per_s=speed,
                    receive_bytes_per_s=received,
                    send_bytes_per_s=sent,
                    measured_at=now,
                )
            )
        self.links = tuple(links)


def _of_old_agent(telemetry: Telemetry) -> dict[Series, float]:
    """Return the series of an agent that knows no updates (before version 0.2)."""
    found = {series("node_cpu_busy_ratio"): telemetry.cpu_busy_fraction}
    for device in telemetry.devices:
        found[series("gpu_busy_ratio", device.device)] = device.busy_fraction
        found[series("gpu_memory_used_bytes", device.device)] = float(device.memory_used_bytes)
    return {each: value for each, value in found.items() if math.isfinite(value)}
