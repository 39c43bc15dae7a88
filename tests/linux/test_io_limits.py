"""What control groups may do with block devices, and who holds those: over trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from farbus.errors import NotFound, Unavailable
from farbus.linux.cgroups import Cgroups, FakeCgroups, KernelCgroups
from farbus.linux.clock import FakeClock
from farbus.linux.device_mapper import FakeDeviceMapper
from farbus.linux.fake_nvme import FakeNvme
from farbus.linux.holders import KernelHolders
from farbus.model.holders import HolderKind
from farbus.model.nvmeof import IoLimit, transport_address
from farbus.nvmeof.composition import plan_stripe
from tests.nvmeof.attaching import FIRST, SECOND, a_connection, a_target

LIMIT = IoLimit(read_bytes_s=10**9, write_iops=500)


def kernel(directory: Path) -> KernelCgroups:
    """Control groups of a machine whose hierarchy is a directory."""
    root = directory / "cgroup"
    root.mkdir(exist_ok=True)
    (root / "cgroup.controllers").write_text("cpu io memory pids\n")
    (directory / "mounts").write_text(f"cgroup2 {root} cgroup2 rw 0 0\n")
    (directory / "membership").write_text("0::/\n")
    return KernelCgroups(
        agent="a", mounts=str(directory / "mounts"), membership=str(directory / "membership")
    )  # fmt: skip


@pytest.fixture(params=["kernel", "fake"])
def cgroups(request: pytest.FixtureRequest, tmp_path: Path) -> Cgroups:
    return kernel(tmp_path) if request.param == "kernel" else FakeCgroups()


def test_a_limit_is_set_read_and_taken_back(cgroups: Cgroups) -> None:
    cgroups.create("task-1", memory_bytes=0, cpu_milli=0)
    assert cgroups.io_limit("task-1", "259:1") == IoLimit()
    cgroups.limit_io("task-1", "259:1", LIMIT)
    assert cgroups.io_limit("task-1", "259:1") == LIMIT
    assert cgroups.io_limit("task-1", "259:10") == IoLimit()
    cgroups.limit_io("task-1", "259:1", IoLimit())
    assert cgroups.io_limit("task-1", "259:1") == IoLimit()


def test_a_group_that_is_gone_can_not_be_limited(cgroups: Cgroups) -> None:
    with pytest.raises(NotFound, match="cgroup task-1"):
        cgroups.limit_io("task-1", "259:1", LIMIT)
    assert cgroups.io_limit("task-1", "259:1") == IoLimit()


def test_the_kernel_is_told_in_its_words(tmp_path: Path) -> None:
    cgroups = kernel(tmp_path)
    assert "io" in cgroups.controllers
    place = cgroups.create("task-1", memory_bytes=0, cpu_milli=0)
    cgroups.limit_io("task-1", "259:1", LIMIT)
    assert Path(place, "io.max").read_text() == "259:1 rbps=1000000000 wbps=max riops=max wiops=500"


def test_without_groups_it_says_why(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("")
    cgroups = KernelCgroups(agent="a", mounts=str(tmp_path / "mounts"))
    with pytest.raises(Unavailable, match="cgroup version 2 is not mounted"):
        cgroups.limit_io("task-1", "259:1", LIMIT)


# Holders of block devices.


@pytest.fixture
async def machine(tmp_path: Path) -> Path:
    """With two namespaces, the first of them over two paths."""
    nvme = FakeNvme(tmp_path)
    for lease, addresses in (("l1", (FIRST, SECOND)), ("l2", (FIRST,))):
        connection = a_connection(lease)
        nvme.offer(a_target(connection))
        for address in addresses:
            await nvme.connect(connection, transport_address(address))
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n")
    return tmp_path


def holders(machine: Path) -> KernelHolders:
    return KernelHolders(
        clock=FakeClock(), sys=machine / "sys", proc=machine / "proc", dev=machine / "dev"
    )  # fmt: skip


def process(machine: Path, mountinfo: str = "", *, open_file: str = "") -> None:
    place = machine / "proc/17"
    (place / "ns").mkdir(parents=True)
    (place / "ns/mnt").symlink_to("mnt:[1]")
    (place / "mountinfo").write_text(mountinfo)
    (place / "fd").mkdir()
    (place / "maps").write_text(f"7f0000000000-7f0000001000 rw-s 00000000 00:05 9 {open_file}\n" if open_file else "")
    (place / "comm").write_text("postgres\n")
    (place / "cmdline").write_text("postgres\0")


async def test_nobody_holds_what_is_free(machine: Path) -> None:
    process(machine)
    assert (await holders(machine).look_at_blocks(["nvme0n1", "nvme1n1"])).clear


async def test_a_mount_and_a_program_hold_their_namespace_alone(machine: Path) -> None:
    process(machine, "36 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n", open_file=f"{machine}/dev/nvme0n1")
    found = (await holders(machine).look_at_blocks(["nvme0n1"])).others
    assert [(one.kind, one.name) for one in found] == [(HolderKind.MOUNT, "/data in the mount namespace of pid 17"),
                                                       (HolderKind.PROCESS, "postgres")]  # fmt: skip
    assert (await holders(machine).look_at_blocks(["nvme1n1"])).clear


async def test_a_partition_that_is_swapped_to_holds_its_namespace(machine: Path) -> None:
    process(machine)
    part = machine / "sys/class/block/nvme0n1/nvme0n1p1"
    part.mkdir()
    (part / "dev").write_text("259:9\n")
    (part / "size").write_text("8\n")
    (machine / "proc/swaps").write_text(f"Filename Type\n{machine}/dev/nvme0n1p1 partition 1 0 -2\n")
    (one,) = (await holders(machine).look_at_blocks(["nvme0n1"])).others
    assert one.kind is HolderKind.SWAP


async def test_what_stands_on_a_namespace_holds_it_and_what_is_mounted_of_that(machine: Path) -> None:
    connections = [a_connection("l1"), a_connection("l2")]
    await FakeDeviceMapper(machine).create(plan_stripe("v", [one.namespaces[0] for one in connections]))
    process(machine, "36 1 253:0 / /data rw - xfs /dev/mapper/farbus-v rw\n")
    found = (await holders(machine).look_at_blocks(["nvme1n1"])).others
    assert [(one.kind, one.name.split(" ")[0]) for one in found] == [
        (HolderKind.BLOCK, "dm-0"), (HolderKind.MOUNT, "/data"),
    ]  # fmt: skip


async def test_what_is_no_block_device_any_more_is_held_by_nobody(machine: Path) -> None:
    process(machine)
    assert (await holders(machine).look_at_blocks(["nvme9n1"])).clear
    await holders(machine).prove_blocks(["nvme9n1"])
