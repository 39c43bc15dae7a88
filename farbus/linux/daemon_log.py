"""The one place where a daemon's logging is set up: people read it on a terminal, programs elsewhere."""

from __future__ import annotations

import logging
import sys

import structlog


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
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
