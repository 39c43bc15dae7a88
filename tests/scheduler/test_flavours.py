"""Alternatives of jobs: which flavour is chosen, and that it is never two."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.model.decision import Decision, PendingJob, Snapshot
from farbus.model.device import Route
from farbus.model.job import Alternative, GroupVariant, Requests
from farbus.scheduler.costs.baselines import FirstFitPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.kubecomp import KubeCompPolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases import cluster as columns
from farbus.scheduler.phases.bound import WAITING
from farbus.scheduler.round import decide, decide_on
from tests.scheduler.test_phase_bound import costs_of, gap_of
from tests.scheduler.worlds import GIB, check_decision, gpu, group, job, node, pending_jobs, snapshots

POLICY = DefaultPolicy()


def variant(name: str = "main", *, cpus: float = 1, gpus: int = 0, routes: tuple[Route, ...] = ()) -> GroupVariant:
    requests = Requests(cpu_milli=round(cpus * 1000), memory_bytes=GIB, gpus=gpus)
    return GroupVariant(name=name, requests=requests, routes=routes or (Route.LOCAL, Route.REMOTE))


def either(entry: PendingJob, *alternatives: Alternative) -> PendingJob:
    return msgspec.structs.replace(entry, job=msgspec.structs.replace(entry.job, alternatives=alternatives))


def cpu(cost: int = 0, *, cpus: float = 4) -> Alternative:
    return Alternative(name="cpu", cost=cost, groups=(variant(cpus=cpus),))


def chosen(decision: Decision) -> dict[str, str]:
    return {placement.job: placement.alternative for placement in decision.placements}


def as_chosen(pending: list[PendingJob], decision: Decision) -> list[PendingJob]:
    """Return the jobs as they were placed, to be looked at like any others."""
    flavours = chosen(decision)
    return [
        msgspec.structs.replace(entry, job=entry.job.in_flavour(flavours.get(entry.job.id, ""))) for entry in pending
    ]


def run(snapshot: Snapshot, *pending: PendingJob, policy: Policy = POLICY) -> Decision:
    decision = decide(snapshot, pending, policy=policy)
    check_decision(snapshot, as_chosen(list(pending), decision), decision)
    return decision


ONE_GPU = Snapshot(nodes=(node("a", cpus=16), node("b", cpus=16)), devices=(gpu("g0", "a"),))


def test_a_job_is_placed_as_it_stands_where_that_is_cheapest() -> None:
    assert chosen(run(ONE_GPU, either(job("j", gpus=1), cpu(cost=5000)))) == {"j": ""}


def test_an_alternative_is_chosen_where_the_job_as_it_stands_has_no_room() -> None:
    assert chosen(run(ONE_GPU, either(job("j", gpus=2), cpu(cost=5000)))) == {"j": "cpu"}


def test_what_is_scarce_goes_to_as_many_as_it_holds() -> None:
    pending = [either(job(f"j{n}", gpus=1, at=n), cpu(cost=5000)) for n in range(4)]
    assert chosen(run(ONE_GPU, *pending)) == {"j0": "", "j1": "cpu", "j2": "cpu", "j3": "cpu"}


def test_the_preference_cost_is_weighed_against_what_the_flavour_costs() -> None:
    # Bound to b, the GPU is remote, which costs two; using processors costs less or more than that.
    for cost, flavour in ((100, "cpu"), (9000, "")):
        assert chosen(run(ONE_GPU, either(job("j", gpus=1, node="b"), cpu(cost=cost)))) == {"j": flavour}


def test_the_estimate_counts_each_task() -> None:
    # Four tasks at home cost less each than the alternative's one task more in all.
    world = Snapshot(nodes=(node("b", cpus=16), node("a", cpus=16)), devices=tuple(gpu(f"g{n}", "a") for n in range(4)))
    far = job("j", group(gpus=1, count=4, node="b"))
    assert chosen(run(world, either(far, cpu(cost=6000, cpus=1)))) == {"j": "cpu"}
    assert chosen(run(world, either(job("j", group(gpus=1, node="b")), cpu(cost=6000, cpus=1)))) == {"j": ""}


def test_a_job_of_two_groups_changes_one_of_them() -> None:
    entry = job("j", group("head"), group("body", gpus=3, count=2))
    decision = run(ONE_GPU, either(entry, Alternative(name="small", groups=(variant("body", gpus=0),))))
    assert chosen(decision) == {"j": "small"}
    assert len(decision.placements[0].tasks) == 3


def test_a_flavour_that_finds_no_room_after_all_gives_way_to_the_next() -> None:
    # Each part of the job as it stands has room by itself, which is what the estimate sees; together they have not.
    world = Snapshot(nodes=(node("a", cpus=4),), devices=(gpu("g0", "a"),))
    entry = job("j", group("one", gpus=1), group("two", gpus=1))
    smaller = Alternative(name="smaller", cost=9000, groups=(variant("two"),))
    assert chosen(run(world, either(entry, smaller))) == {"j": "smaller"}


def test_jobs_of_better_rank_have_the_cheaper_flavour() -> None:
    pending = [either(job(f"j{n}", gpus=1, priority=n), cpu(cost=5000)) for n in range(3)]
    assert chosen(run(ONE_GPU, *pending)) == {"j2": "", "j1": "cpu", "j0": "cpu"}


def test_a_job_that_no_flavour_serves_is_told_why_as_it_stands() -> None:
    decision = run(ONE_GPU, either(job("j", gpus=5), cpu(cpus=99)))
    assert not decision.misses[0].feasible_alone
    assert "5 GPUs" in decision.misses[0].misses[0].message


def test_a_job_of_which_one_flavour_could_be_served_later_is_not_called_impossible() -> None:
    busy = Snapshot(nodes=(node("a", cpus=16, free_cpus=0),), devices=())
    decision = run(busy, either(job("j", gpus=5), cpu()))
    assert decision.misses[0].feasible_alone
    assert not any(miss.permanent for miss in decision.misses[0].misses)


def test_the_choice_is_certified() -> None:
    report = decide(ONE_GPU, [either(job("j", gpus=1), cpu())], policy=POLICY).report
    assert report.certified
    assert report.solves >= 2


def test_an_alternative_that_makes_no_sense_stops_nobody_else() -> None:
    odd = either(job("odd"), Alternative(name="a", cost=-1))
    twice = either(job("twice"), Alternative(name="a"), Alternative(name="a"))
    decision = decide(ONE_GPU, [odd, twice, job("fine")], policy=POLICY)
    assert [placement.job for placement in decision.placements] == ["fine"]
    assert all(part.permanent for miss in decision.misses for part in miss.misses)


ALTERNATIVES = st.lists(
    st.builds(
        lambda cost, parts: (cost, parts),
        st.sampled_from((0, 500, 3000)),
        st.lists(
            st.builds(
                variant,
                name=st.sampled_from(("part0", "part1")),
                cpus=st.sampled_from((0.5, 1, 3)),
                gpus=st.sampled_from((0, 1, 2)),
                routes=st.sampled_from(((), (Route.LOCAL,), (Route.REMOTE,))),
            ),
            max_size=2,
            unique_by=lambda part: part.name,
        ),
    ),
    max_size=3,
)


@st.composite
def flavoured(draw: st.DrawFn) -> list[PendingJob]:
    jobs = []
    for entry in draw(pending_jobs(most=6)):
        made = [
            Alternative(name=f"alt{number}", cost=cost, groups=tuple(parts))
            for number, (cost, parts) in enumerate(draw(ALTERNATIVES))
        ]
        jobs.append(either(entry, *made))
    return jobs


@given(snapshots(), flavoured(), st.sampled_from((POLICY, KubeCompPolicy(), FirstFitPolicy())))
@settings(max_examples=100)
def test_one_flavour_of_each_job_at_most(snapshot: Snapshot, pending: list[PendingJob], policy: Policy) -> None:
    decision = run(snapshot, *pending, policy=policy)
    assert all(count == 1 for count in Counter(placement.job for placement in decision.placements).values())


@given(snapshots(), flavoured())
@settings(max_examples=50)
def test_an_alternative_more_serves_a_lone_job_no_less(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    for entry in pending[:2]:
        plain = msgspec.structs.replace(entry, job=entry.job.in_flavour(""))
        if decide(snapshot, [plain], policy=POLICY).placements:
            assert run(snapshot, entry).placements


@given(snapshots(), flavoured())
@settings(max_examples=50)
def test_a_second_round_on_what_was_kept_decides_the_same(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    kept = columns.Columns()
    first = decide_on(kept.of(snapshot), pending, policy=POLICY)
    second = decide_on(kept.of(snapshot), pending, policy=POLICY)
    assert (first.placements, first.misses) == (second.placements, second.misses)


# --- beside min_count, and the bound -------------------------------------------------------


def test_tasks_beyond_what_a_job_needs_are_of_its_flavour() -> None:
    world = Snapshot(nodes=(node("a", cpus=8), node("b", cpus=8)), devices=(gpu("g0", "a"),))
    entry = job("j", group(gpus=2, count=4, min_count=2))
    decision = run(world, either(entry, cpu(cpus=4)))
    (placement,) = decision.placements
    assert placement.alternative == "cpu"
    assert sorted(task.task for task in placement.tasks) == ["main.0", "main.1", "main.2", "main.3"]
    assert not any(task.devices for task in placement.tasks)


def test_as_many_as_find_room_are_placed_as_the_job_stands_too() -> None:
    entry = job("j", group(gpus=1, count=3, min_count=1))
    (placement,) = run(ONE_GPU, either(entry, cpu(cost=900_000))).placements
    assert (placement.alternative, [task.task for task in placement.tasks]) == ("", ["main.0"])


def least_score(snapshot: Snapshot, pending: list[PendingJob]) -> int:
    """Return the least score of all plans of jobs of one task without devices, each in any of its flavours."""
    views = sorted(snapshot.nodes, key=lambda view: view.name)
    ways = []
    for entry in pending:
        names = ("", *(each.name for each in entry.job.alternatives))
        flavours = [msgspec.structs.replace(entry, job=entry.job.in_flavour(name)) for name in names]
        costs = costs_of(snapshot, flavours)
        ways.append(
            [
                (flavours[way].job.groups[0].requests, place, cost)
                for way, row in enumerate(costs)
                for place, cost in enumerate(row)
                if cost is not None
            ]
        )
    best = WAITING * len(pending)
    for plan in itertools.product(*([None, *found] for found in ways)):
        left = [[view.free.cpu_milli, view.free.memory_bytes] for view in views]
        total = 0
        for each in plan:
            if each is None:
                total += WAITING
                continue
            requests, place, cost = each
            total += cost
            left[place][0] -= requests.cpu_milli
            left[place][1] -= requests.memory_bytes
        if min(itertools.chain(*left), default=0) >= 0:
            best = min(best, total)
    return best


SMALL = st.lists(
    st.tuples(st.sampled_from((0.5, 1, 2, 5)), st.lists(st.sampled_from((0.5, 1, 3)), max_size=2)),
    min_size=1,
    max_size=4,
).map(
    lambda sizes: [
        either(
            job(f"j{number}", cpus=cpus),
            *(Alternative(name=f"a{way}", groups=(variant(cpus=each),)) for way, each in enumerate(others)),
        )
        for number, (cpus, others) in enumerate(sizes)
    ]
)


@given(snapshots(most_nodes=2), SMALL)
@settings(max_examples=100, deadline=None)
def test_the_bound_is_no_more_than_the_best_plan_of_all_flavours(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    gap = gap_of(decide(snapshot, pending, policy=POLICY))
    assert gap.bound <= least_score(snapshot, pending) <= gap.score


@given(snapshots(), flavoured())
@settings(max_examples=80, deadline=None)
def test_no_score_of_jobs_with_alternatives_is_below_its_bound(snapshot: Snapshot, pending: list[PendingJob]) -> None:
    gap = decide(snapshot, pending, policy=POLICY).report.gap
    assert gap is None or gap.bound <= gap.score


def test_the_bound_counts_the_cheapest_flavour() -> None:
    # As they stand there is room for one of them, in the other flavour for all.
    world = Snapshot(nodes=(node("a", cpus=8),), devices=())
    pending = [either(job(f"j{number}", cpus=8, at=number), cpu(cpus=1)) for number in range(8)]
    as_they_stand = [msgspec.structs.replace(entry, job=entry.job.in_flavour("")) for entry in pending]
    assert gap_of(run(world, *pending)).bound < 2 * WAITING
    assert gap_of(run(world, *as_they_stand)).bound > 6 * WAITING
