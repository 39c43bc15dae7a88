"""Plans that begin and end, over and over: memory and descriptors must stay where they are."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from farbus.agent.actions import Answer, Report
from farbus.agent.bench.plans import Herd
from farbus.agent.bench.rows import mib, row
from farbus.agent.bench.site import new_site
from farbus.agent.events import (
    ClientReleased,
    ClientRequested,
    DevicesReleased,
    DevicesRequested,
    PreparedLease,
    SessionOpened,
    StartRequested,
    TaskExited,
    TaskRun,
)
from farbus.agent.executor import Executor
from farbus.agent.journal import KEPT_STEPS, Journal
from farbus.agent.machine import NodeMachine
from farbus.agent.service import AgentService
from farbus.errors import FarbusError
from farbus.linux.clock import FakeClock
from farbus.linux.limits import raise_descriptor_limit
from farbus.linux.usage import ProcessUsage, own_usage
from farbus.model.device import Route
from farbus.model.lease import Lease, LeasedDevice

CLUSTER_NODES = 16

AT_ONCE = 64
"""Plans under way at a time."""

STEPS_PER_CYCLE = 5
"""Prepare and unprepare on both sides, and the start; each is two records of the journal."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory: its fsync costs nothing


async def measure_agent_cycles(*, cycles: int) -> list[dict[str, Any]]:
    """Lead plans through an agent's machine, executor and journal, on a pretended machine and clock.

    The journal is a real file in memory, so that what is measured is the
    agent and not a disk.  Both sides of each lease are on the one node.
    """
    with tempfile.TemporaryDirectory(prefix="farbus-bench-", dir=_memory()) as state:
        journal, _ = await Journal.open(Path(state) / "journal.db", boot_id="bench")
        try:
            async with asyncio.TaskGroup() as group:
                node = _Node(journal, group)
                # History is kept up to a limit: the file is at its size after that.
                warm_up = min(cycles // 5, 2 * KEPT_STEPS // STEPS_PER_CYCLE)
                result = await _flatness("agent_cycles", node.cycle, cycles=cycles, warm_up=warm_up, watch=own_usage)
                size = _size_of(Path(state))
                node.stop()
        finally:
            await journal.close()
    return [{**one, "journal_mib": mib(size)} for one in result]


async def measure_cluster_cycles(*, cycles: int) -> list[dict[str, Any]]:
    """Lead jobs through a scheduler and light agents, over the real protocol."""
    raise_descriptor_limit()
    async with new_site() as site:
        herd = Herd(site, nodes=CLUSTER_NODES, task_s=0.0)
        await site.start_scheduler()
        await herd.start()
        try:
            async with site.client() as client:

                async def cycle(_number: int) -> None:
                    await herd.run_job(client)

                return await _flatness(
                    "cluster_cycles",
                    cycle,
                    cycles=cycles,
                    warm_up=cycles // 5,
                    watch=site.scheduler_usage,
                    nodes=CLUSTER_NODES,
                )
        finally:
            await herd.stop()


async def _flatness(
    name: str,
    cycle: Callable[[int], Awaitable[None]],
    *,
    cycles: int,
    warm_up: int,
    watch: Callable[[], ProcessUsage],
    **labels: Any,
) -> list[dict[str, Any]]:
    """Run ``cycles`` cycles; compare what the process uses after ``warm_up`` of them and at the end."""

    async def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            await cycle(number)

    async def lead(first: int, until: int) -> tuple[ProcessUsage, float]:
        numbers = iter(range(first, until))
        async with asyncio.TaskGroup() as group:
            for worker in range(AT_ONCE):
                group.create_task(work(numbers), name=f"cycles {worker}")
        return watch(), time.perf_counter()

    start, began = watch(), time.perf_counter()
    first, first_at = await lead(0, warm_up)
    last, last_at = await lead(warm_up, cycles)
    rest = cycles - warm_up
    labels = {"cycles": cycles, "after_warm_up_of": warm_up, "at_once": AT_ONCE, **labels}
    return [
        row(
            f"{name}_rss_growth_mib",
            mib(last.rss_bytes - first.rss_bytes),
            "MiB",
            first_rss_mib=mib(first.rss_bytes),
            last_rss_mib=mib(last.rss_bytes),
            bytes_per_cycle=round((last.rss_bytes - first.rss_bytes) / rest, 1),
            **labels,
        ),
        row(
            f"{name}_descriptor_growth",
            last.descriptors - first.descriptors,
            "descriptors",
            first=first.descriptors,
            last=last.descriptors,
            **labels,
        ),
        row(
            f"{name}_cpu_us",
            1e6 * (last.cpu_s - first.cpu_s) / rest,
            "us/cycle",
            reference=round(1e6 * (first.cpu_s - start.cpu_s) / warm_up, 1),
            reference_name="while warming up",
            wall_us=round(1e6 * (last_at - first_at) / rest, 1),
            wall_us_warming_up=round(1e6 * (first_at - began) / warm_up, 1),
            **labels,
        ),
    ]


def _memory() -> Path | None:
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else None


def _size_of(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in directory.iterdir())


class _PretendedHost:
    """Devices and tasks that are there at once (DeviceHost and TaskHost of farbus.agent.executor)."""

    async def prepare_devices(self, lease: Lease) -> str:
        return "127.0.0.1:1"

    async def unprepare_devices(self, lease_id: str) -> None:
        pass

    async def prepare_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...]
    ) -> dict[str, str]:
        return {"FARBUS_SESSION": f"/run/{job}"}

    async def unprepare_client(self, *, job: str, task: str) -> None:
        pass

    async def start(self, run: TaskRun, environment: dict[str, str]) -> None:
        pass

    async def stop(self, *, job: str, task: str, grace_s: float, reason: str) -> None:
        pass

    async def adopt_devices(self, lease: Lease, endpoint: str) -> bool:
        return True

    async def adopt_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...], environment: dict[str, str]
    ) -> bool:
        return True

    async def adopt(self, run: TaskRun) -> bool:
        return True

    def forget(self, *, job: str, task: str) -> None:
        pass

    async def end_strangers(self, recorded: Collection[str] = ()) -> tuple[str, ...]:
        return ()


