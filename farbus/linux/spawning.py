"""How processes are started by those who go on meanwhile: all of it goes through here."""

from __future__ import annotations

import asyncio
import os
from typing import Any

SPAWN_DESCRIPTORS = 16
"""Descriptors that have to be free for a start: pipes for three streams, one that tells of a failed exec, and what the
loop opens beside them."""


async def spawn(*command: str | os.PathLike[str], **options: Any) -> asyncio.subprocess.Process:
    """Start a process as :func:`asyncio.create_subprocess_exec` does; raise OSError where it can't be started.

    Where descriptors are short it is not tried: uvloop 0.23 never gives back
    what it has opened until then, and a process that is at its limit for a
    moment would stay there.
    """
    _need_descriptors(SPAWN_DESCRIPTORS)
    return await asyncio.create_subprocess_exec(*command, **options)


def _need_descriptors(count: int) -> None:
    """Raise OSError (EMFILE, ENFILE) where so many can't be opened."""
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for descriptor in opened:
            os.close(descriptor)
