"""``farbus sim``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farbus.cli.application import run
from farbus.sim.experiments import EXPERIMENTS


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "list", "-o", "json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == list(EXPERIMENTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], f"there is no experiment 'nothing'; there is {', '.join(EXPERIMENTS)}"),
        (
            ["workload-aware-placement", "--seed", "7"],
            "--seed: the published numbers have a seed of their own; use --mode corrected",
        ),
        (
            ["openb", "--nodes", "nowhere.csv", "--pods", "nowhere.csv"],
            "nowhere.csv: can't be read: No such file or directory; check the path and its permissions",
        ),
    ],
)
def test_what_can_not_be_run(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "run", *arguments]) == 2
    assert capsys.readouterr().err == f"farbus: {message}\n"


def test_a_trace_is_replayed_and_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\na,8000,16384,2,T4\n")
    fields = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
    pods.write_text(f"{fields}\np0,1000,1024,1,500,0,100,0\n")
    files = ["--nodes", str(nodes), "--pods", str(pods)]
    assert run(["sim", "run", "openb", *files, "--policy", "first-fit", "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["policy"], row["outcome"]["placed"]) for row in report["rows"]] == [("first-fit", 1)]
    assert run(["sim", "run", "openb", *files]) == 0
    assert "1 jobs that shared a GPU in the trace have a whole one each" in capsys.readouterr().out