class _Node:
    """An agent's middle, with the scheduler's part played by :meth:`cycle`."""

    def __init__(self, journal: Journal, group: asyncio.TaskGroup) -> None:
        self._clock = FakeClock()
        self._service = AgentService(machine=NodeMachine(node="bench"), journal=journal, clock=self._clock)
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._free = [f"GPU-{index}" for index in range(AT_ONCE)]
        host = _PretendedHost()
        executor = Executor(
            journal=journal, devices=host, tasks=host, clock=self._clock, group=group, done=self._service.post
        )
        self._task = group.create_task(self._service.run(executor, self._hear), name="events")
        self._service.post(SessionOpened(lease_ttl_s=15.0, now=self._clock.monotonic()))

    def stop(self) -> None:
        self._task.cancel()

    def _hear(self, report: Report) -> None:
        if isinstance(report, Answer):
            self._answers.pop(report.command).set_result(report)

    async def _command(self, number: int, kind: type[Any], **fields: Any) -> Answer:
        command = f"{kind.__name__}-{number}"
        answer = self._answers[command] = asyncio.get_running_loop().create_future()
        self._service.post(kind(command=command, **fields))
        given: Answer = await answer
        if not given.ok:
            raise FarbusError(f"{command}: {given.error}")
        return given

    async def cycle(self, number: int) -> None:
        """Prepare, start, exit, unprepare, release."""
        job, task = f"j{number}", "main.0"
        # One that no cycle under way has: leases of one device don't overlap.
        device = self._free.pop()
        lease = Lease(
            id=f"l{number}",
            job=job,
            task=task,
            user="bench",
            client_node="bench",
            device_node="bench",
            route=Route.REMOTE,
            devices=(LeasedDevice(device=device, epoch=number),),
            term=1,
            secret="5e" * 32,
        )
        now = self._clock.monotonic()
        devices = await self._command(number, DevicesRequested, lease=lease, now=now)
        prepared = PreparedLease(lease=lease, endpoint=devices.endpoint)
        await self._command(number, ClientRequested, job=job, task=task, user="bench", leases=(prepared,), now=now)
        run = TaskRun(job=job, task=task, user="bench", command=("bench",))
        await self._command(number, StartRequested, run=run)
        await self._clock.advance(0.001)
        self._service.post(TaskExited(job=job, task=task, exit_code=0))
        await self._command(number, ClientReleased, job=job, task=task)
        await self._command(number, DevicesReleased, lease_id=lease.id)
        self._free.append(device)
