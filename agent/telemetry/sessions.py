"""Remoting: what the programs that use this node's devices do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from farbus.agent.telemetry.gpu import ProcessMemory
from farbus.agent.telemetry.pipeline import PERIOD_S
from farbus.errors import FarbusError, NotFound
from farbus.linux.shared_memory import SharedMemory
from farbus.model.lease import Lease
from farbus.model.metrics import Series, Values, series
from farbus.remoting import status

MAX_LEASES = 256
MAX_SESSIONS = 256
"""Leases and sessions of one node that have series of their own; sessions beyond are in their lease's figures only."""

Served = Callable[[], Sequence[tuple[Lease, int]]]
"""The leases that are served now, with the process id of each one's supervisor."""


class _Account(Protocol):
    """What is counted of a session, and of all that a lease has had."""

    @property
    def calls(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def busy_ns(self) -> int: ...


class SessionCollector:
    """Reads what servers count in the memory that they share with their supervisor."""

    name = "remoting"
    period_s = PERIOD_S
    deadline_s = 5.0

    def __init__(self, *, served: Served, shared: SharedMemory, memory: ProcessMemory) -> None:
        self._served = served
        self._shared = shared
        self._memory = memory

    async def sample(self) -> Values:
        """Read the status of each lease's supervisor; one that can't be read fails the sample if all do."""
        found: dict[Series, float] = {}
        troubles: list[FarbusError] = []
        sessions = 0
        served = self._served()[:MAX_LEASES]
        for lease, pid in served:
            identity = lease.id
            info = (identity, lease.job, lease.task, lease.user, lease.client_node, lease.route.value)
            found[series("lease_info", *info)] = 1.0
            try:
                told = status.read(partial(self._shared.read, pid, status.MEMORY_NAME, limit_bytes=status.LIMIT_BYTES))
            except NotFound as error:
                troubles.append(error)
                continue
            except ValueError as error:
                troubles.append(FarbusError(f"lease {identity}: {error}"))
                continue
            found[series("lease_sessions", identity)] = float(len(told.sessions))
            found[series("lease_connections_total", identity)] = float(told.ended.sessions + len(told.sessions))
            found |= _account("lease", (identity,), *told.sessions, told.ended)
            for session in told.sessions[: MAX_SESSIONS - sessions]:
                sessions += 1
                labels = (identity, str(session.server_pid), str(session.client_pid), session.program)
                found |= _account("session", labels, session)
                if session.transport:
                    found[series("transport_of_session", *labels, session.transport)] = 1.0
                memory = self._memory.of(session.server_pid)
                if memory is not None:
                    found[series("session_memory_bytes", *labels)] = float(memory)
        if troubles and len(troubles) == len(served):
            raise troubles[0]
        return found


def _account(noun: str, labels: tuple[str, ...], *accounts: _Account) -> dict[Series, float]:
    return {
        Series(f"{noun}_calls_total", labels): float(sum(one.calls for one in accounts)),
        Series(f"{noun}_receive_bytes_total", labels): float(sum(one.received_bytes for one in accounts)),
        Series(f"{noun}_send_bytes_total", labels): float(sum(one.sent_bytes for one in accounts)),
        Series(f"{noun}_busy_seconds_total", labels): sum(one.busy_ns for one in accounts) / 1e9,
    }
