"""Storage between guests, until something gives: hundreds of connections, kills, fences, power cuts, full disks.

``FARBUS_LAB_CONNECTIONS`` is how often a device is offered, used and taken away (20; the campaign has 200),
``FARBUS_LAB_KILLS`` at how many points of each way a sequence is killed (6).  What is written is verified throughout,
and nothing may be left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from farbus.model.nvmeof import (
    Connection,
    ExpectedNamespace,
    Export,
    ExportedNamespace,
    SubsystemName,
    TransportAddress,
    namespace_identity,
    transport_address,
)
from farbus.model.storage import EXTENT_BYTES, identity_of
from farbus.model.volume import StorageUse, VolumePart
from farbus.nvmeof.using import UseWork, part_there
from farbus.nvmeof.volumes import MakeWork, ReadyWork, RemoveWork, device_path, export_of
from tests.lab.guest import Guest, Machine, patient
from tests.lab.image import ADDRESSES, KERNELS
from tests.lab.nodes import Lab
from tests.lab.orders import LIMIT_S, done, store, target, use
from tests.lab.tree import PYTHON, put_tree
from tests.lab.writing import Writer, check

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(3600))]

CONNECTIONS = int(os.environ.get("FARBUS_LAB_CONNECTIONS", "20"))
KILLS = int(os.environ.get("FARBUS_LAB_KILLS", "6"))
CAMPAIGN_S = patient(3000)

PACKAGES = ("model", "linux", "nvmeof", "agent")
TESTS = (
    "harness/killing.py", "lab/storage.py", "lab/campaign.py", "lab/killed_storage.py", "linux/lvm_contract.py",
    "linux/filesystems_contract.py", "linux/nvmet_contract.py",
)  # fmt: skip

DRIVE_BYTES = 512 << 20
SIZE = 8 * EXTENT_BYTES
SERIALS = {"S1": "port1", "S2": "port2"}
DRIVES = tuple(f"NVME-{serial}-QEMU_NVMe_Ctrl" for serial in SERIALS)
ADDRESS = transport_address(f"tcp://{ADDRESSES['b']}:4420")
LOOPBACK = "tcp://127.0.0.1:4420"

LEFT = (
    "ls /sys/kernel/config/nvmet/subsystems /sys/kernel/config/nvmet/hosts 2> /dev/null | grep -v : || true;"
    " grep -l tcp /sys/class/nvme/*/transport || true; ls /run/farbus/storage 2> /dev/null || true;"
    " dmsetup ls | grep farbus || true; ls /dev/farbus-storage 2> /dev/null || true"
)
"""What anything of ours would be seen in: subsystems, controllers, mounts, mappings, device nodes."""


def a_part(name: str) -> VolumePart:
    return VolumePart(volume=name, size_bytes=SIZE, drives=DRIVES)


def offered(part: VolumePart, *, lease: str, epoch: int = 1, address: TransportAddress = ADDRESS) -> ReadyWork:
    name = SubsystemName(lease=lease, epoch=epoch)
    return ReadyWork(lease=lease, part=part, export=export_of(name, identity_of(part), [address]))


def used(part: VolumePart, *, lease: str, epoch: int = 1, loss_s: int = 600) -> UseWork:
    identity = namespace_identity(identity_of(part).exported_as)
    connection = Connection(
        name=SubsystemName(lease=lease, epoch=epoch), addresses=(ADDRESS,), io_queues=1, keep_alive_s=5,
        namespaces=(ExpectedNamespace(identity=identity, size_bytes=SIZE),), loss_s=loss_s, reconnect_delay_s=1,
    )  # fmt: skip
    return UseWork(id=lease, parts=(part_there(connection),), use=StorageUse.RAW, drain_s=2.0)


def nothing_is_left(*guests: Guest) -> None:
    for guest in guests:
        assert guest.shell(LEFT, limit_s=LIMIT_S).stdout.split() == [], guest.name


def plug(guest: Guest, files: dict[str, Path]) -> None:
    """Give a guest its drives, and their volume group what it needs of the kernel."""
    for serial, file in files.items():
        guest.plug_drive(serial, port=SERIALS[serial], file=file, serial=serial)
        guest.until(f"test -b /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{serial}", limit_s=LIMIT_S)
    guest.shell("modprobe -a nvme-tcp nvmet-tcp loop dm-mod ext4", limit_s=LIMIT_S)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The drives of the storing node."""
    place = tmp_path_factory.mktemp("drives")
    for serial in SERIALS:
        with (place / serial).open("wb") as drive:
            drive.truncate(DRIVE_BYTES)
    return {serial: place / serial for serial in SERIALS}


