"""The NVMe target on real kernels: it keeps the contract of the fake's, and an initiator meets what was exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farbus.model.nvmeof import MODEL, Export, ExportedNamespace, SubsystemName, namespace_identity, transport_address
from farbus.nvmeof.keys import Keys, keys_of
from tests.lab.guest import Guest, GuestError, patient
from tests.lab.image import KERNELS
from tests.lab.tree import PYTHON, put_tree

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

TESTS = ("linux/nvmet_contract.py", "nvmeof/target_program.py")
LIMIT_S = patient(600)

SECRET = "5a" * 32
VOLUME = namespace_identity("volume")
ADDRESS = transport_address("tcp://127.0.0.1:4420")
FILE = "/var/tmp/volume"
CLIENTS = {"6.1": "nvme", "6.12": "/opt/trixie/bin/nvme"}


class Node:
    """A guest that exports and connects to itself."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.kernel = guest.machine.kernel
        self.device = ""

    def python(self, module: str, *arguments: str, input: str = "") -> Any:
        return json.loads(self.guest.run(*PYTHON, "-m", module, *arguments, input=input, limit_s=LIMIT_S).stdout)

    def export(self, epoch: int = 1, *, authenticated: bool = False) -> Export:
        return Export(
            name=SubsystemName(lease="lab", epoch=epoch), addresses=(ADDRESS,), authenticated=authenticated,
            namespaces=(ExportedNamespace(device=self.device, identity=VOLUME),),
        )  # fmt: skip

    def target(self, verb: str, export: Export, *, children: bool = False) -> dict[str, Any]:
        """Let the steps go; the secret is in no argument list."""
        order = {
            "verb": verb, "export": msgspec.to_builtins(export), "secret": SECRET if export.authenticated else "",
            "children": children,
        }  # fmt: skip
        told: dict[str, Any] = self.python("tests.nvmeof.target_program", input=json.dumps(order))
        return told

    def connect(self, export: Export, *, keys: Keys | None = None) -> int:
        """Connect as an initiator does; return what nvme-cli ended with."""
        secrets = f"-S {keys.host} -C {keys.controller}" if keys else ""
        return self.guest.shell(
            f"{CLIENTS[self.kernel]} connect -t tcp -a 127.0.0.1 -s 4420 -n {export.nqn} -q {export.name.host_nqn}"
            f" -I {export.name.host_id} -l 3 -c 1 -i 1 {secrets}",
            check=False,
            limit_s=LIMIT_S,
        ).code

    def disconnect(self, export: Export) -> None:
        self.guest.shell(f"{CLIENTS[self.kernel]} disconnect -n {export.nqn}", check=False, limit_s=LIMIT_S)


