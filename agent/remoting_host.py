"""The agent's dealings with remoting: a supervisor for each lease, a session file for each program.

Device side, remote route: one supervisor process per lease
(``farbus.remoting.supervisor``), which sees exactly the leased devices.  Local
route: nothing to start.  Client side: a session file that only the task's user
can read, and the environment that puts the shim, or for a local route the
GPU's own driver, into the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from farbus.agent import cdi
from farbus.agent.accounts import UserRules, choose_account
from farbus.agent.config import AgentConfig
from farbus.agent.container_sockets import ContainerSockets
from farbus.agent.events import PreparedLease, SupervisorDied
from farbus.agent.jobs import DEFAULT_PATH
from farbus.agent.names import file_name
from farbus.agent.shim_copies import ShimCopies
from farbus.agent.turns import Turns
from farbus.errors import Conflict, FarbusError, NotFound, TimedOut, Unavailable
from farbus.linux.files import make_directory, make_owned_directory, write_owned
from farbus.linux.output import START, Position
from farbus.linux.processes import Child, Processes, Program
from farbus.linux.rdma import RdmaDevice, rdma_devices
from farbus.linux.users import Account, Users
from farbus.model.address import host_and_port
from farbus.model.device import Device, Route, whole_of
from farbus.model.lease import Lease
from farbus.remoting import paths
from farbus.remoting.launcher import shim_environment
from farbus.remoting.servers import ERROR_PREFIX
from farbus.remoting.session import Server, render_session, socket_name
from farbus.remoting.supervisor import line_prefix

_log = structlog.get_logger()

SUPERVISOR_START_S = 20.0
"""Longest wait for a supervisor to listen: it opens the driver, seconds for each GPU without persistence mode."""

SUPERVISOR_END_S = 15.0
"""Longest wait for a killed supervisor and its servers; one in state D takes longer, and the lease is wedged then."""

_LEASE = "lease."

MAX_LINE_BYTES = 4096
"""Most of a supervisor's line that goes into the agent's log."""


def software_gpu_environment(config: AgentConfig) -> dict[str, str]:
    """Return what makes a process see this node's software GPUs; empty where there are none."""
    if not config.softgpu:
        return {}
    return {"FARBUS_SOFTGPU": config.softgpu, "FARBUS_SOFTGPU_NODE": config.softgpu_node or config.name}


def software_gpu_directory(config: AgentConfig) -> Path:
    """Return where the software GPU's libraries are: as set, else those of this installation."""
    return Path(config.softgpu_library) if config.softgpu_library else paths.software_gpu_directory()


def _kind_of_elf(path: str | Path) -> bytes:
    """Return what tells of an ELF file for which processors it is, and of how many bits; empty if it can't be read."""
    try:
        with open(path, "rb") as file:
            header = file.read(20)
    except OSError:
        return b""
    return header[:6] + header[18:20]


_OWN_KIND_OF_ELF = _kind_of_elf("/proc/self/exe")


def driver_library(environment: Mapping[str, str]) -> str:
    """Return the driver that the agent's LD_LIBRARY_PATH names, as in containers that were given a GPU; else empty.

    The servers of a lease have no such variable: it may put the shim under them, which is preloaded as well.  What the
    loader passes over is passed over here: folders that can't be entered, and drivers for 32 bits, of which images
    for GPUs often name the folder first.  Both variables are separated as ld.so(8) does it.
    """
    preloaded = {os.path.realpath(name) for name in re.split("[: ]+", environment.get("LD_PRELOAD", "")) if name}
    for folder in filter(None, re.split("[:;]", environment.get("LD_LIBRARY_PATH", ""))):
        library = Path(folder, "libcuda.so.1").absolute()
        kind = _kind_of_elf(library)
        if kind and kind == _OWN_KIND_OF_ELF and os.path.realpath(library) not in preloaded:
            return str(library)
    return ""


