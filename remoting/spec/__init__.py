"""The CUDA driver API as data: types, functions, and what travels for them."""

from __future__ import annotations

from farbus.remoting.spec import management, operations
from farbus.remoting.spec.functions import ENTRIES
from farbus.remoting.spec.model import Answer, Entry, Field, Operation, Scalar
from farbus.remoting.spec.operations import BULK_BYTES, EVENTS, HANDLE_KINDS

OPERATIONS = (*operations.OPERATIONS, *management.OPERATIONS)

#: Counts changes of the specification that a peer must know of.
SPEC_VERSION = 1

__all__ = [
    "BULK_BYTES",
    "ENTRIES",
    "EVENTS",
    "HANDLE_KINDS",
    "OPERATIONS",
    "SPEC_VERSION",
    "Answer",
    "Entry",
    "Field",
    "Operation",
    "Scalar",
]
