"""``farbus bench nvmeof``: what a namespace costs that came by our sequences, beside the same one made by hand.

Target and initiator are this machine (TCP over the loopback), the drives are memory whose bandwidth is set: what is
measured is what is between drive and program, and what it takes to put that there.

* ``data_path_*``: the same measurement in turn on a namespace that was exported and attached by
  :mod:`farbus.nvmeof.target` and :mod:`farbus.nvmeof.sequences`, and on one whose kernel objects were made by plain
  writes and ``nvme connect``.  The ratio is the median of those of each pair; at 1 nothing of ours is in the way.
* ``composed_read``: a stripe of several slow drives, each by a connection of its own, beside one that is like them; the
  reference is as many times the one.
* ``step_s``: how long each step of exporting, attaching, detaching and withdrawing takes, and what the same objects
  take by hand, to be made; medians.

It needs root, Linux's nvmet, nvme-tcp and null_blk, nvme-cli and fio, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from farbus.errors import Unavailable
from farbus.linux.block import KernelBlockDevices
from farbus.linux.children import run_tool
from farbus.linux.clock import SystemClock
from farbus.linux.device_mapper import KernelDeviceMapper
from farbus.linux.fio import FioJob, FioResult, Pattern, fio_labels, run_fio
from farbus.linux.holders import KernelHolders
from farbus.linux.null_block import null_blocks
from farbus.linux.nvme import KernelNvme
from farbus.linux.nvmet import CONFIGFS, KernelNvmet, perform
from farbus.linux.uevents import KernelUevents
from farbus.model.nvmeof import (
    Connection,
    ExpectedNamespace,
    Export,
    ExportedNamespace,
    SubsystemName,
    namespace_identity,
    transport_address,
)
from farbus.nvmeof.composition import plan_stripe
from farbus.nvmeof.parts import Attach, InitiatorParts
from farbus.nvmeof.sequences import AttachStep
from farbus.nvmeof.sequences import steps_of as attach_steps
from farbus.nvmeof.target import AnyTargetStep, ExportWork, TargetParts
from farbus.nvmeof.target import steps_of as export_steps

MIB = 2**20

ADDRESS = transport_address("tcp://127.0.0.1:4469")
BY_HAND = transport_address("tcp://127.0.0.1:4468")
"""Where nobody who uses NVMe over Fabrics as it is registered listens."""

HAND_NQN = "nqn.2026-11.org.example:by-hand"
HAND_PORT = "4468"

DRIVE_BYTES = 256 * MIB
SLOW_BYTES_PER_S = 16 * MIB
"""Of each drive that is composed: what an emulated machine brings over its loopback many times over."""
STRIPE = 3

MEASUREMENTS = (
    (Pattern.RANDOM_READ, 4096, 1),
    (Pattern.RANDOM_WRITE, 4096, 1),
    (Pattern.RANDOM_READ, 4096, 16),
    (Pattern.READ, 128 * 1024, 8),
    (Pattern.WRITE, 128 * 1024, 8),
)
"""Latency, requests side by side, and bandwidth: what fio's own examples measure."""


_Step = AnyTargetStep | AttachStep


class Times:
    """How long each step took, each time."""

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def of(self, verb: str, step: str) -> Iterator[None]:
        """Time one."""
        began = time.perf_counter()
        yield
        self.seconds[verb, step].append(time.perf_counter() - began)

    async def forward(self, verb: str, steps: Sequence[_Step]) -> dict[str, str]:
        """Do steps in order; return what they found."""
        result: dict[str, str] = {}
        for step in steps:
            with self.of(verb, step.kind):
                found = await step.observe(None)
                result |= await step.do() if found is None else found
        return result

    async def backward(self, verb: str, steps: Sequence[_Step]) -> None:
        """Undo them."""
        for step in reversed(steps):
            with self.of(verb, step.kind):
                await step.compensate()

    def rows(self) -> list[dict[str, Any]]:
        """Return the medians."""
        return [
            _row("step_s", statistics.median(taken), "s", verb=verb, step=step, times=len(taken))
            for (verb, step), taken in self.seconds.items()
        ]


