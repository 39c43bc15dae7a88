"""The agent: puts the parts together, runs them, takes them down in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import secrets
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

from farbus.agent.actions import Report
from farbus.agent.bus import BusWatch
from farbus.agent.chassis import ChassisDesk
from farbus.agent.config import STATE_MARKS, AgentConfig
from farbus.agent.doors import Doors, real_doors
from farbus.agent.events import DevicesVanished, LeasesVoided
from farbus.agent.executor import Executor
from farbus.agent.jobs import TaskRunner, no_limits
from farbus.agent.journal import Journal
from farbus.agent.local import Identifier, LocalCluster
from farbus.agent.local_moves import LocalMoves
from farbus.agent.logs import LogStore
from farbus.agent.machine import NodeMachine
from farbus.agent.membership import Membership
from farbus.agent.moves import Moves
from farbus.agent.moving import Moving
from farbus.agent.node_devices import NodeDevices
from farbus.agent.node_moves import make_moving
from farbus.agent.orders import Orders
from farbus.agent.peers import Peers
from farbus.agent.remoting_host import RemotingHost
from farbus.agent.service import AgentService
from farbus.agent.session import SessionRunner
from farbus.agent.staging import Staging
from farbus.agent.state_disk import StateDisk
from farbus.agent.steps import StepRunner
from farbus.agent.storage import NodeStorage
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
from farbus.errors import Conflict, ExitCode, FarbusError, NotPermitted, first_error
from farbus.hotplug.fabric.config import read_config
from farbus.linux.daemon_log import configure_logging, tell_end
from farbus.linux.files import FileLock, make_directory, make_state_directory, write_owned
from farbus.linux.limits import raise_descriptor_limit
from farbus.linux.settings import keep_reloading, reload_requests
from farbus.linux.staging import TaskDirectories
from farbus.linux.unix_sockets import hold_name
from farbus.model.address import host_and_port
from farbus.model.node import Node

_log = structlog.get_logger()

CERTIFICATE_INTERVAL_S = 60.0
"""How often the agent looks whether its certificate should be renewed, or was replaced."""

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


def main(config: AgentConfig, *, reread: Reread | None = None) -> int:
    """Run an agent until SIGTERM or SIGINT; return its exit code.  With SIGHUP it takes what ``reread`` returns."""
    import uvloop  # noqa: PLC0415 - only a daemon needs it

    configure_logging()
    structlog.contextvars.bind_contextvars(node=config.name)
    raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config, reread=reread))
    except (FarbusError, OSError, ExceptionGroup) as error:
        return tell_end("agent", error)
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


class _StoppedError(Exception):
    """Ends the agent's task group: all is done."""


