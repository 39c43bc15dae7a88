"""The agent: puts the parts together, runs them, takes them down in order."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from pathlib import Path

import msgspec
import structlog

from farbus.agent.config import AgentConfig
from farbus.agent.events import LeasesVoided
from farbus.agent.executor import Executor
from farbus.agent.inventory import GpuSource, Inventory, take_inventory
from farbus.agent.jobs import TaskRunner
from farbus.agent.journal import Journal
from farbus.agent.local import Identifier, LocalCluster
from farbus.agent.logs import LogStore
from farbus.agent.machine import NodeMachine
from farbus.agent.reconcile import Observed, compensation_of, reconcile
from farbus.agent.remoting_host import RemotingHost, SupervisorProgram, software_gpu_directory, software_gpu_environment
from farbus.agent.service import AgentService
from farbus.agent.session import SessionRunner
from farbus.agent.telemetry.collectors import Sources, make_collectors
from farbus.agent.telemetry.export import Exporter
from farbus.agent.telemetry.gpu import ProcessMemory
from farbus.agent.telemetry.pipeline import Pipeline
from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.api.server import serve_local
from farbus.api.session import open_session
from farbus.errors import Conflict, ExitCode, FarbusError, NotPermitted, first_error
from farbus.linux.cgroups import Cgroups, KernelCgroups
from farbus.linux.clock import Clock, SystemClock
from farbus.linux.files import FileLock, make_directory
from farbus.linux.node_facts import KernelNodeFacts, NodeFacts
from farbus.linux.notify import Notifier, SystemdNotifier
from farbus.linux.nvml import WorkerNvml
from farbus.linux.processes import GuardedProcesses, Processes
from farbus.linux.shared_memory import KernelSharedMemory, SharedMemory
from farbus.linux.sysfs import KernelSysfs, Sysfs
from farbus.linux.users import SystemUsers, Users
from farbus.model.device import Device
from farbus.model.job import TaskStatus
from farbus.remoting import paths

_log = structlog.get_logger()

INVENTORY_INTERVAL_S = 30.0
"""How often the node's devices are listed again."""

MARKS = ("FARBUS_UP_STATE",)
"""Variables by which a command that runs this agent finds all that belongs to it."""

STOP_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL for tasks when the agent is stopped."""

STOP_MARGIN_S = 20.0
"""Added for what is left after the tasks: supervisors, session files."""

TASK_ACTIONS = ("StartTask", "StopTask")

REMAINS_ATTEMPTS = 100
REMAINS_INTERVAL_S = 0.1
"""What a dead agent left ends by itself within moments; after that it is killed, and must be gone in ten seconds."""


class Doors(msgspec.Struct, frozen=True, kw_only=True):
    """Everything through which an agent touches its machine."""

    processes: Processes
    cgroups: Cgroups
    users: Users
    clock: Clock
    facts: NodeFacts
    sysfs: Sysfs
    notifier: Notifier
    gpu_sources: tuple[GpuSource, ...]
    shared: SharedMemory
    remoting: SupervisorProgram = SupervisorProgram()


def real_doors(config: AgentConfig) -> Doors:
    """Return the doors to this machine."""
    sources = []
    if config.physical_devices:
        sources.append(GpuSource(WorkerNvml(), False))
    if config.softgpu:
        directory = software_gpu_directory(config)
        paths.require(directory / "libnvidia-ml.so.1", what="the software GPU's management library")
        environment = {"LD_LIBRARY_PATH": str(directory), **software_gpu_environment(config)}
        sources.append(GpuSource(WorkerNvml(environment=environment), True))
    return Doors(
        processes=GuardedProcesses(
            owner=agent_identity(config), mark={name: os.environ[name] for name in MARKS if name in os.environ}
        ),
        # By its whole identity: another cluster on this machine may have a node of this name.
        cgroups=KernelCgroups(agent=agent_identity(config).replace(":", "-")),
        users=SystemUsers(),
        clock=SystemClock(),
        facts=KernelNodeFacts(),
        sysfs=KernelSysfs(),
        notifier=SystemdNotifier(),
        gpu_sources=tuple(sources),
        shared=KernelSharedMemory(),
    )


def agent_identity(config: AgentConfig) -> str:
    """Return what marks this agent's processes: its name and state directory, not the life of one process."""
    digest = hashlib.sha256(str(Path(config.state).resolve()).encode()).hexdigest()[:12]
    return f"agent:{config.name}:{digest}"


def configure_logging() -> None:
    """Log to standard error: for a person on a terminal, as JSON lines elsewhere."""
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main(config: AgentConfig) -> int:
    """Run an agent until SIGTERM or SIGINT; return its exit code."""
    import uvloop  # noqa: PLC0415 - only a daemon needs it

    configure_logging()
    structlog.contextvars.bind_contextvars(node=config.name)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config))
    except FarbusError as error:
        sys.stderr.write(f"farbus agent: {error}\n")
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.OK)
    return int(ExitCode.OK)


