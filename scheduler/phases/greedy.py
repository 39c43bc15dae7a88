"""Serving one job after the other without a flow: what baselines do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from farbus.scheduler.costs.policy import Choice
from farbus.scheduler.phases.base import Desk, Later
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.market import give_back
from farbus.scheduler.phases.tables import AWARD, Integers, Table, table

_Arc = tuple[int, int, int]
"""Cost, place and tier."""


def serve_greedily(desk: Desk, jobs: Jobs, rows: Integers, choice: Choice, draw: random.Random) -> Integers:
    """Let ``desk`` serve jobs ``rows`` in turn, unit by unit; return those that it served whole.

    A preference arc is used before the aggregator, as a greedy scheduler looks
    at the task's own node first.
    """
    served = []
    for row in rows.tolist():
        job = np.array([row])
        wants = desk.reserve(jobs, desk.wants(jobs, job))
        if all(_serve(desk, jobs, want, choice, draw) for want in wants):
            served.append(row)
        else:
            give_back(desk, jobs, job)
    return np.array(served, np.int64)


def _serve(desk: Desk, jobs: Jobs, want: Table, choice: Choice, draw: random.Random) -> bool:
    source = want["source"].reshape(1)
    shape = int(desk.split(source)[0][0])
    one = np.ones(1, np.int64)
    for _ in range(int(want["count"])):
        pool = int(desk.pools(source)[0])
        arcs = desk.arcs(source)[["cost", "place", "tier"]].tolist()
        if not arcs and pool >= 0:
            for each in desk.offers(pool):
                offer = each.make() if isinstance(each, Later) else each
                rows = offer.arcs()
                tiers = [offer.tier] * len(rows)
                arcs += zip(offer.cost[rows].tolist(), offer.place[rows].tolist(), tiers, strict=True)
        # An arc may count on more than there is: room that others have in mind, or one of several storages.
        while arcs:
            arc = _chosen(arcs, choice, draw)
            cost, place, tier = arc
            count, devices = desk.take(shape, one * place, one * tier, one)
            if count[0]:
                break
            arcs.remove(arc)
        else:
            return False
        award = table(AWARD, 1, pool=pool, place=place, tier=tier, count=1, cost=cost, size=desk.size(shape))
        for column in ("job", "group", "source"):
            award[column] = want[column]
        jobs.awards(desk.phase).add(desk.awarded(award), devices)
    return True


def _chosen(arcs: Sequence[_Arc], choice: Choice, draw: random.Random) -> _Arc:
    if choice == Choice.BEST:
        return min(arcs)
    if choice == Choice.FIRST:
        return min(arcs, key=lambda arc: (arc[1], arc[2]))
    return draw.choice(arcs)
