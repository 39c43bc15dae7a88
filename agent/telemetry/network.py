"""Network links."""

from __future__ import annotations

from farbus.agent.telemetry.pipeline import PERIOD_S
from farbus.linux.blocking import BlockingCaller
from farbus.linux.node_facts import NodeFacts
from farbus.model.metrics import Series, Values, series

BYTES_OF_MBIT = 1e6 / 8


class NetworkCollector:
    """Counters of the links that lead out of the node."""

    name = "network"
    period_s = PERIOD_S
    deadline_s = 5.0

    def __init__(self, *, facts: NodeFacts) -> None:
        self._facts = facts
        # The kernel holds one lock over all links, also while a driver resets a card.
        self._caller = BlockingCaller("network telemetry")

    async def sample(self) -> Values:
        """List the links."""
        return await self._caller.call(self._look)

    def _look(self) -> dict[Series, float]:
        found: dict[Series, float] = {}
        for link in self._facts.links():
            found[series("node_network_up", link.name)] = float(link.up)
            if link.speed_mbit:
                found[series("node_network_speed_bytes", link.name)] = link.speed_mbit * BYTES_OF_MBIT
            for direction, count in (
                ("receive", (link.receive_bytes, link.receive_packets, link.receive_errors, link.receive_drops)),
                ("transmit", (link.send_bytes, link.send_packets, link.send_errors, link.send_drops)),
            ):
                for what, value in zip(("bytes", "packets", "errs", "drop"), count, strict=True):
                    found[series(f"node_network_{direction}_{what}_total", link.name)] = float(value)
        return found
