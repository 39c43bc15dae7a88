"""Whether a device's BARs fit below a bridge, before anything is touched.

Pure.  A bridge passes on what lies in its windows, and nothing else; a device
whose BAR gets no place in one is there and does not work ("BAR 1: no space
for", "NVRM: BAR1 is 0M").  What is asked here is what the kernel will do when
it scans the bus below the bridge (drivers/pci/setup-bus.c, setup-res.c):

* A BAR has the size of a power of two and lies at a multiple of it.  The
  largest is placed first, each at the lowest place that is free.  With such
  sizes this finds a place for all wherever there is one.
* 64-bit prefetchable BARs go to the prefetchable window, or else below 4 GiB
  to the one for plain memory.  64-bit BARs that are not prefetchable go there
  too: a bridge has no other for them.
* Where the bus below is empty, the kernel may lay the bridge's windows anew,
  in what is free of the windows above it.  It goes no further up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from farbus.model.pci import FOUR_GIB, Address, Function, PciTree, Region, Space
from farbus.model.quantity import format_bytes
from farbus.model.value import Value

WINDOW_ALIGNMENT = {Space.IO: 4096, Space.MEMORY: 1 << 20, Space.PREFETCHABLE: 1 << 20}
"""Windows begin and end at multiples of these (PCI-to-PCI Bridge Architecture Specification, 3.2.5), in bytes."""

RESERVE_OPTION = {Space.IO: "hpiosize", Space.MEMORY: "hpmmiosize", Space.PREFETCHABLE: "hpmmioprefsize"}
"""What the kernel is told by to reserve for each hot-plug bridge at boot (kernel-parameters.txt, ``pci=``)."""

FIRMWARE = {
    Space.IO: "fewer devices with I/O ports",
    Space.MEMORY: "a larger MMIO range below 4 GiB",
    Space.PREFETCHABLE: '"Above 4G Decoding" and a larger MMIO range above 4 GiB',
}


class Misfit(Value, frozen=True, kw_only=True):
    """A BAR for which there is no room: of which function, what the bridge has, and what to do."""

    function: str
    bar: Region
    bridge: str
    largest_bytes: int
    """The largest BAR of its kind for which there would be room."""
    cure: str

    def __str__(self) -> str:
        width = "64" if self.bar.wide else "32"
        kind = {Space.IO: "I/O ports", Space.MEMORY: f"{width}-bit", Space.PREFETCHABLE: f"{width}-bit, prefetchable"}
        room = f"room for {format_bytes(self.largest_bytes)} at most" if self.largest_bytes else "no room for any"
        return (
            f"{self.bar.name} of {self.function} ({format_bytes(self.bar.size)}, {kind[self.bar.space]}): "
            f"bridge {self.bridge} has {room}"
        )


class Fit(Value, frozen=True, kw_only=True):
    """What becomes of a device's BARs below a bridge.

    ``grows`` says that the kernel has to enlarge the bridge's windows for it,
    ``unsure`` why nobody can tell; both are empty where it simply fits.
    """

    misfits: tuple[Misfit, ...] = ()
    grows: bool = False
    unsure: str = ""

    @property
    def fits(self) -> bool:
        """Say whether nothing is known to be in the way."""
        return not self.misfits


@dataclass(frozen=True)
class Want:
    """Something to be placed: ``size`` bytes at a multiple of ``alignment``."""

    region: Region
    size: int
    alignment: int
    owner: str = ""


@dataclass
class Window:
    """What is free of a window, as (start, end) in ascending order."""

    space: Space
    wide: bool
    holes: list[tuple[int, int]]

    @classmethod
    def of(cls, region: Region, taken: Iterable[Region]) -> Window:
        """Return what of ``region`` nothing of ``taken`` lies in."""
        window = cls(space=region.space, wide=region.wide, holes=[(region.start, region.end)])
        for other in taken:
            if (other.space is Space.IO) == (region.space is Space.IO):
                window.take(other.start, other.end)
        return window

    def take(self, start: int, end: int) -> None:
        """Let something lie there; what it overlaps is free no more."""
        left: list[tuple[int, int]] = []
        for low, high in self.holes:
            left += [(low, min(high, start))] if low < start else []
            left += [(max(low, end), high)] if end < high else []
        self.holes = [hole for hole in left if hole[0] < hole[1]]

    def place(self, want: Want) -> int | None:
        """Return the lowest place that is free for it, and take it; None where there is none."""
        limit = None if want.region.wide or want.region.space is Space.IO else FOUR_GIB
        for low, high in self.holes:
            start = -(-low // want.alignment) * want.alignment
            end = start + want.size
            if end <= high and (limit is None or end <= limit):
                self.take(start, end)
                return start
        return None

    @property
    def largest(self) -> int:
        """The largest power of two for which there is an aligned place."""
        best = 0
        for low, high in self.holes:
            size = 1
            while -(-low // size) * size + size <= high:
                best = max(best, size)
                size *= 2
        return best


def eligible(want: Region, windows: Sequence[Window]) -> list[Window]:
    """Return the windows in which a BAR may lie, the one that the kernel tries first in front.

    ``__pci_assign_resource`` of drivers/pci/setup-res.c.
    """
    if want.space is Space.IO:
        return [window for window in windows if window.space is Space.IO]
    memory = [window for window in windows if window.space is not Space.IO]
    plain = [window for window in memory if window.space is Space.MEMORY]
    if want.space is Space.MEMORY:
        # What is not prefetchable must not lie where a bridge may prefetch.  A root bus has wide windows for it.
        return [*(window for window in plain if window.wide and want.wide), *(w for w in plain if not w.wide)]
    prefetchable = [window for window in memory if window.space is Space.PREFETCHABLE]
    if want.wide:
        order = [*(w for w in prefetchable if w.wide), *(w for w in prefetchable if not w.wide)]
        return [*order, *(w for w in plain if w.wide), *(w for w in plain if not w.wide)]
    return [*(w for w in prefetchable if not w.wide), *plain, *(w for w in prefetchable if w.wide)]


def place_all(wants: Iterable[Want], windows: Sequence[Window]) -> list[Want]:
    """Place what finds room, the largest first; return what does not."""
    left = []
    for want in sorted(wants, key=lambda want: (-want.alignment, -want.size)):
        if not any(window.place(want) is not None for window in eligible(want.region, windows)):
            left.append(want)
    return left


def wants_of(device: Iterable[Function]) -> list[Want]:
    """Return what a device's functions can't do without."""
    return [
        Want(region=bar, size=bar.size, alignment=bar.size, owner=function.address)
        for function in device
        for bar in function.bars
        if bar.needed
    ]


def needed_windows(device: Iterable[Function]) -> list[Want]:
    """Return the windows that a bridge needs for a device alone.

    Powers of two leave no gaps when the largest comes first, so each window is
    as large as all that lies in it, and aligned as the largest of that.
    """
    found: list[Want] = []
    wants = wants_of(device)
    for space in Space:
        # A 64-bit BAR that is not prefetchable has no other window than the one below 4 GiB.
        inside = [want for want in wants if want.region.space is space]
        if inside:
            step = WINDOW_ALIGNMENT[space]
            size = -(-sum(want.size for want in inside) // step) * step
            wide = space is Space.PREFETCHABLE and all(want.region.wide for want in inside)
            region = Region(index=list(Space).index(space), space=space, start=0, size=size, wide=wide)
            found.append(Want(region=region, size=size, alignment=max(step, *(want.alignment for want in inside))))
    return found


def free_windows(tree: PciTree, bridge: str, *, without: str = "") -> list[Window]:
    """Return what is free of a bridge's windows, besides what is below it already.

    For the root bus of a function give its name (``0000:00``) instead.
    ``without`` is a function below whose place counts as free.
    """
    function = tree.get(bridge)
    if function is not None:
        regions: Sequence[Region] = function.windows
        below = tree.below(bridge)
    else:
        regions = tree.apertures.get(bridge, ())
        below = tuple(one for one in tree.below("") if one.at.bus_name == bridge)
    taken = [
        region
        for one in below
        if one.address != without
        for region in (*one.bars, *one.windows)
        if region.assigned and region.size
    ]
    if function is None:
        # What is on the root bus itself (the firmware's tables, an I/O APIC) is not seen here: it is small.
        taken += [region for one in below if one.address == without for region in one.bars if region.assigned]
    return [Window.of(region, taken) for region in regions if region.assigned]


def look_for_room(tree: PciTree, bridge: str, device: Sequence[Function]) -> Fit:
    """Say whether a device fits below a bridge as things are, or as the kernel may arrange them.

    ``device`` has the functions as they were seen elsewhere; only their BARs count.
    """
    port = tree.at(bridge)
    wants = wants_of(device)
    left = place_all(wants, free_windows(tree, bridge))
    if not left:
        return Fit()
    if not tree.below(bridge):
        above = port.parent or Address.parse(port.address).bus_name
        if not port.parent and above not in tree.apertures:
            return Fit(grows=True, unsure=f"only root may read what root bus {above} has to give (/proc/iomem)")
        room = free_windows(tree, above, without=bridge)
        if port.parent == "":
            # I/O ports of a root bus stand in /proc/ioports; they are plenty for what still has any.
            needed = [want for want in needed_windows(device) if want.region.space is not Space.IO]
        else:
            needed = needed_windows(device)
        lacking = {want.region.space for want in place_all(needed, room)}
        left = [want for want in left if want.region.space in lacking]
        if not left:
            return Fit(grows=True)
        return Fit(misfits=_misfits(left, bridge, room, device), grows=True)
    return Fit(misfits=_misfits(left, bridge, free_windows(tree, bridge), device))


def _misfits(
    left: Iterable[Want], bridge: str, windows: Sequence[Window], device: Sequence[Function]
) -> tuple[Misfit, ...]:
    return tuple(
        Misfit(
            function=want.owner,
            bar=want.region,
            bridge=bridge,
            largest_bytes=max((window.largest for window in eligible(want.region, windows)), default=0),
            cure=cure_for(want.region.space, device),
        )
        for want in sorted(left, key=lambda want: (want.owner, want.region.index))
    )


def cure_for(space: Space, device: Sequence[Function]) -> str:
    """Say what makes room for a device: an option for the kernel, with the size that would do, or the firmware."""
    total = sum(want.size for want in wants_of(device) if want.region.space is space)
    size = max(WINDOW_ALIGNMENT[space], 1 << max(0, total - 1).bit_length())
    return f"boot with pci=realloc,{RESERVE_OPTION[space]}={_option_size(size)}, or give the firmware {FIRMWARE[space]}"


def _option_size(size: int) -> str:
    """Write a size as the kernel reads it (memparse)."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)
