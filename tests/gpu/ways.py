"""The ways that a program's calls take to a driver: ``native``, or through the shim over one of the transports.

    python -m tests.gpu.ways --libcuda /usr/lib/x86_64-linux-gnu/libcuda.so.1 --way shm -- ./program

runs one program, with its exit status.  ``shm-1``, ``tcp-1`` and ``tls-1`` are the same with one thread that copies;
``tcp-far`` goes through an emulated network of 10 Gb/s, with round trips of 100 us.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from farbus.remoting import paths
from farbus.remoting.bench import Network
from farbus.remoting.launcher import Launch
from farbus.remoting.session import Server, write_session
from farbus.remoting.supervisor import Supervisor
from tests.remoting.harness import CREW_PROCESSORS

ONE_THREAD = "-1"
FAR = "tcp-far"
NETWORK = Network(rtt_us=100, gbps=10)
WAYS = ("native", "shm", "unix", "tcp", "tls", FAR, *(way + ONE_THREAD for way in ("shm", "tcp", "tls")))


def outside() -> dict[str, str]:
    """The environment of programs that nothing of this one's loader and interpreter reaches."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "PYTHON"))}


@contextlib.contextmanager
def environments(libcuda: Path, ways: Sequence[str]) -> Iterator[dict[str, dict[str, str]]]:
    """Environments of programs, by the way that their calls take to the driver `libcuda`."""
    base = outside()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farbus-ways-")))
        made = {"native": base | {"LD_LIBRARY_PATH": str(libcuda.parent)}}
        for tls in (True, False):
            secret = secrets.token_bytes(32)
            supervisor = stack.enter_context(
                Supervisor(libcuda=str(libcuda), secret=secret, tls=tls, image_directory=folder)
            )
            session = folder / f"session-{tls}"
            address, port = supervisor.address
            write_session(session, [Server(address=address, port=port, secret=secret, tls=tls)])
            if not tls and FAR in ways:
                address, port = stack.enter_context(NETWORK.to(supervisor.address))
                far = folder / "session-far"
                write_session(far, [Server(address=address, port=port, secret=secret, tls=tls)])
                made[FAR] = Launch(session=far, shim=paths.shim_library().parent).environment(base)
                made[FAR]["FARBUS_TRANSPORT"] = "tcp"
            remote = Launch(session=session, shim=paths.shim_library().parent).environment(base)
            for way in ("tls", "shm", "unix") if tls else ("tcp",):
                made[way] = remote | {"FARBUS_TRANSPORT": "tcp" if way == "tls" else way}
                made[way + ONE_THREAD] = made[way] | {"FARBUS_CONNECTIONS": "1"}
        yield {way: made[way] for way in ways}


def prefix(way: str) -> list[str]:
    """What a program is started with, for a way that its environment alone does not make."""
    return ["taskset", "--cpu-list", f"0-{CREW_PROCESSORS - 2}"] if way == "shm" + ONE_THREAD else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libcuda", type=Path, required=True, help="the driver, NVIDIA's or the software GPU's")
    parser.add_argument("--way", choices=WAYS, default="shm")
    parser.add_argument("command", nargs="+", help="the program and its arguments")
    arguments = parser.parse_args()
    with environments(arguments.libcuda, [arguments.way]) as made:
        command = prefix(arguments.way) + arguments.command
        return subprocess.run(command, env=made[arguments.way], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
