"""Moves of devices between nodes: what an operator asks for, what each node does of it, and how far it is."""

from __future__ import annotations

import enum
import math

from farbus.errors import InvalidInput
from farbus.model.pci import Function
from farbus.model.value import Value

MAX_NAME = 256
"""Characters of a device's, a node's, a port's name."""
MAX_DRAIN_S = 86_400.0
"""Longest that holders are given."""


class MoveState(enum.StrEnum):
    """How far a move is."""

    DETACHING = "detaching"
    ATTACHING = "attaching"
    DONE = "done"
    FAILED = "failed"
    """Refused or stopped before anything was changed."""
    UNDONE = "undone"
    """Stopped, and the device is where it was."""
    STUCK = "stuck"
    """Neither finished nor undone: somebody has to look."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is done of it."""
        return self not in (MoveState.DETACHING, MoveState.ATTACHING)


class MoveRequest(Value, frozen=True, kw_only=True):
    """A device is to come to ``node``; with no node it is to go from where it is, and no more.

    ``port`` is the chassis's port of that node, empty where there is one.
    ``drain_s`` is how long holders have to go by themselves; 0 for the default.
    """

    device: str
    node: str = ""
    port: str = ""
    evict: bool = False
    drain_s: float = 0.0
    dry_run: bool = False

    def check(self) -> None:
        """Raise :class:`InvalidInput` for what no cluster could do."""
        for field in ("device", "node", "port"):
            value = getattr(self, field)
            if len(value) > MAX_NAME or not value.isprintable():
                raise InvalidInput(f"{field}: it is longer than {MAX_NAME} characters, or not printable")
        if not self.device:
            raise InvalidInput("device: none is named", hint="farbus devices lists them")
        if self.port and not self.node:
            raise InvalidInput("port: it is that of a node, and none is named")
        if not 0 <= self.drain_s <= MAX_DRAIN_S or math.isnan(self.drain_s):
            raise InvalidInput(f"drain_s: {self.drain_s:g} is not from 0 to {MAX_DRAIN_S:g}")


class NodeMove(Value, frozen=True, kw_only=True):
    """What a node says of its part of a move, when it has ended or with ``dry_run``.

    ``functions`` is what it saw of the device, which the next node's preflight
    needs; ``plan`` its steps in words; ``expected_s`` how long they are likely to
    take, in seconds.  ``identity`` and ``path`` are the device's where it came to.
    ``changed`` says whether anything had been done that had to be undone, and
    ``stuck`` that it is neither done nor undone.  ``hint`` is what to do about
    an error, with which the error's own words end.
    """

    functions: tuple[Function, ...] = ()
    plan: tuple[str, ...] = ()
    in_the_way: tuple[str, ...] = ()
    expected_s: float = 0.0
    identity: str = ""
    path: str = ""
    changed: bool = False
    stuck: bool = False
    hint: str = ""


class MoveStatus(Value, frozen=True, kw_only=True):
    """A move as listings show it; times in seconds, ``at`` since the epoch."""

    id: str
    device: str
    from_node: str = ""
    to_node: str = ""
    chassis: str = ""
    port: str = ""
    state: MoveState
    says: str = ""
    step: int = 0
    steps: int = 0
    expected_s: float = 0.0
    took_s: float = 0.0
    by: str
    at: float
    error: str = ""
    hint: str = ""
    plan: tuple[str, ...] = ()
    in_the_way: tuple[str, ...] = ()
    path: str = ""
