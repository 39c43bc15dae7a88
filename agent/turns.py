"""Turns: one at a time for each name, and nothing kept of a name that nobody uses."""

from __future__ import annotations

import asyncio
import weakref


class Turns:
    """Locks by name, each for as long as somebody has it or waits for it.

    Most names are made of leases, and an agent that runs for months sees millions of them.
    """

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._locks)

    def of(self, name: str) -> asyncio.Lock:
        """Return the lock of a name; whoever keeps it keeps it for all."""
        return self._locks.setdefault(name, asyncio.Lock())
