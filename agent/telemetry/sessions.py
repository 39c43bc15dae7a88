"""Remoting: what the programs that use this node's devices do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from farbus.agent.telemetry.gpu import ProcessMemory
from farbus.agent.telemetry.pipeline import PERIOD_S
from farbus.errors import FarbusError, NotFound
from farbus.linux.clock import Clock
from farbus.linux.process_states import ProcessStates
from farbus.linux.shared_memory import SharedMemory
from farbus.model.lease import Lease
from farbus.model.metrics import Series, Values, series
from farbus.remoting import status

_log = structlog.get_logger()

MAX_LEASES = 256
MAX_SESSIONS = 256
"""Leases and sessions of one node that have series of their own; sessions beyond are in their lease's figures only."""

WAITING_SHOWN_S = 5.0
"""Calls that are in work for less are no news: the scheduler is not told."""

WAITING_SAID_S = 60.0
"""For so long a server may have calls in work, and finish or take none, before the log says so: most kernels and copies
take less, so that nearly always it hangs."""

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


@dataclass
class _Wait:
    """A server that has calls in work: how many it has taken, and when (monotonic) that was first seen."""

    calls: int
    since: float
    said: bool = False
    """Whether the log has it."""


class SessionCollector:
    """Reads what servers count in the memory that they share with their supervisor."""

    name = "remoting"
    period_s = PERIOD_S
    deadline_s = 5.0

    def __init__(
        self, *, served: Served, shared: SharedMemory, states: ProcessStates, memory: ProcessMemory, clock: Clock
    ) -> None:
        self._served = served
        self._shared = shared
        self._states = states
        self._memory = memory
        self._clock = clock
        self._waits: dict[tuple[str, int], _Wait] = {}
        """By lease and server's process: those that were in work at the last sample."""
        self._stopped: set[tuple[str, int]] = set()
        """Likewise: those that somebody had stopped."""

    async def sample(self) -> Values:
        """Read the status of each lease's supervisor; one that can't be read fails the sample if all do."""
        found: dict[Series, float] = {}
        troubles: list[FarbusError] = []
        sessions = 0
        waits, self._waits = self._waits, {}
        stopped, self._stopped = self._stopped, set()
        living: set[tuple[str, int]] = set()
        served = self._served()[:MAX_LEASES]
        for lease, pid in served:
            identity = lease.id
            info = (identity, lease.job, lease.task, lease.user, lease.client_node, lease.route.value)
            found[series("lease_info", *info)] = 1.0
            try:
                told = status.read(
                    partial(self._shared.read, pid, status.MEMORY_NAME, limit_bytes=status.LIMIT_BYTES),
                    now_ns=self._now_ns,
                )
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
                living.add((identity, session.server_pid))
                labels = (identity, str(session.server_pid), str(session.client_pid), session.program)
                found |= _account("session", labels, session)
                if self._states.is_stopped(session.server_pid):
                    found[series("session_stopped", *labels)] = 1.0
                    self._note_stopped(lease, session, said=(identity, session.server_pid) in stopped)
                else:
                    waiting_s = self._waiting_s(lease, session, waits.get((identity, session.server_pid)))
                    if waiting_s >= WAITING_SHOWN_S:
                        found[series("session_waiting_seconds", *labels)] = waiting_s
                if session.transport:
                    found[series("transport_of_session", *labels, session.transport)] = 1.0
                if session.uncopied_bytes:
                    found[series("session_uncopied_bytes_total", *labels)] = float(session.uncopied_bytes)
                memory = self._memory.of(session.server_pid)
                if memory is not None:
                    found[series("session_memory_bytes", *labels)] = float(memory)
        for (identity, pid), wait in waits.items():
            whose = (identity, pid)
            if wait.said and whose in living - self._stopped and self._waits.get(whose) is not wait:
                _log.info("server has come back", lease=identity, pid=pid)
        for identity, pid in sorted((stopped - self._stopped) & living):
            _log.info("server goes on", lease=identity, pid=pid)
        if troubles and len(troubles) == len(served):
            raise troubles[0]
        return found

    def _now_ns(self) -> int:
        return int(self._clock.monotonic() * 1e9)

    def _note_stopped(self, lease: Lease, session: status.Session, *, said: bool) -> None:
        """Remember a server that somebody has stopped, and say so, once.

        What it has in work counts as waiting from when it goes on: until then it can't come back.
        """
        self._stopped.add((lease.id, session.server_pid))
        if not said:
            _log.warning(
                "server is stopped (SIGSTOP), and its program stands; kill -CONT of its pid lets both go on",
                lease=lease.id,
                pid=session.server_pid,
                **_whose(lease, session),
            )

    def _waiting_s(self, lease: Lease, session: status.Session, before: _Wait | None) -> float:
        """Return for how long a server has had calls in work without finishing or taking any; say so, once.

        Its work without a pause may be that of many calls: those it counts as it takes them.
        """
        if not session.working_ns:
            return 0.0
        now = self._clock.monotonic()
        wait = before if before is not None and before.calls == session.calls else _Wait(session.calls, now)
        self._waits[lease.id, session.server_pid] = wait
        waiting_s = min(now - wait.since, session.working_ns / 1e9)
        if waiting_s >= WAITING_SAID_S and not wait.said:
            from farbus.remoting.spec import operation_name  # noqa: PLC0415 - long to load, and rarely needed

            wait.said = True
            _log.warning(
                "server has not come back from a call; if it hangs, killing its pid ends the program's session",
                lease=lease.id,
                pid=session.server_pid,
                seconds=round(waiting_s),
                operation=operation_name(session.operation) if session.operation else "unknown",
                **_whose(lease, session),
            )
        return waiting_s


def _whose(lease: Lease, session: status.Session) -> dict[str, str | int]:
    return {
        "program": session.program,
        "client_node": lease.client_node,
        "client_pid": session.client_pid,
        "job": lease.job,
    }


def _account(noun: str, labels: tuple[str, ...], *accounts: _Account) -> dict[Series, float]:
    return {
        Series(f"{noun}_calls_total", labels): float(sum(one.calls for one in accounts)),
        Series(f"{noun}_receive_bytes_total", labels): float(sum(one.received_bytes for one in accounts)),
        Series(f"{noun}_send_bytes_total", labels): float(sum(one.sent_bytes for one in accounts)),
        Series(f"{noun}_busy_seconds_total", labels): sum(one.busy_ns for one in accounts) / 1e9,
    }