async def serve(config: AgentConfig, *, doors: Doors | None = None, stop: asyncio.Event | None = None) -> None:
    """Run an agent until ``stop`` is set (by default, by SIGTERM or SIGINT).

    Raises :class:`FarbusError` in one line for what is wrong with its
    settings, credentials, socket or state directory.
    """
    config.check()
    check_credentials(config)
    state = Path(config.state)
    # Where tasks run as others, those may pass through to their session files, and no further.
    passage = 0o700 if config.run_as_self else 0o711
    make_directory(state, mode=passage)
    make_directory(config.logs_directory, mode=0o700)
    make_directory(config.sessions_directory, mode=passage)
    lock = FileLock(state / "lock", what=f"state directory {state}")
    try:
        doors = doors or real_doors(config)
        journal, aside = await Journal.open(state / "journal.db", boot_id=doors.facts.boot_id())
        if aside:
            _log.error("journal was damaged; a new one is begun", kept_as=aside)
        try:
            await Agent(config, doors, journal).run(stop or _stop_signals())
        finally:
            await journal.close()
    finally:
        lock.release()


def check_credentials(config: AgentConfig) -> None:
    """Raise what is wrong with the certificate, before anything is started."""
    identity = config.credentials.identity()
    if identity.role is not Role.NODE or identity.name != config.name:
        raise NotPermitted(
            f"{config.credentials.certificate}: it is of {identity.role} {identity.name}, not of node {config.name}",
            hint=f"issue one with farbus ca issue {config.name} --role node",
        )


def _stop_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


class _StoppedError(Exception):
    """Ends the agent's task group: all is done."""


