"""How fast a drive reads: a short look at the drive itself, past all caches."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from farbus.errors import Unavailable
from farbus.linux.disposable import run_disposable

MEASURED_S = 0.5
"""Long enough for drives to come out of their sleep, short enough for who uses them meanwhile."""

REQUEST_BYTES = 1 << 20
REQUESTS = 8
"""At a time: one after the other keeps no NVMe drive busy."""


class DriveSpeed(Protocol):
    """Measures drives."""

    async def read_bytes_per_s(self, path: str) -> int:
        """Return how many bytes a second are read from the beginning of a block device on.

        Raises :class:`Unavailable` where nothing can be read.
        """
        ...


class DirectReads:
    """Reads with O_DIRECT, in a child: a drive that does not answer holds that up alone."""

    async def read_bytes_per_s(self, path: str) -> int:
        """Read for half a second."""
        try:
            return int(await run_disposable(read_speed, path, MEASURED_S))
        except OSError as error:
            raise Unavailable(f"measure {path}: {error.strerror}", hint="see dmesg") from error


def read_speed(path: str, seconds: float) -> int:
    """Return the bytes a second that a device gives, several requests at a time."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        stripe = size // REQUESTS // REQUEST_BYTES * REQUEST_BYTES
        if not stripe:
            return 0
        begun = time.monotonic()
        until = begun + seconds

        def read(at: int) -> int:
            # An anonymous map begins at a page, as O_DIRECT wants it.
            buffer, done = mmap.mmap(-1, REQUEST_BYTES), 0
            while time.monotonic() < until:
                done += os.preadv(descriptor, [buffer], at + done % stripe)
            return done

        with ThreadPoolExecutor(REQUESTS) as pool:
            total = sum(pool.map(read, range(0, stripe * REQUESTS, stripe)))
        return int(total / (time.monotonic() - begun))
    finally:
        os.close(descriptor)


class FakeDriveSpeed:
    """Speeds that a test sets, by path; ``asked`` is which were measured."""

    def __init__(self, speeds: Mapping[str, int] | None = None, *, other: int = 1_000_000_000) -> None:
        self.speeds = dict(speeds or {})
        self.other = other
        self.asked: list[str] = []

    async def read_bytes_per_s(self, path: str) -> int:
        """Return what is set; 0 stands for a drive that can't be read."""
        self.asked.append(path)
        speed = self.speeds.get(path, self.other)
        if not speed:
            raise Unavailable(f"measure {path}: Input/output error", hint="see dmesg")
        return speed
