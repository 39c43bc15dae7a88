"""What a person is told of errors that nobody raised on purpose: the machine's, and faults of Farbus."""

from __future__ import annotations

import errno
from pathlib import Path

from farbus.errors import FarbusError, InvalidInput, NotFound, first_error, refused_file

_LOOP = "Symlink loop from "
"""How pathlib tells that a path can't be resolved."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def current_directory() -> Path:
    """Return the working directory of this command; raise :class:`NotFound` where it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise NotFound(f"the working directory: {error.strerror}", hint="cd to one that exists") from error


def as_farbus_error(error: Exception) -> FarbusError:
    """Return ``error`` as a person is to read it; of what task groups raise, the first error of Farbus, or
    the first one."""
    if isinstance(error, ExceptionGroup):
        known = error.subgroup(FarbusError)
        if known is not None:
            return first_error(known)
        error = first_error(error)
    if isinstance(error, FarbusError):
        return error
    if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":
        # Python keeps bytes of arguments, variables and paths that are no UTF-8 as halves of surrogate pairs.
        shown = error.object[max(0, error.start - 20) : error.end].encode(errors="replace").decode()
        return InvalidInput(f"{shown}: not UTF-8 text", hint="clusters know no other: write or rename it so")
    if isinstance(error, RuntimeError) and str(error).startswith(_LOOP):
        # Python before 3.13 has no OSError for it.
        path = str(error).removeprefix(_LOOP).strip("'\"")
        return InvalidInput(f"{path}: its symbolic links lead in a circle", hint="name another path")
    if isinstance(error, OSError) and error.filename is None:
        if error.errno in _NO_ROOM:
            return FarbusError(f"can't write: {error.strerror}", hint="make room where the output goes")
        if error.errno == errno.ENOENT:
            try:
                current_directory()
            except NotFound as gone:
                return gone
    if refused := refused_file(error):
        return FarbusError(refused, hint="look at what is there; FARBUS_DEBUG=1 shows who wanted it")
    return FarbusError(f"{type(error).__name__}: {error}", hint="this is a fault of farbus: FARBUS_DEBUG=1 shows where")
