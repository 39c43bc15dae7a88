"""``farbus bench remoting``: what remoting costs, beside a bare socket in the same run.

Starts a supervisor on this machine, runs native/bench/remoting_bench.c under the
shim, and reports medians: ``posted_call`` (microseconds on the calling thread),
``round_trip`` beside a ping-pong over a bare socket, ``h2d`` and ``d2h`` beside a bare
socket copy, and ``first_launch_round_trips``, counted on the wire.  Nothing here needs
more than the standard library and cffi.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from farbus.errors import Unavailable
from farbus.remoting import paths
from farbus.remoting.launcher import Launch
from farbus.remoting.session import HELLO, Server, write_session
from farbus.remoting.spec import OPERATIONS, Answer
from farbus.remoting.supervisor import Supervisor

#: The whole measurement takes some seconds; on a loaded machine a minute.
MEASURE_TIMEOUT_S = 300

_HEADER_BYTES = 24  # struct wire_header
_CALLED = {op.opcode for op in OPERATIONS if op.answer is Answer.CALLED}
_LAUNCH = next(op.opcode for op in OPERATIONS if op.name == "launch")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure, with what it is compared to: ``ratio`` is value / reference."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    transport: str = "tcp"
    bytes: int | None = None
    memory: str | None = None


class CountingProxy:
    """Passes one connection on and counts the round trips before the first launch."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.round_trips = 0
        self.launched = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Wait until the connection has ended."""
        self._thread.join(timeout=10)
        self._listener.close()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._pass_back, args=(server, client), daemon=True)
        back.start()
        with client, server, client.makefile("rb") as stream:
            hello = stream.read(HELLO.size)
            self.round_trips += 1
            server.sendall(hello)
            while header := stream.read(_HEADER_BYTES):
                length = int.from_bytes(header[0:4], "little")
                opcode = int.from_bytes(header[4:6], "little")
                if not self.launched:
                    self.launched = opcode == _LAUNCH
                    self.round_trips += opcode in _CALLED
                server.sendall(header + stream.read(length))
            server.shutdown(socket.SHUT_WR)
            back.join(timeout=5)

    @staticmethod
    def _pass_back(server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
        except OSError:
            return  # one of them has gone


def _parse(output: str) -> list[Result]:
    rows: dict[tuple[str, int], tuple[float, str]] = {}
    for line in output.splitlines():
        words = line.split()
        rows[words[0], int(words[3])] = (float(words[1]), words[2])
    results = []
    for (name, count), (value, unit) in rows.items():
        if name.startswith("bare_"):
            continue
        bare = rows.get((f"bare_{name}", count))
        direction, _, memory = name.partition("_")
        copy = direction in ("h2d", "d2h")
        results.append(
            Result(
                name=direction if copy else name,
                value=value,
                unit=unit,
                reference=bare[0] if bare else None,
                ratio=round(value / bare[0], 4) if bare else None,
                bytes=count or None,
                memory=memory if copy else None,
            )
        )
    return results


def measure(*, libcuda: str, shim: Path) -> list[Result]:
    """Run all measurements; raises RuntimeError with one line when that is not possible."""
    program = paths.remoting_bench_program()
    secret = secrets.token_bytes(32)
    with (
        tempfile.TemporaryDirectory(prefix="farbus-bench-") as directory,
        Supervisor(libcuda=libcuda, secret=secret) as supervisor,
    ):
        session = Path(directory) / "session"
        environment = Launch(session=session, shim=shim).environment(os.environ)
        environment.pop("CUDA_VISIBLE_DEVICES", None)

        def run(mode: str, address: tuple[str, int]) -> str:
            write_session(session, [Server(address=address[0], port=address[1], secret=secret)])
            done = subprocess.run(
                [program, mode],
                env=environment,
                capture_output=True,
                text=True,
                timeout=MEASURE_TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(done.stderr.strip().replace("\n", "; ") or f"exit status {done.returncode}")
            return done.stdout

        proxy = CountingProxy(supervisor.address)
        run("first-launch", proxy.address)
        proxy.close()
        results = _parse(run("measure", supervisor.address))
        results.append(Result(name="first_launch_round_trips", value=proxy.round_trips, unit="round trips"))
        return results


def main(arguments: Sequence[str]) -> int:
    """Print the figures as a table, or with ``--json`` as one document."""
    parser = argparse.ArgumentParser(prog="farbus bench remoting", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--libcuda",
        default=str(paths.software_gpu_directory() / "libcuda.so.1"),
        help="the driver the server opens (default: the software GPU)",
    )
    options = parser.parse_args(list(arguments))
    try:
        results = measure(libcuda=options.libcuda, shim=paths.shim_library().parent)
    except (Unavailable, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"farbus bench remoting: {error}", file=sys.stderr)
        return 1
    if options.json:
        rows = [{key: value for key, value in asdict(result).items() if value is not None} for result in results]
        print(json.dumps({"bench": "remoting", "results": rows}, indent=1))
        return 0
    for result in results:
        label = " ".join(filter(None, [result.memory, f"{result.bytes >> 20} MiB" if result.bytes else None]))
        beside = f"   bare {result.reference:9.3f}   ratio {result.ratio:5.2f}" if result.reference else ""
        print(f"{result.name:26} {label:18} {result.value:9.3f} {result.unit:11}{beside}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
