"""The native module ``farbus.scheduler._kernels``: what a round computes row by row, as one call each.

Arrays go in by address: int64, one after the other in memory.  native/scheduler has the sources.
"""

from __future__ import annotations

import errno
import importlib
from typing import Any

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
    """Return the address of a table, whose rows are those of a struct of the kernel."""
    assert table.dtype.itemsize == _ffi.sizeof(kind)
    return _ffi.from_buffer(f"{kind}[]", np.ascontiguousarray(table))


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
    status = _lib.flow_solve(network, _ffi.from_buffer("int64_t[]", units, require_writable=True), effort)
    if status == -errno.ENOMEM:
        raise _failed(status, f"{len(tail)} arcs")
    return units if status == 0 else -status, effort.pivots


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
) -> tuple[float, Floats, Floats]:
    """Return the best lower bound that ``steps`` steps find, and its prices, of the shapes of room and stock.

    ``arcs`` is a table of ARC whose places are rows of ``room`` (K, R); ``need`` has shape (S, tiers, R), ``share``
    (S, T); ``classes`` are sorted by source, the dearest first.
    """
    problem = _ffi.new("struct bound_problem *")
    kept = [
        _rows("struct bound_arc", arcs),
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
    here, whole, bound = np.zeros_like(room), np.zeros_like(stock), _ffi.new("double *")
    status = _lib.bound_climb(problem, _ffi.from_buffer("double[]", here), _ffi.from_buffer("double[]", whole), bound)
    if status < 0:
        raise _failed(status, f"the bound of {len(arcs)} arcs")
    return bound[0], here, whole
