"""What programs lose by remoting on a real GPU: the same programs natively, over shared memory and over TCP, in turn.

    python -m tests.gpu.speed --libcuda /usr/lib/x86_64-linux-gnu/libcuda.so.1 [--torch PYTHON] [-o FILE]

kernels.cu is compiled by nvcc; with ``--torch``, the Python of an environment with PyTorch, models.py runs too.  All of
them run anew in each round, forwards and backwards in turn, so that what the machine does meanwhile meets all ways.  A
table goes to standard output: medians of the first way, and ratios to them.  Times, medians and ratios go to FILE as
JSON.  Exit status: 0; 1 where a program failed or a result depends on the way.

Another remoting of CUDA is one more way: ``--peer`` names it and says what stands before a program that goes by it, as
a shell would have it.  Its server runs already, with the same driver:

    python -m tests.gpu.speed --libcuda native/build/softgpu/libcuda.so.1 --part calls --part copies \\
        --peer 'other=LD_LIBRARY_PATH=/opt/other/lib OTHER_SERVER=127.0.0.1:5000'
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.gpu.ways import WAYS, environments, outside, prefix

HERE = Path(__file__).parent
PROGRAM_TIMEOUT_S = 600
#: Until a server is in reserve again (farbus.remoting.supervisor), whose driver has then been opened.
RESERVE_READY_S = 2.0
#: Of kernels.cu.
PARTS = ("work", "calls", "copies")


@dataclass(frozen=True)
class Peer:
    """A way of somebody else's: what programs find in their environment, and what they are started with."""

    name: str
    variables: Mapping[str, str]
    prefix: Sequence[str]


def peer(text: str) -> Peer:
    """Parse ``NAME=[VARIABLE=VALUE]... [COMMAND]``; raise ArgumentTypeError for what is none."""
    name, given, command = text.partition("=")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    if not given or not name.isidentifier() or not words or name in WAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not such as other='LD_LIBRARY_PATH=/opt/other/lib'")
    variables = {}
    while words and (pair := words[0].partition("="))[1] and pair[0].isidentifier():
        variables[pair[0]] = pair[2]
        del words[0]
    return Peer(name, variables, words)


@dataclass
class Workload:
    """Seconds by way, all rounds together, and the digests that came with them."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    digests: dict[str, set[str]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        return not self.errors and len(set().union(*self.digests.values())) == 1

    @property
    def medians(self) -> dict[str, float]:
        return {way: median(seconds) for way, seconds in self.seconds.items()}

    def ratios(self, base: str) -> dict[str, float]:
        """Each way's median by that of one of them; none where that one has failed."""
        medians = self.medians
        return {way: middle / medians[base] for way, middle in medians.items()} if medians.get(base) else {}


def compile_kernels(folder: Path) -> Path:
    """Machine code for the GPUs of today beside PTX: what compiles that is the driver, and its time not ours."""
    program = folder / "kernels"
    subprocess.run(["nvcc", "-O2", "-arch=all-major", "-o", program, HERE / "kernels.cu"], check=True)
    return program


def run(
    name: str, command: Sequence[str | Path], way: str, environment: Mapping[str, str], found: dict[str, Workload]
) -> None:
    """Run one program and add what it tells, and how long it took from exec to exit."""
    begun = time.monotonic()
    whole = found.setdefault(name, Workload())
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        whole.errors[way] = str(error)
        return
    whole.seconds.setdefault(way, []).append(time.monotonic() - begun)
    whole.digests.setdefault(way, set()).add("")
    if done.returncode:
        whole.errors[way] = f"status {done.returncode}: {' '.join(done.stderr.split())[-300:]}"
    for line in done.stdout.splitlines():
        told = json.loads(line)
        workload = found.setdefault(told["name"], Workload())
        if "error" in told:
            workload.errors[way] = told["error"]
            continue
        workload.seconds.setdefault(way, []).extend(told["seconds"] if "seconds" in told else [told["at"] - begun])
        workload.digests.setdefault(way, set()).add(told.get("digest", ""))


def table(found: Mapping[str, Workload], ways: Sequence[str]) -> str:
    lines = [f"{'':42}" + "".join(f"{way + ', us' if way == ways[0] else way:>14}" for way in ways) + "  result"]
    for name, workload in found.items():
        medians, ratios = workload.medians, workload.ratios(ways[0])
        cells = []
        for way in ways:
            if way not in medians:
                cells.append("failed")
            elif way == ways[0]:
                cells.append(f"{medians[way] * 1e6:,.1f}")
            else:
                cells.append(f"x {ratios[way]:.3f}" if ratios else f"{medians[way] * 1e6:,.1f} us")
        wrong = "; ".join(workload.errors.values())[:200] or f"DIFFERS: {workload.digests}"
        same = "same" if workload.agrees else wrong
        lines.append(f"{name:42}" + "".join(f"{cell:>14}" for cell in cells) + f"  {same}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libcuda", type=Path, required=True, help="the driver, NVIDIA's or the software GPU's")
    parser.add_argument("--torch", metavar="PYTHON", help="the Python of an environment with PyTorch")
    parser.add_argument("--kernels", type=Path, help="kernels.cu, compiled")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--way", action="append", choices=WAYS, help="default: native, shm, tcp")
    parser.add_argument("--peer", action="append", type=peer, default=[], metavar="NAME=WORDS", help="one more way")
    parser.add_argument("--part", action="append", choices=PARTS, default=[], help="of kernels.cu (default: all)")
    parser.add_argument("--divisor", type=int, default=1, help="make all workloads smaller")
    parser.add_argument("-o", "--output", type=Path, help="all times as JSON")
    arguments = parser.parse_args()
    ours = tuple(arguments.way or ("native", "shm", "tcp"))
    peers: list[Peer] = arguments.peer
    ways = (*ours, *(each.name for each in peers))
    found: dict[str, Workload] = {}
    with (
        tempfile.TemporaryDirectory(prefix="farbus-speed-") as folder,
        environments(arguments.libcuda, ours) as environment,
    ):
        for each in peers:
            environment[each.name] = outside() | each.variables
        prefixes = {way: prefix(way) for way in ours} | {each.name: each.prefix for each in peers}
        kernels = arguments.kernels or compile_kernels(Path(folder))
        for number in range(arguments.rounds):
            for way in reversed(ways) if number % 2 else ways:
                print(f"farbus: round {number + 1} of {arguments.rounds}: {way}", file=sys.stderr, flush=True)
                if way != "native":
                    time.sleep(RESERVE_READY_S)
                command = [*prefixes[way], kernels, str(arguments.divisor), *arguments.part]
                run("kernels.cu, exec to exit", command, way, environment[way], found)
                if arguments.torch:
                    models = [arguments.torch, "-W", "ignore", HERE / "models.py", "--divisor", str(arguments.divisor)]
                    run("models.py, exec to exit", [*prefixes[way], *models], way, environment[way], found)
    if arguments.output:
        document = {
            name: {
                "seconds": one.seconds,
                "medians": one.medians,
                "ratios": one.ratios(ways[0]),
                "agrees": one.agrees,
                "errors": one.errors,
            }
            for name, one in found.items()
        }
        arguments.output.write_text(json.dumps(document) + "\n")
    print(table(found, ways))
    return 0 if all(workload.agrees for workload in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
