"""The cluster inside ``farbus up``: one scheduler and some agents on this machine.

Everything is a child of this process and ends with it, however it ends: the
daemons ask the kernel for that (:func:`farbus.linux.children.die_with_parent`).
A daemon that dies is started again, after a pause that grows while it keeps
dying.  What is left on disk by a ``farbus up`` that was killed is removed by
the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from farbus.agent import cdi
from farbus.api.authority import Authority, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.identity import Role, valid_name
from farbus.cli.daemons import PARENT_VARIABLE
from farbus.cli.runtime import RunningCluster, RunningNode
from farbus.errors import ExitCode, FarbusError, InvalidInput, TimedOut
from farbus.linux.children import Service, processes_naming, start_service
from farbus.linux.remnants import end_programs
from farbus.linux.tcp_ports import HeldPort
from farbus.model.device import whole_of
from farbus.model.node import NodeStatus
from farbus.model.quantity import format_bytes
from farbus.model.states import NodeState
from farbus.model.value import Value
from farbus.remoting.paths import package_root

MAX_NODES = 16
MAX_GPUS_OF_NODE = 16
"""BOARD_COUNT_MAX of native/softgpu/driver/board.h."""

READY_WITHIN_S = 60.0
"""Longest that all nodes may take to be ready: importing everything takes seconds on a busy machine."""

LOAD_WITHIN_S = 60.0
"""Longest that a detached ``farbus up`` may take before its own time runs: until Python has loaded it."""

LOOK_EVERY_S = 0.1
STOP_WITHIN_S = 10.0
"""How long a daemon may take to end its tasks and give back its devices before it is killed."""

LEASE_TTL_S = 10.0
"""Long enough for a scheduler to be started again on a busy machine, and for the agents to find it."""

ORPHAN_LIMIT_S = 60.0
"""How long programs wait for an agent that died to be started again: it is, unless this command was killed too."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
CALM_AFTER_S = 30.0
"""A daemon that ran this long begins again with the first pause."""

STATE_LOCK = "up.lock"
"""In the state: locked for as long as a ``farbus up`` has it."""

STATE_MARKS = (STATE_LOCK, "scheduler/config.json")
"""Files of which one is in each directory that a ``farbus up`` has had for its state."""

MARK = "FARBUS_UP_STATE"
"""In the environment of every daemon: tells processes that a killed ``farbus up`` left from those of others."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where native/softgpu/driver/board.c keeps its boards


class NodePlan(Value, frozen=True, kw_only=True):
    """One node to make, with its software GPUs."""

    name: str
    gpus: int


class Plan(Value, frozen=True, kw_only=True):
    """The cluster to make."""

    nodes: tuple[NodePlan, ...]
    gpu_memory_bytes: int
    physical_node: str = ""
    """The node that offers the machine's own devices; empty for none."""
    options: str = ""
    """Further FARBUS_SOFTGPU settings, such as ``sms=4``."""
    gpu_shares: int = 1
    """Shares that each GPU is offered as; 1 for whole GPUs."""
    cdi_directory: str = ""
    """Where container engines are told of tasks' remote GPUs; empty for nowhere."""
    rdma_address: str = ""
    """Address of an RDMA device, at which nodes reach each other; empty for the loopback interface, without RDMA."""
    metrics_port: int = 0
    """Port of the loopback interface where the scheduler serves Prometheus, nodes on those after it; 0 for none."""
    scheduler: dict[str, Any] = {}
    """Further settings of the scheduler, none of :data:`OWN_SETTINGS`."""

    @property
    def default_node(self) -> str:
        """The node that commands speak to if they choose none: one without a GPU if there is one."""
        return min(self.nodes, key=lambda node: node.gpus).name


OWN_SETTINGS = frozenset({"listen", "state", "credentials", "metrics", "ca_directory", "join", "operator_nodes"})
"""Settings of the scheduler that ``farbus up`` makes itself."""

DEFAULT_NODES = "alpha:2,beta:1,gamma:0"


