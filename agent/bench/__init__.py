"""``farbus bench agent``: what an agent costs while nothing happens, and what a cluster of them bears.

* ``idle_*``: one real agent as a service, connected to a real scheduler,
  each a process of its own, looked at from outside.
* ``reconnect_storm_s``: light agents (:mod:`farbus.agent.light`) over real
  mutual TLS; the scheduler is killed and started again on its ledger.
* ``submit_to_plan``: from a call of Submit to the plan's first command at an
  agent.
* ``*_cycles``: plans that begin and end over and over, through an agent's
  own parts on a pretended machine, and through a scheduler with light agents.

References are the aims that the project has set itself: a ratio of 1 or less
is good.  Wall times depend on what else the machine does, so processor times
stand beside them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from farbus.agent.bench.cycles import measure_agent_cycles, measure_cluster_cycles
from farbus.agent.bench.idle import measure_idle
from farbus.agent.bench.plans import measure_submit_to_plan
from farbus.agent.bench.storm import measure_storm

Measurement = Callable[..., Awaitable[list[dict[str, Any]]]]


def run(*, quick: bool) -> dict[str, Any]:
    """Measure, and return the benchmark's JSON form; ``quick`` keeps to some two minutes."""
    import uvloop  # noqa: PLC0415 - as the daemons have it

    # Each light agent would log each session.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(_measure(quick=quick))
    return {"bench": "agent", "results": results}


async def _measure(*, quick: bool) -> list[dict[str, Any]]:
    measurements: tuple[Measurement, ...] = (
        measure_idle,
        measure_storm,
        measure_submit_to_plan,
        measure_cluster_cycles,
        measure_agent_cycles,
    )
    machine = {"processors": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}
    rows: list[dict[str, Any]] = []
    for measure in measurements:
        rows += await measure(quick=quick)
    return [{**row, **machine} for row in rows]
