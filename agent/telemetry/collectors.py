"""The table of collectors: whoever measures something else adds a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from farbus.agent.inventory import GpuSource
from farbus.agent.telemetry.gpu import GpuCollector, ProcessMemory
from farbus.agent.telemetry.host import HostCollector
from farbus.agent.telemetry.network import NetworkCollector
from farbus.agent.telemetry.pipeline import Collector
from farbus.agent.telemetry.sessions import Served, SessionCollector
from farbus.agent.telemetry.storage import StorageCollector
from farbus.linux.clock import Clock
from farbus.linux.node_facts import NodeFacts
from farbus.linux.process_states import ProcessStates
from farbus.linux.shared_memory import SharedMemory


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What collectors measure through."""

    facts: NodeFacts
    gpus: Sequence[GpuSource]
    served: Served
    shared: SharedMemory
    states: ProcessStates
    memory: ProcessMemory
    clock: Clock
    storage: StorageCollector | None = None


def _gpu_collectors(sources: Sources) -> Iterable[Collector]:
    for source in sources.gpus:
        name = "software gpu" if source.software else "gpu"
        yield GpuCollector(name=name, nvml=source.nvml, memory=sources.memory)


COLLECTORS: tuple[Callable[[Sources], Iterable[Collector]], ...] = (
    lambda sources: [HostCollector(facts=sources.facts)],
    lambda sources: [NetworkCollector(facts=sources.facts)],
    _gpu_collectors,
    lambda sources: [
        SessionCollector(
            served=sources.served,
            shared=sources.shared,
            states=sources.states,
            memory=sources.memory,
            clock=sources.clock,
        )
    ],
    lambda sources: [sources.storage] if sources.storage is not None else [],
)
"""What makes each part's collectors."""


def make_collectors(sources: Sources) -> tuple[Collector, ...]:
    """Return all collectors of a node."""
    return tuple(collector for make in COLLECTORS for collector in make(sources))
