"""Where this process stands, for a test that has waited in vain: what every task and every thread is at."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from typing import Any

DEEPEST = 12  # entries of each stack


def whereabouts() -> str:
    """Tell the stacks of all tasks of the running loop, and of all threads."""
    told = io.StringIO()
    for task in asyncio.all_tasks():
        told.write(f"{whereabouts_of(task)}\n")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        told.write(f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame, limit=DEEPEST))}")
    return told.getvalue()


def whereabouts_of(task: asyncio.Task[Any]) -> str:
    """Return where a task waits, the innermost frame last."""
    lines = [f"{task.get_name()}:"]
    at: object = task.get_coro()
    while at is not None:
        kind = {"cr_frame": "cr_await", "gi_frame": "gi_yieldfrom", "ag_frame": "ag_await"}
        frame = next((getattr(at, name) for name in kind if hasattr(at, name)), None)
        if frame is not None:
            lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        at = next((getattr(at, name) for name in kind.values() if hasattr(at, name)), None)
    return "\n".join(lines)
