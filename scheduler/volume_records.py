"""What the scheduler keeps of volumes."""

from __future__ import annotations

import msgspec

from farbus.model.decision import StorageShare
from farbus.model.states import VolumeState
from farbus.model.value import Value
from farbus.model.volume import STEP_BYTES, VolumePart, stepped


class StoredVolume(Value, frozen=True, kw_only=True):
    """A volume as the ledger has it; ``at`` in seconds since the epoch.

    ``state`` is what is wanted of it: creating, available or deleting, and deleted
    once it is gone.  Whether it is attached or lost leases and nodes say.
    """

    id: str
    """Of its own: another volume may have had the name."""
    name: str
    user: str
    size_bytes: int
    bandwidth_bytes_per_s: int = 0
    parts: tuple[VolumePart, ...]
    """As large as their nodes have confirmed, or as they are to be made at first."""
    nodes: tuple[str, ...]
    """Who stores each part."""
    state: VolumeState
    at: float
    change: int = 0
    """Counts what was asked of it: a node is asked for each change by an id of its own."""
    done: tuple[bool, ...] = ()
    """Which nodes have confirmed their parts of the change that is under way."""
    resize_to: int = 0
    """The size that it is to have; 0 while it keeps the one that it has."""
    by: str = ""
    """Who asked for the change."""
    error: str = ""
    """Why the last change failed, or why a creation is taken back."""
    late: str = ""
    """Why whoever used it has not seen how large it has become, and when he will."""
    late_lease: str = ""
    """The lease for which that is true."""

    @property
    def is_live(self) -> bool:
        """Whether it takes room."""
        return self.state is not VolumeState.DELETED

    @property
    def is_changing(self) -> bool:
        """Whether nodes have something to do for it."""
        return self.state in (VolumeState.CREATING, VolumeState.DELETING) or bool(self.resize_to)

    @property
    def counted_bytes(self) -> int:
        """What it takes of a quota: its size, and what a failed resize has left; an extent of each drive at least."""
        left = sum(part.size_bytes - self.part_bytes for part in self.parts)
        least = STEP_BYTES * sum(len(part.drives) for part in self.parts)
        return max(self.size_bytes + left, self.resize_to, least)

    @property
    def part_bytes(self) -> int:
        """What of each part can be used: stripes are of one size, and a resize that failed may have left one larger."""
        return min(part.size_bytes for part in self.parts)

    @property
    def wanted_part_bytes(self) -> int:
        """How large each part is to be: whole extents of its drives."""
        each = -(-max(self.size_bytes, self.resize_to) // len(self.parts))
        return stepped(each, len(self.parts[0].drives))

    def wanted_part(self, index: int) -> VolumePart:
        """Return a part as it is to be."""
        part = self.parts[index]
        return msgspec.structs.replace(part, size_bytes=max(part.size_bytes, self.wanted_part_bytes))

    def share(self, index: int) -> StorageShare:
        """Return what a part takes of each of its drives."""
        drives = len(self.parts[index].drives)
        return StorageShare(
            size_bytes=-(-self.wanted_part(index).size_bytes // drives),
            bandwidth_bytes_per_s=-(-self.bandwidth_bytes_per_s // (drives * len(self.parts))),
            drives=drives * len(self.parts),
            is_volume=True,
        )


class VolumeRecord(msgspec.Struct, eq=False):
    """A volume that takes room."""

    volume: StoredVolume
    troubles: dict[int, str] = {}
    """What the nodes of parts have said last of what they could not do, since the scheduler was started."""
    growing: str = ""
    """The lease whose node is asked to let what it has made of it grow, or has done so."""
    grown: bool = False
    """Whether it has answered."""
    jobs: set[str] = set()
    """Jobs that name it and have not ended."""
