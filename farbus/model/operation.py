"""What operators do: cordon, drain and forget nodes and devices, make room for a job."""

from __future__ import annotations

import enum

from farbus.model.job import JobStatus, TaskPlacement
from farbus.model.value import Value


class CordonKind(enum.StrEnum):
    """What can be cordoned."""

    NODE = "node"
    DEVICE = "device"


class Cordon(Value, frozen=True, kw_only=True):
    """An operator's word that a node or a device gets nothing new; ``at`` is seconds since the epoch."""

    kind: CordonKind
    name: str
    by: str
    at: float
    reason: str = ""


class CordonResult(Value, frozen=True, kw_only=True):
    """What a cordon or its end has come to; ``changed`` is false when it was so already."""

    name: str
    kind: CordonKind
    changed: bool


class DrainStatus(Value, frozen=True, kw_only=True):
    """The jobs that still use a node that is being drained; none once it is."""

    node: str
    jobs: tuple[JobStatus, ...] = ()
    lost: bool = False
    """The node can't be reached: its jobs let go of it once it is back, or is forgotten."""


class ForgottenNode(Value, frozen=True, kw_only=True):
    """A node that is off for good, with the leases, devices and jobs that went with it."""

    node: str
    leases: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class MovedJob(Value, frozen=True, kw_only=True):
    """A job that is ended and begins anew elsewhere."""

    job: str
    user: str
    came_from: tuple[TaskPlacement, ...] = ()
    goes_to: tuple[TaskPlacement, ...] = ()


class RoomPlan(Value, frozen=True, kw_only=True):
    """How room is made for a waiting job: which jobs move, and where it goes."""

    job: str
    placements: tuple[TaskPlacement, ...] = ()
    moved: tuple[MovedJob, ...] = ()
    begun: bool = False
    """Whether the jobs are being moved now."""
