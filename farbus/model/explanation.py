"""Why a job is where it is: what ``farbus explain`` tells."""

from __future__ import annotations

from farbus.model.job import JobStatus, TaskPlacement
from farbus.model.value import Value


class Holder(Value, frozen=True, kw_only=True):
    """A job that has what a waiting one needs."""

    job: str
    user: str
    nodes: tuple[str, ...] = ()
    """Nodes on which its end would make room."""
    devices: tuple[str, ...] = ()
    """Devices that its end would free."""
    leases: tuple[str, ...] = ()
    ends_in_s: float | None = None
    """When it ends at the latest, or as its like did before; None where nobody knows."""
    basis: str = ""
    """By what that is known: ``time limit``, ``earlier runs`` or ``it is ending``."""


class Opening(Value, frozen=True, kw_only=True):
    """What would have to end for a waiting job to have room, found by deciding as if it had."""

    holders: tuple[Holder, ...] = ()
    """Those that the caller may see."""
    others: int = 0
    """How many more there are, of other users."""
    expected_s: float | None = None
    """Seconds until all of them have ended, if nothing else takes the room; None where nobody knows."""
    placements: tuple[TaskPlacement, ...] = ()
    """Where the job would go then."""


class Explanation(Value, frozen=True, kw_only=True):
    """A job with why it is where it is, in words and as values."""

    status: JobStatus
    lines: tuple[str, ...] = ()
    ahead: int = 0
    """Jobs ahead of it in the queue."""
    opening: Opening | None = None
    """None for a job that does not wait, that no end would help, or where it was not found in time."""
