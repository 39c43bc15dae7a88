"""The CUDA driver API as data: types, functions, and what travels for them."""

from __future__ import annotations

from farbus.remoting.spec import management, operations
from farbus.remoting.spec.functions import ENTRIES
from farbus.remoting.spec.model import Answer, Entry, Field, Operation, Scalar
from farbus.remoting.spec.operations import BULK_BYTES, EVENTS, HANDLE_KINDS

OPERATIONS = (*operations.OPERATIONS, *management.OPERATIONS)

#: Counts changes of the specification that a peer must know of.
SPEC_VERSION = 1


def operation_name(operation: int) -> str:
    """Return what a server's status calls a call, as :attr:`farbus.remoting.status.Session.operation` has it.

    An operation's name, the driver's function where one operation serves many, or an opcode that this version does
    not know.
    """
    opcode, function = operation & 0xFFFF, (operation >> 16) - 1
    if function >= 0:
        return next((entry.symbol for entry in ENTRIES if entry.number == function), f"function {function}")
    return next((each.name for each in OPERATIONS if each.opcode == opcode), f"operation {opcode:#x}")


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
    "operation_name",
]
