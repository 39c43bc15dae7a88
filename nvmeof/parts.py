"""What the initiator's steps work with, and what they are told to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from farbus.errors import TimedOut
from farbus.linux.clock import Clock
from farbus.linux.device_mapper import DeviceMapper
from farbus.linux.nvme import NvmeFabrics
from farbus.linux.tls_keys import TlsKeys
from farbus.linux.uevents import News, Uevents
from farbus.model.holders import Look
from farbus.model.nvmeof import Connection, IoLimit, Stripe
from farbus.model.value import Value

DRAIN_S = 10.0
"""For programs to let go of what is disconnected: udev looks at what was closed just now."""

LOOK_INTERVAL_S = 0.5
"""Between two looks at what is to change where no uevent comes in between: attributes are filled later."""


class Attach(Value, frozen=True, kw_only=True):
    """Namespaces that are to be connected, and perhaps made one device: the body of a sequence in the journal.

    All that the steps need but keys.  ``limit`` is for the programs of the
    control group ``group``, on each namespace.  ``force`` takes away what is
    still held: only what is told back, once somebody has decided it.
    """

    id: str
    """What it is for: a lease, or a volume."""
    connections: tuple[Connection, ...]
    stripe: Stripe | None = None
    limit: IoLimit | None = None
    group: str = ""
    drain_s: float = DRAIN_S
    force: bool = False


class BlockHolders(Protocol):
    """Who holds block devices (:mod:`farbus.linux.holders`)."""

    async def look_at_blocks(self, names: list[str]) -> Look:
        """Return who holds them, with their partitions and what stands on them."""
        ...

    async def prove_blocks(self, names: list[str]) -> None:
        """Raise :class:`farbus.errors.Conflict` where the kernel uses one."""
        ...


class IoLimits(Protocol):
    """Control groups that can limit what goes to a block device (:mod:`farbus.linux.cgroups`)."""

    def limit_io(self, name: str, device: str, limit: IoLimit) -> None:
        """Limit a group."""
        ...

    def io_limit(self, name: str, device: str) -> IoLimit:
        """Return a group's limit."""
        ...


@dataclass(frozen=True, kw_only=True)
class InitiatorParts:
    """The doors of a node that connects."""

    nvme: NvmeFabrics
    mapper: DeviceMapper
    holders: BlockHolders
    uevents: Uevents
    clock: Clock
    cgroups: IoLimits | None = None
    tls_keys: TlsKeys | None = None
    """None where nothing is ever connected by TLS."""

    async def until(self, lacking: Callable[[], str], *, what: str, limit_s: float, hint: str = "") -> None:
        """Return once ``lacking`` says nothing any more: asked again with each uevent, and from time to time.

        Raises :class:`TimedOut` with what it said last.
        """
        end = self.clock.monotonic() + limit_s
        async with self.uevents.listen() as messages:
            news = News(messages.__anext__)
            try:
                while said := lacking():
                    left = end - self.clock.monotonic()
                    if left <= 0:
                        raise TimedOut(f"{what}: {said} after {limit_s:g} s", hint=hint)
                    await news.wait(self.clock.sleep(min(LOOK_INTERVAL_S, left)))
            finally:
                news.close()
