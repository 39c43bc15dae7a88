"""Who goes through the phases together: no more jobs than the free devices could serve.

Phase 1 gives processors and memory before devices are chosen, and what it is
told of devices it is told shape by shape: it does not see that shapes contend
for the same ones.  With more jobs than devices it puts a younger job beside a
device and an older one elsewhere; the phase of devices then serves the older
one from afar, and the younger one has come in vain.

So a pass takes jobs in the order of rank for as long as what they want is
free.  That is counted by *stock*: the devices that suit a request hold all
requests that nothing else suits, and the devices of a kind hold all requests.
Both are necessary for all to be served, not sufficient (Hall's condition, on
those sets alone), so nobody is left out who could be placed beside the others.
Who is left out has the next pass, with what is left then.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from farbus.scheduler.phases.base import Desk
from farbus.scheduler.phases.jobs import Jobs
from farbus.scheduler.phases.tables import Integers


class Budget:
    """The devices that are free now, by stock, and what each form of ``rows`` takes of them."""

    def __init__(self, jobs: Jobs, rows: Integers, later: Sequence[Desk]) -> None:
        self._tier = jobs.tier
        self._forms, self._form = np.unique(jobs.form[rows], return_inverse=True)
        self._rows = rows
        self._possible = np.ones(len(self._forms), bool)
        needs, free = [np.zeros((len(self._forms), 0), np.int64)], [np.zeros(0, np.int64)]
        for desk in later:
            keys: dict[Hashable, int] = {}
            taken: list[tuple[int, int, int]] = []
            for number, form in enumerate(self._forms.tolist()):
                example = jobs.forms[form].example
                for group in jobs.forms[form].groups:
                    key = desk.outlook_key(example, group)
                    if key is None:
                        continue
                    look = desk.outlook(key)
                    self._possible[number] &= group.count <= look.total
                    taken.append((number, keys.setdefault(key, len(keys)), group.count * look.size))
            stocks = desk.stocks(list(keys)) if keys else None
            if stocks is None:
                continue
            amounts, within = stocks
            need = np.zeros((len(self._forms), len(amounts)), np.int64)
            for number, key_number, devices in taken:
                need[number] += devices * within[key_number]
            needs.append(need)
            free.append(amounts)
        self._need, self._free = np.concatenate(needs, axis=1), np.concatenate(free)
        self._possible &= (self._need <= self._free).all(axis=1)

    def possible(self) -> Integers:
        """Return the jobs that could be served if they were alone."""
        return self._rows[self._possible[self._form]]

    def admitted(self, uncounted: Integers) -> Integers:
        """Return the jobs of the next pass; those of ``uncounted`` have tried already and take nothing of the budget.

        A job that is left out lets smaller ones of its tier pass, and nobody
        of a lower tier: if one that was admitted finds no room, what it would
        have had is for the next in rank.
        """
        open_ = self._possible[self._form]
        counted = ~np.isin(self._rows, uncounted)
        took = np.zeros(len(self._rows), bool)
        used = np.zeros(len(self._free), np.int64)
        start = 0
        while True:
            at = start + np.flatnonzero(open_[start:])
            need = self._need[self._form[at]] * counted[at, None]
            sums = used + np.cumsum(need, axis=0)
            over = np.flatnonzero((sums > self._free).any(axis=1))
            if not len(over):
                took[at] = True
                return self._rows[took]
            first = int(over[0])
            took[at[:first]] = True
            used = sums[first - 1] if first else used
            start = int(at[first])
            # What is used only grows: no other of this form fits either.
            same = counted & (self._form == self._form[start])
            open_[start:] &= ~same[start:] & (self._tier[self._rows[start:]] == self._tier[self._rows[start]])
