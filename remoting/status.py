"""What remoting servers count, in memory that they share with their supervisor and whoever may look.

The supervisor makes a memory file (memfd_create(2)) of slots.  The first is its own: what
sessions that have ended have done.  Every other is one server's, which counts there without
locks (struct server_status in native/server/server.h).  A reader opens the supervisor's
descriptor through /proc: nobody has to answer, also when a call of the driver hangs.

All numbers are in the machine's byte order; readers and writers are on one machine.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from farbus.remoting import assignment

MEMORY_NAME = "farbus-remoting-status"
MAGIC = 0x46425354
VERSION = 1

SLOT_BYTES = assignment.SLOT_BYTES
#: magic, version, sequence (odd while it changes), then of ended sessions: how many, calls, bytes
#: received, bytes sent, nanoseconds busy.
HEAD = struct.Struct("=IIQ5Q")
#: server's pid (0: the slot is free), client's pid, program; the rest is the server's: calls, bytes
#: received, bytes sent, nanoseconds busy, what carries its frames, bytes of device memory, since when
#: a call waits for the device and since when it has frames to serve (CLOCK_MONOTONIC, nanoseconds; 0: none
#: does, it has none), what the call does that it took last, and MiB sent without a copy.
SLOT = struct.Struct("=II48s4Q8sQQQII")
COUNTERS = struct.Struct("=4Q")
WAITING = struct.Struct("=Q")
WAITING_OFFSET = struct.calcsize("=II48s4Q8sQ")
COUNTERS_OFFSET = struct.calcsize("=II48s")

SLOTS_LIMIT = 1024
LIMIT_BYTES = (1 + SLOTS_LIMIT) * SLOT_BYTES

#: Readings that may meet a supervisor at its change of the head, which takes microseconds.
READ_ATTEMPTS = 100


@dataclass(frozen=True, kw_only=True)
class Session:
    """What one server has done for one program."""

    server_pid: int
    client_pid: int
    program: str
    calls: int
    received_bytes: int
    sent_bytes: int
    busy_ns: int
    """In which at least one call was served, waiting for the device included: no more than the time that passed."""
    transport: str = ""
    """``shm``, ``unix``, ``tcp``, ``tls`` or ``rdma``; empty before the hello is answered."""
    working_ns: int = 0
    """For how long without a pause a call waits for the device, or frames are served; 0 while neither is so."""
    operation: int = 0
    """Of the call that was taken last: see :func:`farbus.remoting.spec.operation_name`."""
    uncopied_bytes: int = 0
    """Of those sent, that the kernel has sent from where they lay (MSG_ZEROCOPY), in whole MiB; told with a reply."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What sessions that have ended have done together."""

    sessions: int
    calls: int
    received_bytes: int
    sent_bytes: int
    busy_ns: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """A lease's sessions."""

    ended: Ended
    sessions: tuple[Session, ...]


