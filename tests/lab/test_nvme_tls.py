"""NVMe over TCP with TLS between two guests: what is on the wire, who is refused, and what outlives a cut.

Both have kernel, nvme-cli and ``tlshd`` of the next Debian; exports and attachments are Farbus's own steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from farbus.model.nvmeof import (
    Connection,
    ExpectedNamespace,
    Export,
    ExportedNamespace,
    SubsystemName,
    namespace_identity,
    transport_address,
)
from farbus.nvmeof.keys import keys_of, tls_key_of
from farbus.nvmeof.parts import Attach
from tests.lab.guest import Guest, Machine, patient
from tests.lab.image import KERNELS
from tests.lab.nodes import Lab
from tests.lab.test_nvme import NEW, STATES, done, has_nothing
from tests.lab.test_nvme import order as ordered
from tests.lab.tree import PYTHON, put_tree
from tests.lab.writing import Writer, check

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

SIZE = 32 << 20
SECRET, OTHER_SECRET = "5a" * 32, "a5" * 32
ENCRYPTED, CLEAR = transport_address("tcp+tls://10.9.0.2:4421"), transport_address("tcp://10.9.0.2:4420")
PATTERN = b"a word that nobody else may read"
LIMIT_S = patient(240)

DRIVE = "truncate -s {size} /var/tmp/{name}; losetup -f --show /var/tmp/{name}"
DAEMON = "systemd-run --quiet --unit=tlshd /opt/trixie/bin/tlshd"
TARGET = ("linux/nvmet_contract.py", "linux/tls_keys_contract.py", "nvmeof/target_program.py")
INITIATOR = ("linux/nvme_contract.py", "linux/tls_keys_contract.py", "lab/initiator.py")


@pytest.fixture(scope="module")
def guests(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Guest, Guest]:
    """The initiator and the target."""
    using, storing = lab.nodes("a", "b", machine=Machine(kernel=KERNELS[-1], cables=1))
    for guest, tests in ((storing, TARGET), (using, INITIATOR)):
        put_tree(guest, tmp_path_factory.mktemp("tree"), tests=tests)
        guest.shell(f"modprobe -a nvme-tcp nvmet-tcp loop dm_mod; rm -f /etc/nvme/hostnqn; {DAEMON}")
        guest.until("grep -q tlshd /proc/[0-9]*/comm", limit_s=LIMIT_S)
    return using, storing


@pytest.fixture
def using(guests: tuple[Guest, Guest]) -> Guest:
    return guests[0]


@pytest.fixture
def storing(guests: tuple[Guest, Guest]) -> Guest:
    return guests[1]


def order(guest: Guest, what: str, connection: Connection, *, secret: str = SECRET, **given: Any) -> dict[str, Any]:
    """Have the initiator's steps done by the nvme-cli that knows TLS, with the keys that are made of a secret."""
    key = keys_of(secret, connection.name).host if secret and connection.authenticated else ""
    return ordered(guest, what, connection, program=NEW, keys={connection.name.lease: key}, secret=secret, **given)


class Offer:
    """A new namespace of 32 MiB, exported by Farbus's own steps."""

    def __init__(self, storing: Guest, lease: str, *, tls: bool = True, authenticated: bool = True) -> None:
        self._storing = storing
        device = storing.shell(DRIVE.format(size=SIZE, name=lease)).stdout.strip()
        identity = namespace_identity(lease)
        self.export = Export(
            name=SubsystemName(lease=lease, epoch=1), addresses=(ENCRYPTED if tls else CLEAR,),
            authenticated=authenticated, namespaces=(ExportedNamespace(device=device, identity=identity),),
        )  # fmt: skip
        self.connection = Connection(
            name=self.export.name, addresses=self.export.addresses, authenticated=authenticated, loss_s=600,
            reconnect_delay_s=1, namespaces=(ExpectedNamespace(identity=identity, size_bytes=SIZE),),
        )  # fmt: skip
        told = self._told("export")
        assert told["differences"] == [], told

    def _told(self, verb: str) -> dict[str, Any]:
        asked = {"verb": verb, "export": msgspec.to_builtins(self.export), "secret": SECRET}
        said = self._storing.run(
            *PYTHON, "-m", "tests.nvmeof.target_program", input=json.dumps(asked), limit_s=LIMIT_S
        )  # fmt: skip
        told: dict[str, Any] = json.loads(said.stdout)
        return told

    def end(self) -> None:
        """Withdraw it, and see that neither it nor its key is left."""
        told = self._told("withdraw")
        assert self.export.nqn not in told["subsystems"]
        assert not [name for name in told["tls"] if self.export.nqn in name.split(" ")]


def test_the_keyring_of_the_kernel_keeps_the_promise_of_the_fake(using: Guest) -> None:
    using.run(*PYTHON, "-m", "tests.linux.tls_keys_contract", limit_s=LIMIT_S)
    using.shell("! grep -q farbus /proc/keys")


