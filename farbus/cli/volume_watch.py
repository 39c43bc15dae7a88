"""Following what was asked of a volume, from its first word to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec

from farbus.cli.following import closing, say, told_or_listed
from farbus.errors import Unavailable
from farbus.model.states import VolumeState
from farbus.model.volume import VolumeStatus

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

Begin = Callable[["ClusterClient"], AsyncIterator[VolumeStatus]]
IsDone = Callable[[VolumeStatus | None], bool]
"""Says of a volume in a listing, None where it is not there, whether nothing more comes of what was asked for."""


def is_attached(found: VolumeStatus | None) -> bool:
    """Say whether nothing more comes of an attachment."""
    return found is None or not found.job or (bool(found.attached_to) and not found.says)


def is_detached(found: VolumeStatus | None) -> bool:
    """Say whether nobody has it."""
    return found is None or not found.job


class VolumeWatch:
    """What was asked of one volume, and what is known of it."""

    def __init__(self, name: str, begin: Begin, is_done: IsDone, *, quiet: bool) -> None:
        self._name = name
        self._begin = begin
        self._is_done = is_done
        self._quiet = quiet
        self._status: VolumeStatus | None = None
        self._told = ""

    async def run(self, client: ClusterClient) -> VolumeStatus:
        """Follow it to its end, and return its last status."""
        async with closing(self._statuses(client)) as statuses:
            async for status in statuses:
                self._status = status
                self._tell(status)
        if self._status is None:
            raise Unavailable(f"volume {self._name}: nobody has said what becomes of it", hint="farbus volume list")
        return self._status

    def _statuses(self, client: ClusterClient) -> AsyncIterator[VolumeStatus]:
        """Yield the volume; where whom it was asked of goes away meanwhile, look for it in the listing."""

        async def look(begun: VolumeStatus) -> tuple[VolumeStatus, bool]:
            volumes = await client.list_volumes()
            found = next((each for each in volumes if each.name == self._name), None)
            # One that is gone was deleted, or was taken back after what was said last of it.
            gone = msgspec.structs.replace(begun, state=VolumeState.DELETED, says="")
            return found or gone, self._is_done(found)

        return told_or_listed(lambda: self._begin(client), look)

    @property
    def goes_on(self) -> bool:
        """Whether it has been taken up, and has not failed."""
        return self._status is not None and not self._status.error

    def leave(self) -> None:
        """Say that what was begun goes on."""
        if self._status is not None:
            say(f"what was asked of volume {self._name} goes on; farbus volume list shows how far it is")

    def _tell(self, status: VolumeStatus) -> None:
        line = f"{status.name}: {status.state}: {status.says}"
        if status.says and not self._quiet and line != self._told:
            self._told = line
            say(line)
