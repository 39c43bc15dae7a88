"""Who goes through the phases together: no more jobs than the devices that are free could serve.

Phase 1 gives processors and memory before devices are chosen, and what it is
told of devices it is told shape by shape: it does not see that shapes contend
for the same ones.  With more jobs than devices it puts a younger job beside a
device and an older one elsewhere; the phase of devices then serves the older
one from afar, and the younger one has come in vain.

So a pass takes jobs in the order of rank for as long as what they want is
free, and whoever is left out has the next pass, with what is left then.  What
is free is counted in *stocks*: the devices that suit a request have to hold
all requests that nothing else suits, and the devices of a kind all requests
for them.  Jobs that could all be served together keep within that (it is the
easy half of Hall's theorem), so nobody is left out for whom there is a device.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from farbus.scheduler.phases.base import Desk
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.tables import Integers

MAX_FILLS = 64
"""Most times that smaller jobs fill up what was too little for others; as many as there are sizes of jobs are usual."""


class Budget:
    """What is free now for jobs ``rows`` (ascending), by stock, and what each of those that could be served wants."""

    def __init__(self, jobs: Jobs, rows: Integers, later: Sequence[Desk]) -> None:
        forms, form = np.unique(jobs.form[rows], return_inverse=True)
        possible = np.ones(len(forms), bool)
        self._free, need = np.zeros(0, np.int64), np.zeros((len(forms), 0), np.int64)
        for desk in later:
            keys: dict[Hashable, int] = {}
            wanted: list[tuple[int, int, int]] = []
            for number, each in enumerate(forms.tolist()):
                example = jobs.forms[each].example
                for group in jobs.forms[each].groups:
                    key = desk.outlook_key(example, group)
                    if key is not None:
                        look = desk.outlook(key)
                        possible[number] &= group.count <= look.total
                        wanted.append((number, keys.setdefault(key, len(keys)), group.count * look.size))
            stocks = desk.stocks(list(keys)) if keys else None
            if stocks is None:
                continue
            free, within = stocks
            of_desk = np.zeros((len(forms), len(free)), np.int64)
            for number, row, devices in wanted:
                of_desk[number] += devices * within[row]
            self._free, need = np.concatenate((self._free, free)), np.concatenate((need, of_desk), axis=1)
        possible &= (need <= self._free).all(axis=1)
        kept = possible[form]
        self.possible = rows[kept]
        """The jobs for which there would be devices if they were alone."""
        self._need, self._tier = need[form[kept]], jobs.tier[rows[kept]]

    def admitted(self, uncounted: Integers) -> Integers:
        """Return the jobs of the next pass; those of ``uncounted`` come along and take nothing of the budget.

        Beside a job that is left out smaller ones of its tier are taken, and
        none of a lower tier: if one that was taken finds no room, what it would have
        had is for those next in rank.
        """
        rows, need, tier, left = self.possible, self._need.copy(), self._tier, self._free
        need[np.isin(rows, uncounted)] = 0
        taken = [np.zeros(0, np.int64)]
        for _ in range(MAX_FILLS):
            sums = np.cumsum(need, axis=0)
            over = (sums > left).any(axis=1)
            end = int(over.argmax()) if over.any() else len(rows)
            taken.append(rows[:end])
            if end == len(rows):
                break
            left = left - sums[end - 1] if end else left
            rest = end + np.flatnonzero((need[end:] <= left).all(axis=1) & (tier[end:] >= tier[end]))
            rows, need, tier = rows[rest], need[rest], tier[rest]
        return np.concatenate(taken)
