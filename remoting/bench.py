"""``farbus bench remoting``: what remoting costs, beside the bare transport in the same run.

Starts a supervisor on this machine, runs native/bench/remoting_bench.c under the
shim over each transport, and reports medians: ``posted_call`` (microseconds on the
calling thread), ``round_trip`` beside a bare ping-pong, ``h2d`` and ``d2h`` beside a
bare copy, TLS's ``handshake``, ``exec_to_first_kernel`` beside the driver without
remoting (``_cold``: where no server is in reserve), and ``first_launch_round_trips``,
counted on the wire.  Copies of less than 64 MiB are made one after the other; ``h2d_first``
and ``d2h_first`` are those after a pause, which had to wake the other side.  ``--rtt``,
``--gbps`` and ``--gbps-per-connection`` put an emulated network between the two sides.
Nothing here needs more than the standard library and cffi.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import ipaddress
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from farbus.errors import Unavailable
from farbus.remoting import paths
from farbus.remoting.arguments import MeasurementParser
from farbus.remoting.launcher import Launch
from farbus.remoting.session import HELLO, Server, write_session
from farbus.remoting.spec import OPERATIONS, Answer
from farbus.remoting.supervisor import Supervisor

#: The whole measurement takes some seconds; on a loaded machine a minute.
MEASURE_TIMEOUT_S = 300
#: What a session can go over on one machine: ``tls`` is TCP as between nodes, ``tcp`` is without encryption.
TRANSPORTS = ("shm", "unix", "tls", "tcp")
#: Where there is an adapter for it.
RDMA = "rdma"
LOOPBACK = "127.0.0.1"
#: Those that cross a network.
REMOTE = ("tls", "tcp")
#: Starts of a program that each transport is judged by.
FIRST_KERNELS = 5
#: How long a server in reserve takes until it is ready, on a busy machine: programs that come later find it so.
RESERVE_READY_S = 1.5
#: Longest emulated round trip: a hello waits 60 s.
RTT_LIMIT_US = 1e6

_HEADER_BYTES = 24  # struct wire_header
_CALLED = {op.opcode for op in OPERATIONS if op.answer is Answer.CALLED}
_LAUNCH = next(op.opcode for op in OPERATIONS if op.name == "launch")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure, with what it is compared to: ``ratio`` is value / reference.

    ``value`` and ``reference`` are medians, ``best_ratio`` is of the best of each: what noise of
    the machine spares.  ``wire_ratio`` compares a copy with the transport alone, without a device to come to
    rest in, and one of shared pinned memory, which the peer of ``reference`` copies by itself, with the bytes'
    way through the ring (native/bench/remoting_bench.c says what each does).  ``processor_us`` is the program's
    own processor time per call or copy.
    """

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    best_ratio: float | None = None
    wire_ratio: float | None = None
    processor_us: float | None = None
    transport: str | None = None
    rtt_us: float | None = None
    gbps: float | None = None
    connection_gbps: float | None = None
    bytes: int | None = None
    memory: str | None = None


