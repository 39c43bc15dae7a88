"""Names and addresses of NVMe over Fabrics."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farbus.errors import InvalidInput
from farbus.model.fabric import CEILING_S
from farbus.model.nvmeof import (
    ATTACH_TIMES,
    MAX_NQN_BYTES,
    SERIAL_CHARACTERS,
    TOLD_ANEW,
    AttachHistory,
    SubsystemName,
    Transport,
    TransportAddress,
    check_nqn,
    listening_address,
    namespace_identity,
    normal_address,
    subsystem_name,
    transport_address,
)
from farbus.model.value import from_json, to_json

LEASES = st.from_regex(r"[A-Za-z0-9._-]{1,80}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "transport", "address", "service", "shown"),
    [
        ("10.9.0.1:4420", Transport.TCP, "10.9.0.1", 4420, "tcp://10.9.0.1:4420"),
        ("tcp://[fd00:0:0::7]:4421", Transport.TCP, "fd00::7", 4421, "tcp://[fd00::7]:4421"),
        ("rdma://[fe80::1%eth0]:4420", Transport.RDMA, "fe80::1%eth0", 4420, "rdma://[fe80::1%eth0]:4420"),
    ],
)
def test_an_address_is_read_and_written_in_one_form(
    text: str, transport: Transport, address: str, service: int, shown: str
) -> None:
    found = transport_address(text)
    assert found == TransportAddress(transport=transport, address=address, service=service)
    assert str(found) == shown
    assert transport_address(shown) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10.9.0.1", "is not ADDRESS:PORT"),
        ("node-a:4420", "is no IP address"),
        ("udp://10.9.0.1:4420", "'udp' is no transport"),
        ("10.9.0.1:70000", "is not ADDRESS:PORT"),
    ],
)
def test_what_is_no_address_is_named(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        transport_address(text, field="nvme_listen")


@pytest.mark.parametrize("text", ["10.9.0.1%eth0", "fd00::1%", "fd00::1%eth0\n", "fd00::1%a b", "", "fd00::1::2"])
def test_zones_are_those_of_ipv6_and_names_of_interfaces(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no IP address"):
        normal_address(text)


@pytest.mark.parametrize(
    ("text", "transport", "address"),
    [
        ("10.9.0.1", Transport.TCP, "10.9.0.1"),
        ("fd00:0::7", Transport.TCP, "fd00::7"),
        ("rdma://10.9.0.1", Transport.RDMA, "10.9.0.1"),
    ],
)
def test_where_a_target_listens(text: str, transport: Transport, address: str) -> None:
    found = listening_address(text, 4420, field="nvme_listen")
    assert found == TransportAddress(transport=transport, address=address, service=4420)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.0.0.0", "other nodes can't reach 0.0.0.0"),
        ("::", "other nodes can't reach ::"),
        ("169.254.1.1", "other nodes can't reach"),
        ("fe80::1%eth0", "other nodes can't reach"),
        ("224.0.0.1", "other nodes can't reach"),
        ("ff02::1", "other nodes can't reach"),
        ("loop://10.9.0.1", "'loop' is no transport"),
        ("://10.9.0.1", "'' is no transport"),
    ],
)
def test_where_no_other_node_comes_a_target_does_not_listen(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        listening_address(text, 4420, field="nvme_listen")


@given(st.ip_addresses(v=6))
def test_an_ipv6_address_has_one_form(address: object) -> None:
    exploded = getattr(address, "exploded")  # noqa: B009 - the strategy's type is narrower than its annotation
    assert normal_address(exploded) == normal_address(str(address)) == str(address)


@given(LEASES, st.integers(0, 2**63 - 1))
def test_a_subsystem_tells_whose_it_is(lease: str, epoch: int) -> None:
    name = SubsystemName(lease=lease, epoch=epoch)
    assert subsystem_name(check_nqn(name.nqn)) == name
    assert len(check_nqn(name.host_nqn)) <= MAX_NQN_BYTES
    later = SubsystemName(lease=lease, epoch=epoch + 1)
    assert later.nqn != name.nqn
    assert (later.host_nqn, later.host_id) == (name.host_nqn, name.host_id)
    assert str(uuid.UUID(name.host_id)) == name.host_id


@pytest.mark.parametrize(
    "nqn",
    [
        "nqn.2014-08.org.nvmexpress.discovery",
        "nqn.2019-08.org.qemu:nv0",
        "nqn.2026-11.io.farbus:lease:l1:",
        "nqn.2026-11.io.farbus:lease::4",
        "nqn.2026-11.io.farbus:lease:l1:-1",
        "nqn.2026-11.io.farbus:lease:l1:²",
        "nqn.2026-11.io.farbus:host:l1",
    ],
)
def test_a_subsystem_of_others_is_nobodys_here(nqn: str) -> None:
    assert subsystem_name(nqn) is None


@pytest.mark.parametrize(
    "nqn", ["", "nqn.2026-11", "iqn.2026-11.io:x", f"nqn.2026-11.io.x:{'y' * MAX_NQN_BYTES}", "nqn.2026-11.io:a b"]
)
def test_what_is_no_name_is_refused(nqn: str) -> None:
    with pytest.raises(InvalidInput, match="no NVMe Qualified Name"):
        check_nqn(nqn, field="host_nqn")


def test_a_lease_that_fits_no_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="can't be part"):
        _ = SubsystemName(lease="../../x", epoch=1).nqn


def test_a_volume_keeps_its_identity() -> None:
    one, again, other = namespace_identity("scratch"), namespace_identity("scratch"), namespace_identity("scratch2")
    assert one == again
    assert {one.uuid, one.nguid, one.serial}.isdisjoint({other.uuid, other.nguid, other.serial})
    assert len(one.serial) == SERIAL_CHARACTERS
    assert uuid.UUID(one.nguid) == uuid.UUID(one.uuid)
    assert one.by_id == f"/dev/disk/by-id/nvme-uuid.{one.uuid}"


def attached(*times: float) -> AttachHistory:
    history = AttachHistory()
    for seconds in times:
        history = history.with_time(seconds)
    return history


def test_what_attaching_takes_is_told_as_a_median_in_two_digits() -> None:
    assert AttachHistory().told_s == 0.0
    assert attached(0.12345).told_s == 0.12
    assert attached(3.0, 60.0, 3.0).told_s == 3.0
    assert attached(*([1.0] * ATTACH_TIMES), *([7.0] * (ATTACH_TIMES // 2))).told_s == 1.0
    assert attached(*([1.0] * ATTACH_TIMES), *([7.0] * (ATTACH_TIMES // 2 + 1))).told_s == 7.0


def test_a_median_that_hardly_differs_is_not_told_anew() -> None:
    assert attached(1.0, *([1.2] * ATTACH_TIMES)).told_s == 1.0
    assert attached(1.0, *([0.85] * ATTACH_TIMES)).told_s == 1.0
    assert attached(1.0, *([1.3] * ATTACH_TIMES)).told_s == 1.3


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40))
def test_what_is_told_is_measured_bounded_and_close_to_the_median(times: list[float]) -> None:
    history = attached(*times)
    assert len(history.times) == min(len(times), ATTACH_TIMES)
    assert 0 < history.told_s <= CEILING_S
    median = sorted(history.times)[(len(history.times) - 1) // 2]
    assert median / (TOLD_ANEW * 1.06) <= history.told_s <= median * TOLD_ANEW * 1.06
    assert from_json(to_json(history), AttachHistory) == history
