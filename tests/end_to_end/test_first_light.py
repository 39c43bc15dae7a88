"""An unmodified CUDA program runs on a node without a GPU, placed by the scheduler."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Cluster

Compiled = Callable[..., Path]


def test_three_nodes_are_ready_and_one_has_no_gpu(cluster: Cluster) -> None:
    nodes = {status["node"]["name"]: status for status in cluster.ask("nodes")}
    assert {name: len(status["node"]["devices"]) for name, status in nodes.items()} == {
        "alpha": 2,
        "beta": 1,
        "gamma": 0,
    }
    assert {status["state"] for status in nodes.values()} == {"ready"}


def test_job_on_the_node_without_gpu_uses_one_of_another(cluster: Cluster, compiled: Compiled) -> None:
    job = cluster.runtime / "job.toml"
    program = compiled("cluster/stay.cu")
    job.write_text(
        f'name = "first-light"\ncommand = ["{program}", "/dev/null"]\nnode = "gamma"\n[resources]\ngpus = 1\n'
    )
    done = cluster.run("submit", job, "--follow")
    assert done.returncode == 0, done.stderr
    assert "using 1 device(s)\nright throughout\n" in done.stdout
    status = next(status for status in cluster.ask("jobs", "--all") if status["job"]["name"] == "first-light")
    placement = status["placements"][0]
    assert placement["node"] == "gamma"
    assert [device["route"] for device in placement["devices"]] == ["remote"]
    assert placement["devices"][0]["node"] in {"alpha", "beta"}
    assert placement["why"]


def test_explain_says_where_and_why(cluster: Cluster, compiled: Compiled) -> None:
    done = cluster.run(
        "submit", "--wait", "--name", "told", "--gpus", "1", "--node", "gamma", "--",
        compiled("cluster/stay.cu"), "/dev/null",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = next(status["job"]["id"] for status in cluster.ask("jobs", "--all") if status["job"]["name"] == "told")
    told = cluster.run("explain", job)
    assert told.returncode == 0, told.stderr
    assert "gamma" in told.stdout
    assert "remote" in told.stdout


def test_interactive_run_sees_exactly_its_devices(cluster: Cluster, compiled: Compiled) -> None:
    done = cluster.run("run", "--gpus", "2", "--", compiled("cluster/stay.cu"), "/dev/null")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "using 2 device(s)" in done.stdout
    assert cluster.ask("leases") == []


def test_the_calls_of_a_program_are_written_down(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> None:
    program = compiled("cluster/stay.cu")
    done = cluster.run("run", "--quiet", "--gpus", "1", "--trace", tmp_path / "calls", "--", program, "/dev/null")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(cluster.run("trace", tmp_path / "calls", "-o", "json").stdout)
    launches = next(each for each in told["functions"] if each["function"] == "cuLaunchKernel")
    assert launches["posted"] > 0
    assert sum(each["launches"] for each in told["kernels"]) == launches["calls"]
    assert {each["function"] for each in told["functions"]} >= {"cuInit", "cuMemAlloc_v2", "cuGetProcAddress_v2"}


NVML = """
import json
import pynvml as n
n.nvmlInit()
uuids = [n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([uuids, n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).used]))
"""


def test_nvml_shows_a_job_exactly_its_remote_device(cluster: Cluster) -> None:
    pytest.importorskip("pynvml")
    done = cluster.run(
        "submit", "--follow", "--name", "management", "--gpus", "1", "--node", "gamma", "--",
        sys.executable, "-c", NVML,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    status = next(status for status in cluster.ask("jobs", "--all") if status["job"]["name"] == "management")
    (device,) = status["placements"][0]["devices"]
    told = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("[["))
    assert told == [[device["device"]], 0]


def test_run_ends_with_the_programs_own_code(cluster: Cluster) -> None:
    assert cluster.run("run", "--", "sh", "-c", "exit 7").returncode == 7


def test_device_local_to_the_job_needs_no_remoting(cluster: Cluster, compiled: Compiled) -> None:
    done = cluster.run(
        "submit", "--follow", "--name", "local", "--gpus", "2", "--node", "alpha", "--route", "local", "--",
        compiled("cluster/stay.cu"), "/dev/null",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "using 2 device(s)" in done.stdout


def test_two_programs_at_once_have_different_devices(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> None:
    end = tmp_path / "end"
    first = cluster.start("run", "--gpus", "1", "--quiet", "--", compiled("cluster/stay.cu"), end)
    second = cluster.start("run", "--gpus", "2", "--quiet", "--", compiled("cluster/stay.cu"), end)
    assert first.stdout.readline() == "using 1 device(s)\n"
    assert second.stdout.readline() == "using 2 device(s)\n"
    held = [leased["device"] for status in cluster.ask("leases") for leased in status["lease"]["devices"]]
    assert len(held) == len(set(held)) == 3
    end.touch()
    assert (first.wait(60), second.wait(60)) == (0, 0)
    first.stdout.close()
    second.stdout.close()


def test_job_waits_for_devices_in_use_and_explains_it(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> None:
    end = tmp_path / "end"
    holder = cluster.start("run", "--gpus", "2", "--quiet", "--", compiled("cluster/stay.cu"), end)
    assert holder.stdout.readline() == "using 2 device(s)\n"
    submitted = cluster.run("submit", "--gpus", "2", "--name", "waiting", "--", "true")
    assert submitted.returncode == 0, submitted.stderr
    job = next(status for status in cluster.ask("jobs") if status["job"]["name"] == "waiting")
    assert job["state"] == "queued"
    assert "GPU" in cluster.run("explain", job["job"]["id"]).stdout
    end.touch()
    assert holder.wait(60) == 0
    holder.stdout.close()
    assert cluster.run("submit", "--wait", "--gpus", "2", "--", "true").returncode == 0


def test_lease_secrets_appear_nowhere(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> None:
    end = tmp_path / "end"
    program = cluster.start("run", "--gpus", "1", "--quiet", "--", compiled("cluster/stay.cu"), end)
    assert program.stdout.readline() == "using 1 device(s)\n"
    sessions = [
        path for path in (cluster.runtime / "farbus").rglob("*") if path.is_file() and "session" in path.parent.name
    ]
    assert len(sessions) == 1
    assert sessions[0].stat().st_mode & 0o777 == 0o600
    secrets = [word for word in sessions[0].read_text().replace('"', " ").split() if len(word) == 64]
    assert len(secrets) == 1
    told = json.dumps(cluster.ask("leases")) + "".join(
        path.read_text(errors="replace") for path in (cluster.runtime / "farbus").rglob("*.log")
    )
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                told += (entry / "cmdline").read_text(errors="replace")
            except OSError:
                continue
    assert secrets[0] not in told
    end.touch()
    assert program.wait(60) == 0
    program.stdout.close()


@pytest.mark.parametrize("flags", [(), ("-cudart=shared",), ("-rdc=true",)], ids=["static", "shared", "rdc"])
def test_ways_to_link_the_runtime(cluster: Cluster, compiled: Compiled, flags: tuple[str, ...]) -> None:
    done = cluster.run("run", "--gpus", "1", "--", compiled("cluster/stay.cu", *flags), "/dev/null")
    assert done.returncode == 0, done.stdout + done.stderr
