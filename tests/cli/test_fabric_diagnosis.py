"""What ``farbus doctor`` says of chassis: their files, before an agent trips over them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from farbus.cli.fabric_diagnosis import examine_fabric
from farbus.cli.findings import Verdict
from farbus.cli.node_settings import NodeSettings, node_settings
from farbus.hotplug.fabric.emulator.server import make_certificate
from farbus.linux.pci import KernelPci
from tests.hotplug.machines import unpack

FABRIC = """
[[chassis]]
name = "falcon-1"
dialect = "h3"
url = "http://10.0.0.9:8080"

[[chassis]]
name = "pod-2"
dialect = "redfish"
url = "https://pod-2.mgmt"
certificate = "redfish.crt"
credentials = "pod-2.credentials"
"""


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    """The files of two chassis, as they should be."""
    make_certificate(tmp_path, now=time.time())
    credentials = tmp_path / "pod-2.credentials"
    credentials.write_text('user = "operator"\npassword = "secret"\n')
    credentials.chmod(0o600)
    file = tmp_path / "fabric.toml"
    file.write_text(FABRIC)
    return file


def found(fabric: Path) -> list[tuple[Verdict, str, str]]:
    return [(each.verdict, each.found, each.cure) for each in examine_fabric(NodeSettings(fabric=str(fabric)))]


def test_chassis_whose_files_are_right_are_named_with_how_to_ask_them(fabric: Path) -> None:
    words = (
        f"{fabric} has falcon-1 (h3, http://10.0.0.9:8080), pod-2 (redfish, https://pod-2.mgmt); "
        f"farbus fabric list -c {fabric} asks them"
    )
    assert found(fabric) == [(Verdict.OK, words, "")]


def test_a_node_without_chassis_is_told_nothing() -> None:
    assert list(examine_fabric(NodeSettings())) == []


def test_credentials_that_others_can_read_are_a_fault_and_hide_no_other_chassis(fabric: Path) -> None:
    credentials = fabric.parent / "pod-2.credentials"
    credentials.chmod(0o640)
    wrong, right = found(fabric)
    assert wrong[0] is Verdict.BROKEN
    assert wrong[1] == f"chassis pod-2: credentials {credentials}: others can read or write it"
    assert wrong[2] == f"chmod 600 {credentials}"
    assert (right[0], "pod-2" in right[1]) == (Verdict.OK, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file or directory"),
        ("[[chassis]", "not TOML"),
        (FABRIC.replace("dialect", "dialekt", 1), "dialekt"),
        (FABRIC.replace("https:", "http:"), "a password would be sent in clear text"),
        (FABRIC.replace("redfish.crt", "none.crt"), "none.crt: No such file or directory"),
    ],
)
def test_what_is_wrong_in_the_file_is_a_fault_with_a_cure(fabric: Path, text: str | None, words: str) -> None:
    fabric.unlink() if text is None else fabric.write_text(text)
    verdict, told, cure = found(fabric)[0]
    assert (verdict, words in told) == (Verdict.BROKEN, True), told
    assert cure


def test_a_bridge_that_the_machine_has_not_is_told_with_its_port(tmp_path: Path) -> None:
    pci = KernelPci(sys=unpack("q35-6.1", tmp_path) / "sys", proc=tmp_path)
    there = pci.tree().functions[0].address
    settings = NodeSettings(fabric_ports={"falcon-1/30h": (there, "0000:3a:00.0")})
    (finding,) = examine_fabric(settings, pci=pci)
    assert finding.verdict is Verdict.WARNING
    assert finding.found == "fabric_ports: falcon-1/30h: there is no bridge 0000:3a:00.0 on this node"
    assert finding.cure


def test_the_settings_of_an_agent_name_the_file_and_the_bridges(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('fabric = "/etc/farbus/fabric.toml"\nfabric_ports = { "falcon-1/30h" = ["0000:3a:00.0"] }\n')
    assert node_settings(str(file)) == NodeSettings(
        fabric="/etc/farbus/fabric.toml", fabric_ports={"falcon-1/30h": ("0000:3a:00.0",)}
    )
