"""``farbus devices --tree`` and what ``farbus doctor`` says of PCI, over recorded and built machines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from farbus.cli.findings import Verdict
from farbus.cli.listing import plain_table
from farbus.cli.pci_diagnosis import examine_pci
from farbus.cli.pci_tree import TREE_COLUMNS, read_tree
from farbus.linux.pci import KernelPci
from farbus.model.device import Device, DeviceKind, DeviceStatus
from farbus.model.states import DeviceState
from tests.hotplug.machines import PORT_A, drive, gpu, server, two_ports, unpack


def status(name: str, address: str) -> DeviceStatus:
    device = Device(id=name, kind=DeviceKind.GPU, model="H100", pci_address=address)
    return DeviceStatus(device=device, node="n1", state=DeviceState.LEASED, lease="l7", used_by="alice")


def test_a_recorded_machine_is_drawn(tmp_path: Path) -> None:
    found = read_tree((), sys=str(unpack("q35-6.1", tmp_path) / "sys"), proc=str(tmp_path))
    shown = [column for column in TREE_COLUMNS if not column.wide]
    text = plain_table([[column.cell(row) or "-" for column in shown] for row in found], shown)
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("0000:00:1c.0"))
    assert [line[:18].rstrip() for line in lines[start : start + 4]] == [
        "0000:00:1c.0",
        "└ 0000:03:00.0",
        "  └ 0000:04:00.0",
        "    └ 0000:05:00.0",
    ]
    assert "NVME-FARBUS-X0-QEMU_NVMe_Ctrl" in lines[start + 3]
    assert "PCI-8086:10d3-52-54-00-ff-ff-12-34-56" in text
    assert "PCI-1234:11e8@slot-0-4 (weak)" in text


def test_leases_stand_beside_their_devices(tmp_path: Path) -> None:
    machine = server(tmp_path)
    found = read_tree(
        (status("GPU-3", "0000:1a:00.0"),), sys=str(machine.directory / "sys"), proc=str(machine.directory / "proc")
    )
    (row,) = [row for row in found if row.lease]
    assert (row.address, row.device, row.weak, row.used_by, row.slot) == ("0000:1a:00.0", "GPU-3", False, "alice", "23")
    # The others have serial numbers of their own.
    assert len({row.device for row in found if row.kind == "GPU"}) == 8
    assert not any(row.weak for row in found if row.kind == "GPU")
    msgspec.json.encode(found)


def test_two_devices_with_one_serial_number_are_named_by_their_places(tmp_path: Path) -> None:
    machine = two_ports(tmp_path)
    for port in ("0000:00:03.0", "0000:00:04.0"):
        machine.plug(port, (msgspec.structs.replace(drive()[0], driver="", serial="01-02-03-04-05-06-07-08"),))
        machine._enumerate(port)
    found = read_tree((), sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc"))
    assert [(row.device, row.weak) for row in found if row.kind == "NVMe"] == [
        ("PCI-1b36:0010@slot-1", True),
        ("PCI-1b36:0010@slot-2", True),
    ]


def test_a_hot_plug_port_is_shown_with_its_slot_also_while_that_is_empty(tmp_path: Path) -> None:
    machine = two_ports(tmp_path)
    machine.plug("0000:00:03.0", drive())
    machine._enumerate("0000:00:03.0")
    found = read_tree((), sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc"))
    (column,) = [column for column in TREE_COLUMNS if column.title == "SLOT"]
    assert {row.address: column.cell(row) for row in found if row.address in ("0000:01:00.0", "0000:00:04.0")} == {
        "0000:01:00.0": "1",
        "0000:00:04.0": "port of 2",
    }


# The doctor.


def findings(pci: KernelPci, check: str) -> list[tuple[Verdict, str, str]]:
    return [(one.verdict, one.found, one.cure) for one in examine_pci(pci, root=True) if one.check == check]


def test_ports_of_a_recorded_machine_take_drives(tmp_path: Path) -> None:
    (tmp_path / "cmdline").write_text("root=/dev/vda pci=noaer quiet")
    pci = KernelPci(sys=unpack("q35-6.1", tmp_path) / "sys", proc=tmp_path)
    ((verdict, found, cure),) = findings(pci, "pci ports")
    assert verdict is Verdict.NOTE
    assert found == (
        "5 of 5 have windows for drives, not for GPUs (pci=noaer): 0000:00:03.0 (slot 0): 2 MiB, 2 MiB prefetchable"
    )
    assert "pci=realloc,hpmmioprefsize=256G" in cure


def test_a_server_for_gpus_has_room(tmp_path: Path) -> None:
    assert findings(server(tmp_path), "pci ports") == [(Verdict.OK, "8 with room for GPUs", "")]


def test_a_bar_without_a_place_is_a_warning_with_its_cure(tmp_path: Path) -> None:
    machine = two_ports(tmp_path)
    machine.plug(PORT_A, gpu()[:1], announce=True)
    ((verdict, found, cure),) = findings(machine, "pci windows")
    assert verdict is Verdict.WARNING
    assert found == "BAR 0, BAR 2, BAR 4 of 0000:01:00.0 (GPU) has no place: the device can't work"
    assert "pci=realloc,hpmmioprefsize=" in cure


def test_a_gpu_without_a_driver_is_a_warning(tmp_path: Path) -> None:
    machine = two_ports(tmp_path)
    machine.no_driver = True
    machine.plug(PORT_A, gpu()[:1], announce=True)
    ((verdict, found, cure),) = findings(machine, "pci drivers")
    assert (verdict, found) == (Verdict.WARNING, "0000:01:00.0 (GPU, 10de:2330) has no driver")
    assert cure == "install the driver for this kernel"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/modules.alias").write_text("alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia\n")
    assert findings(machine, "pci drivers")[0][2] == "modprobe nvidia, and look at dmesg"


def test_a_wedged_removal_is_broken(tmp_path: Path) -> None:
    machine = two_ports(tmp_path)
    machine.plug(PORT_A, drive(), announce=True)
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/remove").unlink()
    ((verdict, found, cure),) = findings(machine, "pci removal")
    assert verdict is Verdict.BROKEN
    assert found.startswith("wedged: the kernel has not finished removing 0000:01:00.0")
    assert cure.endswith("reboot the node")


@pytest.mark.parametrize(("root", "count"), [(True, 0), (False, 1)])
def test_who_may_do_nothing_is_told_so(tmp_path: Path, root: bool, count: int) -> None:
    told = [one for one in examine_pci(two_ports(tmp_path), root=root) if one.check == "pci permissions"]
    assert len(told) == count


def test_a_machine_without_pci_is_noted(tmp_path: Path) -> None:
    (only,) = examine_pci(KernelPci(sys=tmp_path, proc=tmp_path))
    assert only.found == "this machine has no PCI bus"
