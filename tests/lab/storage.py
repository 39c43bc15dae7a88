"""Runs in a guest: the sequences of the storing and of the using node on its real kernel, lvm2 and nvme-cli.

``python -m tests.lab.storage`` reads a list of orders from standard input, ``{"side": "store" | "target" | "address" |
"use", "verb": ..., "work": ...}``, and prints a JSON list with what became of each: ``{"result": {...}, "seconds":
{STEP: ...}}`` or ``{"error": KIND, "says": TEXT}``.  One list for many orders: Python takes seconds to start there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import msgspec

from farbus.errors import FarbusError
from farbus.linux.block import KernelBlockDevices
from farbus.linux.clock import SystemClock
from farbus.linux.device_mapper import KernelDeviceMapper
from farbus.linux.holders import KernelHolders
from farbus.linux.nvme import KernelNvme
from farbus.linux.uevents import KernelUevents
from farbus.model.nvmeof import Export
from farbus.nvmeof import using, volumes
from farbus.nvmeof.parts import InitiatorParts
from farbus.nvmeof.target import AddressWork, ExportWork, TargetParts, resized
from farbus.nvmeof.target import steps_of as target_steps_of
from farbus.nvmeof.using import UseParts
from farbus.nvmeof.volumes import VolumeParts
from tests.linux.filesystems_contract import QuickFileSystems
from tests.linux.lvm_contract import QuickLvm
from tests.linux.nvmet_contract import QuickNvmet


class Machine:
    """The doors of this guest."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.nvme = KernelNvme()
        self.wiped: dict[str, int] = {}
        self.storing = VolumeParts(
            lvm=QuickLvm(),
            target=TargetParts(nvmet=QuickNvmet(), blocks=KernelBlockDevices()),
            told=lambda what, done, total: self.wiped.__setitem__(what, done),
        )
        self.using = UseParts(
            initiator=InitiatorParts(
                nvme=self.nvme,
                mapper=KernelDeviceMapper(),
                holders=KernelHolders(clock=clock),
                uevents=KernelUevents(),
                clock=clock,
            ),
            blocks=KernelBlockDevices(),
            filesystems=QuickFileSystems(),
        )

    async def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do one order."""
        verb = order["verb"]
        if verb == "drives":
            for drive in order.get("add", ()):
                await self.storing.lvm.add_drive(drive)
            return {"drives": msgspec.to_builtins(await self.storing.lvm.drives())}
        if verb == "stored":
            return {"stored": msgspec.to_builtins(await volumes.stored(self.storing, health=self.nvme))}
        steps: tuple[Any, ...]
        if order["side"] == "target":
            assert self.storing.target is not None
            steps = target_steps_of(self.storing.target, ExportWork(export=msgspec.convert(order["work"], Export)))
        elif order["side"] == "address":
            assert self.storing.target is not None
            work = msgspec.convert(order["work"], AddressWork)
            steps = target_steps_of(self.storing.target, work)
        elif order["side"] == "store":
            work = volumes.from_body(json.dumps(order["work"]))
            if verb == "resized":
                assert isinstance(work, volumes.ReadyWork)
                assert work.export is not None
                assert self.storing.target is not None
                await resized(self.storing.target, work.export)
                return {}
            steps = volumes.steps_of(self.storing, work)
        else:
            use = using.from_body(json.dumps(order["work"]))
            if verb == "grow":
                await using.grow(self.using, use, size_bytes=order["size_bytes"])
                return {}
            steps = using.steps_of(self.using, use)
        return await self._go(steps, verb)

    async def _go(self, steps: tuple[Any, ...], verb: str) -> dict[str, Any]:
        seconds: dict[str, float] = {}
        result: dict[str, str] = {}
        found = []
        for step in steps if verb != "back" else reversed(steps):
            began = time.monotonic()
            if verb == "go":
                done = await step.observe(None)
                result |= await step.do() if done is None else done
            elif verb == "back":
                await step.compensate()
            else:
                found.append(await step.observe({"path": order_path(step)}) is not None)
            seconds[step.kind] = round(seconds.get(step.kind, 0.0) + time.monotonic() - began, 2)
        return {"result": result, "seconds": seconds, "found": found, "wiped": dict(self.wiped)}


def order_path(step: Any) -> str:
    """Return the path that a step's earlier result had: only that there is one counts here."""
    return str(getattr(step, "kind", ""))


async def main() -> list[dict[str, Any]]:
    """Do all orders, until one fails."""
    machine, told = Machine(), []
    for order in json.load(sys.stdin):
        try:
            told.append(await machine.do(order))
        except FarbusError as error:
            told.append({"error": type(error).__name__, "says": str(error)})
            if not order.get("may_fail"):
                break
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
