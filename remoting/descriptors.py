"""Descriptors that a lease's sessions have exported: kept here for who shows a token.

Memory and pools that CUDA shares between processes by a descriptor are shared between the servers
of a lease, which do not know each other.  Each asks its supervisor, over a socket of its own
(SOCK_SEQPACKET), with one message at a time (native/server/memory/descriptor.c), and is answered at once:
nobody is waited for.  Servers serve whatever a client sends, so nothing that one says hurts another:
tokens are drawn here, each session has a limit, and what a session exported ends with it.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import os
import resource
import secrets
import socket
import stat
import struct
import threading

#: What, the number of the question, the kind of object, why not, the token.
MESSAGE = struct.Struct("=IIII32s")
TOKEN_BYTES = 32
#: Of one session; also native/server/memory/descriptor.c.
SESSION_LIMIT = 1024
#: Of a lease: what four programs share of a device's whole memory in pieces of 20 MiB, PyTorch's.
LEASE_LIMIT = 4096
#: Descriptors of a supervisor that exports leave to the rest: connections, servers, pipes.
RESERVED = 768
#: Answers that a server leaves unread: it asks again when it has read the last one, or given it up.
SEND_BUFFER_BYTES = 4096


class Verb(enum.IntEnum):
    """What a server asks: keep this descriptor, find one, close one."""

    KEEP = 1
    FIND = 2
    DROP = 3


class Refusal(enum.IntEnum):
    """Why not (enum wire_descriptor_refusal)."""

    GRANTED = 0
    UNKNOWN = 1
    FULL = 2


def make_room() -> None:
    """Let this process have as many descriptors as a lease may export, or as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LEASE_LIMIT + RESERVED if hard == resource.RLIM_INFINITY else min(LEASE_LIMIT + RESERVED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def closes_at_once(descriptor: int) -> bool:
    """Tell whether closing it waits for nothing: what drivers export does not, and much else does.

    A socket may linger, a terminal drains, a block device and a file of FUSE or NFS wait for whoever serves
    them. Drivers export files in memory, which have seals, devices of their own, and the kernel's objects
    without a name (DMA buffers), which have no type.
    """
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        try:
            fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError:
            return False
        return True
    return not kind or (kind == stat.S_IFCHR and not os.isatty(descriptor))


def close(descriptor: int) -> None:
    """Close what a server has sent, waiting for nothing."""
    if closes_at_once(descriptor):
        os.close(descriptor)
    else:
        threading.Thread(target=os.close, args=[descriptor], name="farbus-closes", daemon=True).start()


class Descriptors:
    """What the sessions of one lease have exported, by token."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = LEASE_LIMIT if soft == resource.RLIM_INFINITY else max(0, min(LEASE_LIMIT, soft - RESERVED))
        #: By a digest of kind and token, so that looking for one tells nothing of how near it came.
        self._kept: dict[bytes, int] = {}
        self._of: dict[int, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def serve(self, channel: socket.socket, session: int) -> bool:
        """Answer a server's question, the socket being readable and never waiting; False: it asks no more."""
        try:
            data, came, _, _ = socket.recv_fds(channel, MESSAGE.size + 1, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return True
        except OSError:
            return False
        try:
            # What no driver exports could keep this process from its work when it is closed.
            if len(data) != MESSAGE.size or not all(map(closes_at_once, came)):
                return False
            verb, number, kind, _, token = MESSAGE.unpack(data)
            found, refusal = None, Refusal.UNKNOWN
            if verb == Verb.KEEP:
                token, refusal = self._keep(session, kind, came)
            elif verb == Verb.FIND:
                found = self._kept.get(self._key(kind, token))
                refusal = Refusal.UNKNOWN if found is None else Refusal.GRANTED
            elif verb == Verb.DROP:
                refusal = self._drop(session, self._key(kind, token))
            else:
                return False
            answer = [MESSAGE.pack(verb, number, kind, refusal, token)]
            try:
                socket.send_fds(channel, answer, [] if found is None else [found])
            except OSError:
                return False  # it has gone, or does not read its answers
            return True
        finally:
            for descriptor in came:
                close(descriptor)

    def end(self, session: int) -> None:
        """Close all that a session has exported."""
        for key in self._of.pop(session, ()):
            os.close(self._kept.pop(key))

    @staticmethod
    def _key(kind: int, token: bytes) -> bytes:
        return hashlib.sha256(struct.pack("=I", kind) + token).digest()

    def _keep(self, session: int, kind: int, came: list[int]) -> tuple[bytes, Refusal]:
        """Take over the descriptor that came, under a new token."""
        keys = self._of.setdefault(session, set())
        # None came where the kernel had no number for it here.
        if not came or len(keys) >= SESSION_LIMIT or len(self._kept) >= self._limit:
            return bytes(TOKEN_BYTES), Refusal.FULL
        token = secrets.token_bytes(TOKEN_BYTES)
        key = self._key(kind, token)
        self._kept[key] = came.pop()
        keys.add(key)
        return token, Refusal.GRANTED

    def _drop(self, session: int, key: bytes) -> Refusal:
        keys = self._of.get(session, set())
        if key not in keys:
            return Refusal.UNKNOWN
        keys.remove(key)
        os.close(self._kept.pop(key))
        return Refusal.GRANTED


def make_exchange() -> tuple[socket.socket, socket.socket]:
    """Return a supervisor's end and a server's end of what they exchange descriptors over."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return ours, theirs
