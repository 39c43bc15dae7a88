"""Where a ``farbus up`` of this user leaves word of itself.

``$XDG_RUNTIME_DIR/farbus``, or ``/tmp/farbus-UID`` where there is none: a
directory of mode 0700 that only its owner can have made.  In it:

====================  ==========================================================
``up.lock``           locked (flock) for as long as a ``farbus up`` runs
``up.json``           :class:`RunningCluster`, there while the cluster is usable
``up/``               sockets and state of the nodes, gone when the cluster stops
====================  ==========================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from farbus.errors import Conflict, InvalidInput, NotPermitted
from farbus.linux.files import write_owned
from farbus.model.value import Value, from_json, to_json

LOOKERS = 10_000
"""Tries to lock a file that others look at, some microseconds each: one of them may have been stopped."""

_ANOTHER = "set XDG_RUNTIME_DIR to a directory of your own"


class RunningNode(Value, frozen=True, kw_only=True):
    """One node of a running ``farbus up``."""

    name: str
    socket: str
    gpus: int


class RunningCluster(Value, frozen=True, kw_only=True):
    """What other commands of this user need to know of a running ``farbus up``."""

    pid: int
    server: str
    """``HOST:PORT`` of the scheduler."""
    credentials: str
    """Directory with an operator's certificate."""
    default_node: str
    nodes: tuple[RunningNode, ...]
    state: str
    devices: tuple[str, ...]
    """Identities of the software GPUs: they have shared memory to be removed at the end."""
    cdi_directory: str = ""
    """Where container engines are told of its sessions; empty for nowhere."""


def runtime_directory() -> Path:
    """Return the path of this user's runtime directory; it may not exist yet."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(base) / "farbus" if base.startswith("/") else Path(f"/tmp/farbus-{os.getuid()}")  # noqa: S108


def open_runtime_directory() -> Path:
    """Make the runtime directory if need be, check that it is this user's alone, and return it.

    The name under /tmp can be taken by anybody: a directory that belongs to
    somebody else, or that others may write to, raises :class:`NotPermitted`,
    and so does one that can't be made.
    """
    path = runtime_directory()
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise NotPermitted(f"{path}: {error.strerror}", hint=_ANOTHER) from error
    check_private(path)
    return path


def check_private(path: Path) -> None:
    """Raise :class:`NotPermitted` unless ``path`` is a directory of this user that nobody else may enter."""
    try:
        facts = os.lstat(path)
    except PermissionError as error:
        # As after su, which leaves the variable of whoever was there before.
        raise NotPermitted(f"{path}: {error.strerror}", hint=_ANOTHER) from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise NotPermitted(
            f"{path}: not a private directory of user {os.getuid()}",
            hint=f"remove it, or {_ANOTHER}",
        )


def find_running_cluster() -> RunningCluster | None:
    """Return the ``farbus up`` that this user runs now, or None."""
    path = runtime_directory()
    try:
        check_private(path)
        text = (path / "up.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if lock_holder(path) is None:
        return None
    try:
        return from_json(text, RunningCluster)
    except InvalidInput as error:
        raise Conflict(f"{path / 'up.json'}: written by another version", hint="stop that farbus up") from error


def read_published(path: Path) -> RunningCluster | None:
    """Return what the last ``farbus up`` wrote of itself, whether it runs or was killed."""
    try:
        return from_json((path / "up.json").read_bytes(), RunningCluster)
    except (FileNotFoundError, InvalidInput):
        return None


def publish(path: Path, cluster: RunningCluster) -> None:
    """Write ``up.json``, whole."""
    write_owned(path / "up.json", to_json(cluster), account=None)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold ``up.lock``; raise :class:`Conflict` where another process has it.

    The kernel lets go of it when its holder ends, however it ends.  At the end
    the file is removed, and the directory with it if nothing else is in it.
    """
    name = path / "up.lock"
    while True:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not _take(handle):
            holder = _holder(handle)
            os.close(handle)
            raise Conflict(f"a farbus up of yours runs already (pid {holder})", hint="stop it with farbus down")
        if os.fstat(handle).st_nlink:
            break
        # Its last holder removed it between open and flock: what is locked now nobody else will see.
        os.close(handle)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
            os.rmdir(path)
        os.close(handle)


def _take(handle: int) -> bool:
    """Lock a file, unless another has it locked; commands that look whether one has (:func:`lock_holder`) do not."""
    for _ in range(LOOKERS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            # Beside those that look, but not beside who has it.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.sched_yield()
    return False


def lock_holder(path: Path) -> int | None:
    """Return the pid of the process that holds ``up.lock``, or None."""
    try:
        handle = os.open(path / "up.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = _holder(handle)
        # 0 for one that has locked the file and not yet written its number.
        return int(text) if text.isdigit() else 0
    finally:
        os.close(handle)
    return None


def _holder(handle: int) -> str:
    return os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