@pytest.fixture(scope="module", params=KERNELS)
def node(image: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Guest.boot(image, name="target", kernel=request.param) as guest:
        put_tree(guest, tmp_path_factory.mktemp("target"), tests=TESTS)
        guest.shell("modprobe -a nvme-tcp nvmet-tcp loop null_blk")
        guest.shell(f"truncate -s 64M {FILE}")
        node = Node(guest)
        node.device = guest.shell(f"losetup --find --show --direct-io=off {FILE}").stdout.strip()
        yield node


def test_the_kernel_keeps_the_contract_of_the_fake(node: Node) -> None:
    told = node.python("tests.linux.nvmet_contract", "/dev/nullb0")
    assert len(told) > 10
    assert {name: problem for name, problem in told.items() if problem} == {}


def test_an_initiator_meets_the_identity_and_is_thrown_out(node: Node) -> None:
    export, guest = node.export(1), node.guest
    told = node.target("export", export)
    assert told["differences"] == []
    assert told["size_bytes.1"] == str(64 << 20)
    assert node.connect(export) == 0
    disk = f"/dev/disk/by-id/nvme-uuid.{VOLUME.uuid}"
    guest.until(f"test -b {disk}")
    place = guest.shell(f"basename $(readlink -f {disk})").stdout.strip()
    found = [
        guest.read(f"/sys/block/{place}/{name}").strip()
        for name in ("uuid", "nguid", "size", "device/model", "device/serial")
    ]
    found[1] = found[1].replace("-", "")
    assert found == [VOLUME.uuid, VOLUME.nguid, str((64 << 20) // 512), MODEL, VOLUME.serial]

    # What was acknowledged is on the device behind it.
    guest.shell(f"head -c 1M /dev/urandom > /var/tmp/data; dd if=/var/tmp/data of={disk} oflag=direct bs=64k")
    guest.shell(f"dd if={node.device} bs=64k count=16 iflag=direct | cmp - /var/tmp/data")
    assert node.target("look", export)["written_bytes"][0] >= 1 << 20

    # A bigger device is seen where it is used.
    guest.shell(f"truncate -s 96M {FILE} && losetup --set-capacity {node.device}")
    node.target("resize", export)
    guest.until(f"test $(blockdev --getsize64 {disk}) = {96 << 20}")

    # Writes go on until the fence, and not after it.
    writer = guest.start(
        "sh", "-c", f"touch /run/writing; exec dd if=/dev/zero of={disk} bs=4k oflag=direct count=100000000",
        limit_s=LIMIT_S,
    )  # fmt: skip
    guest.until(f"test -e /run/writing && test $(awk '{{print $5}}' /sys/block/{Path(node.device).name}/stat) -gt 100")
    told = node.target("withdraw", export, children=True)
    assert (told["subsystems"], told["ports"], told["hosts"]) == ([], [], [])
    assert writer.wait(check=False).code != 0
    before = node.target("look", export)["written_bytes"]
    assert node.connect(export) != 0
    assert node.target("look", export)["written_bytes"] == before
    node.disconnect(export)


def test_what_nobody_can_listen_at_leaves_nothing(node: Node) -> None:
    others = tuple(transport_address(f"tcp://192.0.2.{host}:4420") for host in (1, 2))
    export = msgspec.structs.replace(node.export(2), addresses=others)
    told = node.target("export", export)
    assert "Cannot assign requested address" in told["error"]
    assert (told["subsystems"], told["ports"], told["hosts"]) == ([], [], [])


def test_a_device_in_use_is_refused(node: Node) -> None:
    node.guest.shell(f"mkfs.ext4 -q -F {node.device} && mount {node.device} /mnt")
    told = node.target("export", node.export(3))
    node.guest.shell("umount /mnt")
    assert f"{node.device}: in use" in told["error"]
    assert told["subsystems"] == []


def test_only_who_has_the_key_connects(node: Node) -> None:
    export = node.export(4, authenticated=True)
    told = node.target("export", export)
    if node.kernel == "6.1":
        assert "knows no authentication" in told["error"]
        assert (told["subsystems"], told["ports"], told["hosts"]) == ([], [], [])
        return
    assert told["differences"] == []
    keys = keys_of(SECRET, export.name)
    for key in (keys.host, keys.controller):
        said = node.guest.shell(f"{CLIENTS['6.12']} check-dhchap-key -k {key}").stdout
        assert "valid" in said
    others = keys_of("a5" * 32, export.name)
    assert node.connect(export) != 0, "without a key"
    assert node.connect(export, keys=others) != 0, "with another lease's"
    assert node.connect(export, keys=Keys(keys.host, others.controller)) != 0, "to a target that proves itself wrongly"
    assert node.connect(export, keys=keys) == 0
    # Nobody but root reads them here, and no log has them.
    with pytest.raises(GuestError):
        node.guest.run(
            "sh", "-c", f"cat /sys/kernel/config/nvmet/hosts/{export.name.host_nqn}/dhchap_key", user="alice"
        )
    assert node.guest.shell("journalctl --no-pager | grep -c DHHC-1", check=False).stdout.strip() == "0"
    node.disconnect(export)
    told = node.target("withdraw", export)
    assert (told["subsystems"], told["ports"], told["hosts"]) == ([], [], [])


def test_two_programs_never_hold_one_device_by_two_epochs(node: Node) -> None:
    old, new = node.export(5), node.export(6)
    node.target("export", old)
    assert node.connect(old) == 0
    told = node.target("export", new)
    assert (told["differences"], told["subsystems"]) == ([], [new.nqn])
    assert node.connect(old) != 0
    node.disconnect(old)
    assert node.connect(new) == 0
    node.disconnect(new)
    assert node.target("withdraw", new)["subsystems"] == []
