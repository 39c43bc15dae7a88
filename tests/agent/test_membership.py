"""What a node remembers of its cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from farbus.agent.membership import MAX_PEERS, Membership
from farbus.errors import Conflict


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "membership.json"


def test_a_scheduler_of_a_lower_term_is_refused_also_by_the_next_process(path: Path) -> None:
    Membership(path).accept(term=7, lease_ttl_s=15.0)
    again = Membership(path)
    with pytest.raises(Conflict, match="the scheduler's term is 6, but this node has served term 7") as caught:
        again.accept(term=6, lease_ttl_s=15.0)
    assert str(path) in caught.value.hint
    again.accept(term=7, lease_ttl_s=15.0)
    again.accept(term=8, lease_ttl_s=15.0)


def test_what_was_learned_outlives_the_process(path: Path) -> None:
    first = Membership(path)
    first.accept(term=1, lease_ttl_s=15.0)
    first.serve_on(4711)
    first.learn("d", "10.0.0.4:7412")
    again = Membership(path)
    assert (again.lease_ttl_s, again.peer_port, again.endpoint_of("d")) == (15.0, 4711, "10.0.0.4:7412")
    assert again.endpoint_of("e") == ""


def test_an_agent_that_serves_nobody_does_not_make_another_forgotten(path: Path) -> None:
    known = Membership(path)
    known.learn("d", "10.0.0.4:7412")
    known.learn("d", "")
    assert known.endpoint_of("d") == "10.0.0.4:7412"


@pytest.mark.parametrize(
    "endpoint",
    ["unix:/run/farbus/agent.sock", "10.0.0.4", "10.0.0.4:", "a b:1", "dns:///x:1", "[::1]", ":1", "x" * 300 + ":1"],
)
def test_what_is_no_endpoint_is_not_kept(path: Path, endpoint: str) -> None:
    known = Membership(path)
    known.learn("d", endpoint)
    assert known.endpoint_of("d") == ""


@pytest.mark.parametrize(
    "endpoint", ["node7:7412", "n_7.example:1", "10.0.0.4:65535", "[fe80::1%eth0]:7412", "[::1]:7412"]
)
def test_endpoints_are_names_or_addresses_with_a_port(path: Path, endpoint: str) -> None:
    known = Membership(path)
    known.learn("d", endpoint)
    assert known.endpoint_of("d") == endpoint


def test_only_so_many_peers_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PEERS >= 1000
    monkeypatch.setattr("farbus.agent.membership.MAX_PEERS", 2)
    known = Membership(path)
    for name in "abc":
        known.learn(name, f"{name}:1")
    assert [known.endpoint_of(name) for name in "abc"] == ["", "b:1", "c:1"]


def test_a_damaged_file_is_set_aside(path: Path) -> None:
    path.write_bytes(b"\0 not JSON")
    known = Membership(path)
    assert known.term == 0
    known.accept(term=1, lease_ttl_s=1.0)
    assert Membership(path).term == 1
    assert path.with_suffix(".broken").read_bytes() == b"\0 not JSON"


def test_a_disk_that_refuses_does_not_keep_the_node_out(tmp_path: Path) -> None:
    known = Membership(tmp_path / "missing" / "membership.json")
    known.accept(term=3, lease_ttl_s=1.0)
    assert known.term == 3
