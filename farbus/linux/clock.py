"""The clock door: monotonic time for deadlines, wall time for people."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences mean something."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch (UTC)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of monotonic time; at once for zero or less."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return CLOCK_MONOTONIC, which stands still in suspend like the kernel's own timers."""
        return time.monotonic()

    def wall(self) -> float:
        """Return CLOCK_REALTIME."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(max(0.0, seconds))


class FakeClock:
    """A clock that moves only when told to, for tests and the simulator."""

    def __init__(self, *, monotonic: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._now = monotonic
        self._wall_ahead = wall - monotonic
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._cancelled = 0

    def monotonic(self) -> float:
        """Return the time that :meth:`advance` has reached."""
        return self._now

    def wall(self) -> float:
        """Return the wall time, which advances with the monotonic one."""
        return self._now + self._wall_ahead

    @property
    def sleepers(self) -> int:
        """How many sleeps are pending."""
        return sum(1 for _, _, future in self._sleepers if not future.done())

    async def sleep(self, seconds: float) -> None:
        """Wait until :meth:`advance` has moved the time by ``seconds``."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        try:
            await future
        except asyncio.CancelledError:
            self._drop_cancelled()
            raise

    def _drop_cancelled(self) -> None:
        """Let sleeps go whose sleeper has gone, once they are the most of those that are kept."""
        self._cancelled += 1
        if 2 * self._cancelled > len(self._sleepers):
            self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[2].done()]
            heapq.heapify(self._sleepers)
            self._cancelled = 0

    def jump_wall(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or NTP may."""
        self._wall_ahead += seconds

    async def advance(self, seconds: float) -> None:
        """Move time forward, waking sleepers in their order and letting each run."""
        until = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            wake_at, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, wake_at)
            if not future.done():
                future.set_result(None)
            await asyncio.sleep(0)
        self._now = until
        await asyncio.sleep(0)
