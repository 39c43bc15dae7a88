"""Exports and withdraws on the machine where it runs, as the agent does: the real doors, in a guest of the lab.

Reads one JSON object from standard input, ``{"export": ..., "verb": ..., "secret": ...}``, so that a secret is in no
argument list; prints results or the error, also as JSON.  ``children`` asks for the agent's own way to configfs.
"""

from __future__ import annotations

import asyncio
import json
import sys

import msgspec

from farbus.errors import FarbusError
from farbus.linux.block import KernelBlockDevices
from farbus.linux.nvmet import KernelNvmet
from farbus.linux.tls_keys import KernelTlsKeys
from farbus.model.nvmeof import Export
from farbus.nvmeof.comparison import differences
from farbus.nvmeof.keys import keys_of, tls_key_of
from farbus.nvmeof.target import ExportWork, TargetParts, WithdrawWork, resized, steps_of, uses
from tests.linux.nvmet_contract import QuickNvmet


async def go(order: dict[str, object]) -> dict[str, object]:
    """Do what is asked; an export that fails is taken back."""
    export = msgspec.convert(order["export"], Export)
    secret = str(order.get("secret", ""))
    nvmet = KernelNvmet() if order.get("children") else QuickNvmet()
    parts = TargetParts(
        nvmet=nvmet,
        blocks=KernelBlockDevices(),
        keys=lambda name: keys_of(secret, name) if secret else None,
        tls_keys=KernelTlsKeys(),
        tls_key=lambda name: tls_key_of(secret, name) if secret else None,
    )
    told: dict[str, object] = {}
    if order["verb"] == "resize":
        await resized(parts, export)
    elif order["verb"] != "look":
        work = ExportWork(export=export) if order["verb"] == "export" else WithdrawWork(name=export.name)
        steps = steps_of(parts, work)
        try:
            for step in steps:
                found = await step.observe(None)
                told |= await step.do() if found is None else found
        except FarbusError as error:
            told["error"] = str(error)
            for step in reversed(steps):
                await step.compensate()
    target = await nvmet.target()
    told["differences"] = differences(target, export)
    told["subsystems"] = [subsystem.nqn for subsystem in target.subsystems]
    told["ports"] = [port.id for port in target.ports]
    told["hosts"] = [host.nqn for host in target.hosts]
    told["tls"] = [str(held.identity) for held in KernelTlsKeys().held()]
    told["written_bytes"] = [use.written_bytes for use in uses(parts, export).values()]
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(go(json.load(sys.stdin)))))
