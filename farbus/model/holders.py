"""Who holds a device: everything that has to let go of it before it may be removed."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from farbus.model.value import Value


class HolderKind(enum.StrEnum):
    """In which way a device is held."""

    PROCESS = "process"
    """A program has one of its device nodes open, or mapped into its memory."""
    MOUNT = "mount"
    SWAP = "swap"
    BLOCK = "block device"
    """Device-mapper, md, a loop device or a file system of several devices stands on it."""
    EXPORT = "export"
    """A namespace of the NVMe target."""
    NETWORK = "network interface"
    KERNEL = "kernel"
    """It can't be opened exclusively, and nobody tells why."""
    SESSION = "session"
    """A remoting session, or another use under a lease: the agent knows."""
    OWN = "own"
    """Our own NVML worker, which lets go when it is told to."""


EVICTABLE = frozenset({HolderKind.PROCESS, HolderKind.SESSION})
"""What ``--evict`` ends.  What stands on a disk may have data in flight that only its owner knows how to save."""

CURES: Mapping[str, str] = {
    "nvidia-persiste": "systemctl stop nvidia-persistenced",
    "nv-hostengine": "stop DCGM: systemctl stop nvidia-dcgm",
    "dcgm-exporter": "stop the exporter of DCGM, and start it again afterwards",
    "Xorg": "end the display server",
}
"""What programs that nobody thinks of are told to let go by, by their names as the kernel cuts them (15 characters)."""


class Holder(Value, frozen=True, kw_only=True):
    """One holder: what it holds (``path``), who it is, and what makes it let go."""

    kind: HolderKind
    name: str
    path: str = ""
    pid: int = 0
    started: int = 0
    """When the process started, in ticks since the boot: with its pid this names it for good."""
    user: str = ""
    cure: str = ""

    @property
    def evictable(self) -> bool:
        """Say whether ``--evict`` may end it."""
        return self.kind in EVICTABLE

    def __str__(self) -> str:
        if self.kind is HolderKind.PROCESS:
            owner = f" of {self.user}" if self.user else ""
            return f"{self.path} is open in pid {self.pid} ({self.name}){owner}"
        if self.kind is HolderKind.MOUNT:
            return f"{self.path} is mounted on {self.name}"
        if self.kind is HolderKind.KERNEL:
            return f"{self.path} is in use by {self.name}"
        return f"{self.kind} {self.name} uses {self.path}" if self.path else f"{self.kind} {self.name}"


class Look(Value, frozen=True, kw_only=True):
    """What one look has found.  ``unseen`` says what could not be looked at: nothing is proven then."""

    holders: tuple[Holder, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def clear(self) -> bool:
        """Say whether nobody but ourselves holds it, and all places were looked at."""
        return not self.others and not self.unseen

    @property
    def others(self) -> tuple[Holder, ...]:
        """The holders that are not our own."""
        return tuple(holder for holder in self.holders if holder.kind is not HolderKind.OWN)

    def without_trust(self) -> Look:
        """Return the look as it counts once our own have let go: who is still called so holds the device like others.

        Anybody may give his process such a name.
        """
        counted = tuple(
            msgspec.structs.replace(holder, kind=HolderKind.PROCESS) if holder.kind is HolderKind.OWN else holder
            for holder in self.holders
        )
        return msgspec.structs.replace(self, holders=counted)

    def with_more(self, holders: tuple[Holder, ...]) -> Look:
        """Return the look with holders that somebody else knows of."""
        return msgspec.structs.replace(self, holders=(*self.holders, *holders))

    def told(self, *, limit: int = 5) -> str:
        """Return the holders in one line with their cures, at most ``limit`` of them."""
        words = [f"{holder} ({holder.cure})" if holder.cure else str(holder) for holder in self.others]
        more = [f"and {len(words) - limit} more"] if len(words) > limit else []
        return "; ".join([*words[:limit], *more, *self.unseen])
