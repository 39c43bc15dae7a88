"""Namespaces come from one guest to another: Debian's kernels, both versions of nvme-cli, a network that is cut.

The target is written into configfs by a script: it is not what is tested here.
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
    SubsystemName,
    namespace_identity,
    transport_address,
)
from farbus.nvmeof.composition import plan_stripe
from farbus.nvmeof.parts import Attach
from tests.lab.guest import Guest, Machine, patient
from tests.lab.image import KERNELS
from tests.lab.nodes import Lab
from tests.lab.tree import TREE, put_tree
from tests.lab.writing import Writer, check

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

OLD, NEW = "nvme", "/opt/trixie/bin/nvme"
"""nvme-cli 2.3 and 2.13."""

FIRST, SECOND = "tcp://10.9.0.2:4420", "tcp://10.9.0.102:4420"
NOBODY = "tcp://10.9.0.2:4499"
SIZE = 32 << 20
KEY = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
OTHER_KEY = "DHHC-1:00:2wKd3YDIcRMN/rCJa/k60E8xBQMw+2D9UnigSQ6YFkEHV3Yy:"

ORDER_LIMIT_S = patient(240)

EXPORT = """
modprobe -a nvmet_tcp loop
ip address replace 10.9.0.102/24 dev enp0s16
cd /sys/kernel/config/nvmet
file=/var/tmp/{volume}
[ -e $file ] || truncate -s {size} $file
device=$(losetup -j $file | cut -d: -f1); [ -n "$device" ] || device=$(losetup -f --show $file)
mkdir -p hosts/{host}
[ -z "{key}" ] || echo "{key}" > hosts/{host}/dhchap_key
mkdir subsystems/{nqn}; cd subsystems/{nqn}
echo {serial} > attr_serial; echo 'Farbus volume' > attr_model; echo 0 > attr_allow_any_host
ln -s /sys/kernel/config/nvmet/hosts/{host} allowed_hosts/
mkdir namespaces/1; cd namespaces/1
printf %s $device > device_path; echo {uuid} > device_uuid; echo {nguid} > device_nguid; echo 1 > enable
cd /sys/kernel/config/nvmet
for port in "1 10.9.0.2" "2 10.9.0.102"; do
    set -- $port
    if ! [ -d ports/$1 ]; then
        mkdir ports/$1; cd ports/$1
        echo ipv4 > addr_adrfam; echo tcp > addr_trtype; echo $2 > addr_traddr; echo 4420 > addr_trsvcid
        mkdir referrals/other; cd referrals/other
        echo ipv4 > addr_adrfam; echo tcp > addr_trtype; echo 10.9.0.77 > addr_traddr; echo 4420 > addr_trsvcid
        echo 1 > enable; cd /sys/kernel/config/nvmet
    fi
    ln -s /sys/kernel/config/nvmet/subsystems/{nqn} ports/$1/subsystems/