class Agent:
    """One agent's life."""

    def __init__(self, config: AgentConfig, doors: Doors, journal: Journal) -> None:
        self._config = config
        self._doors = doors
        self._journal = journal
        self._inventory: Inventory | None = None
        self._devices: dict[str, Device] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Start, serve until ``stop`` is set, end what was started."""
        failed: BaseExceptionGroup[FarbusError] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                await self._serve(group, stop)
                raise _StoppedError
        except* _StoppedError:
            _log.info("agent stopped")
        except* FarbusError as group_of_errors:
            failed = group_of_errors
        finally:
            for source in self._doors.gpu_sources:
                await source.nvml.stop()
            self._doors.cgroups.close()
        # Out here: Python 3.11.2 wraps what is raised inside except* in a group again.
        if failed is not None:
            raise first_error(failed) from None

    async def _serve(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        config, doors = self._config, self._doors
        ended_tasks = await self._reconcile()
        await self._look()
        logs = LogStore(
            config.logs_directory, limit_bytes_per_task=config.log_bytes_per_task, limit_bytes=config.log_bytes
        )
        machine = NodeMachine(node=config.name, ended_tasks=ended_tasks)
        service = AgentService(
            machine=machine,
            journal=self._journal,
            clock=doors.clock,
        )
        host = RemotingHost(
            config=config,
            processes=doors.processes,
            users=doors.users,
            devices=lambda: self._devices,
            group=group,
            died=service.post,
            supervisor=doors.remoting,
        )
        sources = Sources(
            facts=doors.facts,
            gpus=doors.gpu_sources,
            served=host.served,
            shared=doors.shared,
            memory=ProcessMemory(),
        )
        pipeline = Pipeline(make_collectors(sources), clock=doors.clock)
        session = SessionRunner(
            open_stream=lambda: open_session(address=config.scheduler, credentials=config.credentials),
            machine=machine,
            node=lambda: self._known().node,
            telemetry=pipeline.update,
            logs=logs,
            clock=doors.clock,
            post=service.post,
        )
        exporter = Exporter(
            pipeline=pipeline,
            facts=doors.facts,
            node=lambda: self._known().node,
            connected=lambda: not session.error,
            clock=doors.clock,
        )
        runner = TaskRunner(
            processes=doors.processes,
            cgroups=doors.cgroups,
            users=doors.users,
            logs=logs,
            clock=doors.clock,
            group=group,
            exited=service.post,
            run_as_self=config.run_as_self,
            allow_root=config.allow_root,
        )
        executor = Executor(
            journal=self._journal, devices=host, tasks=runner, clock=doors.clock, group=group, done=service.post
        )
        local = LocalCluster(
            node=config.name,
            connect=lambda caller: ClusterClient.remote(
                address=config.scheduler, credentials=config.credentials, on_behalf_of=caller
            ),
            scheduler=session,
            service=service,
            group=group,
            clock=doors.clock,
        )
        session.on_lost = local.reconnect
        server = await serve_local(
            cluster=local,
            socket=config.socket,
            identify=Identifier(node=config.name, users=doors.users, operators=self._operators()),
        )
        try:
            group.create_task(service.run(executor, session.report), name="events")
            group.create_task(service.watch_expiry(), name="expiry")
            group.create_task(session.run(), name="session")
            group.create_task(self._keep_looking(session), name="inventory")
            group.create_task(pipeline.run(), name="telemetry")
            if config.metrics_listen:
                group.create_task(exporter.serve(config.metrics_listen), name="metrics")
            if doors.notifier.watchdog_s:
                group.create_task(self._feed_watchdog(), name="watchdog")
            if "memory" not in doors.cgroups.controllers:
                _log.warning(
                    "memory of tasks is watched once a second, not limited by the kernel",
                    reason=doors.cgroups.trouble or "the memory controller is not available to this agent",
                )
            doors.notifier.tell("READY=1")
            _log.info("agent ready", socket=config.socket, scheduler=config.scheduler)
            await stop.wait()
            doors.notifier.tell("STOPPING=1")
            _log.info("agent stopping")
        finally:
            await server.stop()
            await local.close()
        await self._end(service, session, runner)

    async def _end(self, service: AgentService, session: SessionRunner, runner: TaskRunner) -> None:
        """End what runs and give up what is held, each reported while there is a session."""
        try:
            async with asyncio.timeout(STOP_GRACE_S + STOP_MARGIN_S):
                await runner.stop_all(grace_s=STOP_GRACE_S)
                held = tuple(sorted({held.lease.id for held in service.machine.held()}))
                service.post(LeasesVoided(lease_ids=held, reason="the agent was stopped"))
                await service.until(lambda machine: not machine.held() and not machine.running())
        except TimeoutError:
            _log.error("not everything ended in time; the guards end it", seconds=STOP_GRACE_S + STOP_MARGIN_S)
        await session.flush()

    def _operators(self) -> tuple[str, ...]:
        # An agent that runs everything as its own user belongs to a cluster of that user's own.
        own = (self._doors.users.myself().name,) if self._config.run_as_self else ()
        return (*self._config.operators, *own)

    # Before anything else: what an earlier agent left.

    async def _reconcile(self) -> tuple[tuple[str, TaskStatus], ...]:
        doors, journal = self._doors, self._journal
        recorded = await journal.ended_tasks()
        plan = reconcile(
            node=self._config.name,
            boot_id=doors.facts.boot_id(),
            steps=await journal.last_steps(),
            ended_tasks=recorded,
            observed=Observed(
                guards=tuple(remains.what for remains in doors.processes.remains()),
                sessions=tuple(sorted(entry.name for entry in self._config.sessions_directory.iterdir())),
                cgroups=tuple(doors.cgroups.list()),
            ),
        )
        if plan.guards:
            await self._end_remains()
        for name in plan.sessions:
            (self._config.sessions_directory / name).unlink(missing_ok=True)
        for name in plan.cgroups:
            doors.cgroups.remove(name)
        for job, status in plan.ended_tasks:
            if (job, status) not in recorded:
                await journal.task_ended(job, status, at=doors.clock.wall())
        for step in plan.released:
            if step.action not in TASK_ACTIONS:
                number = await journal.started(
                    object=step.object, action=compensation_of(step.action), body="{}", at=doors.clock.wall()
                )
                await journal.completed(number, error="", at=doors.clock.wall())
        if plan.guards or plan.sessions or plan.cgroups or plan.released:
            _log.warning(
                "cleaned up after an earlier agent",
                programs=plan.guards, sessions=plan.sessions, steps=[step.object for step in plan.released],
            )  # fmt: skip
        return plan.ended_tasks

    async def _end_remains(self) -> None:
        """Return once nothing that an earlier agent started is left."""
        doors = self._doors
        for attempt in range(REMAINS_ATTEMPTS):
            remains = doors.processes.remains()
            if not remains:
                return
            if attempt >= REMAINS_ATTEMPTS // 2:
                for one in remains:
                    doors.processes.end(one)
            await doors.clock.sleep(REMAINS_INTERVAL_S)
        # To go on would tell the scheduler that its devices are free.
        raise Conflict(
            f"{remains[0].what}: left by an earlier agent, and can't be killed (pid {remains[0].pid})",
            hint="a driver call hangs; see dmesg, the node may need a reboot",
        )

    # What goes on all the time.

    def _known(self) -> Inventory:
        assert self._inventory is not None
        return self._inventory

    async def _look(self) -> bool:
        """List the node's devices; say whether anything has changed."""
        doors = self._doors
        found = await take_inventory(self._config, facts=doors.facts, sysfs=doors.sysfs, gpu_sources=doors.gpu_sources)
        before, self._inventory = self._inventory, found
        for trouble in found.troubles:
            if before is None or trouble not in before.troubles:
                _log.error("devices not listed", reason=trouble)
        self._devices = {device.id: device for device in found.node.devices}
        return before is None or before.node != found.node

    async def _keep_looking(self, session: SessionRunner) -> None:
        while True:
            await self._doors.clock.sleep(INVENTORY_INTERVAL_S)
            if await self._look():
                _log.info("inventory changed", devices=sorted(self._devices))
                session.inventory_changed(self._known().node)

    async def _feed_watchdog(self) -> None:
        # From the event loop: a loop that hangs is what the watchdog is there to notice.
        while True:
            self._doors.notifier.tell("WATCHDOG=1")
            await self._doors.clock.sleep(self._doors.notifier.watchdog_s)
