"""What is said of jobs to people."""

from __future__ import annotations

import pytest

from farbus.model.explanation import Holder, Opening
from farbus.model.job import JobStatus, TaskPlacement
from farbus.model.operation import Cordon, CordonKind
from farbus.model.states import JobState
from farbus.scheduler.words import COSTS, MAX_CORDONS, describe_opening, explain_job
from tests.scheduler.worlds import group, job


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (JobState.RUNNING, "job j is running"),
        (JobState.SUCCEEDED, "job j has succeeded"),
        (JobState.FAILED, "job j has failed"),
        (JobState.CANCELLED, "job j was cancelled"),
    ],
)
def test_each_state_is_a_sentence(state: JobState, told: str) -> None:
    status = JobStatus(job=job("j", group()).job, state=state)
    assert explain_job(status, ahead=0, nodes=1, now=0.0) == (told,)


@pytest.mark.parametrize(
    ("cost", "why", "told"),
    [
        (922, "a at cost 0.922 (the only node with room)", ["  cost 0.922 in all", COSTS]),
        (0, "a at cost 0 (b costs 0.1)", [COSTS]),
        (0, "", []),
    ],
)
def test_a_cost_is_said_with_what_it_is(cost: int, why: str, told: list[str]) -> None:
    place = TaskPlacement(task="main.0", node="a", cost=cost, why=why)
    status = JobStatus(job=job("j", group()).job, state=JobState.RUNNING, placements=(place,))
    assert list(explain_job(status, ahead=0, nodes=1, now=0.0))[2:] == told


@pytest.mark.parametrize(
    ("ahead", "told"),
    [
        (0, "that is expected within 30 s"),
        (1, "that is expected within 30 s, unless the job ahead takes it"),
        (2, "that is expected within 30 s, unless one of the 2 jobs ahead takes it"),
    ],
)
def test_an_expected_time_names_the_rivals(ahead: int, told: str) -> None:
    holder = Holder(job="k", user="u", ends_in_s=30.0, basis="time limit")
    opening = Opening(holders=(holder,), expected_s=30.0, placements=())
    assert describe_opening(opening, ahead=ahead)[-1] == told


def test_nodes_that_are_lost_are_named_to_who_waits() -> None:
    status = JobStatus(job=job("j", group()).job, state=JobState.QUEUED)
    lines = explain_job(status, ahead=0, nodes=1, now=0.0, lost=("a", "b"))
    assert "node b is lost: until it is back nothing of it is free" in lines
    lines = explain_job(status, ahead=0, nodes=1, now=0.0, lost=[f"n{number}" for number in range(MAX_CORDONS + 2)])
    assert lines[-1] == "2 more nodes are lost"


@pytest.mark.parametrize(
    ("lost", "cordoned", "told"),
    [
        ((), (), "the cluster could serve it if nothing else ran"),
        (("a",), (), "the cluster could serve it if nothing else ran and what is lost took work again"),
        (
            ("a",),
            (Cordon(kind=CordonKind.NODE, name="b", by="root", at=0.0),),
            "the cluster could serve it if nothing else ran and what is cordoned or lost took work again",
        ),
    ],
)
def test_what_takes_no_work_is_a_condition_of_serving_a_job(
    lost: tuple[str, ...], cordoned: tuple[Cordon, ...], told: str
) -> None:
    status = JobStatus(job=job("j", group()).job, state=JobState.QUEUED, rounds_waited=1)
    lines = explain_job(status, ahead=0, nodes=1, now=0.0, lost=lost, cordons=cordoned)
    assert told in lines
