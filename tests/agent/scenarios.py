"""Programs and whole plans, to be killed at every record (:mod:`tests.harness.killing`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from farbus.agent.config import AgentConfig
from farbus.agent.events import PreparedLease, TaskRun
from farbus.agent.executor import GiveDevices, RunProgram, ServeDevices
from farbus.agent.jobs import TaskRunner
from farbus.agent.logs import LogStore
from farbus.agent.remoting_host import RemotingHost
from farbus.agent.steps import Result, Steps
from farbus.api.authority import Credentials
from farbus.linux.cgroups import FakeCgroups
from farbus.linux.clock import SystemClock
from farbus.linux.kept import KeptProcesses
from farbus.linux.processes import Child, Program
from farbus.linux.users import SystemUsers
from farbus.model.device import Device, DeviceKind
from tests.agent.harness import GPU, MYSELF, SmallSupervisor, lease

OWNER = "kill-harness"


@dataclass(frozen=True)
class StartProgram:
    """Starts a program under a keeper; observed by its name."""

    processes: KeptProcesses
    found: dict[str, Child]
    name: str
    kind: str = "StartProgram"
    devices: tuple[str, ...] = ()
    deadline_s: float = 30.0
    lasting: bool = False

    @property
    def identity(self) -> str:
        return self.name

    async def _found(self) -> Child | None:
        # Each is found once.
        self.found.update({child.name: child for child in await self.processes.survivors("step.")})
        return self.found.get(self.name)

    async def observe(self, known: Result | None) -> Result | None:
        found = await self._found()
        return {} if found is not None and found.running else None

    async def do(self) -> Result:
        await self.compensate()
        self.found[self.name] = await self.processes.spawn(
            Program(name=self.name, what=self.name, argv=("sleep", "1000"), environment={"PATH": "/usr/bin:/bin"})
        )
        return {}

    async def compensate(self) -> None:
        if (found := await self._found()) is not None:
            found.kill("taken back")
            await found.wait()
            found.forget()
            del self.found[self.name]


class Programs:
    """Two programs, each under a keeper."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        processes = KeptProcesses(self._directory, owner=OWNER)
        try:
            names = ("step.one", "step.two")
            found: dict[str, Child] = {}
            yield Steps(
                object="programs",
                body="{}",
                steps=tuple(StartProgram(processes, found, name) for name in names),
                resumable=True,
            )
        finally:
            await processes.close()

    def world(self) -> object:
        return {"programs": running(self._directory), "kept": sorted(os.listdir(self._directory))}

    def clear(self) -> None:
        end_all(self._directory)


@dataclass
class Give:
    """The client side of a lease whose endpoint is known only when its device side is there."""

    host: RemotingHost
    endpoint: Callable[[], str]
    kind: str = "PrepareClient"
    identity: str = "client j1/main.0"
    devices: tuple[str, ...] = ()
    deadline_s: float = 30.0
    lasting: bool = False

    def _step(self) -> GiveDevices:
        leases = (PreparedLease(lease=lease(), endpoint=self.endpoint()),)
        return GiveDevices(host=self.host, job="j1", task="main.0", user=MYSELF, leases=leases)

    async def observe(self, known: Result | None) -> Result | None:
        return await self._step().observe(known)

    async def do(self) -> Result:
        return await self._step().do()

    async def compensate(self) -> None:
        await self._step().compensate()


class QuickSupervisor(SmallSupervisor):
    """One that starts in a millisecond, and only says that it listens."""

    def command(self, *, address: str, **_: object) -> tuple[str, ...]:
        return ("sh", "-c", f"echo listening {address}:7000; exec sleep 1000")


class Plan:
    """What an agent does for a task with a remote device: its own steps, on its own hosts.

    A recovering process ends what it has not adopted, as an agent does.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._config = AgentConfig(
            name="n1",
            scheduler="127.0.0.1:1",
            address="127.0.0.1",
            state=str(directory),
            socket=str(directory / "socket"),
            credentials=Credentials(authority="", certificate="", key=""),
            run_as_self=True,
        )

    @contextlib.asynccontextmanager
    async def steps(self) -> AsyncIterator[Steps]:
        config = self._config
        config.sessions_directory.mkdir(exist_ok=True)
        processes = KeptProcesses(config.programs_directory, owner=OWNER)
        users = SystemUsers()
        endpoints: list[str] = []
        async with asyncio.TaskGroup() as group:
            host = RemotingHost(
                config=config,
                processes=processes,
                users=users,
                devices=lambda: {GPU: Device(id=GPU, kind=DeviceKind.GPU, model="Test GPU")},
                group=group,
                died=lambda _: None,
                supervisor=QuickSupervisor(),
            )
            runner = TaskRunner(
                processes=processes,
                cgroups=FakeCgroups(trouble="not in this test"),
                users=users,
                logs=LogStore(config.logs_directory, limit_bytes_per_task=1 << 20, limit_bytes=1 << 20),
                clock=SystemClock(),
                group=group,
                told=lambda event: runner.forget(job=event.job, task=event.task),
                run_as_self=True,
                allow_root=True,
            )

            class Serve(ServeDevices):
                async def observe(self, known: Result | None) -> Result | None:
                    found = await super().observe(known)
                    endpoints.extend([found["endpoint"]] if found else [])
                    return found

                async def do(self) -> Result:
                    found = await super().do()
                    endpoints.append(found["endpoint"])
                    return found

            run = TaskRun(job="j1", task="main.0", user=MYSELF, command=("sleep", "1000"))
            yield Steps(
                object="plan j1",
                body="{}",
                steps=(
                    Serve(host=host, lease=lease()),
                    Give(host=host, endpoint=lambda: endpoints[-1] if endpoints else ""),
                    RunProgram(host=runner, run=run, environment={}),
                ),
            )
            await host.end_strangers()
            await runner.end_strangers()
            await processes.close()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task() and task.get_name().startswith(("task ", "supervisor ")):
                    task.cancel()

    def world(self) -> object:
        config = self._config
        sessions = os.listdir(config.sessions_directory) if config.sessions_directory.exists() else []
        kept = os.listdir(config.programs_directory) if config.programs_directory.exists() else []
        return {"programs": running(self._directory), "sessions": sorted(sessions), "kept": sorted(kept)}

    def clear(self) -> None:
        end_all(self._directory)


def _keepers(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        if OWNER in (process.info["cmdline"] or []) and (process.info["cwd"] or "").startswith(f"{directory}/"):
            found.append(process)
    return found


def running(directory: Path) -> list[str]:
    """Return the names of the programs that run under keepers below a directory."""
    names = []
    for keeper in _keepers(directory):
        with contextlib.suppress(psutil.NoSuchProcess):
            names += [Path(keeper.cwd()).name for child in keeper.children()]
    return sorted(names)


def end_all(directory: Path) -> None:
    """End every keeper below a directory with its program."""
    keepers = _keepers(directory)
    for keeper in keepers:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*keeper.children(recursive=True), keeper]:
                process.kill()
    psutil.wait_procs(keepers, 20)
