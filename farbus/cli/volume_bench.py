"""``farbus volume bench``: what a volume brings on the node that has it, beside what was promised, and its drives.

fio measures where it runs: on the node, as root, in a process of the person
who asked.  An agent has no part in it beyond attaching: its sandbox and its
share of the processor are not for measurements, and a daemon of root's that
runs them at a word from elsewhere is one more thing to guard.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from farbus.cli.following import say
from farbus.cli.listing import Column, choose
from farbus.cli.volume_watch import VolumeWatch, is_attached, is_detached
from farbus.errors import Conflict, FarbusError, InvalidInput, NotPermitted, Unavailable
from farbus.linux.block import device_below
from farbus.linux.filesystems import KernelFileSystems, described
from farbus.linux.fio import FioJob, FioResult, Pattern, check_fio, fio_labels, run_fio
from farbus.model.device import DeviceStatus
from farbus.model.quantity import format_bytes
from farbus.model.states import VolumeState
from farbus.model.value import Value
from farbus.model.volume import AttachRequest, StorageUse, VolumeStatus

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

MIB = 2**20

UNTOUCHED_BYTES = MIB
"""What writing leaves alone at the beginning: what holds nothing there counts as empty also afterwards."""

RAMP = 0.2
"""What is not counted before each measurement, as a part of it: queues fill, drives wake."""


class Measured(Value, frozen=True, kw_only=True):
    """One figure; ``reference`` is what the drives gave when their node measured them, where that can be compared."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    promised: float | None = None
    labels: dict[str, Any] = {}

    @property
    def row(self) -> dict[str, Any]:
        """As benchmarks print it."""
        ratio = self.value / self.reference if self.reference else None
        return {
            "name": self.name, "value": round(self.value, 1), "unit": self.unit,
            "reference": self.reference, "ratio": None if ratio is None else round(ratio, 4),
            "promised": self.promised, **self.labels,
        }  # fmt: skip


class _What(Value, frozen=True, kw_only=True):
    """One measurement: its figures are of bytes, or of requests and how long one takes."""

    name: str
    pattern: Pattern
    block_bytes: int
    depth: int
    of_bytes: bool = False
    says: str


READS = (
    _What(
        name="sequential_read", pattern=Pattern.READ, block_bytes=MIB, depth=16, of_bytes=True, says="sequential reads"
    ),
    _What(name="random_read", pattern=Pattern.RANDOM_READ, block_bytes=4096, depth=32, says="random reads, 32 at once"),
    _What(name="random_read", pattern=Pattern.RANDOM_READ, block_bytes=4096, depth=1, says="random reads, one by one"),
)
WRITES = (
    _What(
        name="sequential_write", pattern=Pattern.WRITE, block_bytes=MIB, depth=16, of_bytes=True,
        says="sequential writes",
    ),
    _What(
        name="random_write", pattern=Pattern.RANDOM_WRITE, block_bytes=4096, depth=32, says="random writes, 32 at once"
    ),
)  # fmt: skip


def _cell(figure: float | None, unit: str) -> str:
    if figure is None:
        return ""
    return f"{format_bytes(round(figure))}/s" if unit == "B/s" else f"{figure:,.0f} {unit}"


BENCH_COLUMNS: tuple[Column[Measured], ...] = (
    Column("WHAT", lambda one: one.name),
    Column("BLOCK", lambda one: format_bytes(one.labels["block_bytes"]), right=True),
    Column("AT ONCE", lambda one: str(one.labels["depth"]), right=True),
    Column("MEASURED", lambda one: _cell(one.value, one.unit), right=True),
    Column("PROMISED", lambda one: _cell(one.promised, one.unit), right=True),
    Column("OF DRIVES", lambda one: _cell(one.reference, one.unit), right=True),
)


def figures_of(
    what: _What, result: FioResult, *, promised: int = 0, drives_bytes_per_s: int = 0
) -> tuple[Measured, ...]:
    """Return what one run of fio has told."""
    labels = fio_labels(
        FioJob(path="", pattern=what.pattern, block_bytes=what.block_bytes, depth=what.depth, seconds=0)
    )
    if what.of_bytes:
        # Drives are measured by reading.
        reference = drives_bytes_per_s if what.pattern is Pattern.READ else 0
        return (
            Measured(
                name=what.name, value=result.bytes_per_s, unit="B/s", labels=labels,
                reference=reference or None, promised=promised or None,
            ),
        )  # fmt: skip
    found = [Measured(name=f"{what.name}_iops", value=result.iops, unit="1/s", labels=labels)]
    if what.depth == 1:
        found += [
            Measured(name=f"{what.name}_mean", value=result.mean_us, unit="us", labels=labels),
            Measured(name=f"{what.name}_p99", value=result.p99_us, unit="us", labels=labels),
        ]
    return tuple(found)


