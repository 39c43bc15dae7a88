"""``farbus attach``, ``detach``, ``moves``, and chassis as the cluster knows them; its answers are known."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import cast

import msgspec
import pytest

from farbus.api.client import ClusterClient
from farbus.cli.moving import Watch, describe_times
from farbus.model.move import MoveRequest, MoveState, MoveStatus
from tests.cli.conftest import ROOT, Cluster, Farbus, clean_environment


@pytest.fixture
def ask(here: Farbus, cluster: Cluster):
    """Run a command that speaks to a cluster of this test's own."""

    def run(*arguments: str):
        return here(*arguments, environment={"FARBUS_SOCKET": cluster.socket})

    return run


def request_of(cluster: Cluster) -> tuple[MoveRequest, bool]:
    """Return what the cluster was asked for, and whether locally."""
    _, text = cluster.line().split(maxsplit=1)
    return msgspec.json.decode(text.removesuffix(" local"), type=MoveRequest), text.endswith(" local")


def test_attach_shows_progress_and_where_the_device_is(ask, cluster: Cluster) -> None:
    done = ask("attach", "GPU-1", "--to", "beta", "--port", "31h", "--evict", "--drain", "5")
    assert done.returncode == 0
    assert done.stdout == "device GPU-1 is on node beta as /dev/nvidia3 after 31s\n"
    assert done.stderr == "farbus: GPU-1: detaching: wait for holders (step 2 of 5); 2s so far, usually 40s\n"
    wanted = MoveRequest(device="GPU-1", node="beta", port="31h", evict=True, drain_s=5.0)
    assert request_of(cluster) == (wanted, False)


def test_detach_says_where_the_device_is(ask, cluster: Cluster) -> None:
    done = ask("detach", "GPU-1", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "device GPU-1 is free in chassis falcon after 31s\n"
    assert request_of(cluster) == (MoveRequest(device="GPU-1"), False)


def test_a_local_move_is_to_this_node(ask, cluster: Cluster) -> None:
    assert ask("attach", "GPU-1", "--local", "-q").returncode == 0
    assert request_of(cluster) == (MoveRequest(device="GPU-1", node="gamma"), True)


def test_a_local_move_asks_no_scheduler(ask) -> None:
    done = ask("detach", "GPU-1", "--local", "--server", "h:1", "--credentials", "x")
    assert done.returncode == 2
    assert "--local asks an agent" in done.stderr


def test_a_local_attach_that_names_no_node_asks_no_scheduler_either(ask) -> None:
    done = ask("attach", "GPU-1", "--local", "--server", "h:1", "--credentials", "x")
    assert done.returncode == 2
    assert done.stderr.startswith("farbus: --local asks an agent, and --server names the scheduler; ")


def test_attach_needs_a_node(ask) -> None:
    done = ask("attach", "GPU-1")
    assert (done.returncode, done.stderr) == (2, "farbus: no node is named; --to NODE; farbus nodes lists them\n")


@pytest.mark.parametrize(
    ("device", "code", "told"),
    [
        ("GPU-none", 3, "farbus: there is no device GPU-none; farbus devices lists them"),
        ("GPU-refused", 7, "farbus: device GPU-refused was not moved: node alpha: still open in pid 7 (python3)"),
        (
            "GPU-back",
            1,
            "farbus: device GPU-back was not moved: node beta: no room for BAR 2; it is on node alpha again",
        ),
        ("GPU-stuck", 1, "farbus: device GPU-stuck is stuck: node alpha: wedged; have a look"),
    ],
)
def test_what_was_not_moved_is_one_line(ask, device: str, code: int, told: str) -> None:
    done = ask("attach", device, "--to", "beta", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", told + "\n")


def test_several_are_moved_side_by_side_and_each_is_told(ask) -> None:
    done = ask("attach", "GPU-1", "GPU-back", "GPU-2", "--to", "beta", "--quiet")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "device GPU-1 is on node beta as /dev/nvidia3 after 31s",
        "device GPU-2 is on node beta as /dev/nvidia3 after 31s",
    ]
    assert "GPU-back was not moved" in done.stderr


def test_a_dry_run_shows_the_plan_of_all(ask) -> None:
    done = ask("attach", "GPU-1", "GPU-2", "--to", "beta", "--dry-run")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "device GPU-1 from node alpha to node beta through chassis falcon, about 40s:",
        "  alpha: close it",
        "  beta: scan the bus",
        "device GPU-2 from node alpha to node beta through chassis falcon, about 40s:",
        "  alpha: close it",
        "  beta: scan the bus",
        "all of them: about 40s; 1m20s where a chassis does one thing at a time",
    ]


