"""The policies of the workload-aware placement paper, on clusters that can be worked out by hand."""

from __future__ import annotations

import pytest

from farbus.scheduler.composition.conventions import CORRECTED, PAPER_EXACT
from farbus.scheduler.composition.performance import Smufin
from farbus.scheduler.composition.policies import (
    MAX_SHARERS,
    DisaggregationAware,
    FirstFit,
    MaximizeComposition,
    MinimizeFragmentation,
)
from farbus.scheduler.composition.pool import Cluster, Demand, Drive, Node, Run, Workload

DRIVE = Drive(bandwidth=2000, capacity=600)
MODELLED = Demand(
    kind="bandwidth", execution_s=1600, cores=6, bandwidth=1800, capacity=43, peak_bandwidth=6000, model=Smufin()
)
STORING = Demand(kind="capacity", execution_s=800, cores=6, bandwidth=160, capacity=600, peak_bandwidth=160)
SMALL = Demand(kind="small", execution_s=500, cores=5, bandwidth=500, capacity=100, peak_bandwidth=500)
COMPUTING = Demand(kind="compute", execution_s=900, cores=15)


def pooled(drives: int, *cores: int) -> Cluster:
    return Cluster((*(Node(count) for count in cores), Node(0, (DRIVE,) * drives)))


def workload(demand: Demand, deadline: int = 100_000, number: int = 0) -> Workload:
    return Workload(number=number, demand=demand, arrival=0, deadline=deadline, urgent=False)


def place(policy: FirstFit | MaximizeComposition | MinimizeFragmentation, cluster: Cluster, job: Workload) -> Run:
    run = policy.place(cluster, job, now=0, deadline=job.deadline)
    assert run is not None
    return run


def test_first_fit_takes_one_drive_and_shares_what_is_left_of_it() -> None:
    cluster = pooled(2, 25)
    policy = FirstFit(CORRECTED)
    first, second = (place(policy, cluster, workload(SMALL)) for _ in range(2))
    assert first.composition is second.composition
    assert first.composition is not None
    assert first.composition.drives == (0,)
    assert (first.composition.free_bandwidth, first.composition.free_capacity) == (1000, 400)
    assert first.execution_s == 500


def test_more_drives_are_composed_as_long_as_that_is_faster() -> None:
    """Figure 3: one workload runs 1,489 s on one drive, 1,455 s on two, 1,478 s on three."""
    run = place(MaximizeComposition(CORRECTED), pooled(10, 25), workload(MODELLED))
    assert run.composition is not None
    assert (len(run.composition.drives), run.execution_s) == (2, 1455)


def test_fewer_drives_are_taken_where_no_more_are_free() -> None:
    run = place(MaximizeComposition(CORRECTED), pooled(1, 25), workload(MODELLED))
    assert run.composition is not None
    assert run.composition.drives == (0,)


def test_fragmentation_is_least_on_one_drive() -> None:
    run = place(MinimizeFragmentation(CORRECTED), pooled(10, 25), workload(MODELLED))
    assert run.composition is not None
    assert run.composition.drives == (0,)


def test_equation_1_prefers_what_lives_as_long_anyway() -> None:
    cluster = pooled(4, 25, 25)
    policy = MaximizeComposition(CORRECTED)
    long = place(policy, cluster, workload(Demand(kind="long", execution_s=5000, cores=5, bandwidth=500, capacity=9)))
    short = cluster.compose(cluster.nodes[-1], (2,), cluster.nodes[1])
    tenant = Run(workload(SMALL), cluster.nodes[1], 0, 100, 100, short)
    cluster.start(tenant)
    assert place(policy, cluster, workload(SMALL)).composition is long.composition


def test_equation_2_prefers_what_is_filled_best() -> None:
    """alpha = (1 - (500/1000 + 100/200)) / (5/25) = 0 beside (1 - (500/2000 + 100/600)) / (5/25) = 2.9."""
    cluster = pooled(2, 25, 25)
    empty, full = (cluster.compose(cluster.nodes[-1], (number,), cluster.nodes[number]) for number in range(2))
    full.free_bandwidth, full.free_capacity = 1000, 200
    chosen = place(MinimizeFragmentation(CORRECTED), cluster, workload(SMALL)).composition
    assert chosen is full
    assert chosen is not empty