class Bench:
    """The doors of one machine, which is target and initiator."""

    def __init__(self, times: Times) -> None:
        clock = SystemClock()
        self._target = TargetParts(nvmet=KernelNvmet(), blocks=KernelBlockDevices())
        self._initiator = InitiatorParts(
            nvme=KernelNvme(), mapper=KernelDeviceMapper(), holders=KernelHolders(clock=clock),
            uevents=KernelUevents(), clock=clock,
        )  # fmt: skip
        self._times = times

    @contextlib.asynccontextmanager
    async def attached(self, devices: Sequence[str], *, name: str, size_bytes: int) -> AsyncIterator[str]:
        """Export devices, each by a lease of its own, attach them, and yield the path of the whole."""
        exports = [
            Export(
                name=SubsystemName(lease=f"bench-{name}-{number}", epoch=1),
                namespaces=(
                    ExportedNamespace(device=device, identity=namespace_identity(f"bench-{name}-{number}")),
                ),
                addresses=(ADDRESS,),
            )
            for number, device in enumerate(devices)
        ]  # fmt: skip
        expected = [
            ExpectedNamespace(identity=export.namespaces[0].identity, size_bytes=size_bytes) for export in exports
        ]
        work = Attach(
            id=f"bench-{name}",
            connections=tuple(
                Connection(name=export.name, addresses=(ADDRESS,), namespaces=(namespace,))
                for export, namespace in zip(exports, expected, strict=True)
            ),
            stripe=plan_stripe(f"bench-{name}", expected) if len(devices) > 1 else None,
        )
        offered: list[Sequence[_Step]] = []
        attaching: Sequence[_Step] = attach_steps(self._initiator, work)
        try:
            for export in exports:
                offered.append(export_steps(self._target, ExportWork(export=export)))
                await self._times.forward("export", offered[-1])
            yield (await self._times.forward("attach", attaching))["path"]
        finally:
            await self._times.backward("detach", attaching)
            for exporting in reversed(offered):
                await self._times.backward("withdraw", exporting)


@contextlib.contextmanager
def by_hand(device: str, times: Times) -> Iterator[str]:
    """Make the same kernel objects by plain writes to configfs, connect, and yield the block device's path."""
    identity = namespace_identity("bench-by-hand")
    place = f"nvmet/subsystems/{HAND_NQN}"
    space, port = f"{place}/namespaces/1", f"nvmet/ports/{HAND_PORT}"
    try:
        with times.of("by hand", "all"):
            perform(CONFIGFS, [
                ("mkdir", place), ("write", f"{place}/attr_allow_any_host", "1"),
                ("mkdir", space), ("write", f"{space}/device_path", device),
                ("write", f"{space}/device_uuid", identity.uuid), ("write", f"{space}/device_nguid", identity.nguid),
                ("write", f"{space}/enable", "1"),
                ("mkdir", port), ("write", f"{port}/addr_adrfam", "ipv4"), ("write", f"{port}/addr_trtype", "tcp"),
                ("write", f"{port}/addr_traddr", BY_HAND.address), ("write", f"{port}/addr_trsvcid", HAND_PORT),
                ("link", f"{port}/subsystems/{HAND_NQN}", place),
            ])  # fmt: skip
            connect = ["nvme", "connect", "-t", "tcp", "-a", BY_HAND.address, "-s", HAND_PORT, "-n", HAND_NQN]
            done = run_tool(connect)
            if done.code:
                raise Unavailable(f"nvme connect: {(done.stderr or done.stdout).strip()}")
            run_tool(["udevadm", "settle"])
        yield identity.by_id
    finally:
        run_tool(["nvme", "disconnect", "-n", HAND_NQN])
        perform(CONFIGFS, [
            ("write?", f"{space}/enable", "0"), ("unlink", f"{port}/subsystems/{HAND_NQN}"), ("rmdir", port),
            ("rmdir", space), ("rmdir", place),
        ])  # fmt: skip


def run(*, quick: bool) -> dict[str, Any]:
    """Measure, and return what ``farbus bench`` prints."""
    return asyncio.run(_measure(seconds=1.0 if quick else 5.0, rounds=3 if quick else 7))


