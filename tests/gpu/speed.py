"""What programs lose by remoting on a real GPU: the same programs natively, over shared memory and over TCP, in turn.

    python -m tests.gpu.speed --libcuda /usr/lib/x86_64-linux-gnu/libcuda.so.1 [--torch PYTHON] [-o FILE]

kernels.cu is compiled by nvcc; with ``--torch``, the Python of an environment with PyTorch, models.py runs too.  All of
them run anew in each round, so that what the machine does meanwhile meets all three.  A table of medians goes to
standard output, all times as JSON to FILE.  Exit status: 0; 1 where a program failed or a result depends on the way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.gpu.ways import WAYS, environments, prefix

HERE = Path(__file__).parent
PROGRAM_TIMEOUT_S = 600
#: Until a server is in reserve again (farbus.remoting.supervisor), whose driver has then been opened.
RESERVE_READY_S = 2.0


@dataclass
class Workload:
    """Seconds by way, all rounds together, and the digests that came with them."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    digests: dict[str, set[str]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        return not self.errors and len(set().union(*self.digests.values())) == 1


def compile_kernels(folder: Path) -> Path:
    """Machine code for the GPUs of today beside PTX: what compiles that is the driver, and its time not ours."""
    program = folder / "kernels"
    subprocess.run(["nvcc", "-O2", "-arch=all-major", "-o", program, HERE / "kernels.cu"], check=True)
    return program


def run(
    name: str, command: Sequence[str | Path], way: str, environment: Mapping[str, str], found: dict[str, Workload]
) -> None:
    """Run one program and add what it tells, and how long it took from exec to exit."""
    begun = time.perf_counter()
    done = subprocess.run(
        [*prefix(way), *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    whole = found.setdefault(name, Workload())
    whole.seconds.setdefault(way, []).append(time.perf_counter() - begun)
    whole.digests.setdefault(way, set()).add("")
    if done.returncode:
        whole.errors[way] = f"status {done.returncode}: {' '.join(done.stderr.split())[-300:]}"
    for line in done.stdout.splitlines():
        told = json.loads(line)
        workload = found.setdefault(told["name"], Workload())
        if "error" in told:
            workload.errors[way] = told["error"]
            continue
        workload.seconds.setdefault(way, []).extend(told["seconds"])
        workload.digests.setdefault(way, set()).add(told["digest"])


def table(found: Mapping[str, Workload], ways: Sequence[str]) -> str:
    lines = [f"{'':42}" + "".join(f"{way + ', us' if way == ways[0] else way:>14}" for way in ways) + "  result"]
    for name, workload in found.items():
        middle = {way: median(seconds) for way, seconds in workload.seconds.items()}
        first = middle.get(ways[0])
        cells = []
        for way in ways:
            if way not in middle:
                cells.append("failed")
            elif way == ways[0]:
                cells.append(f"{middle[way] * 1e6:,.1f}")
            else:
                cells.append(f"x {middle[way] / first:.3f}" if first else f"{middle[way] * 1e6:,.1f} us")
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
    parser.add_argument("--divisor", type=int, default=1, help="make all workloads smaller")
    parser.add_argument("-o", "--output", type=Path, help="all times as JSON")
    arguments = parser.parse_args()
    ways = tuple(arguments.way or ("native", "shm", "tcp"))
    found: dict[str, Workload] = {}
    with (
        tempfile.TemporaryDirectory(prefix="farbus-speed-") as folder,
        environments(arguments.libcuda, ways) as all_ways,
    ):
        kernels = arguments.kernels or compile_kernels(Path(folder))
        for number in range(arguments.rounds):
            for way, environment in all_ways.items():
                print(f"farbus: round {number + 1} of {arguments.rounds}: {way}", file=sys.stderr, flush=True)
                if way != "native":
                    time.sleep(RESERVE_READY_S)
                run("kernels.cu, exec to exit", [kernels, str(arguments.divisor)], way, environment, found)
                if arguments.torch:
                    models = [arguments.torch, "-W", "ignore", HERE / "models.py", "--divisor", str(arguments.divisor)]
                    run("models.py, exec to exit", models, way, environment, found)
    if arguments.output:
        document = {
            name: {"seconds": one.seconds, "agrees": one.agrees, "errors": one.errors} for name, one in found.items()
        }
        arguments.output.write_text(json.dumps(document) + "\n")
    print(table(found, ways))
    return 0 if all(workload.agrees for workload in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