done
"""

WITHDRAW = """
cd /sys/kernel/config/nvmet
echo 0 > subsystems/{nqn}/namespaces/1/enable
rm ports/*/subsystems/{nqn}
rmdir subsystems/{nqn}/namespaces/1; rm subsystems/{nqn}/allowed_hosts/*; rmdir subsystems/{nqn}
"""


def a_connection(lease: str, epoch: int = 1, **changes: object) -> Connection:
    connection = Connection(
        name=SubsystemName(lease=lease, epoch=epoch),
        addresses=(transport_address(FIRST), transport_address(SECOND)),
        namespaces=(ExpectedNamespace(identity=namespace_identity(lease), size_bytes=SIZE),),
        loss_s=600,
        reconnect_delay_s=1,
        keep_alive_s=5,
    )
    return msgspec.structs.replace(connection, **changes)


def export(target: Guest, connection: Connection, *, key: str = "") -> None:
    identity = connection.namespaces[0].identity
    script = EXPORT.format(
        volume=identity.serial, size=SIZE, host=connection.name.host_nqn, key=key, nqn=connection.nqn,
        serial=identity.serial, uuid=identity.uuid, nguid=identity.nguid,
    )  # fmt: skip
    target.shell(script, limit_s=ORDER_LIMIT_S)


def withdraw(target: Guest, connection: Connection) -> None:
    target.shell(WITHDRAW.format(nqn=connection.nqn), limit_s=ORDER_LIMIT_S)


def order(guest: Guest, what: str, *connections: Connection, program: str = OLD, **given: Any) -> dict[str, Any]:
    """Have the initiator's steps done in a guest, and return what came of it."""
    work = given.pop("work", None) or Attach(id="lab", connections=connections, drain_s=2.0)
    told = json.dumps({"work": msgspec.to_builtins(work), "keys": given.pop("keys", {}), **given})
    ran = guest.run(
        "/opt/farbus/bin/python", "-m", "tests.lab.initiator", what, program,
        input=told, cwd=TREE, limit_s=ORDER_LIMIT_S,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def done(answer: dict[str, Any]) -> dict[str, Any]:
    assert "error" not in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


def has_nothing(guest: Guest) -> None:
    """See that no controller, link or mapping is left."""
    left = guest.shell(
        "ls /sys/class/nvme; ls /dev/disk/by-id 2>/dev/null | grep nvme-uuid || true; dmsetup ls | grep farbus || true"
    )
    assert left.stdout == ""


@pytest.fixture(scope="module", params=KERNELS[::-1])
def kernel(request: pytest.FixtureRequest) -> str:
    """The initiator's kernel; the target's is always the newest, which knows authentication."""
    return str(request.param)


@pytest.fixture(scope="module")
def guests(lab: Lab, kernel: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Guest, Guest]:
    """The initiator and the target."""
    newest = Machine(kernel=KERNELS[-1], cables=1)
    (target,) = lab.nodes("b", machine=newest)
    # As many guests at a time as have to be.
    lab.discard("a")
    (initiator,) = lab.nodes("a", machine=Machine(kernel=kernel, cables=1))
    put_tree(initiator, tmp_path_factory.mktemp("tree"), tests=("lab/initiator.py", "linux/nvme_contract.py"))
    initiator.shell("modprobe -a nvme_tcp dm_mod; rm -f /etc/nvme/hostnqn")
    return initiator, target


@pytest.fixture
def initiator(guests: tuple[Guest, Guest]) -> Guest:
    return guests[0]


@pytest.fixture
def target(guests: tuple[Guest, Guest]) -> Guest:
    return guests[1]


@pytest.mark.parametrize("program", [OLD, NEW], ids=["2.3", "2.13"])
def test_the_kernel_keeps_the_promise(program: str, kernel: str, initiator: Guest, target: Guest) -> None:
    lease = f"promise-{kernel}-{program.count('/')}"
    # Debian's 6.1 knows no authentication.
    keys = {lease: KEY, "other": OTHER_KEY} if kernel != "6.1" else {}
    connection = a_connection(lease, authenticated=bool(keys))
    export(target, connection, key=keys.get(lease, ""))
    done(order(initiator, "contract", connection, program=program, keys=keys, nobody=NOBODY))
    has_nothing(initiator)


@pytest.mark.parametrize("program", [OLD, NEW], ids=["2.3", "2.13"])
def test_a_namespace_comes_is_found_again_and_goes(
    program: str, kernel: str, initiator: Guest, target: Guest, tell: Callable[[str], None]
) -> None:
    connection = a_connection(f"comes-{kernel}-{program.count('/')}")
    export(target, connection)
    answer = order(initiator, "attach", connection, program=program)
    path = done(answer)["path"]
    tell(
        f"attach with {program} on {kernel}, seconds: { {name: round(s, 1) for name, s in answer['seconds'].items()} }"
    )
    initiator.shell(
        f"echo farbus > {path}; sync; dd if={path} iflag=direct bs=4096 count=1 status=none | grep -qa farbus"
    )
    assert all(done(order(initiator, "adopt", connection, program=program))["found"])
    # What somebody holds stays.
    initiator.shell(f"losetup /dev/loop7 {path}")
    refused = order(initiator, "detach", connection, program=program)
    assert refused["error"] == "Conflict"
    assert "loop7" in refused["says"]
    initiator.shell("losetup -d /dev/loop7")
    done(order(initiator, "detach", connection, program=program))
    has_nothing(initiator)
    done(order(initiator, "detach", connection, program=program))


def test_another_identity_or_size_is_refused(kernel: str, initiator: Guest, target: Guest) -> None:
    right = a_connection(f"wrong-{kernel}")
    export(target, right)
    expected = right.namespaces[0]
    other = namespace_identity("other")
    for wrong, says in (
        (
            msgspec.structs.replace(expected, identity=msgspec.structs.replace(expected.identity, uuid=other.uuid)),
            "UUID",
        ),
        (msgspec.structs.replace(expected, size_bytes=SIZE // 2), "bytes, not"),
    ):
        asked = msgspec.structs.replace(right, namespaces=(wrong,))
        refused = order(initiator, "attach", asked)
        assert refused["error"] == "Conflict", refused
        assert says in refused["says"]
        done(order(initiator, "detach", asked))
    has_nothing(initiator)


def test_a_refused_key_is_told_in_one_line(kernel: str, initiator: Guest, target: Guest) -> None:
    if kernel == "6.1":
        pytest.skip("Debian's 6.1 knows no authentication")
    connection = a_connection("keys", authenticated=True, addresses=(transport_address(FIRST),))
    export(target, connection, key=KEY)
    for program in (OLD, NEW):
        refused = order(initiator, "attach", connection, program=program, keys={"keys": OTHER_KEY})
        assert refused == {
            "error": "NotPermitted",
            "says": f"connect {FIRST}: authentication failed: the target refuses the key; "
            "the target has been told another key for this host, or none",
        }
    done(order(initiator, "attach", connection, program=NEW, keys={"keys": KEY}))
    # The key is nowhere that others can read.
    initiator.shell("! grep -rls DHHC /proc/[0-9]*/cmdline; ! grep -rls DHHC /run /tmp /etc/nvme")
    # Who restarts has no key, and needs none.
    assert all(done(order(initiator, "adopt", connection))["found"])
    done(order(initiator, "detach", connection))


