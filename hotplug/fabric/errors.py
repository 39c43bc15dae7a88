"""What can go wrong with a chassis, each kind a class, each message one line that names the chassis.

Who moves devices needs to know three things of a failure: whether the chassis
was asked at all, whether the state is known now, and whether to try again.
"""

from __future__ import annotations

from farbus.errors import Conflict, ExitCode, FarbusError, NotFound, NotPermitted, TimedOut, Unavailable
from farbus.model.fabric import StrandedDevice


class ChassisUnavailable(Unavailable):
    """The chassis can't be reached, broke the connection or says that it can't serve now. Nothing is known by it."""


class ChassisBusy(ChassisUnavailable):
    """The chassis is at something else, or was changed by somebody meanwhile: ask again."""


class ChassisSilent(TimedOut):
    """The chassis did not answer before the deadline. What it was asked for may still happen."""


class ChassisRefused(NotPermitted):
    """The chassis does not accept these credentials, or is not the one whose certificate is known."""


class BadReply(FarbusError):
    """The chassis said something that can't be understood or contradicts itself."""


class StepRefused(Conflict):
    """The chassis said no, and reading it again shows that it did not do it."""


class DeviceElsewhere(Conflict):
    """The device is assigned to another port, and is not taken away from there unasked.

    ``at`` is that port; empty where it is at none, or where that is not told.
    """

    def __init__(self, message: str, *, at: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.at = at


class DeviceVanished(NotFound):
    """The device was there before a step, and several readings after it do not have it."""


class OutcomeUnknown(TimedOut):
    """A step was asked for, and no reading could tell what became of it: read again before anything else is done."""


class MoveUndone(Conflict):
    """A device could not be assigned to its new port, and is back at the old one."""


class MoveStranded(FarbusError):
    """A device was unassigned, and could be assigned neither to its new port nor back to the old one."""

    exit_code = ExitCode.FAILED

    def __init__(self, stranded: StrandedDevice) -> None:
        super().__init__(
            f"chassis {stranded.chassis}: device {stranded.device} was taken from port {stranded.source} and is at no "
            f"port now: {stranded.cause}",
            hint=f"farbus fabric assign {stranded.device} {stranded.target} goes on, "
            f"farbus fabric assign {stranded.device} {stranded.source} takes it back",
        )
        self.stranded = stranded
