"""The PCI door over trees: a real one of QEMU's, this machine's, and those that the fake builds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.errors import Conflict, NotFound, Unavailable
from farbus.linux.fake_pci import FakePci
from farbus.linux.pci import KernelPci
from farbus.linux.sysfs import KernelSysfs
from farbus.model.pci import Address, PciTree, Slot, Space
from tests.hotplug.machines import GIB, MIB, PORT_A, PORT_B, drive, gpu, plain, server, two_ports, unpack

Q35 = "q35-6.1"


@pytest.fixture
def q35(tmp_path: Path) -> PciTree:
    return KernelPci(sys=unpack(Q35, tmp_path) / "sys", proc=tmp_path).tree()


# What is true of every machine's tree.


def _this_machine(_: Path) -> PciTree:
    return KernelPci().tree()


def _recorded(directory: Path) -> PciTree:
    return KernelPci(sys=unpack(Q35, directory) / "sys", proc=directory).tree()


def _server(directory: Path) -> PciTree:
    return server(directory).tree()


@pytest.mark.parametrize("made", [_this_machine, _recorded, _server])
def test_trees_hang_together(made: Callable[[Path], PciTree], tmp_path: Path) -> None:
    tree = made(tmp_path)
    addresses = [function.address for function in tree.functions]
    assert addresses == sorted(addresses, key=Address.parse)
    for function in tree.functions:
        assert function.parent == "" or tree.at(function.parent).is_bridge
        assert function.parent == "" or tree.at(function.parent).secondary_bus == function.at.bus_name
        assert function in tree.device_of(function.address)
        assert all(region.size > 0 for region in function.bars)
        assert not function.removing
        assert bool(function.windows) <= function.is_bridge
    devices = [function.address for device in tree.devices() for function in device]
    assert sorted(devices) == sorted(function.address for function in tree.functions if not function.is_bridge)
    # What lies below a bridge lies in its windows.
    for function in tree.functions:
        for bar in function.bars:
            windows = tree.at(function.parent).windows if function.parent and bar.assigned else ()
            assert not windows or any(window.start <= bar.start and bar.end <= window.end for window in windows)


def test_a_machine_without_pci_has_an_empty_tree(tmp_path: Path) -> None:
    assert KernelPci(sys=tmp_path, proc=tmp_path).tree() == PciTree()


# What a real kernel tells.


def test_a_drive_in_a_port_is_read(q35: PciTree) -> None:
    found = q35.at("0000:01:00.0")
    assert (found.vendor, found.device, found.pci_class) == (0x1B36, 0x0010, 0x010802)
    assert (found.parent, found.driver) == ("0000:00:03.0", "nvme")
    (bar,) = found.bars
    assert (bar.index, bar.space, bar.start, bar.size, bar.wide) == (0, Space.MEMORY, 0xFDC00000, 0x4000, True)
    assert found.link is not None
    assert q35.slot_of("0000:01:00.0") == Slot(name="0", address="0000:01:00", powered=True, occupied=True, latch=0)


def test_windows_of_a_port_are_read_beside_its_own_bar(q35: PciTree) -> None:
    port = q35.at("0000:00:03.0")
    assert [(bar.name, bar.size) for bar in port.bars] == [("BAR 0", 0x1000)]
    assert [(w.space, w.start, w.size, w.wide) for w in port.windows] == [
        (Space.IO, 0x1000, 0x1000, False),
        (Space.MEMORY, 0xFDC00000, 0x200000, False),
        (Space.PREFETCHABLE, 0xFE800000, 0x200000, True),
    ]
    assert port.secondary_bus == "0000:01"
    assert port.is_port


def test_a_switch_is_a_chain_of_bridges(q35: PciTree) -> None:
    assert [bridge.address for bridge in q35.path_to("0000:05:00.0")] == [
        "0000:04:00.0",
        "0000:03:00.0",
        "0000:00:1c.0",
    ]
    below = [function.address for function in q35.subtree("0000:00:1c.0")]
    assert below == ["0000:00:1c.0", "0000:03:00.0", "0000:04:00.0", "0000:05:00.0", "0000:04:01.0", "0000:06:00.0"]


def test_all_functions_of_a_device_belong_together(q35: PciTree) -> None:
    both = [function.address for function in q35.device_of("0000:07:00.1")]
    assert both == ["0000:07:00.0", "0000:07:00.1"]
    # On the root bus each device number is a device.
    assert [function.address for function in q35.device_of("0000:00:1f.2")] == [
        "0000:00:1f.0", "0000:00:1f.2", "0000:00:1f.3",
    ]  # fmt: skip
    # A port is a device of its own, not the one below it.
    assert [function.address for function in q35.device_of("0000:04:00.0")] == ["0000:04:00.0"]


def test_the_serial_number_of_a_network_card_is_found_in_its_configuration_space(q35: PciTree) -> None:
    # As lspci -v shows it for QEMU's e1000e: made of its MAC address 52:54:00:12:34:56.
    assert q35.at("0000:07:00.0").serial == "52-54-00-ff-ff-12-34-56"
    assert q35.at("0000:01:00.0").serial == ""


def test_an_empty_slot_says_so(q35: PciTree) -> None:
    empty = q35.slot_below("0000:00:04.0")
    assert empty is not None
    assert (empty.name, empty.powered, empty.occupied, empty.attention) == ("0-2", False, False, -1)
    assert q35.below("0000:00:04.0") == ()


def test_drives_of_the_tree_have_serials(tmp_path: Path) -> None:
    found = KernelSysfs(str(unpack(Q35, tmp_path) / "sys")).nvme_controllers()
    assert {drive.address: drive.serial for drive in found} == {
        "0000:01:00.0": "FARBUS-N9",
        "0000:05:00.0": "FARBUS-X0",
    }


def test_a_removal_that_has_begun_is_seen(tmp_path: Path) -> None:
    # As in a guest whose drive did not answer: the attribute and the driver are gone, the rest is there.
    pci = KernelPci(sys=unpack(Q35, tmp_path) / "sys", proc=tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/remove").unlink()
    assert [function.address for function in pci.tree().removing()] == ["0000:01:00.0"]


def test_a_virtual_function_is_not_being_removed_though_it_can_not_be(tmp_path: Path) -> None:
    pci = KernelPci(sys=unpack(Q35, tmp_path) / "sys", proc=tmp_path)
    for name in ("remove", "rescan"):
        (tmp_path / f"sys/bus/pci/devices/0000:07:00.1/{name}").unlink()
    (tmp_path / "sys/bus/pci/devices/0000:07:00.1/physfn").symlink_to("../0000:07:00.0")
    tree = pci.tree()
    assert tree.removing() == ()
    assert tree.at("0000:07:00.1").physical == "0000:07:00.0"


def test_a_function_that_is_half_gone_is_left_out(tmp_path: Path) -> None:
    pci = KernelPci(sys=unpack(Q35, tmp_path) / "sys", proc=tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/resource").unlink()
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0/vendor").write_text("")
    (tmp_path / "sys/bus/pci/devices/nonsense").mkdir()
    addresses = {function.address for function in pci.tree().functions}
    assert "0000:07:00.0" in addresses
    assert not {"0000:01:00.0", "0000:05:00.0"} & addresses


def test_the_kernel_is_asked_at_the_bus_below_the_bridge_and_nowhere_else(tmp_path: Path) -> None:
    sys = unpack(Q35, tmp_path) / "sys"
    pci = KernelPci(sys=sys, proc=tmp_path)
    asyncio.run(pci.rescan_below("0000:00:03.0"))
    written = [path for path in sys.rglob("rescan") if path.read_text() == "1"]
    assert written == [sys / "devices/pci0000:00/0000:00:03.0/pci_bus/0000:01/rescan"]
    with pytest.raises(NotFound, match="no such bridge"):
        asyncio.run(pci.rescan_below("0000:00:09.0"))


def test_removing_writes_to_the_function(tmp_path: Path) -> None:
    sys = unpack(Q35, tmp_path) / "sys"
    pci = KernelPci(sys=sys, proc=tmp_path)
    asyncio.run(pci.remove("0000:07:00.1"))
    written = [path for path in sys.rglob("remove") if path.read_text() == "1"]
    assert written == [sys / "devices/pci0000:00/0000:00:1d.0/0000:07:00.1/remove"]
    asyncio.run(pci.remove("0000:0f:00.0"))
    (written[0]).unlink()
    with pytest.raises(Conflict, match="is removing it already"):
        asyncio.run(pci.remove("0000:07:00.1"))


def test_a_driver_is_found_by_its_alias(tmp_path: Path) -> None:
    (tmp_path / "modules.alias").write_text(
        "# Aliases extracted from modules themselves.\n"
        "alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia\n"
        "alias pci:v*d*sv*sd*bc01sc08i02* nvme\n"
    )
    pci = KernelPci(sys=tmp_path, proc=tmp_path, modules=tmp_path)
    assert pci.driver_for(vendor=0x10DE, device=0x2330, pci_class=0x030200) == "nvidia"
    assert pci.driver_for(vendor=0x144D, device=0xA80A, pci_class=0x010802) == "nvme"
    assert pci.driver_for(vendor=0x1002, device=0x740F, pci_class=0x038000) == ""


# The fake's kernel does what the real one did.


@pytest.fixture
def fake(tmp_path: Path) -> FakePci:
    return two_ports(tmp_path)


async def test_what_is_plugged_in_is_there_after_a_scan(fake: FakePci) -> None:
    fake.plug(PORT_A, drive())
    assert fake.tree().below(PORT_A) == ()
    await fake.rescan_below(PORT_A)
    (found,) = fake.tree().below(PORT_A)
    assert (found.address, found.driver, found.parent) == ("0000:01:00.0", "nvme", PORT_A)
    assert found.bars[0].assigned
    assert fake.tree().below(PORT_B) == ()


async def test_a_removed_function_comes_back_at_the_next_scan(fake: FakePci) -> None:
    fake.plug(PORT_A, drive(), announce=True)
    await fake.remove("0000:01:00.0")
    assert fake.tree().below(PORT_A) == ()
    assert KernelSysfs(str(fake.directory / "sys")).nvme_controllers() == ()
    await fake.remove("0000:01:00.0")
    await fake.rescan_below(PORT_A)
    assert [drive.serial for drive in KernelSysfs(str(fake.directory / "sys")).nvme_controllers()] == ["S1"]


async def test_a_bar_without_room_is_not_there_and_its_register_tells(fake: FakePci) -> None:
    fake.plug(PORT_A, gpu(), announce=True)
    first = fake.tree().at("0000:01:00.0")
    assert [bar.index for bar in first.bars] == []
    assert first.bars_unassigned == (0, 2, 4)


async def test_a_removal_that_hangs_holds_up_everything(fake: FakePci) -> None:
    fake.plug(PORT_A, drive(), announce=True)
    fake.plug(PORT_B, plain(), announce=True)
    fake.hang = True
    removal = asyncio.create_task(fake.remove("0000:01:00.0"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [function.address for function in fake.tree().removing()] == ["0000:01:00.0"]
    behind = asyncio.create_task(fake.rescan_below(PORT_B))
    await asyncio.sleep(0)
    assert not removal.done()
    assert not behind.done()
    with pytest.raises(Conflict):
        await fake.remove("0000:01:00.0")
    removal.cancel()
    behind.cancel()


async def test_a_write_that_is_refused_says_what_it_was(fake: FakePci) -> None:
    fake.refuse = "Input/output error"
    with pytest.raises(Unavailable, match=f"rescan below {PORT_A}: Input/output error"):
        await fake.rescan_below(PORT_A)


def test_eight_gpus_behind_a_switch(tmp_path: Path) -> None:
    tree = server(tmp_path).tree()
    gpus = [function for function in tree.functions if function.is_nvidia_gpu]
    assert len(gpus) == 8
    for gpu_function in gpus:
        assert len(tree.device_of(gpu_function.address)) == 2
        assert [bar.size for bar in gpu_function.bars] == [16 * MIB, 128 * GIB, 32 * MIB]
        assert gpu_function.bars_unassigned == ()
        slot = tree.slot_of(gpu_function.address)
        assert slot is not None
        assert slot.name == str(21 + gpus.index(gpu_function))
