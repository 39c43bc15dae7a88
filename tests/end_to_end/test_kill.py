"""Kill any part at work: devices come free again, and what can be used is usable."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from tests.end_to_end.conftest import Cluster

Compiled = Callable[..., Path]


@pytest.fixture
def busy(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> Iterator[Popen[str]]:
    """A job on gamma that uses both GPUs of alpha, followed by a command whose output is read line by line."""
    end = tmp_path / "end"
    follower = cluster.start(
        "submit", "--follow", "--gpus", "2", "--node", "gamma", "--", compiled("cluster/stay.cu"), end
    )
    for line in follower.stdout:
        if line.startswith("using"):
            break
    yield follower
    end.touch()
    follower.stdout.close()
    follower.wait(60)


def test_program_killed(cluster: Cluster, busy: Popen[str]) -> None:
    for pid in cluster.processes("/stay ", "/end"):
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "stay":
            os.kill(pid, signal.SIGKILL)
    assert "SIGKILL" in busy.stdout.read()
    assert busy.wait(60) != 0
    cluster.assert_all_devices_usable()


def test_remoting_servers_killed(cluster: Cluster, busy: Popen[str]) -> None:
    cluster.kill("farbus.remoting.server")
    busy.stdout.read()
    assert busy.wait(60) != 0
    cluster.assert_all_devices_usable()


def test_remoting_supervisors_killed(cluster: Cluster, busy: Popen[str]) -> None:
    cluster.kill("farbus.remoting.supervisor")
    busy.stdout.read()
    assert busy.wait(60) != 0
    cluster.assert_all_devices_usable()


@pytest.mark.parametrize("node", ["alpha", "gamma"])
def test_agent_killed_and_the_job_goes_on(cluster: Cluster, busy: Popen[str], tmp_path: Path, node: str) -> None:
    cluster.kill("farbus.agent", f"/{node}/")
    cluster.wait_until_whole()
    (tmp_path / "end").touch()
    assert "right throughout" in busy.stdout.read()
    assert busy.wait(60) == 0
    cluster.assert_all_devices_usable()


def test_agents_killed_and_a_program_in_a_terminal_goes_on(
    cluster: Cluster, compiled: Compiled, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    script = '"$0" "$1" && exit 3'
    program = cluster.start("run", "--quiet", "--gpus", "2", "--", "sh", "-c", script, compiled("cluster/stay.cu"), end)
    assert program.stdout.readline() == "using 2 device(s)\n"
    cluster.kill("farbus.agent")
    cluster.wait_until_whole()
    end.touch()
    assert program.stdout.read() == "right throughout\n"
    program.stdout.close()
    assert program.wait(60) == 3
    cluster.assert_all_devices_usable()
    ended = [status for status in cluster.ask("jobs", "--all") if status["job"]["interactive"]]
    assert ended[-1]["tasks"][0]["exit_code"] == 3


def test_agents_killed_and_who_follows_a_log_sees_every_line_once(cluster: Cluster, tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    script = f"seq 1 20000; read line < {fifo}; seq 20001 40000; exit 4"
    job = cluster.run("submit", "--node", "beta", "--", "sh", "-c", script).stdout.strip()
    follower = cluster.start("logs", "--follow", job)
    assert follower.stdout.readline() == "1\n"
    cluster.kill("farbus.agent")
    cluster.wait_until_whole()
    fifo.write_text("\n")
    assert follower.stdout.read().split() == [str(number) for number in range(2, 40001)]
    follower.stdout.close()
    assert follower.wait(60) == 0
    (ended,) = [status for status in cluster.ask("jobs", "--all") if status["job"]["id"] == job]
    assert (ended["state"], ended["tasks"][0]["exit_code"]) == ("failed", 4)


def test_scheduler_killed_and_the_job_goes_on(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> None:
    end = tmp_path / "end"
    program = cluster.start("run", "--gpus", "1", "--quiet", "--", compiled("cluster/stay.cu"), end)
    assert program.stdout.readline() == "using 1 device(s)\n"
    cluster.kill("farbus.scheduler")
    end.touch()
    assert "right throughout" in program.stdout.read()
    program.wait(60)
    program.stdout.close()
    cluster.assert_all_devices_usable()


def test_interactive_command_killed(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> None:
    command = cluster.start("run", "--gpus", "2", "--quiet", "--", compiled("cluster/stay.cu"), tmp_path / "end")
    assert command.stdout.readline() == "using 2 device(s)\n"
    command.kill()
    command.wait(60)
    command.stdout.close()
    cluster.assert_all_devices_usable()


def test_interrupted_command_releases(cluster: Cluster, compiled: Compiled, tmp_path: Path) -> None:
    command = cluster.start("run", "--gpus", "2", "--quiet", "--", compiled("cluster/stay.cu"), tmp_path / "end")
    assert command.stdout.readline() == "using 2 device(s)\n"
    command.send_signal(signal.SIGTERM)
    assert command.wait(60) == 128 + signal.SIGTERM
    command.stdout.close()
    cluster.assert_all_devices_usable()
