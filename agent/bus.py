"""Has the node's devices listed as soon as something comes or goes on its PCI bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from farbus.errors import Unavailable
from farbus.hotplug.watch import TreeWatch
from farbus.linux.pci import Pci
from farbus.linux.uevents import Uevents
from farbus.model.pci import FunctionRemoved, TreeEvent

_log = structlog.get_logger()


class BusWatch:
    """Calls ``changed`` after each change, one call at a time; many changes at once lead to one or two calls.

    ``expected`` says of an address whether it is being moved just now.
    """

    def __init__(
        self,
        *,
        pci: Pci,
        uevents: Uevents,
        changed: Callable[[], Awaitable[None]],
        expected: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._changed = changed
        self._news = asyncio.Event()
        self._watch = TreeWatch(pci=pci, uevents=uevents, told=self._told, expected=expected)

    async def run(self) -> None:
        """Watch until cancelled; where the kernel does not let us listen, say so and leave it to the next listing."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch.run(), name="uevents")
                group.create_task(self._follow(), name="bus")
        except* Unavailable as errors:
            _log.warning("uevents not heard", reason=str(errors.exceptions[0]))

    def _told(self, event: TreeEvent) -> None:
        gone = isinstance(event, FunctionRemoved)
        _log.info(
            "pci function removed" if gone else "pci function arrived",
            address=event.address, ids=event.ids, seqnum=event.seqnum, expected=event.expected,
        )  # fmt: skip
        self._news.set()

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._changed()
