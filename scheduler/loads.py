"""How loaded the links were that a run used, from its start to its end.  Pure.

Of each node one running sum is kept, of its load times seconds; a run notes
the sums as they are when it begins, and the difference at its end is its mean.
So a heartbeat costs the same however many runs there are.
"""

from __future__ import annotations

from collections.abc import Collection

from farbus.model.cluster import LOAD_MEMORY_S


class _Sum:
    """What is known of one node; a load holds until the next, or nobody can know any more."""

    __slots__ = ("_at", "_load", "_seconds")

    def __init__(self) -> None:
        self._at = self._load = self._seconds = 0.0

    def at(self, now: float) -> float:
        """Return the sum of load times seconds."""
        return self._seconds + self._load * min(max(now - self._at, 0.0), LOAD_MEMORY_S)

    def note(self, load: float, now: float) -> None:
        """Take in the load from now on."""
        self._seconds = self.at(now)
        self._at, self._load = now, load


class RunLoads:
    """Mean loads of the links at both ends of runs' remote devices."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._runs: dict[str, tuple[float, dict[str, float]]] = {}

    def note(self, node: str, load: float, now: float) -> None:
        """Take in how loaded the busiest link of ``node`` is, from 0 to 1, at monotonic ``now``."""
        found = self._sums.get(node)
        if found is None:
            found = self._sums[node] = _Sum()
        found.note(load, now)

    def begin(self, job_id: str, ends: Collection[str], now: float) -> None:
        """Note that a job begins to run which uses the links of nodes ``ends``."""
        if ends:
            self._runs[job_id] = now, {name: self._sum(name, now) for name in ends}

    def end(self, job_id: str, now: float) -> float:
        """Forget a job; return the mean load of its busiest end since it began, 0 for one that used no links."""
        since, sums = self._runs.pop(job_id, (now, {}))
        if now <= since:
            return 0.0
        return max((min(1.0, (self._sum(name, now) - before) / (now - since)) for name, before in sums.items()))

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        self._sums.pop(node, None)

    def _sum(self, name: str, now: float) -> float:
        found = self._sums.get(name)
        return found.at(now) if found is not None else 0.0
