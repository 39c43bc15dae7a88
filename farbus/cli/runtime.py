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
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from farbus.errors import Conflict, NotPermitted
from farbus.model.value import Value, from_json, to_json


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


def runtime_directory() -> Path:
    """Return the path of this user's runtime directory; it may not exist yet."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(base) / "farbus" if base.startswith("/") else Path(f"/tmp/farbus-{os.getuid()}")  # noqa: S108


def open_runtime_directory() -> Path:
    """Make the runtime directory if need be, check that it is this user's alone, and return it.

    The name under /tmp can be taken by anybody: a directory that belongs to
    somebody else, or that others may write to, raises :class:`NotPermitted`.
    """
    path = runtime_directory()
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    check_private(path)
    return path


def check_private(path: Path) -> None:
    """Raise :class:`NotPermitted` unless ``path`` is a directory of this user that nobody else may enter."""
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise NotPermitted(
            f"{path}: not a private directory of user {os.getuid()}",
            hint="remove it, or set XDG_RUNTIME_DIR to a directory of your own",
        )


def find_running_cluster() -> RunningCluster | None:
    """Return the ``farbus up`` that this user runs now, or None."""
    path = runtime_directory()
    try:
        check_private(path)
        text = (path / "up.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not is_locked(path / "up.lock"):
        return None
    try:
        return from_json(text, RunningCluster)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Conflict(f"{path / 'up.json'}: not readable by this version", hint="stop that farbus up") from error


def publish(path: Path, cluster: RunningCluster) -> None:
    """Write ``up.json``, whole."""
    handle, temporary = tempfile.mkstemp(dir=path, prefix=".up.json.")
    with os.fdopen(handle, "wb") as file:
        file.write(to_json(cluster))
    os.replace(temporary, path / "up.json")


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold ``up.lock``; raise :class:`Conflict` where another process has it.

    The kernel lets go of it when its holder ends, however it ends.
    """
    handle = os.open(path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"a farbus up of yours runs already (pid {_holder(handle)})", hint="stop it with farbus down"
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


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
        return int(text) if text.isdigit() else None
    finally:
        os.close(handle)
    return None


def is_locked(path: Path) -> bool:
    """Say whether some process holds the lock at ``path``."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _holder(handle: int) -> str:
    return os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
