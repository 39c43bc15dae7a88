"""Runs in a guest: a device is offered, comes over the network and goes again, hundreds of times, in one process.

``python -m tests.lab.campaign COUNT`` reads ``{"drives": [...], "address": ...}`` from standard input, and prints
``{"rounds", "wrong", "seconds"}``: the rounds whose block was not what was written, and what each half took in all.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from farbus.model.nvmeof import Connection, ExpectedNamespace, SubsystemName, namespace_identity, transport_address
from farbus.model.storage import EXTENT_BYTES, identity_of
from farbus.model.volume import StorageUse, VolumePart
from farbus.nvmeof import using, volumes
from tests.lab.storage import Machine

BLOCK = 4096
LEASE = "again"


async def forward(steps: Iterable[Any]) -> dict[str, str]:
    """Do steps, as the runner does."""
    result: dict[str, str] = {}
    for step in steps:
        found = await step.observe(None)
        result |= await step.do() if found is None else found
    return result


async def back(steps: Iterable[Any]) -> None:
    """Undo them."""
    for step in reversed(list(steps)):
        await step.compensate()


def content(number: int) -> bytes:
    """Return the block of a round."""
    return (b"%016d" % number) * (BLOCK // 16)


async def rounds(count: int, drives: list[str], address: str) -> dict[str, Any]:
    """Offer a part of a volume, by an epoch of its own each time, use it, and look what earlier rounds wrote."""
    machine = Machine()
    at = transport_address(address)
    size = 8 * EXTENT_BYTES
    part = VolumePart(volume="again", size_bytes=size, drives=tuple(drives))
    await forward(volumes.steps_of(machine.storing, volumes.MakeWork(part=part)))
    identity = namespace_identity(identity_of(part).exported_as)
    wrong: list[int] = []
    seconds: defaultdict[str, float] = defaultdict(float)
    for number in range(count):
        name = SubsystemName(lease=LEASE, epoch=number + 1)
        offer = volumes.steps_of(
            machine.storing,
            volumes.ReadyWork(lease=LEASE, part=part, export=volumes.export_of(name, identity_of(part), [at])),
        )
        connection = Connection(
            name=name, addresses=(at,), io_queues=1,
            namespaces=(ExpectedNamespace(identity=identity, size_bytes=size),),
        )  # fmt: skip
        use = using.steps_of(
            machine.using,
            using.UseWork(id=LEASE, parts=(using.part_there(connection),), use=StorageUse.RAW),
        )
        began = time.monotonic()
        await forward(offer)
        path = (await forward(use))["path"]
        seconds["there"] += time.monotonic() - began
        device = os.open(path, os.O_RDWR)
        # The last one, and one of long ago.
        for before in {number - 1, number // 2} - {-1, number}:
            if os.pread(device, BLOCK, before * BLOCK) != content(before):
                wrong.append(before)
        os.pwrite(device, content(number), number * BLOCK)
        os.fsync(device)
        os.close(device)
        began = time.monotonic()
        await back(use)
        await back(offer)
        seconds["gone"] += time.monotonic() - began
        if number % 20 == 19:
            print(f"{number + 1} times", file=sys.stderr, flush=True)
    await forward(volumes.steps_of(machine.storing, volumes.RemoveWork(part=part)))
    return {"rounds": count, "wrong": wrong, "seconds": dict(seconds)}


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(asyncio.run(rounds(int(sys.argv[1]), given["drives"], given["address"]))))