class SupervisorProgram:
    """How the remoting package's programs are called: the only place that knows."""

    def command(
        self,
        *,
        lease: Lease,
        address: str,
        secret_descriptor: int,
        devices: tuple[Device, ...],
        library: str,
        tls: bool,
        rdma: bool,
        local_user: int | None,
        grace_s: float,
        socket_descriptor: int | None,
        image_directory: Path | None,
        image_bytes: int,
    ) -> tuple[str, ...]:
        """Return the command that serves ``devices`` on a free port of ``address``.

        Beside root, ``local_user`` may come over this machine's socket; None is the supervisor's own user.
        A session whose connection was cut is kept for ``grace_s`` seconds.  Containers of this machine come to the
        socket of ``socket_descriptor`` (None: there is none).  GPU code is kept in ``image_directory``
        (None: nowhere), ``image_bytes`` of it.
        """
        command = [sys.executable, "-P", "-m", "farbus.remoting.supervisor", "--lease", lease.id]
        command += ["--listen", host_and_port(address, 0), "--secret-fd", str(secret_descriptor)]
        # By UUID: indices change when a GPU is drained (dra-driver-nvidia-gpu issue 427).
        command += ["--visible-devices", ",".join(whole_of(device.id) for device in devices)]
        if any(device.share_milli for device in devices):
            command += ["--memory-limit", str(sum(device.memory_bytes for device in devices))]
        command += ["--tls", "on" if tls else "off", "--rdma", "on" if rdma else "off", "--grace", f"{grace_s:g}"]
        if local_user is not None:
            command += ["--local-user", str(local_user)]
        if socket_descriptor is not None:
            command += ["--socket-fd", str(socket_descriptor)]
        if image_directory is not None:
            command += ["--image-directory", str(image_directory), "--image-bytes", str(image_bytes)]
        if library:
            command += ["--libcuda", library]
        return tuple(command)

    def port_in(self, line: bytes) -> int:
        """Return the port that a supervisor's first line tells; 0 for any other line."""
        word, _, rest = line.decode(errors="replace").strip().partition(" ")
        port = rest.rpartition(":")[2]
        return int(port) if word == "listening" and port.isdigit() else 0

    def is_error(self, line: str, *, lease: str) -> bool:
        """Say whether a line is the supervisor's own and tells what an operator should see: a server that crashed.

        Drivers in its servers write to the same standard error, whatever they like.
        """
        return line.startswith(line_prefix(lease) + ERROR_PREFIX)

    def socket_name(self, secret: str) -> str:
        """Return what the socket of the supervisor is called that serves the lease of a secret, in hexadecimal."""
        return socket_name(bytes.fromhex(secret))

    def session_file(self, servers: Sequence[RemoteServer]) -> bytes:
        """Return the content of a program's session file, which numbers its devices over ``servers`` in their order."""
        return render_session(
            [
                Server(
                    address=each.address,
                    port=each.port,
                    secret=bytes.fromhex(each.secret),
                    devices=each.devices,
                    tls=each.tls,
                    rdma=each.rdma,
                    connections=each.connections,
                )
                for each in servers
            ]
        ).encode()

    def client_environment(self, session: Path, shim: Path) -> dict[str, str]:
        """Return the environment that puts the shim of a directory into a program."""
        return shim_environment(session=session, library=paths.preloadable(shim / paths.SHIM))


@dataclass(frozen=True, kw_only=True)
class RemoteServer:
    """Where a program finds its devices: a numeric address, a port, the lease's secret in hexadecimal."""

    address: str
    port: int
    secret: str = field(repr=False)
    devices: tuple[str, ...]
    tls: bool
    rdma: bool
    connections: int | None


@dataclass
class _Served:
    lease: Lease
    child: Child | None
    endpoint: str
    leaving: bool = False


