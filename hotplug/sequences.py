"""Whole sequences: what is done to attach and to detach a device, in order, and how long it will take."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from farbus.errors import Conflict, InvalidInput, NotFound
from farbus.hotplug.parts import Move, Parts, device_at
from farbus.hotplug.steps import (
    AssignDevice,
    CheckRoom,
    CloseDevice,
    DrainDevice,
    HotplugStep,
    OpenDevice,
    QuietGpu,
    RemoveFunctions,
    ScanBelow,
    UnassignDevice,
    VerifyDevice,
)
from farbus.hotplug.times import BusStep
from farbus.hotplug.working import look_at
from farbus.model.fabric import FabricStep
from farbus.model.holders import Look
from farbus.model.pci import PciTree
from farbus.model.value import Value

MoveStep = (
    CheckRoom | AssignDevice | ScanBelow | VerifyDevice | OpenDevice
    | CloseDevice | DrainDevice | QuietGpu | RemoveFunctions | UnassignDevice
)  # fmt: skip


class HotAttach(Value, frozen=True, kw_only=True, tag="attach"):
    """A device is to come to this node: the body of its sequence in the journal."""

    move: Move


class HotDetach(Value, frozen=True, kw_only=True, tag="detach"):
    """A device is to go from this node."""

    move: Move


class HotScan(Value, frozen=True, kw_only=True, tag="scan"):
    """A device that is assigned to this node is to be looked for: nothing is assigned, and nothing is given back."""

    move: Move


HotMove = HotAttach | HotDetach | HotScan

_DECODER: msgspec.json.Decoder[HotMove] = msgspec.json.Decoder(HotMove)


def object_of(move: Move) -> str:
    """Return what a device's sequences are about, in the journal."""
    return f"device {move.device}"


def from_body(body: str) -> HotMove:
    """Read a recorded sequence's body; raise :class:`InvalidInput` for what is none."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"not a move of a device: {error}") from error


def steps_of(parts: Parts, work: HotMove) -> tuple[MoveStep, ...]:
    """Return the steps of a move, in order.

    They need nothing that is not in ``work``: a sequence that was cut off can
    be gone on with (``resumable``).
    """
    if isinstance(work, HotAttach):
        return _attach(parts, work.move)
    return _detach(parts, work.move) if isinstance(work, HotDetach) else _arrive(parts, work.move)


def _attach(parts: Parts, move: Move) -> tuple[MoveStep, ...]:
    return (
        CheckRoom(parts=parts, move=move),
        *((AssignDevice(parts=parts, move=move),) if move.port else ()),
        *_arrive(parts, move),
    )


def _arrive(parts: Parts, move: Move) -> tuple[MoveStep, ...]:
    return (
        ScanBelow(parts=parts, move=move),
        VerifyDevice(parts=parts, move=move),
        OpenDevice(parts=parts, move=move),
    )


def _detach(parts: Parts, move: Move) -> tuple[MoveStep, ...]:
    return (
        CloseDevice(parts=parts, move=move),
        DrainDevice(parts=parts, move=move),
        QuietGpu(parts=parts, move=move),
        RemoveFunctions(parts=parts, move=move),
        *((UnassignDevice(parts=parts, move=move),) if move.port else ()),
    )


def find_device(parts: Parts, tree: PciTree, name: str) -> tuple[str, Move]:
    """Return where a device is by its name, and what there is to know of it for a move.

    Also by its serial number alone, as a chassis calls it.  Raises :class:`NotFound`, and :class:`Conflict` for what is
    two devices' serial; a name that is weak fits only the place where it was given.
    """
    names = parts.names(tree)
    found = [address for address, identity in names.items() if name and name in (identity.name, identity.serial)]
    found = [address for address in found if names[address].name == name] or found
    if len(found) > 1:
        several = ", ".join(f"{address} is {names[address].name}" for address in found)
        raise Conflict(f"device {name}: several have this serial: {several}", hint="name the one that is meant")
    for address in found:
        name = names[address].name
        device = tree.device_of(address)
        parent = device[0].parent
        if not parent:
            raise Conflict(
                f"detach {name}: {address} sits on a root bus, below no port", hint="it is part of the machine"
            )
        return address, Move(
            device=name,
            bridge=parent,
            vendor=device[0].vendor,
            device_id=device[0].device,
            functions=device,
        )
    raise NotFound(f"device {name}: not on this node's bus", hint="farbus devices --tree shows what is")


class DryRun(Value, frozen=True, kw_only=True):
    """What a move would do: its steps in words, who is in the way now, and how many seconds it is likely to take."""

    steps: tuple[str, ...]
    expected_s: float
    in_the_way: tuple[str, ...] = ()


async def rehearse(parts: Parts, work: HotMove) -> DryRun:
    """Say what a move would do.  Nothing is changed; what the first step would refuse is told."""
    steps = steps_of(parts, work)
    in_the_way: list[str] = []
    if isinstance(work, HotAttach):
        try:
            await steps[0].do()
        except Conflict as error:
            in_the_way.append(str(error))
    else:
        tree = parts.pci.tree()
        look: Look = await look_at(parts, work.move, device_at(parts, tree, work.move))
        in_the_way += [*map(str, look.others), *look.unseen]
    return DryRun(steps=tuple(step.says for step in steps), expected_s=expected_s(steps), in_the_way=tuple(in_the_way))


def expected_s(steps: Sequence[HotplugStep]) -> float:
    """Return how long the steps of one move are likely to take, in seconds, without waiting for holders."""
    seconds = 0.0
    for step in steps:
        if isinstance(step, AssignDevice):
            seconds += step.fabric.expected_s(FabricStep.ASSIGN)
        elif isinstance(step, UnassignDevice):
            seconds += step.fabric.expected_s(FabricStep.UNASSIGN)
        elif isinstance(step, ScanBelow):
            seconds += step.parts.times.history.expected_s(BusStep.SCAN, step.move.pci_class)
        elif isinstance(step, RemoveFunctions):
            seconds += step.parts.times.history.expected_s(BusStep.REMOVE, step.move.pci_class)
    return seconds
