"""The native module ``farbus.scheduler._kernels``: what a round computes row by row, as one call each.

Arrays go in by address: int64, one after the other in memory.  native/scheduler has the sources.
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from farbus.errors import Unavailable

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Table = npt.NDArray[Any]

try:
    _module = importlib.import_module("farbus.scheduler._kernels")
except ImportError as error:
    raise Unavailable(f"the scheduler's kernels are not built ({error})", hint="run make build") from error

_ffi, _lib = _module.ffi, _module.lib


def _column(array: Integers) -> Any:
    """Return the address of a column, which the kernel only reads; the answer keeps the array."""
    assert array.dtype == np.int64
    return _ffi.from_buffer("int64_t[]", np.ascontiguousarray(array))


def _numbers(array: Floats) -> Any:
    assert array.dtype == np.float64
    return _ffi.from_buffer("double[]", np.ascontiguousarray(array))


def _rows(kind: str, table: Table) -> Any:
    """Return the address of a table, whose rows are those of a struct of the kernel, which only reads them."""
    assert table.dtype.itemsize == _ffi.sizeof(kind)
    return _ffi.from_buffer(f"{kind}[]", np.ascontiguousarray(table))


_WRITTEN = {"int64_t": np.dtype(np.int64), "double": np.dtype(np.float64)}


def _written(kind: str, array: Table) -> Any:
    """Return the address of an array of ``kind`` (a struct for a table) that the kernel writes to.

    Raises ValueError where the kernel could not write to the array itself: what it writes to a copy is lost.
    """
    dtype = _WRITTEN.get(kind)
    if array.dtype == dtype if dtype is not None else array.dtype.itemsize == _ffi.sizeof(kind):
        try:
            return _ffi.from_buffer(f"{kind}[]", array, require_writable=True)
        except (BufferError, ValueError) as error:
            # Its rows are not one after the other in memory, or it is read-only.
            raise ValueError(f"a kernel can't write {kind} to this array: {error}") from error
    raise ValueError(f"a kernel can't write {kind} to this array: it is of {array.dtype}")


def _filled(*columns: Integers) -> list[Any]:
    """Return the addresses of columns that the kernel writes to."""
    return [_written("int64_t", column) for column in columns]


def _failed(status: int, what: str) -> Exception:
    """Return what to raise where a kernel answers ``status``: a defect of the caller, but for memory."""
    if status == -errno.ENOMEM:
        return MemoryError(f"no memory for {what}")
    return ValueError(f"{what}: {errno.errorcode[-status]}")


def min_cost_flow(
    tail: Integers,
    head: Integers,
    capacity: Integers,
    cost: Integers,
    supply: Integers,
    *,
    cost_budget: int,
    max_flow: int,
    work: int,
) -> tuple[Integers | int, int]:
    """Return the units of each arc in a flow of least cost, or the errno of flow.h, and the pivots that it took.

    It gives up with ETIME after ``work`` arcs priced and nodes moved: counted, not timed, so that the same
    network has the same answer.
    """
    units = np.empty(len(tail), np.int64)
    effort = _ffi.new("struct flow_effort *")
    network = _ffi.new("struct flow_network *")
    network.nodes, network.arcs = len(supply), len(tail)
    network.cost_budget, network.max_flow, network.work = cost_budget, max_flow, work
    columns = [_column(column) for column in (tail, head, capacity, cost, supply)]
    network.tail, network.head, network.capacity, network.cost, network.supply = columns
    status = _lib.flow_solve(network, _written("int64_t", units), effort)
    if status == -errno.ENOMEM:
        raise _failed(status, f"{len(tail)} arcs")
    return units if status == 0 else -status, effort.pivots


def in_order(values: Integers) -> tuple[Integers, Integers]:
    """Return the different ones of ``values`` in the order of their first occurrence, and the row there of each."""
    different, row = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    count = _lib.tables_in_order(len(values), _column(values), *_filled(different, row))
    if count < 0:
        raise _failed(count, f"{len(values)} values")
    return different[:count].copy(), row


def before(queue: Integers, count: Integers) -> Integers:
    """Return the sum of ``count`` over the earlier rows of the same queue; rows are sorted by ``queue``."""
    ahead = np.empty(len(queue), np.int64)
    _lib.tables_before(len(queue), _column(queue), _column(count), *_filled(ahead))
    return ahead


def limited(queue: Integers, count: Integers, limit: Integers) -> Integers:
    """Return ``count`` cut so that the rows of queue q sum to no more than ``limit[q]``; the first rows keep theirs."""
    cut = np.empty(len(queue), np.int64)
    rows = len(queue), _column(queue), _column(count)
    status = _lib.tables_limited(*rows, len(limit), _column(limit), *_filled(cut))
    if status < 0:
        raise _failed(status, f"limits of {len(limit)} queues")
    return cut


def matched(claims: Integers, stock: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Hand ``stock`` out to ``claims``, both counts of equal sum, in order.

    Returns the row of the claim, that of the stock, the number of units, and
    which unit of the stock's row is the first, for each pair that meets.
    """
    pairs = np.empty((4, len(claims) + len(stock)), np.int64)
    count = _lib.tables_matched(len(claims), _column(claims), len(stock), _column(stock), *_filled(*pairs))
    claim, held, units, skipped = pairs[:, :count]
    return claim, held, units, skipped


