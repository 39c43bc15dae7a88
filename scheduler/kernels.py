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

try:
    _module = importlib.import_module("farbus.scheduler._kernels")
except ImportError as error:
    raise Unavailable(f"the scheduler's kernels are not built ({error})", hint="run make build") from error

_ffi, _lib = _module.ffi, _module.lib


def _column(array: Integers) -> Any:
    """Return the address of an array, which the kernel only reads."""
    return _ffi.from_buffer("int64_t[]", array)


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
        raise MemoryError(f"no memory for {len(tail)} arcs")
    return units if status == 0 else -status, effort.pivots
