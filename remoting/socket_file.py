"""A Unix socket with a name in a directory, by which containers reach a supervisor of their machine.

Abstract names, by which all other programs of the machine find it, belong to a network namespace (unix(7)); a container
with a network of its own does not see them.  A file can be put into any container.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


class SocketFile:
    """Listens at ``directory/name``, where anybody may connect who gets that far, until it is closed.

    ``backlog`` connections wait to be accepted.  Raises OSError; a name that is there already is somebody else's.
    """

    def __init__(self, directory: Path, name: str, *, backlog: int) -> None:
        self._path = directory / name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind(directory, name)
            try:
                self._path.chmod(0o666)  # whatever the umask
                self.socket.listen(backlog)
                self.socket.setblocking(False)
            except BaseException:
                self._remove()
                raise
        except BaseException:
            self.socket.close()
            raise

    def _bind(self, directory: Path, name: str) -> None:
        """Bind by a descriptor of the directory, whose path may be longer than the 107 bytes of a socket's."""
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.socket.bind(f"/proc/self/fd/{descriptor}/{name}")
        finally:
            os.close(descriptor)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Stop listening; the name is gone first, so that nobody finds it who would not be heard."""
        self._remove()
        self.socket.close()
