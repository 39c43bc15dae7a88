"""Runs in a guest: the steps of an initiator on its real kernel, one order for each call.

``python -m tests.lab.initiator ORDER PROGRAM`` reads ``{"work": Attach, "keys": {LEASE: KEY}, "secret": SECRET}`` from
standard input, of whose secret keys of TLS are made,
and prints one JSON object: ``{"result": {...}, "seconds": {STEP: ...}}`` or ``{"error": KIND, "says": TEXT}``.
PROGRAM is the nvme-cli to use.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import time
from typing import Any

import msgspec

from farbus.errors import FarbusError
from farbus.linux.clock import SystemClock
from farbus.linux.device_mapper import KernelDeviceMapper
from farbus.linux.holders import KernelHolders
from farbus.linux.nvme import KernelNvme
from farbus.linux.tls_keys import KernelTlsKeys
from farbus.linux.uevents import KernelUevents
from farbus.model.nvmeof import Connection, transport_address
from farbus.nvmeof.initiator import MendPath
from farbus.nvmeof.keys import LeaseKeys, TlsKey, tls_key_of
from farbus.nvmeof.parts import Attach, InitiatorParts
from farbus.nvmeof.paths import PathErrors, Reconnects, figures
from farbus.nvmeof.sequences import steps_of
from tests.linux.nvme_contract import keeps_its_promise, keeps_its_promise_by_tls


async def run(order: str, program: str, given: dict[str, Any]) -> dict[str, Any]:
    """Do what is ordered."""
    clock = SystemClock()
    nvme = KernelNvme(program=program)
    parts = InitiatorParts(
        nvme=nvme, mapper=KernelDeviceMapper(), holders=KernelHolders(clock=clock), uevents=KernelUevents(),
        clock=clock, tls_keys=KernelTlsKeys(),
    )  # fmt: skip
    work = msgspec.convert(given["work"], Attach) if "work" in given else None
    hosts, secret = given.get("keys", {}), given.get("secret", "")
    keys = {
        one.name.lease: LeaseKeys(
            host=hosts.get(one.name.lease, ""), tls=tls_key_of(secret, one.name) if secret else None
        )
        for one in (work.connections if work is not None else ())
    }
    steps = steps_of(parts, work, keys=keys) if work is not None else ()
    result: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    if order == "attach":
        for step in steps:
            began = time.monotonic()
            done = await step.observe(None)
            result |= await step.do() if done is None else done
            seconds[step.kind] = seconds.get(step.kind, 0.0) + time.monotonic() - began
    elif order == "mend":
        assert work is not None
        (connection,) = work.connections
        for address in connection.addresses:
            step = MendPath(parts=parts, work=work, connection=connection, address=address)
            if await step.observe(None) is None:
                await step.do()
    elif order == "adopt":
        found = [await step.observe({}) for step in steps]
        result = {"found": [one is not None for one in found]}
    elif order == "detach":
        for step in reversed(steps):
            began = time.monotonic()
            await step.compensate()
            seconds[step.kind] = seconds.get(step.kind, 0.0) + time.monotonic() - began
    elif order == "look":
        cli = await nvme.cli()
        result = {"version": list(cli.version), "controllers": msgspec.to_builtins(nvme.controllers())}
    elif order == "contract":
        assert work is not None
        (connection,) = work.connections
        nobody = transport_address(given["nobody"])
        key, other_key = hosts.get(connection.name.lease, ""), hosts.get("other", "")
        await keeps_its_promise(nvme, connection, key=key, other_key=other_key, nobody=nobody)
    elif order == "contract by tls":
        assert work is not None
        (connection,) = work.connections
        assert parts.tls_keys is not None
        key = hosts.get(connection.name.lease, "")
        await keeps_its_promise_by_tls(nvme, parts.tls_keys, connection, key=key)
    elif order == "borrow":
        assert work is not None
        theirs, own = work.connections
        result = {"said": await borrow(parts, theirs, tls_key_of(secret, own.name))}
    elif order == "discover":
        for persistent in (False, True):
            found_there = await nvme.discover(
                transport_address(given["at"]),
                host_nqn=given["host_nqn"],
                host_id=given["host_id"],
                persistent=persistent,
            )
        result = {"records": msgspec.to_builtins(found_there)}
    elif order == "comes back":
        result = {"reconnects": await comes_back(nvme, given["at"])}
    elif order == "errors":
        errors = PathErrors()
        await errors.look(nvme)
        result = {"errors": {one.name: errors.of(one.name) for one in nvme.controllers()}}
    return {"result": result, "seconds": seconds}


async def borrow(parts: InitiatorParts, theirs: Connection, key: TlsKey) -> str:
    """Connect to a lease's subsystem by the key of TLS of another one's; return what the kernel says of it."""
    assert parts.tls_keys is not None
    await parts.tls_keys.add(key.identity, key.psk)
    (serial,) = (one.serial for one in parts.tls_keys.held() if one.identity == key.identity)
    name, address = theirs.name, theirs.addresses[0]
    asked = (
        f"transport=tcp,traddr={address.address},trsvcid={address.service},nqn={theirs.nqn},hostnqn={name.host_nqn},"
        f"hostid={name.host_id},tls,tls_key={serial}"
    )
    fabrics = os.open("/dev/nvme-fabrics", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.write(fabrics, asked.encode())
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    finally:
        os.close(fabrics)
        for one in parts.nvme.controllers():
            await parts.nvme.disconnect(one)
        await parts.tls_keys.remove(key.identity.name)
    return "connected"


async def comes_back(nvme: KernelNvme, at: str) -> int:
    """Return how often the path at an address has come back, once it has."""
    counts = Reconnects()
    async with KernelUevents().listen() as messages:
        os.mkdir("/run/listening")
        async for message in messages:
            counts.hear(message)
            for path in figures(nvme, counts):
                if str(path.address) == at and path.reconnects:
                    return path.reconnects
    return 0


def main() -> None:
    """Do one order."""
    given = json.load(sys.stdin)
    try:
        answer = asyncio.run(run(sys.argv[1], sys.argv[2], given))
    except FarbusError as error:
        answer = {"error": type(error).__name__, "says": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
