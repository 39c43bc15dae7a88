"""The agent: puts the parts together, runs them, takes them down in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from farbus.agent.actions import Report
from farbus.agent.bus import BusWatch
from farbus.agent.chassis import ChassisDesk, driver_of
from farbus.agent.config import STATE_MARKS, AgentConfig
from farbus.agent.events import DeviceClosed, DeviceOpened, DevicesVanished, Event, LeasesVoided
from farbus.agent.executor import Executor
from farbus.agent.inventory import GpuSource, Inventory, take_inventory
from farbus.agent.jobs import TaskRunner, no_limits
from farbus.agent.journal import Journal
from farbus.agent.local import Identifier, LocalCluster
from farbus.agent.local_moves import LocalMoves
from farbus.agent.logs import LogStore
from farbus.agent.machine import NodeMachine
from farbus.agent.membership import Membership
from farbus.agent.moves import AgentGate, Moves
from farbus.agent.moving import Moving
from farbus.agent.orders import Orders
from farbus.agent.orphans import Orphans
from farbus.agent.peers import Peers
from farbus.agent.ports import bridges_of, names_by_chassis
from farbus.agent.remoting_host import RemotingHost, SupervisorProgram, software_gpu_directory, software_gpu_environment
from farbus.agent.service import AgentService
from farbus.agent.session import SessionRunner
from farbus.agent.staging import Staging
from farbus.agent.state_disk import StateDisk
from farbus.agent.steps import StepRunner
from farbus.agent.storage import NodeStorage, StorageDoors, storage_doors
from farbus.agent.telemetry.collectors import Sources, make_collectors
from farbus.agent.telemetry.export import Exporter
from farbus.agent.telemetry.gpu import ProcessMemory
from farbus.agent.telemetry.pipeline import Pipeline
from farbus.api.audit import FILE_NAME, AuditLog
from farbus.api.client import ClusterClient
from farbus.api.enrollment import is_due, renew_at
from farbus.api.identity import Role
from farbus.api.peer import PeerClient, serve_peers
from farbus.api.server import RunningServer, serve_local
from farbus.api.session import SessionDialer
from farbus.api.staging import NodeStaging, StagingForwarder, add_staging
from farbus.errors import Conflict, ExitCode, FarbusError, NotFound, NotPermitted, file_error, first_error
from farbus.hotplug.fabric.config import ChassisAccess, read_config
from farbus.hotplug.fabric.driver import Driver
from farbus.hotplug.parts import Move, Parts
from farbus.hotplug.sequences import HotScan
from farbus.hotplug.times import BusHistory, BusTimes
from farbus.linux.cgroups import Cgroups, KernelCgroups
from farbus.linux.clock import Clock, SystemClock
from farbus.linux.daemon_log import configure_logging
from farbus.linux.files import FileLock, make_directory, make_state_directory, write_owned
from farbus.linux.holders import Holders, KernelHolders
from farbus.linux.kept import KeptProcesses
from farbus.linux.limits import raise_descriptor_limit
from farbus.linux.node_facts import KernelNodeFacts, NodeFacts
from farbus.linux.notify import Notifier, SystemdNotifier
from farbus.linux.nvidia import DriverNvidia, Nvidia
from farbus.linux.nvml import WorkerNvml
from farbus.linux.pci import KernelPci, Pci
from farbus.linux.process_states import KernelProcessStates, ProcessStates
from farbus.linux.processes import Processes
from farbus.linux.rdma import RdmaDevice, rdma_devices
from farbus.linux.settings import keep_reloading, reload_requests
from farbus.linux.shared_memory import KernelSharedMemory, SharedMemory
from farbus.linux.staging import TaskDirectories
from farbus.linux.sysfs import KernelSysfs, Sysfs
from farbus.linux.uevents import KernelUevents, Uevents
from farbus.linux.unix_sockets import hold_name
from farbus.linux.users import SystemUsers, Users
from farbus.model.address import host_and_port
from farbus.model.device import Device, DeviceKind, whole_of
from farbus.model.fabric import ChassisView, FabricDevice
from farbus.model.holders import Holder, HolderKind
from farbus.model.node import Node
from farbus.model.pci import PciTree
from farbus.model.value import from_json, to_json
from farbus.remoting import paths

_log = structlog.get_logger()

INVENTORY_INTERVAL_S = 30.0
"""How often the node's devices are listed again."""

