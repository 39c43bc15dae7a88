"""Volumes in a guest: real lvm2 on NVMe drives, real nvmet and nvme-cli, file systems; one guest is both nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farbus.model.nvmeof import Connection, ExpectedNamespace, SubsystemName, namespace_identity, transport_address
from farbus.model.storage import Account, LogicalIdentity, identity_of, stored_bytes
from farbus.model.volume import FileSystem, StorageUse, VolumePart
from farbus.nvmeof.using import UseWork, part_here, part_there
from farbus.nvmeof.volumes import (
    DropWork,
    MakeWork,
    ReadyWork,
    RemoveWork,
    ResizeWork,
    RoomWork,
    device_path,
    export_of,
)
from tests.lab.guest import Guest, patient
from tests.lab.orders import LIMIT_S, done, orders, store, use
from tests.lab.tree import PYTHON, put_tree

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

TESTS = ("linux/nvmet_contract.py", "linux/lvm_contract.py", "linux/filesystems_contract.py", "lab/storage.py")

SERIALS = ("S1", "S2", "S3")
DRIVE_BYTES = 512 << 20
ADDRESS = transport_address("tcp://127.0.0.1:4420")
ALICE = Account(uid=1000, gid=1000)
MARK = "what-nobody-may-find-again"


class Node:
    """A guest that stores, exports, and uses what it exports."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.drives: list[str] = []

    def python(self, module: str, *arguments: str, input: str = "") -> Any:
        return json.loads(self.guest.run(*PYTHON, "-m", module, *arguments, input=input, limit_s=LIMIT_S).stdout)

    def do(self, *asked: dict[str, Any]) -> list[dict[str, Any]]:
        return orders(self.guest, *asked)

    def done(self, *asked: dict[str, Any]) -> list[dict[str, Any]]:
        """Do what must not fail."""
        return done(self.guest, *asked)

    def shell(self, script: str, *, user: str = "") -> str:
        return self.guest.shell(script, user=user, limit_s=LIMIT_S).stdout.strip()


def name_of(lease: str, epoch: int = 1) -> SubsystemName:
    return SubsystemName(lease=lease, epoch=epoch)


def ready(lease: str, part: VolumePart, epoch: int = 1) -> ReadyWork:
    return ReadyWork(lease=lease, part=part, export=export_of(name_of(lease, epoch), identity_of(part), [ADDRESS]))


def connection(lease: str, whose: LogicalIdentity, size_bytes: int, epoch: int = 1) -> Connection:
    expected = ExpectedNamespace(identity=namespace_identity(whose.exported_as), size_bytes=size_bytes)
    return Connection(name=name_of(lease, epoch), addresses=(ADDRESS,), namespaces=(expected,), io_queues=1)


def mounted(lease: str, part: VolumePart, epoch: int = 1, **changes: Any) -> UseWork:
    work = UseWork(
        id=f"task.{part.volume}",
        parts=(part_there(connection(lease, identity_of(part), part.size_bytes, epoch)),),
        account=ALICE,
    )
    return msgspec.structs.replace(work, **changes)


