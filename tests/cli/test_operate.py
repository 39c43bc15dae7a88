"""What operators do to nodes and devices, against a cluster whose answers are known."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine

import msgspec
import pytest

from farbus.errors import Unavailable
from farbus.model.job import JobStatus
from farbus.model.operation import CordonResult, DrainStatus, ForgottenNode
from tests.cli.conftest import Cluster, Farbus
from tests.cli.rehearsed_cluster import job, running

JOB = running(job("j-1"))


@pytest.fixture
def ask(here: Farbus, shared_cluster: Cluster):
    """Run a command that speaks to the shared cluster."""

    def run(*arguments: str):
        return here(*arguments, environment={"FARBUS_SOCKET": shared_cluster.socket})

    return run


@pytest.mark.parametrize("command", ["cordon", "uncordon"])
def test_cordons_say_what_became_of_each(ask, command: str) -> None:
    done = ask(command, "alpha", "GPU-0001", "gamma")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"node alpha {command}ed",
        f"device GPU-0001 {command}ed",
        f"node gamma was {command}ed already",
    ]


@pytest.mark.parametrize("command", ["cordon", "uncordon"])
def test_cordons_are_json_for_programs(ask, command: str) -> None:
    done = ask(command, "alpha", "-o", "json")
    assert [result.name for result in msgspec.json.decode(done.stdout, type=list[CordonResult])] == ["alpha"]


def test_a_name_that_is_not_there_is_one_line(ask) -> None:
    done = ask("cordon", "delta")
    assert (done.returncode, done.stderr) == (3, "farbus: there is no node or device delta\n")


@pytest.mark.parametrize("command", ["cordon", "uncordon"])
def test_a_name_that_is_not_there_keeps_no_other_from_it(ask, command: str) -> None:
    done = ask(command, "delta", "alpha", "eta")
    assert (done.returncode, done.stdout) == (3, f"node alpha {command}ed\n")
    assert done.stderr.splitlines() == [f"farbus: there is no node or device {name}" for name in ("eta", "delta")]


def test_a_drain_goes_on_where_its_agent_is_restarted(here: Farbus, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    class Client:
        def is_over(self) -> bool:
            return False

        async def drain(self, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
            begun.append(node)
            yield DrainStatus(node=node, jobs=(JOB,) if len(begun) == 1 else ())
            if len(begun) == 1:
                raise Unavailable("the agent is restarted")

    command = importlib.import_module("farbus.cli.commands.drain")
    monkeypatch.setattr(command, "find_target", lambda **_: None)
    monkeypatch.setattr(command, "ask", lambda _, question: asyncio.run(question(Client())))
    monkeypatch.setattr("farbus.cli.following.AGAIN_S", 0.0)
    assert here("drain", "gamma").stdout == "node gamma is drained\n"
    assert len(begun) == 2


def test_drain_tells_who_it_waits_for_and_ends_when_nobody_is_left(ask) -> None:
    done = ask("drain", "alpha")
    assert (done.returncode, done.stdout) == (0, "node alpha is drained\n")
    assert done.stderr == "farbus: node alpha is used by j-1 (running)\n"


def test_who_stops_waiting_for_a_drain_is_told_that_the_node_stays_cordoned(
    here: Farbus, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def is_over(self) -> bool:
            return False

        async def drain(self, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
            yield DrainStatus(node=node, jobs=(JOB,))
            raise asyncio.CancelledError

    command = importlib.import_module("farbus.cli.commands.drain")
    monkeypatch.setattr(command, "find_target", lambda **_: None)

    def interrupted(_: object, question: Callable[[object], Coroutine[object, object, object]]) -> None:
        try:
            asyncio.run(question(Client()))
        except asyncio.CancelledError as error:
            raise KeyboardInterrupt from error

    monkeypatch.setattr(command, "ask", interrupted)
    done = here("drain", "gamma")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines() == [
        f"farbus: node gamma is used by {JOB.job.id} (running)",
        "farbus: node gamma stays cordoned; farbus drain gamma waits again, farbus uncordon gamma opens it",
    ]


LOST = "farbus: node lost is lost: its jobs let go of it once it is back; if it is off for good, farbus forget lost"


def test_drain_tells_of_a_node_that_it_is_lost(ask) -> None:
    done = ask("drain", "lost")
    assert (done.returncode, done.stdout) == (0, "node lost is drained\n")
    assert done.stderr.splitlines() == [LOST, "farbus: node lost is used by j-1 (running)"]
    assert ask("drain", "lost", "--no-wait", "-o", "json").stderr.splitlines() == [LOST]


def test_drain_lists_without_waiting(ask) -> None:
    done = ask("drain", "alpha", "--no-wait", "-o", "json")
    assert [status.job.id for status in msgspec.json.decode(done.stdout, type=list[JobStatus])] == ["j-1"]
    assert ask("drain", "gamma", "--no-wait").stderr == "no job uses node gamma\n"


def test_a_drain_is_heard_to_its_end(here: Farbus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit log has a call that is left before as `left`, though it has done what it was to do."""
    heard = []

    class Client:
        def is_over(self) -> bool:
            return False

        async def drain(self, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
            yield DrainStatus(node=node)
            heard.append((node, evict, reason))

    command = importlib.import_module("farbus.cli.commands.drain")
    monkeypatch.setattr(command, "find_target", lambda **_: None)
    monkeypatch.setattr(command, "ask", lambda _, question: asyncio.run(question(Client())))
    assert here("drain", "gamma").stdout == "node gamma is drained\n"
    assert here("drain", "gamma", "--no-wait").stderr == "no job uses node gamma\n"
    assert len(heard) == 2


def test_forget_tells_what_went_with_the_node(ask) -> None:
    assert ask("forget", "alpha").stdout.splitlines() == [
        "node alpha forgotten",
        "  lease l-1",
        "  device GPU-0001",
        "  job j-1",
    ]
    assert msgspec.json.decode(ask("forget", "alpha", "-o", "json").stdout, type=ForgottenNode).leases == ("l-1",)


def test_a_node_that_is_connected_is_not_forgotten(ask) -> None:
    done = ask("forget", "gamma")
    assert (done.returncode, done.stderr) == (7, "farbus: node gamma is connected\n")


def test_wide_listings_show_cordons(ask) -> None:
    assert "CORDONED BY" in ask("nodes", "-o", "wide").stdout
    assert "CORDONED BY" in ask("devices", "-o", "wide").stdout
    assert "cordon" in json.loads(ask("nodes", "-o", "json").stdout)[0]