CERTIFICATE_INTERVAL_S = 60.0
"""How often the agent looks whether its certificate should be renewed, or was replaced."""

MARKS = ("FARBUS_UP_STATE",)
"""Variables by which a command that runs this agent finds all that belongs to it."""

SYSTEMD = Path("/run/systemd/system")

STOP_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL for tasks when the agent is stopped."""

STOP_MARGIN_S = 20.0
"""Added for what is left after the tasks: supervisors, session files."""

RELOADABLE = frozenset({"labels", "cpu_milli", "memory_bytes", "network_mbit_s", "operators"})
"""Settings that a running agent can change."""

NO_MOVES = (
    "this agent offers no devices of its machine, and so moves none: physical_devices is off; set it in agent.toml, "
    "or start farbus up --physical NODE"
)
"""Why an order to move a device is refused where it is."""

Reread = Callable[[], Awaitable[AgentConfig]]
"""Reads the settings again; raises :class:`FarbusError`."""

RECOVERY_LIMIT_S = 20.0
"""How long the first session waits for what an earlier agent left and is not there any more: the scheduler may ask for
it anew, and would hear that it is being given up."""


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
    states: ProcessStates = KernelProcessStates()
    remoting: SupervisorProgram = SupervisorProgram()
    rdma: Callable[[], Sequence[RdmaDevice]] = rdma_devices
    pci: Pci | None = None
    uevents: Uevents | None = None
    """Both where the machine's own devices are offered: what comes and goes is listed at once."""
    holders: Holders | None = None
    nvidia: Nvidia | None = None
    """Both where devices can be moved."""
    storage: StorageDoors | None = None
    """Where this node stores for others, or uses what they store."""
    chassis_driver: Callable[[ChassisAccess, Clock], Driver] = driver_of


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
        processes=KeptProcesses(
            config.programs_directory,
            owner=agent_identity(config),
            mark={name: os.environ[name] for name in MARKS if name in os.environ},
            units=wants_units(config),
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
        pci=KernelPci() if config.physical_devices else None,
        uevents=KernelUevents() if config.physical_devices else None,
        holders=KernelHolders(clock=SystemClock()) if config.physical_devices else None,
        nvidia=DriverNvidia() if config.physical_devices else None,
        storage=storage_doors(config),
    )


def wants_units(config: AgentConfig) -> bool:
    """Say whether programs get units of their own: as it is set, else where this agent is a service of systemd."""
    if config.program_units != "auto":
        return config.program_units == "service"
    # sd_booted(3); INVOCATION_ID is in the environment of units (systemd.exec(5)).
    return SYSTEMD.is_dir() and "INVOCATION_ID" in os.environ and os.geteuid() == 0


def agent_identity(config: AgentConfig) -> str:
    """Return what marks this agent's processes: its name and state directory, not the life of one process."""
    digest = hashlib.sha256(str(Path(config.state).resolve()).encode()).hexdigest()[:12]
    return f"agent:{config.name}:{digest}"


def main(config: AgentConfig, *, reread: Reread | None = None) -> int:
    """Run an agent until SIGTERM or SIGINT; return its exit code.  With SIGHUP it takes what ``reread`` returns."""
    import uvloop  # noqa: PLC0415 - only a daemon needs it

    configure_logging()
    structlog.contextvars.bind_contextvars(node=config.name)
    raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config, reread=reread))
    except FarbusError as error:
        sys.stderr.write(f"farbus agent: {error}\n")
        return int(error.exit_code)
    except (OSError, ExceptionGroup) as error:
        known = file_error(error)
        if known is None:
            raise
        sys.stderr.write(f"farbus agent: {known}\n")
        return int(known.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.OK)
    return int(ExitCode.OK)


