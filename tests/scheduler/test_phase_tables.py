"""What is done to many rows at once is what a loop over the rows does; forms are found once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.workload_aware import WorkloadAwarePolicy
from farbus.scheduler.phases.jobs import Forms
from farbus.scheduler.phases.tables import AWARD, ahead, before, in_order, limited, matched, ranges, wants_by_node
from farbus.scheduler.round import PHASES
from tests.scheduler.worlds import job

QUEUES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12).map(sorted)


@given(QUEUES, st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_queues_are_cut_as_a_loop_would(rows: list[tuple[int, int]], limits: list[int]) -> None:
    queue = np.array([queue for queue, _ in rows], np.int64)
    count = np.array([count for _, count in rows], np.int64)
    sums, left = [], []
    total, room = [0] * 4, list(limits)
    for each, amount in rows:
        sums.append(total[each])
        total[each] += amount
        left.append(min(amount, room[each]))
        room[each] -= left[-1]
    assert before(queue, count).tolist() == sums
    assert limited(queue, count, np.array(limits, np.int64)).tolist() == left


@given(QUEUES.flatmap(st.permutations))
def test_rows_of_a_queue_come_one_after_the_other_in_any_order(rows: list[tuple[int, int]]) -> None:
    queue, count = (np.array([row[n] for row in rows], np.int64) for n in (0, 1))
    expected = [sum(amount for other, amount in rows[:n] if other == each) for n, (each, _) in enumerate(rows)]
    assert ahead(queue, count).tolist() == expected


@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 4), max_size=4))
def test_units_meet_as_they_would_one_by_one(claims: list[int], cuts: list[int]) -> None:
    stock = [*cuts, 0]
    if sum(stock) > sum(claims):
        claims = [*claims, sum(stock) - sum(claims)]
    else:
        stock[-1] = sum(claims) - sum(cuts)
    claim, held, count, skipped = matched(np.array(claims, np.int64), np.array(stock, np.int64))
    pairs = list(zip(claim.tolist(), held.tolist(), count.tolist(), skipped.tolist(), strict=True))
    ours = [(c, s, first + n) for c, s, amount, first in pairs for n in range(amount)]
    wanting = [row for row, amount in enumerate(claims) for _ in range(amount)]
    given_out = [(row, n) for row, amount in enumerate(stock) for n in range(amount)]
    assert ours == [(c, *unit) for c, unit in zip(wanting, given_out, strict=True)]


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3, st.integers(1, 3)), max_size=12))
def test_a_group_wants_once_for_all_that_it_was_awarded_at_a_node(rows: list[tuple[int, int, int, int]]) -> None:
    awards = np.zeros(len(rows), AWARD)
    sums: dict[tuple[int, int, int], int] = {}
    for at, (job_row, group, place, count) in enumerate(rows):
        awards[["job", "group", "place", "count"]][at] = (job_row, group, place, count)
        sums[job_row, group, place] = sums.get((job_row, group, place), 0) + count
    wants, places = wants_by_node(awards)
    found = zip(wants["job"].tolist(), wants["group"].tolist(), places.tolist(), strict=True)
    assert dict(zip(found, wants["count"].tolist(), strict=True)) == sums
    assert list(sums) == list(zip(wants["job"].tolist(), wants["group"].tolist(), places.tolist(), strict=True))


@given(st.lists(st.integers(0, 5), max_size=12))
def test_values_keep_the_order_of_their_first_occurrence(values: list[int]) -> None:
    distinct, row = in_order(np.array(values, np.int64))
    assert distinct.tolist() == list(dict.fromkeys(values))
    assert distinct[row].tolist() == values


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=8))
def test_ranges_follow_one_another(parts: list[tuple[int, int]]) -> None:
    first, length = (np.array([part[n] for part in parts], np.int64) for n in (0, 1))
    assert ranges(first, length).tolist() == [n for start, long in parts for n in range(start, start + long)]


def test_jobs_that_ask_for_the_same_are_of_one_form() -> None:
    forms, policy = Forms(PHASES), DefaultPolicy()
    pending = [job("a", cpus=1), job("b", cpus=2), job("c", cpus=1)]
    for _ in range(2):
        queue, faults = forms.queue(pending)
        assert not faults
        assert forms.in_order(queue, policy).form.tolist() == [0, 1, 0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 3)), max_size=12), st.integers(0, 3))
def test_queues_are_ranked_as_policies_rank_jobs(kinds: list[tuple[int, int, int]], waits: int) -> None:
    """Also where jobs come and go between rounds."""
    made = [
        job(f"j{number:02}", cpus=1 + at % 2, priority=urgent, at=at, waited=waited * 50)
        for number, (at, urgent, waited) in enumerate(kinds)
    ]
    forms = Forms(PHASES)
    for policy in (DefaultPolicy(), WorkloadAwarePolicy()):
        for pending in (made[waits:], made, made[: len(made) // 2]):
            aged = [replace(entry, rounds_waited=entry.rounds_waited + waits) for entry in reversed(pending)]
            queue, _ = forms.queue(aged)
            jobs = forms.in_order(queue, policy)
            ranked = policy.rank(aged)
            assert jobs.pending == [entry for entry, _ in ranked]
            assert jobs.tier.tolist() == [tier for _, tier in ranked]
            assert jobs.rounds_waited.tolist() == [entry.rounds_waited for entry, _ in ranked]
            again = forms.jobs(ranked, policy)
            assert jobs.form.tolist() == again.form.tolist()


def test_of_jobs_of_one_id_the_first_is_scheduled() -> None:
    first, second = job("a", cpus=1), job("a", cpus=2)
    queue, faults = Forms(PHASES).queue([first, second, job("b"), first])
    assert [entry.job.id for entry in queue.entries] == ["a", "b"]
    assert queue.entries[0] is first
    assert [name for name, _ in faults] == ["a", "a"]


def test_another_job_of_the_same_id_is_read_anew() -> None:
    forms, policy = Forms(PHASES), DefaultPolicy()
    assert forms.queue([job("a", cpus=1)])[1] == []
    queue, faults = forms.queue([job("a", cpus=-1)])
    assert not queue.entries
    assert [name for name, _ in faults] == ["a"]
    assert len(forms.jobs(policy.rank([job("a", cpus=3)]), policy).forms) == 1