def ranges(first: Integers, length: Integers) -> Integers:
    """Return the numbers of all ranges that begin at ``first`` and are ``length`` long, one range after the other."""
    numbers = np.empty(int(length.sum()), np.int64)
    _lib.tables_ranges(len(first), _column(first), _column(length), *_filled(numbers))
    return numbers


class Offered(Protocol):
    """Arcs of an aggregator to ``place`` (ascending); there is none where ``cost`` is ``no_arc``.

    The search for cheap ones begins at ``bound``, which is written.
    """

    tier: int
    place: Integers
    capacity: Integers
    cost: Integers
    least: Integers | None
    """Of each block of ``BLOCK`` rows the least cost; None where nobody knows."""
    bound: int


BLOCK = int(_lib.MARKET_BLOCK)
"""Rows of an offer whose least cost is known."""


def write_arcs(
    columns: tuple[Integers, Integers, Integers | None],
    at: Integers,
    capacity: Integers,
    cost: Integers,
    *,
    no_arc: int,
) -> None:
    """Replace rows ``at`` of an offer's capacity, cost and least costs; there is no arc where ``capacity`` is 0."""
    native = _ffi.new("struct market_columns *")
    kept = _filled(*(column for column in columns if column is not None))
    native.places, native.no_arc = len(columns[0]), no_arc
    native.capacity, native.cost = kept[:2]
    native.least = kept[2] if len(kept) > 2 else _ffi.NULL
    status = _lib.market_write(native, len(at), _column(at), _column(capacity), _column(cost))
    if status < 0:
        raise _failed(status, f"{len(at)} rows of {len(columns[0])}")


def choose(
    offers: Sequence[Offered], *, source: int, units: int, spare: int, no_arc: int, kind: np.dtype[Any]
) -> tuple[Table, tuple[int, int] | None]:
    """Return the cheapest arcs of ``offers`` (by tier) that hold ``units``, and ``spare`` more, as a table of ARC.

    Cheapest is by cost, tier and place; the table is by tier and place.  Beside it cost and tier of the dearest one
    that is kept, None where all arcs do not suffice.
    """
    choice = _ffi.new("struct market_choice *")
    native = _ffi.new("struct market_offer[]", len(offers))
    kept = []
    for offer, one in zip(offers, native, strict=True):
        columns = _column(offer.place), _column(offer.capacity), _column(offer.cost)
        least = _ffi.NULL if offer.least is None else _column(offer.least)
        kept.append((*columns, least))
        one.tier, one.places, one.bound = offer.tier, len(offer.place), offer.bound
        one.place, one.capacity, one.cost = columns
        one.least = least
    choice.offers, choice.offer, choice.source = len(offers), native, source
    choice.units, choice.spare, choice.no_arc = units, spare, no_arc
    # Each arc that is kept holds a unit.
    arcs = np.empty(min(sum([len(offer.place) for offer in offers]), units + spare), kind)
    count = _lib.market_choose(choice, len(arcs), _written("struct table_arc", arcs))
    if count < 0:
        raise _failed(count, f"{len(arcs)} arcs")
    for offer, one in zip(offers, native, strict=True):
        offer.bound = one.bound
    return arcs[:count], (choice.cost, choice.tier) if choice.complete else None