def drives_rate(status: VolumeStatus, devices: Iterable[DeviceStatus]) -> int:
    """Return what the drives of a volume bring together, in bytes a second: a stripe goes as fast as its slowest; 0
    where it is not known of all."""
    known: Mapping[str, int] = {each.device.id: each.device.bandwidth_bytes_per_s for each in devices}
    rates = [known.get(drive, 0) for part in status.parts for drive in part.drives]
    return min(rates, default=0) * len(rates)


class VolumeBench:
    """Measures one volume on this node; ``fio`` measures a job."""

    def __init__(
        self,
        name: str,
        *,
        seconds: float,
        write: bool,
        quiet: bool,
        is_root: bool | None = None,
        fio: Callable[[FioJob], FioResult] = run_fio,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._write = write
        self._quiet = quiet
        self._is_root = os.geteuid() == 0 if is_root is None else is_root
        self._fio = fio
        self.node = ""
        self.device = ""

    async def run(self, client: ClusterClient) -> tuple[Measured, ...]:
        """Measure it where it is attached; attach it for as long as that takes where it is not."""
        self.node = (await client.cluster_info()).node
        again = shlex.join(["farbus", "volume", "bench", self._name])
        if not self.node:
            raise InvalidInput("bench measures on the node that it runs on", hint=f"run it on a node: {again}")
        if not self._is_root:
            raise NotPermitted("block devices are read by root", hint=f"sudo {again}")
        check_fio()
        listed = await client.list_volumes()
        (status,) = choose(listed, [self._name], key=lambda each: each.name, noun="volume", command="volume list")
        rate = drives_rate(status, await client.list_devices())
        if status.attached_to == self.node:
            return await self._measure(status, rate)
        if status.attached_to:
            raise Conflict(
                f"volume {self._name} is attached to node {status.attached_to}, and this is node {self.node}",
                hint=f"run it there: {again}",
            )
        if status.job or status.state is not VolumeState.AVAILABLE:
            waits = f"is to be used by job {status.job}" if status.job else f"is {status.state}"
            raise Conflict(f"volume {self._name} {waits}", hint="farbus volume list says more")
        return await self._attached(client, rate)

    async def _attached(self, client: ClusterClient, rate: int) -> tuple[Measured, ...]:
        name = self._name
        request = AttachRequest(volume=name, node=self.node, use=StorageUse.RAW, read_only=not self._write)
        attach = VolumeWatch(name, lambda client: client.attach_volume(request), is_attached, quiet=self._quiet)
        detach = VolumeWatch(name, lambda client: client.detach_volume(name), is_detached, quiet=self._quiet)
        try:
            status = await attach.run(client)
            if status.error:
                raise FarbusError(f"volume {name}: {status.error}", hint=status.hint)
            return await self._measure(msgspec.structs.replace(status, use=StorageUse.RAW.value), rate)
        finally:
            if attach.goes_on:
                await detach.run(client)

    async def _measure(self, status: VolumeStatus, rate: int) -> tuple[Measured, ...]:
        if not status.path:
            raise Unavailable(f"volume {self._name}: where it is on this node is not known yet", hint="try again")
        self.device = device_below(status.path)
        if self._write:
            await self._check_empty(status)
        found: list[Measured] = []
        for what in READS + (WRITES if self._write else ()):
            say(f"{self._name}: {what.says}, {self._seconds:g} s", quiet=self._quiet)
            job = FioJob(
                path=self.device, pattern=what.pattern, block_bytes=what.block_bytes, depth=what.depth,
                seconds=self._seconds, ramp_s=self._seconds * RAMP,
                offset_bytes=UNTOUCHED_BYTES if what.pattern.writes else 0,
            )  # fmt: skip
            result = await asyncio.to_thread(self._fio, job)
            found += figures_of(
                what, result, promised=status.bandwidth_bytes_per_s, drives_bytes_per_s=rate
            )  # fmt: skip
        return tuple(found)

    async def _check_empty(self, status: VolumeStatus) -> None:
        """Raise :class:`Conflict` where writing could change what somebody wants."""
        if status.use != StorageUse.RAW:
            raise Conflict(
                f"volume {self._name} is attached as {status.use}: it is not written to", hint="leave --write out"
            )
        there = await KernelFileSystems().signature(self.device)
        if there is not None:
            raise Conflict(
                f"volume {self._name} holds {described(there)}: it is not written to", hint="leave --write out"
            )