async def serve(
    config: AgentConfig,
    *,
    doors: Doors | None = None,
    stop: asyncio.Event | None = None,
    reread: Reread | None = None,
) -> None:
    """Run an agent until ``stop`` is set (by default, by SIGTERM or SIGINT).

    Raises :class:`FarbusError` in one line for what is wrong with its
    settings, credentials, socket or state directory.
    """
    _check(config)
    state = Path(config.state)
    # Where tasks run as others, those may pass through to their session files, and no further.
    passage = 0o700 if config.run_as_self else 0o711
    make_state_directory(state, mode=passage, marks=STATE_MARKS, what="an agent's state")
    # At once: without it, what a killed agent leaves there would be taken for somebody else's.
    lock = FileLock(state / "lock", what=f"state directory {state}")
    try:
        make_directory(config.logs_directory, mode=0o700)
        make_directory(config.sessions_directory, mode=passage)
        doors = doors or real_doors(config)
        boot_id = doors.facts.boot_id()
        journal, aside = await Journal.open(state / "journal.db", boot_id=boot_id)
        if aside:
            _log.error("journal was damaged; a new one is begun", kept_as=aside)
        try:
            with _sole_instance(state, instance_id(state / "instance", boot_id=boot_id)):
                await Agent(config, doors, journal, reread).run(stop or _stop_signals())
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


def _check(config: AgentConfig) -> None:
    config.check()
    check_credentials(config)


def _stop_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def instance_id(path: Path, *, boot_id: str) -> str:
    """Return what names this agent and those after it until the node is booted again.

    Programs in their users' terminals outlive an agent, and not a boot.
    """
    try:
        boot, _, instance = path.read_text().strip().partition(" ")
    except (FileNotFoundError, UnicodeDecodeError):
        boot = instance = ""
    if boot != boot_id or not instance:
        instance = secrets.token_hex(16)
        write_owned(path, f"{boot_id} {instance}\n".encode(), account=None)
    return instance


@contextlib.contextmanager
def _sole_instance(state: Path, instance: str) -> Iterator[None]:
    """Be the one agent of this name; raise :class:`Conflict` where another is.

    A copy of a state directory names what runs for the agent of the other one: all of it would be found without its
    keepers, and be ended.
    """
    name = hashlib.sha256(instance.encode()).hexdigest()[:32]
    held = hold_name(
        f"farbus-agent-{name}",
        what=f"state directory {state} is a copy of one that another agent uses",
        hint="stop that agent, or name an empty directory",
    )
    if held is None:
        yield
        return

    def let_go() -> None:
        with contextlib.suppress(OSError):
            held.accept()[0].close()

    loop = asyncio.get_running_loop()
    loop.add_reader(held, let_go)
    try:
        yield
    finally:
        loop.remove_reader(held)
        held.close()


async def _dial(service: AgentService, session: SessionRunner, moving: Moving | None) -> None:
    """Keep a session, once it is settled what this node holds."""
    try:
        async with asyncio.timeout(RECOVERY_LIMIT_S):
            await service.restored.wait()
            await service.until(lambda machine: not machine.is_giving_up())
            if moving is not None:
                await moving.recovered.wait()
    except TimeoutError:
        _log.error("what an earlier agent left is not given up or finished yet", seconds=RECOVERY_LIMIT_S)
    await session.run()


def _gpus_of(devices: Sequence[Device]) -> dict[str, str]:
    """Return the UUIDs of real GPUs by their PCI addresses."""
    return {
        device.pci_address: whole_of(device.id)
        for device in devices
        if device.kind is DeviceKind.GPU and not device.software and device.pci_address
    }


def _read_times(path: Path) -> BusHistory:
    try:
        return from_json(path.read_bytes(), BusHistory)
    except FileNotFoundError:
        return BusHistory()
    except (OSError, FarbusError) as error:
        _log.warning("times of the bus not read; they are learned anew", file=str(path), error=str(error))
        return BusHistory()


def _keep_times(path: Path, history: BusHistory) -> None:
    try:
        write_owned(path, to_json(history), account=None)
    except OSError as error:
        _log.error("times of the bus not written", file=str(path), error=error.strerror)


class _StoppedError(Exception):
    """Ends the agent's task group: all is done."""


