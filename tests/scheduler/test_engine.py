"""The engine around the machine: bursts, rounds that take too long, rules that change."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from farbus.model.decision import Decision, PendingJob, RoundGap, RoundReport, Snapshot
from farbus.model.job import TaskState, TaskStatus
from farbus.model.node import Resources
from farbus.model.rules import Quota, Rules
from farbus.model.states import JobState
from farbus.scheduler import engine as engine_module
from farbus.scheduler import events
from farbus.scheduler.decision_maker import FAULT, DecisionMaker, DecisionThread
from farbus.scheduler.engine import Counters, Engine
from farbus.scheduler.ledger import Ledger
from farbus.scheduler.lifecycle import ClusterMachine
from tests.scheduler.scripted import TTL_S, first_fit, job, node

pytestmark = pytest.mark.timeout(60)


class Rounds:
    """A decision maker that notes what it was asked, and may be held up."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.slow_with: int | str = 10**9
        """As many jobs, or the job, that take as long as ``go_on`` is not set."""
        self.fault: Exception | None = None
        """What it raises, whoever waits."""

    def __call__(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        self.seen.append(len(pending))
        self.begun.set()
        if self.fault is not None:
            raise self.fault
        if isinstance(self.slow_with, str):
            slow = any(entry.job.id == self.slow_with for entry in pending)
        else:
            slow = len(pending) >= self.slow_with
        if slow:
            self.go_on.wait()
        return first_fit(snapshot, pending)


@contextlib.asynccontextmanager
async def running(tmp_path: Path, rounds: Rounds, *, limit_s: float = 30.0) -> AsyncIterator[Engine]:
    ledger = Ledger(str(tmp_path / "state"))
    machine = ClusterMachine(term=ledger.term, lease_ttl_s=TTL_S, new_secret=lambda: "0" * 64)
    maker = DecisionMaker(DecisionThread(rounds), limit_s=limit_s)
    engine = Engine(machine=machine, ledger=ledger, maker=maker, round_delay_s=0.0)
    engine.restore(ledger.load())
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        rounds.go_on.set()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        ledger.close()


async def until(engine: Engine, job_id: str, *, misses: str = "") -> None:
    """Wait until a job waits for ``misses``, or for nothing any more."""
    async for status in engine.watch(job_id):
        if status.state is not JobState.QUEUED or any(misses and miss.phase == misses for miss in status.misses):
            return


async def test_a_burst_of_events_shares_a_round(tmp_path: Path) -> None:
    rounds = Rounds()
    async with running(tmp_path, rounds) as engine:
        engine.tell(events.NodeJoined(node=node("a", cpu_milli=100_000), session=1))
        for number in range(4):
            engine.tell(events.JobSubmitted(job=job(f"j{number}")))
        await until(engine, "j3")
        assert rounds.seen == [4]
        assert engine.counters.rounds == 1
        assert engine.counters.considered == 4


async def test_a_round_that_takes_too_long_stops_no_heartbeat_and_the_next_ones_are_smaller(tmp_path: Path) -> None:
    rounds = Rounds()
    rounds.slow_with, limit = 3, 0.2
    rounds.go_on.clear()
    async with running(tmp_path, rounds, limit_s=limit) as engine:
        engine.tell(events.NodeJoined(node=node("a", cpu_milli=100_000), session=1))
        for number in range(4):
            engine.tell(events.JobSubmitted(job=job(f"j{number}")))
        await asyncio.to_thread(rounds.begun.wait)
        # While it is held up, the scheduler hears and answers.
        await engine.tell(events.HeartbeatArrived(node="a", session=1))
        assert engine.counters.rounds_overrun == 0
        await until(engine, "j3")
        assert rounds.seen == [4, 2, 2]
        assert engine.counters.rounds_overrun == 1


async def test_a_job_that_takes_too_long_alone_is_set_aside_and_the_others_are_placed(tmp_path: Path) -> None:
    rounds = Rounds()
    rounds.slow_with = "j1"
    rounds.go_on.clear()
    async with running(tmp_path, rounds, limit_s=0.1) as engine:
        engine.tell(events.NodeJoined(node=node("a", cpu_milli=100_000), session=1))
        for number in range(4):
            engine.tell(events.JobSubmitted(job=job(f"j{number}", submitted_at=float(number))))
        for name in ("j0", "j2", "j3"):
            await until(engine, name)
        await until(engine, "j1", misses=FAULT)
        (miss,) = engine.machine.jobs["j1"].misses
        assert "no decision after 0.1 s; it is set aside until" in miss.message


async def test_jobs_are_told_why_no_round_comes_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a policy of one's own whose answers are no numbers."""
    monkeypatch.setattr(engine_module, "TRANSIENT_S", 0.0)
    rounds = Rounds()
    rounds.fault = ValueError("cannot convert float NaN to integer")
    async with running(tmp_path, rounds) as engine:
        engine.tell(events.NodeJoined(node=node("a"), session=1))
        engine.tell(events.JobSubmitted(job=job("j1")))
        await until(engine, "j1", misses=FAULT)
        (miss,) = engine.machine.jobs["j1"].misses
        assert miss.message == ("no decision comes about for any job: ValueError: cannot convert float NaN to integer")
        rounds.fault = None
        await until(engine, "j1")
        assert engine.machine.jobs["j1"].misses == ()


async def test_what_becomes_of_many_tasks_is_told_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who watches a job of thousands of tasks costs as many tellings of all of them."""
    rests: asyncio.Queue[tuple[int, asyncio.Event]] = asyncio.Queue()

    async def rest(tasks: int) -> None:
        over = asyncio.Event()
        rests.put_nowait((tasks, over))
        await over.wait()

    async with running(tmp_path, Rounds()) as engine:
        room = Resources(cpu_milli=100_000, memory_bytes=2**36)
        engine.tell(events.NodeJoined(node=msgspec.structs.replace(node("a"), capacity=room), session=1))
        await engine.tell(events.JobSubmitted(job=job("j1", count=100)))
        await until(engine, "j1")
        for verb in ("prepare-client", "start-task"):
            for number in range(100):
                command = f"j1-1.main.{number}.{verb}"
                await engine.tell(events.OutcomeArrived(node="a", session=1, command_id=command, ok=True))
        assert engine.machine.jobs["j1"].state is JobState.RUNNING
        monkeypatch.setattr("farbus.scheduler.engine.rest", rest)
        told: asyncio.Queue[int] = asyncio.Queue()

        async def watch() -> None:
            async for status in engine.watch("j1"):
                told.put_nowait(sum(task.state is TaskState.EXITED for task in status.tasks))

        async def end(task: int) -> None:
            status = TaskStatus(task=f"main.{task}", state=TaskState.EXITED, node="a")
            await engine.tell(events.TaskReported(node="a", session=1, job_id="j1", status=status))

        watching = asyncio.create_task(watch())
        assert await told.get() == 0
        await end(0)
        tasks, over = await rests.get()
        assert tasks == 100
        for number in range(1, 60):
            await end(number)
        over.set()
        assert await told.get() == 60
        watching.cancel()


async def test_rules_that_change_hold_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, Rounds()) as engine:
        engine.tell(events.NodeJoined(node=node("a"), session=1))
        await engine.tell(events.RulesChanged(rules=Rules(quota=Quota(jobs=0))))
        engine.tell(events.JobSubmitted(job=job("j1")))
        await until(engine, "j1", misses="quota")
        await engine.tell(events.RulesChanged(rules=Rules()))
        await until(engine, "j1")
        assert engine.machine.jobs["j1"].state is not JobState.QUEUED


def test_rounds_whose_pruning_was_not_proved_are_counted() -> None:
    counters = Counters()
    for exact in (True, False, True):
        counters.take(
            RoundReport(pending=1, placed=1, decision_ms=1.0, solves=1, certified=False, exact=exact),
        )
    assert counters.inexact == 1


@pytest.mark.parametrize("first", ["plan", "bound"])
def test_the_bound_of_a_round_is_kept_whichever_is_read_first(first: str) -> None:
    counters = Counters()
    earlier = RoundReport(pending=1, placed=1, decision_ms=1.0, solves=1, certified=False)
    plan = msgspec.structs.replace(earlier, decision_ms=2.0)
    bound = msgspec.structs.replace(plan, gap=RoundGap(score=3, bound=2))
    counters.take(earlier)
    if first == "bound":
        counters.complete(bound)
    counters.take(plan)
    if first == "plan":
        counters.complete(bound)
    assert counters.last_round == bound
    assert counters.solves == 2
