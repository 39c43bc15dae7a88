"""Whole sequences of an initiator: what is done to attach, in order; backwards it detaches."""

from __future__ import annotations

from collections.abc import Mapping

from farbus.model.nvmeof import Connection
from farbus.model.value import from_json
from farbus.nvmeof.composition import CreateStripe
from farbus.nvmeof.initiator import ClearEarlier, Connect, HandOver, HoldTlsKey, LimitIo, VerifyNamespaces
from farbus.nvmeof.keys import LeaseKeys
from farbus.nvmeof.parts import Attach, InitiatorParts

ConnectStep = ClearEarlier | HoldTlsKey | Connect | VerifyNamespaces | HandOver
AttachStep = ConnectStep | LimitIo | CreateStripe


def object_of(work: Attach) -> str:
    """Return what a sequence is about, in the journal."""
    return f"attachment {work.id}"


def from_body(body: str) -> Attach:
    """Read a recorded sequence's body; raise :class:`farbus.errors.InvalidInput` for what is none."""
    return from_json(body, Attach)


def resumable(work: Attach) -> bool:
    """Say whether another agent can go on with it: keys are not written down."""
    return not any(connection.needs_keys for connection in work.connections)


def connect_steps(
    parts: InitiatorParts, work: Attach, connection: Connection, keys: LeaseKeys
) -> tuple[ConnectStep, ...]:
    """Return the steps by which one connection of an attachment comes."""
    return (
        ClearEarlier(parts=parts, work=work, connection=connection),
        *((HoldTlsKey(parts=parts, work=work, connection=connection, key=keys.tls),) if connection.tls else ()),
        Connect(parts=parts, work=work, connection=connection, key=keys.host),
        VerifyNamespaces(parts=parts, work=work, connection=connection),
        HandOver(parts=parts, work=work, connection=connection),
    )


def steps_of(
    parts: InitiatorParts, work: Attach, *, keys: Mapping[str, LeaseKeys] | None = None
) -> tuple[AttachStep, ...]:
    """Return the steps of an attachment, in order; ``keys`` are by the name of the lease.

    The result of the last step that has one is ``path``: the stripe's, or the only namespace's.
    """
    steps: list[AttachStep] = []
    for connection in work.connections:
        steps += connect_steps(parts, work, connection, (keys or {}).get(connection.name.lease, LeaseKeys()))
    if work.limit is not None:
        steps += [LimitIo(parts=parts, work=work, connection=connection) for connection in work.connections]
    if work.stripe is not None:
        steps.append(CreateStripe(parts=parts, work=work, stripe=work.stripe))
    return tuple(steps)
