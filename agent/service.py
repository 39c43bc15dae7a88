"""The agent's middle: one queue of events, the machine, and where its actions go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from farbus.agent.actions import (
    Action,
    Answer,
    ForgetTask,
    RecordExit,
    RecordFence,
    Report,
    ReportClientEnded,
    ReportLeaseEnded,
    ReportTask,
)
from farbus.agent.events import Event, NodeRestored, TimePassed
from farbus.agent.executor import Executor
from farbus.agent.journal import Journal
from farbus.agent.machine import NodeMachine
from farbus.errors import FarbusError
from farbus.linux.clock import Clock

_log = structlog.get_logger()

EXPIRY_MARGIN_S = 0.05
"""Added to a lease's end before it is looked at, so that one look suffices."""


class AgentService:
    """Feeds the machine and does what it says.

    Reports go to a function that is called from the event loop and must not
    wait; what it does when there is no session is its own matter, since the
    next hello tells the scheduler everything.
    """

    def __init__(self, *, machine: NodeMachine, journal: Journal, clock: Clock) -> None:
        self.machine = machine
        self._journal = journal
        self._clock = clock
        self._report: Callable[[Report], None] = _nobody_listens
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._handling = False
        self._executor: Executor | None = None
        self.restored = asyncio.Event()
        """Set once the machine knows what an earlier agent left."""

    def post(self, event: Event) -> None:
        """Put an event into the queue.

        The queue has no limit of its own: its length is bounded by what is
        under way on the node and by the session's flow control.
        """
        self._events.put_nowait(event)

    async def run(
        self, executor: Executor, report: Callable[[Report], None], restored: NodeRestored | None = None
    ) -> None:
        """Handle events until cancelled: first what was restored, then what was posted, since whenever.

        Work goes to ``executor``, reports to ``report``.
        """
        self._executor = executor
        self._report = report
        if restored is not None:
            await self._handle(restored)
        self.restored.set()
        while True:
            await self._handle(await self._events.get())

    async def _handle(self, event: Event) -> None:
        self._handling = True
        for action in self.machine.handle(event):
            await self._do(action)
        self._handling = False
        self._changed.set()
        self._changed = asyncio.Event()

    async def _do(self, action: Action) -> None:
        match action:
            case Answer() | ReportTask() | ReportLeaseEnded() | ReportClientEnded():
                if isinstance(action, ReportLeaseEnded):
                    _log.warning("lease ended", lease=action.lease_id, reason=action.reason)
                self._report(action)
            case RecordExit():
                _log.info(
                    "task ended", job=action.job, task=action.status.task,
                    exit_code=action.status.exit_code, reason=action.status.reason,
                )  # fmt: skip
                if await self._record(self._journal.task_ended(action.job, action.status, at=self._clock.wall())):
                    self._work().forget(job=action.job, task=action.status.task)
            case RecordFence():
                await self._record(self._journal.fence(action.epochs))
            case ForgetTask():
                await self._record(self._journal.task_forgotten(action.job, action.task, at=self._clock.wall()))
                # Again: where its exit could not be recorded, it was kept until the scheduler had it.
                self._work().forget(job=action.job, task=action.task)
            case work:
                self._work().start(work)

    def _work(self) -> Executor:
        assert self._executor is not None
        return self._executor

    async def _record(self, write: Awaitable[None]) -> bool:
        """Write a record; say whether it is on the disk."""
        try:
            await write
        except FarbusError as error:
            # The status is still told to the scheduler, and its keeper's copy stays for the next agent.
            _log.error("journal not written", error=str(error))
            return False
        return True

    async def watch_expiry(self) -> None:
        """Tell the machine when a lease may have expired: fencing, also while there is no session."""
        while True:
            changed = self._changed
            expiry = self.machine.next_expiry()
            now = self._clock.monotonic()
            if expiry is not None and expiry <= now:
                self.post(TimePassed(now=now))
                expiry = None
            if expiry is None:
                await changed.wait()
                continue
            waits = [
                asyncio.create_task(_finish(changed.wait())),
                asyncio.create_task(_finish(self._clock.sleep(expiry - now + EXPIRY_MARGIN_S))),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def until(self, condition: Callable[[NodeMachine], bool]) -> None:
        """Return once ``condition`` holds of the machine, looked at after each event with all its actions begun."""
        while self._handling or not condition(self.machine):
            await self._changed.wait()


async def _finish(awaitable: Awaitable[object]) -> None:
    await awaitable


def _nobody_listens(_report: Report) -> None:
    """Drop a report: before :meth:`AgentService.run` there is no session to send it in."""