def test_the_next_epoch_takes_the_place_of_the_last(kernel: str, initiator: Guest, target: Guest) -> None:
    before = a_connection(f"epoch-{kernel}", 1)
    now = msgspec.structs.replace(before, name=SubsystemName(lease=f"epoch-{kernel}", epoch=2))
    export(target, before)
    done(order(initiator, "attach", before))
    withdraw(target, before)
    export(target, now)
    done(order(initiator, "attach", now))
    nqns = initiator.shell("cat /sys/class/nvme/*/subsysnqn").stdout.split()
    assert nqns == [now.nqn] * 2
    done(order(initiator, "detach", now))
    has_nothing(initiator)


STATES = "cat /sys/class/nvme/*/state | sort | uniq -c | tr -s ' \\n' ' '"


def test_io_goes_on_when_one_of_two_paths_is_cut(
    kernel: str, initiator: Guest, target: Guest, tell: Callable[[str], None]
) -> None:
    connection = a_connection(f"paths-{kernel}")
    export(target, connection)
    path = done(order(initiator, "attach", connection))["path"]
    writer = Writer(initiator, path)
    command = ("/opt/farbus/bin/python", "-m", "tests.lab.initiator", "comes back", OLD)
    listener = initiator.start(*command, input=json.dumps({"at": SECOND}), cwd=TREE, limit_s=ORDER_LIMIT_S)
    initiator.until("rmdir /run/listening", limit_s=ORDER_LIMIT_S)
    # The address is gone, and nobody says so.
    target.shell("ip address del 10.9.0.102/24 dev enp0s16")
    initiator.until(f"{STATES} | grep -q '1 connecting 1 live'", limit_s=ORDER_LIMIT_S)
    assert all(done(order(initiator, "adopt", connection))["found"])
    target.shell("ip address replace 10.9.0.102/24 dev enp0s16")
    initiator.until(f"{STATES} | grep -q '2 live'", limit_s=ORDER_LIMIT_S)
    said = writer.stop()
    assert json.loads(listener.wait().stdout)["result"]["reconnects"] >= 1
    assert (said["error"], check(initiator, path, "writer", said["written"])) == ("", [])
    tell(f"one of two paths cut on {kernel}: {said}")
    done(order(initiator, "detach", connection))
    has_nothing(initiator)


def test_a_path_that_the_kernel_has_given_up_is_connected_again_without_the_key(
    kernel: str, initiator: Guest, target: Guest
) -> None:
    lease = f"mended-{kernel}"
    # Debian's 6.1 knows no authentication.
    keys = {lease: KEY} if kernel != "6.1" else {}
    connection = a_connection(lease, loss_s=5, authenticated=bool(keys))
    export(target, connection, key=keys.get(lease, ""))
    path = done(order(initiator, "attach", connection, keys=keys))["path"]
    writer = Writer(initiator, path)
    target.shell("ip address del 10.9.0.102/24 dev enp0s16")
    initiator.until(f"{STATES} | grep -qx ' 1 live '", limit_s=ORDER_LIMIT_S)
    target.shell("ip address replace 10.9.0.102/24 dev enp0s16")
    done(order(initiator, "mend", connection))
    assert initiator.shell(STATES).stdout.split() == ["2", "live"]
    said = writer.stop()
    assert (said["error"], check(initiator, path, "writer", said["written"])) == ("", [])
    done(order(initiator, "detach", connection))
    # Of what is detached no path is made.
    done(order(initiator, "mend", connection))
    has_nothing(initiator)


