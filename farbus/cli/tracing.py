"""What a trace of a program's calls says (native/client/trace.h): which functions, how often, how long.

A trace is a text file of lines, each a call of the driver API that the shim has answered::

    1764273395.123456 812 815 cuMemAlloc_v2 called 6.214 CUDA_SUCCESS

Seconds since 1970 at which it began, process, thread, function, how it was answered, microseconds, result.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from farbus.errors import InvalidInput, NotFound
from farbus.model.value import Value

VARIABLE = "FARBUS_TRACE"
FIELDS = 7
WAYS = ("local", "posted", "called")

NO_ERRORS = ("CUDA_SUCCESS", "CUDA_ERROR_NOT_READY")
"""Results that are answers: the second is what a query of work that goes on returns."""


class TracedFunction(Value, frozen=True, kw_only=True):
    """What a program's calls of one function came to."""

    function: str
    calls: int = 0
    local: int = 0
    """Of these, answered without the server."""
    posted: int = 0
    """Sent without waiting for an answer."""
    called: int = 0
    """Such that waited for one."""
    total_us: float = 0.0
    longest_us: float = 0.0
    results: dict[str, int] = {}
    """How often it returned what, other than CUDA_SUCCESS."""

    @property
    def errors(self) -> int:
        """How many calls failed."""
        return sum(count for name, count in self.results.items() if name not in NO_ERRORS)


class _Sum:
    """Calls of one function, counted so far."""

    def __init__(self) -> None:
        self.ways = dict.fromkeys(WAYS, 0)
        self.total_us = 0.0
        self.longest_us = 0.0
        self.results: dict[str, int] = {}

    def add(self, way: str, took_us: float, result: str) -> None:
        self.ways[way] += 1
        self.total_us += took_us
        self.longest_us = max(self.longest_us, took_us)
        if result != "CUDA_SUCCESS":
            self.results[result] = self.results.get(result, 0) + 1


def sum_up(lines: Iterable[str]) -> tuple[tuple[TracedFunction, ...], int]:
    """Return the functions of a trace, what took longest first; and how many lines are none of a trace."""
    sums: dict[str, _Sum] = {}
    strange = 0
    for line in lines:
        fields = line.split()
        try:
            _, _, _, function, way, took, result = fields
            took_us = float(took)
            if not line.endswith("\n") or way not in WAYS:
                raise ValueError(line)
        except ValueError:
            strange += 1
            continue
        sums.setdefault(function, _Sum()).add(way, took_us, result)
    functions = [
        TracedFunction(
            function=name,
            calls=sum(each.ways.values()),
            local=each.ways["local"],
            posted=each.ways["posted"],
            called=each.ways["called"],
            total_us=round(each.total_us, 3),
            longest_us=each.longest_us,
            results=each.results,
        )
        for name, each in sums.items()
    ]
    return tuple(sorted(functions, key=lambda each: (-each.total_us, each.function))), strange


def read_trace(path: Path) -> tuple[tuple[TracedFunction, ...], int]:
    """Return what :func:`sum_up` makes of a file.

    Raises :class:`NotFound` where there is none, :class:`InvalidInput` where it can't be read, or is no trace.
    """
    try:
        with path.open(errors="replace") as file:
            functions, strange = sum_up(file)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="farbus run --trace FILE makes one") from error
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    if strange and not functions:
        raise InvalidInput(f"{path}: not a trace", hint="farbus run --trace FILE makes one")
    return functions, strange


def may_be_traced_to(path: str) -> bool:
    """Say whether the shim would take ``path``: a file or a terminal that can be written, or a place for a file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)
    return (stat.S_ISREG(mode) or stat.S_ISCHR(mode)) and os.access(path, os.W_OK)


def begin_trace(path: str) -> str:
    """Make an empty file for a trace, and return its absolute path; raise :class:`InvalidInput` where that can't be."""
    absolute = os.path.abspath(path)
    hint = "name a file that you may write"
    if os.path.exists(absolute) and not may_be_traced_to(absolute):
        # To open a pipe without a reader would wait for one.
        raise InvalidInput(f"--trace {path}: not a file or terminal that you may write", hint=hint)
    try:
        with open(absolute, "w"):
            pass
    except OSError as error:
        raise InvalidInput(f"--trace {path}: {error.strerror}", hint=hint) from error
    return absolute


def is_empty(path: str) -> bool:
    """Say whether nothing was traced in a file; False also for a terminal, and for what is no file any more."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return stat.S_ISREG(status.st_mode) and not status.st_size
    return False
