"""A lab of nodes: kernels and tools to choose, a network that is cut, and a drive that moves with its contents."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.lab.cluster import job_until, log_has, submit, units_of_programs
from tests.lab.guest import NARROW, NARROW_PORT, Machine, patient
from tests.lab.nodes import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(900))]

DRIVE_MIB = 16

MODULES = ("nvmet", "nvmet-tcp", "nvmet-rdma", "nvme-tcp", "nvme-rdma", "rdma_rxe", "dm-mod", "raid0", "null_blk")


def test_drive_moves_with_its_contents(lab: Lab, tmp_path: Path) -> None:
    a, b = lab.nodes("a", "b")
    drive = tmp_path / "drive"
    drive.write_bytes(bytes(DRIVE_MIB * 2**20))
    by_id = "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_SN4711"
    a.plug_drive("nv0", port="port1", file=drive, serial="SN4711")
    a.until(f"test -b {by_id} && grep -x 'SN4711 *' /sys/class/nvme/nvme*/serial")
    wrote = a.shell(
        f"dd if=/dev/urandom of=/var/tmp/wrote bs=1M count={DRIVE_MIB} status=none;"
        f"dd if=/var/tmp/wrote of={by_id} bs=1M oflag=direct conv=fsync status=none; sha256sum < /var/tmp/wrote;"
        f"dd if={by_id} bs=1M iflag=direct status=none | cmp - /var/tmp/wrote"
    ).stdout
    a.unplug("nv0")
    a.until(f"! test -e {by_id} && ! test -e /sys/class/nvme/nvme0")
    assert hashlib.sha256(drive.read_bytes()).hexdigest() == wrote.split()[0]
    b.plug_drive("nv0", port="port2", file=drive, serial="SN4711")
    b.until(f"test -b {by_id} && grep -x 'SN4711 *' /sys/class/nvme/nvme*/serial")
    assert b.shell(f"dd if={by_id} bs=1M iflag=direct status=none | sha256sum").stdout == wrote
    b.unplug("nv0")


def test_nodes_hear_each_other_until_the_network_is_cut(lab: Lab) -> None:
    a, _ = lab.nodes("a", "b")
    a.run("busybox", "ping", "-c", "1", "b")
    lab.network.cut("b")
    # Three in a row, with the address known: not one that was slow.
    assert a.run("busybox", "ping", "-c", "3", "-W", "3", "b", check=False).code == 1
    lab.network.mend("b")
    a.until("busybox ping -c 1 b")


def test_nodes_of_one_snapshot_differ(lab: Lab) -> None:
    seen = [
        node.shell(
            "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id /sys/class/net/enp0s16/address;"
            "head -c 16 /dev/urandom | od -x"
        ).stdout
        for node in lab.nodes("a", "b")
    ]
    assert all(one != other for one, other in zip(*(said.splitlines()[:5] for said in seen), strict=True))


@pytest.mark.parametrize("kernel", ["6.1", "6.12"])
def test_kernel_has_what_fabrics_need(lab: Lab, kernel: str) -> None:
    lab.discard("c")
    node = lab.node("c", Machine(cables=1, kernel=kernel))
    assert node.run("uname", "-r").stdout.startswith(f"{kernel}.")
    node.run("modprobe", "-a", *MODULES)
    assert "nvme version 2.3" in node.run("nvme", "version").stdout
    assert "nvme version 2.13" in node.run("/opt/trixie/bin/nvme", "version").stdout
    authentication = node.shell(
        "modprobe configfs; ls /sys/kernel/config/nvmet/hosts; mkdir /sys/kernel/config/nvmet/hosts/h;"
        "ls /sys/kernel/config/nvmet/hosts/h"
    ).stdout
    assert ("dhchap_key" in authentication) == (kernel == "6.12")


def test_device_too_big_for_the_window_of_the_bridge_above_gets_no_memory(lab: Lab) -> None:
    lab.discard("c")
    node = lab.node("c", Machine(cables=1, devices=NARROW))
    # Red Hat's vendor id, which QEMU's own devices have (docs/specs/pci-testdev.txt); its memory is BAR 2.
    find = "dirname $(grep -lx 0x0005 /sys/bus/pci/devices/*/device)"
    node.plug("pci-testdev", "small", port=NARROW_PORT, membar=2**20)
    small = node.until(find).strip()
    node.until(f"test -e {small}/resource2")
    node.unplug("small")
    node.until(f"! test -e {small}")
    node.plug("pci-testdev", "big", port=NARROW_PORT, membar=2**26)
    node.until("dmesg | grep 'BAR 2.*failed to assign'")
    big = node.until(find).strip()
    assert node.shell(f"sed -n 3p {big}/resource").stdout.split()[:2] == ["0x0000000000000000"] * 2
    node.unplug("big")


USABLE_PROCESSOR_S = 2 * 90.0
"""What two cores have to give in the 90 s within which a lab of three nodes is to be usable: a time of the clock says
more about what else a machine does."""


def test_three_nodes_are_a_cluster_with_real_agents_that_is_soon_usable(lab: Lab, programs: Path) -> None:
    names = ("a", "b", "c")
    # Nodes of other tests are without Farbus.
    for name in names:
        lab.discard(name)
    nodes = lab.cluster(*names, gpus={"b": 1})
    assert lab.effort.processor_s <= USABLE_PROCESSOR_S, lab.effort
    a, b, c = nodes
    log_has(a, submit(a, "--node", "c", "--", "hostname"), "c")
    if not (programs / "stay").exists():
        pytest.skip("needs nvcc for a CUDA program")
    # On a node without a GPU, with the one of another.
    c.copy_in(programs / "stay", "/usr/local/bin/stay")
    job = submit(a, "--gpus", "1", "--node", "c", "--", "stay", "/run/enough", "200")
    log_has(a, job, "using 1 device(s)")
    assert [unit.startswith("farbus-lease-") for unit in units_of_programs(b)] == [True]
    c.run("touch", "/run/enough")
    job_until(a, job, "succeeded")
    log_has(a, job, "right throughout")
