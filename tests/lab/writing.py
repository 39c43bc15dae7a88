"""A program in a guest that writes a block device without a cache, reads back, and knows what it was told is written.

Each block says who wrote it, as which, and has a checksum, so that :func:`check` finds a block that was lost, torn, put
elsewhere or written by another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.lab.guest import Guest, Running, patient

LIMIT_S = patient(400)
"""For a writer from its start to its end, with the network cut or a node without power in between."""

PLACES = 2048
"""Blocks of 4 KiB that it goes round on: 8 MiB."""

PROGRAM = f"""
import hashlib, json, mmap, os, sys, time

def content(who, number):
    head = f"{{who}} {{number:016}} ".encode()
    return (hashlib.sha256(head).digest() + head).ljust(4096, b".")

def write(path, who, stop, count):
    device = os.open(path, os.O_RDWR | os.O_DIRECT)
    block, back = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)
    done, longest, error = 0, 0.0, ""
    try:
        while done < count or not os.path.exists(stop):
            began = time.monotonic()
            block[:] = content(who, done)
            place = done % {PLACES} * 4096
            assert os.pwritev(device, [block], place) == 4096
            assert os.preadv(device, [back], place) == 4096
            assert back[:] == block[:], f"block {{done}} came back as another"
            longest = max(longest, time.monotonic() - began)
            done += 1
            if done == count: open(stop + ".under-way", "w").close()
    except OSError as failed:
        error = os.strerror(failed.errno)
    print(json.dumps({{"written": done, "longest_s": round(longest, 1), "error": error}}))

def check(path, who, written):
    device = os.open(path, os.O_RDONLY | os.O_DIRECT)
    block = mmap.mmap(-1, 4096)
    wrong = []
    for place in range(min(written, {PLACES})):
        os.preadv(device, [block], place * 4096)
        last = place + (written - 1 - place) // {PLACES} * {PLACES}
        # The one that was under way when it ended may be there, or not.
        may_be = [last] + [written] * (place == written % {PLACES})
        if block[:] not in [content(who, number) for number in may_be]:
            wrong.append(place)
    print(json.dumps(wrong))

if sys.argv[1] == "write": write(*sys.argv[2:5], int(sys.argv[5]))
else: check(*sys.argv[2:4], int(sys.argv[4]))
"""


class Writer:
    """One that has begun, so that writes are in flight from now on; it goes on until :meth:`stop`, or an error."""

    def __init__(self, guest: Guest, path: str, who: str = "writer", *, count: int = 20) -> None:
        self._guest, self.path, self.who = guest, path, who
        self._stop = Path("/run", f"{who}.stop")
        guest.shell(f"rm -f {self._stop}*")
        self.running: Running = guest.start(
            "python3", "-c", PROGRAM, "write", path, who, str(self._stop), str(count), limit_s=LIMIT_S
        )
        guest.until(f"test -e {self._stop}.under-way", limit_s=LIMIT_S)

    def stop(self) -> dict[str, Any]:
        """Let it end; return what it says: ``written`` blocks, ``longest_s`` that one took, and ``error``."""
        self._guest.shell(f"touch {self._stop}")
        return self.ended()

    def ended(self) -> dict[str, Any]:
        """Wait for its end, and return what it says."""
        said: dict[str, Any] = json.loads(self.running.wait().stdout)
        return said


def check(guest: Guest, path: str, who: str, written: int) -> list[int]:
    """Return the places at which not the block is that a writer was told is written."""
    wrong: list[int] = json.loads(
        guest.run("python3", "-c", PROGRAM, "check", path, who, str(written), limit_s=LIMIT_S).stdout
    )
    return wrong
