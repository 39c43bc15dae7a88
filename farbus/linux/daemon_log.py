"""What a daemon says: its log, for people on a terminal and programs elsewhere, and what has ended it."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TextIO, cast

import structlog

from farbus.errors import FarbusError, file_error


class LogFile:
    """Lines to a descriptor, in whole or not at all: a full disk or a closed pipe loses lines, never the daemon."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lost = 0
        self._torn = False

    def write(self, text: str) -> None:
        """Write a line; one that is refused is counted, and told when the next one is taken."""
        data = text.encode(errors="backslashreplace")
        if self._lost:
            notice = {"lines": self._lost, "event": "lines of this log were lost", "level": "error"}
            data = (b"\n" if self._torn else b"") + json.dumps(notice).encode() + b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            self._lost += 1
            self._torn |= written > 0
        else:
            self._lost, self._torn = 0, False

    def flush(self) -> None:
        """Do nothing: nothing is held back."""


def configure_logging() -> None:
    """Log to standard error: for a person on a terminal, as one JSON object a line elsewhere."""
    console = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # The console's renderer formats exceptions itself, in colour.
            *([] if console else [structlog.processors.dict_tracebacks]),
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, LogFile(sys.stderr.fileno()))),
        cache_logger_on_first_use=True,
    )


def tell_end(daemon: str, error: Exception) -> int:
    """Tell in one line on standard error what has ended a daemon, and return its exit code.

    What is neither an error of Farbus nor of a file that the system refused is a defect: it is raised again.
    """
    known = error if isinstance(error, FarbusError) else file_error(error)
    if known is None:
        raise error
    sys.stderr.write(f"farbus {daemon}: {known}\n")
    return int(known.exit_code)
