"""What is free of nodes during a round: a matrix that phase 1 takes of, and a column of it that others take of too.

A task with remote devices takes of the network at both ends, its own node's
and the lender's, and which node lends is decided after phase 1.  So the phases
share the column.  What a task will want of its own node's network, should its
devices come from elsewhere, is *pencilled in* until they have been given out:
it is missing from what is free, and comes back if it was not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from farbus.scheduler.phases.cluster import Changes

Integers = npt.NDArray[np.int64]


class Room:
    """``free`` has shape (M, R); ``network`` is its column of network.

    ``links`` tells of which rows that column changed, ``changes`` of all rows.
    """

    def __init__(self, free: Integers, column: int, *, changes: Changes, links: Changes) -> None:
        self.free = free.copy()
        self.network = self.free[:, column]
        self.links = links
        self._column = column
        self._changes = changes
        self._pencilled = np.zeros(len(free), np.int64)
        self._pencils: list[Integers] = []

    def renew(self, free: Integers, rows: Integers | None = None) -> Integers:
        """Take up what is free when a round begins, of all nodes or of ``rows``; return those that changed."""
        self._pencilled[np.concatenate(self._pencils) if self._pencils else []] = 0
        self._pencils.clear()
        rows = np.arange(len(free)) if rows is None else rows
        differs = self.free[rows] != free[rows]
        self.free[rows] = free[rows]
        self.links.note(rows[differs[:, self._column]])
        changed: Integers = rows[differs.any(axis=1)]
        return changed

    def take_network(self, rows: Integers, amounts: Integers) -> None:
        """Take ``amounts`` (negative: give back) of the network of ``rows``, which may occur several times."""
        np.subtract.at(self.network, rows, amounts)
        assert (self.network[rows] >= 0).all(), "network is given out twice"
        self._note(rows)

    def pencil(self, rows: Integers, amounts: Integers) -> None:
        """Keep ``amounts`` of the network of ``rows`` in mind; negative ones no longer, as far as they were."""
        before = self._pencilled[rows]
        np.add.at(self._pencilled, rows, amounts)
        self._pencilled[rows] = self._pencilled[rows].clip(min=0)
        # The same for all entries of a row.
        self.network[rows] += before - self._pencilled[rows]
        assert (self.network[rows] >= 0).all(), "more is kept in mind than there is"
        self._pencils.append(rows)
        self._note(rows)

    def settle(self, rows: Integers, amounts: Integers) -> None:
        """Take ``amounts`` of what was kept in mind of the network of ``rows``."""
        np.subtract.at(self._pencilled, rows, amounts)
        assert (self._pencilled[rows] >= 0).all(), "more is taken than was kept in mind"

    def clear_pencil(self) -> None:
        """Give back what was kept in mind and not taken."""
        if not self._pencils:
            return
        rows = np.unique(np.concatenate(self._pencils))
        self._pencils.clear()
        rows = rows[self._pencilled[rows] > 0]
        self.network[rows] += self._pencilled[rows]
        self._pencilled[rows] = 0
        self._note(rows)

    def _note(self, rows: Integers) -> None:
        self.links.note(rows)
        self._changes.note(rows)
