"""DRMaestro's policy in whole rounds: preferences by phase, moves, storage over the network, goals and waiting."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from farbus.model.cluster import LinkLoad
from farbus.model.decision import Decision, PendingJob, Snapshot
from farbus.model.device import PoolReach, Route
from farbus.scheduler.costs.drmaestro import (
    LOCAL_PREFERENCE,
    REMOTE_PREFERENCE,
    DRMaestroPolicy,
    Profile,
    utility_cost,
)
from farbus.scheduler.costs.policy import SCALE
from farbus.scheduler.round import decide
from tests.scheduler.test_recomposition import ALL, MOVED, pooled, reach
from tests.scheduler.test_storage import drive, want
from tests.scheduler.worlds import gpu, group, job, node, world

CALM = Profile(goal_s=110, expected_s=100)


def maestro(profile: Profile = CALM, **more: object) -> DRMaestroPolicy:
    return DRMaestroPolicy(profiles={"nw": profile}, **more)  # type: ignore[arg-type]


def costs(decision: Decision) -> int:
    """Return what the only task cost."""
    return decision.placements[0].tasks[0].cost


def routes(decision: Decision) -> list[Route]:
    return [device.route for device in decision.placements[0].tasks[0].devices]


# Preferences by phase: what phase 1 chose is preferred in phase 2, at half the cost.


def test_the_node_that_phase_1_chose_is_preferred_in_phase_2() -> None:
    snapshot = world(node("a"), node("b"), gpu("ga", "a"), gpu("gb", "b"))
    assert routes(decide(snapshot, [job("nw", gpus=1)], policy=maestro())) == [Route.LOCAL]
    assert routes(decide(snapshot, [job("nw", gpus=1, node="b")], policy=maestro())) == [Route.LOCAL]


def test_the_preference_of_a_remote_device_is_twice_that_of_a_local_one() -> None:
    local, remote = (
        utility_cost(np.array([CALM.expected_s]), CALM, preference)[0]
        for preference in (LOCAL_PREFERENCE, REMOTE_PREFERENCE)
    )
    assert remote == 2 * local
    here = decide(world(node("a"), node("c"), gpu("g", "c")), [job("nw", gpus=1, node="c")], policy=maestro())
    there = decide(world(node("a"), node("c"), gpu("g", "a")), [job("nw", gpus=1, node="c")], policy=maestro())
    # Once where phase 1 looks ahead, once for the arc itself.
    assert costs(there) - costs(here) == pytest.approx(2 * (remote - local) * SCALE, abs=2)


# Recomposition: local, once it has been moved.


def test_a_move_costs_the_utility_of_coming_later() -> None:
    prices = []
    for attach_s in (0.0, 10.0, 30.0):
        client = node("c", pools=(PoolReach(pool="p", attach_s=attach_s),))
        snapshot = world(node("a"), client, pooled("g0", ""), pooled("g1", ""))
        decision = decide(snapshot, [job("nw", gpus=2, node="c", routes=MOVED)], policy=maestro())
        assert routes(decision) == [Route.RECOMPOSED] * 2
        prices.append(costs(decision))
    # Two devices one after the other: 100, 120 and 160 s of a goal of 110 s, counted in both phases.
    expected = [2 * 100 / 110, 2 * 120 / 110, 2 * 160 / 110]
    assert np.diff(prices) == pytest.approx(np.diff(expected) * SCALE, abs=4)


def test_moving_and_lending_are_weighed_by_the_job_s_own_times() -> None:
    client = node("c", pools=(PoolReach(pool="p", attach_s=30.0),))
    snapshot = world(node("a"), client, pooled("g0", "a"))
    # A long job has the time for a move; one of ten seconds would take four times as long for it.
    for profile, route in ((CALM, Route.RECOMPOSED), (Profile(goal_s=11, expected_s=10), Route.REMOTE)):
        decision = decide(snapshot, [job("nw", gpus=1, node="c", routes=ALL)], policy=maestro(profile))
        assert routes(decision) == [route]


def test_a_time_that_was_seen_with_moved_devices_is_the_one_expected() -> None:
    snapshot = world(node("a"), node("c", pools=reach("p", attach_s=5.0)), pooled("g0", "a"))
    seen = Profile(goal_s=110, expected_s=100, recomposed_s=400)
    decision = decide(snapshot, [job("nw", gpus=1, node="c", routes=ALL)], policy=maestro(seen))
    assert routes(decision) == [Route.REMOTE]


# Storage over the network.


def stored(name: str = "nw", **more: object) -> PendingJob:
    return job(name, group(storage=(want(),), node="c", **more))


def loaded(**loads: float) -> dict[str, tuple[LinkLoad, ...]]:
    return {
        name: (LinkLoad(name="eth0", speed_bytes_per_s=100, send_bytes_per_s=100 * load, measured_at=0.0),)
        for name, load in loads.items()
    }


def two_targets(**loads: float) -> Snapshot:
    snapshot = world(node("a"), node("b"), node("c"), drive("da", "a"), drive("db", "b"))
    return msgspec.structs.replace(snapshot, links=loaded(**loads))


def test_drives_over_the_network_come_from_the_less_loaded_node() -> None:
    sensitive = Profile(goal_s=300, expected_s=100, sensitivity=1.0)
    for loads, device in (({"a": 0.8}, "db"), ({"b": 0.8}, "da")):
        decision = decide(two_targets(**loads), [stored()], policy=maestro(sensitive))
        assert [given.device for given in decision.placements[0].tasks[0].devices] == [device]


def test_drives_over_a_network_that_would_miss_the_goal_are_postponed_for_the_stated_rounds() -> None:
    sensitive = Profile(goal_s=110, expected_s=100, sensitivity=1.0)
    busy = two_targets(a=0.8, b=0.8)
    policy = maestro(sensitive, postpone_rounds=3)
    placed = [
        bool(decide(busy, [msgspec.structs.replace(stored(), rounds_waited=waited)], policy=policy).placements)
        for waited in range(5)
    ]
    assert placed == [False, False, False, True, True]
    missed = decide(busy, [stored()], policy=policy).misses[0]
    assert missed.feasible_alone
    assert decide(two_targets(), [stored()], policy=policy).placements
    assert decide(busy, [stored()], policy=maestro(sensitive, network_aware=False)).placements


def test_of_local_remote_and_moved_drives_the_utility_chooses() -> None:
    here = world(node("a"), node("c"), drive("da", "a"), drive("dc", "c"))
    assert [given.device for given in decide(here, [stored()], policy=maestro()).placements[0].tasks[0].devices] == [
        "dc"
    ]
    for attach_s, route in ((5.0, Route.RECOMPOSED), (200.0, Route.REMOTE)):
        client = node("c", pools=(PoolReach(pool="p", attach_s=attach_s),))
        snapshot = world(node("a"), client, drive("da", "a", pool="p"))
        assert routes(decide(snapshot, [stored(routes=ALL)], policy=maestro())) == [route]


def test_an_application_that_nobody_knows_pays_the_default_prices_for_moves_and_storage() -> None:
    for attach_s, route in ((5.0, Route.RECOMPOSED), (60.0, Route.REMOTE)):
        client = node("c", pools=(PoolReach(pool="p", attach_s=attach_s),))
        snapshot = world(node("a"), client, pooled("g0", "a"))
        assert routes(decide(snapshot, [job("x", gpus=1, node="c", routes=ALL)], policy=maestro())) == [route]
    assert decide(two_targets(a=0.9, b=0.9), [stored("x")], policy=maestro()).placements
