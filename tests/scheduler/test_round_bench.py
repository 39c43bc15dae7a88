"""The benchmark's form; its numbers belong to no test."""

from __future__ import annotations

import json

from farbus.scheduler import bench
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.round import decide
from tests.scheduler.worlds import check_decision


def test_results_have_the_form_of_all_benchmarks() -> None:
    answer = bench.run(quick=True)
    assert answer["bench"] == "scheduler"
    assert json.loads(json.dumps(answer)) == answer
    for row in answer["results"]:
        assert {"name", "value", "unit", "reference", "ratio"} <= row.keys()
    sizes = {(row["nodes"], row["pending"]) for row in answer["results"] if row["name"] == "decision_ms"}
    assert sizes == set(bench.QUICK_SIZES)
    names = {row["name"] for row in answer["results"]}
    assert {
        "cold_decision_ms",
        "first_decision_ms",
        "bound_ms",
        "commit_ms",
        "words_ms",
        "unpruned_decision_ms",
        "full_solve_ms",
        "solve_ms",
        "gap",
        "overload_gap",
        "peak_memory_mib",
    } <= names
    assert all(row["cpu_p50"] <= row["cpu_p99"] for row in answer["results"] if row["name"] == "decision_ms")


def test_the_benchmark_measures_decisions_that_keep_every_promise() -> None:
    snapshot, jobs = bench.make_cluster(64), bench.make_jobs(200)
    decision = decide(snapshot, jobs, policy=DefaultPolicy())
    check_decision(snapshot, jobs, decision)
    assert decision.placements
