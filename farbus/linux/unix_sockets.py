"""The door to Unix sockets with names in a file system: names stay there when their sockets are gone (unix(7))."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path

from farbus.errors import Conflict

_UNCONNECTED = "01"
"""State of a socket that listens, or is about to; one that was accepted has the listener's path, and another state."""


def bind_file(directory: Path, name: str) -> socket.socket:
    """Return a stream socket that is called ``directory/name``, where anybody may connect who gets that far.

    It does not listen: whom the kernel names to those who connect is who does (SO_PEERCRED).  What has the name already
    gives way.  The directory must be this user's alone.  Raises OSError.
    """
    path = directory / name
    path.unlink(missing_ok=True)
    # The directory's path may be longer than the 107 bytes of a socket's.
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(f"/proc/self/fd/{descriptor}/{name}")
        path.chmod(0o666)  # whatever the umask
    except BaseException:
        made.close()
        raise
    finally:
        os.close(descriptor)
    return made


def hold_name(name: str, *, what: str, hint: str) -> socket.socket | None:
    """Hold a name that no file has (unix(7), abstract) until the socket is closed or this process ends.

    One network namespace has it once.  The socket listens, so that the kernel says whose it is: who connects is to be
    accepted and let go.  Raises :class:`Conflict` with ``what`` and ``hint`` where another process of this user has it;
    one of somebody else's, who may take any name, keeps nobody from anything: then there is no socket.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        held.bind(f"\0{name}")
        held.listen()
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE and _owner(name) == os.geteuid():
            raise Conflict(what, hint=hint) from error
        return None
    return held


def _owner(name: str) -> int | None:
    """Return the user of the process that holds a name; None where nobody listens there any more."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.setblocking(False)
        asked.connect(f"\0{name}")
        _, uid, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(uid)
    return None


def remove_unheard(directory: Path, *, prefix: str) -> tuple[str, ...]:
    """Remove what begins with ``prefix`` in a directory and is no socket of any process any more; return the names.

    Sockets are told apart by their names alone, whose process may have bound them by another path: no two sockets of
    this network namespace may share one.  A directory that is not there has none.  Raises OSError.
    """
    try:
        # Before the kernel is asked: what is bound meanwhile is not among them.
        names = sorted(name for name in os.listdir(directory) if name.startswith(prefix))
    except FileNotFoundError:
        return ()
    if not names:
        return ()
    heard = _names()
    abandoned = tuple(name for name in names if name not in heard)
    for name in abandoned:
        (directory / name).unlink(missing_ok=True)
    return abandoned


def _names() -> set[str]:
    """Return the last parts of the paths that sockets here are bound to and not connected (proc_pid_net(5))."""
    found = set()
    with open("/proc/net/unix", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 7)
            if len(fields) == 8 and fields[5] == _UNCONNECTED:
                found.add(fields[7].rpartition("/")[2])
    return found
