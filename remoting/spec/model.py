"""The vocabulary of the specification: entries and operations."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Answer(enum.Enum):
    """How the client answers a call of the driver API."""

    LOCAL = "local"  # from the snapshot and the client's own tables
    POSTED = "posted"  # sent without waiting for a reply
    CALLED = "called"  # one round trip
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Unsupported:
    """Why a function is not there: a phrase that a person is shown."""

    text: str


@dataclass(frozen=True)
class Entry:
    """One function of the driver API in one version."""

    number: int
    name: str  # what cuGetProcAddress is asked for
    version: int  # first CUDA version that has it, 1000 * major + 10 * minor
    symbol: str  # what a program that links libcuda directly uses
    answer: Answer
    parameters: str  # in C
    per_thread: tuple[int, str] | None = None  # version and suffix of the per-thread-stream form
    via: str = ""
    same_as: str = ""  # another symbol with the same behaviour
    reason: str = ""
    marshalled: str | None = None  # directions of the pointers, where the call travels as its arguments

    @property
    def per_thread_symbol(self) -> str | None:
        return self.symbol + self.per_thread[1] if self.per_thread else None


class Scalar(enum.Enum):
    """Types of message fields: (C type, bytes)."""

    U32 = ("uint32_t", 4)
    I32 = ("int32_t", 4)
    F32 = ("float", 4)
    U64 = ("uint64_t", 8)


@dataclass(frozen=True)
class Field:
    """One field of a message; ``handle`` names the kind of object it refers to."""

    name: str
    scalar: Scalar
    count: int = 1
    handle: str = ""

    @property
    def size(self) -> int:
        return self.scalar.value[1] * self.count


@dataclass(frozen=True)
class Operation:
    """One message from client to server and its reply."""

    opcode: int
    name: str
    answer: Answer
    request: tuple[Field, ...]
    reply: tuple[Field, ...]
    driver: str  # the driver call to make, or "" when written by hand
    blocking: bool  # may wait for the device: leaves the session's order to others
    context: bool  # needs a current context
    request_tail: int  # most bytes that may follow the request's fields
    reply_tail: int
    doc: str
