"""Processors, memory and pressure."""

from __future__ import annotations

from collections.abc import Mapping

from farbus.agent.telemetry.pipeline import PERIOD_S
from farbus.agent.telemetry.rates import busy_fraction
from farbus.linux.blocking import BlockingCaller
from farbus.linux.node_facts import NodeFacts
from farbus.model.metrics import METRICS, Series, Values, series


class HostCollector:
    """The node as a whole."""

    name = "host"
    period_s = PERIOD_S
    deadline_s = 5.0

    def __init__(self, *, facts: NodeFacts) -> None:
        self._facts = facts
        self._caller = BlockingCaller("host telemetry")
        self._before: Mapping[str, float] = {}

    async def sample(self) -> Values:
        """Read /proc."""
        return await self._caller.call(self._look)

    def _look(self) -> dict[Series, float]:
        facts = self._facts
        times = facts.cpu_times()
        memory = facts.memory_bytes()
        found = {
            series("node_load1"): facts.load1(),
            series("node_memory_total_bytes"): float(memory),
            series("node_memory_available_bytes"): float(memory - facts.memory_used_bytes()),
        }
        found |= {series("node_cpu_seconds_total", mode): spent for mode, spent in times.items()}
        if self._before and (busy := busy_fraction(self._before, times)) is not None:
            found[series("node_cpu_busy_ratio")] = busy
        self._before = times
        for (resource, kind), waited_s in facts.pressure().items():
            name = f"node_pressure_{resource}_{kind}_seconds_total"
            # The kernel prints "full" for processors too, where it has no meaning for a whole node.
            if name in METRICS:
                found[series(name)] = waited_s
        return found
