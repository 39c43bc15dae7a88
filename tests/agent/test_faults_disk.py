"""An agent whose disk is full or read-only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from farbus.agent import state_disk
from farbus.agent.config import AgentConfig
from farbus.agent.daemon import serve
from farbus.api.conversion import to_message
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import Unavailable
from farbus.model.lease import Lease
from tests.agent.harness import MYSELF, AgentInProcess, ScriptedScheduler, doors_with_gpu, lease
from tests.disks import FailingDisk, SmallDisk, failing_disk, small_disk

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def config(config: AgentConfig, disk: SmallDisk) -> AgentConfig:
    return msgspec.structs.replace(config, state=str(disk.path / "state"))


def start_task(job: str) -> session_pb2.StartTask:
    return session_pb2.StartTask(job_id=job, task="main.0", user=MYSELF, cwd="/", command=("sleep", "1000"))


def prepare(one: Lease) -> session_pb2.PrepareDevices:
    return session_pb2.PrepareDevices(lease=to_message(one, types_pb2.Lease))


async def test_nothing_new_begins_on_a_full_disk_and_all_of_it_once_there_is_room(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, disk: SmallDisk
) -> None:
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    disk.fill()
    for refused in (
        await sessions.command(prepare_devices=prepare(lease(client_node="n2"))),
        await sessions.command(start_task=start_task("j1")),
    ):
        assert not refused.ok
        assert "disk" in refused.error
        assert "is the disk full or read-only?" in refused.error
        assert "\n" not in refused.error
    disk.make_room()
    assert (await sessions.command(prepare_devices=prepare(lease(client_node="n2")))).ok
    assert (await sessions.command(start_task=start_task("j1"))).ok


def troubles(scheduler: ScriptedScheduler) -> list[str]:
    """Return what the agent has said, after its hello, of why nothing new may begin there."""
    said = scheduler.sessions.said
    return [one.inventory_changed.node.trouble for one in said if one.HasField("inventory_changed")]


async def test_an_idle_agent_says_once_that_its_disk_fails_and_once_that_it_is_back(
    agent: AgentInProcess,
    config: AgentConfig,
    scheduler: ScriptedScheduler,
    disk: SmallDisk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_disk, "LOOK_INTERVAL_S", 0.01)
    agent.start(config)
    await scheduler.sessions.connected()
    with structlog.testing.capture_logs() as lines:
        disk.fill()
        await scheduler.sessions.until(lambda: len(troubles(scheduler)) == 1)
        # Heartbeats go on, and it looks at its disk again and again.
        beats = len(scheduler.sessions.said)
        await scheduler.sessions.until(lambda: len(scheduler.sessions.said) > beats + 2)
        disk.make_room()
        await scheduler.sessions.until(lambda: len(troubles(scheduler)) == 2)
    failing, back = troubles(scheduler)
    # By a record or by a look, whichever came first.
    assert "No space left on device" in failing or "disk is full" in failing
    assert back == ""
    told = [(line["log_level"], line["event"]) for line in lines if "disk" in line["event"]]
    assert told == [("error", "nothing new begins here: the disk fails"), ("warning", "the disk works again")]


async def test_a_new_session_hears_of_a_disk_that_fails(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, disk: SmallDisk
) -> None:
    agent.start(config)
    sessions = scheduler.sessions
    await sessions.connected()
    disk.fill()
    assert not (await sessions.command(start_task=start_task("j1"))).ok
    sessions.cut()
    await sessions.connected(hellos=2)
    assert [bool(hello.node.trouble) for hello in sessions.hellos] == [False, True]


async def test_what_runs_is_ended_and_given_back_on_a_full_disk(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, disk: SmallDisk
) -> None:
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    assert (await sessions.command(prepare_devices=prepare(lease(client_node="n2")))).ok
    assert (await sessions.command(start_task=start_task("j1"))).ok
    disk.fill()
    assert (await sessions.command(stop_task=session_pb2.StopTask(job_id="j1", task="main.0"))).ok
    assert (await sessions.exited("j1")).status.exit_code == -9
    assert (await sessions.command(unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0"))).ok
    assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
    sessions.cut()
    await sessions.connected(hellos=2)
    assert not sessions.hellos[1].held
    assert not sessions.hellos[1].tasks


async def test_what_ended_on_a_full_disk_is_known_after_a_restart(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, disk: SmallDisk
) -> None:
    sessions = scheduler.sessions
    agent.start(config)
    await sessions.connected()
    assert (await sessions.command(start_task=start_task("j1"))).ok
    disk.fill()
    assert (await sessions.command(stop_task=session_pb2.StopTask(job_id="j1", task="main.0"))).ok
    await agent.stop()
    disk.make_room()
    agent.start(config)
    await sessions.connected(hellos=2)
    (task,) = sessions.hellos[1].tasks
    assert (task.job_id, task.status.state) == ("j1", "exited")


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing_disk(tmp_path / "failing") as disk:
        yield disk


async def test_a_disk_that_fails_ends_nothing_and_is_told_once_with_the_reason(
    agent: AgentInProcess,
    config: AgentConfig,
    scheduler: ScriptedScheduler,
    failing: FailingDisk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_disk, "LOOK_INTERVAL_S", 0.01)
    config = msgspec.structs.replace(config, state=str(failing.path / "state"))
    sessions = scheduler.sessions
    agent.start(config, doors_with_gpu(config))
    await sessions.connected()
    assert (await sessions.command(prepare_devices=prepare(lease(client_node="n2")))).ok
    assert (await sessions.command(start_task=start_task("j1"))).ok
    with structlog.testing.capture_logs() as lines:
        failing.fail()
        await sessions.until(lambda: troubles(scheduler) != [])
        refused = await sessions.command(start_task=start_task("j2"))
        # What runs is still there to be stopped, and what was held is given back.
        assert (await sessions.command(stop_task=session_pb2.StopTask(job_id="j1", task="main.0"))).ok
        assert (await sessions.exited("j1")).status.exit_code == -9
        # Without this, its keeper would wait for a disk to write its status to.
        assert (await sessions.command(unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0"))).ok
        assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
    assert not refused.ok
    assert "\n" not in refused.error
    assert "disk" in refused.error
    (trouble,) = troubles(scheduler)
    # Whichever write met it first.
    assert trouble.startswith((f"{config.state}: ", "journal: "))
    assert "is the disk full" in trouble
    assert [line["event"] for line in lines if "the disk fails" in line["event"]] == [
        "nothing new begins here: the disk fails"
    ]


@pytest.mark.parametrize("remote", [True, False], ids=["with a session file", "without one"])
async def test_a_task_is_cleared_from_a_disk_that_fails(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, failing: FailingDisk, remote: bool
) -> None:
    config = msgspec.structs.replace(config, state=str(failing.path / "state"))
    sessions = scheduler.sessions
    agent.start(config)
    await sessions.connected()
    if remote:
        leased = session_pb2.PreparedLease(lease=to_message(lease(), types_pb2.Lease), endpoint="127.0.0.1:9")
        client = session_pb2.PrepareClient(job_id="j1", task="main.0", user=MYSELF, leases=[leased])
        assert (await sessions.command(prepare_client=client)).ok
    assert (await sessions.command(start_task=start_task("j1"))).ok
    failing.fail()
    assert (await sessions.command(stop_task=session_pb2.StopTask(job_id="j1", task="main.0"))).ok
    await sessions.exited("j1")
    # Else the devices of another node would be held until this disk is mended.
    assert (await sessions.command(unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0"))).ok


async def test_an_agent_does_not_start_on_a_full_disk_and_says_why(config: AgentConfig, disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(Unavailable) as refused:
        await serve(config)
    assert "No space left on device" in str(refused.value) or "disk is full" in str(refused.value)
    assert "room" in refused.value.hint


async def test_an_agent_does_not_start_on_a_read_only_disk_and_says_why(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, disk: SmallDisk
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    await agent.stop()
    disk.remount("ro")
    with pytest.raises(Unavailable, match="Read-only file system"):
        await serve(config)
    disk.remount("rw")
    agent.start(config)
    await scheduler.sessions.connected(hellos=2)
