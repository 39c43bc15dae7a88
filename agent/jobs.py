"""Runs tasks: as their user, within their limits, with their output kept and their end noticed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import structlog

from farbus.agent.accounts import NO_RULES, UserRules, choose_account
from farbus.agent.events import TaskExited, TaskLaunched, TaskRun
from farbus.agent.logs import LogStore
from farbus.agent.names import file_name
from farbus.agent.staging import Staging
from farbus.errors import Conflict, ExitCode, FarbusError, InvalidInput, TimedOut, Unavailable
from farbus.linux.cgroups import Cgroups
from farbus.linux.clock import Clock
from farbus.linux.processes import Child, DeviceLimit, Exit, Processes, Program
from farbus.linux.users import Account, Users
from farbus.model.job import STOPPED
from farbus.model.quantity import format_bytes
from farbus.remoting.launcher import settings_unheard

_log = structlog.get_logger()

MEMORY_WATCH_INTERVAL_S = 1.0
"""How often the memory of tasks is read where no cgroup limits it: a fast allocation may overshoot meanwhile."""

MEMORY_COUNT_INTERVAL_S = 5.0
"""Between two exact counts of a program whose processes share much: each costs some 150 ms of processor time."""

STRANGER_END_S = 15.0
"""Longest wait for a killed program of an earlier agent; one in state D takes longer."""

CGROUP_REMOVE_ATTEMPTS = 50
CGROUP_REMOVE_INTERVAL_S = 0.1
"""A killed process leaves its group when it has ended, soon after it was waited for."""

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"

# Lists that a task's devices extend; everything else of theirs replaces the user's.
_LISTS = ("LD_PRELOAD", "LD_LIBRARY_PATH")


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


def _unheard(run: TaskRun, devices: dict[str, str]) -> str:
    """Say which variables of a task's own only a shim would heed, where its devices bring none; empty without any."""
    names = settings_unheard(run.environment, devices)
    if not names:
        return ""
    told = f"farbus: {' and '.join(names)} {'do' if len(names) > 1 else 'does'} nothing here: "
    if "CUDA_VISIBLE_DEVICES" in devices:
        return told + 'the GPU is of this node, not by remoting; routes = ["remote"] asks for one that is\n'
    return told + "the task has asked for no GPU; gpus = 1 asks for one\n"


def program_name(job: str, task: str) -> str:
    """Return the name of a task's program on its node."""
    return f"task.{file_name(job, what='job')}.{file_name(task, what='task')}"


@dataclass
class _Running:
    child: Child
    gone: asyncio.Event
    stopped: bool = False
    putting_out: asyncio.Task[str] | None = None


@dataclass
class _Arriving:
    task: asyncio.Task[None]
    stopped: bool = False
    launching: bool = False
    """Its program may be there from now on."""


def no_limits(_job: str, _task: str) -> tuple[DeviceLimit, ...]:
    """Where no task has storage."""
    return ()