class Agent:
    """One agent's life."""

    def __init__(self, config: AgentConfig, doors: Doors, journal: Journal, reread: Reread | None = None) -> None:
        self._config = config
        self._reread = reread
        self._doors = doors
        self._journal = journal
        self._state = Path(config.state)
        self._disk = StateDisk(self._state, journal=journal, clock=doors.clock)
        self._boot_id = doors.facts.boot_id()
        self._peer_endpoint = ""

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
        peer_client = PeerClient(config.credentials)
        machine = NodeMachine(node=config.name)
        service = AgentService(machine=machine, journal=self._journal, clock=doors.clock)
        desk = self._make_desk(peer_client, group)
        devices = await self._make_devices(desk, service, group)
        storage = devices.storage
        logs = LogStore(
            config.logs_directory, limit_bytes_per_task=config.log_bytes_per_task, limit_bytes=config.log_bytes
        )
        membership = Membership(self._state / "membership.json")
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
            devices=lambda: devices.here,
            group=group,
            died=service.post,
            supervisor=doors.remoting,
            rdma=doors.rdma,
        )
        pipeline = self._make_pipeline(host, storage)
        dialer = SessionDialer(address=config.scheduler, credentials=config.credentials)
        session = SessionRunner(
            open_stream=dialer.open,
            machine=machine,
            node=lambda: self._node(devices),
            telemetry=pipeline.update,
            logs=logs,
            clock=doors.clock,
            post=service.post,
            membership=membership,
            instance=instance_id(self._state / "instance", boot_id=self._boot_id),
        )
        moving = make_moving(
            devices, boot_id=self._boot_id, service=service, session=session, group=group, clock=doors.clock
        )
        self._tell(session, devices, service)
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
        runner = self._make_runner(logs, service, storage, group)
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
        restored = msgspec.structs.replace(restored, closed=devices.gate.closed())
        group.create_task(logs.look(), name="look for logs")
        local = self._make_local(session, service, group)
        audit = AuditLog(self._state / FILE_NAME)
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
            self._keep_devices(devices, moving, group)
            group.create_task(self._disk.watch(), name="disk")
            group.create_task(pipeline.run(), name="telemetry")
            if config.metrics_listen:
                exporter = Exporter(
                    pipeline=pipeline,
                    facts=doors.facts,
                    node=lambda: self._node(devices),
                    connected=lambda: not session.error,
                    clock=doors.clock,
                )
                group.create_task(exporter.serve(config.metrics_listen), name="metrics")
            if self._reread is not None:
                group.create_task(self._keep_reloading(self._reread, identifier, devices), name="reload")
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
            goes_on = machine.running(), machine.held(), machine.clients()
            _log.info("what runs goes on", tasks=len(goes_on[0]), leases=len(goes_on[1]))
            if any(goes_on):
                session.leaving()
        await session.flush()

    # The parts.

    def _make_desk(self, asker: PeerClient, group: asyncio.TaskGroup) -> ChassisDesk:
        config = self._config
        accesses = {one.name: one for one in read_config(config.fabric).chassis} if config.fabric else {}
        return ChassisDesk(
            node=config.name,
            accesses=accesses,
            asker=asker,
            clock=self._doors.clock,
            group=group,
            directory=self._state / "fabric",
            driver=self._doors.chassis_driver,
        )

    async def _make_devices(self, desk: ChassisDesk, service: AgentService, group: asyncio.TaskGroup) -> NodeDevices:
        """Return the node's devices, listed once."""
        runner = StepRunner(journal=self._journal, clock=self._doors.clock, group=group)
        devices = NodeDevices(self._config, self._doors, desk)
        if devices.parts is not None:
            devices.moves = Moves(parts=devices.parts, gate=devices.gate, journal=self._journal, runner=runner)
            # What is gone from here, or on its way, is offered to nobody.
            await devices.moves.remember()
        devices.storage = self._make_storage(service, runner, devices)
        await devices.look()
        return devices

    def _make_storage(self, service: AgentService, runner: StepRunner, devices: NodeDevices) -> NodeStorage | None:
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
            look=devices.look_again,
        )

    def _make_pipeline(self, host: RemotingHost, storage: NodeStorage | None) -> Pipeline:
        doors = self._doors
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
        return Pipeline(make_collectors(sources), clock=doors.clock)

    def _make_runner(
        self, logs: LogStore, service: AgentService, storage: NodeStorage | None, group: asyncio.TaskGroup
    ) -> TaskRunner:
        config, doors = self._config, self._doors
        return TaskRunner(
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

    def _make_local(self, session: SessionRunner, service: AgentService, group: asyncio.TaskGroup) -> LocalCluster:
        config = self._config
        return LocalCluster(
            node=config.name,
            connect=lambda caller: ClusterClient.remote(
                address=config.scheduler, credentials=config.credentials, on_behalf_of=caller
            ),
            scheduler=session,
            service=service,
            group=group,
            clock=self._doors.clock,
        )

    def _tell(self, session: SessionRunner, devices: NodeDevices, service: AgentService) -> None:
        """Have the scheduler told of what changes on this node."""

        def changed() -> None:
            session.inventory_changed(self._node(devices))

        devices.changed = self._disk.changed = changed
        devices.vanished = lambda gone: service.post(DevicesVanished(devices=gone))
        devices.desk.told = session.chassis_changed
        if devices.storage is not None:
            devices.storage.overused = session.lease_overused
            devices.storage.paths_told = session.lease_paths

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

    def _node(self, devices: NodeDevices) -> Node:
        return msgspec.structs.replace(
            devices.known.node, peer_endpoint=self._peer_endpoint, trouble=self._disk.trouble
        )

    def _operators(self) -> tuple[str, ...]:
        # An agent that runs everything as its own user belongs to a cluster of that user's own.
        own = (self._doors.users.myself().name,) if self._config.run_as_self else ()
        return (*self._config.operators, *own)

    def _has_ports(self, chassis: str) -> bool:
        """Say whether cables of a chassis are known to lead to this node."""
        return any(port.partition("/")[0] == chassis for port in self._config.fabric_ports)

    # What goes on all the time.

    def _keep_devices(self, devices: NodeDevices, moving: Moving | None, group: asyncio.TaskGroup) -> None:
        """Start what follows the node's devices as they come and go."""
        doors, moves = self._doors, devices.moves
        if moving is not None and moves is not None:
            group.create_task(moving.recover(), name="moves")
            group.create_task(moves.keep_trying(boot_id=self._boot_id), name="stuck moves")
        if devices.storage is not None:
            group.create_task(devices.storage.run(), name="storage")
        group.create_task(devices.desk.keep_reading(self._has_ports), name="chassis")
        group.create_task(devices.keep_looking(), name="inventory")
        if doors.pci is not None and doors.uevents is not None:
            bus = BusWatch(
                pci=doors.pci,
                uevents=doors.uevents,
                changed=devices.look_again,
                expected=moves.is_expected if moves is not None else lambda _: False,
            )
            group.create_task(bus.run(), name="bus")

    def _keep_reloading(
        self, reread: Reread, identifier: Identifier, devices: NodeDevices
    ) -> Coroutine[Any, Any, None]:
        """Return what takes in settings anew; SIGHUP ends nobody from here on."""

        async def take(settings: AgentConfig) -> None:
            self._config = devices.config = settings
            identifier.operators = frozenset(self._operators())
            await devices.look_again()

        return keep_reloading(
            reload_requests(),
            self._config,
            reread=reread,
            check=_check,
            changeable=RELOADABLE,
            take=take,
            notifier=self._doors.notifier,
        )

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
                trouble = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            except Exception as error:
                # A defect, or a key of a kind that nobody has thought of: what runs here goes on with the one there is.
                trouble = f"{type(error).__name__}: {error}"
            # Once for each reason: it is tried for months.
            if trouble and trouble != told:
                _log.error("certificate not renewed", reason=trouble)
            told = trouble

    async def _feed_watchdog(self) -> None:
        # From the event loop: a loop that hangs is what the watchdog is there to notice.
        while True:
            self._doors.notifier.tell("WATCHDOG=1")
            await self._doors.clock.sleep(self._doors.notifier.watchdog_s)

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