@pytest.fixture(scope="module")
def node(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    place = tmp_path_factory.mktemp("volumes")
    devices = []
    for serial in SERIALS:
        file = place / f"{serial}.raw"
        with file.open("wb") as drive:
            drive.truncate(DRIVE_BYTES)
        devices += ["-drive", f"file={file},if=none,id={serial},format=raw,discard=unmap"]
        devices += ["-device", f"nvme,serial={serial},drive={serial}"]
    with Guest.boot(image, name="volumes", devices=devices) as guest:
        put_tree(guest, place / "tree", tests=TESTS)
        guest.shell("modprobe -a nvme-tcp nvmet-tcp loop dm-mod ext4 xfs", limit_s=LIMIT_S)
        yield Node(guest)


@pytest.fixture(scope="module")
def group(node: Node) -> list[str]:
    """Give two of the drives to the volume group; the third is somebody else's."""
    node.shell("mkfs.ext4 -q -L theirs /dev/nvme2n1")
    drives = [f"NVME-{serial}-QEMU_NVMe_Ctrl" for serial in SERIALS]
    told = node.done({"verb": "drives", "add": drives[:2]})
    assert [drive["id"] for drive in told[0]["drives"]] == drives[:2]
    (refused,) = node.do({"verb": "drives", "add": drives[2:]})
    assert refused["error"] == "Conflict"
    assert "signature" in refused["says"]
    return drives[:2]


def test_file_systems_keep_the_contract_of_the_fake(node: Node) -> None:
    told = node.python("tests.linux.filesystems_contract")
    assert len(told) > 8
    assert {name: problem for name, problem in told.items() if problem} == {}


def test_lvm_keeps_the_contract_of_the_fake(node: Node) -> None:
    told = node.python("tests.linux.lvm_contract", *SERIALS)
    assert len(told) > 5
    assert {name: problem for name, problem in told.items() if problem} == {}


def test_a_volume_outlives_leases_grows_and_leaves_nothing(
    node: Node, group: list[str], tell: Callable[[str], None]
) -> None:
    size = stored_bytes(96 << 20, 2)
    part = VolumePart(volume="data", size_bytes=size, drives=tuple(group))
    point = "/run/farbus/storage/task.data"
    made, offered, here = node.done(
        store("go", MakeWork(part=part)), store("go", ready("l1", part)), use("go", mounted("l1", part))
    )
    assert made["wiped"] == {"VOL-data:0": size}
    assert offered["result"]["path"] == device_path(identity_of(part))
    assert (here["result"]["path"], here["result"]["format"]) == (point, "ext4")
    # Striped over both, in chunks for its drives.
    assert node.shell("lvs --noheadings -o stripes,stripe_size --units k farbus/vol-data.0").split() == ["2", "128.00k"]
    node.shell(f"echo {MARK} > {point}/mine && sync", user="alice")
    node.shell(
        f"fio --name=v --filename={point}/fio --size=16M --bs=64k --rw=randwrite --ioengine=psync --direct=1"
        " --verify=crc32c --do_verify=1 --verify_fatal=1",
        user="alice",
    )
    options = node.shell(f"findmnt -no OPTIONS {point}").split(",")
    assert {"nosuid", "nodev"} <= set(options)
    adopted, gone, back = node.done(
        use("adopt", mounted("l1", part)), use("back", mounted("l1", part)), store("back", ready("l1", part))
    )
    assert all(adopted["found"])
    assert node.shell("ls /run/farbus/storage /sys/kernel/config/nvmet/subsystems | grep -v : || true") == ""
    assert node.shell("grep -l tcp /sys/class/nvme/*/transport || true") == ""

    # The next lease finds the files; the volume grows while it is mounted, and nothing but the volume.
    larger = msgspec.structs.replace(part, size_bytes=2 * size)
    node.done(store("go", ready("l2", part, 7)), use("go", mounted("l2", part, 7)))
    assert node.shell(f"cat {point}/mine", user="alice") == MARK
    before = int(node.shell(f"stat -f -c %b {point}"))
    node.done(
        store("go", ResizeWork(part=larger, before_bytes=size)), store("resized", ready("l2", part, 7)),
        use("grow", mounted("l2", part, 7), size_bytes=2 * size), use("adopt", mounted("l2", part, 7)),
    )  # fmt: skip
    assert int(node.shell(f"stat -f -c %b {point}")) > before * 3 // 2
    assert node.shell(f"cat {point}/mine", user="alice") == MARK

    # While it is used it is not removed.
    (refused,) = node.do(store("go", RemoveWork(part=larger)))
    assert "its device is in use" in refused["says"]
    (told,) = node.done({"verb": "stored"})
    assert [(one["part"]["volume"], one["part"]["size_bytes"], one["troubles"]) for one in told["stored"]] == [
        ("data", 2 * size, [])
    ]
    search = f"for drive in 0 1; do head -c 160M /dev/nvme${{drive}}n1; done | grep -ac {MARK}"
    assert int(node.shell(search)) > 0
    removed = node.done(
        use("back", mounted("l2", part, 7)), store("back", ready("l2", part, 7)), store("go", RemoveWork(part=larger))
    )
    assert node.shell(f"{search} || true") == "0"
    assert node.shell("lvs --noheadings farbus") == ""
    for what, one in (("make", made), ("offer", offered), ("use", here), ("let go", gone), ("withdraw", back)):
        tell(f"{what}: {one['seconds']}")
    tell(f"remove: {removed[-1]['seconds']}")


def test_room_of_a_lease_goes_with_it(node: Node, group: list[str]) -> None:
    whose = LogicalIdentity(lease="j1-1-1")
    size = stored_bytes(64 << 20, 1)
    full = RoomWork(lease="j1-1-1", size_bytes=4 << 30, drives=(group[0],))
    (told,) = node.do(store("go", full, may_fail=True))
    assert told["error"] == "Conflict"
    assert "nsufficient" in told["says"]
    room = RoomWork(
        lease="j1-1-1", size_bytes=size, drives=(group[0],), export=export_of(name_of("j1-1-1"), whose, [ADDRESS])
    )
    swap = UseWork(id="swap", parts=(part_there(connection("j1-1-1", whose, size)),), use=StorageUse.SWAP)
    drop = DropWork(lease="j1-1-1", size_bytes=size)
    node.done(store("back", full), store("go", room), use("go", swap))
    assert node.shell("grep -c /dev/nvme /proc/swaps") == "1"
    # As what it is, it is no file system.
    files = msgspec.structs.replace(swap, use=StorageUse.MOUNT)
    node.done(use("back", swap))
    told = node.do(use("go", files, may_fail=True), use("back", files), store("back", room), store("go", drop))[0]
    assert "it holds swap" in told["says"]
    assert node.shell("grep -c /dev/ /proc/swaps || true") == "0"
    assert node.shell("lvs --noheadings farbus; ls /sys/kernel/config/nvmet/subsystems") == ""


def test_parts_of_two_nodes_are_one_device(node: Node, group: list[str]) -> None:
    size = stored_bytes(48 << 20, 1)
    parts = [
        VolumePart(volume="wide", part=number, parts=2, size_bytes=size, drives=(drive,))
        for number, drive in enumerate(group)
    ]
    makes = [store("go", MakeWork(part=part)) for part in parts]
    offers = [store("go", ready(f"w{part.part}", part)) for part in parts]
    wide = UseWork(
        id="wide",
        parts=tuple(part_there(connection(f"w{part.part}", identity_of(part), size)) for part in parts),
        use=StorageUse.RAW, account=ALICE,
    )  # fmt: skip
    told = node.done(*makes, *offers, use("go", wide))
    path = told[-1]["result"]["path"]
    assert path == "/dev/farbus-storage/wide"
    assert node.shell(f"stat -c '%U %a' {path}") == "alice 600"
    node.shell(
        f"fio --name=v --filename={path} --size=32M --bs=256k --rw=write --ioengine=psync --direct=1"
        " --verify=crc32c --do_verify=1 --verify_fatal=1",
        user="alice",
    )
    # Half of it on each.
    for part in parts:
        device = node.shell(f"basename $(readlink -f {device_path(identity_of(part))})")
        assert int(node.shell(f"awk '{{print $7}}' /sys/block/{device}/stat")) * 512 >= 16 << 20
    back = [store("back", ready(f"w{part.part}", part)) for part in parts]
    node.done(use("back", wide), *back)
    # Here, without a network: parts of this node alone, mapped.
    here = UseWork(
        id="here", parts=(part_here(device_path(identity_of(parts[0])), size),), use=StorageUse.MMAP, account=ALICE,
        file_system=FileSystem.EXT4,
    )  # fmt: skip
    local = ReadyWork(lease="h", part=parts[0])
    (_, refused, *_) = node.do(store("go", local), use("go", here, may_fail=True), use("back", here))
    assert "no known file system has written" in refused["says"]
    node.done(store("back", local), *(store("go", RemoveWork(part=part)) for part in parts))
    room = RoomWork(lease="h", size_bytes=size, drives=(group[1],))
    mapped = msgspec.structs.replace(here, parts=(part_here(device_path(LogicalIdentity(lease="h")), size),))
    told = node.done(store("go", room), use("go", mapped))
    assert told[-1]["result"]["path"] == "/run/farbus/storage/here/memory"
    assert int(node.shell("stat -c %s /run/farbus/storage/here/memory")) > size // 2
    node.done(use("back", mapped), store("back", room), store("go", DropWork(lease="h", size_bytes=size)))
    assert node.shell("lvs --noheadings farbus; dmsetup ls | grep farbus || true") == ""


def test_nobody_elses_drive_was_touched(node: Node, group: list[str]) -> None:
    assert node.shell("blkid -p -s LABEL -o value /dev/nvme2n1") == "theirs"
    assert node.shell("e2fsck -fn /dev/nvme2n1 >/dev/null && echo whole") == "whole"
