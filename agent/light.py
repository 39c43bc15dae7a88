"""Light agents: the session, the back-off and the machine of an agent, on a node that is only pretended.

A light agent speaks the real protocol over real connections and does its
work at once: a lease is prepared, a program started and ended without
anything happening on the machine.  Thousands of them fit into one process,
for load on a scheduler.  It keeps no journal, and its leases don't expire
by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from farbus.agent.actions import (
    Action,
    Answer,
    ForgetTask,
    PrepareClient,
    PrepareDevices,
    RecordExit,
    ReportLeaseEnded,
    ReportTask,
    StartTask,
    StopTask,
    UnprepareClient,
    UnprepareDevices,
)
from farbus.agent.events import ActionDone, Event, SessionOpened, TaskExited
from farbus.agent.logs import LogStore
from farbus.agent.machine import NodeMachine
from farbus.agent.membership import Membership
from farbus.agent.session import SessionRunner, Stream
from farbus.linux.clock import Clock
from farbus.model.device import Route
from farbus.model.node import Node

KILLED = -9
"""Exit code of a pretended program that was stopped."""


class LightAgent:
    """One light agent; :meth:`run` keeps its session.

    Programs end with exit code 0 after ``task_s`` seconds.  ``heard`` is told
    every event before the machine is.
    """

    def __init__(
        self,
        node: Node,
        *,
        open_stream: Callable[[], AbstractAsyncContextManager[Stream]],
        clock: Clock,
        task_s: float = 0.0,
        heard: Callable[[str, Event], None] = lambda node, event: None,
    ) -> None:
        self.node = node
        self.machine = NodeMachine(node=node.name)
        self.welcomes = 0
        """Sessions that were opened."""
        self._welcomed = asyncio.Event()
        self.dials = 0
        """Times that it tried to open one."""
        self._clock = clock
        self._task_s = task_s
        self._heard = heard
        self._events: deque[Event] = deque()
        self._handling = False
        self._programs: dict[tuple[str, str], asyncio.TimerHandle] = {}

        def dial() -> AbstractAsyncContextManager[Stream]:
            self.dials += 1
            return open_stream()

        self.session = SessionRunner(
            open_stream=dial,
            machine=self.machine,
            membership=Membership(None),
            node=lambda: self.node,
            telemetry=lambda encoder: encoder.update({}),
            # It keeps no output: readers are told that there is none.
            logs=LogStore(Path("/nonexistent"), limit_bytes_per_task=0, limit_bytes=0),
            clock=clock,
            post=self.post,
        )

    async def run(self) -> None:
        """Keep a session with the scheduler until cancelled."""
        try:
            await self.session.run()
        finally:
            for timer in self._programs.values():
                timer.cancel()

    async def welcomed(self, times: int) -> None:
        """Return once that many sessions were opened."""
        while self.welcomes < times:
            await self._welcomed.wait()

    def post(self, event: Event) -> None:
        """Handle an event, and those that its work leads to, in their order."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, SessionOpened):
                    self.welcomes += 1
                    self._welcomed.set()
                    self._welcomed = asyncio.Event()
                self._heard(self.node.name, event)
                for action in self.machine.handle(event):
                    self._do(action)
        finally:
            self._handling = False

    def _do(self, action: Action) -> None:
        match action:
            case Answer() | ReportTask() | ReportLeaseEnded():
                self.session.report(action)
            case RecordExit() | ForgetTask():
                pass
            case PrepareDevices():
                endpoint = "" if action.lease.route is Route.LOCAL else f"{self.node.address}:1"
                self.post(ActionDone(serial=action.serial, ok=True, endpoint=endpoint))
            case UnprepareDevices() | PrepareClient() | UnprepareClient():
                self.post(ActionDone(serial=action.serial, ok=True))
            case StartTask():
                key = (action.run.job, action.run.task)
                self.post(ActionDone(serial=action.serial, ok=True))
                self._programs[key] = asyncio.get_running_loop().call_later(self._task_s, self._exit, key, 0)
            case StopTask():
                key = (action.job, action.task)
                if key in self._programs:
                    self._programs[key].cancel()
                    self._exit(key, KILLED)
                self.post(ActionDone(serial=action.serial, ok=True))

    def _exit(self, key: tuple[str, str], code: int) -> None:
        del self._programs[key]
        job, task = key
        self.post(TaskExited(job=job, task=task, exit_code=code))
