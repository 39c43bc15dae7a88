"""States and their legal transitions, as tables.

A pair that is not in the table is illegal: :meth:`StateTable.check` raises
with the object's story, so that the report of a bug holds its history.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from farbus.errors import IllegalTransition


class JobState(enum.StrEnum):
    """Where a job is on its way."""

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class LeaseState(enum.StrEnum):
    """Where a lease is on its way; a device is free again only once it is RELEASED."""

    GRANTED = "granted"
    PREPARED = "prepared"
    RELEASING = "releasing"
    RELEASED = "released"


class NodeState(enum.StrEnum):
    """What the scheduler thinks of a node."""

    READY = "ready"
    CORDONED = "cordoned"
    LOST = "lost"


class DeviceState(enum.StrEnum):
    """What a device can be used for now."""

    FREE = "free"
    LEASED = "leased"
    WEDGED = "wedged"
    """Its lease is over, but its node can't take it back: an operation on it has failed or does not end."""
    CORDONED = "cordoned"
    MOVING = "moving"
    """On its way from a node, to one, or both."""
    UNASSIGNED = "unassigned"
    """At no node: free in its chassis, or taken from a node's bus."""
    LOST = "lost"


class SessionState(enum.StrEnum):
    """Where an agent's session with the scheduler is."""

    AWAY = "away"
    GREETING = "greeting"
    """The hello is on its way; what happens meanwhile is told right after the welcome."""
    OPEN = "open"


class VolumeState(enum.StrEnum):
    """Where a volume is: storage with a name, which outlives the leases of it."""

    CREATING = "creating"
    AVAILABLE = "available"
    ATTACHED = "attached"
    LOST = "lost"
    """Its drives can't be reached; what is on them may come back with them."""
    DELETING = "deleting"
    DELETED = "deleted"


S = TypeVar("S", bound=enum.StrEnum)


def tell(story: Iterable[str]) -> str:
    """Write an object's story for an error about it: ``story: preparing -> prepared``."""
    return f"story: {' -> '.join(story) or 'none is kept'}"


class StateTable(Generic[S]):
    """The arrows between the states of one kind of object."""

    def __init__(self, noun: str, arrows: Mapping[S, Iterable[S]]) -> None:
        self.noun = noun
        self.arrows = {source: frozenset(targets) for source, targets in arrows.items()}

    def check(self, name: str, source: S, target: S, story: Iterable[str] = ()) -> None:
        """Raise :class:`IllegalTransition`, with the story, where there is no arrow."""
        if target not in self.arrows.get(source, frozenset()):
            raise IllegalTransition(f"{self.noun} {name}: {source} to {target} is not legal ({tell(story)})")

    def is_final(self, state: S) -> bool:
        """Say whether nothing leads out of ``state``."""
        return not self.arrows.get(state)

    def mermaid(self) -> str:
        """Draw the table as a Mermaid state diagram, for the docs."""
        lines = ["stateDiagram-v2"]
        for source, targets in self.arrows.items():
            lines += [f"    {source} --> {target}" for target in sorted(targets)]
            if not targets:
                lines.append(f"    {source} --> [*]")
        return "\n".join(lines)


JOB_STATES: StateTable[JobState] = StateTable(
    "job",
    {
        JobState.QUEUED: (JobState.PREPARING, JobState.CANCELLED, JobState.FAILED),
        # A preparation that fails through no fault of the job puts it back into the queue.
        JobState.PREPARING: (JobState.RUNNING, JobState.FINISHING, JobState.QUEUED),
        JobState.RUNNING: (JobState.FINISHING,),
        JobState.FINISHING: (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.QUEUED),
        JobState.SUCCEEDED: (),
        JobState.FAILED: (),
        JobState.CANCELLED: (),
    },
)

LEASE_STATES: StateTable[LeaseState] = StateTable(
    "lease",
    {
        LeaseState.GRANTED: (LeaseState.PREPARED, LeaseState.RELEASING),
        LeaseState.PREPARED: (LeaseState.RELEASING,),
        LeaseState.RELEASING: (LeaseState.RELEASED,),
        LeaseState.RELEASED: (),
    },
)

_AT_REST = (DeviceState.FREE, DeviceState.CORDONED, DeviceState.UNASSIGNED, DeviceState.LOST)

DEVICE_STATES: StateTable[DeviceState] = StateTable(
    "device",
    {
        DeviceState.FREE: (
            DeviceState.LEASED,
            DeviceState.CORDONED,
            DeviceState.MOVING,
            DeviceState.UNASSIGNED,
            DeviceState.LOST,
        ),
        DeviceState.LEASED: (DeviceState.FREE, DeviceState.WEDGED, DeviceState.CORDONED, DeviceState.LOST),
        # Leased again: its agent was restarted, and goes on giving it up.
        # Moving again: who was to look has looked, and asks once more.
        DeviceState.WEDGED: (*_AT_REST, DeviceState.LEASED, DeviceState.MOVING),
        DeviceState.CORDONED: (DeviceState.FREE, DeviceState.MOVING, DeviceState.UNASSIGNED, DeviceState.LOST),
        # Leased at once: it was moved for a job.
        DeviceState.MOVING: (*_AT_REST, DeviceState.WEDGED, DeviceState.LEASED),
        DeviceState.UNASSIGNED: (DeviceState.FREE, DeviceState.CORDONED, DeviceState.MOVING, DeviceState.LOST),
        # With its node it comes back as it was: the lease has outlived the session.
        DeviceState.LOST: (
            DeviceState.FREE,
            DeviceState.LEASED,
            DeviceState.WEDGED,
            DeviceState.CORDONED,
            DeviceState.MOVING,
            DeviceState.UNASSIGNED,
        ),
    },
)

SESSION_STATES: StateTable[SessionState] = StateTable(
    "session",
    {
        SessionState.AWAY: (SessionState.GREETING,),
        SessionState.GREETING: (SessionState.OPEN, SessionState.AWAY),
        SessionState.OPEN: (SessionState.AWAY,),
    },
)

VOLUME_STATES: StateTable[VolumeState] = StateTable(
    "volume",
    {
        # A creation that fails is undone like a volume that nobody wants any more.
        VolumeState.CREATING: (VolumeState.AVAILABLE, VolumeState.DELETING),
        VolumeState.AVAILABLE: (VolumeState.ATTACHED, VolumeState.LOST, VolumeState.DELETING),
        VolumeState.ATTACHED: (VolumeState.AVAILABLE, VolumeState.LOST),
        VolumeState.LOST: (VolumeState.AVAILABLE, VolumeState.ATTACHED, VolumeState.DELETING),
        VolumeState.DELETING: (VolumeState.DELETED,),
        VolumeState.DELETED: (),
    },
)
