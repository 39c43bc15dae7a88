"""Policies: the papers' equations and examples, and whole rounds under each policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from farbus.errors import InvalidInput
from farbus.model.decision import PendingJob, Snapshot
from farbus.model.device import Route
from farbus.scheduler.costs.baselines import BestFitPolicy, FirstFitPolicy, RandomPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.drmaestro import DRMaestroPolicy, Profile, utility, utility_cost
from farbus.scheduler.costs.fgd import FGDPolicy
from farbus.scheduler.costs.firmament import FirmamentPolicy
from farbus.scheduler.costs.kubecomp import KubeCompPolicy, choose_donors, choose_node, donor_scores, score
from farbus.scheduler.costs.named import POLICIES as POLICY_NAMES
from farbus.scheduler.costs.named import policy_named
from farbus.scheduler.costs.policy import AGING_ROUNDS, MAX_COST, Policy, to_cost
from farbus.scheduler.costs.workload_aware import WorkloadAwarePolicy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.round import decide
from tests.scheduler.worlds import check_decision, gpu, job, node, node_of, pending_jobs, snapshots

POLICIES: tuple[Policy, ...] = (
    DefaultPolicy(),
    KubeCompPolicy(),
    FirmamentPolicy(),
    WorkloadAwarePolicy(),
    FGDPolicy(),
    DRMaestroPolicy(profiles={"j1": Profile(goal_s=100, expected_s=80, sensitivity=1.0)}, loads={"n0": 0.9, "n1": 0.1}),
    FirstFitPolicy(),
    BestFitPolicy(),
    RandomPolicy(seed=3),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_policy_keeps_every_promise(policy: Policy) -> None:
    @given(snapshots(), pending_jobs())
    @settings(max_examples=60)
    def promise(snapshot: Snapshot, pending: list[PendingJob]) -> None:
        decision = decide(snapshot, pending, policy=policy)
        check_decision(snapshot, pending, decision)
        assert decision == decide(snapshot, pending, policy=policy)

    promise()


# DRMaestro, equations 6 and 7.


@pytest.mark.parametrize(
    ("expected_s", "importance", "value"),
    [
        (0, 1, 1.0),
        (50, 1, 0.5),
        (100, 1, 0.0),
        (100, 9, 0.0),
        (200, 1, -1.0),
        (300, 1, -2.0),
        # (10 - z) / 9 of the loss.
        (200, 5.5, -0.5),
        (200, 9, -1 / 9),
        # Not beyond ten times the goal.
        (5000, 1, -9.0),
    ],
)
def test_utility_is_equation_6(expected_s: float, importance: float, value: float) -> None:
    assert utility(np.array([float(expected_s)]), 100.0, importance)[0] == pytest.approx(value)


def test_utility_never_rises_with_time() -> None:
    times = np.linspace(0, 1500, 400)
    assert (np.diff(utility(times, 100.0, 4.0)) <= 1e-12).all()


def test_cost_is_equation_7() -> None:
    profile = Profile(goal_s=100, expected_s=0)
    cost = utility_cost(np.array([0.0, 100.0, 300.0]), profile, 2.0)
    assert cost.tolist() == pytest.approx([0.0, 2.0, 6.0])


def test_waiting_is_dearer_than_any_placement() -> None:
    # Equation 8 as its text wants it: a job that misses its goal ten times over is placed all the same.
    policy = DRMaestroPolicy(profiles={"nw": Profile(goal_s=1, expected_s=10_000)})
    decision = decide(lenders(), [job("nw", gpus=1, node="c")], policy=policy)
    assert decision.placements[0].tasks[0].cost > 10_000


def test_the_remote_time_of_a_profile_is_expected_of_remote_devices_alone() -> None:
    # 80 s at home, 120 s with a remote device and an idle network: that alone would miss the goal.
    policy = DRMaestroPolicy(profiles={"nw": Profile(goal_s=100, expected_s=80, remote_s=120)})
    assert not decide(lenders(), [job("nw", gpus=1, node="c")], policy=policy).placements
    assert decide(lenders(), [job("nw", gpus=1, node="a")], policy=policy).placements


@pytest.mark.parametrize(
    "bad",
    [
        {"goal_s": 0, "expected_s": 1},
        {"goal_s": 1, "expected_s": -1},
        {"goal_s": 1, "expected_s": 1, "importance": 10},
        {"goal_s": 1, "expected_s": 1, "importance": 0.5},
        {"goal_s": 1, "expected_s": 1, "sensitivity": -1},
        {"goal_s": float("nan"), "expected_s": 1},
    ],
)
def test_nonsense_profiles_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="profile"):
        Profile(**bad)


def lenders() -> Snapshot:
    return Snapshot(nodes=(node("a"), node("b"), node("c")), devices=(gpu("ga", "a"), gpu("gb", "b")))


def test_the_less_loaded_lender_is_chosen() -> None:
    policy = DRMaestroPolicy(
        profiles={"nw": Profile(goal_s=100, expected_s=80, sensitivity=0.8)}, loads={"a": 0.9, "b": 0.1}
    )
    decision = decide(lenders(), [job("nw", gpus=1, node="c")], policy=policy)
    assert decision.placements[0].tasks[0].devices[0].node == "b"


def busy(**more: int) -> DRMaestroPolicy:
    return DRMaestroPolicy(
        profiles={"nw": Profile(goal_s=100, expected_s=90, sensitivity=0.8)}, loads={"a": 0.9, "b": 0.9}, **more
    )


def test_a_remote_device_that_would_miss_the_goal_is_postponed_and_says_so() -> None:
    decision = decide(lenders(), [job("nw", gpus=1, node="c")], policy=busy())
    assert decision.placements == ()
    assert decision.misses[0].feasible_alone
    assert "policy drmaestro" in decision.misses[0].misses[0].message


def test_postponement_ends_at_the_stated_round() -> None:
    policy = busy(postpone_rounds=3)
    placed = [
        bool(decide(lenders(), [job("nw", gpus=1, node="c", waited=waited)], policy=policy).placements)
        for waited in range(5)
    ]
    assert placed == [False, False, False, True, True]


def test_postponement_does_not_keep_from_local_devices() -> None:
    decision = decide(lenders(), [job("nw", gpus=1)], policy=busy())
    assert decision.placements[0].tasks[0].devices[0].route == Route.LOCAL


def test_without_network_awareness_loads_do_not_count() -> None:
    policy = DRMaestroPolicy(
        profiles={"nw": Profile(goal_s=100, expected_s=90, sensitivity=0.8)}, loads={"a": 1.0}, network_aware=False
    )
    assert decide(lenders(), [job("nw", gpus=1, node="c")], policy=policy).placements


# KubeComp, equation 1 and Algorithm 1.


def test_score_is_equation_1() -> None:
    assert score(4, np.array([4, 8, 5, 2, 0])).tolist() == pytest.approx([100, 50, 80, -2, -4])


def test_best_fit_keeps_the_larger_set() -> None:
    world = Snapshot(nodes=(node("n1"), node("n2")), devices=(*(gpu(f"x{n}", "n1") for n in range(3)), gpu("y", "n2")))
    assert node_of(decide(world, [job("j", gpus=1)], policy=KubeCompPolicy()), "j") == ["n2"]


def test_devices_come_from_the_node_with_the_fewest() -> None:
    # The paper's figure 5: the candidate on the node with fewer free devices goes first.
    world = Snapshot(
        nodes=(node("n0"), node("n1"), node("n2")),
        devices=(gpu("g1", "n1"), gpu("g2", "n1"), gpu("g6", "n2")),
    )
    decision = decide(world, [job("j", gpus=1, node="n0")], policy=KubeCompPolicy())
    assert decision.placements[0].tasks[0].devices[0].device == "g6"


def test_donor_scores_are_algorithm_1() -> None:
    # Three candidates on node 1, one on node 2: minus the number on the candidate's node.
    assert donor_scores(np.array([1, 1, 2, 1])).tolist() == [-3, -3, -1, -3]
    assert donor_scores(np.zeros(0, np.int64)).tolist() == []


ALL = np.ones(3, bool)
ONE_POOL = np.zeros(3, np.int64)


def test_the_node_is_that_of_the_highest_score() -> None:
    # Enough anywhere is better than any shortfall; then the tightest fit, then the least demand.
    assert choose_node(2, np.array([4, 3, 1]), ALL, ONE_POOL) == 1
    assert choose_node(5, np.array([4, 3, 1]), ALL, ONE_POOL) == 0
    assert choose_node(2, np.array([4, 3, 1]), np.array([False, False, True]), ONE_POOL) == 2
    assert choose_node(9, np.array([4, 3, 1]), ALL, ONE_POOL) == -1


def test_each_half_of_the_score_can_be_left_out() -> None:
    # Without best fit all that have enough are equal, and the first is taken; without least demand all that lack some.
    assert choose_node(2, np.array([1, 4, 2]), ALL, ONE_POOL, best_fit=False) == 1
    assert choose_node(5, np.array([1, 2, 4]), ALL, ONE_POOL, least_demand=False) == 0
    neither = {"best_fit": False, "least_demand": False}
    assert choose_node(2, np.array([1, 4, 2]), ALL, ONE_POOL, **neither) == 0
    assert choose_node(2, np.array([1, 4, 2]), ALL, ONE_POOL, **neither, order=np.array([2, 1, 0])) == 2


def test_a_node_whose_pool_has_too_few_is_left_out() -> None:
    # Node 0 is nearest to four, but its pool has three in all.
    pools = np.array([0, 1, 1])
    assert choose_node(4, np.array([3, 2, 2]), ALL, pools) == 1


def test_the_donor_of_figure_5_is_the_node_with_one_candidate() -> None:
    # Moving one device to node 0: node 1 has three to give, node 2 has one.
    assert choose_donors(0, 1, np.array([0, 3, 1]), ONE_POOL) == [2]
    assert choose_donors(0, 1, np.array([0, 3, 1]), ONE_POOL, fewest_first=False) == [1]
    assert choose_donors(0, 4, np.array([1, 3, 1]), ONE_POOL) == [2, 1, 1]
    with pytest.raises(ValueError, match="pool 0 has 4 free devices for 5"):
        choose_donors(0, 5, np.array([0, 3, 1]), ONE_POOL)


# Firmament's load spreading.


def test_load_is_spread_and_servers_stay_whole() -> None:
    policy = FirmamentPolicy()
    world = Snapshot(nodes=(node("a", free_cpus=2), node("b", free_cpus=6)), devices=(gpu("g", "a"),))
    assert node_of(decide(world, [job("j")], policy=policy), "j") == ["b"]
    assert node_of(decide(world, [job("j", gpus=1)], policy=policy), "j") == ["a"]
    missed = decide(world, [job("j", gpus=1, cpus=3)], policy=policy)
    assert missed.placements == ()
    assert decide(world, [job("j", gpus=1, cpus=3)], policy=DefaultPolicy()).placements


# What all share.


def test_costs_are_rounded_half_to_even_and_never_cut() -> None:
    assert to_cost(np.array([0.0007, 0.0005, 0.0015, 1e30])).tolist() == [1, 0, 2, MAX_COST]
    with pytest.raises(AssertionError):
        to_cost(np.array([float("nan")]))


def test_rank_is_priority_then_wait_then_submission() -> None:
    jobs = [
        job("late", at=2),
        job("early", at=1),
        job("waited", waited=1, at=3),
        job("high", priority=1, at=4),
        job("aged", waited=AGING_ROUNDS, at=5),
    ]
    ranked = DefaultPolicy().rank(jobs)
    assert [entry.job.id for entry, _ in ranked] == ["aged", "high", "waited", "early", "late"]
    assert [tier for _, tier in ranked] == [3, 2, 1, 0, 0]


def test_a_node_that_fits_exactly_costs_nothing() -> None:
    table = columns.from_snapshot(Snapshot(nodes=(node("a", cpus=2, memory_gib=4), node("b")), devices=()))
    cost = DefaultPolicy().node_cost(table, np.arange(2), table.free, (2000, 4 * 2**30), np.zeros(2, np.int64), None)
    assert cost[0] == 0 < cost[1]


def test_first_fit_takes_the_first_node_by_name() -> None:
    world = Snapshot(nodes=(node("b", cpus=2), node("a", cpus=64)), devices=())
    assert node_of(decide(world, [job("j")], policy=FirstFitPolicy()), "j") == ["a"]
    assert node_of(decide(world, [job("j")], policy=BestFitPolicy()), "j") == ["b"]


def test_random_follows_its_seed() -> None:
    world = Snapshot(nodes=tuple(node(f"n{n}") for n in range(8)), devices=())
    plans = {
        tuple(node_of(decide(world, [job("j", count=6)], policy=RandomPolicy(seed=seed)), "j")) for seed in range(6)
    }
    assert len(plans) > 1


def test_policies_are_found_by_name() -> None:
    for name in POLICY_NAMES:
        assert policy_named(name).name == name
    with pytest.raises(InvalidInput, match="use one of default, drmaestro"):
        policy_named("best")
