"""Whole sequences of an initiator: what is done to attach, in order; backwards it detaches."""

from __future__ import annotations

from collections.abc import Mapping

from farbus.model.value import from_json
from farbus.nvmeof.composition import CreateStripe
from farbus.nvmeof.initiator import ClearEarlier, Connect, HandOver, LimitIo, VerifyNamespaces
from farbus.nvmeof.parts import Attach, InitiatorParts

AttachStep = ClearEarlier | Connect | VerifyNamespaces | HandOver | LimitIo | CreateStripe


def object_of(work: Attach) -> str:
    """Return what a sequence is about, in the journal."""
    return f"attachment {work.id}"


def from_body(body: str) -> Attach:
    """Read a recorded sequence's body; raise :class:`farbus.errors.InvalidInput` for what is none."""
    return from_json(body, Attach)


def resumable(work: Attach) -> bool:
    """Say whether another agent can go on with it: keys are not written down."""
    return not any(connection.authenticated for connection in work.connections)


def steps_of(parts: InitiatorParts, work: Attach, *, keys: Mapping[str, str] | None = None) -> tuple[AttachStep, ...]:
    """Return the steps of an attachment, in order; ``keys`` are DH-HMAC-CHAP keys by the name of the lease.

    The result of the last step that has one is ``path``: the stripe's, or the only namespace's.
    """
    steps: list[AttachStep] = []
    for connection in work.connections:
        key = (keys or {}).get(connection.name.lease, "")
        steps += [
            ClearEarlier(parts=parts, work=work, connection=connection),
            Connect(parts=parts, work=work, connection=connection, key=key),
            VerifyNamespaces(parts=parts, work=work, connection=connection),
            HandOver(parts=parts, work=work, connection=connection),
        ]
    if work.limit is not None:
        steps += [LimitIo(parts=parts, work=work, connection=connection) for connection in work.connections]
    if work.stripe is not None:
        steps.append(CreateStripe(parts=parts, work=work, stripe=work.stripe))
    return tuple(steps)
