"""The remoting supervisor: one per lease.

Listens for the lease's client processes, checks their hello, and has one server process
for each (servers.py).  The servers die with the supervisor, and the supervisor with the lease.

The hello proves that its sender has the lease's secret, and no hello is taken twice:
that is what a server process is started for.  Over TCP the server then makes the client
prove it again by a TLS handshake (native/transport/sockets/tls.h), which nobody can have recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from farbus.remoting import descriptors, session, status
from farbus.remoting.servers import GRACE_S, IMAGE_BYTES, PROCESSES_LIMIT, Log, Options, Servers

#: A client sends its hello in the same breath as it connects, though its machine may have much else to do.
HELLO_TIMEOUT_S = 30.0
#: Connections whose hello has not come yet, or which were refused and have not gone; with more, the
#: oldest is dropped.  Also how many may wait to be accepted; more than all programs of a lease that start at once.
UNHEARD_LIMIT = 2 * PROCESSES_LIMIT
#: What a refused client may still have sent: the beginning of a handshake, behind its hello.
REFUSED_BYTES = 1 << 16
#: Nonces of hellos that are remembered, 16 bytes each.  The oldest is forgotten then: a hello so old that is said
#: again costs a process, which ends with the handshake.
NONCES_LIMIT = 1 << 16
#: Who the kernel says owns a process whose user is not mapped here: anybody (user_namespaces(7)).
_OVERFLOW_USER = "/proc/sys/kernel/overflowuid"
_USER_MAP = "/proc/self/uid_map"

#: How often a server that ends is looked for while its program asks how: it has closed its connection by then.
ENDING_POLL_S = 0.02
_VERSION = f"{session.PROTOCOL_MAJOR}.{session.PROTOCOL_MINOR}"


def _discard(_: str) -> None:
    pass


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of who connected to a Unix socket, as the kernel saw it then."""
    pid, user, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(user)


def _peer(connection: socket.socket) -> str:
    """Who is at the other end, for messages: the kernel's word for it, where it is of this machine."""
    if connection.family == socket.AF_UNIX:
        return "process {} of user {}".format(*_credentials(connection))
    host, port = connection.getpeername()[:2]
    return f"{host} port {port}"


def nobody_in_particular() -> int | None:
    """Return the user id that the kernel gives for users who are not mapped here; None where all are.

    In a user namespace SO_PEERCRED says 65534 for everybody from outside.  Outside, that is one user.
    """
    with open(_USER_MAP) as file:
        if file.read().split() == ["0", "0", str(2**32 - 1)]:
            return None
    with open(_OVERFLOW_USER) as file:
        return int(file.read())


