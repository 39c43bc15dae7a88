"""The network of the lab: an Ethernet segment whose frames a thread of the test carries, and which can be cut.

A cut is silent, as one in a switch is: the guests' links stay up and frames get lost.  It has a direction::

    cable.cut("a")  # nobody hears a, and a hears nobody
    cable.cut("a", "b")  # b no longer hears a; a still hears b
    cable.mend("a", "b")
    cable.mend()  # all of it

What it carries can be looked for, as somebody on the wire would::

    with cable.watch(pattern) as seen:
        ...
    assert not seen.frames
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Iterator

HEADER = struct.Struct("!I")
"""Before each frame: its length.  This is how QEMU's netdev "socket" frames a stream (net/net.c)."""

QUEUE_LIMIT_BYTES = 4 * 2**20
"""Frames that wait for a guest which does not read, as a paused one; what comes beyond is dropped, as a switch does."""

READ_BYTES = 2**18

FRAME_LIMIT_BYTES = 2**17
"""Longest frame that QEMU sends (NET_BUFSIZE, include/net/net.h: 68 KiB)."""


class _End:
    """Where one guest is plugged in."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        self.connection = connection
        self.heard = bytearray()
        self.waiting = bytearray()
        self.blocked = False


class Watch:
    """In how many frames a pattern was seen, and how many there were."""

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.frames = 0
        self.of = 0

    def look(self, frame: bytes) -> None:
        """Look at a frame."""
        self.of += 1
        self.frames += self.pattern in frame


class Cable:
    """An Ethernet segment: guests that are plugged into it hear each other, and nothing leads outside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[str, _End] = {}
        self._places: dict[bytes, str] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._watches: set[Watch] = set()
        self._selector = selectors.DefaultSelector()
        self._carrying = False

    def plug(self, name: str) -> socket.socket:
        """Return the guest's end, a stream for QEMU's netdev "socket"; an earlier end of that name is unplugged."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with self._lock:
            if old := self._ends.pop(name, None):
                self._unplug(old)
            self._ends[name] = end = _End(name, ours)
            self._selector.register(ours, selectors.EVENT_READ, end)
            if not self._carrying:
                self._carrying = True
                threading.Thread(target=self._carry, name="cable", daemon=True).start()
        return theirs

    def cut(self, source: str, target: str = "") -> None:
        """Lose all frames from ``source`` to ``target``; without ``target`` all from and to ``source``."""
        with self._lock:
            self._cuts |= {(source, target)} if target else {(source, ""), ("", source)}

    def mend(self, source: str = "", target: str = "") -> None:
        """Take back the cut of the same arguments; without arguments, all cuts."""
        with self._lock:
            if not source:
                self._cuts.clear()
            else:
                self._cuts -= {(source, target)} if target else {(source, ""), ("", source)}

    @contextlib.contextmanager
    def watch(self, pattern: bytes) -> Iterator[Watch]:
        """Look for a pattern in all frames; one that lies across the end of a frame is not seen."""
        watch = Watch(pattern)
        with self._lock:
            self._watches.add(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._watches.remove(watch)

    def _unplug(self, end: _End) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(end.connection)
        end.connection.close()
        if self._ends.get(end.name) is end:
            del self._ends[end.name]

    def _carry(self) -> None:
        """Carry frames for as long as anybody is plugged in."""
        while True:
            ready = self._selector.select()
            with self._lock:
                for key, events in ready:
                    end: _End = key.data
                    if end.connection.fileno() < 0:
                        continue
                    try:
                        if events & selectors.EVENT_WRITE:
                            self._flush(end)
                        if events & selectors.EVENT_READ:
                            self._read(end)
                    except BlockingIOError:
                        continue
                    except OSError:
                        self._unplug(end)
                if not self._ends:
                    self._carrying = False
                    return

    def _read(self, end: _End) -> None:
        data = end.connection.recv(READ_BYTES)
        if not data:
            raise ConnectionError
        end.heard += data
        heard, position = end.heard, 0
        while len(heard) - position >= HEADER.size:
            (length,) = HEADER.unpack_from(heard, position)
            if length > FRAME_LIMIT_BYTES:
                raise ConnectionError
            after = position + HEADER.size + length
            if after > len(heard):
                break
            self._switch(end, bytes(heard[position:after]))
            position = after
        del heard[:position]

    def _switch(self, source: _End, framed: bytes) -> None:
        """Send a frame, with its length before it, to where its address was last seen, or to everybody."""
        target, origin = framed[HEADER.size : HEADER.size + 6], framed[HEADER.size + 6 : HEADER.size + 12]
        self._places[origin] = source.name
        for watch in self._watches:
            watch.look(framed)
        known = self._ends.get(self._places.get(target, ""))
        for end in [known] if known else list(self._ends.values()):
            if end is source or self._is_cut(source.name, end.name):
                continue
            if len(end.waiting) + len(framed) <= QUEUE_LIMIT_BYTES:
                end.waiting += framed
                self._flush(end)

    def _is_cut(self, source: str, target: str) -> bool:
        return not self._cuts.isdisjoint({(source, target), (source, ""), ("", target)})

    def _flush(self, end: _End) -> None:
        """Write what waits; look for room only where there was none."""
        blocked = False
        try:
            while end.waiting:
                del end.waiting[: end.connection.send(end.waiting)]
        except BlockingIOError:
            blocked = True
        except OSError:
            # Its reader hears of it too, and unplugs it.
            end.waiting.clear()
        if blocked != end.blocked:
            end.blocked = blocked
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
            self._selector.modify(end.connection, events, end)
