"""Files that travel with jobs, through the CLI, an agent, the scheduler and the agent of the task's node."""

from __future__ import annotations

import json
from pathlib import Path

from tests.end_to_end.conftest import Cluster


def test_files_go_in_and_come_out(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_bytes(b"1\n" * 2_000_000)
    (tmp_path / "program").write_text("#!/bin/sh\nmkdir out\nwc -c < in/one > out/count\npwd > out/where\n")
    (tmp_path / "program").chmod(0o755)
    done = cluster.run(
        "submit", "--wait", "--stage-in", f"{tmp_path}/data:in", "--stage-in", f"{tmp_path}/program",
        "--stage-out", "out", "-o", "json", "--", "./program",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job"]["id"]
    fetched = cluster.run("fetch", job, "-C", str(tmp_path / "results"))
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / "results" / "out" / "count").read_text().strip() == "4000000"
    again = cluster.run("fetch", job, "-C", str(tmp_path / "results"))
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == f"job {job}: all that it has put out is here already; --list says what that is\n"
    # Its directory ends with it.
    assert not Path((tmp_path / "results" / "out" / "where").read_text().strip()).exists()


def test_output_that_is_not_there_fails_the_job(cluster: Cluster) -> None:
    done = cluster.run("submit", "--wait", "--stage-out", "result", "--", "true")
    assert done.returncode == 125
    assert "stage out of task" in done.stderr
    assert "result: no such file or directory" in done.stderr
    job = done.stderr.split()[1]
    fetched = cluster.run("fetch", job)
    assert (fetched.returncode, fetched.stderr) == (
        3,
        f"farbus: job {job} has put out no files, or they are not kept any more; farbus jobs {job} says how it has "
        "ended\n",
    )


def test_fetching_from_a_job_that_has_put_out_nothing_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    plain = cluster.run("submit", "--", "true").stdout.strip()
    fetched = cluster.run("fetch", plain)
    assert fetched.returncode == 3
    assert f"job {plain} puts out no files: it has no stage_out; farbus logs {plain} shows" in fetched.stderr
    end = tmp_path / "end"
    waits = cluster.run("submit", "--stage-out", "out", "--", "sh", "-c", f"until test -e {end}; do :; done; touch out")
    running = waits.stdout.strip()
    fetched = cluster.run("fetch", running)
    end.touch()
    assert fetched.returncode == 3
    assert f"job {running} has put out no files yet: it is " in fetched.stderr


def test_each_task_has_a_directory_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run(
        "submit", "--wait", "--count", "2", "--stage-out", "name", "-o", "json", "--",
        "sh", "-c", "test -z \"$(ls)\" && echo $FARBUS_TASK > name",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cluster.run("fetch", json.loads(done.stdout)["job"]["id"], "-C", str(tmp_path))
    for task in ("main.0", "main.1"):
        assert (tmp_path / task / "name").read_text().strip() == task


def test_what_was_done_is_on_record(cluster: Cluster) -> None:
    cluster.run("submit", "--wait", "--name", "audited", "--", "true")
    records = json.loads(cluster.run("audit", "-o", "json").stdout)
    assert {("Submit", "ok"), ("Session", "begun")} <= {(record["method"], record["outcome"]) for record in records}
