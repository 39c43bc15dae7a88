"""A task's GPUs from several nodes: only where the job allows it, and only where no node has so many."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from farbus.model.decision import PendingJob
from farbus.model.device import Route
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.round import decide
from tests.scheduler import worlds


def asks(gpus: int, *, span: bool, **more: Any) -> PendingJob:
    entry = worlds.job("j", gpus=gpus, **more)
    (group,) = entry.job.groups
    return replace(
        entry, job=replace(entry.job, groups=(replace(group, requests=replace(group.requests, gpu_span=span)),))
    )


TWO = (worlds.node("alpha"), worlds.gpu("A", "alpha"), worlds.node("beta"), worlds.gpu("B", "beta"))
MORE = (*TWO, worlds.node("gamma"), worlds.gpu("C1", "gamma"), worlds.gpu("C2", "gamma"))


def placed(entry: PendingJob, *parts: Any) -> dict[str, Route] | None:
    decision = decide(worlds.world(*parts), [entry], policy=DefaultPolicy())
    if not decision.placements:
        return None
    return {place.device: place.route for place in decision.placements[0].tasks[0].devices}


def test_gpus_of_two_nodes_serve_a_task_that_may_span() -> None:
    found = placed(asks(2, span=True), *TWO)
    assert found is not None
    assert set(found) == {"A", "B"}
    # It runs beside one of them, and has the other by remoting.
    assert Route.REMOTE in found.values()


def test_a_task_that_may_not_span_is_told_what_it_would_need() -> None:
    decision = decide(worlds.world(*TWO), [asks(2, span=False)], policy=DefaultPolicy())
    assert not decision.placements
    (miss,) = decision.misses[0].misses
    assert (miss.permanent, miss.short_by) == (True, 1)
    assert "2 GPUs on one node wanted" in miss.message
    assert "--gpu-span" in miss.message


def test_who_allows_only_local_gpus_is_not_told_to_take_them_of_several_nodes() -> None:
    decision = decide(worlds.world(*TWO), [asks(2, span=False, routes=(Route.LOCAL,))], policy=DefaultPolicy())
    (miss,) = decision.misses[0].misses
    assert "on one node wanted" in miss.message
    assert "--gpu-span" not in miss.message


@pytest.mark.parametrize("span", [False, True])
def test_one_node_that_has_so_many_is_preferred(span: bool) -> None:
    assert set(placed(asks(2, span=span), *MORE) or ()) == {"C1", "C2"}


def test_who_allows_only_local_gpus_gets_them_of_one_node() -> None:
    assert placed(asks(2, span=True, routes=(Route.LOCAL,)), *TWO) is None
