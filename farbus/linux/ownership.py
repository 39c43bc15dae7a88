"""The door for root in another user's directory: what is done there is done with that user's rights.

Whoever owns a directory can put a link there at any moment, between a look at
a name and its use too.  Root that follows one would read, write or give away
files that the owner has no right to.  So root becomes the owner before it
looks inside, and the kernel refuses what the owner may not do.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from farbus.errors import Conflict, NotFound
from farbus.linux.users import SystemUsers, Users

MAX_LINKS = 40
"""Symbolic links on the way to a directory: as many as the kernel follows (path_resolution(7))."""


@contextlib.contextmanager
def acting_for_owner(directory: str | Path, *, users: Users | None = None) -> Iterator[None]:
    """Inside the block, have root work with the rights of whom ``directory`` belongs to.

    That is the first user other than root who owns a part of the way there:
    what lies behind is his to replace.  A directory that is not there yet is
    of who owns the way to it.  Who is not root stays who he is.  The real user
    id stays root's, so the owner can neither signal nor trace this process.
    Not to be nested.

    Raises :class:`Conflict` for links that lead in a circle, for a way on
    which everybody may replace what is there, and for what another user has
    made where everybody may (``/tmp``): he may have waited there for a key.
    """
    found = _owner_on_the_way(Path(directory)) if os.geteuid() == 0 else None
    if found is None:
        yield
        return
    uid, gid = found
    try:
        account = (users or SystemUsers()).by_uid(uid)
        gid, groups = account.gid, account.groups
    except NotFound:
        # A number without a name, as containers leave them.
        groups = ()
    before = os.getegid(), os.getgroups()
    os.setgroups(groups)
    try:
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(before[0])
        os.setgroups(before[1])


def make_directory(path: str | Path) -> None:
    """Make a directory, and the way to it, for who :func:`acting_for_owner` has found to own them.

    Raises :class:`Conflict` where somebody else has made a part of the way
    meanwhile, and :class:`OSError`.
    """
    Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.geteuid() == 0 and _owner_on_the_way(Path(path)) is not None:
        raise Conflict(f"{path}: somebody else has made it just now", hint="choose another directory")


def _owner_on_the_way(path: Path) -> tuple[int, int] | None:
    """Return user and group of the first part of a path that is not root's; None where all is root's.

    Parts that are root's, in directories that are, are replaced by nobody
    else; so it does no harm to look at them one after the other.
    """
    parts = list(reversed((Path.cwd() / path).parts))
    here = Path(parts.pop())
    links = 0
    is_shared = False
    while parts:
        here /= parts.pop()
        try:
            status = here.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if status.st_uid != 0:
            if is_shared:
                raise Conflict(
                    f"{here}: made by user id {status.st_uid}, where everybody can make something",
                    hint="choose another directory, or do it as that user",
                )
            return status.st_uid, status.st_gid
        is_shared = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_IWOTH)
        if is_shared and not status.st_mode & stat.S_ISVTX:
            raise Conflict(f"{here}: everybody can write there", hint="take that away (chmod o-w), or go elsewhere")
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise Conflict(f"{path}: its symbolic links lead in a circle", hint="name the directory itself")
            # Of root's own making: where it leads is looked at part by part, from the directory that it is in.
            is_shared = False
            target = here.readlink()
            parts.extend(reversed(target.parts))
            here = Path(parts.pop()) if target.is_absolute() else here.parent
    return None
