"""A policy of somebody's own, after the page of docs/scheduling.md."""

from __future__ import annotations

from pathlib import Path

from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.round import decide
from tests.scheduler.spread_policy import SpreadPolicy
from tests.scheduler.worlds import check_decision, group, job, node, node_of, world

ROOT = Path(__file__).parents[2]
PENDING = (job("first", group(cpus=2)), job("second", group(cpus=2)))


def nodes_under(policy: Policy) -> set[str]:
    snapshot = world(node("a"), node("b"), node("c", free_cpus=5))
    decision = decide(snapshot, PENDING, policy=policy)
    check_decision(snapshot, PENDING, decision)
    return {name for entry in PENDING for name in node_of(decision, entry.job.id)}


def test_it_takes_the_emptiest_nodes_where_the_default_packs() -> None:
    assert nodes_under(DefaultPolicy()) == {"c"}
    assert nodes_under(SpreadPolicy()) <= {"a", "b"}


def test_the_page_shows_what_is_tested() -> None:
    source = (Path(__file__).parent / "spread_policy.py").read_text()
    assert source[source.index("class SpreadPolicy") :].strip() in (ROOT / "docs/scheduling.md").read_text()
