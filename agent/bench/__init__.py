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
from typing import Any

import structlog

from farbus.agent.bench.cycles import measure_agent_cycles, measure_cluster_cycles
from farbus.agent.bench.idle import measure_idle
from farbus.agent.bench.plans import measure_submit_to_plan
from farbus.agent.bench.storm import measure_storm


def run(*, quick: bool) -> dict[str, Any]:
    """Measure, and return the benchmark's JSON form; ``quick`` keeps to about a minute, all of it takes twenty."""
    import uvloop  # noqa: PLC0415 - as the daemons have it

    # Each light agent would log each session.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(_measure_quickly() if quick else _measure_fully())
    return {"bench": "agent", "results": results}


async def _measure_quickly() -> list[dict[str, Any]]:
    machine = _machine()
    rows = [
        *await measure_idle(seconds=20.0),
        *await measure_storm(agents=200),
        *await measure_submit_to_plan(nodes=100, jobs=600),
        *await measure_cluster_cycles(cycles=2_000),
        *await measure_agent_cycles(cycles=5_000),
    ]
    return [{**one, **machine} for one in rows]


async def _measure_fully() -> list[dict[str, Any]]:
    machine = _machine()
    rows = [
        *await measure_idle(seconds=120.0),
        *await measure_storm(agents=1_000),
        *await measure_submit_to_plan(nodes=500, jobs=5_000),
        *await measure_cluster_cycles(cycles=50_000),
        *await measure_agent_cycles(cycles=1_000_000),
    ]
    return [{**one, **machine} for one in rows]


def _machine() -> dict[str, Any]:
    """Say what the figures were measured on, and how busy it was before."""
    return {"processors": len(os.sched_getaffinity(0)), "load_before": round(os.getloadavg()[0], 2)}