async def _measure(*, seconds: float, rounds: int) -> dict[str, Any]:
    times = Times()
    bench = Bench(times)
    rows: list[dict[str, Any]] = []
    await KernelNvmet().load([ADDRESS.transport])
    run_tool(["modprobe", "nvme-tcp"])
    with null_blocks(("farbus-bench-0", "farbus-bench-1"), size_bytes=DRIVE_BYTES) as (ours, theirs):
        async with bench.attached([ours], name="path", size_bytes=DRIVE_BYTES) as path:
            with by_hand(theirs, times) as other:
                for pattern, block_bytes, depth in MEASUREMENTS:
                    _say(f"{rounds} pairs of {pattern} by {block_bytes} bytes, {depth} at a time")
                    rows.append(await _data_path(path, other, pattern, block_bytes, depth, seconds, rounds))
        _say(f"{rounds - 1} times attached and detached, and made by hand")
        for _ in range(rounds - 1):
            async with bench.attached([ours], name="path", size_bytes=DRIVE_BYTES):
                pass
            with by_hand(theirs, times):
                pass
    _say(f"{rounds} pairs of one drive and {STRIPE} as one")
    names = tuple(f"farbus-bench-{number}" for number in range(1 + STRIPE))
    with null_blocks(names, size_bytes=DRIVE_BYTES, bytes_per_s=SLOW_BYTES_PER_S) as drives:
        rows.append(await _composed(bench, drives, seconds, rounds))
    return {"bench": "nvmeof", "results": [*rows, *times.rows()]}


async def _data_path(
    path: str, other: str, pattern: Pattern, block_bytes: int, depth: int, seconds: float, rounds: int
) -> dict[str, Any]:
    pairs: list[tuple[FioResult, FioResult]] = []
    job = FioJob(path=path, pattern=pattern, block_bytes=block_bytes, depth=depth, seconds=seconds, ramp_s=seconds / 4)
    for number in range(rounds):
        # In turn, and each first as often: what else the machine does meets both.
        first, second = (path, other) if number % 2 == 0 else (other, path)
        done = {each: await asyncio.to_thread(run_fio, replace(job, path=each)) for each in (first, second)}
        pairs.append((done[path], done[other]))
    ratio = statistics.median(ours.iops / theirs.iops for ours, theirs in pairs)
    value, reference = (statistics.median(pair[side].iops for pair in pairs) for side in (0, 1))
    return {
        **_row(f"data_path_{pattern}", value, "1/s", reference=reference, ratio=ratio),
        "mean_us": round(statistics.median(ours.mean_us for ours, _ in pairs), 1),
        "p99_us": round(statistics.median(ours.p99_us for ours, _ in pairs), 1),
        "reference_mean_us": round(statistics.median(theirs.mean_us for _, theirs in pairs), 1),
        "pairs": rounds,
        **fio_labels(job),
    }


async def _composed(bench: Bench, drives: Sequence[str], seconds: float, rounds: int) -> dict[str, Any]:
    """Return what a stripe of all drives but the first reads in a second, beside as many times what the first does."""
    job = FioJob(path="", pattern=Pattern.READ, block_bytes=MIB, depth=8, seconds=seconds, ramp_s=seconds / 4)
    pairs: list[tuple[float, float]] = []
    alone, *members = drives
    async with (
        bench.attached([alone], name="single", size_bytes=DRIVE_BYTES) as one,
        bench.attached(members, name="composed", size_bytes=DRIVE_BYTES) as whole,
    ):
        for _ in range(rounds):
            single = await asyncio.to_thread(run_fio, replace(job, path=one))
            composed = await asyncio.to_thread(run_fio, replace(job, path=whole))
            pairs.append((composed.bytes_per_s, single.bytes_per_s))
    value, single_value = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    ratio = statistics.median(composed / (len(members) * single) for composed, single in pairs)
    return {
        **_row("composed_read", value, "B/s", reference=len(members) * single_value, ratio=ratio),
        "drives": len(members),
        "single_bytes_per_s": round(single_value),
        "drive_limit_bytes_per_s": SLOW_BYTES_PER_S,
        "pairs": rounds,
    }


def _say(what: str) -> None:
    """Tell how far it is, for whoever watches: it takes minutes."""
    sys.stderr.write(f"bench nvmeof: {what}\n")
    sys.stderr.flush()


def _row(
    name: str, value: float, unit: str, *, reference: float | None = None, ratio: float | None = None, **labels: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "reference": None if reference is None else round(reference, 4),
        "ratio": None if ratio is None else round(ratio, 4),
        **labels,
    }
