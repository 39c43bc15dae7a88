"""What the kernel's texts and a function's registers mean, and who is who."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import InvalidInput
from farbus.hotplug.parts import is_meant
from farbus.model.device import DeviceKind
from farbus.model.pci import (
    Address,
    Function,
    Identity,
    IdentityKind,
    PcieLink,
    PciTree,
    Region,
    Slot,
    Space,
    device_serial,
    identities,
    parse_apertures,
    parse_regions,
    parse_speed,
    unassigned_bars,
)
from tests.hotplug.harness import a_move

NONE = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"


def function(address: str, **values: object) -> Function:
    fields = {"vendor": 0x10DE, "device": 0x2330, "pci_class": 0x030200, **values}
    return Function(address=address, **fields)  # type: ignore[arg-type]


@given(st.integers(0, 0xFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_addresses_are_read_as_they_are_written(domain: int, bus: int, device: int, number: int) -> None:
    address = Address(domain, bus, device, number)
    assert Address.parse(str(address)) == address
    assert str(address).startswith(address.slot)


@pytest.mark.parametrize("text", ["", "17:00.0", "0000:17:00.8", "0000:17:00", "GPU-1", "0000:17:00.0 "])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no PCI address"):
        Address.parse(text)


def test_a_region_that_the_kernel_has_not_placed_is_told() -> None:
    text = "0x0000000000000000 0x0000000fffffffff 0x000000002014220c\n" + NONE * 6
    (bar,) = parse_regions(text, bridge=False).bars
    assert (bar.size, bar.assigned, bar.space, bar.wide) == (1 << 36, False, Space.PREFETCHABLE, True)


def test_virtual_functions_bars_and_roms_are_none_that_are_needed() -> None:
    line = "0x00000000fd000000 0x00000000fd0fffff 0x0000000000040200\n"
    bars = parse_regions(NONE * 6 + line + line + NONE * 5, bridge=False).bars
    assert [(bar.name, bar.needed) for bar in bars] == [("ROM", False), ("VF BAR 0", False)]


@pytest.mark.parametrize("before", [7, 13])
def test_windows_are_the_last_lines_whatever_the_kernel_was_built_with(before: int) -> None:
    text = NONE * before + "0x0000000000001000 0x0000000000001fff 0x0000000000000101\n" + NONE * 3
    (window,) = parse_regions(text, bridge=True).windows
    assert (window.index, window.space) == (0, Space.IO)


def test_a_line_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="line 1 of a resource file: 'x'"):
        parse_regions(NONE + "x\n", bridge=False)


def test_root_buses_have_what_iomem_says() -> None:
    text = (
        "000a0000-000bffff : PCI Bus 0000:00\n80000000-febfffff : PCI Bus 0000:00\n"
        "  fd800000-fdbfffff : PCI Bus 0000:01\n8000000000-ffffffffff : PCI Bus 0000:00\n"
        "c0000000-cfffffff : PCI Bus 0000:80\n"
    )
    found = parse_apertures(text, roots=["0000:00", "0000:80"])
    assert [(region.size, region.wide) for region in found["0000:00"]] == [
        (0x20000, False), (0x7EC00000, False), (1 << 39, True),
    ]  # fmt: skip
    assert len(found["0000:80"]) == 1
    assert parse_apertures("00000000-00000000 : PCI Bus 0000:00\n", roots=["0000:00"]) == {}


@pytest.mark.parametrize(
    ("text", "speed"), [("16.0 GT/s PCIe", 16.0), ("2.5 GT/s PCIe", 2.5), ("Unknown", 0.0), ("", 0.0)]
)
def test_speeds_are_read(text: str, speed: float) -> None:
    assert parse_speed(text) == speed


def test_a_link_with_fewer_lanes_is_degraded_a_slower_one_is_asleep() -> None:
    assert PcieLink(width=8, max_width=16, speed_gt_s=16.0, max_speed_gt_s=16.0).degraded
    assert not PcieLink(width=16, max_width=16, speed_gt_s=2.5, max_speed_gt_s=16.0).degraded
    assert str(PcieLink()) == "no link"


# Configuration space.


def config(*capabilities: bytes) -> bytes:
    return bytes(0x100) + b"".join(capabilities)


def test_a_serial_number_behind_another_capability_is_found() -> None:
    other = (0x110 << 20 | 0x10001).to_bytes(4, "little") + bytes(12)
    number = (0x10003).to_bytes(4, "little") + bytes([1, 2, 3, 4, 5, 6, 7, 8])
    assert device_serial(config(other, number)) == "08-07-06-05-04-03-02-01"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(64),
        bytes(4096),
        b"\xff" * 4096,
        config((0x10003).to_bytes(4, "little") + bytes(8)),
        config((0x10003).to_bytes(4, "little") + b"\xff" * 8),
        # A list that runs in a circle.
        config((0x100 << 20 | 0x10001).to_bytes(4, "little") + bytes(12)),
    ],
)
def test_no_serial_number_is_none(data: bytes) -> None:
    assert device_serial(data) == ""


@given(st.binary(max_size=600))
def test_no_configuration_space_breaks_anything(data: bytes) -> None:
    assert isinstance(device_serial(data), str)
    assert all(0 <= number < 6 for number in unassigned_bars(data, bars=()))


def test_bars_without_a_place_are_told_by_their_registers() -> None:
    data = bytearray(256)
    data[0x10] = 0b0100
    data[0x18] = 0b1100
    data[0x20] = 1
    placed = Region(index=0, space=Space.MEMORY, start=0xFD000000, size=4096, wide=True)
    assert unassigned_bars(bytes(data), bars=[placed]) == (2, 4)
    lost = Region(index=0, space=Space.MEMORY, start=0, size=4096, wide=True, assigned=False)
    assert unassigned_bars(bytes(data), bars=[lost]) == (0, 2, 4)


# Who is who.


def test_names_go_from_strong_to_weak() -> None:
    tree = PciTree(
        functions=(
            function("0000:01:00.0", serial="01-02"),
            function("0000:02:00.0", serial="03-04"),
            function("0000:03:00.0"),
            function("0000:04:00.0"),
        ),
        slots=(Slot(name="7", address="0000:03:00"),),
    )
    known = {"0000:01:00.0": Identity(name="GPU-1", kind=IdentityKind.UUID)}
    told = {address: (one.name, one.weak) for address, one in identities(tree, known=known).items()}
    assert told == {
        "0000:01:00.0": ("GPU-1", False),
        "0000:02:00.0": ("PCI-10de:2330-03-04", False),
        "0000:03:00.0": ("PCI-10de:2330@slot-7", True),
        "0000:04:00.0": ("PCI-10de:2330@0000:04:00", True),
    }


def test_a_virtual_function_belongs_to_its_physical_one() -> None:
    tree = PciTree(
        functions=(
            function("0000:01:00.0"),
            function("0000:01:00.4", physical="0000:01:00.0"),
            function("0000:02:00.0"),
        )
    )
    assert [one.address for one in tree.device_of("0000:01:00.4")] == ["0000:01:00.0", "0000:01:00.4"]


def test_the_meant_device_is_known_by_the_best_that_is_known() -> None:
    one = function("0000:01:00.0")
    uuid = Identity(name="GPU-1", kind=IdentityKind.UUID)
    serial = Identity(name="NVME-S1-Model", kind=IdentityKind.SERIAL, serial="S1")
    longer = Identity(name="NVME-S1-2-Model", kind=IdentityKind.SERIAL, serial="S1-2")
    weak = Identity(name="PCI-10de:2330@slot-7", kind=IdentityKind.POSITION)
    move = a_move("0011")
    assert is_meant(a_move("x", uuid="GPU-1"), one, uuid)
    assert not is_meant(a_move("x", uuid="GPU-2"), one, uuid)
    assert is_meant(a_move("x", serial="S1"), one, serial)
    assert not is_meant(a_move("x", serial="S2"), one, serial)
    assert not is_meant(a_move("x", serial="S1"), one, longer)
    # A name alone decides where it is the node's own.
    assert is_meant(a_move("GPU-1", uuid="GPU-1"), one, uuid)
    # Before its driver has it, only its ids tell.
    assert is_meant(a_move("x", uuid="GPU-1", vendor=0x10DE, device_id=0x2330), one, weak)
    assert not is_meant(a_move("x", uuid="GPU-1", vendor=0x1B36, device_id=0x0010), one, weak)
    assert is_meant(move, one, weak)
    assert is_meant(move, one, None)


def test_a_name_that_a_node_gave_means_no_other_device_of_its_kind() -> None:
    one = function("0000:01:00.0")
    here = a_move("NVME-S1-Model", chassis="", serial="", vendor=one.vendor, device_id=one.device)
    drive = Identity(name="NVME-S1-Model", kind=IdentityKind.SERIAL, serial="S1")
    assert is_meant(here, one, drive)
    # What its firmware calls its model may change.
    assert is_meant(here, one, Identity(name="NVME-S1-New_Model", kind=IdentityKind.SERIAL, serial="S1"))
    assert not is_meant(here, one, Identity(name="NVME-S2-Model", kind=IdentityKind.SERIAL, serial="S2"))
    ids = {"vendor": one.vendor, "device_id": one.device}
    card = Identity(name="PCI-10de:2330-00-01", kind=IdentityKind.DSN)
    assert not is_meant(a_move("PCI-10de:2330-00-02", chassis="", **ids), one, card)
    # A place says nothing of who is there, and before its driver had it a GPU was called by its ids.
    assert is_meant(a_move("PCI-10de:2330@slot-7", chassis="", **ids), one, card)
    assert is_meant(
        a_move("PCI-10de:2330-00-02", chassis="", **ids), one, Identity(name="GPU-1", kind=IdentityKind.UUID)
    )


@pytest.mark.parametrize(
    ("kind", "pci_class", "meant"),
    [
        (DeviceKind.GPU, 0x030200, True),
        (DeviceKind.GPU, 0x120000, True),
        (DeviceKind.GPU, 0x010802, False),
        (DeviceKind.NVME, 0x010802, True),
        (DeviceKind.NVME, 0x010400, False),
        (DeviceKind.NETWORK, 0x020000, True),
        (DeviceKind.NETWORK, 0x030200, False),
        (DeviceKind.PCI, 0x030200, True),
        (None, 0x030200, True),
    ],
)
def test_of_what_nothing_else_is_known_the_class_decides(kind: DeviceKind | None, pci_class: int, meant: bool) -> None:
    one = function("0000:01:00.0", pci_class=pci_class)
    weak = Identity(name="PCI-10de:2330@slot-7", kind=IdentityKind.POSITION)
    assert is_meant(a_move("0011", kind=kind), one, weak) is meant
