"""Serving one job after the other without a flow: what baselines do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from farbus.scheduler.costs.policy import Choice
from farbus.scheduler.phases.base import Award, Desk, Want, Work
from farbus.scheduler.phases.market import give_back


def serve_greedily(desk: Desk, works: Sequence[Work], choice: Choice, draw: random.Random) -> list[Work]:
    """Let ``desk`` serve ``works`` in turn, unit by unit; return those that it served whole.

    A preference arc is used before the aggregator, as a greedy scheduler looks
    at the task's own node first.
    """
    served = []
    for work in works:
        wants = desk.wants(work)
        if all(_serve(desk, want, choice, draw) for want in wants):
            served.append(work)
        else:
            give_back(desk, work)
    return served


def _serve(desk: Desk, want: Want, choice: Choice, draw: random.Random) -> bool:
    while want.count:
        arcs = [(arc.cost, arc.place, arc.tier) for arc in desk.arcs(want.source)]
        if not arcs and want.source.pool is not None:
            for offer in desk.offers(want.source):
                places = np.flatnonzero(offer.capacity > 0)
                costs = offer.cost[places]
                arcs += [(cost, place, offer.tier) for cost, place in zip(costs.tolist(), places.tolist(), strict=True)]
        if not arcs:
            return False
        if choice == Choice.BEST:
            cost, place, tier = min(arcs)
        elif choice == Choice.FIRST:
            cost, place, tier = min(arcs, key=lambda arc: (arc[1], arc[2]))
        else:
            cost, place, tier = draw.choice(arcs)
        count, grants = desk.take(want.source, place, tier, 1)
        assert count == 1, f"phase {desk.phase} offered a place that has no room"
        award = Award(want.group, want.source, place, tier, count, cost, grants)
        want.work.awards.setdefault(desk.phase, []).append(award)
        want.count -= count
    return True