def test_a_cut_shorter_than_the_loss_time_out_is_waited_out(
    lab: Lab, kernel: str, initiator: Guest, target: Guest
) -> None:
    connection = a_connection(f"short-{kernel}")
    export(target, connection)
    path = done(order(initiator, "attach", connection))["path"]
    writer = Writer(initiator, path)
    lab.network.cut("a", "b")
    initiator.until(f"{STATES} | grep -q '2 connecting'", limit_s=ORDER_LIMIT_S)
    lab.network.mend()
    initiator.until(f"{STATES} | grep -q '2 live'", limit_s=ORDER_LIMIT_S)
    said = writer.stop()
    assert (said["error"], check(initiator, path, "writer", said["written"])) == ("", [])
    done(order(initiator, "detach", connection))
    has_nothing(initiator)


def test_a_cut_longer_than_the_loss_time_out_is_an_error_and_it_can_be_attached_again(
    lab: Lab, kernel: str, initiator: Guest, target: Guest
) -> None:
    connection = a_connection(f"long-{kernel}", loss_s=5)
    export(target, connection)
    path = done(order(initiator, "attach", connection))["path"]
    writer = Writer(initiator, path)
    lab.network.cut("a", "b")
    initiator.until("! ls /sys/class/nvme | grep -q nvme", limit_s=ORDER_LIMIT_S)
    said = writer.ended()
    assert said["error"] == "Input/output error"
    assert done(order(initiator, "adopt", connection))["found"] == [True, False, False, False]
    lab.network.mend()
    done(order(initiator, "attach", connection))
    # What was written before is there.
    assert check(initiator, path, "writer", said["written"]) == []
    done(order(initiator, "detach", connection))
    has_nothing(initiator)


def test_a_stripe_over_two_subsystems_holds_what_is_written(kernel: str, initiator: Guest, target: Guest) -> None:
    connections = tuple(a_connection(f"stripe-{kernel}-{number}") for number in (1, 2))
    for connection in connections:
        export(target, connection)
    stripe = plan_stripe("lab", [connection.namespaces[0] for connection in connections])
    work = Attach(id="lab", connections=connections, stripe=stripe, drain_s=2.0)
    path = done(order(initiator, "attach", work=work))["path"]
    assert path == "/dev/mapper/farbus-lab"
    size = int(initiator.run("blockdev", "--getsize64", path).stdout)
    assert size == stripe.size_bytes == 2 * SIZE
    initiator.shell(
        "head -c 8M /dev/urandom > /run/data\n"
        f"dd if=/run/data of={path} bs=1M oflag=direct status=none\n"
        f"dd if={path} bs=1M count=8 iflag=direct status=none | cmp - /run/data"
    )
    # Half of it is on each, a chunk in turn.
    first, second = (connection.namespaces[0].identity.by_id for connection in connections)
    chunk = stripe.chunk_bytes
    for number, member in enumerate((first, second)):
        read = f"dd if={member} iflag=direct bs={chunk} count=1 status=none of=/run/member"
        initiator.shell(f"{read}; cmp -n {chunk} -i 0:{number * chunk} /run/member /run/data")
    assert all(done(order(initiator, "adopt", work=work))["found"])
    done(order(initiator, "detach", work=work))
    has_nothing(initiator)


def test_errors_of_a_path_are_counted_by_its_controller(kernel: str, initiator: Guest, target: Guest) -> None:
    connection = a_connection(f"errors-{kernel}")
    export(target, connection)
    done(order(initiator, "attach", connection))
    name = initiator.shell("ls /sys/class/nvme").stdout.split()[0]
    for program in (OLD, NEW):
        before = done(order(initiator, "errors", connection, program=program))["errors"][name]
        # A command that no controller knows.
        initiator.shell(f"nvme admin-passthru /dev/{name} --opcode=0xc9", check=False)
        assert done(order(initiator, "errors", connection, program=program))["errors"][name] == before + 1
    done(order(initiator, "detach", connection))
    has_nothing(initiator)


def test_discovery_tells_of_the_subsystem_and_refers_to_others(kernel: str, initiator: Guest, target: Guest) -> None:
    connection = a_connection(f"found-{kernel}")
    export(target, connection)
    name = connection.name
    for program in (OLD, NEW):
        asked = {"at": FIRST, "host_nqn": name.host_nqn, "host_id": name.host_id}
        found = done(order(initiator, "discover", connection, program=program, **asked))["records"]
        assert [one["nqn"] for one in found if one["kind"] == "subsystem"] == [name.nqn]
        assert [one["address"]["address"] for one in found if one["kind"] == "referral"] == ["10.9.0.77"]
        # A persistent one stays, for the kernel to hear of changes.
        assert initiator.shell("cat /sys/class/nvme/*/cntrltype").stdout.split() == ["discovery"]
        initiator.shell("nvme disconnect -n nqn.2014-08.org.nvmexpress.discovery")
    has_nothing(initiator)
