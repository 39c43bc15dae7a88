"""What the tests of remoting share: paths, and a lease's device side."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from farbus.remoting import session as wire
from farbus.remoting.launcher import Launch
from farbus.remoting.servers import GRACE_S, IMAGE_BYTES
from farbus.remoting.session import Server, write_session
from farbus.remoting.supervisor import Supervisor

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
BUILD = ROOT / "native" / "build"
#: Shim and server of another build, with sanitizers (make asan, make tsan), whose runtime comes first in every process.
SANITIZED = os.environ.get("FARBUS_SANITIZED_BUILD", "")
SANITIZER = os.environ.get("FARBUS_SANITIZER", "")
#: Programs of another machine have a shim of its, and CC is its compiler (make check-arm64).
SHIM = Path(os.environ.get("FARBUS_TEST_SHIM") or Path(SANITIZED or BUILD) / "shim")

#: With so many processors several threads carry what is large (native/transport/ground/crew.c).
CREW_PROCESSORS = 8

#: A program here takes well under a second; a hang must not hold the whole run.
PROGRAM_TIMEOUT_S = 300 if SANITIZED else 60


def server_environment() -> dict[str, str]:
    """What makes a server load the sanitized engine."""
    if not SANITIZED:
        return {}
    sites = ROOT / "tests" / "remoting" / "sanitized"
    return {"LD_PRELOAD": SANITIZER, "PYTHONPATH": f"{ROOT}:{sites}:{os.environ.get('PYTHONPATH', '')}"}


def hello(
    secret: bytes, *, major: int = wire.PROTOCOL_MAJOR, capabilities: int = 0, nonce: bytes = b"", program: bytes = b""
) -> bytes:
    """What a client says first; the nonce is a fresh one unless it is given."""
    said = (wire.HELLO_MAGIC, major, 0, 0x01020304, 1, capabilities, 0, 0, 1, 0)
    return wire.prove(wire.HELLO.pack(*said, nonce or secrets.token_bytes(16), b"", program), secret)


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Run ``serve`` with a listener on a thread until the block ends; the listener then answers OSError.

    Closing it alone would not wake the thread: the kernel may restart its accept(2) on the descriptor's number, which
    by then is another listener's, and the thread takes somebody else's client.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with contextlib.suppress(OSError):
                serve(listener)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            host, port = listener.getsockname()[:2]
            yield str(host), int(port)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@dataclass(kw_only=True)
class Remote:
    """A lease's device side, and programs run with its session."""

    supervisor: Supervisor
    session: Path
    secret: bytes
    lines: list[str] = field(default_factory=list)
    #: What all programs have in their environment besides.
    always: dict[str, str] = field(default_factory=dict)

    def environment(self, **changes: str) -> dict[str, str]:
        base = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LD_"))}
        environment = Launch(session=self.session, shim=SHIM).environment(base) | self.always | changes
        if SANITIZER:
            environment["LD_PRELOAD"] = f"{SANITIZER}:{environment['LD_PRELOAD']}".rstrip(":")
        return environment

    def with_library_path(self, folder: Path) -> None:
        """Have all programs look for libraries in ``folder`` first."""
        others = self.environment().get("LD_LIBRARY_PATH", "")
        self.always = self.always | {"LD_LIBRARY_PATH": f"{folder}:{others}".rstrip(":")}

    def run(self, *command: str | Path, user: int | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment(**changes),
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_S,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )

    def start(self, *command: str | Path, **changes: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self.environment(**changes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def lines_of_shim(stderr: str) -> list[str]:
    """The lines of a program's stderr without those of a software GPU, which names each kernel that a test has fail."""
    return [line for line in stderr.splitlines() if not line.startswith("softgpu: ")]


@contextlib.contextmanager
def remote_session(
    *,
    libcuda: Path,
    folder: Path,
    environment: dict[str, str],
    memory_limit: int = 0,
    grace_s: float = GRACE_S,
    tls: bool = True,
    rdma: bool = False,
    image_directory: Path | None = None,
    image_bytes: int = IMAGE_BYTES,
) -> Iterator[Remote]:
    """A running supervisor whose servers open `libcuda` in `environment`, and its session file in `folder`.

    A software GPU is of that folder alone: another that is in use on this machine may be another model.
    """
    secret = secrets.token_bytes(32)
    lines: list[str] = []
    with Supervisor(
        libcuda=str(libcuda),
        secret=secret,
        environment=server_environment() | {"FARBUS_SOFTGPU_NODE": str(folder)} | environment,
        memory_limit=memory_limit,
        grace_s=grace_s,
        tls=tls,
        rdma=rdma,
        image_directory=image_directory,
        image_bytes=image_bytes,
        log=lines.append,
    ) as supervisor:
        address, port = supervisor.address
        session = folder / f"session-{port}"
        write_session(session, [Server(address=address, port=port, secret=secret, tls=tls, rdma=rdma)])
        yield Remote(supervisor=supervisor, session=session, secret=secret, lines=lines)


def open_twice(
    remote: Remote, name: str, other: str | Path, function: str, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run a program that opens a library by two names; it prints whether it is one, and what its function says.

    Two of them in one process would be two programs, with a server each.
    """
    script = (
        "import ctypes\n"
        f"one, other = (ctypes.CDLL(name).{function} for name in ('{name}', '{other}'))\n"
        "address = lambda function: ctypes.cast(function, ctypes.c_void_p).value\n"
        "print(address(one) == address(other), one(0))"
    )
    return remote.run(sys.executable, "-c", script, **changes)
