"""Small files of an agent's state that the next agent goes on with: what is damaged is told, and done without."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from farbus.linux.files import write_owned

_log = structlog.get_logger()

T = TypeVar("T")


def read_state(path: Path, kind: type[T], *, default: T) -> T:
    """Read what an earlier agent has kept; return ``default`` where there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return default
    except (OSError, msgspec.MsgspecError) as error:
        _log.error("not read; begun anew", file=str(path), error=str(error))
        return default


def write_state(path: Path, value: object) -> None:
    """Keep ``value``; that it can't be kept is told in the log alone."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_owned(path, msgspec.json.encode(value), account=None)
    except OSError as error:
        _log.error("not written", file=str(path), error=error.strerror)
