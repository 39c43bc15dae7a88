"""Baselines: schedulers that place one job after the other and solve no flow, to compare with.

They share ranks, checks and books with the flows; only the choice of places
differs (:mod:`farbus.scheduler.phases.greedy`).
"""

from __future__ import annotations

from dataclasses import dataclass

from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import Choice


class FirstFitPolicy(DefaultPolicy):
    """Each task goes to the first node, by name, that has room."""

    name = "first-fit"
    choice = Choice.FIRST


class BestFitPolicy(DefaultPolicy):
    """Each task goes where the default policy's cost is least at that moment."""

    name = "best-fit"
    choice = Choice.BEST


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPolicy(DefaultPolicy):
    """Each task goes to any node that has room, drawn from ``seed``: the same seed gives the same plan."""

    seed: int
    name: str = "random"
    choice: Choice = Choice.RANDOM
