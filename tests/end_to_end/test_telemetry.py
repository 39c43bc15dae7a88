"""What a program does with a remote GPU is seen in the cluster's telemetry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import LOOKS_LIMIT, Cluster

Compiled = Callable[..., Path]


def session_of(cluster: Cluster, job: str) -> dict[str, Any]:
    """Look until the telemetry of a node tells of the job's session and its rates."""
    for _ in range(LOOKS_LIMIT):
        for node in cluster.ask("top")["nodes"]:
            for session in node["sessions"]:
                if session["job"] == job and session["calls_per_s"]:
                    return {"node": node["node"], **session}
    raise AssertionError(f"no session of job {job} after {LOOKS_LIMIT} looks")


def processes_of(cluster: Cluster, node: str, job: str) -> int:
    """How many use the job's GPU at that node."""
    gpus = [gpu for one in cluster.ask("top", node)["nodes"] for gpu in one["gpus"] if gpu["job"] == job]
    (processes,) = [gpu["processes"] for gpu in gpus]
    return processes


def test_a_session_is_seen_at_work(cluster: Cluster, compiled: Compiled) -> None:
    end = cluster.runtime / "end-of-telemetry"
    submitted = cluster.run("submit", "--gpus", "1", "--node", "gamma", "--", compiled("cluster/stay.cu"), end)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    try:
        session = session_of(cluster, job)
        assert session["program"].startswith("stay")
        assert session["client_node"] == "gamma"
        assert session["receive_bytes_per_s"] > 0
        assert session["memory_bytes"] > 0
        # Until what was there before has ended.
        assert any(processes_of(cluster, session["node"], job) == 1 for _ in range(LOOKS_LIMIT))
    finally:
        end.touch()
        cluster.run("cancel", job)
    cluster.assert_all_devices_usable()


def test_a_session_is_seen_again_after_its_agent_was_killed(cluster: Cluster, compiled: Compiled) -> None:
    end = cluster.runtime / "end-of-killed"
    submitted = cluster.run("submit", "--gpus", "1", "--node", "gamma", "--", compiled("cluster/stay.cu"), end)
    job = submitted.stdout.strip()
    try:
        before = session_of(cluster, job)
        cluster.kill("farbus.agent", f"/{before['node']}/")
        cluster.wait_until_whole()
        after = session_of(cluster, job)
        assert (after["lease"], after["client_pid"]) == (before["lease"], before["client_pid"])
    finally:
        end.touch()
        cluster.run("cancel", job)
    cluster.assert_all_devices_usable()
