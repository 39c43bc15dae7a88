"""Where a chassis's cables come out on a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from farbus.agent.ports import bridge_for, bridges_of, names_by_chassis
from farbus.errors import Conflict
from farbus.linux.fake_pci import FakePort
from farbus.model.device import DeviceKind
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort
from farbus.model.pci import PciTree
from tests.hotplug.machines import PORT_A, PORT_B, drive, plain, two_ports

SET = {"falcon/30h": (PORT_B, PORT_A)}


def bridge(tree: PciTree, *, taken: tuple[str, ...] = (), **ports: tuple[str, ...]) -> str:
    return bridge_for(tree, ports or SET, device="S1", chassis="falcon", port="30h", taken=taken)


def test_the_first_free_bridge_that_is_set_is_taken(tmp_path: Path) -> None:
    pci = two_ports(tmp_path)
    assert bridge(pci.tree()) == PORT_B
    pci.plug(PORT_B, drive(), announce=True)
    assert bridge(pci.tree()) == PORT_A
    with pytest.raises(Conflict, match="no hot-plug port of port falcon/30h of the chassis is free"):
        bridge(pci.tree(), taken=(PORT_A,))


def test_without_a_setting_only_what_is_certain_is_taken(tmp_path: Path) -> None:
    pci = two_ports(tmp_path)
    with pytest.raises(Conflict, match=r"2 hot-plug ports are free.*fabric_ports = "):
        bridge(pci.tree(), other=(PORT_A,))
    pci.plug(PORT_A, plain(), announce=True)
    assert bridge(pci.tree(), other=(PORT_A,)) == PORT_B


def test_a_node_without_hot_plug_ports_is_told_as_one() -> None:
    with pytest.raises(Conflict, match=r"attach S1: this node has no hot-plug port; farbus doctor there says why"):
        bridge_for(PciTree(functions=()), {}, device="S1", chassis="falcon", port="30h")


def test_the_upstream_port_of_a_switch_stands_for_the_ports_below_it(tmp_path: Path) -> None:
    pci = two_ports(tmp_path)
    pci.add_port(FakePort(address="0000:00:05.0", bus=5))
    for number in (6, 7):
        pci.add_port(FakePort(address=f"0000:05:0{number}.0", bus=number, slot=str(number)), parent="0000:00:05.0")
    ports = {"falcon/30h": ("0000:00:05.0",)}
    assert bridges_of(pci.tree(), ports, chassis="falcon", port="30h") == ("0000:05:06.0", "0000:05:07.0")
    assert bridge_for(pci.tree(), ports, device="S1", chassis="falcon", port="30h") == "0000:05:06.0"


def test_a_bridge_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match=r"fabric_ports: falcon/30h: there is no bridge 0000:99:00.0"):
        bridge_for(
            two_ports(tmp_path).tree(), {"falcon/30h": ("0000:99:00.0",)}, device="S1", chassis="falcon", port="30h"
        )


def test_a_device_has_its_chassis_name_where_that_is_certain(tmp_path: Path) -> None:
    pci = two_ports(tmp_path)
    pci.plug(PORT_A, plain(), announce=True)
    one = FabricDevice(id="001400", handle="001400", kind=DeviceKind.PCI, port="30h")
    two = FabricDevice(id="001500", handle="001500", kind=DeviceKind.PCI, port="30h")
    ports = (FabricPort(id="30h", node="n1"),)

    def names(*devices: FabricDevice) -> dict[str, str]:
        view = ChassisView(chassis="falcon", ports=ports, devices=devices)
        return names_by_chassis(pci.tree(), SET, (view,), node="n1")

    assert names(one) == {"0000:01:00.0": "001400"}
    assert names(one, two) == {}
    assert names() == {}


def test_what_is_there_is_not_called_by_the_name_of_what_it_can_not_be(tmp_path: Path) -> None:
    pci = two_ports(tmp_path)
    pci.plug(PORT_A, plain(), announce=True)
    (address,) = [one.address for one in pci.tree().functions if not one.is_bridge]

    def called(**fields: object) -> dict[str, str]:
        device = FabricDevice(**{"id": "X", "handle": "X", "kind": DeviceKind.PCI, "port": "30h", **fields})  # type: ignore[arg-type]
        view = ChassisView(chassis="falcon", ports=(FabricPort(id="30h", node="n1"),), devices=(device,))
        return names_by_chassis(pci.tree(), SET, (view,), node="n1")

    assert called() == {address: "X"}
    assert called(vendor_id=0x1234, device_id=0x11E8) == {address: "X"}
    # One reading may lack the device that is there, and have another.
    assert called(kind=DeviceKind.GPU, uuid="GPU-1") == {}
    assert called(vendor_id=0x1234, device_id=0x9999) == {}