def parse_nodes(text: str) -> tuple[NodePlan, ...]:
    """Read ``NAME:GPUS,NAME:GPUS,...``; raise :class:`InvalidInput`."""
    nodes = []
    for word in text.split(","):
        name, colon, count = word.strip().partition(":")
        if not valid_name(name) or not re.fullmatch(r"[A-Za-z0-9-]{1,32}", name):
            raise InvalidInput(f"--nodes: {word!r} names no node", hint=f"write for example --nodes {DEFAULT_NODES}")
        if colon and not (count.isdecimal() and int(count) <= MAX_GPUS_OF_NODE):
            raise InvalidInput(
                f"--nodes: {word}: {count!r} is not a number of GPUs", hint=f"use 0 to {MAX_GPUS_OF_NODE}"
            )
        nodes.append(NodePlan(name=name, gpus=int(count or 0)))
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise InvalidInput(f"--nodes: {text}: a name stands twice", hint="give each node a name of its own")
    if len(nodes) > MAX_NODES:
        raise InvalidInput(f"--nodes: {len(nodes)} nodes", hint=f"use at most {MAX_NODES}")
    return tuple(nodes)


class Daemon:
    """One child that is kept running."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._environment = environment
        self.service: Service | None = None
        self.first_end: tuple[ExitCode, str] | None = None
        """What it ended with for the first time, and its last words then."""

    async def run(self, tell: Callable[[str], None], first_end: asyncio.Event) -> None:
        """Start it, and start it again whenever it ends, until cancelled.  ``first_end`` tells of the first end."""
        pause = FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            self.service = await start_service(self._command, environment=self._environment, log=self.log)
            code = await self.service.wait()
            if self.first_end is None:
                # What it says once it was started again is something else.
                self.first_end = self.service.exit_code, self.last_words()
            first_end.set()
            if time.monotonic() - started > CALM_AFTER_S:
                pause = FIRST_PAUSE_S
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            tell(f"{self.name} {how}: {self.last_words()}; it starts again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def last_words(self) -> str:
        """Return the last line that it wrote."""
        try:
            with open(self.log, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].strip()[:300] if lines else "it said nothing"

    async def stop(self) -> None:
        """Ask it to end; kill it when it does not."""
        if self.service is None:
            return
        self.service.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self.service.wait()
        except TimeoutError:
            self.service.signal(signal.SIGKILL)
            await self.service.wait()


class EmbeddedCluster:
    """The scheduler and the agents of one ``farbus up``.

    ``state`` has what would have to outlive a restart (authority, ledger,
    journals, logs), ``sockets`` the agents' sockets.
    """

    def __init__(self, plan: Plan, *, state: Path, sockets: Path, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self.state = state
        self.sockets = sockets
        # The scheduler listens seconds later, and again where it is started again.
        self._port = HeldPort()
        self._tell = tell
        self._tasks: list[asyncio.Task[None]] = []
        self._daemons: list[Daemon] = []
        self._first_end = asyncio.Event()
        self._not_ready: dict[str, str] = {}
        self._ready = False

    @property
    def server(self) -> str:
        """``HOST:PORT`` of the scheduler."""
        return f"127.0.0.1:{self._port.number}"

    def socket_of(self, node: str) -> Path:
        """Return the path of a node's socket."""
        return self.sockets / f"{node}.sock"

    def describe(self, devices: tuple[str, ...]) -> RunningCluster:
        """Return what other commands need to know; ``devices`` are identities of software GPUs."""
        return RunningCluster(
            pid=os.getpid(),
            server=self.server,
            credentials=str(self.state / "operator"),
            default_node=self.plan.default_node,
            nodes=tuple(
                RunningNode(name=node.name, socket=str(self.socket_of(node.name)), gpus=node.gpus)
                for node in self.plan.nodes
            ),
            state=str(self.state),
            devices=devices,
            cdi_directory=self.plan.cdi_directory,
        )

    async def start(self) -> tuple[NodeStatus, ...]:
        """Start everything and return the nodes once all are ready.

        Raises :class:`FarbusError` with the daemon's own last words where one ends instead.
        """
        try:
            self._prepare()
        except OSError as error:
            raise InvalidInput(
                f"{error.filename or self.state}: {error.strerror}",
                hint="see that nothing is in the way and its disk has room, or choose another directory with --state",
            ) from error
        for daemon in self._daemons:
            self._tasks.append(asyncio.create_task(daemon.run(self._tell_later, self._first_end), name=daemon.name))
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                nodes = await self._wait_until_ready()
            self._ready = True
            return nodes
        except TimeoutError as error:
            late = [f"node {name}: {text}" for name, text in self._not_ready.items() if text]
            raise TimedOut(
                f"not ready after {READY_WITHIN_S:g} s: {'; '.join(late) or 'the scheduler'}",
                hint="is the machine busy? Try again, or keep the logs with --state DIR and look into them",
            ) from error

    def _tell_later(self, message: str) -> None:
        # Before everything is ready an end is a failure of the whole, which start() tells itself.
        if self._ready:
            self._tell(message)

    async def serve(self) -> None:
        """Keep everything running until cancelled."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Stop the agents, which give back their devices, then the scheduler."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(daemon.stop() for daemon in self._daemons[1:]))
        for scheduler in self._daemons[:1]:
            await scheduler.stop()
        self._port.close()

    # -- making it

    def _prepare(self) -> None:
        authority = self._open_authority()
        for directory in (self.state / "logs", self.sockets):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_credentials(self.state / "operator", "operator", authority.issue("operator", Role.OPERATOR))
        self._daemons = [self._scheduler(authority), *(self._agent(authority, node) for node in self.plan.nodes)]
        self._not_ready = {node.name: "not seen yet" for node in self.plan.nodes}

    def _open_authority(self) -> Authority:
        directory = self.state / "ca"
        if (directory / "ca.key").exists():
            return Authority.open(directory)
        return Authority.create(directory, cluster="farbus up")

    def _scheduler(self, authority: Authority) -> Daemon:
        home = self.state / "scheduler"
        credentials = write_credentials(home / "credentials", "scheduler", authority.issue("scheduler", Role.SCHEDULER))
        settings = {
            "lease_ttl_s": LEASE_TTL_S,
            **self.plan.scheduler,
            "listen": self.server,
            "state": str(home),
            "credentials": credentials,
            "metrics": self._metrics_address(0),
            # They are this user's own.
            "operator_nodes": [node.name for node in self.plan.nodes],
        }
        return self._daemon("scheduler", "scheduler", home, settings, mark="ledger.lock")

    def _agent(self, authority: Authority, node: NodePlan) -> Daemon:
        home = self.state / "nodes" / node.name
        credentials = write_credentials(home / "credentials", node.name, authority.issue(node.name, Role.NODE))
        share = len(self.plan.nodes)
        settings: dict[str, object] = {
            "name": node.name,
            "scheduler": self.server,
            "address": self.plan.rdma_address or "127.0.0.1",
            "remoting_rdma": "on" if self.plan.rdma_address else "off",
            "peer_port": 0,
            "state": str(home),
            "socket": str(self.socket_of(node.name)),
            "credentials": credentials,
            # The nodes share one machine.  Processors can be shared in time, so each node offers all of
            # them; memory can't, so together they offer what there is.
            "cpu_milli": (os.cpu_count() or 1) * 1000,
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // share,
            "physical_devices": node.name == self.plan.physical_node,
            "run_as_self": True,
            "allow_root": os.getuid() == 0,
            "metrics_listen": self._metrics_address(1 + self.plan.nodes.index(node)),
            "end_on_stop": True,
            "orphan_limit_s": ORPHAN_LIMIT_S,
            "program_units": "none",
            "cdi_directory": self.plan.cdi_directory,
            # A container of one node's may use the GPU of another, which is on this machine, too.
            "remoting_sockets": str(self.state / "sockets"),
        }
        if node.gpus:
            memory = f"{self.plan.gpu_memory_bytes // 2**20}MiB"
            settings["softgpu"] = f"count={node.gpus},mem={memory}" + (
                f",{self.plan.options}" if self.plan.options else ""
            )
            if self.plan.gpu_shares > 1:
                settings["gpu_shares"] = {"*": self.plan.gpu_shares}
            # Whose GPUs they are: another farbus up has nodes of the same names, and no other has this state.
            settings["softgpu_node"] = f"farbus-up-{os.getuid()}-{home}"
        return self._daemon(f"node {node.name}", "agent", home, settings, mark="lock")

    def _metrics_address(self, number: int) -> str:
        return f"127.0.0.1:{self.plan.metrics_port + number}" if self.plan.metrics_port else ""

    def _daemon(self, name: str, command: str, home: Path, settings: Mapping[str, object], *, mark: str) -> Daemon:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        # By which it takes the directory for its own, though there are its settings in it.
        (home / mark).touch(mode=0o600)
        path = home / "config.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("FARBUS_", "CUDA_"))}
        environment[PARENT_VARIABLE] = str(os.getpid())
        environment[MARK] = str(self.state)
        # The same farbus as this one, also where it is not installed but lies in the current directory.
        root = str(package_root())
        environment["PYTHONPATH"] = ":".join(filter(None, [root, environment.get("PYTHONPATH", "")]))
        arguments = [sys.executable, "-P", "-m", "farbus.cli", command, "--config", str(path)]
        return Daemon(name, arguments, environment, self.state / "logs" / f"{name.replace(' ', '-')}.log")

    # -- waiting for it

    async def _wait_until_ready(self) -> tuple[NodeStatus, ...]:
        while True:
            if self._first_end.is_set():
                raise self._failure()
            nodes = await self._look()
            if nodes is not None:
                return nodes
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._first_end.wait()

    async def _look(self) -> tuple[NodeStatus, ...] | None:
        """Return the nodes if all are ready and all their sockets answer."""
        nodes: tuple[NodeStatus, ...] = ()
        for name in self._not_ready:
            if not self.socket_of(name).exists():
                self._not_ready[name] = "no socket yet"
                return None
        for name in self._not_ready:
            try:
                async with ClusterClient.local(socket=str(self.socket_of(name))) as client:
                    nodes = await client.list_nodes()
            except FarbusError as error:
                self._not_ready[name] = str(error)
                return None
            self._not_ready[name] = ""
        states = {status.node.name: status.state for status in nodes}
        late = {name for name in self._not_ready if states.get(name) is not NodeState.READY}
        self._not_ready = {name: "not ready" if name in late else "" for name in self._not_ready}
        return None if late else nodes

    def _failure(self) -> FarbusError:
        for daemon in self._daemons:
            if daemon.first_end is not None:
                code, said = daemon.first_end
                words = re.sub(r"^farbus( \w+)?: ", "", said)
                return FarbusError(f"{daemon.name} does not start: {words}").with_exit_code(code)
        return FarbusError(f"a daemon does not start; its log is in {self.state / 'logs'}")


def describe_gpus(plan: Plan, node: NodePlan) -> str:
    """Say what GPUs a node has."""
    if not node.gpus:
        return "no GPU"
    memory = format_bytes(plan.gpu_memory_bytes)
    shares = f", in {plan.gpu_shares} shares" if plan.gpu_shares > 1 else ""
    each = " each" if node.gpus > 1 else ""
    return f"{node.gpus} software GPU{'s' if node.gpus > 1 else ''} with {memory}{each}{shares}"


def remove_leftovers(
    *, directory: Path, state: Path | None, devices: tuple[str, ...], cdi_directory: str = ""
) -> list[str]:
    """Remove what a ``farbus up`` leaves on disk and in memory; return what was there.

    ``directory`` has the sockets and, unless the user chose another place,
    the ``state``.  ``devices`` are identities of software GPUs, or of shares of them.  In
    ``cdi_directory`` files that name the state are its, the others somebody
    else's.  Processes that are still there are killed first: programs by
    their keepers, which outlive ``farbus up`` for a while.
    """
    home = state or directory / "state"
    found = [f"program {name}" for programs in home.glob("nodes/*/programs") for name in end_programs(programs)]
    # To the end of the variable: another state's path may begin with this one's.
    for pid in processes_naming(f"{MARK}={home}\0"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            found.append(f"process {pid}")
    for device in {whole_of(device) for device in devices}:
        board = SHARED_MEMORY / f"farbus-softgpu-{device.removeprefix('GPU-')}"
        with contextlib.suppress(FileNotFoundError):
            board.unlink()
            found.append(str(board))
    for told in Path(cdi_directory).glob(f"{cdi.PREFIX}*.json") if cdi_directory else ():
        with contextlib.suppress(OSError):
            if f'"{home}/'.encode() in told.read_bytes():
                told.unlink()
                found.append(str(told))
    if directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
        found.append(str(directory))
    return found
