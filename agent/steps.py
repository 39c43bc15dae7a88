"""The action protocol: steps that can be looked at, done, taken back, and interrupted anywhere.

What is done to an object is a sequence of steps.  Going forward, each step is
observed first (it may be done already), recorded as started, done, recorded as
completed with its result.  Going back, the steps are compensated in reverse.
An agent that is killed between any two of these finds in its journal where it
was, and goes on in either direction (:mod:`farbus.agent.reconcile`).

A step that is not done within its deadline makes its object *wedged*: its work
goes on, in whatever disposable child it waits for, it keeps its turn on its
devices, and it records its own end; but nobody waits for it any more.

docs/decisions/0006-the-action-protocol.md says why it is so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec
import structlog

from farbus.agent.journal import Direction, Journal, Record
from farbus.agent.reconcile import Verdict, results_of, verdict_of
from farbus.agent.turns import Turns
from farbus.errors import Conflict, FarbusError, TimedOut
from farbus.linux.clock import Clock

_log = structlog.get_logger()

Result = dict[str, str]
"""What a step gives to those who come after it, and to a restarted agent.  Never a secret."""


class Step(Protocol):
    """One step.  Everything may be repeated, also after it was cut off anywhere in the middle."""

    @property
    def kind(self) -> str:
        """Names the kind of step in the journal: never changes."""
        ...

    @property
    def identity(self) -> str:
        """Names what it is done to, by what stays the same about it."""
        ...

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices on which the kernel works for it: it has each of them to itself meanwhile."""
        ...

    @property
    def deadline_s(self) -> float:
        """How long it may take, in either direction, before its object is wedged."""
        ...

    @property
    def lasting(self) -> bool:
        """Whether what it does outlives a boot."""
        ...

    async def observe(self, known: Result | None) -> Result | None:
        """Return its result if it is done, and take hold of what it made; None if it is not, or only in part.

        ``known`` is the result that was recorded, if any.
        """
        ...

    async def do(self) -> Result:
        """Do it, or the rest of it."""
        ...

    async def compensate(self) -> None:
        """Take it back, whole or in part; nothing happens where nothing was done."""
        ...


@runtime_checkable
class TellsOverdue(Protocol):
    """A step that knows what its object waits for."""

    def overdue(self) -> FarbusError | None:
        """Return what there is to say when its deadline has passed; None for nothing in particular."""
        ...


@runtime_checkable
class OnlyWaits(Protocol):
    """A step that may be left at any moment: it waits for others, and changes nothing that its compensation would not
    find."""

    only_waits: bool


class CallOff:
    """The word that a sequence is not wanted any more: it may come at any time, also before the sequence begins."""

    def __init__(self) -> None:
        self.by = ""
        """Who has said so; empty while nobody has."""
        self.said = asyncio.Event()

    def say(self, by: str) -> None:
        """Call it off; who said so first counts."""
        self.by = self.by or by
        self.said.set()

    def check(self) -> None:
        """Raise :class:`CalledOff` once somebody has."""
        if self.said.is_set():
            raise CalledOff(f"called off by {self.by}")


class CalledOff(Conflict):
    """Somebody wants it no more."""


class StepNews(NamedTuple):
    """A step begins; ``does`` is false where it was found done already."""

    step: Step
    position: int
    length: int
    direction: Direction
    does: bool


def _nobody_listens(_: StepNews) -> None:
    """Where nobody wants to hear how far a sequence is."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What is done to one object, in order.

    ``body`` is JSON from which the steps can be made again.  ``resumable``
    says that it is enough to go on forward; a sequence that needs a secret is
    not, and one that was interrupted is taken back.  ``told`` hears of each
    step once its begin is on record.  ``call_off`` ends it on its way forward:
    before the next step, or in the middle of one that only waits.
    """

    object: str
    body: str
    steps: tuple[Step, ...]
    resumable: bool = False
    told: Callable[[StepNews], None] = _nobody_listens
    call_off: CallOff | None = None


class WedgedError(TimedOut):
    """A deadline has passed, and the work goes on."""


@dataclass
class _Operation:
    """One step on its way in one direction."""

    step: Step
    direction: Direction
    turn_at: float | None = None
    """When its turn came; None while it waits for that."""
    task: asyncio.Task[tuple[Exception | None, Result]] = field(init=False)

    def __str__(self) -> str:
        return f"{self.direction} {self.step.kind} of {self.step.identity}"


@dataclass
class RecordedSequence:
    """A sequence as it stands in the journal: its number, and the positions of the steps that were begun."""

    number: int
    begun: set[int]


