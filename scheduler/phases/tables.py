"""Tables of a round's network: wants, arcs and awards as rows of integers, and what is done to many rows at once.

A *source* is one number for what is wanted and the node that it is bound to;
its desk makes and reads such numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Table = npt.NDArray[Any]
"""A structured array: one of the types below."""


def _row(*columns: str) -> np.dtype[Any]:
    return np.dtype([(column, np.int64) for column in columns])


WANT = _row("job", "group", "source", "count")
"""``count`` equal units for a group of a job; ``count`` falls as they are served."""

ARC = _row("source", "place", "tier", "capacity", "cost")
"""A preference: one place, up to ``capacity`` units, ``cost`` each.  ``source`` is a row of what was asked about."""

AWARD = _row("job", "group", "source", "pool", "place", "tier", "count", "cost", "first", "size")
"""``count`` units of a want, served at ``place`` for ``cost`` each.

``pool`` is the aggregator of the source, or -1; ``first`` says where the
devices of the units begin, ``size`` for each; it is 0 where units are no devices.
"""


def table(kind: np.dtype[Any], length: int, **columns: Integers | int) -> Table:
    """Return a table of ``length`` rows; a number stands for the whole column, and columns not named are 0."""
    made = np.zeros(length, kind)
    for name, column in columns.items():
        made[name] = column
    return made


def joined(parts: Sequence[Table]) -> Table:
    """Return the rows of tables of one kind, one after the other, without comparing their columns first."""
    rows: Table = np.concatenate([part.view(np.int64) for part in parts]).view(parts[0].dtype)
    return rows


def distinct(values: Integers) -> Integers:
    """Return the different ones of ``values``, ascending; ``numpy.unique`` hashes, which takes longer."""
    ordered = np.sort(values)
    if len(ordered):
        ordered = ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    return ordered


def in_order(values: Integers) -> tuple[Integers, Integers]:
    """Return the different ones of ``values`` in the order of their first occurrence, and the row there of each."""
    different, first, row = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return different[order], place[row.reshape(-1)]


def ranges(first: Integers, length: Integers) -> Integers:
    """Return the numbers of all ranges that begin at ``first`` and are ``length`` long, one range after the other."""
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(first - ends + length, length)


def before(queue: Integers, count: Integers) -> Integers:
    """Return the sum of ``count`` over the earlier rows of the same queue; rows are sorted by ``queue``."""
    if not len(queue):
        return count.copy()
    ahead = np.cumsum(count) - count
    starts = np.flatnonzero(np.concatenate(([True], queue[1:] != queue[:-1])))
    return ahead - np.repeat(ahead[starts], np.diff(np.append(starts, len(queue))))


def ahead(queue: Integers, count: Integers) -> Integers:
    """Return what :func:`before` does, for rows in any order."""
    order = np.argsort(queue, kind="stable")
    total = np.empty(len(queue), np.int64)
    total[order] = before(queue[order], count[order])
    return total


def limited(queue: Integers, count: Integers, limit: Integers) -> Integers:
    """Return ``count`` cut so that the rows of queue q sum to no more than ``limit[q]``; the first rows keep theirs."""
    cut: Integers = np.clip(limit[queue] - before(queue, count), 0, count)
    return cut


def matched(claims: Integers, stock: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Hand ``stock`` out to ``claims``, both counts of equal sum, in order.

    Returns the row of the claim, that of the stock, the number of units, and
    which unit of the stock's row is the first, for each pair that meets.
    """
    claimed, stocked = np.cumsum(claims), np.cumsum(stock)
    ends = distinct(np.concatenate((claimed, stocked)))
    ends = ends[ends > 0]
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if len(ends) else ends
    claim = np.searchsorted(claimed, starts, side="right")
    held = np.searchsorted(stocked, starts, side="right")
    return claim, held, ends - starts, starts - (stocked - stock)[held]