@pytest.mark.parametrize("authenticated", [True, False], ids=["proven", "by-tls-alone"])
def test_the_kernel_keeps_the_promise_by_tls(authenticated: bool, using: Guest, storing: Guest) -> None:
    offer = Offer(storing, f"promise-{authenticated}".lower(), authenticated=authenticated)
    done(order(using, "contract by tls", offer.connection))
    has_nothing(using)
    offer.end()


def test_what_is_written_is_not_on_the_wire_and_comes_back(
    lab: Lab, using: Guest, storing: Guest, tell: Callable[[str], None]
) -> None:
    using.shell(f"(yes '{PATTERN.decode()}' || true) | head -c 4M > /run/data || true; test -s /run/data")
    seen = {}
    for tls in (True, False):
        offer = Offer(storing, f"wire-{tls}".lower(), tls=tls)
        path = done(order(using, "attach", offer.connection))["path"]
        with lab.network.watch(PATTERN) as watch:
            using.shell(
                f"dd if=/run/data of={path} bs=64k oflag=direct status=none"
                f" && dd if={path} bs=64k count=64 iflag=direct status=none | cmp - /run/data",
                limit_s=LIMIT_S,
            )
        seen[tls] = watch
        # On the drive it is in the clear.
        device = offer.export.namespaces[0].device
        storing.shell(f"dd if={device} bs=64k count=1 iflag=direct status=none | grep -qa '{PATTERN.decode()}'")
        if tls:
            serial = using.shell("cat /sys/class/nvme/nvme*/tls_key").stdout.strip()
            identity = tls_key_of(SECRET, offer.export.name).identity
            using.shell(f"grep '^{serial}' /proc/keys | grep -qF '{identity}'")
        done(order(using, "detach", offer.connection))
        has_nothing(using)
        offer.end()
    tell(f"frames with the pattern: by TLS {seen[True].frames} of {seen[True].of}, in the clear {seen[False].frames}")
    assert seen[True].of > 64
    assert (seen[True].frames, seen[False].frames > 64) == (0, True)


def test_who_has_not_the_leases_key_is_refused_in_one_line(using: Guest, storing: Guest) -> None:
    offer = Offer(storing, "refused")
    refused = order(using, "attach", offer.connection, secret=OTHER_SECRET)
    assert refused["error"] == "Unavailable", refused
    assert "the handshake of TLS failed" in refused["says"]
    done(order(using, "detach", offer.connection))
    # In the clear there is nothing at that port.
    clear = msgspec.structs.replace(offer.connection, addresses=(msgspec.structs.replace(ENCRYPTED, tls=False),))
    assert "error" in order(using, "attach", clear)
    done(order(using, "detach", clear))
    has_nothing(using)
    offer.end()


@pytest.mark.parametrize("authenticated", [True, False], ids=["proven", "by-tls-alone"])
def test_anothers_key_opens_the_line_and_not_a_lease_that_asks_for_a_proof(
    authenticated: bool, using: Guest, storing: Guest
) -> None:
    # Linux 6.12 compares no names: what the lease is proven by is authentication (docs/decisions/0024).
    theirs, own = (
        Offer(storing, f"{name}-{authenticated}".lower(), authenticated=authenticated) for name in ("x", "y")
    )
    work = Attach(id="lab", connections=(theirs.connection, own.connection))
    said = done(ordered(using, "borrow", work=work, program=NEW, secret=SECRET))["said"]
    assert said == ("ENOKEY" if authenticated else "connected")
    has_nothing(using)
    for one in (theirs, own):
        one.end()


def test_without_the_daemon_the_node_says_so_and_connects_nothing(using: Guest, storing: Guest) -> None:
    offer = Offer(storing, "daemon")
    using.shell("systemctl stop tlshd")
    try:
        refused = order(using, "attach", offer.connection)
    finally:
        using.shell(DAEMON)
    assert refused["error"] == "Unavailable", refused
    assert "tlshd does not run on this node" in refused["says"]
    using.until("grep -q tlshd /proc/[0-9]*/comm", limit_s=LIMIT_S)
    done(order(using, "attach", offer.connection))
    done(order(using, "detach", offer.connection))
    offer.end()


def test_a_lost_path_comes_back_encrypted_and_a_fence_ends_it(lab: Lab, using: Guest, storing: Guest) -> None:
    offer = Offer(storing, "cut")
    path = done(order(using, "attach", offer.connection))["path"]
    writer = Writer(using, path)
    lab.network.cut("a", "b")
    using.until(f"{STATES} | grep -q '1 connecting'", limit_s=LIMIT_S)
    lab.network.mend()
    using.until(f"{STATES} | grep -q '1 live'", limit_s=LIMIT_S)
    said = writer.stop()
    assert (said["error"], check(using, path, "writer", said["written"])) == ("", [])
    assert all(done(order(using, "adopt", offer.connection, secret=""))["found"])
    # Its key is nowhere that others can read.
    psk = tls_key_of(SECRET, offer.export.name).psk
    for guest in (using, storing):
        guest.shell(f"! journalctl --no-pager | grep -q {psk}; ! grep -rlsq {psk} /run /tmp /etc/nvme /etc/tlshd*")
    offer.end()
    done(order(using, "detach", offer.connection))
    has_nothing(using)
    using.shell("! grep -q farbus /proc/keys")
