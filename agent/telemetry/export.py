"""What Prometheus reads of an agent (docs/telemetry.md says how the names were chosen)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import structlog

from farbus import __version__
from farbus.agent.telemetry.pipeline import Pipeline
from farbus.api.exposition import Family, MetricsEndpoint
from farbus.errors import Conflict
from farbus.linux.clock import Clock
from farbus.linux.node_facts import NodeFacts
from farbus.model.device import Device, DeviceKind
from farbus.model.metrics import GPU, METRICS, MetricKind
from farbus.model.node import Node

_log = structlog.get_logger()

RETRY_S = 30.0
"""How often an address that somebody else has is tried again."""


class Exporter:
    """Turns what the pipeline knows into families of Prometheus, and serves them."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        facts: NodeFacts,
        node: Callable[[], Node],
        connected: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._facts = facts
        self._node = node
        self._connected = connected
        self._clock = clock

    async def serve(self, address: str) -> None:
        """Serve on ``address`` until cancelled; while another program has it, say so once and try again."""
        endpoint = MetricsEndpoint(self.families)
        told = False
        while True:
            try:
                await endpoint.start(address, field="metrics_listen")
                break
            except Conflict as error:
                if not told:
                    _log.error("metrics are not served", reason=str(error))
                    told = True
                await self._clock.sleep(RETRY_S)
        _log.info("metrics served", address=address)
        try:
            # The server has tasks of its own; this one keeps it until the agent ends.
            while True:
                await self._clock.sleep(RETRY_S)
        finally:
            await endpoint.stop()

    def families(self) -> Iterator[Family]:
        """Return everything that is known now."""
        node = self._node()
        yield Family(
            "farbus_agent_info", "Always 1: who answers.", "gauge", [({"node": node.name, "version": __version__}, 1.0)]
        )
        yield Family(
            "farbus_agent_connected", "Whether there is a session with the scheduler.", "gauge",
            [({}, float(self._connected()))],
        )  # fmt: skip
        # Nobody else asks for these: they are measured when somebody looks.
        own = self._facts.own_use()
        yield Family("process_cpu_seconds_total", "Processor time of the agent.", "counter", [({}, own.cpu_s)])
        yield Family("process_resident_memory_bytes", "Memory of the agent.", "gauge", [({}, own.resident_bytes)])
        yield Family("process_open_fds", "Open descriptors of the agent.", "gauge", [({}, own.open_files)])
        yield from self._collectors()
        devices = {device.id: device for device in node.devices}
        numbers = {
            device.id: str(number)
            for number, device in enumerate(each for each in node.devices if each.kind is DeviceKind.GPU)
        }
        samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for each, value in self._pipeline.values().items():
            metric = METRICS[each.metric]
            labels = dict(zip(metric.labels, each.labels, strict=True))
            if metric.labels[:1] == GPU:
                labels = _gpu_labels(node, devices.get(each.labels[0]), numbers.get(each.labels[0], "")) | labels
            samples[each.metric].append((labels, value * metric.scale))
        for name, found in samples.items():
            metric = METRICS[name]
            kind = "counter" if metric.kind is MetricKind.COUNTER else "gauge"
            yield Family(metric.exported, metric.help, kind, found)

    def _collectors(self) -> Iterator[Family]:
        now = self._clock.monotonic()
        reports = self._pipeline.reports()
        for name, text, kind, figure in (
            ("success", "Whether its last sample was good.", "gauge", lambda r: float(not r.reason)),
            ("failures_total", "Samples that failed or took too long.", "counter", lambda r: float(r.failures)),
            ("duration_seconds", "Time that its last sample took.", "gauge", lambda r: r.took_s),
            ("left_out_series", "Series above the limit for one collector.", "gauge", lambda r: float(r.left_out)),
        ):
            samples = [({"collector": report.name}, figure(report)) for report in reports]
            yield Family(f"farbus_collector_{name}", text, kind, samples)
        yield Family(
            "farbus_collector_age_seconds", "Time since its last good sample.", "gauge",
            [
                ({"collector": report.name}, now - report.measured_at)
                for report in reports
                if report.measured_at is not None
            ],
        )  # fmt: skip


def _gpu_labels(node: Node, device: Device | None, number: str) -> dict[str, str]:
    """Return the labels by which dashboards for dcgm-exporter know a GPU."""
    return {
        "gpu": number,
        "modelName": device.model if device else "",
        "Hostname": node.name,
        "pci_bus_id": device.pci_address if device else "",
        "software": str(bool(device and device.software)).lower(),
    }