class Agent:
    """One agent's life."""

    def __init__(self, config: AgentConfig, doors: Doors, journal: Journal, reread: Reread | None = None) -> None:
        self._config = config
        self._reread = reread
        self._doors = doors
        self._journal = journal
        self._disk = StateDisk(Path(config.state), journal=journal, clock=doors.clock)
        self._boot_id = doors.facts.boot_id()
        self._inventory: Inventory | None = None
        self._devices: dict[str, Device] = {}
        self._looking = asyncio.Lock()
        self._look_soon = asyncio.Event()
        """Set when devices are to be listed before their time."""
        self._peer_endpoint = ""
        self._gate = AgentGate()
        self._gpus: dict[str, str] = {}
        """UUIDs of this node's GPUs, by PCI address."""
        self._desk: ChassisDesk | None = None
        self._moves: Moves | None = None
        self._storage: NodeStorage | None = None
        self._tell_devices: Callable[[], Awaitable[None]] = self._look_silently
        self._parts = self._make_parts()

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
            await self._doors.processes.close()
            self._doors.cgroups.close()
        # Out here: Python 3.11.2 wraps what is raised inside except* in a group again.
        if failed is not None:
            raise first_error(failed) from None

    async def _serve(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        config, doors = self._config, self._doors
        state = Path(config.state)
        accesses = {one.name: one for one in read_config(config.fabric).chassis} if config.fabric else {}
        peer_client = PeerClient(config.credentials)
        desk = self._desk = ChassisDesk(
            node=config.name,
            accesses=accesses,
            asker=peer_client,
            clock=doors.clock,
            group=group,
            directory=state / "fabric",
            driver=doors.chassis_driver,
        )
        step_runner = StepRunner(journal=self._journal, clock=doors.clock, group=group)
        if self._parts is not None:
            self._moves = Moves(parts=self._parts, gate=self._gate, journal=self._journal, runner=step_runner)
            # What is gone from here, or on its way, is offered to nobody.
            await self._moves.remember()
        machine = NodeMachine(node=config.name)
        service = AgentService(
            machine=machine,
            journal=self._journal,
            clock=doors.clock,
        )
        storage = self._storage = self._make_storage(service, step_runner)
        await self._look()
        logs = LogStore(
            config.logs_directory, limit_bytes_per_task=config.log_bytes_per_task, limit_bytes=config.log_bytes
        )
        dialer = SessionDialer(address=config.scheduler, credentials=config.credentials)
        membership = Membership(Path(config.state) / "membership.json")
        peers = Peers(
            machine=machine,
            membership=membership,
            asker=peer_client,
            clock=doors.clock,
            post=service.post,
            chassis=desk,
        )
        host = RemotingHost(
            config=config,
            processes=doors.processes,
            users=doors.users,
            devices=lambda: self._devices,
            group=group,
            died=service.post,
            supervisor=doors.remoting,
            rdma=doors.rdma,
        )
        sources = Sources(
            facts=doors.facts,
            gpus=doors.gpu_sources,
            served=host.served,
            shared=doors.shared,
            states=doors.states,
            memory=ProcessMemory(),
            clock=doors.clock,
            storage=storage.collector if storage is not None else None,
        )
        pipeline = Pipeline(make_collectors(sources), clock=doors.clock)
        session = SessionRunner(
            open_stream=dialer.open,
            machine=machine,
            node=self._node,
            telemetry=pipeline.update,
            logs=logs,
            clock=doors.clock,
            post=service.post,
            membership=membership,
            instance=instance_id(state / "instance", boot_id=self._boot_id),
        )
        moving = self._make_moving(service, session, group)
        desk.told = session.chassis_changed
        session.orders = Orders(
            moving=moving,
            why=NO_MOVES,
            desk=desk,
            group=group,
            answer=session.move_ended,
            volumes=storage.volumes if storage is not None else None,
            answer_volume=session.volume_ended,
            grow=storage.grow if storage is not None else None,
        )
        if storage is not None:
            storage.overused = session.lease_overused
            storage.paths_told = session.lease_paths
        self._tell_devices = lambda: self._look_again(session, service.post)
        exporter = Exporter(
            pipeline=pipeline,
            facts=doors.facts,
            node=self._node,
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
            told=service.post,
            run_as_self=config.run_as_self,
            allow_root=config.allow_root,
            rules=config.user_rules,
            staging=Staging(
                directories=TaskDirectories(config.tasks_directory),
                transfers=NodeStaging(address=config.scheduler, credentials=config.credentials),
                clock=doors.clock,
                group=group,
            ),
            orphan_limit_s=config.orphan_limit_s,
            io_limits=storage.io_limits if storage is not None else no_limits,
        )
        if storage is not None:
            await storage.host.start()
        executor = Executor(
            journal=self._journal,
            devices=host,
            tasks=runner,
            clock=doors.clock,
            group=group,
            done=service.post,
            storage=storage.host if storage is not None else None,
        )
        runner.launching = executor.launching
        # Before anybody can ask for anything: what an earlier agent left.
        restored = await executor.recover(
            node=config.name,
            boot_id=self._boot_id,
            now=doors.clock.monotonic(),
            term=membership.term,
            lease_ttl_s=membership.lease_ttl_s,
        )
        restored = msgspec.structs.replace(restored, closed=self._gate.closed())
        group.create_task(logs.look(), name="look for logs")
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
        audit = AuditLog(state / FILE_NAME)
        local.moves = LocalMoves(
            node=config.name,
            moving=moving,
            why=NO_MOVES,
            desk=desk,
            held=machine.held,
            scheduler=local.devices_if_connected,
            audit=audit,
            clock=doors.clock,
        )
        session.on_lost = local.reconnect
        self._disk.changed = lambda: session.inventory_changed(self._node())
        identifier = Identifier(node=config.name, users=doors.users, operators=self._operators())
        server = await serve_local(
            cluster=local,
            socket=config.socket,
            identify=identifier,
            services=(functools.partial(add_staging, StagingForwarder(local.lend)),),
        )
        peer_server = await self._serve_peers(peers, membership)

        def report(what: Report) -> None:
            session.report(what)
            peers.report(what)

        try:
            group.create_task(service.run(executor, report, restored), name="events")
            group.create_task(peers.run(service.until), name="peers")
            group.create_task(service.watch_expiry(), name="expiry")
            group.create_task(_dial(service, session, moving), name="session")
            if moving is not None and self._moves is not None:
                group.create_task(moving.recover(), name="moves")
                group.create_task(self._moves.keep_trying(boot_id=self._boot_id), name="stuck moves")
            if storage is not None:
                group.create_task(storage.run(), name="storage")
            group.create_task(desk.keep_reading(self._has_ports), name="chassis")
            group.create_task(self._keep_looking(session, service.post), name="inventory")
            if doors.pci is not None and doors.uevents is not None:
                bus = BusWatch(
                    pci=doors.pci,
                    uevents=doors.uevents,
                    changed=lambda: self._look_again(session, service.post),
                    expected=self._moves.is_expected if self._moves is not None else lambda _: False,
                )
                group.create_task(bus.run(), name="bus")
            group.create_task(self._disk.watch(), name="disk")
            group.create_task(pipeline.run(), name="telemetry")
            if config.metrics_listen:
                group.create_task(exporter.serve(config.metrics_listen), name="metrics")
            if self._reread is not None:

                async def take(settings: AgentConfig) -> None:
                    self._config = settings
                    identifier.operators = frozenset(self._operators())
                    await self._look_again(session, service.post)

                reloader = keep_reloading(
                    reload_requests(),
                    config,
                    reread=self._reread,
                    check=_check,
                    changeable=RELOADABLE,
                    take=take,
                    notifier=doors.notifier,
                )
                group.create_task(reloader, name="reload")
            group.create_task(self._keep_certificate(dialer, local), name="certificate")
            if doors.notifier.watchdog_s:
                group.create_task(self._feed_watchdog(), name="watchdog")
            if "memory" not in doors.cgroups.controllers and not doors.processes.limits_memory:
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
            if not config.end_on_stop:
                local.leave()
            await server.stop()
            await local.close()
            await peer_server.stop()
            await audit.close()
        if config.end_on_stop:
            await self._end(service, session, runner)
        else:
            goes_on = service.machine.running(), service.machine.held(), service.machine.clients()
            _log.info("what runs goes on", tasks=len(goes_on[0]), leases=len(goes_on[1]))
            if any(goes_on):
                session.leaving()
        await session.flush()

    async def _end(self, service: AgentService, session: SessionRunner, runner: TaskRunner) -> None:
        """End what runs and give up what is held, each reported while there is a session."""
        try:
            async with asyncio.timeout(STOP_GRACE_S + STOP_MARGIN_S):
                await runner.stop_all(grace_s=STOP_GRACE_S)
                held = tuple(sorted({held.lease.id for held in service.machine.held()}))
                service.post(LeasesVoided(lease_ids=held, reason="the agent was stopped"))
                await service.until(lambda machine: not machine.held() and not machine.running())
        except TimeoutError:
            _log.error("not everything ended in time; the next agent ends it", seconds=STOP_GRACE_S + STOP_MARGIN_S)

    async def _serve_peers(self, peers: Peers, membership: Membership) -> RunningServer:
        """Serve other agents, where an earlier process of this one did if any port will do: they know that one."""
        config = self._config
        ports = [config.peer_port] if config.peer_port else dict.fromkeys((membership.peer_port, 0))
        for port in ports:
            try:
                server = await serve_peers(
                    handler=peers, address=config.address, port=port, credentials=config.credentials
                )
            except Conflict:
                if port == config.peer_port:
                    raise
            else:
                break
        membership.serve_on(server.port)
        peers.endpoint = self._peer_endpoint = host_and_port(config.address, server.port)
        return server

    # Devices that come and go.

    def _make_parts(self) -> Parts | None:
        """Return what moves work with; None where this agent offers no devices of the machine."""
        doors = self._doors
        nvml = next((source.nvml for source in doors.gpu_sources if not source.software), None)
        if not self._config.physical_devices or nvml is None:
            return None
        if doors.pci is None or doors.uevents is None or doors.holders is None or doors.nvidia is None:
            return None
        times = Path(self._config.state) / "bus_times.json"
        return Parts(
            pci=doors.pci,
            holders=doors.holders,
            nvidia=doors.nvidia,
            nvml=nvml,
            uevents=doors.uevents,
            clock=doors.clock,
            gate=self._gate,
            drives=doors.sysfs.nvme_controllers,
            gpus=lambda: self._gpus,
            fabrics=lambda name: self._chassis().of(name),
            called=self._called,
            times=BusTimes(_read_times(times), keep=functools.partial(_keep_times, times)),
        )

    def _make_storage(self, service: AgentService, runner: StepRunner) -> NodeStorage | None:
        config, doors = self._config, self._doors
        if doors.storage is None or doors.holders is None or doors.uevents is None:
            if config.storage:
                raise NotPermitted(
                    "storage: only root may make logical volumes and export them",
                    hint="run the agent as root, or set storage = false",
                )
            return None
        return NodeStorage(
            config=config,
            doors=doors.storage,
            holders=doors.holders,
            uevents=doors.uevents,
            clock=doors.clock,
            users=doors.users,
            journal=self._journal,
            runner=runner,
            boot_id=self._boot_id,
            service=service,
            look=self._look_and_tell,
        )

    def _make_moving(self, service: AgentService, session: SessionRunner, group: asyncio.TaskGroup) -> Moving | None:
        if self._parts is None or self._moves is None:
            return None
        config, machine = self._config, service.machine

        def sessions(device: str) -> tuple[Holder, ...]:
            return tuple(
                Holder(
                    kind=HolderKind.SESSION,
                    name=held.lease.id,
                    user=held.lease.user,
                    cure=f"farbus cancel {held.lease.job}",
                )
                for held in machine.held()
                if held.device_side and any(whole_of(one.device) == device for one in held.lease.devices)
            )

        async def end_session(holder: Holder) -> None:
            reason = f"evicted from node {config.name}: its device is moved"
            service.post(LeasesVoided(lease_ids=(holder.name,), reason=reason))
            # One that can't be given up is told by the next look at who holds the device.
            await service.until(
                lambda machine: all(
                    held.lease.id != holder.name or not held.device_side or held.trouble for held in machine.held()
                )
            )

        async def told(device: str, reason: str) -> None:
            if reason:
                service.post(DeviceClosed(device=device, reason=reason))
            else:
                service.post(DeviceOpened(device=device))
            # Requests that came before it are answered by then: who looks at holders afterwards sees theirs.
            await service.until(lambda machine: machine.is_closed(device) == bool(reason))
            self._look_soon.set()

        self._gate.sessions, self._gate.end_session, self._gate.told = sessions, end_session, told
        self._moves.changed = self._look_soon.set
        moving = Moving(
            node=config.name,
            boot_id=self._boot_id,
            moves=self._moves,
            gate=self._gate,
            parts=self._parts,
            ports=config.fabric_ports,
            group=group,
            told=session.move_progress,
        )
        orphans = Orphans(
            Path(config.state) / "orphans.json",
            node=config.name,
            ports=config.fabric_ports,
            clock=self._doors.clock,
            tree=self._parts.pci.tree,
            names=self._parts.names,
            busy=self._is_moved,
            scan=self._scan_for,
        )
        moving.orphans = orphans.troubles
        looks: set[str] = set()

        async def look(view: ChassisView) -> None:
            try:
                await moving.recovered.wait()
                await orphans.look(view)
            finally:
                looks.discard(view.chassis)

        def read(view: ChassisView) -> None:
            # One at a time: a scan for what is missing takes a while, and leads to readings of its own.
            if view.chassis not in looks:
                looks.add(view.chassis)
                group.create_task(look(view), name=f"orphans of chassis {view.chassis}")

        self._chassis().read = read
        return moving

    def _chassis(self) -> ChassisDesk:
        assert self._desk is not None
        return self._desk

    def _has_ports(self, chassis: str) -> bool:
        """Say whether cables of a chassis are known to lead to this node."""
        return any(port.partition("/")[0] == chassis for port in self._config.fabric_ports)

    def _called(self, tree: PciTree) -> dict[str, str]:
        """Return what moves and chassis call devices that have no name of their own, by address."""
        views = [chassis.view for chassis in self._chassis().known if chassis.view is not None] if self._desk else []
        found = names_by_chassis(tree, self._config.fabric_ports, views, node=self._config.name)
        attached = self._moves.attached if self._moves is not None else {}
        return {**found, **{result["address"]: device for device, result in attached.items() if "address" in result}}

    def _is_moved(self, device: FabricDevice) -> bool:
        moves = self._moves
        return moves is not None and any(device.answers_to(name) for name in (*moves.under_way, *moves.stuck))

    async def _scan_for(self, device: FabricDevice, view: ChassisView) -> None:
        """Look for a device that a chassis has assigned to this node, below each bridge where it may be."""
        assert self._parts is not None
        assert self._moves is not None
        tree = self._parts.pci.tree()
        bridges = bridges_of(tree, self._config.fabric_ports, chassis=view.chassis, port=device.port)
        for bridge in bridges:
            if tree.below(bridge):
                continue
            move = Move(
                device=device.id,
                bridge=bridge,
                chassis=view.chassis,
                port=device.port,
                kind=device.kind,
                uuid=device.uuid,
                serial=device.serial,
                vendor=device.vendor_id,
                device_id=device.device_id,
                asked_at=self._doors.clock.wall(),
            )
            async with self._moves.turn(device.id):
                try:
                    await self._moves.perform(HotScan(move=move))
                except FarbusError as error:
                    _log.warning("not there", device=device.id, bridge=bridge, error=str(error))
                else:
                    return
        where = (
            f"not below {', '.join(bridges)}" if bridges else f"no bridge here is known to lead to port {device.port}"
        )
        raise NotFound(f"device {device.id}: {where}", hint="see dmesg, and fabric_ports of the agent")

    def _named(self, devices: Sequence[Device]) -> dict[str, str]:
        """Return what devices are called wherever they are, by the address of their first function."""
        if self._parts is None:
            return {}
        self._gpus = _gpus_of(devices)
        names = self._parts.names(self._parts.pci.tree())
        return {address: identity.name for address, identity in names.items()}

    def _node(self) -> Node:
        return msgspec.structs.replace(
            self._known().node, peer_endpoint=self._peer_endpoint, trouble=self._disk.trouble
        )

    def _operators(self) -> tuple[str, ...]:
        # An agent that runs everything as its own user belongs to a cluster of that user's own.
        own = (self._doors.users.myself().name,) if self._config.run_as_self else ()
        return (*self._config.operators, *own)

    # What goes on all the time.

    def _known(self) -> Inventory:
        assert self._inventory is not None
        return self._inventory

    async def _look(self) -> bool:
        """List the node's devices; say whether anything has changed."""
        doors = self._doors
        found = await take_inventory(
            self._config,
            facts=doors.facts,
            sysfs=doors.sysfs,
            gpu_sources=doors.gpu_sources,
            names=self._named,
            storage=self._storage.offer if self._storage is not None else None,
            moved={result.get("address", "") for result in self._moves.attached.values()} if self._moves else (),
        )
        self._devices = {device.id: device for device in found.node.devices}
        self._gpus = _gpus_of(found.node.devices)
        # What is closed is here, and offered to nobody.
        closed = self._gate.closed()
        coming = self._coming()
        offered = tuple(
            device
            for device in found.node.devices
            if whole_of(device.id) not in closed and device.pci_address not in coming
        )
        attach_s = self._storage.attach_s if self._storage is not None else 0.0
        known = msgspec.structs.replace(found.node, devices=offered, storage_attach_s=attach_s)
        found = msgspec.structs.replace(found, node=known)
        before, self._inventory = self._inventory, found
        for trouble in found.troubles:
            if before is None or trouble not in before.troubles:
                _log.error("devices not listed", reason=trouble)
        return before is None or before.node != found.node

    def _coming(self) -> frozenset[str]:
        """Return the addresses of what is being attached: it is offered once it is verified and opened."""
        if self._moves is None or self._parts is None:
            return frozenset()
        return self._moves.coming(self._parts.pci.tree())

    async def _look_and_tell(self) -> None:
        await self._tell_devices()

    async def _look_silently(self) -> None:
        """Where there is nobody yet to be told."""
        await self._look()

    async def _keep_looking(self, session: SessionRunner, post: Callable[[Event], None]) -> None:
        while True:
            timer = asyncio.create_task(self._doors.clock.sleep(INVENTORY_INTERVAL_S), name="next inventory")
            soon = asyncio.create_task(self._look_soon.wait(), name="inventory soon")
            try:
                await asyncio.wait({timer, soon}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                soon.cancel()
            self._look_soon.clear()
            await self._look_again(session, post)

    async def _look_again(self, session: SessionRunner, post: Callable[[Event], None]) -> None:
        # Of two looks at a time the one that began first might end last, and bring back what is gone.
        async with self._looking:
            before = set(self._devices)
            changed = await self._look()
            # A driver that does not answer has not lost its devices.
            if not self._known().troubles and (gone := before - set(self._devices)):
                post(DevicesVanished(devices=tuple(sorted(gone))))
            if changed:
                _log.info("inventory changed", devices=sorted(device.id for device in self._known().node.devices))
                session.inventory_changed(self._node())

    async def _keep_certificate(self, dialer: SessionDialer, local: LocalCluster) -> None:
        """Have the certificate renewed in time, and use the one that is there, whoever put it there."""
        config, told = self._config, ""
        while True:
            await self._doors.clock.sleep(CERTIFICATE_INTERVAL_S)
            trouble = ""
            try:
                if is_due(config.credentials, now=self._doors.clock.wall()):
                    await renew_at(config.scheduler, config.credentials)
                    _log.info("certificate renewed", until=config.credentials.expires_at().isoformat())
                if dialer.redial_if_renewed():
                    local.replace_connections()
            except FarbusError as error:
                trouble = str(error)
            except OSError as error:
                trouble = f"{error.filename}: {error.strerror}"
            # Once for each reason: it is tried for months.
            if trouble and trouble != told:
                _log.error("certificate not renewed", reason=trouble)
            told = trouble

    async def _feed_watchdog(self) -> None:
        # From the event loop: a loop that hangs is what the watchdog is there to notice.
        while True:
            self._doors.notifier.tell("WATCHDOG=1")
            await self._doors.clock.sleep(self._doors.notifier.watchdog_s)
