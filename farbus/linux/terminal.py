"""The door to the terminal's keyboard: keys as they are pressed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
import tty
from collections.abc import AsyncIterator

MAX_KEYS = 64
"""Keys that wait to be looked at; what is typed beyond, somebody leaned on the keyboard."""


class Keys:
    """What is pressed."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue(MAX_KEYS)

    def put(self, key: str) -> None:
        """Note a key."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(key)

    async def next(self, wait_s: float) -> str | None:
        """Return the next key; an empty string when the window changed; None when ``wait_s`` have passed."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._queue.get()
        except TimeoutError:
            return None


@contextlib.asynccontextmanager
async def keys(descriptor: int) -> AsyncIterator[Keys]:
    """Give keys as they are pressed on a terminal, unseen, for the block; Ctrl-C still interrupts.

    Also SIGTERM and SIGHUP end the block, by cancelling its task, so that the
    terminal is as it was whatever ends the program.  The end of the terminal's
    input counts as ``q``.
    """
    loop = asyncio.get_running_loop()
    pressed = Keys()
    task = asyncio.current_task()
    assert task is not None

    def read() -> None:
        try:
            data = os.read(descriptor, 1024)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(descriptor)
            pressed.put("q")
        elif not data.startswith(b"\x1b"):
            # Arrows and the like are sequences that begin with ESC.
            for key in data.decode(errors="ignore"):
                pressed.put(key)

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    loop.add_signal_handler(signal.SIGWINCH, pressed.put, "")
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
            loop.remove_signal_handler(number)
        with contextlib.suppress(termios.error):  # the terminal itself is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
