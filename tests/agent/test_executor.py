"""Recording around work: what is written when, and what goes on when it can't be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from farbus.agent.actions import PrepareDevices, UnprepareDevices, Work
from farbus.agent.events import ActionDone, PreparedLease, TaskRun
from farbus.agent.executor import Executor
from farbus.agent.journal import Journal
from farbus.errors import ExitCode, InvalidInput, Unavailable
from farbus.linux.clock import FakeClock
from farbus.model.lease import Lease
from tests.agent.harness import lease


class Host:
    """Devices and tasks that do what the test says, and look at the journal meanwhile."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.error: Exception | None = None
        self.seen: list[tuple[str, bool]] = []

    async def _work(self) -> None:
        self.seen = [(step.action, step.completed) for step in await self.journal.last_steps()]
        if self.error is not None:
            raise self.error

    async def prepare_devices(self, lease: Lease) -> str:
        await self._work()
        return "a:1"

    async def unprepare_devices(self, lease_id: str) -> None:
        await self._work()

    async def prepare_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...]
    ) -> dict[str, str]:
        await self._work()
        return {}

    async def unprepare_client(self, *, job: str, task: str) -> None:
        await self._work()

    async def start(self, run: TaskRun, environment: dict[str, str]) -> None:
        await self._work()

    async def stop(self, *, job: str, task: str, grace_s: float, reason: str) -> None:
        await self._work()


async def run(journal: Journal, host: Host, work: Work) -> ActionDone:
    """Do one piece of work to its end."""
    done: list[ActionDone] = []
    async with asyncio.TaskGroup() as group:
        executor = Executor(journal=journal, devices=host, tasks=host, clock=FakeClock(), group=group, done=done.append)
        executor.start(work)
    return done[0]


PREPARE = PrepareDevices(serial=1, lease=lease())
UNPREPARE = UnprepareDevices(serial=2, lease_id="l1")


async def test_the_start_is_on_record_while_the_work_is_done_and_the_end_after_it(tmp_path: Path) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b")
    host = Host(journal)
    assert await run(journal, host, PREPARE) == ActionDone(serial=1, ok=True, endpoint="a:1")
    assert host.seen == [("PrepareDevices", False)]
    assert [step.completed for step in await journal.last_steps()] == [True]
    await journal.close()


@pytest.mark.parametrize(
    ("error", "blame_job", "code"),
    [
        (InvalidInput("bad").with_exit_code(ExitCode.COMMAND_NOT_FOUND), True, 127),
        (Unavailable("busy"), False, 6),
        (OSError(28, "No space left on device"), False, 1),
        (ValueError("a planted defect"), False, 1),
    ],
)
async def test_every_error_becomes_an_outcome_and_is_recorded(
    error: Exception, blame_job: bool, code: int, tmp_path: Path
) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b")
    host = Host(journal)
    host.error = error
    outcome = await run(journal, host, PREPARE)
    assert (outcome.ok, outcome.blame_job, outcome.exit_code) == (False, blame_job, code)
    (step,) = await journal.last_steps()
    assert step.error == outcome.error
    await journal.close()


async def test_without_a_journal_nothing_is_begun_but_everything_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="b")
    host = Host(journal)

    async def full(**_: object) -> int:
        raise Unavailable("journal: database or disk is full")

    monkeypatch.setattr(journal, "started", full)
    outcome = await run(journal, host, PREPARE)
    assert (outcome.ok, outcome.error) == (False, "journal: database or disk is full")
    assert (await run(journal, host, UNPREPARE)).ok
    await journal.close()
