"""Keeps the PCI tree in mind, and tells what comes and goes: what was expected, and what was not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import structlog

from farbus.linux.pci import Pci
from farbus.linux.uevents import Uevents
from farbus.model.pci import Lost, PciTree, TreeEvent, Uevent, changes

_log = structlog.get_logger()

_ACTIONS = frozenset({"add", "remove"})


class TreeWatch:
    """Compares the tree with what it was, whenever the kernel says that it has changed.

    The tree decides, not the messages: one that is lost is made up for by
    listing, and one that comes twice tells nothing new.  Those that are there
    at once lead to one look: a card may bring hundreds of virtual functions,
    each with a message, and to read the tree takes the longer the more there are.
    ``expected`` says of
    an address whether somebody here attaches or detaches it just now; ``told``
    hears of each change.
    """

    def __init__(
        self,
        *,
        pci: Pci,
        uevents: Uevents,
        told: Callable[[TreeEvent], None],
        expected: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._pci = pci
        self._uevents = uevents
        self._told = told
        self._expected = expected
        self._tree: PciTree | None = None
        self._seqnums: dict[str, int] = {}
        self._going: set[str] = set()
        """Functions whose end was told: the kernel tells of it before their directories are gone (device_del)."""

    @property
    def tree(self) -> PciTree | None:
        """The tree as it was seen last; None before the first look."""
        return self._tree

    async def run(self) -> None:
        """Watch until cancelled.

        Raises :class:`Unavailable` where the kernel does not let us listen.
        """
        news = asyncio.Event()
        async with self._uevents.listen() as messages, asyncio.TaskGroup() as group:
            # After the socket is open: what changes from here on is told.
            self.look()
            group.create_task(self._look_after(news), name="look at the bus")
            await self._hear(messages, news)

    async def _hear(self, messages: AsyncIterator[Uevent | Lost], news: asyncio.Event) -> None:
        async for message in messages:
            if isinstance(message, Lost):
                _log.warning("uevents lost", reason=message.reason)
                # An end that was told may have been followed by a beginning that was not.
                self._going.clear()
                news.set()
            elif message.subsystem == "pci" and message.action in _ACTIONS and message.address:
                self._seqnums[message.address] = message.seqnum
                (self._going.add if message.action == "remove" else self._going.discard)(message.address)
                news.set()

    async def _look_after(self, news: asyncio.Event) -> None:
        while True:
            await news.wait()
            news.clear()
            self.look()

    def look(self) -> None:
        """Read the tree, and tell what is different; nothing at the first look."""
        seen = self._pci.tree()
        left = tuple(one for one in seen.functions if not (one.removing and one.address in self._going))
        after = msgspec.structs.replace(seen, functions=left)
        self._going &= {one.address for one in seen.functions}
        before, self._tree = self._tree, after
        if before is None:
            return
        for event in changes(before, after, seqnums=self._seqnums, expected=self._expected):
            self._told(event)
        there = {one.address for one in after.functions}
        self._seqnums = {address: number for address, number in self._seqnums.items() if address in there}
