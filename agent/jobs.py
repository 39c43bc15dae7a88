"""Runs tasks: as their user, within their limits, with their output kept and their end noticed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from farbus.agent.events import TaskExited, TaskRun
from farbus.agent.logs import NOTICE_STREAM, LogStore, LogWriter
from farbus.agent.names import file_name
from farbus.errors import FarbusError, InvalidInput, NotPermitted
from farbus.linux.cgroups import Cgroups
from farbus.linux.clock import Clock
from farbus.linux.processes import Child, Processes, Program
from farbus.linux.users import Account, Users
from farbus.model.quantity import format_bytes

_log = structlog.get_logger()

TIME_LIMIT_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL for a task that has used up its time."""

MEMORY_WATCH_INTERVAL_S = 1.0
"""How often the memory of tasks is read where no cgroup limits it: a fast allocation may overshoot meanwhile."""

CGROUP_REMOVE_ATTEMPTS = 50
CGROUP_REMOVE_INTERVAL_S = 0.1
"""A killed process leaves its group when it has ended, soon after it was waited for."""

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"

# Lists that a task's devices extend; everything else of theirs replaces the user's.
_LISTS = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def choose_account(user: str, *, users: Users, run_as_self: bool, allow_root: bool) -> Account | None:
    """Return whom a task of ``user`` runs as; None for whom the agent runs as.

    Raises :class:`NotPermitted` for a user that this node must not serve,
    :class:`farbus.errors.NotFound` for one that it does not know.
    """
    myself = users.myself()
    if run_as_self:
        if user != myself.name:
            raise NotPermitted(
                f"task of {user}: this agent runs tasks of its own user {myself.name} only",
                hint="submit as that user, or run the agent as a service (farbus agent, as root)",
            )
        return None
    account = users.by_name(user)
    if account.uid == 0 and not allow_root:
        raise NotPermitted(
            f"task of {user}: this node runs nothing as root", hint="submit as another user, or set allow_root"
        )
    if account.uid == myself.uid:
        return None
    if myself.uid != 0:
        raise NotPermitted(
            f"task of {user}: this agent runs as {myself.name} and can't become another user",
            hint="run the agent as root",
        )
    return account


def task_environment(run: TaskRun, account: Account, devices: dict[str, str]) -> dict[str, str]:
    """Return the whole environment of a task: a login's, then the job's own, then what its devices need."""
    environment = {
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        "PATH": DEFAULT_PATH,
        "LANG": "C.UTF-8",
        **run.environment,
        "FARBUS_JOB": run.job,
        "FARBUS_TASK": run.task,
    }
    for name, value in devices.items():
        before = environment.get(name, "")
        environment[name] = f"{value}:{before}" if name in _LISTS and before else value
    return environment


@dataclass
class _Running:
    child: Child
    log: LogWriter
    gone: asyncio.Event
    reason: str = ""


