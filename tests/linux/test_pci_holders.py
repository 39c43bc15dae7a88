"""Who holds a device: trees as kernels show them, real processes, and the fake."""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from farbus.errors import Conflict, Unavailable
from farbus.linux import holders
from farbus.linux.clock import SystemClock
from farbus.linux.holders import FakeHolders, Holders, KernelHolders, look_for_holders
from farbus.model.holders import Holder, HolderKind, Look

DRIVE = "0000:01:00.0"


class Machine:
    """A machine with a drive of two partitions, as a kernel shows it; ``proc`` is the real one where asked for."""

    def __init__(self, root: Path, *, real_processes: bool = False) -> None:
        self.root = root
        self.sys, self.proc, self.dev = root / "sys", root / "proc", root / "dev"
        place = "devices/pci0000:00/0000:00:03.0/0000:01:00.0"
        disk = f"{place}/nvme/nvme0/nvme0n1"
        self.put(f"sys/{place}/nvme/nvme0/dev", "244:0\n")
        self.put(f"sys/{disk}/dev", "259:0\n")
        self.put(f"sys/{disk}/size", "1000\n")
        for number in (1, 2):
            self.put(f"sys/{disk}/nvme0n1p{number}/dev", f"259:{number}\n")
            self.put(f"sys/{disk}/nvme0n1p{number}/size", "400\n")
            self.link(f"sys/class/block/nvme0n1p{number}", f"sys/{disk}/nvme0n1p{number}")
        self.link(f"sys/bus/pci/devices/{DRIVE}", f"sys/{place}")
        self.link("sys/class/block/nvme0n1", f"sys/{disk}")
        self.put("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n")
        self.process(1, "init", space="mnt:[0]")
        if real_processes:
            self.proc, self.dev = Path("/proc"), Path("/dev")

    def put(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def link(self, path: str, target: str | Path) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(self.root / target if isinstance(target, str) else target)

    def process(self, pid: int, name: str, *, space: str = "mnt:[1]", mounts: str = "", maps: str = "") -> None:
        self.put(f"proc/{pid}/comm", f"{name}\n")
        self.put(f"proc/{pid}/cmdline", f"{name}\0-x\0")
        self.put(f"proc/{pid}/stat", f"{pid} ({name} ) x) S " + " ".join(str(number) for number in range(1, 50)))
        self.put(f"proc/{pid}/mountinfo", mounts)
        self.put(f"proc/{pid}/maps", maps)
        (self.root / f"proc/{pid}/fd").mkdir()
        self.link(f"proc/{pid}/ns/mnt", Path(space))

    async def look(self) -> Look:
        doors = KernelHolders(clock=SystemClock(), sys=self.sys, proc=self.proc, dev=self.dev)
        return await doors.look([DRIVE])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_nobody_holds_it(machine: Machine) -> None:
    assert await machine.look() == Look()


async def test_mounts_of_other_namespaces_are_found(machine: Machine) -> None:
    root = "22 1 259:1 / /data\\040one rw - ext4 /dev/nvme0n1p1 rw\n"
    machine.process(7, "bash", mounts=root)
    machine.process(8, "bash", mounts=root)
    machine.process(900, "postgres", space="mnt:[2]", mounts="40 2 259:2 / /var/lib rw shared:1 - xfs /dev/x rw\n")
    found = await machine.look()
    assert [(holder.kind, holder.name, holder.cure) for holder in found.holders] == [
        (HolderKind.MOUNT, "/data one in the mount namespace of pid 7", "umount /data one"),
        (HolderKind.MOUNT, "/var/lib in the mount namespace of pid 900", "umount /var/lib"),
    ]


async def test_copies_of_our_mounts_are_told_once(machine: Machine) -> None:
    root = "22 1 259:1 / /data rw - ext4 /dev/nvme0n1p1 rw\n"
    machine.process(7, "udevd", space="mnt:[2]", mounts=root)
    machine.process(8, "bash", space="mnt:[3]", mounts=root)
    machine.link("proc/self/ns/mnt", Path("mnt:[3]"))
    assert [holder.name for holder in (await machine.look()).holders] == ["/data"]


async def test_what_stands_on_it_is_found_with_what_stands_on_that(machine: Machine) -> None:
    machine.link("sys/class/block/nvme0n1p1/holders/dm-0", "sys/devices/virtual/block/dm-0")
    machine.put("sys/devices/virtual/block/dm-0/dm/name", "vg-data\n")
    machine.put("sys/devices/virtual/block/dm-0/dev", "253:0\n")
    machine.link("sys/class/block/dm-0", "sys/devices/virtual/block/dm-0")
    machine.link("sys/class/block/nvme0n1p2/holders/md0", "sys/devices/virtual/block/md0")
    machine.put("sys/devices/virtual/block/md0/dev", "9:0\n")
    machine.link("sys/class/block/md0", "sys/devices/virtual/block/md0")
    machine.process(7, "bash", mounts="22 1 253:0 / /data rw - ext4 /dev/mapper/vg-data rw\n")
    found = await machine.look()
    assert [str(holder) for holder in found.holders] == [
        f"block device dm-0 (vg-data) uses {machine.dev}/nvme0n1p1",
        f"block device md0 uses {machine.dev}/nvme0n1p2",
        f"{machine.dev}/dm-0 is mounted on /data in the mount namespace of pid 7",
    ]
    assert [holder.cure for holder in found.holders][:2] == ["dmsetup remove vg-data", "mdadm --stop /dev/md0"]


async def test_swap_loop_devices_exports_and_btrfs_are_found(machine: Machine) -> None:
    machine.put("proc/swaps", f"Filename Type Size Used Priority\n{machine.dev}/nvme0n1p1 partition 1 0 -2\n")
    machine.put("sys/class/block/loop3/loop/backing_file", f"{machine.dev}/nvme0n1\n")
    space = "sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/1"
    machine.put(f"{space}/device_path", f"{machine.dev}/nvme0n1p2\n")
    machine.put(f"{space}/enable", "1\n")
    machine.link("sys/fs/btrfs/some-uuid/devices/nvme0n1p2", "sys/class/block/nvme0n1p2")
    found = await machine.look()
    assert sorted((holder.kind, holder.name) for holder in found.holders) == [
        (HolderKind.BLOCK, "btrfs some-uuid"),
        (HolderKind.BLOCK, "loop3"),
        (HolderKind.EXPORT, "nqn.x, namespace 1"),
        (HolderKind.SWAP, "space"),
    ]
    assert not any(holder.evictable for holder in found.holders)


async def test_an_export_that_is_off_holds_nothing(machine: Machine) -> None:
    space = "sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/1"
    machine.put(f"{space}/device_path", f"{machine.dev}/nvme0n1\n")
    machine.put(f"{space}/enable", "0\n")
    assert await machine.look() == Look()


async def test_namespaces_of_a_subsystem_are_its_only_controllers(machine: Machine) -> None:
    # Native multipath: the namespace hangs below the subsystem, the controller has a path to it.
    virtual = "sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    machine.put(f"{virtual}/nvme0n2/dev", "259:9\n")
    machine.put(f"{virtual}/nvme0n2/size", "5\n")
    machine.link(f"{virtual}/nvme0", "sys/bus/pci/devices/0000:01:00.0/nvme/nvme0")
    machine.link("sys/class/nvme-subsystem/nvme-subsys0", virtual)
    machine.process(7, "bash", mounts="22 1 259:9 / /data rw - ext4 /dev/nvme0n2 rw\n")
    assert [holder.path for holder in (await machine.look()).holders] == [f"{machine.dev}/nvme0n2"]
    machine.link(f"{virtual}/nvme1", "sys/bus/pci/devices/0000:01:00.0/nvme/nvme0")
    assert await machine.look() == Look()


async def test_a_network_interface_that_is_up_holds_its_card(machine: Machine) -> None:
    machine.put(f"sys/bus/pci/devices/{DRIVE}/net/eth1/flags", "0x1003\n")
    machine.put(f"sys/bus/pci/devices/{DRIVE}/net/eth2/flags", "0x1002\n")
    assert [holder.cure for holder in (await machine.look()).holders] == ["ip link set eth1 down"]


async def test_maps_of_device_nodes_and_of_bars_are_found(machine: Machine) -> None:
    machine.put(f"proc/driver/nvidia/gpus/{DRIVE}/information", "Model: \t\t GPU\nDevice Minor: \t 3\n")
    machine.process(
        7, "python3", maps=f"7f00-7f01 rw-s 00000000 00:05 600                        {machine.dev}/nvidia3\n"
    )
    machine.process(
        8, "dpdk", maps=f"7f00-7f01 rw-s 0 00:15 6   /sys/devices/pci0000:00/0000:00:03.0/{DRIVE}/resource0\n"
    )
    machine.process(
        9, "cat", maps="7f00-7f01 r--p 00000000 08:01 600                        /usr/bin/cat\n7f02 r 0 0 0\n"
    )
    found = await machine.look()
    assert [(holder.name, holder.pid) for holder in found.holders] == [("python3", 7), ("dpdk", 8)]
    assert found.holders[0].started == 19


async def test_a_process_that_has_it_open_is_found_and_ended(tmp_path: Path) -> None:
    machine = Machine(tmp_path, real_processes=True)
    # Its node is that of /dev/zero, which this test opens in a program of its own.
    machine.put(f"sys/bus/pci/devices/{DRIVE}/card/thing/dev", "1:5\n")
    machine.put(f"sys/bus/pci/devices/{DRIVE}/card/thing/uevent", "MAJOR=1\nMINOR=5\nDEVNAME=zero\n")
    program = "import sys, time\nfile = open('/dev/zero')\nprint('open', flush=True)\ntime.sleep(1000)"
    with _started(program) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            doors = KernelHolders(clock=SystemClock(), sys=machine.sys, own={})
            (mine,) = [holder for holder in (await doors.look([DRIVE])).holders if holder.pid == child.pid]
            assert (mine.path, mine.evictable) == ("/dev/zero", True)
            assert mine.name.startswith("python")
            # Another process with this number is not ended for it.
            await doors.evict(Holder(kind=HolderKind.PROCESS, name="x", pid=child.pid, started=1), grace_s=0)
            assert child.poll() is None
            await doors.evict(mine, grace_s=60)
            assert child.wait(60) == -15
            await doors.evict(mine, grace_s=60)
        finally:
            child.kill()


async def test_our_own_worker_is_told_apart(machine: Machine) -> None:
    machine.put(f"proc/driver/nvidia/gpus/{DRIVE}/information", "Device Minor: \t 3\n")
    machine.process(7, "python3", maps=f"7f00-7f01 rw-s 00000000 00:05 600                  {machine.dev}/nvidia3\n")
    machine.put("proc/7/cmdline", "python3\0-m\0farbus.linux.nvml_worker\0")
    found = await machine.look()
    assert [holder.kind for holder in found.holders] == [HolderKind.OWN]
    assert found.clear


async def test_who_only_calls_his_process_so_is_no_worker_of_ours(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put(f"proc/driver/nvidia/gpus/{DRIVE}/information", "Device Minor: \t 3\n")
    machine.process(7, "python3", maps=f"7f00-7f01 rw-s 00000000 00:05 600                  {machine.dev}/nvidia3\n")
    machine.put("proc/7/cmdline", "python3\0farbus.linux.nvml_worker\0")
    other = (machine.proc / "7").stat().st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    roots = {"sys": str(machine.sys), "proc": str(machine.proc), "dev": str(machine.dev)}
    found = msgspec.convert(look_for_holders(roots, [DRIVE], {"farbus.linux.nvml_worker": "NVML worker"}), Look)
    assert [holder.kind for holder in found.holders] == [HolderKind.PROCESS]
    assert not found.clear


async def test_names_that_others_have_given_are_told_on_one_line(machine: Machine) -> None:
    # A process may be called anything; a user may mount again what is mounted, wherever he likes.
    machine.process(7, "sh\x1b[2J", maps=f"7f00-7f01 rw-s 00000000 00:05 600 {machine.dev}/nvme0n1\n")
    machine.process(8, "sh", space="mnt:[2]", mounts="22 1 259:1 / /home/u/a\\012b rw - ext4 /dev/nvme0n1p1 rw\n")
    machine.put(os.fsdecode(b"sys/kernel/config/nvmet/subsystems/nqn.\xff/namespaces/1/enable"), "1\n")
    machine.put(
        os.fsdecode(b"sys/kernel/config/nvmet/subsystems/nqn.\xff/namespaces/1/device_path"), f"{machine.dev}/nvme0n1\n"
    )
    told = [f"{holder} {holder.cure}" for holder in (await machine.look()).holders]
    assert all(line.isprintable() for line in told)
    assert sorted(told) == [
        f"{machine.dev}/nvme0n1 is open in pid 7 (sh\\x1b[2J) of {pwd.getpwuid(os.getuid()).pw_name} ",
        f"{machine.dev}/nvme0n1p1 is mounted on /home/u/a\\nb in the mount namespace of pid 8 umount /home/u/a\\nb",
        f"export nqn.\\xff, namespace 1 uses {machine.dev}/nvme0n1 echo 0 > "
        f"{machine.sys}/kernel/config/nvmet/subsystems/nqn.\\xff/namespaces/1/enable",
    ]


def test_for_many_devices_processes_are_looked_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.process(7, "python3", maps=f"7f00-7f01 rw-s 00000000 00:05 600 {machine.dev}/nvme0n1\n")
    machine.process(8, "bash", space="mnt:[2]", mounts="22 1 259:1 / /data rw - ext4 /dev/nvme0n1p1 rw\n")
    roots = {"sys": str(machine.sys), "proc": str(machine.proc), "dev": str(machine.dev)}
    alone = look_for_holders(roots, [DRIVE], {})
    read: list[str] = []
    scandir = os.scandir

    def counted(path: Path) -> Iterator[os.DirEntry[str]]:
        read.append(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    everybody = holders.Machine(roots)
    assert [look_for_holders(roots, [DRIVE], {}, machine=everybody) for _ in range(3)] == [alone] * 3
    assert len(alone["holders"]) == 2
    assert len(read) == len(set(read)) == 3


async def test_what_can_not_be_looked_at_is_no_proof(machine: Machine) -> None:
    if os.getuid() == 0:
        pytest.skip("root may look at everything")
    (machine.root / "proc/1/fd").chmod(0)
    assert not (await machine.look()).clear


async def test_what_is_not_on_the_bus_is_held_by_nobody_whatever_can_not_be_looked_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr("farbus.linux.holders.os.scandir", refused)
    roots = {"sys": str(machine.sys), "proc": str(machine.proc), "dev": str(machine.dev)}
    assert look_for_holders(roots, [DRIVE], {})["unseen"]
    assert look_for_holders(roots, [], {}) == msgspec.to_builtins(Look())


async def test_a_disk_is_opened_exclusively_where_it_is_free(machine: Machine) -> None:
    doors = KernelHolders(clock=SystemClock(), sys=machine.sys, proc=machine.proc, dev=machine.dev)
    # Nodes that are not there are no hindrance; a file takes O_EXCL as a free disk does.
    await doors.prove([DRIVE])
    machine.put("dev/nvme0n1", "")
    await doors.prove([DRIVE])


async def test_a_disk_that_nobody_can_open_is_told_in_one_line(machine: Machine) -> None:
    doors = KernelHolders(clock=SystemClock(), sys=machine.sys, proc=machine.proc, dev=machine.dev)
    # A link to itself is opened by nobody, as a drive that has failed.
    machine.link("dev/nvme0n1", "dev/nvme0n1")
    with pytest.raises(Unavailable, match=r"open .*/dev/nvme0n1: Too many levels of symbolic links; see dmesg"):
        await doors.prove([DRIVE])
    with pytest.raises(Unavailable, match=r"open .*/dev/nvme0n1"):
        await doors.prove_blocks(["nvme0n1"])


def test_a_line_tells_holders_and_cures() -> None:
    process = Holder(kind=HolderKind.PROCESS, name="python3", path="/dev/nvidia0", pid=812, user="alice", cure="end it")
    look = Look(holders=(process,) * 7, unseen=("something",))
    assert look.told(limit=1) == (
        "/dev/nvidia0 is open in pid 812 (python3) of alice (end it); and 6 more; something"
    )  # fmt: skip


def _started(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


# The fake.


async def test_the_fake_keeps_its_holders_in_a_file(tmp_path: Path) -> None:
    process = Holder(kind=HolderKind.PROCESS, name="python3", pid=812)
    first: Holders = FakeHolders(tmp_path)
    assert isinstance(first, FakeHolders)
    first.state = Look(holders=(process,))
    again = FakeHolders(tmp_path)
    assert (await again.look([DRIVE])).holders == (process,)
    await again.evict(process, grace_s=0)
    assert (await first.look([DRIVE])).clear
    again.busy = "/dev/nvme0n1"
    with pytest.raises(Conflict, match="in use by the kernel"):
        await again.prove([DRIVE])
    await asyncio.sleep(0)
