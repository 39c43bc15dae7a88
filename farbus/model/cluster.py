"""Values about the cluster as a whole, and what streams to people."""

from __future__ import annotations

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


class LogChunk(Value, frozen=True, kw_only=True):
    """Part of a task's output; ``stream`` is 1 for standard output, 2 for standard error.

    ``position`` is where what follows it begins, for who reads on later; 0
    where that is not known.
    """

    data: bytes
    stream: int = 1
    position: int = 0


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
