"""What users write raw, as their node's udev sees it: not at all.  And what it makes of it without our rules.

One guest stores and uses.  Targets, volumes and stripes are made by hand, with the names that Farbus gives them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farbus.cli.installation import RULES, STORAGE_RULES, storage_rules
from farbus.linux.device_mapper import table_of
from farbus.model.nvmeof import MODEL, Stripe, SubsystemName, namespace_identity
from farbus.model.storage import LogicalIdentity
from tests.lab.guest import Guest, patient
from tests.lab.nodes import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(900))]

LIMIT_S = patient(120)

MADE_OF = {"label": "disk/by-label/theirs", "group": "mapper/theirs-theirs", "array": "md1", "table": "-part1"}
"""What a user may think of, and what udev makes of it where it may."""

WRITE_CONTENTS = """
mkdir -p /var/tmp/contents && cd /var/tmp/contents
for what in label group array table; do truncate -s 24M $what; done
mkfs.ext4 -q -L theirs -U 99999999-2222-4333-8444-555555555555 label
# One partition of 8 MiB from 1 MiB on, on a disk of the number 0x99999999: the guest has no program for it.
put() { printf "$2" | dd of=table bs=1 seek=$1 conv=notrunc status=none; }
put 440 '\\231\\231\\231\\231'
put 446 '\\0\\0\\0\\0\\203\\0\\0\\0\\0\\010\\0\\0\\0\\100\\0\\0'
put 510 '\\125\\252'
loop=$(losetup -f --show group)
pvcreate -qq $loop; vgcreate -qq theirs $loop; lvcreate -qq -n theirs -L 8M theirs; vgchange -qq -an theirs
losetup -d $loop
modprobe raid1
loop=$(losetup -f --show array)
mdadm --quiet --create /dev/md/theirs --run --level=1 --raid-devices=2 --bitmap=none $loop missing < /dev/null
udevadm settle
mdadm --quiet --stop --scan
losetup -d $loop
udevadm settle
"""
"""Writes these into files."""

STORE = """
modprobe -a nvmet-tcp nvme-tcp
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
pvcreate -qq {drive}; vgcreate -qq --setautoactivation n farbus {drive}
for name in {volumes}; do lvcreate -qq -Wn -L 32M -n $name farbus; done
mkdir /sys/kernel/config/nvmet/ports/64000; cd /sys/kernel/config/nvmet/ports/64000
echo tcp > addr_trtype; echo ipv4 > addr_adrfam; echo 127.0.0.1 > addr_traddr; echo 4420 > addr_trsvcid
mkdir /sys/kernel/config/nvmet/subsystems/{nqn}; cd /sys/kernel/config/nvmet/subsystems/{nqn}
echo '{model}' > attr_model; echo 1 > attr_allow_any_host
mkdir namespaces/1; cd namespaces/1
echo /dev/farbus/{exported} > device_path; echo {uuid} > device_uuid; echo 1 > enable
ln -s /sys/kernel/config/nvmet/subsystems/{nqn} /sys/kernel/config/nvmet/ports/64000/subsystems/
dmsetup create {stripe} --uuid {stripe_uuid} --table '{table}'
"""

CONNECT = "nvme connect -t tcp -a 127.0.0.1 -s 4420 -n {nqn} > /dev/null; udevadm settle; test -b {path}"
DISCONNECT = "nvme disconnect -n {nqn} > /dev/null; udevadm settle"

WRITE = """
# As a user's program does: not by a name that udev watches.
mknod /dev/written b $(lsblk -dno MAJ:MIN {device} | tr : ' ')
dd if=/dev/zero of=/dev/written bs=1M count=24 conv=fsync status=none
[ -z '{content}' ] || dd if=/var/tmp/contents/{content} of=/dev/written bs=1M conv=fsync status=none
rm /dev/written
# lvm2 remembers which groups it has activated.
rm -f /run/lvm/pvs_online/* /run/lvm/vgs_online/*
"""

LOOK = """
for action in change add; do udevadm trigger --action=$action --subsystem-match=block; udevadm settle; done
# What lvm2's rule starts is a service.
while systemctl list-jobs --no-legend | grep -q .; do udevadm settle; done
cd /dev; { find disk mapper md theirs md[0-9]* -not -type d 2> /dev/null || true; } | grep -v by-diskseq | sort
"""
"""Has udev look at everything, and tells what it, lvm2 and mdadm have made."""


def seen_with(guest: Guest, device: str, content: str, *, again: bool) -> set[str]:
    """Return what is in /dev when a device holds a content; ``again``: a namespace that is connected anew with it."""
    guest.shell(WRITE.format(device=device, content=content), limit_s=LIMIT_S)
    if again:
        guest.shell(DISCONNECT.format(nqn=NQN) + "; " + CONNECT.format(nqn=NQN, path=NAMESPACE), limit_s=LIMIT_S)
    return set(guest.shell(LOOK, limit_s=LIMIT_S).stdout.split())


NQN = SubsystemName(lease="L", epoch=1).nqn
IDENTITY = namespace_identity("b")
NAMESPACE = IDENTITY.by_id
LOCAL, EXPORTED, FIRST, SECOND = (LogicalIdentity(volume=name, part=0, parts=1).name for name in ("a", "b", "c", "d"))
STRIPE = Stripe(
    id="s", members=(f"/dev/farbus/{FIRST}", f"/dev/farbus/{SECOND}"), member_bytes=16 << 20, chunk_bytes=128 << 10
)


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """Return a guest with a volume of its own, a namespace of another's, and a stripe, all of them empty."""
    guest = lab.node("a")
    file = tmp_path_factory.mktemp("udev") / "drive"
    with file.open("wb") as sparse:
        sparse.truncate(256 << 20)
    guest.plug_drive("nv0", port="port1", file=file, serial="S0")
    drive = "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_S0"
    guest.until(f"test -b {drive}")
    guest.shell(WRITE_CONTENTS, limit_s=LIMIT_S)
    store = STORE.format(
        drive=drive, volumes=" ".join((LOCAL, EXPORTED, FIRST, SECOND)), nqn=NQN, model=MODEL, exported=EXPORTED,
        uuid=IDENTITY.uuid, stripe=STRIPE.name, stripe_uuid=STRIPE.uuid, table=table_of(STRIPE).strip(),
    )  # fmt: skip
    guest.shell(store + CONNECT.format(nqn=NQN, path=NAMESPACE), limit_s=LIMIT_S)
    return guest


DEVICES = {
    "a volume of the node itself": f"/dev/farbus/{LOCAL}",
    "a namespace": NAMESPACE,
    "a stripe": STRIPE.path,
}


def test_without_rules_udev_acts_on_what_users_write(node: Guest, tell: Callable[[str], None]) -> None:
    before = seen_with(node, NAMESPACE, "", again=False)
    for content, made in MADE_OF.items():
        new = seen_with(node, NAMESPACE, content, again=True) - before
        assert any(made in name for name in new), (content, new)
        tell(f"without rules, a namespace that holds a {content}: {', '.join(sorted(new))}")
        node.shell("vgchange -qq -an theirs; mdadm --quiet --stop --scan; udevadm settle", check=False)
    seen_with(node, NAMESPACE, "", again=True)


def test_with_rules_udev_leaves_it_alone(node: Guest) -> None:
    path = f"{RULES}/{STORAGE_RULES}"
    node.shell(f"mkdir -p {RULES}")
    node.write(path, storage_rules("farbus").decode())
    node.shell(f"udevadm control --reload; ! udevadm test /sys/block/dm-0 2>&1 | grep -F {path}:")
    for what, device in DEVICES.items():
        before = seen_with(node, device, "", again=device == NAMESPACE)
        for content in MADE_OF:
            seen = seen_with(node, device, content, again=device == NAMESPACE)
            assert seen - before == set(), f"{what} that holds a {content}"
            # What Farbus itself goes by is there all the same.
            assert all(one.removeprefix("/dev/") in seen for one in (NAMESPACE, STRIPE.path))
            node.shell(f"test -b /dev/farbus/{LOCAL}; ! vgs theirs; ! ls -d /dev/md[0-9]*")
        seen_with(node, device, "", again=device == NAMESPACE)
