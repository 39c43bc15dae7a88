"""Small jobs first: the order in which the most jobs find room, where there is not room for all.

A flow takes a small and a large task for equally dear and does not know which
of them to leave.  Taken through the phases form by form, those of an urgency
that take the least of what is scarce first, more of them fit: the greedy rule
for knapsacks (Dantzig, "Discrete-variable extremum problems", 1957), in
several dimensions, of which each counts by how much of what there is is wanted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from farbus.scheduler.phases.base import NEAR, Desk
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.tables import Integers

Floats = npt.NDArray[np.float64]

MAX_BATCHES = 64
"""Most batches of a round: each is a way through all phases, of a millisecond or two."""

ALIKE = 1.05
"""Sizes that differ by no more are equal: to put one job into the place of another gains nothing."""


class Sizes:
    """How much of what is scarce each of ``jobs`` would take, for what is free at the first ``desk`` now."""

    def __init__(self, jobs: Jobs, desk: Desk) -> None:
        rows = np.arange(len(jobs.pending))
        wants = desk.wants(jobs, rows)
        shape, position = np.unique(desk.split(wants["source"])[0], return_inverse=True)
        position = position.reshape(-1)
        need = np.array([desk.need(number, NEAR) for number in shape.tolist()], np.float64)
        room = np.maximum(desk.room(np.arange(desk.cluster.size)).sum(axis=0), 1).astype(np.float64)
        load = (np.bincount(position, weights=wants["count"], minlength=len(shape)) @ need) / room
        size = (need / room) @ load
        # By what a task takes on an average: each that waits costs as much as any other.
        tasks = np.bincount(wants["job"], weights=wants["count"], minlength=len(rows))
        taken = np.bincount(wants["job"], weights=wants["count"] * size[position], minlength=len(rows))
        self._jobs = jobs
        self._size: Floats = taken / np.maximum(tasks, 1)

    def may_gain(self, waiting: Integers) -> bool:
        """Say whether a job of ``waiting`` is smaller than one of its urgency that does not wait."""
        tier, row = np.unique(self._jobs.tier, return_inverse=True)
        row = row.reshape(-1)
        waits = np.zeros(len(row), bool)
        waits[waiting] = True
        least, most = np.full(len(tier), np.inf), np.zeros(len(tier))
        np.minimum.at(least, row[waits], self._size[waits])
        np.maximum.at(most, row[~waits], self._size[~waits])
        return bool((most > ALIKE * least).any())

    def batches(self, rows: Integers, *, most: int = MAX_BATCHES) -> list[Integers]:
        """Return jobs ``rows`` in batches: the most urgent first, and of these the smallest.

        Jobs of one form and urgency are in one batch; where these are too many,
        several that are next to each other are.
        """
        if not len(rows):
            return []
        order = np.lexsort((rows, self._jobs.form[rows], self._size[rows], -self._jobs.tier[rows]))
        ordered = rows[order]
        tier, form = self._jobs.tier[ordered], self._jobs.form[ordered]
        starts = 1 + np.flatnonzero((tier[1:] != tier[:-1]) | (form[1:] != form[:-1]))
        if len(starts) >= most:
            starts = starts[np.linspace(0, len(starts) - 1, most - 1).astype(np.int64)]
        return [np.sort(batch) for batch in np.split(ordered, starts)]
