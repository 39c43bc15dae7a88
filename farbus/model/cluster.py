"""Values about the cluster as a whole, and what streams to people."""

from __future__ import annotations

from collections.abc import Sequence

from farbus.model.job import JobStatus
from farbus.model.value import Value


class ClusterInfo(Value, frozen=True, kw_only=True):
    """One line about a cluster.

    ``node``, ``agent_version`` and ``scheduler_error`` are set by an agent's
    socket; the last says why the scheduler can't be reached, if it can't.
    """

    scheduler_version: str = ""
    term: int = 0
    lease_ttl_s: float = 0.0
    nodes: int = 0
    jobs_queued: int = 0
    jobs_running: int = 0
    node: str = ""
    agent_version: str = ""
    scheduler_error: str = ""


class LinkLoad(Value, frozen=True, kw_only=True):
    """How loaded a node's link is: bytes a second, smoothed exponentially.

    ``speed_bytes_per_s`` is 0 where nobody knows it; ``measured_at`` is in
    monotonic seconds of whoever keeps it.
    """

    name: str
    speed_bytes_per_s: float = 0.0
    receive_bytes_per_s: float = 0.0
    send_bytes_per_s: float = 0.0
    measured_at: float = 0.0

    @property
    def load(self) -> float:
        """The busier direction's share of the speed, from 0 to 1; 0 where the speed is not known."""
        if self.speed_bytes_per_s <= 0:
            return 0.0
        return min(1.0, max(self.receive_bytes_per_s, self.send_bytes_per_s) / self.speed_bytes_per_s)


LOAD_MEMORY_S = 30.0
"""A load that was measured longer ago says nothing of now: ten heartbeats."""


def network_load(links: Sequence[LinkLoad], now: float) -> float:
    """Return the load of a node's busiest link; 0 where none was measured in the last :data:`LOAD_MEMORY_S`."""
    return max((link.load for link in links if now - link.measured_at <= LOAD_MEMORY_S), default=0.0)


class LogChunk(Value, frozen=True, kw_only=True):
    """Part of a task's output; ``stream`` is 1 for standard output, 2 for standard error.

    ``position`` is where what follows it begins, for who reads on later; 0
    where that is not known.  Where several tasks are read, ``task`` says whose it is.
    """

    data: bytes
    stream: int = 1
    position: int = 0
    task: str = ""


class HoldWaiting(Value, frozen=True, kw_only=True):
    """The request for devices waits; the status says why."""

    status: JobStatus


class HoldReady(Value, frozen=True, kw_only=True):
    """The devices are there; the program's environment needs these variables."""

    status: JobStatus
    environment: dict[str, str]


class HoldLost(Value, frozen=True, kw_only=True):
    """The devices are gone."""

    reason: str


HoldEvent = HoldWaiting | HoldReady | HoldLost
