"""Namespaces of several targets as one device, striped by device-mapper.

Nothing about it is on the drives: it is made anew, by the same plan, wherever
the volume is attached.  So a table is never believed; it is read again and
compared, before the device is handed over and when a restarted agent finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound
from farbus.linux.device_mapper import MappedStripe
from farbus.model.nvmeof import ExpectedNamespace, Stripe
from farbus.nvmeof.initiator import APPEAR_S, MARGIN_S, Result, drain
from farbus.nvmeof.parts import Attach, InitiatorParts

LEAST_CHUNK_BYTES = 128 << 10
"""Below this each request of a program that reads in order is cut over all drives, and each drive sees small ones."""

MOST_CHUNK_BYTES = 1 << 20
"""Above this, programs with few requests at a time keep one drive busy and the others idle."""


def choose_chunk(optimal_io_bytes: Iterable[int] = ()) -> int:
    """Return a chunk for drives that ask for I/O of these sizes (``queue/optimal_io_size``; 0 for no wish), in bytes.

    A power of two, and a multiple of what each drive asks for where that is one.
    """
    chunk = LEAST_CHUNK_BYTES
    for wish in optimal_io_bytes:
        while chunk < wish and chunk < MOST_CHUNK_BYTES:
            chunk *= 2
    return chunk


def plan_stripe(id: str, namespaces: Iterable[ExpectedNamespace], *, chunk_bytes: int = 0) -> Stripe:
    """Return the stripe over namespaces in this order: as much of each as of the smallest, in whole chunks.

    Raises :class:`InvalidInput` where there are less than two, one twice, or one smaller than a chunk.
    """
    members = tuple(namespaces)
    chunk = chunk_bytes or choose_chunk()
    paths = tuple(member.identity.by_id for member in members)
    if len(paths) < 2 or len(set(paths)) < len(paths):
        raise InvalidInput(f"stripe {id}: it takes two different namespaces or more")
    usable = min(member.size_bytes for member in members) // chunk * chunk
    if chunk & (chunk - 1) or not usable:
        raise InvalidInput(f"stripe {id}: chunks of {chunk} bytes do not fit", hint="a power of two")
    return Stripe(id=id, members=paths, member_bytes=usable, chunk_bytes=chunk)


@dataclass(frozen=True, kw_only=True)
class CreateStripe:
    """The members are one device, by a table that was read again."""

    parts: InitiatorParts
    work: Attach
    stripe: Stripe
    kind: str = "CreateStripe"
    lasting: bool = False

    @property
    def identity(self) -> str:
        """The device."""
        return f"stripe {self.stripe.uuid}"

    @property
    def devices(self) -> tuple[str, ...]:
        """The device, and nothing of its members: nobody else works on them."""
        return (f"device-mapper {self.stripe.name}",)

    @property
    def deadline_s(self) -> float:
        """For udev, and for holders to let go."""
        return APPEAR_S + self.work.drain_s + MARGIN_S

    @property
    def says(self) -> str:
        """What is done."""
        return f"stripe {len(self.stripe.members)} namespaces as {self.stripe.path}"

    def overdue(self) -> FarbusError | None:
        """There is nothing that only this step knows."""
        return None

    def _is_right(self, found: MappedStripe) -> bool:
        nvme = self.parts.nvme
        members = tuple(nvme.block_number(nvme.leads_to(member)) for member in self.stripe.members)
        return (
            found.members == members
            and (found.member_bytes, found.chunk_bytes) == (self.stripe.member_bytes, self.stripe.chunk_bytes)
            and not any(found.offsets)
        )

    async def observe(self, known: Result | None) -> Result | None:
        """Look for it by its UUID, and compare its table with the plan."""
        found = await self.parts.mapper.find(self.stripe.uuid)
        if found is None or not self._is_right(found) or self._lacking(found):
            return None
        return {"path": self.stripe.path}

    async def do(self) -> Result:
        """Make it; one of ours that stands on something else is taken apart first, if nobody holds it."""
        for member in self.stripe.members:
            if not self.parts.nvme.leads_to(member):
                raise NotFound(f"stripe {self.stripe.name}: {member} is not there")
        found = await self.parts.mapper.find(self.stripe.uuid)
        if found is not None and not self._is_right(found):
            await self._remove(found)
            found = None
        if found is None:
            await self.parts.mapper.create(self.stripe)
            found = await self.parts.mapper.find(self.stripe.uuid)
        if found is None or not self._is_right(found):
            raise Conflict(f"stripe {self.stripe.name}: its table is not what was asked for", hint="see dmsetup table")
        made = found
        await self.parts.until(
            lambda: self._lacking(made), what=f"stripe {self.stripe.name}", limit_s=APPEAR_S, hint="does udev run?"
        )
        return {"path": self.stripe.path}

    def _lacking(self, found: MappedStripe) -> str:
        leads_to = self.parts.nvme.leads_to(self.stripe.path)
        return "" if leads_to == found.device else f"{self.stripe.path} leads to {leads_to or 'nothing'}"

    async def compensate(self) -> None:
        """Take it apart once nobody holds it; raise :class:`Conflict` with who does.

        Forced or not: device-mapper does not let go of what is open.
        """
        found = await self.parts.mapper.find(self.stripe.uuid)
        if found is not None:
            await self._remove(found)

    async def _remove(self, found: MappedStripe) -> None:
        limit_s = 0.0 if self.work.force else self.work.drain_s
        await drain(self.parts, [found.device], what=f"take {found.name} apart", limit_s=limit_s)
        await self.parts.mapper.remove(found.name)
