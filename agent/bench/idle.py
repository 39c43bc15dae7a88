"""What an agent costs while nothing happens."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from farbus.agent.bench.rows import mib, row
from farbus.agent.bench.site import new_site
from farbus.linux.usage import ProcessUsage, usage_of, usage_of_children

CPU_PERCENT = 0.3
"""Aim: of one processor, all threads of the agent together."""

RSS_MB = 80.0
"""Aim, in units of 10^6 bytes."""

SETTLE_S = 5.0
"""After the session is open: first inventory, first telemetry, connections of the gRPC library."""


async def measure_idle(*, seconds: float, settle_s: float = SETTLE_S) -> list[dict[str, Any]]:
    """Watch one agent without jobs for ``seconds``.

    Its settings are the defaults: devices of this machine, heartbeats every 3 s.
    """
    async with new_site() as site:
        await site.start_scheduler()
        agent = await site.start_agent("idle")
        try:
            await asyncio.sleep(settle_s)
            before, children_before = usage_of(agent.pid), usage_of_children(agent.pid)
            await asyncio.sleep(seconds)
            after, children_after = usage_of(agent.pid), usage_of_children(agent.pid)
        finally:
            await site.stop(agent)
    labels = {"over_s": seconds, "threads": len(after.threads), "descriptors": after.descriptors}
    rows = [
        row(
            "idle_cpu_percent",
            100 * (after.cpu_s - before.cpu_s) / seconds,
            "%",
            reference=CPU_PERCENT,
            by_thread=_by_thread(before, after, seconds),
            **labels,
        ),
        row(
            "idle_rss_mb",
            after.rss_bytes / 1e6,
            "MB",
            reference=RSS_MB,
            private_mb=round(after.private_bytes / 1e6, 2),
            **labels,
        ),
        row(
            "idle_ended_children_cpu_percent",
            100 * (after.ended_children_cpu_s - before.ended_children_cpu_s) / seconds,
            "%",
            over_s=seconds,
        ),
    ]
    used_before = {child.pid: child.cpu_s for child in children_before}
    for child in children_after:
        rows.append(
            row(
                "idle_child_cpu_percent",
                100 * (child.cpu_s - used_before.get(child.pid, 0.0)) / seconds,
                "%",
                process=child.name,
                rss_mib=mib(child.rss_bytes),
                private_mib=mib(child.private_bytes),
                over_s=seconds,
            )
        )
    return rows


def _by_thread(before: ProcessUsage, after: ProcessUsage, seconds: float) -> str:
    used: defaultdict[str, float] = defaultdict(float)
    for usage, sign in ((after, 1), (before, -1)):
        for thread in usage.threads:
            used[thread.name] += sign * thread.cpu_s
    busiest = sorted(((spent, name) for name, spent in used.items()), reverse=True)
    return " ".join(f"{name}={100 * spent / seconds:.3f}%" for spent, name in busiest[:5])