class Supervisor:
    """Accepts clients of one lease and runs a server process for each.

    ``libcuda`` is the path of the driver, ``secret`` the lease's 32 bytes,
    ``visible_devices`` what the servers get as CUDA_VISIBLE_DEVICES (None: all).
    ``tls`` is whether connections over TCP are encrypted; a client that has it otherwise is refused.
    ``rdma`` is whether sessions over TCP may go on by RDMA, which encrypts nothing.
    ``local_user`` is the user id that may come over this machine's socket, beside root (None: this process's own).
    ``memory_limit`` is how many bytes of devices' memory all its servers may have together (0: what there is).
    ``grace_s`` is how long a session waits for its program after its connection was cut (0: not at all).
    ``container_socket`` is bound to a file, for containers that have networks of their own (None: they come by TCP); it
    is closed with the supervisor, and its file left to who made it.
    ``reserve`` is whether a server is kept ready for the client that comes next.
    ``image_directory`` is where GPU code is kept for later programs (None: nowhere), ``image_bytes`` how much of it
    (0: none).  It must be this process's user's, whom alone it lets in, and one user's programs' only.
    ``log`` gets one line per event worth telling an operator.
    """

    def __init__(
        self,
        *,
        libcuda: str,
        secret: bytes,
        address: str = "127.0.0.1",
        port: int = 0,
        visible_devices: str | None = None,
        environment: dict[str, str] | None = None,
        processes_limit: int = PROCESSES_LIMIT,
        memory_limit: int = 0,
        grace_s: float = GRACE_S,
        tls: bool = True,
        rdma: bool = False,
        local_user: int | None = None,
        container_socket: socket.socket | None = None,
        reserve: bool = True,
        image_directory: Path | None = None,
        image_bytes: int = IMAGE_BYTES,
        log: Log = _discard,
    ) -> None:
        if len(secret) != session.SECRET_BYTES:
            raise ValueError(f"secret: expected {session.SECRET_BYTES} bytes, got {len(secret)}")
        self._options = Options(
            libcuda=libcuda,
            secret=secret,
            visible_devices=visible_devices,
            environment=environment or {},
            processes_limit=processes_limit,
            memory_limit=memory_limit,
            grace_s=grace_s,
            rdma=rdma,
            reserve=reserve,
            image_directory=image_directory,
            image_bytes=image_bytes,
        )
        self._bind = (address, port)
        self._tls = tls
        self._local_users = {0, os.geteuid() if local_user is None else local_user} - {nobody_in_particular()}
        self._nonces: dict[bytes, None] = {}  # in the order in which they came
        self._refused: dict[socket.socket, int] = {}  # bytes that each may still send
        self._asking: dict[socket.socket, int] = {}  # who waits to hear how a session of that number has ended
        self._log = log
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._local: socket.socket | None = None
        self._file = container_socket
        self._thread: threading.Thread | None = None
        self._wake_read = self._wake_write = -1
        self._servers: Servers | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect; valid after start."""
        if self._listener is None:
            raise RuntimeError("the supervisor is not started")
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the servers that are running."""
        return self._servers.pids if self._servers is not None else ()

    @property
    def reserve(self) -> int | None:
        """Process id of the server that waits for a client; None while there is none."""
        return self._servers.reserve if self._servers is not None else None

    @property
    def sessions(self) -> status.Status:
        """What the lease's sessions have done; valid between start and stop."""
        return self._started.sessions

    @property
    def _started(self) -> Servers:
        if self._servers is None:
            raise RuntimeError("the supervisor is not started")
        return self._servers

    def start(self) -> None:
        """Listen and accept; raises OSError when the address cannot be bound."""
        family = socket.AF_INET6 if ":" in self._bind[0] else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(self._bind)
            listener.listen(UNHEARD_LIMIT)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._local = self._listen_locally()
        if self._file is not None:
            self._file.listen(UNHEARD_LIMIT)
            self._file.setblocking(False)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._servers = Servers(self._options, self._selector, self._log)
        self._thread = threading.Thread(target=self._serve, name="farbus-remoting-supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all servers and stop listening; may be called twice."""
        if self._thread is None:
            return
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._thread = None
        if self._listener is not None:
            self._listener.close()
        if self._local is not None:
            self._local.close()
        if self._file is not None:
            self._file.close()
        if self._servers is not None:
            self._servers.stop()
            self._servers = None
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _listen_locally(self) -> socket.socket | None:
        """Listen for programs of this machine, too; without, they come by TCP."""
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.bind(session.local_name(self._options.secret))
            local.listen(UNHEARD_LIMIT)
            local.setblocking(False)
        except OSError as error:
            local.close()
            self._log(f"no transport within this machine: {error}")
            return None
        return local

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # The accepting thread.

    def _serve(self) -> None:
        assert self._listener is not None
        listeners = [each for each in (self._listener, self._local, self._file) if each]
        unheard: dict[socket.socket, float] = {}
        for listener in listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        while True:
            self._started.keep_reserve()
            timeout = ENDING_POLL_S if self._asking else self._started.timeout()
            if unheard and timeout is None:
                timeout = 1.0
            for key, _ in self._selector.select(timeout):
                if key.fileobj == self._wake_read:
                    for connection in unheard:
                        connection.close()
                    return
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj in listeners:
                    accepted = self._accept(key.fileobj)
                    if accepted is not None:
                        if len(unheard) >= UNHEARD_LIMIT:
                            # The one that has been silent longest: a client speaks at once.
                            self._give_up(next(iter(unheard)), unheard)
                        unheard[accepted] = time.monotonic() + HELLO_TIMEOUT_S
                        self._selector.register(accepted, selectors.EVENT_READ)
                elif key.data is not None:
                    self._started.exchange(key.data)
                else:
                    self._look(key.fileobj, unheard)
            now = time.monotonic()
            for connection in [each for each, end in unheard.items() if end <= now]:
                self._give_up(connection, unheard)
            self._reap()

    def _look(self, connection: socket.socket, unheard: dict[socket.socket, float]) -> None:
        """Deal with what a connection has said, if it is not forgotten."""
        if connection in self._refused:
            if self._has_gone(connection):
                self._forget(connection, unheard)
        elif connection in unheard and self._hear(connection) and connection not in self._refused:
            self._forget(connection, unheard)

    def _give_up(self, connection: socket.socket, unheard: dict[socket.socket, float]) -> None:
        """Drop a connection for its silence, unless it has spoken meanwhile: starting servers takes its time."""
        self._look(connection, unheard)
        if connection in unheard:
            self._forget(connection, unheard)

    def _forget(self, connection: socket.socket, unheard: dict[socket.socket, float]) -> None:
        self._selector.unregister(connection)
        del unheard[connection]
        self._refused.pop(connection, None)
        self._asking.pop(connection, None)
        connection.close()

    @staticmethod
    def _accept(listener: socket.socket) -> socket.socket | None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return None  # the client has gone again, or descriptors are short
        connection.setblocking(False)
        # Wake up only when the whole hello is there.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, session.HELLO.size)
        return connection

    def _hear(self, connection: socket.socket) -> bool:
        """Look at a connection's hello; True when it is dealt with."""
        try:
            data = connection.recv(session.HELLO.size, socket.MSG_PEEK)
            # Fails when the peer has reset the connection behind its hello.
            peer = _peer(connection)
        except BlockingIOError:
            return False
        except OSError:
            return True
        if not data:
            return True
        if len(data) < session.HELLO.size:
            # Less than a hello, and readable: it has ended, or it is no client.
            return True
        fields = session.HELLO.unpack(data)
        magic, major, minor, capabilities, nonce = fields[0], fields[1], fields[2], fields[5], fields[10]
        if magic != session.HELLO_MAGIC:
            self._log(f"refused {peer}: not a farbus client")
            return True
        if major != session.PROTOCOL_MAJOR:
            self._log(f"refused {peer}: protocol {major}.{minor}, this is {_VERSION}")
            self._refuse(connection, session.HELLO_VERSION)
            return True
        key = session.resume_key(self._options.secret, fields[6]) if fields[6] else self._options.secret
        if not session.proves(data, key):
            self._log(f"refused {peer}: wrong secret")
            self._refuse(connection, session.HELLO_SECRET)
            return True
        if connection.family == socket.AF_UNIX and _credentials(connection)[1] not in self._local_users:
            self._log(f"refused {peer}: the lease is another user's")
            self._refuse(connection, session.HELLO_USER)
            return True
        tls = bool(capabilities & session.CAPABILITY_TLS)
        if tls != self._encrypts(connection):
            self._log(f"refused {peer}: it {'asks for TLS, which is off here' if tls else 'does not use TLS'}")
            self._refuse(connection, session.HELLO_TLS)
            return True
        if nonce in self._nonces:
            self._log(f"refused {peer}: somebody says a hello again that was said before")
            self._refuse(connection, session.HELLO_SECRET)
            return True
        self._reap()
        if fields[6]:
            self._remember(nonce)
            if capabilities & session.CAPABILITY_RESUME:
                self._resume(connection, fields[6], peer, also=bool(capabilities & session.CAPABILITY_CONNECTIONS))
            else:
                self._tell_end(connection, fields[6])
            return True
        if self._started.full:
            limit = self._options.processes_limit
            self._refuse(connection, session.HELLO_BUSY, f"this lease already has {limit} client processes")
            return True
        self._remember(nonce)
        try:
            connection.setblocking(True)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            # Within TLS the client tells the server who it is.
            self._started.give(connection, None if tls else (fields[8], fields[12]), tls=tls)
        except OSError as error:
            self._log(f"start a server for {peer}: {error}")
            self._refuse(connection, session.HELLO_DRIVER, f"start a server: {error}")
        return True

    def _remember(self, nonce: bytes) -> None:
        self._nonces[nonce] = None
        if len(self._nonces) > NONCES_LIMIT:
            del self._nonces[next(iter(self._nonces))]

    def _resume(self, connection: socket.socket, number: int, peer: str, *, also: bool) -> None:
        """Hand a connection to the server whose session goes on over it, or ``also`` over it.

        The server asks for the session's token.
        """
        pid = self._started.pid_of(number)
        if pid is None:
            self._log(f"refused {peer}: it would go on with a session that has ended")
            self._refuse(connection, session.HELLO_SESSION, self._started.ending(number))
            return
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        try:
            self._started.hand_over(connection, number)
        except OSError as error:
            # It is ending, or has not taken the ones before: the client comes again.
            self._log(f"hand {peer} to server {pid}: {error}")
            return
        self._log(f"session of server {pid} {'has another connection' if also else 'goes on'} from {peer}")

    def _tell_end(self, connection: socket.socket, number: int) -> None:
        """Answer who asks how his session has ended: as soon as it has, which is about to be."""
        if self._started.pid_of(number) is None:
            self._refuse(connection, session.HELLO_SESSION, self._started.ending(number))
            return
        self._take_hello(connection)
        self._asking[connection] = number

    def _encrypts(self, connection: socket.socket) -> bool:
        return self._tls and connection.family != socket.AF_UNIX

    def _refuse(self, connection: socket.socket, status: int, text: str = "") -> None:
        """Answer a hello with no; the connection stays until the client has gone.

        Closing it with something unread, as a handshake that follows the hello, would reset it
        under the reply.
        """
        self._take_hello(connection)
        self._answer_no(connection, status, text)

    def _take_hello(self, connection: socket.socket) -> None:
        """From now on it is noticed when the client has gone."""
        with contextlib.suppress(OSError):
            connection.recv(session.HELLO.size)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            self._refused[connection] = REFUSED_BYTES

    @staticmethod
    def _answer_no(connection: socket.socket, status: int, text: str) -> None:
        with contextlib.suppress(OSError):
            connection.send(session.hello_refusal(status, text))
            connection.shutdown(socket.SHUT_WR)

    def _has_gone(self, connection: socket.socket) -> bool:
        """Drop what a refused client still sends; True when that is all, or too much."""
        try:
            dropped = len(connection.recv(REFUSED_BYTES))
        except BlockingIOError:
            return False
        except OSError:
            return True
        self._refused[connection] -= dropped
        return not dropped or self._refused[connection] <= 0

    def _reap(self) -> None:
        """Look which servers have ended, and tell the programs that ask."""
        for number in self._started.reap():
            for connection in [each for each, asked in self._asking.items() if asked == number]:
                del self._asking[connection]
                self._answer_no(connection, session.HELLO_SESSION, self._started.ending(number))


def _endpoint(text: str) -> tuple[str, int]:
    """Parse ``ADDRESS:PORT``; an IPv6 address stands in brackets."""
    address, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected ADDRESS:PORT, such as 127.0.0.1:0")
    return address.removeprefix("[").removesuffix("]"), int(port)


def line_prefix(lease: str) -> str:
    """Return how each line that the supervisor of a lease says begins, unlike what drivers in its servers say."""
    return f"farbus remoting {lease}".rstrip() + ": "


def main(arguments: Sequence[str]) -> int:
    """Serve one lease until SIGTERM, or until the life descriptor's other end is closed.

    The secret comes from a descriptor.  The first line on standard output says
    where clients connect: ``listening ADDRESS:PORT``.
    """
    parser = argparse.ArgumentParser(prog="farbus-remoting-supervisor", description=main.__doc__)
    parser.add_argument("--lease", default="", help="its name, for messages")
    parser.add_argument("--libcuda", default="libcuda.so.1", help="the driver the servers open")
    parser.add_argument("--listen", type=_endpoint, default=("127.0.0.1", 0), help="ADDRESS:PORT, port 0: any")
    parser.add_argument("--secret-fd", type=int, required=True, help="descriptor with the 32 bytes, raw or as hex")
    parser.add_argument("--life-fd", type=int, help="pipe whose end ends the supervisor")
    parser.add_argument("--visible-devices", help="CUDA_VISIBLE_DEVICES of the servers")
    parser.add_argument("--grace", type=float, default=GRACE_S, help="seconds that a session may be cut, 0: none")
    parser.add_argument("--memory-limit", type=int, default=0, help="bytes of device memory of the lease, 0: all")
    parser.add_argument("--tls", choices=("on", "off"), default="on", help="encrypt what goes over TCP")
    parser.add_argument("--rdma", choices=("on", "off"), default="off", help="let sessions go on by RDMA, unencrypted")
    parser.add_argument("--local-user", type=int, help="user id that may connect within this machine, beside root")
    parser.add_argument("--socket-fd", type=int, help="Unix socket with a file that containers of this machine find")
    parser.add_argument("--image-directory", type=Path, help="where GPU code is kept for its user's later programs")
    parser.add_argument("--image-bytes", type=int, default=IMAGE_BYTES, help="how much of it, 0: none")
    options = parser.parse_args(arguments)
    prefix = line_prefix(options.lease)

    def log(line: str) -> None:
        print(f"{prefix}{line}", file=sys.stderr, flush=True)

    descriptors.make_room()
    try:
        secret = _read_secret(options.secret_fd)
    except ValueError as error:
        log(str(error))
        return 2
    address, port = options.listen
    container_socket = None
    if options.socket_fd is not None:
        container_socket = socket.socket(fileno=options.socket_fd)
        container_socket.set_inheritable(False)
    supervisor = Supervisor(
        libcuda=options.libcuda,
        secret=secret,
        address=address,
        port=port,
        visible_devices=options.visible_devices,
        memory_limit=options.memory_limit,
        grace_s=options.grace,
        tls=options.tls == "on",
        rdma=options.rdma == "on",
        local_user=options.local_user,
        container_socket=container_socket,
        image_directory=options.image_directory,
        image_bytes=options.image_bytes,
        log=log,
    )
    # A signal may come to any thread, and a main thread that waits for another does not hear of it then.
    ended, end = os.pipe()
    os.set_blocking(end, False)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        supervisor.start()
    except OSError as error:
        log(f"listen on {address} port {port}: {error.strerror}")
        return 1
    try:
        address, port = supervisor.address
        print(f"listening {f'[{address}]' if ':' in address else address}:{port}", flush=True)
        if options.life_fd is not None:
            threading.Thread(target=_watch_life, args=(options.life_fd, end), daemon=True).start()
        os.read(ended, 1)
    finally:
        supervisor.stop()
    return 0


def _watch_life(descriptor: int, end: int) -> None:
    while os.read(descriptor, 4096):
        pass
    os.write(end, b"\0")


def _read_secret(descriptor: int) -> bytes:
    """Read a descriptor to its end: the secret as 32 bytes, or as 64 hexadecimal digits."""
    data = b""
    while piece := os.read(descriptor, 4096):
        data += piece
    os.close(descriptor)
    if len(data) == session.SECRET_BYTES:
        return data
    try:
        secret = bytes.fromhex(data.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != session.SECRET_BYTES:
        raise ValueError(f"the secret on descriptor {descriptor} is neither 32 bytes nor 64 hexadecimal digits")
    return secret


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
