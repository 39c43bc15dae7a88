"""All agents come back at once."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from farbus.agent.bench.rows import mib, row
from farbus.agent.bench.site import light_node, new_site
from farbus.agent.light import LightAgent
from farbus.linux.limits import raise_descriptor_limit
from farbus.linux.usage import own_usage

STORM_S = 10.0
"""Aim, on two processors that scheduler and agents share."""

WITHIN_S = 120.0
"""Longest wait for all of them."""


async def measure_storm(*, agents: int) -> list[dict[str, Any]]:
    """Kill a scheduler with all its agents connected; measure from the kill until each has its new welcome."""
    # A connection each, in the scheduler and here.
    raise_descriptor_limit()
    async with new_site() as site:
        herd = [site.light_agent(light_node(number, gpus=4)) for number in range(agents)]
        await site.start_scheduler()
        assert site.scheduler is not None
        running = [asyncio.create_task(agent.run(), name=agent.node.name) for agent in herd]
        try:
            first_s = await _until_welcomed(herd, 1)
            own_before = own_usage()
            began = time.perf_counter()
            site.scheduler.signal(signal.SIGKILL)
            await site.scheduler.wait()
            await site.start_scheduler()
            accepts_s = time.perf_counter() - began
            await _until_welcomed(herd, 2)
            seconds = time.perf_counter() - began
            scheduler, own = site.scheduler_usage(), own_usage()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return [
        row(
            "reconnect_storm_s",
            seconds,
            "s",
            reference=STORM_S,
            agents=agents,
            scheduler_accepts_after_s=round(accepts_s, 3),
            first_connect_s=round(first_s, 3),
            scheduler_cpu_s=round(scheduler.cpu_s, 3),
            agents_cpu_s=round(own.cpu_s - own_before.cpu_s, 3),
            scheduler_rss_mib=mib(scheduler.rss_bytes),
            scheduler_descriptors=scheduler.descriptors,
            most_dials_of_one_agent=max(agent.dials for agent in herd),
        )
    ]


async def _until_welcomed(agents: list[LightAgent], times: int) -> float:
    began = time.perf_counter()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(agent.welcomed(times) for agent in agents))
    return time.perf_counter() - began
