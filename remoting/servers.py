"""The server processes of a lease: one for each session, and one in reserve.

A server has one program, so that two never share a context or a sticky error.  One that has its driver
ready, but neither client nor context, is kept for the program that comes next.  All end with this
process, however that ends: they hold a pipe that is closed then.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from farbus.remoting import assignment, descriptors, paths, session, status

#: Client processes of one lease at the same time: each is a process with a context.
PROCESSES_LIMIT = 128

#: How long a session whose connection was cut is kept, with all that it has on its devices.
GRACE_S = 30.0

#: A server for the next client is started this long after a client has come, so that its start does not take
#: processor time from the program that has just begun.
RESERVE_DELAY_S = 0.5

#: Sessions whose servers crashed, and how, which are remembered for the programs that ask.
CRASHES_LIMIT = 1024
#: What a line begins with that an operator should see: the agent logs it as an error.
ERROR_PREFIX = "error: "

#: GPU code that is kept of one user's programs: what PyTorch and its libraries load on one device is some hundreds
#: of megabytes.
IMAGE_BYTES = 2 << 30

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all servers of a lease have alike; the supervisor explains each."""

    libcuda: str
    secret: bytes = field(repr=False)
    visible_devices: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    processes_limit: int = PROCESSES_LIMIT
    memory_limit: int = 0
    grace_s: float = GRACE_S
    rdma: bool = False
    reserve: bool = True
    image_directory: Path | None = None
    image_bytes: int = IMAGE_BYTES


@contextlib.contextmanager
def _in_a_pipe(data: bytes) -> Iterator[int]:
    """Lend a descriptor from which the data can be read; raises OSError where there are no more of them."""
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        os.write(write, data)
        yield read
    finally:
        os.close(read)
        os.close(write)


def describe_code(code: int) -> str:
    """Return how a process ended, as in "server 812 ...": by which signal, or with which exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    return f"was killed by signal {-code} ({name})"


@dataclass(frozen=True)
class _Server:
    """A server's process, and where it gets its client and later connections."""

    child: subprocess.Popen[bytes]
    channel: socket.socket
    exchange: socket.socket  # where it asks for descriptors (descriptors.py)

    def end(self) -> None:
        self.channel.close()
        self.exchange.close()
        self.child.kill()
        self.child.wait()


