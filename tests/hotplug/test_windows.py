"""Room below bridges: what is said to fit can be laid out, and what is said not to can't."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.hotplug.windows import Want, Window, look_for_room, needed_windows, place_all
from farbus.linux.fake_pci import FakeFunction, FakePci
from farbus.linux.pci import KernelPci
from farbus.model.pci import Function, PciTree, Region, Space
from tests.hotplug.machines import GIB, MIB, PORT_A, drive, gpu, plain, server, two_ports, unpack


def functions(device: tuple[FakeFunction, ...]) -> tuple[Function, ...]:
    """Return what an agent would have seen of a device elsewhere."""
    return tuple(
        Function(
            address=f"0000:99:00.{number}", vendor=one.vendor, device=one.device, pci_class=one.pci_class, bars=one.bars
        )
        for number, one in enumerate(device)
    )


def want(size: int, space: Space = Space.MEMORY, *, wide: bool = False) -> Want:
    region = Region(index=0, space=space, start=0, size=size, wide=wide, assigned=False)
    return Want(region=region, size=size, alignment=size)


# Against every possible layout.


def can_be_laid_out(sizes: list[int], holes: list[tuple[int, int]]) -> bool:
    """Try every place for every BAR."""
    if not sizes:
        return True
    size, rest = sizes[0], sizes[1:]
    for low, high in holes:
        for start in range(-(-low // size) * size, high - size + 1, size):
            window = Window(Space.MEMORY, False, list(holes))
            window.take(start, start + size)
            if can_be_laid_out(rest, window.holes):
                return True
    return False


SIZES = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4)
HOLES = st.lists(st.tuples(st.integers(0, 24), st.integers(1, 9)), min_size=1, max_size=4)


@given(SIZES, HOLES)
def test_a_place_is_found_wherever_there_is_one(sizes: list[int], taken: list[tuple[int, int]]) -> None:
    window = Window(Space.MEMORY, False, [(0, 24)])
    for start, length in taken:
        window.take(start, start + length)
    holes = list(window.holes)
    left = place_all([want(size) for size in sizes], [window])
    assert (not left) == can_be_laid_out(sizes, holes)


@given(SIZES, HOLES)
def test_what_is_placed_lies_aligned_in_what_was_free_and_apart(sizes: list[int], taken: list[tuple[int, int]]) -> None:
    window = Window(Space.MEMORY, False, [(0, 24)])
    for start, length in taken:
        window.take(start, start + length)
    before = {place for low, high in window.holes for place in range(low, high)}
    used: set[int] = set()
    for size in sorted(sizes, reverse=True):
        start = window.place(want(size))
        if start is not None:
            assert start % size == 0
            lies = set(range(start, start + size))
            assert lies <= before
            assert not lies & used
            used |= lies
    assert {place for low, high in window.holes for place in range(low, high)} == before - used


KINDS = st.tuples(st.sampled_from([Space.MEMORY, Space.PREFETCHABLE]), st.booleans())


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), KINDS), min_size=1, max_size=4), st.integers(0, 8), st.integers(0, 8)
)
def test_with_two_windows_nothing_lies_where_it_must_not(
    wants: list[tuple[int, tuple[Space, bool]]], plain_size: int, prefetchable_size: int
) -> None:
    windows = [
        Window(Space.MEMORY, False, [(0, plain_size)] if plain_size else []),
        Window(Space.PREFETCHABLE, True, [(64, 64 + prefetchable_size)] if prefetchable_size else []),
    ]
    asked = [want(size, space, wide=wide) for size, (space, wide) in wants]
    free = sum(high - low for window in windows for low, high in window.holes)
    left = place_all(asked, windows)
    still = sum(high - low for window in windows for low, high in window.holes)
    assert free - still == sum(one.size for one in asked) - sum(one.size for one in left)
    # What must not be prefetched has room in the plain window alone.
    plain_wants = sum(one.size for one in asked if one.region.space is Space.MEMORY)
    plain_left = sum(one.size for one in left if one.region.space is Space.MEMORY)
    assert plain_wants - plain_left <= plain_size
    # Each by itself is refused only where no window that it may lie in would have taken it.
    for one in asked:
        alone = [
            Window(Space.MEMORY, False, [(0, plain_size)] if plain_size else []),
            Window(Space.PREFETCHABLE, True, [(64, 64 + prefetchable_size)] if prefetchable_size else []),
        ]
        allowed = (
            [(0, plain_size)] if one.region.space is Space.MEMORY else [(0, plain_size), (64, 64 + prefetchable_size)]
        )
        assert (not place_all([one], alone)) == can_be_laid_out([one.size], allowed)


@given(st.lists(st.sampled_from([MIB * 2**power for power in range(6)]), min_size=1, max_size=6))
def test_a_window_as_large_as_is_asked_for_takes_the_device(sizes: list[int]) -> None:
    device = [
        Function(
            address="0000:99:00.0",
            vendor=1,
            device=1,
            pci_class=0,
            bars=tuple(
                Region(index=index, space=Space.PREFETCHABLE, start=0, size=size, wide=True, assigned=False)
                for index, size in enumerate(sizes)
            ),
        )
    ]
    (needed,) = needed_windows(device)
    window = Window(Space.PREFETCHABLE, True, [(needed.alignment * 3, needed.alignment * 3 + needed.size)])
    assert place_all([want(size, Space.PREFETCHABLE, wide=True) for size in sizes], [window]) == []
    assert needed.size == sum(sizes)


def test_fragments_that_are_large_enough_together_do_not_do() -> None:
    window = Window(Space.MEMORY, False, [(0, 3), (5, 8)])
    assert [one.size for one in place_all([want(4)], [window])] == [4]
    assert window.largest == 2


def test_a_32_bit_bar_does_not_lie_above_4_gib() -> None:
    window = Window(Space.MEMORY, True, [(1 << 40, 1 << 41)])
    assert place_all([want(MIB)], [window]) != []
    assert place_all([want(MIB, wide=True)], [window]) == []


# Against trees.


@pytest.fixture
def ports(tmp_path: Path) -> FakePci:
    return two_ports(tmp_path)


def test_a_drive_fits_into_a_port_of_2_mib(ports: FakePci) -> None:
    assert look_for_room(ports.tree(), PORT_A, functions(drive())).fits
    assert not look_for_room(ports.tree(), PORT_A, functions(drive())).grows


def test_a_gpu_does_not_fit_where_the_root_bus_has_nothing_to_give(ports: FakePci) -> None:
    (ports.directory / "proc/iomem").write_text(
        "00000000-00000fff : Reserved\nfd000000-febfffff : PCI Bus 0000:00\n  fd200000-fd3fffff : PCI Bus 0000:01\n"
    )
    fit = look_for_room(ports.tree(), PORT_A, functions(gpu()))
    assert not fit.fits
    assert [str(misfit) for misfit in fit.misfits] == [
        "BAR 0 of 0000:99:00.0 (16 MiB, 64-bit): bridge 0000:00:03.0 has room for 8 MiB at most",
        "BAR 2 of 0000:99:00.0 (128 GiB, 64-bit, prefetchable): bridge 0000:00:03.0 has room for 8 MiB at most",
        "BAR 4 of 0000:99:00.0 (32 MiB, 64-bit, prefetchable): bridge 0000:00:03.0 has room for 8 MiB at most",
    ]
    assert any("pci=realloc,hpmmioprefsize=256G" in misfit.cure for misfit in fit.misfits)
    assert any('"Above 4G Decoding"' in misfit.cure for misfit in fit.misfits)


def test_an_empty_port_may_grow_in_what_the_root_bus_has(ports: FakePci) -> None:
    (ports.directory / "proc/iomem").write_text(
        "e0000000-febfffff : PCI Bus 0000:00\n8000000000-ffffffffff : PCI Bus 0000:00\n"
    )
    fit = look_for_room(ports.tree(), PORT_A, functions(gpu()))
    assert fit.fits
    assert fit.grows
    assert fit.unsure == ""


def test_who_may_not_read_addresses_is_told_so(ports: FakePci) -> None:
    (ports.directory / "proc/iomem").write_text("00000000-00000000 : PCI Bus 0000:00\n")
    fit = look_for_room(ports.tree(), PORT_A, functions(gpu()))
    assert fit.fits
    assert fit.unsure == "only root may read what root bus 0000:00 has to give (/proc/iomem)"


def test_a_port_with_something_below_it_does_not_grow(ports: FakePci) -> None:
    (ports.directory / "proc/iomem").write_text("8000000000-ffffffffff : PCI Bus 0000:00\n")
    ports.plug(PORT_A, plain(), announce=True)
    fit = look_for_room(ports.tree(), PORT_A, functions(plain()))
    assert fit.fits
    big = look_for_room(ports.tree(), PORT_A, functions(drive(size=2 * MIB)))
    assert [misfit.bar.size for misfit in big.misfits] == [2 * MIB]
    assert big.misfits[0].largest_bytes == MIB
    assert big.misfits[0].cure.startswith("boot with pci=realloc,hpmmiosize=2M, or give the firmware")


def test_a_gpu_fits_into_the_place_that_another_has_left_behind_a_switch(tmp_path: Path) -> None:
    pci = server(tmp_path)
    tree = pci.tree()
    assert not look_for_room(tree, "0000:17:03.0", functions(gpu())).fits
    for function in tree.below("0000:17:03.0"):
        pci._forget(function.address)
    fit = look_for_room(pci.tree(), "0000:17:03.0", functions(gpu()))
    assert fit.fits
    assert not fit.grows


def test_behind_a_switch_a_port_grows_only_in_the_switchs_own_window(tmp_path: Path) -> None:
    pci = server(tmp_path)
    for function in pci.tree().below("0000:17:03.0"):
        pci._forget(function.address)
    twice = (*gpu()[:1], gpu()[0])
    # 256 GiB and some: the port's own window is too small, and 2 TiB of the switch's 4 TiB are free.
    assert look_for_room(pci.tree(), "0000:17:03.0", functions(twice)).grows
    huge = tuple(
        Function(
            address="0000:99:00.0", vendor=1, device=1, pci_class=0,
            bars=(Region(index=0, space=Space.PREFETCHABLE, start=0, size=4096 * GIB, wide=True, assigned=False),),
        )
        for _ in range(1)
    )  # fmt: skip
    fit = look_for_room(pci.tree(), "0000:17:03.0", huge)
    assert [misfit.largest_bytes for misfit in fit.misfits] == [2048 * GIB]


def test_what_a_real_kernel_has_placed_fits_where_it_was(tmp_path: Path) -> None:
    tree = KernelPci(sys=unpack("q35-6.1", tmp_path) / "sys", proc=tmp_path).tree()
    for bridge in (function for function in tree.functions if function.is_bridge):
        below = tuple(function for function in tree.below(bridge.address) if not function.is_bridge)
        if below:
            rest = tuple(function for function in tree.functions if function not in below)
            assert look_for_room(PciTree(functions=rest), bridge.address, below) == look_for_room(
                PciTree(functions=rest), bridge.address, ()
            )
