"""The journal, and what a new agent makes of it: killed at any record, the next one knows what to clean."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from farbus.agent.journal import Journal, Step
from farbus.agent.reconcile import Observed, reconcile
from farbus.errors import FarbusError, Unavailable
from farbus.model.job import TaskState, TaskStatus
from tests.agent.harness import ROOT

BOOT = "8093f254-0000-4000-8000-000000000001"
STATUS = TaskStatus(task="main.0", state=TaskState.EXITED, node="n1", exit_code=3)

# The life of one task with one lease, record by record; it says each one, and waits to be killed.
LIFE = """
import asyncio, sys
from farbus.agent.executor import body_of, object_of
from farbus.agent.actions import *
from farbus.agent.events import TaskRun
from farbus.agent.journal import Journal
from farbus.model.device import Route
from farbus.model.job import TaskState, TaskStatus
from farbus.model.lease import Lease, LeasedDevice
STATUS = TaskStatus(task="main.0", state=TaskState.EXITED, node="n1", exit_code=3)
LEASE = Lease(id="l1", job="j1", task="main.0", user="ann", client_node="n1", device_node="n1", route=Route.REMOTE,
              devices=(LeasedDevice(device="GPU-1", epoch=1),), term=1, secret="5e" * 32)
RUN = TaskRun(job="j1", task="main.0", user="ann", command=("true",), environment={"TOKEN": "hidden"})
WORK = [PrepareDevices(serial=1, lease=LEASE), PrepareClient(serial=2, job="j1", task="main.0", user="ann", leases=()),
        StartTask(serial=3, run=RUN), "exit", UnprepareClient(serial=4, job="j1", task="main.0"), "forget",
        UnprepareDevices(serial=5, lease_id="l1")]
async def main():
    journal, _ = await Journal.open(sys.argv[1], boot_id=sys.argv[2])
    def say(line):
        print(line, flush=True)
        sys.stdin.readline()
    say("opened")
    for work in WORK:
        if work == "exit":
            await journal.task_ended("j1", STATUS, at=1.0)
            say("exit")
        elif work == "forget":
            await journal.task_forgotten("j1", "main.0", at=1.0)
            say("forget")
        else:
            name = type(work).__name__
            number = await journal.started(object=object_of(work), action=name, body=body_of(work), at=1.0)
            say("started " + type(work).__name__)
            await journal.completed(number, error="", at=2.0)
            say("completed " + type(work).__name__)
    say("end")
asyncio.run(main())
"""

RECORDS = (
    "opened",
    "started PrepareDevices",
    "completed PrepareDevices",
    "started PrepareClient",
    "completed PrepareClient",
    "started StartTask",
    "completed StartTask",
    "exit",
    "started UnprepareClient",
    "completed UnprepareClient",
    "forget",
    "started UnprepareDevices",
    "completed UnprepareDevices",
    "end",
)


def all_files(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir())


async def live_until(record: str, path: Path) -> None:
    """Live that life in another process and kill it right after ``record``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LIFE, str(path), BOOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while (said := (await process.stdout.readline()).decode().strip()) != record:
            assert said in RECORDS, said
            process.stdin.write(b"\n")
        process.kill()
        await process.wait()


@pytest.mark.parametrize("record", RECORDS)
async def test_killed_after_any_record_the_next_agent_knows_what_is_left(record: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await live_until(record, path)
    journal, aside = await Journal.open(path, boot_id=BOOT)
    assert aside == ""
    plan = reconcile(
        node="n1",
        boot_id=BOOT,
        steps=await journal.last_steps(),
        ended_tasks=await journal.ended_tasks(),
        observed=Observed(),
    )
    await journal.close()
    at = RECORDS.index(record)
    left = {step.object for step in plan.released}
    assert ("lease l1" in left) == (1 <= at < RECORDS.index("completed UnprepareDevices"))
    assert ("client j1/main.0" in left) == (3 <= at < RECORDS.index("completed UnprepareClient"))
    ended = dict(plan.ended_tasks)
    if at < RECORDS.index("started StartTask") or at >= RECORDS.index("forget"):
        assert ended == {}
    elif at < RECORDS.index("exit"):
        # Nobody has seen its end: it is told as killed, never as if it had not been.
        assert ended["j1"].exit_code == -9
    else:
        assert ended["j1"] == STATUS


async def test_neither_secrets_nor_environments_are_written(tmp_path: Path) -> None:
    await live_until("end", tmp_path / "journal.db")
    written = all_files(tmp_path)
    assert b"PrepareDevices" in written
    assert b"5e5e" not in written
    assert b"hidden" not in written


async def test_the_journal_is_private(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id=BOOT)
    await journal.started(object="lease l1", action="PrepareDevices", body="{}", at=1.0)
    modes = {os.stat(entry).st_mode & 0o777 for entry in os.scandir(tmp_path)}
    await journal.close()
    assert modes == {0o600}


async def test_a_damaged_journal_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database" * 1000)
    journal, aside = await Journal.open(path, boot_id=BOOT)
    assert await journal.last_steps() == ()
    await journal.close()
    assert aside == f"{path}.broken-1"


async def test_a_journal_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FarbusError, match="of a newer version of Farbus"):
        await Journal.open(path, boot_id=BOOT)


async def test_a_journal_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file or directory"):
        await Journal.open(tmp_path / "nowhere" / "journal.db", boot_id=BOOT)


async def test_history_is_bounded_and_what_is_held_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.agent.journal.KEPT_STEPS", 10)
    monkeypatch.setattr("farbus.agent.journal.PRUNE_INTERVAL", 4)
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id=BOOT)
    held = await journal.started(object="lease held", action="PrepareDevices", body="{}", at=1.0)
    await journal.completed(held, error="", at=1.0)
    for number in range(40):
        for action in ("PrepareDevices", "UnprepareDevices"):
            step = await journal.started(object=f"lease l{number}", action=action, body="{}", at=1.0)
            await journal.completed(step, error="", at=1.0)
    steps = await journal.last_steps()
    await journal.close()
    assert steps[0].object == "lease held"
    assert len(steps) <= 10


def test_a_reboot_is_told_apart_from_an_agents_end() -> None:
    body = '{"run": {"job": "j1", "task": "main.0"}}'
    step = Step(id=1, boot_id=BOOT, object="task j1/main.0", action="StartTask", body=body, completed=True)
    here = reconcile(node="n1", boot_id=BOOT, steps=[step], ended_tasks=(), observed=Observed())
    later = reconcile(node="n1", boot_id="another", steps=[step], ended_tasks=(), observed=Observed())
    assert "the agent ended while it ran" in here.ended_tasks[0][1].reason
    assert "the node was rebooted while it ran" in later.ended_tasks[0][1].reason


def test_a_start_that_failed_left_nothing() -> None:
    step = Step(
        id=1, boot_id=BOOT, object="task j1/main.0", action="StartTask", body="{}", completed=True, error="no disk"
    )
    plan = reconcile(node="n1", boot_id=BOOT, steps=[step], ended_tasks=(), observed=Observed())
    assert plan.released == ()
    assert plan.ended_tasks == ()


def test_what_is_observed_is_cleaned_whatever_the_journal_says() -> None:
    observed = Observed(guards=("lease l9",), sessions=("j9.main.0.session",), cgroups=("j9.main.0",))
    plan = reconcile(node="n1", boot_id=BOOT, steps=(), ended_tasks=(), observed=observed)
    assert (plan.guards, plan.sessions, plan.cgroups) == (observed.guards, observed.sessions, observed.cgroups)
