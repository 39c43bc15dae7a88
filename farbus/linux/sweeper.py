"""The end of what dead keepers have left, without the agent waiting for the kernel.

To find it, the memory of all processes is read (:mod:`farbus.linux.remnants`),
which may hang; so that is done in a process that can be left behind
(:mod:`farbus.linux.disposable`), for all programs at once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from farbus.errors import FarbusError
from farbus.linux.disposable import run_disposable
from farbus.linux.remnants import KILL_INTERVAL_S, kill_each_once

_log = structlog.get_logger()

LONGEST_INTERVAL_S = 5.0
"""Between two sweeps for what does not die: each costs some 150 ms of processor time."""

ANSWER_TIMEOUT_S = 10.0
"""Longest for a sweep; one that takes longer hangs."""


class Sweeper:
    """Kills what is left of programs, again and again, until nothing is."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], tuple[str, str]] = {}
        """Who waits, and for the end of what: a directory and a mark."""
        self._sweeping: asyncio.Task[None] | None = None

    async def sweep(self, directory: Path, mark: str) -> None:
        """Return once nothing is left of a program; where that can't be told, something is."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[gone] = (str(directory), mark)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep(), name="sweep after dead keepers")
        try:
            await gone
        finally:
            self._waiting.pop(gone, None)

    async def _sweep(self) -> None:
        interval_s = KILL_INTERVAL_S
        programs = 0
        while self._waiting:
            if len(self._waiting) > programs:
                # Who comes now is not to wait for what is stuck.
                interval_s = KILL_INTERVAL_S
            programs = len(self._waiting)
            waiting = list(self._waiting.items())
            left = await self._kill([program for _, program in waiting])
            for (gone, _), pids in zip(waiting, left, strict=True):
                if not pids and not gone.done():
                    gone.set_result(None)
                    del self._waiting[gone]
            if self._waiting:
                await asyncio.sleep(interval_s)
                # A process in uninterruptible sleep takes its signal when it wakes.
                interval_s = min(2 * interval_s, LONGEST_INTERVAL_S)

    async def _kill(self, programs: list[tuple[str, str]]) -> list[list[int]]:
        """Sweep once; return what was there of each program, 0 for what is not known."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                left: list[list[int]] = await run_disposable(kill_each_once, programs)
        except (TimeoutError, FarbusError, OSError) as error:
            why = str(error) or f"no answer in {ANSWER_TIMEOUT_S:g} s: a process hangs in the kernel, see dmesg"
            _log.error("what dead keepers left can't be looked for", error=why)
            return [[0] for _ in programs]
        return left

    def close(self) -> None:
        """Sweep no more."""
        if self._sweeping is not None:
            self._sweeping.cancel()
