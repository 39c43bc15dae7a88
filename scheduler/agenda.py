"""The agenda: what is to be looked at when, in monotonic seconds.  Pure."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator


class Look(enum.Enum):
    """What is looked at."""

    NODE = "node"
    """Whether a node is gone."""
    LEASE = "lease"
    """Whether a lease has expired."""
    LIMIT = "limit"
    """Whether a job has used its time."""
    STEP = "step"
    """Whether a step may be tried again, or its deadline has passed."""
    JOB = "job"
    """Whether a job may be placed again."""
    LOAD = "load"
    """Whether the network's load has fallen so far that jobs which it held back are worth a look."""
    ROOM = "room"
    """Whether room that is kept for a job was free in time."""
    RIPE = "ripe"
    """Whether a job has run so long that it may be preempted."""
    WAITS = "waits"
    """What the ledger does not know yet of how long jobs have waited."""


class Agenda:
    """Entries are never taken back: who looks sees whether there is still a reason."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Look, str]] = []
        self._count = 0
        self._watched: dict[tuple[Look, str], float] = {}
        """When what is watched is looked at next."""

    def add(self, when: float, look: Look, key: str) -> None:
        """Have ``key`` looked at from ``when`` on."""
        self._count += 1
        heapq.heappush(self._entries, (when, self._count, look, key))

    def watch(self, when: float, look: Look, key: str) -> None:
        """Have ``key`` looked at once, by ``when`` at the latest; who looks says when the next look is due.

        An earlier look that is coming will see to it.  A later one is replaced.
        """
        coming = self._watched.get((look, key))
        if coming is None or when < coming:
            self._watched[look, key] = when
            self.add(when, look, key)

    def next_due(self) -> float | None:
        """Return when the first look is due, None when none is."""
        return self._entries[0][0] if self._entries else None

    def take_due(self, now: float) -> Iterator[tuple[Look, str]]:
        """Yield and remove what is due, also what is added meanwhile."""
        while self._entries and self._entries[0][0] <= now:
            when, _, look, key = heapq.heappop(self._entries)
            watched = self._watched.get((look, key))
            if watched is not None:
                if watched != when:
                    # Replaced by an earlier look, which has said when the next one is due.
                    continue
                del self._watched[look, key]
            yield look, key