class StepRunner:
    """Takes sequences forward and back.

    ``wedge_ended`` hears the name of an object whose overdue work has ended
    after all.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        clock: Clock,
        group: asyncio.TaskGroup,
        wedge_ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._group = group
        self._wedge_ended = wedge_ended
        self._sequences: dict[str, RecordedSequence] = {}
        """Each object's last sequence."""
        self._wedged: dict[str, _Operation] = {}
        self._turns = Turns()
        self._holders: dict[str, _Operation] = {}

    def continue_from(self, records: Sequence[Record]) -> None:
        """Go on with the sequence that an earlier agent recorded."""
        begun = {record.position for record in records if record.direction is Direction.FORWARD}
        self._sequences[records[0].object] = RecordedSequence(records[0].sequence, begun)

    def knows(self, name: str) -> bool:
        """Say whether anything was begun of an object, and is not taken back."""
        return name in self._sequences or name in self._wedged

    def forget(self, name: str) -> None:
        """Drop what is kept about an object that is no more."""
        self._sequences.pop(name, None)

    async def forward(self, steps: Steps, *, known: Mapping[int, Result] | None = None) -> Result:
        """Do what is not done yet; return the results of all steps as one.

        ``known`` are recorded results by position: such a sequence is gone on
        with, any other is a new one.  Raises what stopped it; what was done
        until then stays, to be taken back by :meth:`back`.
        """
        await self._settle(steps.object)
        if known is None:
            self.forget(steps.object)
        whole: Result = {}
        for position in range(len(steps.steps)):
            if steps.call_off is not None:
                steps.call_off.check()
            recorded = known.get(position) if known else None
            whole |= await self._run(steps, position, Direction.FORWARD, recorded)
        return whole

    async def back(self, steps: Steps) -> None:
        """Compensate every step that was begun, the last one first.  Raises what stopped it; it may be asked again."""
        await self._settle(steps.object)
        known = self._sequences.get(steps.object)
        for position in reversed(range(len(steps.steps))):
            if known is not None and known.begun and position not in known.begun:
                continue
            await self._run(steps, position, Direction.BACK, None)
        # An agent that runs for months leads millions of sequences.
        self.forget(steps.object)

    async def perform(self, steps: Steps) -> Result:
        """Do all steps, or none: what was done before one failed is taken back, and its error is raised."""
        try:
            result = await self.forward(steps)
        except WedgedError:
            # Nothing can be taken back before it has ended; whoever asks again goes on from there.
            raise
        except Exception:
            await self.back(steps)
            raise
        # Nobody will take it back.
        self.forget(steps.object)
        return result

    async def recover(self, steps: Steps, records: Sequence[Record], *, boot_id: str) -> Result | None:
        """Bring a sequence of an earlier agent to one of its ends; return its result, None where nothing is left of it.

        What was done is observed, and taken back if it is not whole any more;
        what was under way is gone on with where it can be, and else taken back.
        """
        self.continue_from(records)
        known = results_of(tuple(records))
        verdict = verdict_of(tuple(records), boot_id=boot_id, resumable=steps.resumable)
        if verdict is Verdict.OVER:
            return None
        if verdict is Verdict.HELD and (result := await self.adopt(steps, known)) is not None:
            return result
        if verdict is Verdict.FORWARD:
            try:
                return await self.forward(steps, known=known)
            except FarbusError as error:
                _log.warning("not gone on with", object=steps.object, error=str(error))
        await self.back(steps)
        return None

    async def adopt(self, steps: Steps, known: Mapping[int, Result]) -> Result | None:
        """Take hold of a sequence that is done by its records; None when a step of it is not observed.

        Nothing is recorded: nothing changes.
        """
        whole: Result = {}
        for position, step in enumerate(steps.steps):
            found = await step.observe(known.get(position))
            if found is None:
                return None
            whole |= found
        return whole

    async def _settle(self, name: str) -> None:
        """Return once no overdue work for the object is under way; raise if it is overdue again."""
        if (wedged := self._wedged.get(name)) is not None:
            await self._wait(name, wedged)

    async def _run(self, steps: Steps, position: int, direction: Direction, known: Result | None) -> Result:
        operation = _Operation(step=steps.steps[position], direction=direction)
        work = self._operate(steps, position, operation, known)
        try:
            operation.task = self._group.create_task(work, name=f"{operation} for {steps.object}")
        except RuntimeError as error:
            # The group takes no more tasks: the agent stops, and has got as far as to cancel who asks here.
            work.close()
            raise asyncio.CancelledError from error
        try:
            if steps.call_off is not None and direction is Direction.FORWARD:
                await self._wait_unless(steps.call_off, steps.object, operation)
            else:
                await self._wait(steps.object, operation)
        except asyncio.CancelledError:
            operation.task.cancel()
            raise
        problem, result = await operation.task
        if problem is not None:
            raise problem
        return result

    async def _wait_unless(self, call_off: CallOff, name: str, operation: _Operation) -> None:
        """Wait for it; where it is called off while it waits for its turn, or for others, leave it."""
        waiting = asyncio.create_task(self._wait(name, operation), name=f"wait for {operation}")
        said = asyncio.create_task(call_off.said.wait(), name=f"call-off of {operation}")
        try:
            await asyncio.wait({waiting, said}, return_when=asyncio.FIRST_COMPLETED)
            patient = isinstance(operation.step, OnlyWaits) and operation.step.only_waits
            if not waiting.done() and (patient or operation.turn_at is None):
                operation.task.cancel()
                # Cut off it stays "started" in the journal, as after a crash, and is compensated.
                await asyncio.wait({operation.task})
                if operation.task.cancelled():
                    call_off.check()
            await waiting
        finally:
            for task in (waiting, said):
                task.cancel()

    async def _wait(self, name: str, operation: _Operation) -> None:
        """Return once the operation has ended; raise when it is overdue."""
        deadline_s, began = operation.step.deadline_s, self._clock.monotonic()
        await self._within(operation, deadline_s)
        if not operation.task.done() and operation.turn_at is not None:
            # Its own time has run since its turn came: until then it has kept the kernel from nothing.
            await self._within(operation, operation.turn_at - began)
        if operation.task.done():
            return
        if operation.turn_at is None:
            operation.task.cancel()
            held = "; ".join(
                f"device {device} is held by {self._holders[device]}"
                for device in operation.step.devices
                if device in self._holders
            )
            raise Conflict(f"{operation}: its turn did not come within {deadline_s:g} s: {held}")
        if self._wedged.get(name) is not operation:
            self._wedged[name] = operation
            operation.task.add_done_callback(lambda _: self._unwedge(name, operation))
            _log.error("wedged", object=name, action=str(operation), deadline_s=deadline_s)
        told = operation.step.overdue() if isinstance(operation.step, TellsOverdue) else None
        if told is not None:
            raise WedgedError(told.message, hint=told.hint)
        raise WedgedError(
            f"{operation} is still not done after {deadline_s:g} s, and goes on",
            hint="a driver call may hang; see dmesg",
        )

    async def _within(self, operation: _Operation, limit_s: float) -> None:
        """Return once the operation has ended, or after ``limit_s`` seconds."""
        timer = asyncio.create_task(_finish(self._clock.sleep(limit_s)))
        try:
            await asyncio.wait({operation.task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    def _unwedge(self, name: str, operation: _Operation) -> None:
        self._wedged.pop(name, None)
        if not operation.task.cancelled():
            problem, _ = operation.task.result()
            _log.warning("overdue work has ended", object=name, action=str(operation), error=str(problem or ""))
            self._wedge_ended(name)

    async def _operate(
        self, steps: Steps, position: int, operation: _Operation, known: Result | None
    ) -> tuple[Exception | None, Result]:
        """Do one step with its records; return its error, if any, and its result.

        The error is a value: nobody may be left who would take it when it was raised.
        """
        step = operation.step
        try:
            async with self._turn(operation):
                forward = operation.direction is Direction.FORWARD
                found = await step.observe(known) if forward else None
                if forward and found is None and steps.call_off is not None:
                    # To look may have taken long, and nothing of it was begun.
                    steps.call_off.check()
                number = await self._record_start(steps, position, operation)
                steps.told(
                    StepNews(step, position, len(steps.steps), operation.direction, not forward or found is None)
                )
                problem: Exception | None = None
                result = found or {}
                # Cut off in here, it stays "started", as after a crash.
                try:
                    if not forward:
                        await step.compensate()
                    elif found is None:
                        result = await step.do()
                except Exception as error:
                    problem = error
                if number:
                    await self._record_end(operation, number, problem, result)
                return problem, result
        except Exception as error:
            return error, {}

    @contextlib.asynccontextmanager
    async def _turn(self, operation: _Operation) -> AsyncIterator[None]:
        """Have the step's devices to itself; taken in one order by all, so that nobody waits in a circle."""
        async with contextlib.AsyncExitStack() as stack:
            for device in sorted(operation.step.devices):
                await stack.enter_async_context(self._turns.of(device))
                self._holders[device] = operation
                stack.callback(self._holders.pop, device)
            operation.turn_at = self._clock.monotonic()
            yield

    async def _record_start(self, steps: Steps, position: int, operation: _Operation) -> int:
        """Return the record's number; 0 for one that could not be written and does not hold the work up."""
        known = self._sequences.get(steps.object)
        try:
            number = await self._journal.started(
                object=steps.object,
                action=operation.step.kind,
                body=steps.body,
                at=self._clock.wall(),
                sequence=known.number if known is not None else 0,
                position=position,
                length=len(steps.steps),
                direction=operation.direction,
                lasting=operation.step.lasting,
            )
        except FarbusError as error:
            if operation.direction is Direction.FORWARD:
                raise
            # Giving up must work on a full disk too: what is not recorded is cleaned up once more.
            _log.error("journal not written", action=str(operation), object=steps.object, error=str(error))
            return 0
        known = self._sequences.setdefault(steps.object, RecordedSequence(number, set()))
        if operation.direction is Direction.FORWARD:
            known.begun.add(position)
        return number

    async def _record_end(self, operation: _Operation, number: int, problem: Exception | None, result: Result) -> None:
        told = "" if problem is None else str(problem) or repr(problem)
        try:
            await self._journal.completed(
                number, error=told, at=self._clock.wall(), result=msgspec.json.encode(result).decode()
            )
        except FarbusError as error:
            # It stays "started": a restart looks what became of it, as after a crash.
            _log.error("journal not written", action=str(operation), error=str(error))


async def _finish(awaitable: Awaitable[object]) -> None:
    await awaitable