class RemotingHost:
    """Serves leases and prepares programs.  ``died`` hears of supervisors that end by themselves."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        processes: Processes,
        users: Users,
        devices: Callable[[], Mapping[str, Device]],
        group: asyncio.TaskGroup,
        died: Callable[[SupervisorDied], None],
        supervisor: SupervisorProgram,
        rdma: Callable[[], Sequence[RdmaDevice]] = rdma_devices,
    ) -> None:
        self._config = config
        self._rdma = rdma
        self._processes = processes
        self._users = users
        self._devices = devices
        self._group = group
        self._died = died
        self._supervisor = supervisor
        self._served: dict[str, _Served] = {}
        self._strangers: dict[str, Child] = {}
        self._sockets = ContainerSockets(config.sockets_directory)
        self._shims = ShimCopies(config.shims_directory, paths.shim_directory())
        self._shims_used: set[Path] = set()
        """Those of the programs that an earlier agent has started."""
        self._sessions: set[str] = set()
        """Names of session files that are somebody's."""
        self._turns = Turns()
        """By lease: its supervisor may be asked for by the client's side, while the device's side gives it up."""

    # Device side.

    async def prepare_devices(self, lease: Lease) -> str:
        """Serve a lease's devices; for one that is served already, return its endpoint."""
        if (served := self._served.get(lease.id)) is not None:
            return served.endpoint
        devices = self._leased(lease)
        if not _needs_supervisor(lease):
            self._served[lease.id] = _Served(lease=lease, child=None, endpoint="")
            return ""
        if lease.route not in (Route.LOCAL, Route.REMOTE):
            raise Unavailable(f"lease {lease.id}: this version can't serve the route {lease.route}")
        child, endpoint = await self._start_supervisor(lease, devices)
        self._serve(lease, child, endpoint, position=START)
        return endpoint

    def _serve(self, lease: Lease, child: Child, endpoint: str, *, position: Position) -> None:
        served = _Served(lease=lease, child=child, endpoint=endpoint)
        self._served[lease.id] = served
        self._group.create_task(self._attend(served, child, position), name=f"supervisor of lease {lease.id}")

    def _leased(self, lease: Lease) -> tuple[Device, ...]:
        known = self._devices()
        found = []
        for leased in lease.devices:
            if leased.device not in known:
                raise NotFound(f"device {leased.device}: not on node {self._config.name}")
            found.append(known[leased.device])
        if len({device.software for device in found}) > 1:
            raise Conflict(f"lease {lease.id}: software GPUs and real ones have different drivers")
        return tuple(found)

    async def _start_supervisor(self, lease: Lease, devices: tuple[Device, ...]) -> tuple[Child, str]:
        with self._socket_for_containers(lease) as socket_descriptor:
            child = await self._spawn_supervisor(lease, devices, socket_descriptor=socket_descriptor)
            try:
                async with asyncio.timeout(SUPERVISOR_START_S):
                    port, said = await self._read_port(child)
            except TimeoutError as error:
                await self._kill(child)
                child.forget()
                raise TimedOut(
                    f"lease {lease.id}: its supervisor did not listen after {SUPERVISOR_START_S:g} s"
                ) from error
            except BaseException:
                await self._kill(child)
                child.forget()
                raise
            if not port:
                ended = await child.wait()
                child.forget()
                raise Unavailable(
                    f"lease {lease.id}: its supervisor ended with {ended.code}: {said or 'it said nothing'}"
                )
        return child, host_and_port(self._config.address, port)

    def _socket_for_containers(self, lease: Lease) -> contextlib.AbstractContextManager[int | None]:
        if not self._config.cdi_directory:
            return contextlib.nullcontext()
        return self._sockets.made(self._supervisor.socket_name(lease.secret))

    async def _spawn_supervisor(
        self, lease: Lease, devices: tuple[Device, ...], *, socket_descriptor: int | None
    ) -> Child:
        software = devices[0].software
        share_milli = devices[0].share_milli
        environment = {
            "PATH": DEFAULT_PATH,
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(paths.package_root()),
            "PYTHONUNBUFFERED": "1",
        }
        if share_milli:
            # Heard by NVIDIA's MPS alone, where the node runs it.
            environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, share_milli // 10))
        library = driver_library(os.environ)
        if software:
            environment |= software_gpu_environment(self._config)
            library = str(software_gpu_directory(self._config) / "libcuda.so.1")
        user = self._config.remoting_user
        account = self._users.by_name(user) if user else None
        secret_reader, secret_writer = os.pipe()
        try:
            try:
                os.write(secret_writer, lease.secret.encode() + b"\n")
            finally:
                os.close(secret_writer)
            return await self._processes.spawn(
                Program(
                    name=_program_name(lease.id),
                    what=f"lease {lease.id}",
                    argv=self._supervisor.command(
                        lease=lease,
                        address=self._config.address,
                        secret_descriptor=secret_reader,
                        devices=devices,
                        library=library,
                        tls=self._config.remoting_tls == "on",
                        rdma=self._config.remoting_rdma == "on",
                        local_user=self._local_user(lease),
                        grace_s=self._config.remoting_grace_s,
                        socket_descriptor=socket_descriptor,
                        image_directory=self._images_of(lease.user, account),
                        image_bytes=self._config.remoting_image_bytes,
                    ),
                    environment=environment,
                    account=account,
                    limits={"RLIMIT_CORE": 0},
                    keep=(secret_reader,) if socket_descriptor is None else (secret_reader, socket_descriptor),
                    orphan_limit_s=self._config.orphan_limit_s,
                )
            )
        finally:
            os.close(secret_reader)

    def _images_of(self, user: str, account: Account | None) -> Path | None:
        """Return where GPU code of a user's programs is kept, None where none is: servers do without it.

        A user's programs alone may learn from it what they have loaded before (decision 17).
        """
        if not self._config.remoting_image_bytes:
            return None
        # Any text can be a user's name.  Another account could not enter what this one has made.
        name = hashlib.sha256(user.encode()).hexdigest()[:32]
        path = self._config.images_directory / f"{name}.{(account or self._users.myself()).uid}"
        try:
            make_directory(self._config.images_directory, mode=0o711)
            make_owned_directory(path, account=account)
        except (OSError, FarbusError) as error:
            _log.warning("GPU code is not kept", directory=str(path), error=str(error))
            return None
        return path

    async def _kill(self, child: Child) -> None:
        child.kill()
        await child.wait()

    def _local_user(self, lease: Lease) -> int | None:
        """Return the user id as whom a program with this lease runs here, if one can."""
        try:
            account = self._account(lease.user)
        except FarbusError:
            return None  # its programs run on other nodes, and come by TCP
        return (account or self._users.myself()).uid

    async def _read_port(self, child: Child) -> tuple[int, str]:
        """Return the port, or 0 with the last line that the supervisor said before it ended."""
        buffers = {1: b"", 2: b""}
        last = ""
        async with contextlib.aclosing(child.output()) as pieces:
            async for stream, data, _ in pieces:
                buffers[stream] = (buffers[stream] + data)[-MAX_LINE_BYTES:]
                *lines, buffers[stream] = buffers[stream].split(b"\n")
                for line in lines:
                    if stream == 1 and (port := self._supervisor.port_in(line)):
                        return port, ""
                    last = line.decode(errors="replace").strip() or last
        rest = (buffers[2] or buffers[1]).decode(errors="replace").strip()
        return 0, rest or last

    async def _attend(self, served: _Served, child: Child, position: Position) -> None:
        """Put what a supervisor says into the agent's log; tell when it ends."""
        await self._log_lines(served.lease.id, child, position)
        ended = await child.wait()
        if not served.leaving:
            how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
            self._died(SupervisorDied(lease_id=served.lease.id, reason=f"its remoting supervisor ended ({how})"))

    async def _log_lines(self, lease: str, child: Child, position: Position, *, follow: bool = True) -> None:
        """Put what a supervisor says from ``position`` on into the log, and note how far that is heard."""
        try:
            await self._follow_lines(lease, child, position, follow=follow)
        except OSError as error:
            # A disk that does not give back what one supervisor has said must not end what the agent does for others.
            _log.error("a supervisor's lines can't be read", lease=lease, reason=error.strerror)

    async def _follow_lines(self, lease: str, child: Child, position: Position, *, follow: bool) -> None:
        buffer = b""
        async with contextlib.aclosing(child.output(position=position, follow=follow)) as pieces:
            async for _, data, after in pieces:
                *lines, buffer = (buffer + data).split(b"\n")
                buffer = buffer[-MAX_LINE_BYTES:]
                for line in lines:
                    text = line[:MAX_LINE_BYTES].decode(errors="replace").strip()
                    if text:
                        say = _log.error if self._supervisor.is_error(text, lease=lease) else _log.info
                        say("supervisor", lease=lease, line=text)
                if not buffer:
                    child.note_heard(after)

    def served(self) -> tuple[tuple[Lease, int], ...]:
        """Return the leases that supervisors serve, each with its supervisor's process id."""
        served = self._served.values()
        return tuple((one.lease, one.child.pid) for one in served if one.child is not None and not one.leaving)

    # What an earlier agent has left.

    async def adopt_devices(self, lease: Lease, endpoint: str) -> bool:
        """Go on serving a lease that an earlier agent has served at ``endpoint``; say whether it is still served."""
        if lease.id in self._served:
            return True
        await self._look()
        child = self._strangers.get(_program_name(lease.id))
        if child is None and not _needs_supervisor(lease):
            self._served[lease.id] = _Served(lease=lease, child=None, endpoint=endpoint)
            return True
        if child is None or not child.running:
            # One that has ended serves nobody: it is left to end_strangers.
            return False
        del self._strangers[child.name]
        self._serve(lease, child, endpoint, position=child.heard_until())
        return True

    async def adopt_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...], environment: dict[str, str]
    ) -> bool:
        """Keep what an earlier agent has made for a task's program; say whether it is all there."""
        path = self._session_path(job, task)
        if "FARBUS_SESSION" in environment and not path.is_file():
            return False
        self._sessions.add(path.name)
        self._shims_used.add(Path(environment.get("LD_PRELOAD", "").partition(":")[0]).parent)
        return True

    async def _look(self) -> None:
        self._strangers |= {child.name: child for child in await self._processes.survivors(_LEASE)}

    async def end_strangers(self, recorded: Collection[str] = ()) -> tuple[str, ...]:
        """End the supervisors that nobody adopted, remove session files likewise; return what they were called.

        One that can't be killed is left to :meth:`unprepare_devices` if its
        lease is ``recorded``: the machine knows then which devices it holds.
        Raises :class:`Conflict` for any other: its devices would count as free.
        """
        await self._look()
        for child in self._strangers.values():
            child.kill("this node's agent does not know it")
        waits = {name: asyncio.create_task(child.wait()) for name, child in self._strangers.items()}
        if waits:
            await asyncio.wait(waits.values(), timeout=SUPERVISOR_END_S)
        ended = tuple(name for name, wait in waits.items() if wait.done())
        for name in ended:
            child = self._strangers.pop(name)
            # One that has ended while no agent was there has said why.
            await self._log_lines(name.removeprefix(_LEASE), child, child.heard_until(), follow=False)
            child.forget()
        known = {_program_name(lease_id) for lease_id in recorded}
        for name, child in self._strangers.items():
            waits[name].cancel()
            if name not in known:
                raise Conflict(
                    f"{name}: left by an earlier agent, in no record, and can't be killed (pid {child.pid})",
                    hint="a driver call hangs; see dmesg, the node may need a reboot",
                )
            _log.error("can't be killed; its lease is wedged", program=name, pid=child.pid)
        files = tuple(name for name in self.sessions() if name not in self._sessions)
        for name in files:
            self.remove_session(name)
        self._remove_specifications()
        self._sockets.remove_unheard()
        self._shims.remove_others(self._shims_used)
        return (*ended, *files)

    async def unprepare_devices(self, lease_id: str) -> None:
        """End a lease's supervisor with all its servers, also one that an earlier agent has left."""
        async with self._turns.of(lease_id):
            await self._end_supervisor(lease_id)

    async def _end_supervisor(self, lease_id: str) -> None:
        served = self._served.get(lease_id)
        child = self._strangers.get(_program_name(lease_id)) if served is None else served.child
        if served is not None:
            served.leaving = True
        if child is not None:
            try:
                async with asyncio.timeout(SUPERVISOR_END_S):
                    await self._kill(child)
            except TimeoutError as error:
                raise TimedOut(
                    f"lease {lease_id}: its supervisor can't be killed (pid {child.pid})",
                    hint="a driver call hangs; see dmesg, the node may need a reboot",
                ) from error
            child.forget()
        self._sockets.remove_unheard()
        self._strangers.pop(_program_name(lease_id), None)
        self._served.pop(lease_id, None)

    # Client side.

    async def prepare_client(
        self, *, job: str, task: str, user: str, leases: tuple[PreparedLease, ...]
    ) -> dict[str, str]:
        """Return the environment for a task's program; write its session file where a lease is remote."""
        if not leases:
            return {}
        if not any(_needs_supervisor(prepared.lease) for prepared in leases):
            return self._local_environment(leases)
        path = self._session_path(job, task)
        servers = [
            await _remote_server(await self._served_here(prepared), config=self._config)
            for prepared in _nearest_first(leases)
        ]
        account = self._account(user)
        self._sessions.add(path.name)
        write_owned(path, self._supervisor.session_file(servers), account=account)
        paths.shim_library()  # says what to do where it is not built
        shim = self._shims.current()
        environment = self._supervisor.client_environment(path, shim)
        if self._config.cdi_directory:
            sockets = self._sockets.there(map(self._supervisor.socket_name, (each.secret for each in servers)))
            environment[cdi.VARIABLE] = self._write_specification(
                job,
                task,
                environment,
                session=path,
                shim=shim,
                sockets=sockets,
                nodes=self._rdma_nodes() if len(sockets) < len(servers) else (),
            )
        return environment

    def _rdma_nodes(self) -> list[Path]:
        """Return the device files by which sessions with other nodes may go by RDMA, where the operator lets them.

        With the node's network a container finds what is found outside: an adapter with its connection's address.
        """
        if self._config.remoting_rdma != "on":
            return []
        usable = (device for device in self._rdma() if device.addresses)
        return [node for device in usable for node in device.nodes if node.exists()]

    async def _served_here(self, prepared: PreparedLease) -> PreparedLease:
        """Serve this node's own devices by remoting, for a program that has another node's beside them."""
        lease = prepared.lease
        if _needs_supervisor(lease):
            return prepared
        async with self._turns.of(lease.id):
            served = self._served.get(lease.id)
            if served is None:
                raise NotFound(f"lease {lease.id}: its devices are not prepared on node {self._config.name}")
            if served.child is None:
                child, endpoint = await self._start_supervisor(lease, self._leased(lease))
                self._serve(lease, child, endpoint, position=START)
                served = self._served[lease.id]
            return PreparedLease(lease=lease, endpoint=served.endpoint)

    def _account(self, user: str) -> Account | None:
        """Return as whom programs of ``user`` run here; None for the agent's own user.

        Whether a task may run as root is asked when it starts; root's own farbus run may have its file.
        """
        return choose_account(
            user,
            users=self._users,
            run_as_self=self._config.run_as_self,
            allow_root=True,
            rules=UserRules(user_map=self._config.user_map),
        )

    def _write_specification(
        self,
        job: str,
        task: str,
        environment: dict[str, str],
        *,
        session: Path,
        shim: Path,
        sockets: Sequence[Path],
        nodes: Sequence[Path],
    ) -> str:
        """Describe a task's devices to container engines; return their name."""
        name = cdi.device_name(job, task)
        path = self._specification_path(session.name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Secrets are in the session file; engines run as anybody.
            content = cdi.specification(name, environment, session=session, shim=shim, sockets=sockets, nodes=nodes)
            write_owned(path, content, account=None, mode=0o644)
        except OSError as error:
            raise Unavailable(
                f"{path}: {error.strerror}", hint="mend it, or leave cdi_directory out of the agent's settings"
            ) from error
        return name

    def _specification_path(self, session: str) -> Path:
        """Return the file by which container engines find the devices of a session file of that name."""
        return Path(self._config.cdi_directory) / f"{cdi.PREFIX}{self._config.name}.{session}.json"

    def _local_environment(self, leases: tuple[PreparedLease, ...]) -> dict[str, str]:
        devices = [device for prepared in leases for device in self._leased(prepared.lease)]
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(device.id for device in devices)}
        if devices and devices[0].software:
            directory = software_gpu_directory(self._config)
            library = paths.preloadable(paths.require(directory / "libcuda.so.1", what="the software GPU"))
            # Preloaded as well: the static cudart opens libcuda.so.1 by name, and an
            # rpath of the program comes before LD_LIBRARY_PATH.
            environment |= {"LD_LIBRARY_PATH": str(directory), "LD_PRELOAD": str(library)}
            environment |= software_gpu_environment(self._config)
        return environment

    async def unprepare_client(self, *, job: str, task: str) -> None:
        """Remove a task's session file; one that a broken disk keeps is left to the next start (:meth:`end_strangers`).

        What is in it ends with its leases, and the devices of other nodes must not be held for it.
        """
        name = self._session_path(job, task).name
        self._sessions.discard(name)
        try:
            self.remove_session(name)
        except FarbusError as error:
            _log.error("session file left; the next start removes it", error=str(error))

    def _session_path(self, job: str, task: str) -> Path:
        name = f"{file_name(job, what='job')}.{file_name(task, what='task')}.session"
        return self._config.sessions_directory / name

    def sessions(self) -> tuple[str, ...]:
        """Return the names of the session files there are, also half-written ones."""
        try:
            return tuple(sorted(os.listdir(self._config.sessions_directory)))
        except FileNotFoundError:
            return ()

    def _remove_specifications(self) -> None:
        """Remove what an earlier agent of this node has told container engines of sessions that are over."""
        if not self._config.cdi_directory:
            return
        kept = {self._specification_path(session).name for session in self._sessions}
        for path in Path(self._config.cdi_directory).glob(f"{cdi.PREFIX}{self._config.name}.*.json"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def remove_session(self, name: str) -> None:
        """Remove a session file; nothing happens when it is not there."""
        if self._config.cdi_directory:
            with contextlib.suppress(OSError):
                self._specification_path(name).unlink(missing_ok=True)
        path = self._config.sessions_directory / name
        if not os.path.lexists(path):
            # On a read-only disk the kernel refuses to remove also what is not there.
            return
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise FarbusError(f"remove session file {name}: {error.strerror}") from error


async def _remote_server(prepared: PreparedLease, *, config: AgentConfig) -> RemoteServer:
    """Return a lease's server with its address in numbers: the shim, a guest in its program, resolves no names."""
    host, _, port = prepared.endpoint.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"lease {prepared.lease.id}: its endpoint {prepared.endpoint} can't be resolved here: {error}",
            hint="start the device node's agent with an --address that this node knows",
        ) from error
    return RemoteServer(
        address=str(found[0][4][0]),
        port=int(port),
        secret=prepared.lease.secret,
        devices=tuple(whole_of(leased.device) for leased in prepared.lease.devices),
        tls=config.remoting_tls == "on",
        rdma=config.remoting_rdma == "on",
        connections=config.remoting_connections,
    )


def _nearest_first(leases: tuple[PreparedLease, ...]) -> list[PreparedLease]:
    """Return a task's leases as its program numbers their devices: its own node's first, then by node."""
    return sorted(leases, key=lambda prepared: (prepared.lease.route is not Route.LOCAL, prepared.lease.device_node))


def _needs_supervisor(lease: Lease) -> bool:
    """Say whether a supervisor serves the lease: also a share of a GPU of the task's own node, which has a limit."""
    shared = any(whole_of(leased.device) != leased.device for leased in lease.devices)
    return shared or lease.route is not Route.LOCAL


def _program_name(lease_id: str) -> str:
    return _LEASE + file_name(lease_id, what="lease")
