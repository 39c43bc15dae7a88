"""Kills a process before and after every record of its journal, and looks what the next one makes of it.

A *scenario* is a class, named ``MODULE:CLASS`` because it is made in other
processes: its steps, and its world as anybody can see it.  For each scenario
:func:`kill_everywhere` goes these ways:

* ``forward``: from the old world to the new one,
* ``back``: from the new world to the old one,
* ``fail N``: forward to step N, which fails, and back.

Each way is gone once to its end, to count its records and learn both worlds;
then once for every point before and after every record, where SIGKILL ends
it.  Then another process recovers, is killed at every point in its turn, and a
last one recovers undisturbed.  The world must be the old one or the new one,
and the journal must say the same.

What can't be taken back once it is done (``one_way``) goes forward only.

The processes are forked by one that has imported all that is needed, so that
each costs some ten milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from farbus.agent.journal import Journal
from farbus.agent.reconcile import Verdict, verdict_of
from farbus.agent.steps import Result, Step, StepRunner, Steps
from farbus.errors import Unavailable
from farbus.linux.clock import SystemClock

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
BOOT_ID = "a-boot"

T = TypeVar("T")


class Scenario(Protocol):
    """What is done, and what anybody can see of it.  Made anew in each process."""

    def __init__(self, directory: Path) -> None:
        """Take a directory of its own, which outlives the processes."""
        ...

    def steps(self) -> AbstractAsyncContextManager[Steps]:
        """Open what the steps need, in a running event loop."""
        ...

    def world(self) -> object:
        """Return what is there, as JSON can hold it, without names that differ between two worlds that are equal."""
        ...

    def clear(self) -> None:
        """End and remove everything, for the next try."""
        ...


@runtime_checkable
class Passing(Protocol):
    """A scenario with points of its own to be killed at: it calls ``passing`` at each."""

    passing: Callable[[], None]


class KillingJournal(Journal):
    """A journal that ends its process before or after a record."""

    kill_at = -1
    """The point at which to die, counted from 0."""
    points = 0
    records: list[str]

    async def _write(self, what: str, operation: Callable[[sqlite3.Connection], T]) -> T:
        self.records.append(what)
        self.passing()
        result = await super()._write(what, operation)
        self.passing()
        return result

    async def hurry(self) -> None:
        """Do not wait for the disk: SIGKILL, unlike a power cut, loses nothing that was written."""
        await self._run(lambda connection: connection.execute("PRAGMA synchronous = OFF"))

    def passing(self) -> None:
        """Go by a point, or die there."""
        if self.points == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.points += 1


class FailingStep:
    """A step that does half of its work and then fails."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    async def do(self) -> Result:
        """Do it, and fail all the same: the worst that can happen."""
        await self._step.do()
        raise Unavailable("this step fails")


@dataclass(frozen=True)
class Outcome:
    """What a process that was not killed has seen."""

    records: tuple[str, ...]
    verdict: str
    """What the journal says in the end: held, over, or nothing."""
    points: int = 0
    """At how many points it could have been killed: before and after each record, and the scenario's own."""


async def _live(scenario: Scenario, directory: Path, way: str, kill_at: int) -> Outcome:
    """Go one way, in a process of its own."""
    journal, _ = await KillingJournal.open(directory / "journal.db", boot_id=BOOT_ID)
    assert isinstance(journal, KillingJournal)
    journal.kill_at, journal.records = kill_at, []
    if isinstance(scenario, Passing):
        scenario.passing = journal.passing
    await journal.hurry()
    try:
        async with asyncio.TaskGroup() as group, scenario.steps() as steps:
            runner = StepRunner(journal=journal, clock=SystemClock(), group=group)
            left = {records[0].object: records for records in await journal.sequences()}.get(steps.object)
            if way == "recover":
                if left:
                    await runner.recover(steps, left, boot_id=BOOT_ID)
            elif way == "back":
                assert left
                runner.continue_from(left)
                await runner.back(steps)
            elif way == "forward":
                await runner.perform(steps)
            else:
                number = int(way.removeprefix("fail "))
                broken = tuple(
                    FailingStep(step) if position == number else step for position, step in enumerate(steps.steps)
                )
                failing = Steps(object=steps.object, body=steps.body, steps=broken, resumable=steps.resumable)
                try:
                    await runner.perform(failing)
                except Unavailable:
                    pass
            records = {one[0].object: one for one in await journal.sequences()}.get(steps.object)
            verdict = verdict_of(records, boot_id=BOOT_ID, resumable=False) if records else Verdict.OVER
            return Outcome(tuple(journal.records), verdict.name, journal.points)
    finally:
        await journal.close()


def _serve() -> None:
    """Fork a process for each line of standard input, and answer how it went."""
    # What the steps log must not become part of an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    kind: type[Scenario] = getattr(importlib.import_module(module), name)
    # What is there by now is shared by all that are forked: the collector is not to touch it.
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        heard, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(heard)
                directory = Path(order["directory"])
                outcome = asyncio.run(_live(kind(directory / "world"), directory, order["way"], order["kill_at"]))
                os.write(told, json.dumps([outcome.records, outcome.verdict, outcome.points]).encode())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(told)
        with os.fdopen(heard, "rb") as pipe:
            answer = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"code": code, "answer": answer.decode()}), file=answers, flush=True)


