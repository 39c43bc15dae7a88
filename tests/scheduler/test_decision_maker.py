"""How rounds are asked for: in bounded time, away from the event loop, past jobs that can't be digested."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from farbus.errors import InvalidInput, TimedOut
from farbus.model.cluster import LinkLoad
from farbus.model.decision import Decision, PendingJob, RoundReport, Snapshot
from farbus.model.profile import ObservedRun
from farbus.scheduler import decision_process
from farbus.scheduler.decision_maker import FAULT, MAX_FAULTY, DecisionMaker, DecisionThread, decision_maker
from farbus.scheduler.decision_process import MAX_KNOWN_JOBS, DecisionFault, DecisionProcess, Reader
from farbus.scheduler.inference import InferenceEngine
from tests.scheduler.scripted import first_fit
from tests.scheduler.worlds import gpu, job, node


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


WORLD = Snapshot(nodes=(node("a", memory_gib=100), node("b")), devices=(gpu("g0", "a"), gpu("g1", "b")))


def maker(decide: object, limit_s: float = 60.0) -> DecisionMaker:
    return DecisionMaker(DecisionThread(decide), limit_s=limit_s)  # type: ignore[arg-type]


def poisoned(*names: str, together: bool = False) -> DecisionMaker:
    def decide(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        found = [entry.job.id for entry in pending if entry.job.id in names]
        if (len(found) == len(names)) if together else found:
            raise ArithmeticError(f"{found[-1]} is too much")
        return first_fit(snapshot, pending)

    return maker(decide)


def jobs(count: int) -> tuple[PendingJob, ...]:
    return tuple(job(f"j{number:03}", cpus=0.01) for number in range(count))


async def test_a_poisoned_job_is_found_in_few_decisions_and_the_others_are_placed() -> None:
    asked = poisoned("j041")
    decision = await asked.decide(WORLD, jobs(100))
    assert len(decision.placements) == 99
    (missed,) = decision.misses
    assert (missed.job, missed.misses[0].phase) == ("j041", FAULT)
    assert missed.misses[0].message == "no decision comes about with it: ArithmeticError: j041 is too much"
    assert asked.asked <= 10


async def test_several_poisoned_jobs_are_found() -> None:
    decision = await poisoned("j003", "j077").decide(WORLD, jobs(100))
    assert {missed.job for missed in decision.misses} == {"j003", "j077"}
    assert len(decision.placements) == 98


async def test_of_jobs_that_fail_only_together_one_is_left_out() -> None:
    decision = await poisoned("j003", "j077", together=True).decide(WORLD, jobs(100))
    assert [missed.job for missed in decision.misses] == ["j077"]


async def test_a_decision_that_fails_once_blames_no_job() -> None:
    failures = iter([ArithmeticError("killed")])

    def killed_once(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        for failure in failures:
            raise failure
        return first_fit(snapshot, pending)

    decision = await maker(killed_once).decide(WORLD, jobs(5))
    assert (len(decision.placements), decision.misses) == (5, ())


async def test_a_decision_maker_that_always_fails_blames_no_job() -> None:
    def broken(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        raise ArithmeticError("no")

    with pytest.raises(DecisionFault, match="ArithmeticError: no"):
        await maker(broken).decide(WORLD, jobs(4))


async def test_more_faulty_jobs_than_can_be_are_a_fault_of_the_round() -> None:
    names = [f"j{number:03}" for number in range(MAX_FAULTY + 1)]
    with pytest.raises(DecisionFault):
        await poisoned(*names).decide(WORLD, jobs(20))


async def test_a_decision_that_takes_too_long_is_left_behind_and_the_next_is_made() -> None:
    go_on = threading.Event()

    def slow_at_first(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        if len(pending) > 1:
            go_on.wait()
        return first_fit(snapshot, pending)

    asked = maker(slow_at_first, limit_s=0.05)
    with pytest.raises(TimedOut):
        await asked.decide(WORLD, jobs(2))
    assert len((await asked.decide(WORLD, jobs(1))).placements) == 1
    go_on.set()


async def test_who_gives_up_waiting_disturbs_no_other_question() -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def waiting(snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        return first_fit(snapshot, pending)

    asked = maker(waiting)
    first = asyncio.create_task(asked.decide(WORLD, jobs(1)))
    await begun.wait()
    first.cancel()
    second = asyncio.create_task(asked.decide(WORLD, jobs(2)))
    go_on.set()
    assert len((await second).placements) == 2


# --- the process ---------------------------------------------------------------------------


@pytest.fixture
async def process() -> AsyncIterator[DecisionProcess]:
    found = DecisionProcess("")
    yield found
    found.close()


async def test_a_process_decides_as_this_one_does(process: DecisionProcess) -> None:
    here = decision_maker("")
    pending = (job("j1", gpus=1), job("j2", gpus=1), job("j3", gpus=1), job("", cpus=2))
    for world in (WORLD, msgspec.structs.replace(WORLD, devices=WORLD.devices[:1])):
        there = await process.ask(world, pending, limit_s=60.0)
        assert there.placements == here(world, pending).placements
        assert [miss.misses for miss in there.misses] == [miss.misses for miss in here(world, pending).misses]


async def test_where_memory_runs_out_the_process_ends_before_its_parent(process: DecisionProcess) -> None:
    await process.ask(WORLD, (), limit_s=60.0)
    assert oom_score(process.pid) == 1_000


async def test_the_report_follows_the_plan(process: DecisionProcess) -> None:
    reports: list[RoundReport] = []
    told = asyncio.Event()

    def report(found: RoundReport) -> None:
        reports.append(found)
        told.set()

    asked = DecisionMaker(process)
    decision = await asked.decide(WORLD, jobs(3), report=report)
    assert decision.report.gap is None
    # Who asks next waits until it has been read.
    second = await asked.decide(WORLD, jobs(2))
    assert (len(decision.placements), len(second.placements)) == (3, 2)
    await told.wait()
    assert [found.pending for found in reports] == [3]
    assert reports[0].gap == decision_maker("")(WORLD, jobs(3)).report.gap
    assert reports[0].gap is not None


async def test_without_a_bound_the_plan_is_good(process: DecisionProcess) -> None:
    async def lost(*, limit_s: float) -> RoundReport:
        raise DecisionFault(f"nothing within {limit_s} s")

    asked = DecisionMaker(process)
    process.read_report = lost  # type: ignore[method-assign]
    assert len((await asked.decide(WORLD, jobs(3), report=pytest.fail)).placements) == 3


async def test_a_process_that_dies_is_a_fault_and_the_next_question_starts_another(process: DecisionProcess) -> None:
    await process.ask(WORLD, jobs(1), limit_s=60.0)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(DecisionFault, match="signal 9"):
        await process.ask(WORLD, jobs(1), limit_s=60.0)
    assert len((await process.ask(WORLD, jobs(1), limit_s=60.0)).placements) == 1


async def test_a_process_that_hangs_is_killed_while_the_event_loop_turns(process: DecisionProcess) -> None:
    await process.ask(WORLD, jobs(1), limit_s=60.0)
    hung = process.pid
    os.kill(hung, signal.SIGSTOP)
    turns = 0

    async def heartbeat() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beating = asyncio.create_task(heartbeat())
    with pytest.raises(TimedOut):
        await process.ask(WORLD, jobs(1), limit_s=0.1)
    beating.cancel()
    assert turns > 10
    assert process.pid != hung
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)


def test_there_is_no_policy_of_another_name() -> None:
    with pytest.raises(InvalidInput, match="policy: there is no policy 'best'"):
        decision_maker("best")


# --- what travels --------------------------------------------------------------------------


class Wire:
    """Both ends of what travels, without the process between."""

    def __init__(self) -> None:
        self.seen: list[tuple[Snapshot, tuple[PendingJob, ...]]] = []
        self.asking = DecisionProcess("")
        self._reader = Reader(self._decide)

    def _decide(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        self.seen.append((snapshot, pending))
        return first_fit(snapshot, pending)

    def send(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> int:
        question = msgspec.msgpack.encode(self.asking._question(snapshot, pending))
        self.asking._snapshot = snapshot
        self._reader.answer(question)
        assert self.seen[-1] == (snapshot, pending)
        return len(question)


def test_only_what_changed_travels_and_arrives_whole() -> None:
    wire = Wire()
    nodes = tuple(node(f"n{number:03}") for number in range(200))
    links = {f"n{number:03}": (LinkLoad(name="e", speed_bytes_per_s=1e9, receive_bytes_per_s=1.0, send_bytes_per_s=1.0,
                                        measured_at=1.0),) for number in range(200)}  # fmt: skip
    world = Snapshot(nodes=nodes, devices=WORLD.devices, links=links)
    whole = wire.send(world, jobs(100))
    busy = msgspec.structs.replace(
        world,
        nodes=(node("n000", free_cpus=1), *nodes[1:]),
        devices=(gpu("g0", "a", free=False), WORLD.devices[1]),
        links={name: loads for name, loads in links.items() if name != "n007"} | {"n008": ()},
    )
    pending = (*jobs(100), job("new", waited=3))
    wire.send(msgspec.structs.replace(busy, links=links), pending)
    again = wire.send(msgspec.structs.replace(busy, links=links), wire.seen[-1][1])
    assert again < whole
    same = wire.seen[-1][0].nodes
    wire.send(msgspec.structs.replace(busy, links=links), pending)
    assert wire.seen[-1][0].nodes[5] is same[5]


def test_of_jobs_not_too_many_are_kept_on_either_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_KNOWN_JOBS >= 20_000
    monkeypatch.setattr("farbus.scheduler.decision_process.MAX_KNOWN_JOBS", 10)
    wire = Wire()
    for first in range(0, 40, 4):
        wire.send(WORLD, tuple(job(f"j{number}") for number in range(first, first + 4)))
    assert len(wire.asking._jobs) == 10
    assert len(wire._reader._jobs) == 10


def test_a_profile_travels_once_and_again_when_more_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.scheduler.decision_process.MAX_KNOWN_JOBS", 3)
    wire, engine = Wire(), InferenceEngine()

    def known(name: str) -> tuple[PendingJob, ...]:
        engine.observe(ObservedRun(user="u", application=name, seconds=10.0))
        return (msgspec.structs.replace(job(name), profile=engine.known(job(name).job)),)

    pending = known("a")
    first = wire.send(WORLD, pending)
    assert wire.send(WORLD, pending) < first
    wire.send(WORLD, known("a"))
    for number in range(8):
        wire.send(WORLD, known(f"b{number}"))
        assert len(wire.asking._profiles) <= 4
        assert wire.asking._profiles == wire._reader._profiles
    wire.send(WORLD, (job("b7"),))
    assert ("u", "b7") not in wire._reader._profiles, "what was forgotten is nobody's any more"


def test_what_else_a_snapshot_holds_travels_when_it_changed() -> None:
    wire = Wire()
    wire.send(WORLD, jobs(1))
    # Whoever adds a field to these need not think of the way: it has none of its own.
    assert {"nodes", "devices", "links", "at", *decision_process._OF_SNAPSHOT} == set(Snapshot.__struct_fields__)
    assert {"job", "profile", *decision_process._OF_PENDING} == set(PendingJob.__struct_fields__)
    assert wire.asking._question(WORLD, jobs(1)).rest is None
