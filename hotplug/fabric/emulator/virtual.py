"""An event loop whose time is not the machine's: when nothing is left to do, it is the next timer's time.

What would take hours runs in as long as its computing takes, and the same way
every time.  It is for work without files, sockets and threads to wait for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Waits for nothing: a wait of so many seconds moves the time by them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; ``time`` moves by itself."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual.now


class LoopClock:
    """The :class:`farbus.linux.clock.Clock` of the loop that runs: real in a real one, virtual in a virtual one."""

    def monotonic(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        """Return the loop's time, as if it had begun with the epoch."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the loop."""
        await asyncio.sleep(max(0.0, seconds))


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end in a loop of its own with virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
