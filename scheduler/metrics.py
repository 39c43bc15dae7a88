"""What Prometheus reads of the scheduler.  Names: ``farbus_scheduler_...``, units last."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from farbus.errors import Conflict
from farbus.model.states import JobState, LeaseState
from farbus.scheduler.engine import Engine

SCRAPE_TIMEOUT_S = 5.0
"""How long a scrape waits for the event loop."""


class EngineCollector(Collector):
    """Looks at the engine in its own event loop, when Prometheus asks."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        future: concurrent.futures.Future[list[Metric]] = concurrent.futures.Future()

        def look() -> None:
            try:
                future.set_result(metrics_of(self._engine))
            except Exception as error:
                future.set_exception(error)

        self._loop.call_soon_threadsafe(look)
        return future.result(SCRAPE_TIMEOUT_S)


def metrics_of(engine: Engine) -> list[Metric]:
    """Return what can be said of ``engine`` now."""
    machine, counters = engine.machine, engine.counters
    jobs = Counter(record.state for record in machine.jobs.values())
    leases = Counter(record.state for record in machine.leases.values())
    nodes = Counter(
        ("cordoned" if record.cordon else "ready") if record.connected else "lost"
        for record in machine.nodes.values()
        if record.node is not None
    )
    last = counters.last_round
    return [
        _gauge("term", "Number of this start of the scheduler.", machine.term),
        _gauge("queue_jobs", "Jobs that wait.", len(machine.queue)),
        _by_state("jobs", "Jobs that have not ended.", {state: jobs[state] for state in JobState if state in jobs}),
        _by_state("leases", "Leases that are not released.", {state: leases[state] for state in LeaseState}),
        _by_state("nodes", "Nodes.", {state: nodes[state] for state in ("ready", "cordoned", "lost")}),
        _counter("rounds", "Rounds decided.", counters.rounds),
        _counter("rounds_failed", "Rounds that failed.", counters.rounds_failed),
        _counter("placed_jobs", "Jobs placed.", counters.placed),
        _counter("events", "Events taken in.", counters.events),
        _counter("commits", "Transactions of the ledger.", counters.commits),
        _counter("decision_seconds", "Time spent in decisions.", counters.decision_s_total),
        _gauge("last_decision_seconds", "Time of the last decision.", last.decision_ms / 1000 if last else 0.0),
    ]


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"farbus_scheduler_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"farbus_scheduler_{name}", text, value=value)


def _by_state(name: str, text: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"farbus_scheduler_{name}", text, labels=["state"])
    for state, value in values.items():
        family.add_metric([str(state)], value)
    return family


def serve_metrics(engine: Engine, address: str) -> Callable[[], None]:
    """Serve ``/metrics`` on ``ADDRESS:PORT``; return what stops it.  Raises :class:`Conflict`."""
    registry = CollectorRegistry()
    # Registered without a first collection: that would wait for the loop we are in.
    registry.register(_Quiet(EngineCollector(engine, asyncio.get_running_loop())))
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    except OSError as error:
        raise Conflict(
            f"can't serve metrics on {address}: {error.strerror}", hint="choose another --metrics"
        ) from error

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return stop


class _Quiet(Collector):
    def __init__(self, collector: EngineCollector) -> None:
        self._collector = collector

    def collect(self) -> Iterable[Metric]:
        return self._collector.collect()

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, so that registering does not collect."""
        return []
