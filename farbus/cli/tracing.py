"""What a trace of calls says (native/client/ground/trace.h): functions, copies, kernels; how often, how long.

A trace is a text file of lines, each a call of the driver API that the shim has answered::

    1764273395.123456 812 815 cuMemAlloc_v2 called 6.214 CUDA_SUCCESS bytes=4096

Seconds since 1970 at which it began, process, thread, function, how it was answered, microseconds, result; then, of
some, what they were about, each part with its name, of which those that are not known here are passed over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from farbus.errors import InvalidInput, NotFound
from farbus.model.value import Value

Key = TypeVar("Key", str, tuple[str, str, str])

VARIABLE = "FARBUS_TRACE"
WAYS = ("local", "posted", "called")

MAX_LINE_BYTES = 4096
"""More than a line of a trace has (1024): what is longer is none, and not kept in memory."""

_LINE = re.compile(
    rb"[0-9]{1,15}\.[0-9]{1,9} [0-9]{1,10} [0-9]{1,10} ([\w.]{1,100}) (local|posted|called) "
    rb"([0-9]{1,15}(?:\.[0-9]{1,9})?) (\w{1,100})"
    rb"(?: bytes=([0-9]{1,20}))?(?: from=([a-z]{1,20}) to=([a-z]{1,20}))?(?: kernel=([!-~]{1,1000}))?"
    rb"(?: (?!(?:bytes|from|to|kernel)=)[a-z]{1,20}=[!-~]{1,1000})*\n",
    re.ASCII,
)

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
    bytes: int = 0
    """What those that succeeded copied, filled, allocated or loaded."""
    results: dict[str, int] = {}
    """How often it returned what, other than CUDA_SUCCESS."""

    @property
    def errors(self) -> int:
        """How many calls failed."""
        return _errors(self.results)


class TracedCopies(Value, frozen=True, kw_only=True):
    """What a program's copies from one kind of memory to another came to, that were answered in one way."""

    source: str
    """``array``, ``device``, ``managed``, ``pageable`` or ``pinned``; ``mixed``: several copies by one call."""
    target: str
    way: str
    calls: int = 0
    bytes: int = 0
    total_us: float = 0.0
    """On the calling threads: a posted copy goes on behind it."""
    longest_us: float = 0.0


class TracedKernel(Value, frozen=True, kw_only=True):
    """What a program's launches of one kernel came to; what is captured counts when it is, not when its graph runs."""

    kernel: str
    """As the compiler names it (mangled)."""
    launches: int = 0
    posted: int = 0
    """Of these, sent without waiting for an answer."""
    called: int = 0
    """Such that waited for one."""
    total_us: float = 0.0
    """On the calling threads: kernels run behind it."""
    longest_us: float = 0.0
    results: dict[str, int] = {}
    """How often a launch returned what, other than CUDA_SUCCESS."""

    @property
    def errors(self) -> int:
        """How many launches failed."""
        return _errors(self.results)


class Trace(Value, frozen=True, kw_only=True):
    """What a program's calls came to; each table has what took longest first."""

    functions: tuple[TracedFunction, ...] = ()
    copies: tuple[TracedCopies, ...] = ()
    kernels: tuple[TracedKernel, ...] = ()
    strange: int = 0
    """Lines that are no calls."""


def _errors(results: dict[str, int]) -> int:
    return sum(count for name, count in results.items() if name not in NO_ERRORS)


class _Sum:
    """Calls of one kind, counted so far."""

    def __init__(self) -> None:
        self.ways = dict.fromkeys(WAYS, 0)
        self.total_us = 0.0
        self.longest_us = 0.0
        self.bytes = 0
        self.results: dict[str, int] = {}

    def add(self, way: str, took_us: float, result: str, count: int) -> None:
        self.ways[way] += 1
        self.total_us += took_us
        self.longest_us = max(self.longest_us, took_us)
        if result == "CUDA_SUCCESS":
            self.bytes += count
        else:
            self.results[result] = self.results.get(result, 0) + 1

    @property
    def calls(self) -> int:
        return sum(self.ways.values())


def _ordered(sums: dict[Key, _Sum]) -> list[tuple[Key, _Sum]]:
    return sorted(sums.items(), key=lambda each: (-each[1].total_us, each[0]))


