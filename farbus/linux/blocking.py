"""Calls that may hang in the kernel: each made in a thread that can be left behind."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from farbus.errors import Unavailable

R = TypeVar("R")

Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
Calls = SimpleQueue[Call | None]
"""What a thread is to call; None ends it."""


class BlockingCaller:
    """Makes one call at a time in a thread of its own, made on the first call.

    A caller that is cancelled leaves the call behind; until it returns, further
    calls are refused, so that a kernel that hangs costs one thread and no more.
    The thread keeps no process from ending, and ends once nobody has its caller
    any more.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._calls: Calls = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = threading.Event()

    async def call(self, function: Callable[[], R]) -> R:
        """Return what ``function`` returns, or raise what it raises.

        Raises :class:`Unavailable` while an earlier call that was left behind hangs.
        """
        if self._busy.is_set():
            raise Unavailable(f"{self._what}: the call before still hangs", hint="see dmesg")
        if self._thread is None:
            serving = (self._calls, self._busy)
            self._thread = threading.Thread(target=_serve, args=serving, name=self._what, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._calls.put, None).atexit = False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._busy.set()
        self._calls.put((function, loop, future))
        return await future


def _serve(calls: Calls, busy: threading.Event) -> None:
    """Make calls until there is None; knows nothing of the caller, so that it can be collected."""
    while (call := calls.get()) is not None:
        function, loop, future = call
        result, error = None, None
        try:
            result = function()
        except Exception as problem:
            error = problem
        busy.clear()
        try:
            loop.call_soon_threadsafe(_settle, future, result, error)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits any more.
            pass
        # An idle thread must not keep what it last saw alive.
        del call, function, loop, future, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