class TaskRunner:
    """The tasks of one agent.  ``exited`` hears of every end, once its output is complete."""

    def __init__(
        self,
        *,
        processes: Processes,
        cgroups: Cgroups,
        users: Users,
        logs: LogStore,
        clock: Clock,
        group: asyncio.TaskGroup,
        exited: Callable[[TaskExited], None],
        run_as_self: bool,
        allow_root: bool,
    ) -> None:
        self._processes = processes
        self._cgroups = cgroups
        self._users = users
        self._logs = logs
        self._clock = clock
        self._group = group
        self._exited = exited
        self._run_as_self = run_as_self
        self._allow_root = allow_root
        self._running: dict[tuple[str, str], _Running] = {}

    async def start(self, run: TaskRun, environment: dict[str, str]) -> None:
        """Start a task's program; repeated for one that runs, does nothing."""
        key = (run.job, run.task)
        if key in self._running:
            return
        name = f"{file_name(run.job, what='job')}.{file_name(run.task, what='task')}"
        if not run.command:
            raise InvalidInput(f"task {run.job}/{run.task}: there is no command to run")
        account = choose_account(
            run.user, users=self._users, run_as_self=self._run_as_self, allow_root=self._allow_root
        )
        log = self._logs.create(run.job, run.task)
        try:
            group = self._cgroups.create(name, memory_bytes=run.requests.memory_bytes, cpu_milli=run.requests.cpu_milli)
            try:
                child = await self._processes.spawn(
                    Program(
                        what=f"task {run.job}/{run.task}",
                        argv=run.command,
                        environment=task_environment(run, account or self._users.myself(), environment),
                        cwd=run.cwd,
                        account=account,
                        # A core of a program with device memory mapped is large and its home may be full.
                        limits={"RLIMIT_CORE": 0},
                        cgroup=group,
                    )
                )
            except BaseException:
                self._cgroups.remove(name)
                raise
        except FarbusError as error:
            log.append(NOTICE_STREAM, f"farbus: {error}\n".encode())
            log.close()
            raise
        except BaseException:
            log.close()
            raise
        running = _Running(child=child, log=log, gone=asyncio.Event())
        self._running[key] = running
        self._group.create_task(self._attend(run, running, name), name=f"task {run.job}/{run.task}")

    async def _attend(self, run: TaskRun, running: _Running, group: str) -> None:
        """Follow a program to its end."""
        watches = [asyncio.create_task(self._copy_output(running), name=f"output of {run.job}/{run.task}")]
        if run.time_limit_s > 0:
            watches.append(asyncio.create_task(self._watch_time(run, running)))
        if run.requests.memory_bytes and "memory" not in self._cgroups.controllers:
            watches.append(asyncio.create_task(self._watch_memory(run, running)))
        try:
            code = await running.child.wait()
            # The program and all that it started are gone, so its pipes have ended.
            await watches[0]
            if self._cgroups.out_of_memory(group) and not running.reason:
                running.reason = _memory_reason(run.requests.memory_bytes)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            running.child.kill()
        if running.reason:
            running.log.append(NOTICE_STREAM, f"farbus: stopped: {running.reason}\n".encode())
        running.log.close()
        await self._remove_group(group)
        del self._running[run.job, run.task]
        running.gone.set()
        self._exited(TaskExited(job=run.job, task=run.task, exit_code=code, reason=running.reason))

    async def _copy_output(self, running: _Running) -> None:
        while (piece := await running.child.read_output()) is not None:
            stream, data = piece
            running.log.append(stream, data)
            # Writing may not wait, so nothing else here gives way to others.
            await asyncio.sleep(0)

    async def _watch_time(self, run: TaskRun, running: _Running) -> None:
        await self._clock.sleep(run.time_limit_s)
        running.reason = running.reason or f"it has run for its time limit of {run.time_limit_s:g} s"
        await self._end(running, grace_s=TIME_LIMIT_GRACE_S)

    async def _watch_memory(self, run: TaskRun, running: _Running) -> None:
        limit = run.requests.memory_bytes
        while True:
            await self._clock.sleep(MEMORY_WATCH_INTERVAL_S)
            used = running.child.memory_bytes()
            if used > limit:
                running.reason = running.reason or f"{_memory_reason(limit)} (it used {format_bytes(used)})"
                running.child.kill()
                return

    async def _remove_group(self, name: str) -> None:
        for attempt in range(CGROUP_REMOVE_ATTEMPTS):
            try:
                self._cgroups.remove(name)
            except FarbusError as error:
                if attempt == CGROUP_REMOVE_ATTEMPTS - 1:
                    _log.error("cgroup not removed", error=str(error))
                await self._clock.sleep(CGROUP_REMOVE_INTERVAL_S)
            else:
                return

    async def stop(self, *, job: str, task: str, grace_s: float, reason: str) -> None:
        """End a task's program and return once it is gone; at once for one that is not there."""
        running = self._running.get((job, task))
        if running is None:
            return
        running.reason = running.reason or reason
        await self._end(running, grace_s=grace_s)

    async def _end(self, running: _Running, *, grace_s: float) -> None:
        if grace_s > 0:
            running.child.signal(signal.SIGTERM)
            gone = asyncio.create_task(running.gone.wait())
            timer = asyncio.create_task(self._clock.sleep(grace_s))
            try:
                await asyncio.wait((gone, timer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                timer.cancel()
        if not running.gone.is_set():
            running.child.kill()
        await running.gone.wait()

    async def adopt(self, run: TaskRun) -> bool:
        """Go on with a program of an earlier agent; True if it runs or has ended with its status waiting."""
        return False

    def forget(self, *, job: str, task: str) -> None:
        """Drop what is kept of a task that has ended: its status is in the journal."""

    async def end_strangers(self) -> tuple[str, ...]:
        """End and name what an earlier agent left and nobody adopted."""
        for name in self._cgroups.list():
            self._cgroups.remove(name)
        return ()

    async def stop_all(self, *, grace_s: float) -> None:
        """End all tasks, for the agent's own end."""
        async with asyncio.TaskGroup() as group:
            for job, task in list(self._running):
                group.create_task(self.stop(job=job, task=task, grace_s=grace_s, reason="the agent was stopped"))


def _memory_reason(limit: int) -> str:
    return f"it used more memory than the {format_bytes(limit)} that it asked for"
