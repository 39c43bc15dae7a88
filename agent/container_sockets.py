"""The socket files by which containers reach supervisors of their machine.

Abstract names, by which all other programs of the machine find a supervisor, belong to a network namespace (unix(7)); a
container with a network of its own does not see them.  A file can be put into any container.  Container engines do that
as root, so the files are the agent's: a supervisor, which may run as another user and has parsed what programs sent,
gets the socket and no say about what has its name.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import structlog

from farbus.errors import FarbusError
from farbus.linux.files import make_directory
from farbus.linux.unix_sockets import bind_file, remove_unheard
from farbus.remoting.session import LOCAL_NAME

_log = structlog.get_logger()


class ContainerSockets:
    """Socket files in ``directory``, which nobody but this process's user lists or changes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def made(self, name: str) -> Iterator[int | None]:
        """Bind a socket for a supervisor that is started in the ``with`` block, which gets the descriptor.

        None where none can be: containers come by TCP then.  The name goes again with an exception.
        """
        made = self._bind(name)
        if made is None:
            yield None
            return
        with made:
            try:
                yield made.fileno()
            except BaseException:
                # Not by its being unheard: this process still has the socket.
                with contextlib.suppress(OSError):
                    (self._directory / name).unlink(missing_ok=True)
                raise

    def _bind(self, name: str) -> socket.socket | None:
        try:
            make_directory(self._directory, mode=0o711)
            if self._directory.stat().st_uid != os.geteuid():
                # Agents before this one gave it to the supervisors' user.
                os.chown(self._directory, os.geteuid(), os.getegid())
                self._directory.chmod(0o711)
            return bind_file(self._directory, name)
        except (OSError, FarbusError) as error:
            _log.warning("no socket for containers", directory=str(self._directory), error=str(error))
            return None

    def there(self, names: Iterable[str]) -> list[Path]:
        """Return the files of those of ``names`` that this process's user has made here, as sockets."""
        return [path for name in names if _is_own_socket(path := self._directory / name)]

    def remove_unheard(self) -> None:
        """Remove the files of supervisors that have ended."""
        try:
            remove_unheard(self._directory, prefix=LOCAL_NAME)
        except OSError as error:
            _log.warning("sockets left; the next lease's end removes them", error=str(error))


def _is_own_socket(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()
