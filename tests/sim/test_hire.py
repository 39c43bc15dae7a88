"""HIRE's experiment: its topology, jobs, measures, and the order of the schedulers where switches are scarce."""

from __future__ import annotations

import random

import pytest

from farbus.errors import InvalidInput
from farbus.model.job import ServiceRequest
from farbus.scheduler.templates import MIB, SRAM, STAGES
from farbus.sim.hire import CONTENDERS, common, draw, fat_tree, in_use, polymorphic, run, simulate, variant

HIRE, ONE_DECISION, BEST_FIT, _ = CONTENDERS


def test_a_fat_tree_has_the_papers_servers_and_switches() -> None:
    for ports, servers, switches in ((4, 16, 20), (26, 4394, 845)):
        nodes, devices = fat_tree(ports, heterogeneous=False, dice=random.Random(0))
        assert (len(nodes) - len(devices), len(devices)) == (servers, switches)
    assert all(len(view.device.services) == 2 for view in fat_tree(4, heterogeneous=True, dice=random.Random(0))[1])


def test_who_asks_for_switches_changes_nothing_else_of_the_jobs() -> None:
    none, all_ = draw(50, 16, mu=0.0, seed=3), draw(50, 16, mu=1.0, seed=3)
    assert [(each.at_s, each.runs_s) for each in none] == [(each.at_s, each.runs_s) for each in all_]
    assert not any(each.parts for each in none)
    for before, now in zip(none, all_, strict=True):
        assert tuple(part.servers for part in now.parts) + now.plain == before.plain
        assert len(now.parts) == max(1, len(before.plain) // 3)


def test_the_variants_of_a_job() -> None:
    arrival = next(each for each in draw(50, 16, mu=1.0, seed=3) if len(each.parts) == 2)
    servers = {group.name for group in variant(arrival, in_network=False).groups}
    switches = {group.name for group in variant(arrival, in_network=True).groups}
    vectors = polymorphic(arrival, together=False)
    assert {group.name for group in vectors.in_flavour("1010").groups} == servers
    assert {group.name for group in vectors.in_flavour("0101").groups} == switches
    assert polymorphic(arrival, together=True).flavours == ("01", "10")
    assert vectors.flavours == ("0101", "0110", "1001", "1010")
    # Whoever knows nothing of sharing asks for all of it with each instance.
    assert all(not group.service.shared for group in variant(arrival, in_network=True).groups if group.service)


def test_what_is_in_use_counts_shared_parts_once() -> None:
    one = ServiceRequest(name="netcache", own={SRAM: 6 * MIB, STAGES: 1}, shared={STAGES: 8})
    other = ServiceRequest(name="distcache", own={SRAM: 1 * MIB}, shared={STAGES: 8})
    assert in_use((one, one, other)) == {SRAM: 13 * MIB, STAGES: 18}


def test_the_lowest_place_that_covers_racks() -> None:
    assert common({"pod0/tor1"}) == ["pod0", "tor1"]
    assert common({"pod0/tor1", "pod0"}) == ["pod0"]
    assert common({"pod0/tor1", "pod1/tor1"}) == common({"pod0/tor1", ""}) == []


def test_the_same_seed_gives_the_same_outcome() -> None:
    done = [simulate(HIRE, 4, 30, 1.0, heterogeneous=False, seed=1) for _ in range(2)]
    assert done[0].waits == done[1].waits
    assert done[0].shares() == done[1].shares()


def test_an_odd_number_of_ports_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--ports: 5 is odd"):
        run(ports=5)


def test_everything_ends_and_nothing_is_left_in_use() -> None:
    for contender in CONTENDERS:
        done = simulate(contender, 4, 25, 1.0, heterogeneous=True, seed=2)
        assert not done.waiting
        assert len(done.waits) == 25
        assert not any(view.instances for view in done._devices.values())
        assert all(view.free == view.capacity for view in done._nodes.values())
