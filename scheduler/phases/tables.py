"""Tables of a round's network: wants, arcs and awards as rows of integers, and what is done to many rows at once.

A *source* is one number for what is wanted and the node that it is bound to;
its desk makes and reads such numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from farbus.scheduler.kernels import before, in_order, limited, matched, ranges

__all__ = [
    "ARC",
    "AWARD",
    "WANT",
    "Integers",
    "Table",
    "ahead",
    "before",
    "distinct",
    "in_order",
    "joined",
    "limited",
    "matched",
    "ranges",
    "table",
    "wants_by_node",
]

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


def ahead(queue: Integers, count: Integers) -> Integers:
    """Return what :func:`before` does, for rows in any order."""
    order = np.argsort(queue, kind="stable")
    total = np.empty(len(queue), np.int64)
    total[order] = before(queue[order], count[order])
    return total


def wants_by_node(awards: Table) -> tuple[Table, Integers]:
    """Return one want for each group and place of ``awards``, which are of one phase, and those places.

    A group that was awarded units of several tiers at a place wants for all of them at once.  Wants are in the order
    in which their first award is; what their sources are is left to the caller.
    """
    span, groups = int(awards["place"].max(initial=0)) + 1, int(awards["group"].max(initial=0)) + 1
    spots, row = in_order((awards["job"] * groups + awards["group"]) * span + awards["place"])
    group, place = np.divmod(spots, span)
    job, group = np.divmod(group, groups)
    wants = table(WANT, len(spots), job=job, group=group)
    np.add.at(wants["count"], row, awards["count"])
    return wants, place
