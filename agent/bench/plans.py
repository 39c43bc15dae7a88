"""From a submission to its plan."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from typing import Any

from farbus.agent.bench.rows import row
from farbus.agent.bench.site import Site, light_node, new_site
from farbus.agent.events import (
    ClientRequested,
    DevicesReleased,
    DevicesRequested,
    Event,
    StartRequested,
)
from farbus.api.client import ClusterClient
from farbus.errors import TimedOut
from farbus.linux.limits import raise_descriptor_limit
from farbus.model.job import Job, Requests, TaskGroup

GPU_SHARE = 4
"""One node in so many has GPUs, which the others use by remoting."""

GPUS = 4

BATCH = 100
"""Submissions under way at a time, over one connection."""

JOB_LENGTH_S = 0.1

PATIENCE_S = 90.0
"""Longest wait for all agents, or for one job."""


class Course:
    """What light agents heard of one job."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.planned: asyncio.Future[float] = loop.create_future()
        """When the first command of its plan came."""
        self.released: asyncio.Future[None] = loop.create_future()
        """Its devices were asked back: all else is over by then."""


class Herd:
    """Light agents that tell how jobs go."""

    def __init__(self, site: Site, *, nodes: int, task_s: float) -> None:
        self.agents = [
            site.light_agent(
                light_node(number, gpus=0 if number % GPU_SHARE else GPUS), task_s=task_s, heard=self._hear
            )
            for number in range(nodes)
        ]
        self._courses: defaultdict[str, Course] = defaultdict(Course)
        self._jobs: dict[str, str] = {}
        """Job of each lease."""
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return once all are welcome."""
        self._running = [asyncio.create_task(agent.run(), name=agent.node.name) for agent in self.agents]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(agent.welcomed(1) for agent in self.agents))

    async def stop(self) -> None:
        """End them."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def run_job(self, client: ClusterClient) -> float:
        """Submit a job and return, when it is over, the seconds from the call to the first command of its plan."""
        began = time.perf_counter()
        job_id, _ = await client.submit(GPU_JOB)
        # The plan may have come before the answer.
        course = self._courses[job_id]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await course.released
                planned = await course.planned
        except TimeoutError as error:
            status = await client.get_job(job_id)
            story = " -> ".join(status.story)
            raise TimedOut(
                f"job {job_id}: not over after {PATIENCE_S:g} s: {status.state} {status.reason} ({story})"
            ) from error
        del self._courses[job_id]
        return planned - began

    def _hear(self, _node: str, event: Event) -> None:
        match event:
            case DevicesRequested():
                self._jobs[event.lease.id] = event.lease.job
                self._heard_of(event.lease.job)
            case ClientRequested():
                self._heard_of(event.job)
            case StartRequested():
                self._heard_of(event.run.job)
            case DevicesReleased() if event.lease_id in self._jobs:
                self._courses[self._jobs.pop(event.lease_id)].released.set_result(None)

    def _heard_of(self, job_id: str) -> None:
        planned = self._courses[job_id].planned
        if not planned.done():
            planned.set_result(time.perf_counter())


GPU_JOB = Job(
    id="",
    name="light",
    user="",
    groups=(TaskGroup(name="main", command=("light",), requests=Requests(cpu_milli=1000, memory_bytes=2**30, gpus=1)),),
)


async def measure_submit_to_plan(*, nodes: int, jobs: int) -> list[dict[str, Any]]:
    """Submit in batches; measure from each call to the first command of its plan at an agent."""
    raise_descriptor_limit()
    async with new_site() as site:
        herd = Herd(site, nodes=nodes, task_s=JOB_LENGTH_S)
        await site.start_scheduler()
        await herd.start()
        times: list[float] = []
        try:
            async with site.client() as client:
                cpu_before, began = site.scheduler_usage().cpu_s, time.perf_counter()
                for first in range(0, jobs, BATCH):
                    batch = min(BATCH, jobs - first)
                    times += await asyncio.gather(*(herd.run_job(client) for _ in range(batch)))
                seconds = time.perf_counter() - began
                cpu_s = site.scheduler_usage().cpu_s - cpu_before
        finally:
            await herd.stop()
    labels = {"nodes": nodes, "jobs": jobs, "batch": BATCH, "job_length_s": JOB_LENGTH_S}
    parts = statistics.quantiles(times, n=100)
    return [
        row("submit_to_plan_p50_ms", 1000 * parts[49], "ms", **labels),
        row("submit_to_plan_p99_ms", 1000 * parts[98], "ms", **labels),
        row(
            "whole_jobs_per_s", jobs / seconds, "1/s", scheduler_cpu_ms_per_job=round(1000 * cpu_s / jobs, 3), **labels
        ),
    ]
