"""Tasks of the emulated Redfish service: changes that go on behind a reply of 202."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from farbus.hotplug.fabric.emulator.chassis import EmulatedChassis, raise_fault
from farbus.hotplug.fabric.emulator.faults import FaultKind
from farbus.hotplug.fabric.emulator.front import Running, faulty, json_reply
from farbus.hotplug.fabric.emulator.redfish_words import V1, Collection, Ports, Resource, Single, error, link
from farbus.hotplug.fabric.http import Reply
from farbus.model.fabric import FabricStep

MAX_TASKS = 256
"""Tasks that are remembered; the oldest that are done go first."""

Change = Callable[[bool], Coroutine[Any, Any, Reply]]
"""Work that changes the chassis; true where the switch shall not do what it is told."""

Steps = Sequence[tuple[FabricStep, str, str]]
"""Steps with their device and port, in their order."""


class Tasks:
    """Does changes, as a task or at once, with what shall go wrong with each."""

    def __init__(self, chassis: EmulatedChassis, *, running: Running) -> None:
        self._chassis = chassis
        self._running = running
        self._tasks: dict[str, asyncio.Task[Reply]] = {}
        self._number = 0
        self.collections: Sequence[Collection] = (
            Collection("/TaskService/Tasks", "TaskCollection", lambda _: list(self._tasks)),
        )
        self.singles: Sequence[Single] = (
            Single(r"/TaskService", self._service),
            Single(r"/TaskService/Tasks/([^/]+)", self._resource),
        )

    async def change(self, step: FabricStep | None, change: Change) -> Reply:
        """Make a change, which is a request for ``step`` as far as faults go; None for one that changes nothing."""
        fault = self._chassis.faults.draw(step) if step else None
        raise_fault(fault, after=False)
        if fault is not None and fault.kind is FaultKind.ERROR and not fault.after:
            return error(502, "GeneralError", "The switch does not answer.")

        async def work() -> Reply:
            reply = await change(fault is not None and fault.kind is FaultKind.DENY)
            if reply.status < 400 and fault is not None and fault.kind is FaultKind.FALSE_NEGATIVE:
                return error(400, "GeneralError", "No response from the switch.")
            return reply

        if not self._chassis.config.tasks:
            return faulty(await self._running.finish(work()), fault)
        return faulty(self._start(work()), fault)

    async def steps(self, steps: Steps, *, unless: Callable[[], bool] = lambda: False) -> Reply:
        """Do steps in their order, ``unless`` something has changed; the first that fails ends them."""

        async def work(deny: bool) -> Reply:
            if unless():
                return error(412, "PreconditionFailed", "It has changed.")
            return await self.do(steps, deny=deny) or Reply(204, {}, b"")

        return await self.change(steps[0][0] if steps else None, work)

    async def do(self, steps: Steps, *, deny: bool) -> Reply | None:
        """Do steps in their order, as a part of a change; return the error of the first that fails, which ends them."""
        for step, device, port in steps:
            if step is FabricStep.ASSIGN:
                outcome = await self._chassis.assign(device, port, deny=deny)
            else:
                outcome = await self._chassis.unassign(device, source=port, deny=deny)
            if not outcome.done:
                return error(outcome.status if outcome.status in (404, 409) else 400, "GeneralError", outcome.remark)
        return None

    def _start(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        for name in [name for name, task in self._tasks.items() if task.done()][: -MAX_TASKS or None]:
            del self._tasks[name]
        self._number += 1
        name = str(self._number)
        self._tasks[name] = self._running.start(work)
        monitor = f"{V1}/TaskService/TaskMonitors/{name}"
        return json_reply(202, self._resource({}, name), {"location": monitor})

    async def monitor(self, name: str) -> Reply:
        """Answer who asks what became of a task."""
        fault = self._chassis.faults.draw(FabricStep.LIST, has_devices=False)
        raise_fault(fault, after=False)
        task = self._tasks.get(name)
        if task is None:
            return error(404, "ResourceMissingAtURI", "There is no such task.")
        if not task.done():
            here = f"{V1}/TaskService/TaskMonitors/{name}"
            return faulty(json_reply(202, self._resource({}, name), {"location": here}), fault)
        if task.cancelled() or task.exception() is not None:
            return error(500, "InternalError", "The task was ended.")
        return faulty(task.result(), fault)

    def _service(self, _: Ports) -> Resource:
        return {
            "@odata.type": "#TaskService.v1_2_0.TaskService",
            "Id": "TaskService",
            "Name": "Task service",
            "Tasks": link("/TaskService/Tasks"),
        }

    def _resource(self, _: Ports, name: str) -> Resource | None:
        if name not in self._tasks:
            return None
        work = self._tasks[name]
        state, status, messages = "Running", "OK", []
        if work.done():
            failed = work.cancelled() or work.exception() is not None or work.result().status >= 400
            state, status = ("Exception", "Warning") if failed else ("Completed", "OK")
            if failed:
                messages = [{"MessageId": "Base.1.0.GeneralError", "Message": "The change was not made."}]
        return {
            "@odata.id": f"{V1}/TaskService/Tasks/{name}",
            "@odata.type": "#Task.v1_7_0.Task",
            "Id": name,
            "Name": f"Task {name}",
            "TaskState": state,
            "TaskStatus": status,
            "TaskMonitor": f"{V1}/TaskService/TaskMonitors/{name}",
            "Messages": messages,
        }