@pytest.fixture(scope="module")
def storing(lab: Lab, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """The node that stores, with two drives that are given to Farbus."""
    guest = lab.node("b", Machine(kernel=KERNELS[-1], cables=1))
    put_tree(guest, tmp_path_factory.mktemp("storing"), packages=PACKAGES, tests=TESTS)
    plug(guest, files)
    done(guest, {"verb": "drives", "add": DRIVES})
    return guest


def a_user(lab: Lab, name: str, kernel: str, place: Path) -> Guest:
    guest = lab.node(name, Machine(kernel=kernel, cables=1))
    put_tree(guest, place, packages=PACKAGES, tests=TESTS)
    guest.shell("modprobe -a nvme-tcp dm-mod", limit_s=LIMIT_S)
    return guest


@pytest.fixture(scope="module")
def first(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """A node that uses storage, by the older kernel."""
    return a_user(lab, "a", KERNELS[0], tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def second(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """Another one, by the newer."""
    return a_user(lab, "c", KERNELS[-1], tmp_path_factory.mktemp("second"))


def test_a_device_comes_and_goes_hundreds_of_times(storing: Guest, tell: Callable[[str], None]) -> None:
    told = storing.run(
        *PYTHON, "-m", "tests.lab.campaign", str(CONNECTIONS),
        input=json.dumps({"drives": DRIVES, "address": LOOPBACK}), limit_s=CAMPAIGN_S,
    )  # fmt: skip
    said = json.loads(told.stdout)
    assert (said["rounds"], said["wrong"]) == (CONNECTIONS, [])
    nothing_is_left(storing)
    assert storing.shell("lvs --noheadings farbus").stdout.strip() == ""
    tell(f"{CONNECTIONS} times offered, used and taken away: {said['seconds']} s")


@pytest.mark.parametrize(
    ("scenario", "fail", "kept"),
    [
        ("Room", ("1", "6"), ()), ("Make", ("0",), ()), ("Resize", ("0",), ()), ("Remove", (), ()),
        ("Mount", ("4",), ("kept",)), ("Swap", ("9",), ("kept", "kept2")),
    ],
)  # fmt: skip
def test_killed_anywhere_it_is_as_before_or_as_it_is_to_be(
    scenario: str, fail: tuple[str, ...], kept: tuple[str, ...], storing: Guest, tell: Callable[[str], None]
) -> None:
    parts = [msgspec.structs.replace(a_part(name), size_bytes=2 * SIZE) for name in kept]
    ready = [offered(part, lease=f"{part.volume}-lab", address=transport_address(LOOPBACK)) for part in parts]
    for part, offer in zip(parts, ready, strict=True):
        done(storing, store("go", MakeWork(part=part)), store("go", offer))
    command = (*PYTHON[:-1], f"LAB_DRIVES={','.join(DRIVES)}", PYTHON[-1])
    told = storing.run(*command, "-m", "tests.lab.killed_storage", scenario, str(KILLS), *fail, limit_s=CAMPAIGN_S)
    said = json.loads(told.stdout)
    assert said["to_old"] or scenario in ("Make", "Resize", "Remove"), "what is begun there goes on"
    assert said["to_new"]
    for part, offer in zip(parts, ready, strict=True):
        done(storing, store("back", offer), store("go", RemoveWork(part=part)))
    nothing_is_left(storing)
    tell(f"{scenario}, killed on the real kernel: {said}")


def forced(work: UseWork) -> UseWork:
    """As the agent lets go when a lease is over, whoever has it open."""
    return msgspec.structs.replace(work, force=True)


def test_who_was_cut_off_writes_no_more_once_another_has_the_device(
    lab: Lab, storing: Guest, first: Guest, second: Guest
) -> None:
    part = a_part("fenced")
    done(storing, store("go", MakeWork(part=part)), store("go", offered(part, lease="old")))
    path = done(first, use("go", used(part, lease="old")))[0]["result"]["path"]
    writer = Writer(first, path, "old")
    lab.network.cut("a", "b")
    # Its writes wait for the network to come back; the storing node does not wait for it.
    done(storing, store("back", offered(part, lease="old")), store("go", offered(part, lease="new")))
    there = done(second, use("go", used(part, lease="new")))[0]["result"]["path"]
    newer = Writer(second, there, "new", count=60)
    first.shell("dmesg --clear")
    lab.network.mend()
    # It comes back with its writes, and is refused.
    first.until("dmesg | grep -q 'Connect Invalid Data Parameter'", limit_s=LIMIT_S)
    assert not writer.running.ended
    done(first, use("back", forced(used(part, lease="old"))))
    assert writer.ended()["error"] == "Input/output error"
    said = newer.stop()
    assert (said["error"], check(second, there, "new", said["written"])) == ("", [])
    # On the storing node's own device too, past all that is between.
    done(second, use("back", used(part, lease="new")))
    assert check(storing, device_path(identity_of(part)), "new", said["written"]) == []
    done(storing, store("back", offered(part, lease="new")), store("go", RemoveWork(part=part)))
    nothing_is_left(storing, first, second)


def test_a_lease_that_is_handed_on_under_load_leaves_what_was_written_alone(storing: Guest, first: Guest) -> None:
    before, after = a_part("before"), a_part("after")
    done(
        storing, store("go", MakeWork(part=before)), store("go", MakeWork(part=after)),
        store("go", offered(before, lease="moved")),
    )  # fmt: skip
    path = done(first, use("go", used(before, lease="moved")))[0]["result"]["path"]
    writer = Writer(first, path)
    # The same lease, the same network address, another device behind it: what is in flight goes nowhere.
    done(storing, store("back", offered(before, lease="moved")), store("go", offered(after, lease="moved", epoch=2)))
    first.until("dmesg | grep -q 'Connect Invalid Data Parameter'", limit_s=LIMIT_S)
    done(first, use("back", forced(used(before, lease="moved"))))
    said = writer.ended()
    assert said["error"] == "Input/output error"
    device = device_path(identity_of(after))
    assert storing.shell(f"cmp -n {SIZE} {device} /dev/zero && echo untouched").stdout.strip() == "untouched"
    done(
        first, use("go", used(after, lease="moved", epoch=2)), use("back", used(after, lease="moved", epoch=2))
    )  # fmt: skip
    done(storing, store("back", offered(after, lease="moved", epoch=2)), store("go", offered(before, lease="look")))
    assert check(storing, device_path(identity_of(before)), "writer", said["written"]) == []
    done(
        storing, store("back", offered(before, lease="look")),
        store("go", RemoveWork(part=before)), store("go", RemoveWork(part=after)),
    )  # fmt: skip
    nothing_is_left(storing, first)


def test_a_full_disk_below_a_device_is_an_error_and_loses_nothing(storing: Guest, first: Guest) -> None:
    """A sparse file on a disk that fills up, exported as a drive is: writes fail, and what was written stays."""
    identity = namespace_identity("sparse")
    storing.shell(
        "mkdir -p /run/small; mount -t tmpfs -o size=4M small /run/small;"
        f" truncate -s {SIZE} /run/small/file; losetup /dev/loop6 /run/small/file"
    )
    name = SubsystemName(lease="small", epoch=1)
    namespace = ExportedNamespace(device="/dev/loop6", identity=identity)
    ready = Export(name=name, namespaces=(namespace,), addresses=(ADDRESS,))
    done(storing, target("go", ready))
    connection = Connection(
        name=name, addresses=(ADDRESS,), io_queues=1,
        namespaces=(ExpectedNamespace(identity=identity, size_bytes=SIZE),),
    )  # fmt: skip
    work = UseWork(id="small", parts=(part_there(connection),), use=StorageUse.RAW)
    path = done(first, use("go", work))[0]["result"]["path"]
    said = Writer(first, path).ended()
    assert said["error"] in ("No space left on device", "Input/output error")
    assert 20 <= said["written"] <= 1024
    assert check(first, path, "writer", said["written"]) == []
    # With room again it goes on.
    storing.shell("mount -o remount,size=64M /run/small")
    more = Writer(first, path).stop()
    assert (more["error"], check(first, path, "writer", more["written"])) == ("", [])
    done(first, use("back", work))
    done(storing, target("back", ready))
    storing.shell("losetup -d /dev/loop6; umount /run/small")
    nothing_is_left(storing, first)


def test_io_waits_for_a_target_that_loses_its_power_and_goes_on(
    storing: Guest, first: Guest, files: dict[str, Path], tell: Callable[[str], None]
) -> None:
    part = a_part("power")
    ready = offered(part, lease="power")
    done(storing, store("go", MakeWork(part=part)), store("go", ready))
    path = done(first, use("go", used(part, lease="power")))[0]["result"]["path"]
    writer = Writer(first, path)
    storing.power_off()
    storing.power_on_again()
    storing.wait_for_boot()
    plug(storing, files)
    # As its agent does for a lease that has not ended; nothing else of it is known there.
    done(storing, store("go", ready))
    first.until("grep -q live /sys/class/nvme/*/state", limit_s=LIMIT_S)
    said = writer.stop()
    assert (said["error"], check(first, path, "writer", said["written"])) == ("", [])
    done(first, use("back", used(part, lease="power")))
    done(storing, store("back", ready), store("go", RemoveWork(part=part)))
    nothing_is_left(storing, first)
    tell(f"a target without power for a while: {said}")


def test_a_file_system_is_whole_when_its_target_never_comes_back(storing: Guest, first: Guest) -> None:
    """The last test: the storing node stays off."""
    part = a_part("gone")
    done(storing, store("go", MakeWork(part=part)), store("go", offered(part, lease="gone")))
    work = used(part, lease="gone", loss_s=5)
    path = done(first, use("go", work))[0]["result"]["path"]
    writer = Writer(first, path)
    storing.power_off()
    assert writer.ended()["error"] == "Input/output error"
    first.until("! grep -q tcp /sys/class/nvme/*/transport", limit_s=LIMIT_S)
    done(first, use("back", work))
    nothing_is_left(first)