class Servers:
    """Starts servers, gives them their clients, and notices how they end.

    All is called by the supervisor's thread, but for the properties, which anybody may read.  What servers
    ask comes by ``selector``, with the session's number as its data: ``exchange`` answers it.
    """

    def __init__(self, options: Options, selector: selectors.BaseSelector, log: Log) -> None:
        self._options = options
        self._selector = selector
        self._log = log
        self._lock = threading.Lock()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        #: Of sessions that may be resumed, by number: the server's process id, and where it waits for connections.
        self._channels: dict[int, tuple[int, socket.socket]] = {}
        self._descriptors = descriptors.Descriptors()
        self._exchanges: dict[int, socket.socket] = {}  # of sessions that may still ask, by number
        self._crashes: dict[int, str] = {}  # by the session's number, in the order in which they came
        self._reserve: _Server | None = None
        self._reserve_due: float | None = 0.0 if options.reserve else None
        self._life_read, self._life_write = os.pipe2(os.O_CLOEXEC)
        self._status = status.StatusMemory(options.processes_limit)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the servers that are running."""
        with self._lock:
            return tuple(pid for pid, child in self._processes.items() if child.poll() is None)

    @property
    def reserve(self) -> int | None:
        """Process id of the server that waits for a client; None while there is none."""
        with self._lock:
            return self._reserve.child.pid if self._reserve is not None else None

    @property
    def sessions(self) -> status.Status:
        """What the lease's sessions have done."""
        return self._status.status()

    @property
    def full(self) -> bool:
        """Whether there are as many programs as there may be."""
        return len(self._processes) >= self._options.processes_limit

    def stop(self) -> None:
        """End all of them."""
        with self._lock:
            children = list(self._processes.values())
            self._processes.clear()
            reserve, self._reserve = self._reserve, None
        if reserve is not None:
            reserve.end()
        for child in children:
            child.kill()
        for child in children:
            child.wait()
        for _, channel in self._channels.values():
            channel.close()
        self._channels.clear()
        for number in list(self._exchanges):
            self._end_exchange(number)
        os.close(self._life_read)
        os.close(self._life_write)
        self._status.close()

    # Time passes.

    def timeout(self) -> float | None:
        """Return in how many seconds ``keep_reserve`` and ``reap`` are due; None: when something comes."""
        timeout = 1.0 if self._processes or self._reserve else None
        if self._reserve_due is not None:
            timeout = max(0.0, min(timeout or 1.0, self._reserve_due - time.monotonic()))
        return timeout

    def keep_reserve(self) -> None:
        """Start the server of the client that comes next, when it is time."""
        if self._reserve is not None or self._reserve_due is None or time.monotonic() < self._reserve_due:
            return
        self._reserve_due = None
        try:
            server = self._start("--reserve")
        except OSError as error:
            self._log(f"start a server in reserve: {error}")
            return
        with self._lock:
            self._reserve = server

    def reap(self) -> list[int]:
        """Bury the servers that have ended; return the numbers of their sessions."""
        ended: list[int] = []
        with self._lock:
            if self._reserve is not None and (code := self._reserve.child.poll()) is not None:
                if code < 0:
                    self._log(f"{ERROR_PREFIX}server {self._reserve.child.pid} in reserve {describe_code(code)}")
                # Not started again before a client has come: it would end as this one.
                self._reserve.end()
                self._reserve = None
            for pid, child in list(self._processes.items()):
                if (code := child.poll()) is not None:
                    del self._processes[pid]
                    ended += self._bury(pid, code)
        return ended

    def _bury(self, pid: int, code: int) -> list[int]:
        """Say in the log how a server has ended, and give back what it had; return its sessions' numbers."""
        if code:
            # Who ends by himself has said why; a crash, or the kernel where memory is short, says nothing.
            self._log(f"{ERROR_PREFIX if code < 0 else ''}server {pid} {describe_code(code)}{self._program_of(pid)}")
        self._status.end(pid)
        numbers = [each for each, (of, _) in self._channels.items() if of == pid]
        for number in numbers:
            self._channels.pop(number)[1].close()
            self._end_exchange(number)
            if code < 0:
                self._crashes[number] = f"its server, process {pid} there, {describe_code(code)}"
                if len(self._crashes) > CRASHES_LIMIT:
                    del self._crashes[next(iter(self._crashes))]
        return numbers

    def _program_of(self, pid: int) -> str:
        """Return for whom a server worked, for messages; empty where nobody has told."""
        for each in self._status.status().sessions:
            if each.server_pid == pid and each.program:
                return f"; it served {each.program} (process {each.client_pid} of its machine)"
        return ""

    # Sessions.

    def ending(self, number: int) -> str:
        """Return what the program of a session that has ended is told."""
        return self._crashes.get(number, session.SESSION_ENDED)

    def give(self, connection: socket.socket, client: tuple[int, bytes] | None, *, tls: bool) -> None:
        """Give a client to the server in reserve, or else to a new one.

        ``client`` is its process id and program, None: it tells its server itself.  Raises OSError when there is no
        server that takes it.
        """
        if self._options.reserve:
            self._reserve_due = time.monotonic() + RESERVE_DELAY_S
        with self._lock:
            reserve, self._reserve = self._reserve, None
        if reserve is not None:
            try:
                self._assign(reserve, connection, client, tls=tls)
            except OSError:
                pass  # its driver did not start, or it was killed
            else:
                return
        self._assign(self._start(), connection, client, tls=tls)

    def pid_of(self, number: int) -> int | None:
        """Return the process id of a session's server, None: it has ended."""
        return self._channels[number][0] if number in self._channels else None

    def hand_over(self, connection: socket.socket, number: int) -> None:
        """Hand a further connection to a session's server, which asks for the session's token.

        Raises OSError when it does not take it: it is ending, or has not taken the ones before.
        """
        socket.send_fds(self._channels[number][1], [b"c"], [connection.fileno()])

    def exchange(self, number: int) -> None:
        """Answer what a session's server asks about descriptors."""
        # It may have been buried since it was seen to ask.
        channel = self._exchanges.get(number)
        if channel is not None and not self._descriptors.serve(channel, number):
            self._end_exchange(number)

    def _end_exchange(self, number: int) -> None:
        """A session asks for descriptors no more, and what it exported goes: mostly it has ended."""
        channel = self._exchanges.pop(number, None)
        if channel is not None:
            self._selector.unregister(channel)
            channel.close()
        self._descriptors.end(number)

    def _assign(
        self, server: _Server, connection: socket.socket, client: tuple[int, bytes] | None, *, tls: bool
    ) -> None:
        """Give a client to a server; raises OSError when it can't be, and ends the server then."""
        slot = self._status.take()
        number = secrets.randbits(63) + 1
        pid = server.child.pid
        # All is written down before the server knows its client: who has had an answer finds his server there.
        if slot is not None:
            self._status.fill(slot, server_pid=pid, client=client)
        with self._lock:
            self._processes[pid] = server.child
        self._channels[number] = (pid, server.channel)
        self._exchanges[number] = server.exchange
        self._selector.register(server.exchange, selectors.EVENT_READ, number)
        flags = assignment.FLAG_TLS if tls else 0
        data = assignment.ASSIGNMENT.pack(number, assignment.NO_SLOT if slot is None else slot, flags)
        try:
            with _in_a_pipe(self._options.secret) as secret:
                socket.send_fds(server.channel, [data], [connection.fileno(), secret])
        except OSError:
            del self._channels[number]
            self._end_exchange(number)
            with self._lock:
                del self._processes[pid]
            self._status.withdraw(pid)
            server.end()
            raise

    # Processes.

    def _start(self, *more: str) -> _Server:
        options = self._options
        # Never waited for: a server takes what comes, or has its hands full of connections already.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            exchange, its_exchange = descriptors.make_exchange()
        except OSError:
            ours.close()
            theirs.close()
            raise
        command = [
            sys.executable,
            "-P",
            "-m",
            "farbus.remoting.server",
            f"--channel-fd={theirs.fileno()}",
            f"--exchange-fd={its_exchange.fileno()}",
            f"--life-fd={self._life_read}",
            f"--libcuda={options.libcuda}",
            f"--grace-ms={round(options.grace_s * 1000)}",
            f"--memory-limit={options.memory_limit}",
            f"--status-fd={self._status.descriptor}",
            *more,
        ]
        if options.rdma:
            command.append("--rdma")
        if options.image_directory is not None:
            command += [f"--image-directory={options.image_directory}", f"--image-bytes={options.image_bytes}"]
        try:
            with theirs, its_exchange:
                child = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno(), its_exchange.fileno(), self._life_read, self._status.descriptor],
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            exchange.close()
            raise
        return _Server(child, ours, exchange)

    def _environment(self) -> dict[str, str]:
        """This process's environment, without what would put the shim under the server."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH", "FARBUS_SESSION", "CUDA_VISIBLE_DEVICES")
        }
        if self._options.visible_devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self._options.visible_devices
        # The package is found wherever this process found it.
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(paths.package_root()), *filter(None, [environment.get("PYTHONPATH")])]
        )
        environment.update(self._options.environment)
        return environment