@dataclass(frozen=True, kw_only=True)
class Network:
    """An emulated network: round-trip time in microseconds, rate in 10^9 bits per second (0: unlimited).

    ``connection_gbps`` is the most that one connection gets of it, as through a network card's or provider's queues.
    """

    rtt_us: float = 0.0
    gbps: float = 0.0
    connection_gbps: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.rtt_us or self.gbps or self.connection_gbps)

    @property
    def words(self) -> tuple[str, str, str]:
        """The network as the program's arguments."""
        return str(self.rtt_us), str(self.gbps), str(self.connection_gbps)

    @contextlib.contextmanager
    def to(self, address: tuple[str, int]) -> Iterator[tuple[str, int]]:
        """Where to connect to reach ``address`` through the network."""
        if not self:
            yield address
            return
        command = [str(paths.remoting_bench_program()), "emulate", str(address[1]), *self.words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as emulator:
            assert emulator.stdin is not None
            assert emulator.stdout is not None
            try:
                yield "127.0.0.1", int(emulator.stdout.readline())
            finally:
                emulator.stdin.close()


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


@dataclass(frozen=True)
class _Row:
    median_us: float
    least_us: float
    processor_us: float


def _parse(output: str, *, transport: str, network: Network) -> list[Result]:
    rows: dict[tuple[str, int], _Row] = {}
    for line in output.splitlines():
        name, bytes_moved, *figures = line.split()
        rows[name, int(bytes_moved)] = _Row(*map(float, figures))
    results = []
    for (name, count), row in rows.items():
        if name.startswith(("bare_", "wire_")):
            continue
        bare = rows.get((f"bare_{name}", count))
        wire = rows.get((f"wire_{name}", count), bare)
        label, _, memory = name.rpartition("_")
        copy = label.partition("_")[0] in ("h2d", "d2h")

        def figure(microseconds: float, *, count: int = count, copy: bool = copy) -> float:
            """A copy's rate in GB/s, a call's time as it is."""
            return count / microseconds * 1e-3 if copy else microseconds

        results.append(
            Result(
                name=label if copy else name,
                value=figure(row.median_us),
                unit="GB/s" if copy else "us",
                reference=figure(bare.median_us) if bare else None,
                ratio=round(figure(row.median_us) / figure(bare.median_us), 4) if bare else None,
                best_ratio=round(figure(row.least_us) / figure(bare.least_us), 4) if bare else None,
                wire_ratio=round(wire.median_us / row.median_us, 4) if wire and copy else None,
                processor_us=row.processor_us,
                transport=transport,
                rtt_us=network.rtt_us or None,
                gbps=network.gbps or None,
                connection_gbps=network.connection_gbps or None,
                bytes=count or None,
                memory=memory if copy else None,
            )
        )
    return results


def measure(
    *,
    libcuda: str,
    shim: Path,
    transports: Sequence[str] = TRANSPORTS,
    network: Network | None = None,
    address: str = LOOPBACK,
) -> list[Result]:
    """Run all measurements; raises RuntimeError with one line when that is not possible.

    ``address`` is this machine's that RDMA goes over, an adapter's.
    """
    network = network or Network()
    program = paths.remoting_bench_program()
    secret, open_secret = secrets.token_bytes(32), secrets.token_bytes(32)
    with (
        tempfile.TemporaryDirectory(prefix="farbus-bench-") as directory,
        Supervisor(libcuda=libcuda, secret=secret) as supervisor,
        Supervisor(libcuda=libcuda, secret=open_secret, tls=False, reserve=False) as in_the_clear,
        Supervisor(libcuda=libcuda, secret=secret, address=address, rdma=True) as by_rdma,
        network.to(supervisor.address) as supervised,
        network.to(in_the_clear.address) as supervised_in_the_clear,
    ):
        session = Path(directory) / "session"
        base = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        remote = Launch(session=session, shim=shim).environment(base)
        direct = {**base, "LD_LIBRARY_PATH": str(Path(libcuda).parent)}

        def run(*arguments: str, environment: dict[str, str]) -> str:
            done = subprocess.run(
                [program, *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=MEASURE_TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(done.stderr.strip().replace("\n", "; ") or f"exit status {done.returncode}")
            return done.stdout

        def first_kernel_ms(environment: dict[str, str]) -> float:
            began = time.monotonic_ns()
            return (int(run("first-launch", environment=environment)) - began) * 1e-6

        results = []
        for transport in transports:
            crosses = transport in REMOTE
            environment = {**remote, "FARBUS_TRANSPORT": "tcp" if crosses else transport}
            if transport == "tcp":
                (host, port), mine = supervised_in_the_clear, open_secret
            elif transport == RDMA:
                (host, port), mine = by_rdma.address, secret
            else:
                (host, port), mine = (supervised if crosses else supervisor.address), secret
            server = Server(address=host, port=port, secret=mine, tls=transport != "tcp", rdma=transport == RDMA)
            write_session(session, [server])
            emulated = network if crosses else Network()
            results += _parse(
                run("measure", transport, *emulated.words, address, environment=environment),
                transport=transport,
                network=emulated,
            )
            for name, pause_s in (("exec_to_first_kernel", RESERVE_READY_S), ("exec_to_first_kernel_cold", 0.0)):
                if pause_s and transport == "tcp":
                    continue  # that supervisor keeps no server in reserve
                pairs = []
                for _ in range(FIRST_KERNELS):
                    time.sleep(pause_s)
                    pairs.append((first_kernel_ms(environment), first_kernel_ms(direct)))
                # Of programs that follow one another at once the first alone finds a server ready.
                started, bare = zip(*(pairs if pause_s else pairs[1:]), strict=True)
                results.append(
                    Result(
                        name=name,
                        value=median(started),
                        unit="ms",
                        reference=median(bare),
                        ratio=round(median(started) / median(bare), 4),
                        best_ratio=round(min(started) / min(bare), 4),
                        transport=transport,
                        rtt_us=emulated.rtt_us or None,
                        gbps=emulated.gbps or None,
                        connection_gbps=emulated.connection_gbps or None,
                    )
                )
        # What is counted must be seen: the same frames without encryption, whose handshake is one round trip more,
        # and without the records of a stream that can be resumed.
        proxy = CountingProxy(in_the_clear.address)
        host, port = proxy.address
        write_session(session, [Server(address=host, port=port, secret=open_secret, tls=False)])
        run("first-launch", environment={**remote, "FARBUS_TRANSPORT": "tcp", "FARBUS_GRACE_S": "0"})
        proxy.close()
        results.append(Result(name="first_launch_round_trips", value=proxy.round_trips, unit="round trips"))
        return results


def _microseconds(text: str) -> float:
    """Parse ``100us`` or ``2ms``; raise ArgumentTypeError for anything else."""
    for suffix, factor in (("us", 1.0), ("ms", 1000.0)):
        number = text.removesuffix(suffix)
        if number != text:
            with contextlib.suppress(ValueError):
                if 0 <= float(number) * factor <= RTT_LIMIT_US:
                    return float(number) * factor
    raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 100us or 2ms, at most 1000ms")


def _gbps(text: str) -> float:
    """Parse a rate in 10^9 bits per second, 0 for no limit; raise ArgumentTypeError for what is none."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a rate in 10^9 bits per second, such as 10 or 0.5")


def _trouble_at(address: str) -> str:
    """Why nobody can listen there; empty if somebody can."""
    try:
        ipaddress.IPv4Address(address)
        socket.create_server((address, 0)).close()
    except ValueError:
        return "it is none"
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def _trouble_of(libcuda: str) -> str:
    """Why a driver can't be opened, as the loader says it; empty if it can."""
    try:
        ctypes.CDLL(libcuda)
    except OSError as error:
        return str(error)
    return ""


#: What ``farbus bench remoting --help`` says before the options.
DESCRIPTION = """\
Measure what remoting costs, beside the bare transport in the same run.

A supervisor and a server on this machine serve a program under the shim, over
each transport in turn: half a minute for each.  Figures are medians, with the
same of a bare connection and the ratio of the two; docs/performance.md says
what is compared.

  posted_call            a call that needs no answer, on the calling thread
  round_trip             a call that is answered, beside a bare ping-pong
  h2d, d2h               copies to the device and to the host, beside bare ones
  h2d_first, d2h_first   the same after a pause, which had to wake the other side
  handshake              of TLS
  exec_to_first_kernel   the start of a program, beside the driver without
                         remoting (_cold: where no server is in reserve)
  first_launch_round_trips   counted on the wire

Beside a figure stand:

  bare    the median of the same without remoting, in turn with it: a message
          and its answer, or bytes that come to rest in the peer's memory as a
          copy's do in the device's; of a program's start, with the driver itself
  ratio   remoting's median divided by the bare one: 1 where remoting costs
          nothing, else less of a rate (GB/s) and more of a time (us, ms)
  best    the same of the best run of each, which other work disturbs least
  wire    the same as ratio, with bytes that nothing is done with at the peer: all
          that the transport can carry.  Of pinned memory that is shared, whose
          bytes don't travel: with bytes that do
"""
EXAMPLES = (
    "farbus bench remoting",
    "farbus bench remoting --transport shm --json",
    "farbus bench remoting --transport tls --transport tcp --rtt 100us --gbps 10",
    "farbus bench remoting --libcuda libcuda.so.1     with the GPU of this machine",
    "farbus bench remoting --transport rdma --address 10.1.0.7     by the adapter that has it",
)


def main(arguments: Sequence[str]) -> int:
    """Print the figures as a table, or with ``--json`` as one document."""
    parser = MeasurementParser("remoting", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--libcuda", metavar="PATH", help="the driver the server opens (default: the software GPU)")
    parser.add_argument(
        "--transport",
        choices=(*TRANSPORTS, RDMA),
        action="append",
        help="measure this one; again for more (default: all but rdma, with an emulated network tls and tcp)",
    )
    parser.add_argument(
        "--address", default=LOOPBACK, metavar="ADDRESS", help="IPv4 address of an adapter of this machine, for rdma"
    )
    parser.add_argument(
        "--rtt", type=_microseconds, default=0.0, metavar="TIME", help="emulated round-trip time, such as 100us"
    )
    parser.add_argument(
        "--gbps", type=_gbps, default=0.0, metavar="RATE", help="emulated rate, in 10^9 bits per second"
    )
    parser.add_argument(
        "--gbps-per-connection",
        type=_gbps,
        default=0.0,
        metavar="RATE",
        help="the most that one emulated connection gets of it",
    )
    options = parser.parse_args(list(arguments))
    network = Network(rtt_us=options.rtt, gbps=options.gbps, connection_gbps=options.gbps_per_connection)
    transports = tuple(options.transport or (REMOTE if network else TRANSPORTS))
    if network and not set(transports) <= set(REMOTE):
        parser.error("--rtt, --gbps and --gbps-per-connection are for --transport tls and tcp")
    if trouble := _trouble_at(options.address):
        parser.error(f"--address {options.address}: {trouble}; give an IPv4 address of this machine")
    if options.libcuda and (trouble := _trouble_of(options.libcuda)):
        parser.error(f"--libcuda {trouble}; give the path of a driver's libcuda.so.1, or leave it out")
    print(f"farbus: measuring remoting over {', '.join(transports)}; it takes half a minute for each", file=sys.stderr)
    try:
        software = paths.software_gpu_directory() / "libcuda.so.1"
        libcuda = options.libcuda or str(paths.require(software, what="the software GPU"))
        results = measure(
            libcuda=libcuda,
            shim=paths.shim_library().parent,
            transports=transports,
            network=network,
            address=options.address,
        )
    except (Unavailable, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"farbus: bench remoting: {error}", file=sys.stderr)
        return 1
    if options.json:
        rows = [{key: value for key, value in asdict(result).items() if value is not None} for result in results]
        print(json.dumps({"bench": "remoting", "results": rows}, indent=1))
        return 0
    sys.stdout.write(table(results))
    return 0


def table(results: Sequence[Result]) -> str:
    """Return the figures as lines, under a head: columns two spaces apart, as other commands' into a pipe."""

    def figure(value: float | None, form: str = ".2f") -> str:
        return "-" if value is None else format(value, form)

    rows: list[tuple[str, ...]] = [("NAME", "VIA", "OF", "VALUE", "UNIT", "BARE", "RATIO", "BEST", "WIRE")]
    for each in results:
        of = " ".join(filter(None, [each.memory, f"{each.bytes >> 20} MiB" if each.bytes else None]))
        beside = (figure(each.reference, ".3f"), *map(figure, (each.ratio, each.best_ratio, each.wire_ratio)))
        rows.append((each.name, each.transport or "-", of or "-", f"{each.value:.3f}", each.unit, *beside))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = ("NAME", "VIA", "OF", "UNIT")
    return "".join(
        "  ".join(
            cell.ljust(width) if title in left else cell.rjust(width)
            for cell, width, title in zip(row, widths, rows[0], strict=True)
        ).rstrip()
        + "\n"
        for row in rows
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