class TaskRunner:
    """The tasks of one agent.

    ``told`` hears of every end, once its output is complete, and of files that
    have arrived.

    :attr:`launching` is entered before a program is started whose files had to
    arrive first, and left once it runs: from its beginning on it may have run.

    Programs outlive the agent: the next one adopts those that it knows of
    (:meth:`adopt`) and ends the rest (:meth:`end_strangers`).  What is kept of
    a program that has ended goes when its status is safe (:meth:`forget`).
    """

    def __init__(
        self,
        *,
        processes: Processes,
        cgroups: Cgroups,
        users: Users,
        logs: LogStore,
        clock: Clock,
        group: asyncio.TaskGroup,
        told: Callable[[TaskLaunched | TaskExited], None],
        run_as_self: bool,
        allow_root: bool,
        orphan_limit_s: float = 0.0,
        rules: UserRules = NO_RULES,
        staging: Staging | None = None,
        io_limits: Callable[[str, str], tuple[DeviceLimit, ...]] = no_limits,
    ) -> None:
        self._io_limits = io_limits
        self._rules = rules
        self._staging = staging
        self._arriving: dict[tuple[str, str], _Arriving] = {}
        self._processes = processes
        self._cgroups = cgroups
        self._users = users
        self._logs = logs
        self._clock = clock
        self._group = group
        self._told = told
        self.launching: Callable[[TaskRun], AbstractAsyncContextManager[None]] = _no_record
        self._run_as_self = run_as_self
        self._allow_root = allow_root
        self._orphan_limit_s = orphan_limit_s
        self._running: dict[tuple[str, str], _Running] = {}
        self._ended: dict[tuple[str, str], Child] = {}
        self._strangers: dict[str, Child] = {}

    async def start(self, run: TaskRun, environment: dict[str, str]) -> None:
        """Start a task's program; repeated for one that runs, does nothing."""
        key = (run.job, run.task)
        if key in self._running:
            return
        # Of an earlier attempt, whose status could not be recorded: its name is wanted again.
        self.forget(job=run.job, task=run.task)
        name = program_name(run.job, run.task)
        if not run.command:
            raise InvalidInput(f"task {run.job}/{run.task}: there is no command to run")
        account = self._account(run)
        if run.is_staged:
            if key not in self._arriving:
                # Its files may take longer than a step may: to the scheduler the task runs from now on.
                arriving = self._arrive(
                    self._required_staging(run), name, run, environment, account, self._logs.create(run.job, run.task)
                )
                self._arriving[key] = _Arriving(
                    self._group.create_task(arriving, name=f"stage in {run.job}/{run.task}")
                )
            return
        await self._launch(name, run, environment, account, run.cwd or "/", self._logs.create(run.job, run.task))

    def _account(self, run: TaskRun) -> Account | None:
        return choose_account(
            run.user,
            users=self._users,
            run_as_self=self._run_as_self,
            allow_root=self._allow_root,
            rules=self._rules,
        )

    def _required_staging(self, run: TaskRun) -> Staging:
        if self._staging is None:
            raise InvalidInput(f"task {run.job}/{run.task}: this node stages no files")
        return self._staging

    async def _arrive(
        self,
        staging: Staging,
        name: str,
        run: TaskRun,
        environment: dict[str, str],
        account: Account | None,
        output: Path,
    ) -> None:
        """Fetch a task's files, then start it; what goes wrong is its end."""
        directory = _group_of(name)
        arriving = self._arriving[run.job, run.task]
        try:
            path = await staging.stage_in(directory, run, account)
            async with self.launching(run):
                arriving.launching = True
                await self._launch(name, run, environment, account, run.cwd or str(path), output)
            self._told(TaskLaunched(job=run.job, task=run.task))
        except asyncio.CancelledError:
            self._logs.ended(run.job, run.task)
            if arriving.launching:
                # The agent stops: the next one takes hold of the program, if there is one.
                raise
            await staging.remove(directory)
            if not arriving.stopped:
                # The agent stops: the next one finds that it has not begun, and says so.
                raise
            self._told(
                TaskExited(
                    job=run.job,
                    task=run.task,
                    exit_code=-signal.SIGTERM,
                    reason=STOPPED,
                    # Not by the job: whoever wants it ended has told the scheduler so.
                    unstarted=True,
                )
            )
        except Exception as defect:
            error = _told_of(defect, run)
            self._logs.ended(run.job, run.task)
            await staging.remove(directory)
            away = not arriving.launching and isinstance(error, Unavailable | TimedOut)
            self._told(
                TaskExited(
                    job=run.job, task=run.task, exit_code=int(error.exit_code), reason=str(error), unstarted=away
                )
            )
        finally:
            del self._arriving[run.job, run.task]

    async def _launch(
        self, name: str, run: TaskRun, environment: dict[str, str], account: Account | None, cwd: str, output: Path
    ) -> None:
        if told := _unheard(run, environment):
            self._logs.note(run.job, run.task, told)
        try:
            limits = self._io_limits(run.job, run.task)
            group = self._create_group(run)
            try:
                if group:
                    self._limit_io(run, limits)
                child = await self._processes.spawn(
                    Program(
                        name=name,
                        what=f"task {run.job}/{run.task}",
                        argv=run.command,
                        environment=task_environment(run, account or self._users.myself(), environment),
                        cwd=cwd,
                        account=account,
                        # A core of a program with device memory mapped is large and its home may be full.
                        limits={"RLIMIT_CORE": 0},
                        cgroup=group,
                        io_limits=limits,
                        output=str(output),
                        output_bytes=self._logs.limit_bytes_per_task,
                        time_limit_s=run.time_limit_s,
                        orphan_limit_s=self._orphan_limit_s,
                        memory_bytes=run.requests.memory_bytes,
                        cpu_milli=run.requests.cpu_milli,
                        memory_reason=_memory_reason(run.requests.memory_bytes),
                    )
                )
            except Exception:
                # Not where the agent stops: its program may be in it.
                self._cgroups.remove(_group_name(run))
                raise
        except FarbusError as error:
            self._logs.note(run.job, run.task, f"farbus: {error}\n")
            self._logs.ended(run.job, run.task)
            raise
        except BaseException:
            self._logs.ended(run.job, run.task)
            raise
        self._attend_to(run, child)

    def _create_group(self, run: TaskRun) -> str:
        if self._processes.limits_memory:
            return ""
        requests = run.requests
        return self._cgroups.create(_group_name(run), memory_bytes=requests.memory_bytes, cpu_milli=requests.cpu_milli)

    def _limit_io(self, run: TaskRun, limits: tuple[DeviceLimit, ...]) -> None:
        """Limit what a task's group may do with its storage; without the io controller it is measured alone."""
        for device in limits:
            try:
                self._cgroups.limit_io(_group_name(run), device.number, device.limit)
            except FarbusError as error:
                _log.warning("bandwidth of storage not limited", job=run.job, task=run.task, reason=str(error))

    async def adopt(self, run: TaskRun) -> bool:
        """Go on with a task's program that an earlier agent has started; say whether there is one.

        It may have ended meanwhile: ``told`` hears of it as ever.
        """
        if (run.job, run.task) in self._running:
            return True
        await self._look()
        child = self._strangers.pop(program_name(run.job, run.task), None)
        if child is None:
            return False
        self._attend_to(run, child)
        return True

    async def _look(self) -> None:
        """Find what an earlier agent has left; again, only what has not been found yet."""
        self._strangers |= {child.name: child for child in await self._processes.survivors("task.")}

    async def end_strangers(self) -> tuple[str, ...]:
        """End the programs that nobody adopted, with all that is kept of them, and return their names."""
        await self._look()
        strangers, self._strangers = self._strangers, {}
        for child in strangers.values():
            child.kill("this node's agent does not know it")
        for child in strangers.values():
            try:
                async with asyncio.timeout(STRANGER_END_S):
                    await child.wait()
            except TimeoutError as error:
                # It may use devices, and nobody knows which: to go on would tell the scheduler that they are free.
                raise Conflict(
                    f"{child.name}: left by an earlier agent, in no record, and can't be killed (pid {child.pid})",
                    hint="a call of the kernel hangs; see dmesg, the node may need a reboot",
                ) from error
            child.forget()
        known = {_group_of(program_name(job, task)) for job, task in (*self._running, *self._arriving)}
        if self._staging is not None:
            await self._staging.remove_strangers(known)
        for name in self._cgroups.list():
            if name not in known:
                await self._remove_group(name)
        return tuple(strangers)

    def _attend_to(self, run: TaskRun, child: Child) -> None:
        running = _Running(child=child, gone=asyncio.Event())
        self._running[run.job, run.task] = running
        self._logs.attach(run.job, run.task, child)
        self._group.create_task(self._attend(run, running), name=f"task {run.job}/{run.task}")

    async def _attend(self, run: TaskRun, running: _Running) -> None:
        """Follow a program to its end."""
        watch: asyncio.Task[None] | None = None
        limited = self._processes.limits_memory or "memory" in self._cgroups.controllers
        if run.requests.memory_bytes and not limited:
            watch = asyncio.create_task(self._watch_memory(run, running))
        try:
            ended = await running.child.wait()
        finally:
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        reason = ended.reason
        if ended.code and not reason and self._cgroups.out_of_memory(_group_name(run)):
            reason = _memory_reason(run.requests.memory_bytes)
        self._logs.ended(run.job, run.task)
        await self._remove_group(_group_name(run))
        if run.is_staged and (trouble := await self._put_out(run, running)):
            # A job that did what it was for, but whose output is not there, has failed.
            failed = bool(ended.code)
            ended = Exit(ended.code or int(ExitCode.RUN_FAILED))
            reason = reason or (f"its output was not kept: {trouble}" if failed else trouble)
        del self._running[run.job, run.task]
        self._ended[run.job, run.task] = running.child
        running.gone.set()
        self._told(TaskExited(job=run.job, task=run.task, exit_code=ended.code, reason=reason))

    async def _put_out(self, run: TaskRun, running: _Running) -> str:
        """Send a task's output and remove its directory; return what went wrong."""
        trouble = ""
        name, staging = _group_name(run), self._required_staging(run)
        if not running.stopped:
            running.putting_out = asyncio.create_task(self._stage_out(staging, name, run))
            try:
                trouble = await running.putting_out
            except asyncio.CancelledError:
                running.putting_out.cancel()
                if not running.stopped:
                    # The agent stops: the next one puts out what is left.
                    raise
                trouble = "it was stopped while its output was sent"
        await staging.remove(name)
        return trouble

    async def _stage_out(self, staging: Staging, name: str, run: TaskRun) -> str:
        try:
            await staging.stage_out(name, run, self._account(run))
        except Exception as error:
            return str(_told_of(error, run))
        return ""

    async def _watch_memory(self, run: TaskRun, running: _Running) -> None:
        limit = run.requests.memory_bytes
        while True:
            await self._clock.sleep(MEMORY_WATCH_INTERVAL_S)
            # What its processes share counts for each of them here: only above the limit it has to be told apart.
            if running.child.resident_bytes() <= limit:
                continue
            try:
                used = await running.child.memory_bytes()
            except FarbusError as error:
                _log.warning("memory not counted", error=str(error))
                used = 0
            if used > limit:
                running.child.kill(f"{_memory_reason(limit)} (it used {format_bytes(used)})")
                return
            await self._clock.sleep(MEMORY_COUNT_INTERVAL_S)

    def forget(self, *, job: str, task: str) -> None:
        """Drop what is kept of a task that has ended, now that its status is in the journal."""
        child = self._ended.pop((job, task), None)
        if child is not None:
            child.forget()

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
        arriving = self._arriving.get((job, task))
        if arriving is not None:
            arriving.stopped = True
            if not arriving.launching:
                # A start that is cut off would leave behind what nobody knows of.
                arriving.task.cancel()
            await asyncio.wait((arriving.task,))
        running = self._running.get((job, task))
        if running is not None:
            # What a task that was stopped leaves is not sent, which might take longer than a stop may.
            running.stopped = True
            if running.putting_out is not None:
                running.putting_out.cancel()
            running.child.end(grace_s=grace_s, reason=reason)
            await running.gone.wait()

    async def stop_all(self, *, grace_s: float) -> None:
        """End all tasks, for the agent's own end."""
        async with asyncio.TaskGroup() as group:
            for job, task in [*self._running, *self._arriving]:
                group.create_task(self.stop(job=job, task=task, grace_s=grace_s, reason="the agent was stopped"))


def _no_record(_run: TaskRun) -> AbstractAsyncContextManager[None]:
    """Stand where nobody records anything."""
    return contextlib.nullcontext()


def _told_of(error: Exception, run: TaskRun) -> FarbusError:
    """Return an error as the task's user is told it; a defect, which his files may have met, ends his task alone."""
    if isinstance(error, FarbusError):
        return error
    _log.error("defect", job=run.job, task=run.task, exc_info=error)
    return FarbusError(f"a defect: {error!r}")


def _memory_reason(limit: int) -> str:
    return f"it used more memory than the {format_bytes(limit)} that it asked for"


def _group_name(run: TaskRun) -> str:
    return _group_of(program_name(run.job, run.task))


def _group_of(program: str) -> str:
    return program.removeprefix("task.")