def sum_up(lines: Iterable[bytes]) -> Trace:
    """Return what the lines of a trace come to."""
    functions: dict[str, _Sum] = {}
    copies: dict[tuple[str, str, str], _Sum] = {}
    kernels: dict[str, _Sum] = {}
    strange = 0
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            strange += 1
            continue
        function, way, took, result, count, source, target, kernel = (
            each.decode() if each else "" for each in found.groups()
        )
        call = (way, float(took), result, int(count or 0))
        functions.setdefault(function, _Sum()).add(*call)
        if source:
            copies.setdefault((source, target, way), _Sum()).add(*call)
        if kernel:
            kernels.setdefault(kernel, _Sum()).add(*call)
    return Trace(
        functions=tuple(
            TracedFunction(
                function=name,
                calls=each.calls,
                local=each.ways["local"],
                posted=each.ways["posted"],
                called=each.ways["called"],
                total_us=round(each.total_us, 3),
                longest_us=each.longest_us,
                bytes=each.bytes,
                results=each.results,
            )
            for name, each in _ordered(functions)
        ),
        copies=tuple(
            TracedCopies(
                source=source,
                target=target,
                way=way,
                calls=each.calls,
                bytes=each.bytes,
                total_us=round(each.total_us, 3),
                longest_us=each.longest_us,
            )
            for (source, target, way), each in _ordered(copies)
        ),
        kernels=tuple(
            TracedKernel(
                kernel=name,
                launches=each.calls,
                posted=each.ways["posted"],
                called=each.ways["called"],
                total_us=round(each.total_us, 3),
                longest_us=each.longest_us,
                results=each.results,
            )
            for name, each in _ordered(kernels)
        ),
        strange=strange,
    )


def read_trace(path: Path) -> Trace:
    """Return what :func:`sum_up` makes of a file, or for ``-`` of standard input.

    Raises :class:`NotFound` where there is none, :class:`InvalidInput` where it can't be read, or is no trace.
    """
    hint = "farbus run --trace FILE makes one"
    if path == Path("-"):
        trace = sum_up(_lines(sys.stdin.buffer))
    else:
        try:
            # To open a pipe would wait for who writes.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise InvalidInput(f"{path}: not a regular file", hint=f"{hint}; farbus trace - reads a pipe")
                trace = sum_up(_lines(file))
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {path}", hint=hint) from error
        except IsADirectoryError as error:
            raise InvalidInput(f"{path}: a directory", hint=f"name a file in it; {hint}") from error
        except OSError as error:
            raise InvalidInput(f"{path}: {error.strerror}", hint="name a file that you may read") from error
    if trace.strange and not trace.functions:
        raise InvalidInput(f"{path}: not a trace", hint=hint)
    return trace


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; of one that is longer than any of a trace its beginning, and what follows of it is passed over."""
    while line := file.readline(MAX_LINE_BYTES):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)


def may_be_traced_to(path: str) -> bool:
    """Say whether the shim would take ``path``: a file or a terminal that can be written, or a place for a file.

    It adds to a file, but to none with anything but a trace in it.
    """
    return may_be_written(path) and not _has_something_else(path)


def may_be_written(path: str) -> bool:
    """Say whether ``path`` is a file or a terminal that can be written, or a place for a file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)
    return (stat.S_ISREG(mode) or stat.S_ISCHR(mode)) and os.access(path, os.W_OK)


def check_trace(path: str, *, program: str) -> str:
    """Return the absolute path of a file that :func:`begin_trace` may begin anew, and leave it as it is.

    Raises :class:`InvalidInput` for what can't be written or is no file's name, for ``program``, and for a file with
    anything but a trace in it: it would be lost.
    """
    if not path or path.startswith("-"):
        # An option without its value takes what comes next: the dashes, or another option.
        raise InvalidInput(f"--trace {path or repr(path)}: no file's name", hint="name one, like calls or ./-calls")
    absolute = os.path.abspath(path)
    hint = "name a file that you may write"
    try:
        status = os.stat(absolute)
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(absolute)):
            raise InvalidInput(f"--trace {path}: {os.strerror(errno.ENOENT)}", hint=hint) from None
        status = None
    except OSError as error:
        raise InvalidInput(f"--trace {path}: {error.strerror}", hint=hint) from error
    if not may_be_written(absolute):
        # To open a pipe without a reader would wait for one.
        raise InvalidInput(f"--trace {path}: not a file or terminal that you may write", hint=hint)
    if status is not None and os.path.samestat(status, os.stat(program)):
        raise InvalidInput(f"--trace {path}: that is the program", hint="name another file before it")
    if _has_something_else(absolute):
        raise InvalidInput(f"--trace {path}: there is something else than a trace in it", hint="name another file")
    return absolute


def _has_something_else(path: str) -> bool:
    """Say whether a file is not empty and begins with no line of a trace, as far as it can be read."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    try:
        with open(path, "rb") as file:
            return _LINE.fullmatch(file.readline(MAX_LINE_BYTES)) is None
    except OSError:
        return True


def begin_trace(path: str, *, program: str) -> None:
    """Make an empty file for a trace; raise :class:`InvalidInput` where that can't be, or what is there is none."""
    absolute = check_trace(path, program=program)
    try:
        with open(absolute, "w"):
            pass
    except OSError as error:
        raise InvalidInput(f"--trace {path}: {error.strerror}", hint="name a file that you may write") from error


def is_empty(path: str) -> bool:
    """Say whether nothing was traced in a file; False also for a terminal, and for what is no file any more."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return stat.S_ISREG(status.st_mode) and not status.st_size
    return False
