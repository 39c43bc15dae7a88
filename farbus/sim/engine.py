"""Discrete events in virtual time.

What happens at one instant happens in the order of its phases, within a phase
in the order in which it was asked for; when all of it has happened, the world
settles: whoever decides, decides once per instant.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple


class _Entry(NamedTuple):
    at: float
    phase: int
    number: int
    action: Callable[[], None]


class Engine:
    """A virtual clock, and what is to happen at which time on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = itertools.count()
        self._entries: list[_Entry] = []

    def at(self, time: float, action: Callable[[], None], *, phase: int = 0) -> None:
        """Do ``action`` at ``time``, which must not have passed; lower phases of an instant come first."""
        if time < self.now:
            raise ValueError(f"{time} is before the present, {self.now}")
        heapq.heappush(self._entries, _Entry(time, phase, next(self._numbers), action))

    @property
    def next_at(self) -> float | None:
        """Return when something happens next; None when nothing will."""
        return self._entries[0].at if self._entries else None

    def run(self, settle: Callable[[], None]) -> None:
        """Let all happen, instant by instant, with ``settle`` after each, until nothing is left to happen."""
        while self._entries:
            self.now = self._entries[0].at
            while self._entries and self._entries[0].at == self.now:
                heapq.heappop(self._entries).action()
            settle()