class _Forker:
    """The process that forks others."""

    def __init__(self, scenario: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.killing", scenario],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, directory: Path, way: str, kill_at: int = -1) -> Outcome | None:
        """Let one process go ``way``; return None if it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"directory": str(directory), "way": way, "kill_at": kill_at}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the forking process died"
        said = json.loads(line)
        if said["code"] == -signal.SIGKILL:
            return None
        assert said["code"] == 0, f"{way} ended with {said['code']}, see its standard error"
        records, verdict, points = json.loads(said["answer"])
        return Outcome(tuple(records), verdict, points)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()


@dataclass
class Killed:
    """How often processes were killed, and where the next ones went."""

    kills: int = 0
    to_old: int = 0
    to_new: int = 0
    records: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The records of each way, without a kill."""


class _Killer:
    """One scenario's tries."""

    def __init__(self, scenario: str, directory: Path, forker: _Forker) -> None:
        module, _, name = scenario.partition(":")
        self._kind: type[Scenario] = getattr(importlib.import_module(module), name)
        self._directory = directory
        self._forker = forker
        self._number = 0
        self.told = Killed()
        self.old: object = None
        self.new: object = None

    @contextmanager
    def fresh(self) -> Iterator[tuple[Path, Scenario]]:
        """Give a directory and its world, cleared afterwards."""
        self._number += 1
        directory = self._directory / str(self._number)
        (directory / "world").mkdir(parents=True)
        scenario = self._kind(directory / "world")
        try:
            yield directory, scenario
        finally:
            scenario.clear()
            shutil.rmtree(directory)

    def learn(self, *, one_way: bool) -> None:
        """Go to the new world and back, undisturbed."""
        with self.fresh() as (directory, scenario):
            self.old = scenario.world()
            forward = self._forker.run(directory, "forward")
            self.new = scenario.world()
            assert self.new != self.old, "the steps change nothing"
            if one_way:
                assert forward is not None
                assert forward.verdict == "HELD"
                self.told.records["forward"] = forward.records
                return
            back = self._forker.run(directory, "back")
            assert scenario.world() == self.old, f"the way back does not lead to the old world: {scenario.world()}"
            assert forward is not None
            assert back is not None
            assert (forward.verdict, back.verdict) == ("HELD", "OVER")
            self.told.records |= {"forward": forward.records, "back": back.records}

    def start(self, directory: Path, way: str, kill_at: int) -> Outcome | None:
        """Go one way from where it begins."""
        if way == "back":
            self._forker.run(directory, "forward")
        return self._forker.run(directory, way, kill_at)

    def count(self, way: str) -> int:
        """Return at how many points a process that goes ``way`` can be killed."""
        with self.fresh() as (directory, _):
            outcome = self.start(directory, way, -1)
            assert outcome is not None
            self.told.records[way] = outcome.records
            return outcome.points

    def kill(self, way: str, kill_at: int, *, again_at: int = -1) -> bool:
        """Kill one process at a point, and the one that recovers too; say whether that one got so far."""
        where = f"{way}, killed at point {kill_at}, again at {again_at}"
        with self.fresh() as (directory, scenario):
            assert self.start(directory, way, kill_at) is None, f"{where}: not killed"
            self.told.kills += 1
            if again_at >= 0:
                if self._forker.run(directory, "recover", again_at) is not None:
                    return False
                self.told.kills += 1
            outcome = self._forker.run(directory, "recover")
            assert outcome is not None
            world = scenario.world()
            assert world in (self.old, self.new), f"{where}: neither the old world nor the new: {world}"
            says = self.new if outcome.verdict == "HELD" else self.old
            assert world == says, f"{where}: the journal says {outcome.verdict}, the world is {world}"
            assert outcome.verdict in ("HELD", "OVER"), f"{where}: left in the middle: {outcome.verdict}"
            if world == self.new:
                self.told.to_new += 1
            else:
                self.told.to_old += 1
            return True


def kill_everywhere(
    scenario: str,
    directory: Path,
    *,
    fail: tuple[int, ...] = (),
    twice: bool = False,
    one_way: bool = False,
    most: int = 0,
) -> Killed:
    """Kill at every point of every way; raise AssertionError where neither world is reached.

    ``fail`` are the positions of steps to let fail, ``twice`` says to kill the
    process that recovers, too, at each of its points.  With ``most``, where a world is slow to make, no more than so
    many points of each way, evenly spread.
    """
    forker = _Forker(scenario)
    try:
        killer = _Killer(scenario, directory, forker)
        killer.learn(one_way=one_way)
        for way in ("forward", *(() if one_way else ("back",)), *(f"fail {number}" for number in fail)):
            points = killer.count(way)
            for number in range(min(points, most or points)):
                point = number * points // min(points, most or points)
                killer.kill(way, point)
                again = 0
                while twice and killer.kill(way, point, again_at=again):
                    again += 1
        return killer.told
    finally:
        forker.close()


if __name__ == "__main__":
    _serve()