def parse(data: bytes, *, now_ns: int = 0) -> Status:
    """Return what a status memory says; raise ValueError for one that is none, or is just changing.

    A call that waits ``now_ns`` (CLOCK_MONOTONIC) is counted until then; with 0 as far as it has ended.
    """
    if len(data) < SLOT_BYTES:
        raise ValueError(f"status memory: {len(data)} bytes are too few")
    magic, version, sequence, *ended = HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise ValueError(f"status memory: version {version} is not known")
    if sequence % 2:
        raise ValueError("status memory: it is just changing")
    sessions = []
    for at in range(SLOT_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        server_pid, client_pid, program, *rest = SLOT.unpack_from(data, at)
        *counters, transport, _, waiting_since, reading_since, operation, uncopied_mib = rest
        if server_pid:
            sessions.append(
                Session(
                    server_pid=server_pid,
                    client_pid=client_pid,
                    program=_text(program),
                    calls=counters[0],
                    received_bytes=counters[1],
                    sent_bytes=counters[2],
                    busy_ns=counters[3] + _waited(waiting_since, now_ns),
                    transport=_text(transport),
                    working_ns=max(_waited(waiting_since, now_ns), _waited(reading_since, now_ns)),
                    operation=operation,
                    uncopied_bytes=uncopied_mib * 2**20,
                )
            )
    return Status(
        ended=Ended(
            sessions=ended[0], calls=ended[1], received_bytes=ended[2], sent_bytes=ended[3], busy_ns=ended[4]
        ),
        sessions=tuple(sessions),
    )  # fmt: skip


def read(look: Callable[[], bytes], *, now_ns: Callable[[], int] = time.monotonic_ns) -> Status:
    """Parse what ``look`` returns; again when it was just changing.  ``now_ns`` is CLOCK_MONOTONIC."""
    for _ in range(READ_ATTEMPTS - 1):
        data = look()
        if len(data) < HEAD.size or not HEAD.unpack_from(data)[2] % 2:
            return parse(data, now_ns=now_ns())
        # Whoever writes may wait for this very processor.
        os.sched_yield()
    return parse(look(), now_ns=now_ns())


def _waited(since_ns: int, now_ns: int) -> int:
    return max(0, now_ns - since_ns) if since_ns else 0


def _text(program: bytes) -> str:
    """A program's name as its client gave it: whatever it is, one word or a few that can be printed."""
    name = program.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(character if character.isprintable() else "?" for character in name)


class StatusMemory:
    """The supervisor's side: gives out slots, and adds up what ended sessions have done."""

    def __init__(self, slots: int) -> None:
        slots = min(slots, SLOTS_LIMIT)
        size = (1 + slots) * SLOT_BYTES
        self.descriptor = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        # Servers face strangers: none may pull the memory away under the others.
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.descriptor, size)
        self._free = list(range(slots, 0, -1))
        self._slots: dict[int, int] = {}
        HEAD.pack_into(self._map, 0, MAGIC, VERSION, 0, 0, 0, 0, 0, 0)

    def take(self) -> int | None:
        """Return a free slot's number; None when all are taken, and a server then counts nowhere."""
        return self._free.pop() if self._free else None

    def fill(self, slot: int, *, server_pid: int, client: tuple[int, bytes] | None) -> None:
        """Say whose the slot is: the server's process id, and its client's with the program's name.

        Without ``client`` the server writes that itself, when it has learnt it.
        """
        self._slots[server_pid] = slot
        at = slot * SLOT_BYTES
        if client is not None:
            struct.pack_into("=I48s", self._map, at + 4, client[0] & 0xFFFFFFFF, client[1])
        # Last: from now on readers believe it.
        struct.pack_into("=I", self._map, at, server_pid)

    def withdraw(self, server_pid: int) -> None:
        """Free the slot of a server that has had no client: nothing has ended."""
        slot = self._slots.pop(server_pid, None)
        if slot is not None:
            self._map[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = bytes(SLOT_BYTES)
            self._free.append(slot)

    def end(self, server_pid: int) -> None:
        """Add what a server has done to what ended sessions did, and free its slot."""
        slot = self._slots.pop(server_pid, None)
        if slot is None:
            return
        at = slot * SLOT_BYTES
        *counters, busy_ns = COUNTERS.unpack_from(self._map, at + COUNTERS_OFFSET)
        # One that was killed may have waited until now.
        busy_ns += _waited(WAITING.unpack_from(self._map, at + WAITING_OFFSET)[0], time.monotonic_ns())
        _, _, sequence, sessions, *sums = HEAD.unpack_from(self._map)
        struct.pack_into("=Q", self._map, 8, sequence + 1)
        added = [(total + one) & (2**64 - 1) for total, one in zip(sums, (*counters, busy_ns), strict=True)]
        struct.pack_into("=5Q", self._map, 16, sessions + 1, *added)
        self._map[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
        struct.pack_into("=Q", self._map, 8, sequence + 2)
        self._free.append(slot)

    def status(self) -> Status:
        """Return what is counted now."""
        return read(lambda: bytes(self._map))

    def close(self) -> None:
        """Unmap and close; may be called twice."""
        if self.descriptor >= 0:
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1
