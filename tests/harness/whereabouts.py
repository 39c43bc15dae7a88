"""Where this process stands, for a test that has waited in vain: what every task and every thread is at."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback

DEEPEST = 12  # entries of each stack


def whereabouts() -> str:
    """Tell the stacks of all tasks of the running loop, and of all threads."""
    told = io.StringIO()
    for task in asyncio.all_tasks():
        try:
            task.print_stack(limit=DEEPEST, file=told)
        except TypeError:
            # gRPC's coroutines are compiled: their frames have no line.
            told.write(f"{task!r}\n")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        told.write(f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame, limit=DEEPEST))}")
    return told.getvalue()
