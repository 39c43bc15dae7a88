"""The benchmark's form; its numbers belong to no test."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from farbus.agent.bench.cycles import measure_agent_cycles, measure_cluster_cycles
from farbus.agent.bench.idle import measure_idle
from farbus.agent.bench.plans import measure_submit_to_plan
from farbus.agent.bench.storm import measure_storm
from farbus.agent.steps import RecordedSequence

pytestmark = pytest.mark.timeout(120)


def check(rows: list[dict[str, Any]], *names: str) -> None:
    assert json.loads(json.dumps(rows)) == rows
    assert tuple(row["name"] for row in rows[: len(names)]) == names
    for row in rows:
        assert {"name", "value", "unit", "reference", "ratio"} <= row.keys()


async def test_an_idle_agent_is_measured_beside_its_children() -> None:
    rows = await measure_idle(seconds=0.1, settle_s=0.0)
    check(rows, "idle_cpu_percent", "idle_rss_mb", "idle_ended_children_cpu_percent")


async def test_agents_come_back_to_a_scheduler_that_was_killed() -> None:
    (row,) = await measure_storm(agents=3)
    check([row], "reconnect_storm_s")
    assert row["agents"] == 3


async def test_submissions_lead_to_plans() -> None:
    rows = await measure_submit_to_plan(nodes=4, jobs=20)
    check(rows, "submit_to_plan_p50_ms", "submit_to_plan_p99_ms", "whole_jobs_per_s")


async def test_cycles_of_a_cluster_leave_no_descriptor_behind() -> None:
    rows = await measure_cluster_cycles(cycles=100)
    check(rows, "cluster_cycles_rss_growth_mib", "cluster_cycles_descriptor_growth", "cluster_cycles_cpu_us")
    assert rows[1]["value"] == 0


async def test_cycles_of_an_agent_leave_no_descriptor_behind() -> None:
    rows = await measure_agent_cycles(cycles=200)
    check(rows, "agent_cycles_rss_growth_mib", "agent_cycles_descriptor_growth", "agent_cycles_cpu_us")
    assert rows[1]["value"] == 0


def sequences() -> list[RecordedSequence]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, RecordedSequence)]


async def test_an_agent_keeps_nothing_of_plans_that_are_over() -> None:
    # What other tests' agents have left in this process.
    before = sequences()
    await measure_agent_cycles(cycles=100)
    assert [one for one in sequences() if not any(one is other for other in before)] == []
