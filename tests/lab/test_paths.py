"""Several paths to one namespace between two guests: IPv4, IPv6, a spare, one that is silent; and RDMA by soft-RoCE."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import msgspec
import pytest

from farbus.model.nvmeof import (
    AnaState,
    Connection,
    ExpectedNamespace,
    Export,
    ExportedNamespace,
    SubsystemName,
    TransportAddress,
    namespace_identity,
    transport_address,
)
from farbus.model.nvmet import NODE_ANA_GROUP
from farbus.nvmeof.target import AddressWork
from tests.lab.guest import Guest, Machine, patient
from tests.lab.image import KERNELS
from tests.lab.nodes import Lab
from tests.lab.orders import address, done, orders, target
from tests.lab.test_nvme import done as result_of
from tests.lab.test_nvme import has_nothing, order
from tests.lab.tree import put_tree
from tests.lab.writing import Writer, check

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

SIZE = 32 << 20
LINK = "enp0s16"
FIRST, SIXTH, SPARE, SILENT = (
    transport_address(f"tcp://{one}:4420") for one in ("10.9.0.2", "[fd09::2]", "10.9.0.102", "10.9.0.202")
)
ROCE = transport_address("rdma://10.9.0.2:4420")

DRIVE = "truncate -s {size} /var/tmp/{name}; losetup -f --show /var/tmp/{name}"
STORING = ("lab/storage.py", "linux/nvmet_contract.py", "linux/lvm_contract.py", "linux/filesystems_contract.py")


@pytest.fixture(scope="module", params=KERNELS[::-1])
def guests(
    request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Guest, Guest]]:
    """The initiator and the target, both with the same kernel."""
    for name in "ab":
        lab.discard(name)
    machine = Machine(kernel=request.param, cables=1)
    storing, using = lab.nodes("b", "a", machine=machine)
    put_tree(storing, tmp_path_factory.mktemp("storing"), tests=STORING)
    put_tree(using, tmp_path_factory.mktemp("using"), tests=("lab/initiator.py", "linux/nvme_contract.py"))
    storing.shell(f"ip address add 10.9.0.102/24 dev {LINK}; ip address add fd09::2/64 dev {LINK} nodad")
    using.shell(f"modprobe -a nvme_tcp dm_mod; ip address add fd09::1/64 dev {LINK} nodad; rm -f /etc/nvme/hostnqn")
    for guest in (storing, using):
        guest.shell(f"modprobe rdma_rxe; rdma link add rxe0 type rxe netdev {LINK}")
    yield using, storing
    for name in "ab":
        lab.discard(name)


def offer(storing: Guest, lease: str, *addresses: TransportAddress) -> Export:
    """Export a new namespace of 32 MiB by Farbus's own steps; the spare is non-optimized."""
    device = storing.shell(DRIVE.format(size=SIZE, name=lease)).stdout.strip()
    namespace = ExportedNamespace(device=device, identity=namespace_identity(lease), ana_group=NODE_ANA_GROUP)
    export = Export(
        name=SubsystemName(lease=lease, epoch=1),
        namespaces=(namespace,),
        addresses=addresses,
        states={str(SPARE): {str(NODE_ANA_GROUP): AnaState.NON_OPTIMIZED}},
    )
    done(storing, target("go", export))
    return export


def connection_to(export: Export) -> Connection:
    expected = ExpectedNamespace(identity=export.namespaces[0].identity, size_bytes=SIZE)
    return Connection(name=export.name, addresses=export.addresses, namespaces=(expected,), reconnect_delay_s=1)


def states(using: Guest, connection: Connection) -> dict[str, str]:
    """Return the ANA state of the namespace by the address that it is reached at."""
    found = result_of(order(using, "look", connection))["controllers"]
    return {
        str(msgspec.convert(one["address"], TransportAddress)): one["namespaces"][0]["ana_state"] for one in found
    }  # fmt: skip


def test_what_is_offered_at_several_addresses_is_reached_at_all_that_work(
    guests: tuple[Guest, Guest], tell: Callable[[str], None]
) -> None:
    using, storing = guests
    # Of the node itself it has all but one, and does without that.
    export = offer(storing, "several", FIRST, SIXTH, SPARE, SILENT)
    connection = connection_to(export)
    answer = order(using, "attach", connection)
    path = result_of(answer)["path"]
    assert result_of(answer)["missing"].startswith(f"{SILENT}: no ")
    tell(f"three addresses and a silent one, seconds: {json.dumps(answer['seconds'])}")
    assert states(using, connection) == {
        str(FIRST): "optimized", str(SIXTH): "optimized", str(SPARE): "non-optimized",
    }  # fmt: skip
    # Found again, on both sides, with what is missing.
    assert all(result_of(order(using, "adopt", connection))["found"])
    # Two addresses are to be withdrawn under a writer: it goes on at the spare.
    writer = Writer(using, path)
    for one in (FIRST, SIXTH):
        done(storing, address(AddressWork(address=one, state=AnaState.INACCESSIBLE, before=AnaState.OPTIMIZED)))
    (refused,) = orders(
        storing, address(AddressWork(address=SPARE, state=AnaState.INACCESSIBLE, before=AnaState.OPTIMIZED))
    )
    assert refused["error"] == "Conflict"
    assert "its only one that can be used" in refused["says"]
    using.until("grep -qx inaccessible /sys/class/nvme/*/nvme*c*n1/ana_state", limit_s=patient(60))
    storing.shell(f"ip address del fd09::2/64 dev {LINK}")
    said = writer.stop()
    assert (said["error"], check(using, path, "writer", said["written"])) == ("", [])
    assert states(using, connection)[str(SPARE)] == "non-optimized"
    result_of(order(using, "detach", connection))
    has_nothing(using)
    done(storing, target("back", export))
    assert storing.shell("ls /sys/kernel/config/nvmet/subsystems /sys/kernel/config/nvmet/ports -A").stdout.split() == [
        "/sys/kernel/config/nvmet/ports:", "/sys/kernel/config/nvmet/subsystems:",
    ]  # fmt: skip


def test_a_namespace_is_reached_by_rdma(guests: tuple[Guest, Guest], tell: Callable[[str], None]) -> None:
    using, storing = guests
    export = offer(storing, "roce", ROCE, FIRST)
    connection = msgspec.structs.replace(connection_to(export), addresses=(ROCE,))
    answer = order(using, "attach", connection)
    path = result_of(answer)["path"]
    assert result_of(answer)["missing"] == ""
    tell(f"by soft-RoCE, seconds: {json.dumps(answer['seconds'])}")
    assert states(using, connection) == {str(ROCE): "optimized"}
    writer = Writer(using, path)
    said = writer.stop()
    assert said["error"] == ""
    assert check(using, path, "writer", said["written"]) == []
    # What it wrote has crossed, and by this transport.
    storing.shell(f"grep -qa 'writer 0' {export.namespaces[0].device}")
    assert all(result_of(order(using, "adopt", connection))["found"])
    result_of(order(using, "detach", connection))
    has_nothing(using)
    done(storing, target("back", export))
