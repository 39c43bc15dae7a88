"""What Prometheus reads of the scheduler.  Names: ``farbus_scheduler_...``, units last."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping

from farbus.api.exposition import Family, MetricsEndpoint
from farbus.model.states import JobState, LeaseState
from farbus.scheduler.engine import Engine

MAX_NODES = 2_000
"""Nodes that have series of their own, by name; of those beyond only the sums are told."""


def metrics_of(engine: Engine, *, now: float) -> Iterable[Family]:
    """Return what can be said of ``engine`` at monotonic time ``now``."""
    machine, counters = engine.machine, engine.counters
    jobs = Counter(record.state for record in machine.jobs.values())
    leases = Counter(record.state for record in machine.leases.values())
    nodes = Counter(
        ("cordoned" if record.cordon or record.trouble else "ready") if record.connected else "lost"
        for record in machine.nodes.values()
        if record.node is not None
    )
    devices = machine.device_states()
    last = counters.last_round
    yield _gauge("term", "Number of this start of the scheduler.", machine.term)
    yield _gauge("queue_jobs", "Jobs that wait.", len(machine.queue))
    yield _by_state("jobs", "Jobs that have not ended.", {state: jobs[state] for state in JobState if state in jobs})
    yield _by_state("leases", "Leases that are not released.", {state: leases[state] for state in LeaseState})
    yield _by_state("nodes", "Nodes.", {state: nodes[state] for state in ("ready", "cordoned", "lost")})
    yield Family(
        "farbus_scheduler_devices", "Devices.", "gauge",
        [({"kind": kind, "state": state}, float(count)) for (kind, state), count in sorted(devices.items())],
    )  # fmt: skip
    volumes = Counter(machine.volume_state(record.volume) for record in machine.volumes.values())
    yield _by_state("volumes", "Volumes that take room.", {state: volumes[state] for state in sorted(volumes)})
    yield _counter("rounds_total", "Rounds decided.", counters.rounds)
    yield _counter("rounds_failed_total", "Rounds that failed.", counters.rounds_failed)
    yield _counter("rounds_overrun_total", "Rounds that took too long.", counters.rounds_overrun)
    yield _counter("preemptions_total", "Plans that ended jobs for one of higher priority.", counters.preemptions)
    yield _counter(
        "defragmentations_total", "Plans that moved jobs by the scheduler's own wish.", counters.defragmentations
    )
    yield _counter("considered_jobs_total", "Jobs that rounds looked at, each time.", counters.considered)
    yield _counter("placed_jobs_total", "Jobs placed.", counters.placed)
    yield _counter("events_total", "Events taken in.", counters.events)
    yield _counter("commits_total", "Transactions of the ledger.", counters.commits)
    yield _counter("decision_seconds_total", "Time spent in decisions.", counters.decision_s_total)
    yield _gauge("last_decision_seconds", "Time of the last decision.", last.decision_ms / 1000 if last else 0.0)
    yield _counter("solves_total", "Flow networks solved.", counters.solves)
    yield _counter("certified_solves_total", "Solves that were proved to be of least cost.", counters.certified_solves)
    yield _counter(
        "certify_seconds_total", "Time spent in proofs, a part of that in decisions.", counters.certify_s_total
    )
    yield _counter(
        "inexact_rounds_total", "Rounds in which pruning of arcs was not proved to cost nothing.", counters.inexact
    )
    if last is not None and last.gap is not None:
        gap = last.gap
        yield _gauge("last_round_score", "Cost of the last plan, waiting jobs included.", gap.score / 1000)
        yield _gauge("last_round_bound", "What no plan of the last round could have cost less than.", gap.bound / 1000)
        yield _gauge("last_round_gap_ratio", "Score less bound, as a part of the score.", gap.relative)
        yield _gauge("last_round_priced", "1 if the last plan is the one made with prices.", gap.priced)
    yield from _nodes(engine, now)


def _nodes(engine: Engine, now: float) -> Iterable[Family]:
    silent, up, stale, loads = [], [], [], []
    for name, record in sorted(engine.machine.nodes.items())[:MAX_NODES]:
        if record.node is None:
            continue
        labels = {"node": name}
        up.append((labels, float(record.connected)))
        silent.append((labels, max(0.0, now - record.seen)))
        if not record.connected:
            continue
        stale += [({"node": name, "collector": collector}, 1.0) for collector in record.figures.stale]
        for link in record.figures.links:
            for direction, rate in (("receive", link.receive_bytes_per_s), ("transmit", link.send_bytes_per_s)):
                loads.append(({"node": name, "device": link.name, "direction": direction}, rate))
    yield Family("farbus_scheduler_node_up", "Whether the node has a session.", "gauge", up)
    yield Family("farbus_scheduler_node_silent_seconds", "Time since the node was last heard.", "gauge", silent)
    yield Family("farbus_scheduler_node_stale_collector", "1 for each collector whose figures are old.", "gauge", stale)
    yield Family(
        "farbus_scheduler_link_load_bytes_per_second",
        "Smoothed bytes a second over a node's link, as policies see them.",
        "gauge",
        loads,
    )


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(f"farbus_scheduler_{name}", text, "gauge", [({}, float(value))])


def _counter(name: str, text: str, value: float) -> Family:
    return Family(f"farbus_scheduler_{name}", text, "counter", [({}, float(value))])


def _by_state(name: str, text: str, values: Mapping[str, int]) -> Family:
    samples = [({"state": str(state)}, float(value)) for state, value in values.items()]
    return Family(f"farbus_scheduler_{name}", text, "gauge", samples)


async def serve_metrics(engine: Engine, address: str) -> MetricsEndpoint:
    """Serve ``/metrics`` on ``ADDRESS:PORT``.  Raises :class:`farbus.errors.Conflict` where it can't be had."""
    loop = asyncio.get_running_loop()
    endpoint = MetricsEndpoint(lambda: metrics_of(engine, now=loop.time()))
    await endpoint.start(address, field="--metrics")
    return endpoint