async def test_a_dry_run_that_takes_long_says_that_it_is_still_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chassis that does not answer is given half a minute."""
    told, lines = asyncio.Event(), []

    def say(line: str) -> None:
        lines.append(line)
        told.set()

    class Silent:
        async def move_device(self, request: MoveRequest, *, local: bool) -> AsyncIterator[MoveStatus]:
            await told.wait()
            yield MoveStatus(id="m1", device=request.device, state=MoveState.DONE, by="alice", at=0.0)

    monkeypatch.setattr("farbus.cli.moving.say", say)
    monkeypatch.setattr("farbus.cli.moving.PROGRESS_S", 0.0)
    request = MoveRequest(device="GPU-1", dry_run=True)
    assert isinstance(await Watch(request, local=False, quiet=False).run(cast(ClusterClient, Silent())), MoveStatus)
    assert lines[0] == "GPU-1: asking what there is to do; 0s so far"


def test_a_dry_run_shows_who_is_in_the_way(ask) -> None:
    done = ask("detach", "GPU-held", "--dry-run")
    assert done.returncode == 7
    assert done.stdout.splitlines()[-1] == "  in the way now: alpha: pid 7 (python3)"


def test_moves_are_json_for_programs(ask) -> None:
    done = ask("attach", "GPU-1", "--to", "beta", "-o", "json", "-q")
    (status,) = msgspec.json.decode(done.stdout, type=list[MoveStatus])
    assert (status.state, status.path) == (MoveState.DONE, "/dev/nvidia3")


def test_a_stream_that_breaks_is_followed_in_the_listing(ask) -> None:
    done = ask("attach", "GPU-torn", "--to", "beta", "-q")
    assert (done.returncode, done.stdout) == (0, "device GPU-torn is on node beta after 33s\n")


def test_ctrl_c_leaves_it_running_and_says_how_to_look(cluster: Cluster) -> None:
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.cli", "detach", "GPU-slow"],
        env=clean_environment(ROOT, FARBUS_SOCKET=cluster.socket),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stderr is not None
    assert "wait for holders" in command.stderr.readline()
    command.send_signal(signal.SIGINT)
    _, told = command.communicate()
    assert told.splitlines()[-1] == (
        "farbus: the move of GPU-slow goes on; farbus moves m7 shows how far it is, with --cancel it is called off"
    )
    assert command.returncode == 128 + signal.SIGINT


def test_moves_are_listed(ask) -> None:
    done = ask("moves")
    assert done.stdout.splitlines()[0].split() == [
        "ID", "DEVICE", "FROM", "TO", "STATE", "STEP", "TOOK", "USUALLY", "BY", "SAYS",
    ]  # fmt: skip
    assert done.stdout.splitlines()[1].split() == [
        "m8", "GPU-0002", "-", "beta", "attaching", "3/5", "4s", "20s", "ann", "scan", "the", "bus",
    ]  # fmt: skip
    assert [move["id"] for move in json.loads(ask("moves", "--all", "-o", "json").stdout)] == ["m7", "m8"]
    assert [move["id"] for move in json.loads(ask("moves", "m7", "-o", "json").stdout)] == ["m7"]
    assert ask("moves", "m9").returncode == 3


def test_moves_are_called_off(ask, cluster: Cluster) -> None:
    done = ask("moves", "--cancel", "m8", "m8")
    assert (done.returncode, cluster.line()) == (0, "cancel move m8")
    assert done.stdout.splitlines()[1].startswith("m8")
    assert "called off by" in done.stdout


def test_a_call_off_that_is_refused_keeps_no_other_from_being_asked_for(ask, cluster: Cluster) -> None:
    done = ask("moves", "--cancel", "m7", "m8")
    assert (cluster.line(), cluster.line()) == ("cancel move m7", "cancel move m8")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        7,
        "farbus: move m7 has ended: done; farbus attach moves it back",
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ID", "m8"]


def test_calling_off_needs_the_moves(ask) -> None:
    for arguments in (("moves", "--cancel"), ("moves", "--cancel", "--all", "m8")):
        done = ask(*arguments)
        assert done.returncode == 2
        assert "--cancel: it needs the moves that are to be called off" in done.stderr


def test_devices_shows_what_is_on_its_way(ask) -> None:
    line = ask("devices", "GPU-0002").stdout.splitlines()[1]
    assert line.split()[:3] == ["GPU-0002", "-", "gpu"]
    assert "moving  move m8" in line
    assert "CHASSIS" in ask("devices", "-o", "wide").stdout


def test_fabric_listings_without_a_file_are_the_clusters(ask) -> None:
    done = ask("fabric", "list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["DEVICE", "GPU-0001", "S2"]
    assert done.stderr.splitlines() == [
        "chassis pod: the agent of node beta has not read it yet",
        "chassis rack: it is off; node beta serves it; what follows is what was read last",
    ]
    ports = json.loads(ask("fabric", "ports", "--chassis", "falcon", "-o", "json").stdout)
    assert [(row["port"]["node"], row["devices"]) for row in ports] == [("alpha", ["GPU-0001"]), ("beta", [])]
    assert ask("fabric", "list", "--chassis", "other").returncode == 3


def test_how_long_several_moves_take_counts_each_chassis_by_itself() -> None:
    def move(chassis: str, seconds: float) -> MoveStatus:
        return MoveStatus(
            id="m1", device="d", chassis=chassis, state=MoveState.DONE, expected_s=seconds, by="ann", at=0.0
        )

    assert describe_times([move("x", 20.0), move("y", 30.0)]) == "all of them: about 30s"
    assert describe_times([move("x", 20.0), move("x", 30.0)]).endswith("50s where a chassis does one thing at a time")
    assert describe_times([move("x", 20.0), move("x", 0.0)]).endswith("nobody has measured yet")
