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


def test_drives_over_the_network_cost_the_utility_of_being_attached_later() -> None:
    prices = []
    for seconds in (0.0, 1.0, 11.0, 31.0):
        snapshot = world(node("a"), node("c", storage_attach_s=seconds), drive("da", "a"))
        # Also where it takes too long for the goal: it will not become less while one waits.
        prices.append(costs(decide(snapshot, [stored()], policy=maestro())))
    # Ten and thirty seconds of a goal of 110 s, counted in both phases, with the preference of what is remote.
    assert prices[0] == prices[1]
    expected = 2 * REMOTE_PREFERENCE * np.array([0, 10, 30]) / 110
    assert np.diff(prices[1:]) == pytest.approx(np.diff(expected) * SCALE, abs=4)


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


# Figure 2: three phases, each of which follows the one before where it can.


def test_figure_2_devices_and_drives_are_preferred_on_the_node_of_phase_1() -> None:
    wanted = job("nw", group(gpus=2, storage=(want(),), node="sn0"))
    sn0 = [node("sn0"), gpu("g0", "sn0"), gpu("g1", "sn0"), drive("d0", "sn0")]
    rn0 = [node("rn0"), gpu("g2", "rn0"), gpu("g3", "rn0"), drive("d1", "rn0")]
    placed = decide(world(*sn0, *rn0), [wanted], policy=maestro()).placements[0].tasks[0]
    assert [device.device for device in placed.devices] == ["g0", "g1", "d0"]
    # Where a phase finds nothing there, the others stay: the GPUs are local, the drive is reached over the network.
    placed = decide(world(*sn0[:3], *rn0), [wanted], policy=maestro()).placements[0].tasks[0]
    assert [(device.device, device.route) for device in placed.devices] == [
        ("g0", Route.LOCAL),
        ("g1", Route.LOCAL),
        ("d1", Route.REMOTE),
    ]
    placed = decide(world(sn0[0], sn0[3], *rn0), [wanted], policy=maestro()).placements[0].tasks[0]
    assert [(device.device, device.route) for device in placed.devices] == [
        ("g2", Route.REMOTE),
        ("g3", Route.REMOTE),
        ("d0", Route.LOCAL),
    ]


# Equation 8: waiting is dearer than any placement from the first round on, and dearer with each round waited.


def test_equation_8_a_job_is_placed_in_its_first_round_whatever_it_costs() -> None:
    hopeless = Profile(goal_s=1, expected_s=10_000)
    snapshot = world(node("a"), node("c"), gpu("g", "a"))
    assert decide(snapshot, [job("nw", gpus=1, node="c")], policy=maestro(hopeless)).placements


def test_equation_8_the_counter_of_waiting_decides_the_last_place_against_all_costs() -> None:
    profiles = {"dear": Profile(goal_s=1, expected_s=100), "cheap": Profile(goal_s=200, expected_s=1)}
    policy = DRMaestroPolicy(profiles=profiles)
    snapshot = world(node("a"), gpu("g", "a"))
    for waited, first in ((0, "cheap"), (1, "dear")):
        pending = [job("cheap", gpus=1, at=1.0), job("dear", gpus=1, at=2.0, waited=waited)]
        decision = decide(snapshot, pending, policy=policy)
        assert [placement.job for placement in decision.placements] == [first]
        assert [miss.feasible_alone for miss in decision.misses] == [True], "only then does the counter count"


def test_no_feasible_job_is_postponed_for_more_rounds_than_stated() -> None:
    """The longest that the network-aware policy lets a job wait on an idle cluster, whatever its profile."""
    snapshot = msgspec.structs.replace(world(node("a"), node("c"), gpu("g", "a")), links=loaded(a=1.0, c=1.0))
    for sensitivity in (0.0, 0.05, 0.2, 1.0, 50.0):
        policy = maestro(Profile(goal_s=110, expected_s=100, sensitivity=sensitivity), postpone_rounds=5)
        waits = [
            waited
            for waited in range(8)
            if decide(snapshot, [job("nw", gpus=1, node="c", waited=waited)], policy=policy).placements
        ]
        assert waits[0] == (0 if sensitivity <= 0.1 else 5)
        assert waits == list(range(waits[0], 8))
