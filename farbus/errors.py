"""Errors that a person reads: what failed, on what, because of what, and what to do.

Every error that crosses a process boundary or reaches a terminal is a
:class:`FarbusError`.  Foreign exceptions are converted once, at the edge,
with ``raise ... from``.
"""

from __future__ import annotations

import enum
from typing import Self, TypeVar, overload


class ExitCode(enum.IntEnum):
    """Exit codes of the ``farbus`` command (docs/cli.md).

    ``farbus run`` and ``farbus submit --wait`` end with the program's own
    code instead, and use 125 to 127 as shells and container runtimes do.
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNSATISFIABLE = 4
    NOT_PERMITTED = 5
    UNAVAILABLE = 6
    CONFLICT = 7
    TIMED_OUT = 8
    RUN_FAILED = 125
    NOT_EXECUTABLE = 126
    COMMAND_NOT_FOUND = 127


class FarbusError(Exception):
    """Base of all errors that Farbus raises on purpose.

    ``message`` is one line without a full stop; ``hint`` says what to do.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def with_exit_code(self, code: ExitCode) -> Self:
        """Return this error, ending the command with ``code``."""
        self.exit_code = code
        return self


class InvalidInput(FarbusError):
    """What was given can't be understood or is out of range."""

    exit_code = ExitCode.USAGE


class NotFound(FarbusError):
    """The named object does not exist."""

    exit_code = ExitCode.NOT_FOUND


class Unsatisfiable(FarbusError):
    """No state of this cluster could ever serve the request."""

    exit_code = ExitCode.UNSATISFIABLE


class NotPermitted(FarbusError):
    """The caller's role or identity does not allow it."""

    exit_code = ExitCode.NOT_PERMITTED


class Unavailable(FarbusError):
    """A process that is needed can't be reached now; trying later may help."""

    exit_code = ExitCode.UNAVAILABLE


class Conflict(FarbusError):
    """The object is in use or in a state that forbids the operation."""

    exit_code = ExitCode.CONFLICT


class TimedOut(FarbusError):
    """A deadline passed."""

    exit_code = ExitCode.TIMED_OUT


class IllegalTransition(FarbusError):
    """An object was told to go where its table of states has no arrow."""


E = TypeVar("E", bound=BaseException)


@overload
def first_error(error: BaseExceptionGroup[E]) -> E: ...
@overload
def first_error(error: BaseException) -> BaseException: ...
def first_error(error: BaseException) -> BaseException:
    """Return the first single error of nested groups, as task groups raise them; a single one is returned as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def file_error(error: BaseException) -> FarbusError | None:
    """Return in one line which file the system refused a daemon, where that is what ended it; None for all else."""
    told = refused_file(first_error(error))
    if not told:
        return None
    return Unavailable(told, hint="see that it is what Farbus has put there, and can be written")


def refused_file(error: BaseException) -> str:
    """Return which file the system refused, and why; an empty string where it was something else."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str | bytes):
        return ""
    name = error.filename.decode(errors="replace") if isinstance(error.filename, bytes) else error.filename
    return f"{name}: {error.strerror}"