def test_equation_3_prefers_the_node_that_is_used_least() -> None:
    cluster = pooled(0, 25, 25, 25)
    cluster.nodes[0].free_cores, cluster.nodes[1].free_cores = 15, 20
    cluster.nodes[2].free_cores = 16
    assert place(MinimizeFragmentation(CORRECTED), cluster, workload(COMPUTING)).cores_on is cluster.nodes[1]


@pytest.mark.parametrize(
    ("bandwidth", "capacity", "printed", "published"),
    [
        (0.5, 0.5, "maximize", "maximize"),
        (0.6, 0.4, "minimize", "maximize"),
        (0.7, 0.7, "maximize", "minimize"),
        (0.7, 0.71, "minimize", "minimize"),
        (0.4, 0.6, "minimize", "minimize"),
    ],
)
def test_equation_4(bandwidth: float, capacity: float, printed: str, published: str) -> None:
    for conventions, expected in ((CORRECTED, printed), (PAPER_EXACT, published)):
        assert DisaggregationAware(conventions).choose(bandwidth, capacity).name.startswith(expected)


def test_sharers_keep_their_deadlines() -> None:
    """Two share one drive in 1,601 s each: too long for one that must end after 1,550 s."""
    cluster = pooled(1, 25)
    policy = MaximizeComposition(CORRECTED)
    place(policy, cluster, workload(MODELLED, deadline=1550))
    assert policy.place(cluster, workload(MODELLED), now=0, deadline=100_000) is None


def test_a_newcomer_keeps_its_own_deadline() -> None:
    cluster = pooled(1, 25)
    policy = MaximizeComposition(CORRECTED)
    place(policy, cluster, workload(MODELLED))
    assert policy.place(cluster, workload(MODELLED), now=0, deadline=1600) is None
    assert policy.place(cluster, workload(MODELLED), now=0, deadline=1601) is not None


def test_sharing_has_an_end() -> None:
    cluster = pooled(1, 25, 25)
    policy = MaximizeComposition(CORRECTED)
    cluster.nodes[0].cores = cluster.nodes[0].free_cores = 200
    for _ in range(MAX_SHARERS):
        place(policy, cluster, workload(MODELLED))
    assert policy.place(cluster, workload(MODELLED), now=0, deadline=None) is None


def test_kinds_with_and_without_a_model_do_not_share() -> None:
    cluster = pooled(1, 25)
    policy = MaximizeComposition(CORRECTED)
    place(policy, cluster, workload(MODELLED))
    assert policy.place(cluster, workload(SMALL), now=0, deadline=None) is None


def test_runs_go_on_at_the_speed_of_as_many_as_there_are() -> None:
    """800 s alone of 1,489 leave 689; with a sharer that is 689 / 1,489 of 1,601 s."""
    cluster = pooled(1, 25)
    policy = MaximizeComposition(CORRECTED)
    first = place(policy, cluster, workload(MODELLED))
    policy.place(cluster, workload(MODELLED), now=800, deadline=None)
    assert first.ends_at == pytest.approx(800 + 689 / 1489 * 1601)


def test_what_finds_no_room_changes_nothing() -> None:
    cluster = pooled(1, 5)
    for policy in (FirstFit(CORRECTED), MaximizeComposition(CORRECTED), MinimizeFragmentation(CORRECTED)):
        assert policy.place(cluster, workload(STORING), now=0, deadline=None) is None
        assert cluster.changes == 0
        assert cluster.nodes[-1].free_drives == [True]


def test_ending_gives_all_back() -> None:
    cluster = pooled(2, 25)
    run = place(MaximizeComposition(CORRECTED), cluster, workload(MODELLED))
    cluster.end(run)
    assert cluster.nodes[0].free_cores == 25
    assert cluster.nodes[-1].free_drives == [True, True]
    assert not list(cluster.compositions)