def places(size: int, arcs: Table) -> tuple[Integers, Integers]:
    """Return the different places of a table of ARC, all below ``size``, ascending, and the row there of each arc's."""
    place, row = np.empty(len(arcs), np.int64), np.empty(len(arcs), np.int64)
    count = _lib.market_places(size, len(arcs), _rows("struct table_arc", arcs), *_filled(place, row))
    if count < 0:
        raise _failed(count, f"places of {len(arcs)} arcs")
    return place[:count].copy(), row


def lay_out(
    arcs: Table,
    row: Integers,
    *,
    own: int,
    node: Integers,
    first_pool: int,
    summed: Integers,
    room: Integers,
    joins: tuple[Integers, Integers],
    claims: tuple[Integers, Integers],
    units: int,
) -> tuple[Integers, Integers, Integers, Integers, Integers]:
    """Return tails, heads, capacities, costs and supplies of a network, as native/scheduler/market.h says.

    ``room``, shape (K,), is raised: ValueError where it can't be written to in place.
    """
    plan = _ffi.new("struct market_plan *")
    kept = [_column(column) for column in (row, node, summed, *joins, *claims)]
    table = _rows("struct table_arc", arcs)
    plan.sources, plan.pools, plan.places, plan.first_pool, plan.units = (
        len(node),
        len(summed),
        len(room),
        first_pool,
        units,
    )
    plan.own, plan.arcs, plan.joins, plan.claims, plan.arc = own, len(arcs), len(joins[0]), len(claims[0]), table
    plan.row, plan.node, plan.summed, plan.join, plan.join_pool, plan.claim_source, plan.claim_count = kept
    total = plan.arcs + plan.places + plan.joins + plan.claims
    columns = [np.empty(length, np.int64) for length in (*[total] * 4, first_pool + len(summed) + len(room) + 1)]
    status = _lib.market_lay_out(plan, *_filled(room, *columns))
    if status < 0:
        raise _failed(status, f"a network of {total} arcs")
    tail, head, capacity, cost, supply = columns
    return tail, head, capacity, cost, supply


def climb(
    arcs: Table,
    *,
    room: Floats,
    stock: Floats,
    need: Floats,
    share: Floats,
    units: Integers,
    limit: Integers,
    beyond: Integers,
    no_arc: int,
    classes: tuple[Integers, Integers, Integers],
    score: int,
    steps: int,
    patience: int,
    least: float,
    start: tuple[Floats, Floats] | None = None,
) -> tuple[float, Floats, Floats]:
    """Return the best lower bound that ``steps`` steps find, and its prices, of the shapes of room and stock.

    The first is at prices ``start``, none of them negative; without, at 0.

    ``arcs`` is a table of ARC whose places are rows of ``room`` (K, R); ``need`` has shape (S, tiers, R), ``share``
    (S, T); ``classes`` are sorted by source, the dearest first.
    """
    problem = _ffi.new("struct bound_problem *")
    kept = [
        _rows("struct table_arc", arcs),
        *(_column(column) for column in (units, limit, beyond, *classes)),
        *(_numbers(column) for column in (room, stock, need, share)),
    ]
    problem.sources, problem.arcs, problem.classes = len(units), len(arcs), len(classes[0])
    problem.places, problem.resources = room.shape
    problem.commons, problem.tiers = len(stock), need.shape[1]
    problem.arc, problem.units, problem.limit, problem.beyond = kept[:4]
    problem.class_source, problem.class_count, problem.class_price = kept[4:7]
    problem.room, problem.stock, problem.need, problem.share = kept[7:]
    problem.no_arc, problem.score, problem.steps, problem.patience, problem.least = (
        no_arc,
        float(score),
        steps,
        patience,
        least,
    )
    here, whole = (np.zeros(room.shape), np.zeros(stock.shape)) if start is None else map(np.array, start)
    assert here.shape == room.shape
    assert whole.shape == stock.shape
    bound = _ffi.new("double *")
    status = _lib.bound_climb(problem, _written("double", here), _written("double", whole), bound)
    if status < 0:
        raise _failed(status, f"the bound of {len(arcs)} arcs")
    return bound[0], here, whole
