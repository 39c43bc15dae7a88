"""``farbus bench softgpu``: how fast the software GPU executes kernels, alone or beside another build of one.

Runs native/bench/softgpu_bench.c, which opens a ``libcuda.so.1`` by its path. With ``--against`` the two builds take
turns, so that a machine whose speed drifts treats both alike, and a ratio is the median over the pairs: below 1, this
build is faster. Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from farbus.errors import Unavailable
from farbus.remoting import paths
from farbus.remoting.arguments import MeasurementParser

#: One run of all kernels: some ten seconds, on a loaded machine minutes.
RUN_TIMEOUT_S = 600
ROUNDS_MAX = 100


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure; ``reference`` is the other build's, ``ratio`` the median of this / other over the pairs of runs."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None


Figures = dict[str, tuple[float, str]]


def parse(output: str) -> Figures:
    """Read "NAME VALUE UNIT" lines."""
    rows = (line.split() for line in output.splitlines())
    return {name: (float(value), unit) for name, value, unit in rows}


def run_once(program: Path, libcuda: Path, *flags: str) -> Figures:
    """Measure one build; RuntimeError with one line when it can't be."""
    with tempfile.TemporaryDirectory(prefix="farbus-bench-") as node:
        done = subprocess.run(
            [str(program), *flags, str(libcuda)],
            # A node of its own: its boards are nobody else's.
            env={**os.environ, "FARBUS_SOFTGPU_NODE": node},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        said = done.stderr.strip().replace("\n", "; ") or f"exit status {done.returncode}"
        raise RuntimeError(f"{libcuda}: {said}")
    return parse(done.stdout)


def combine(own: Sequence[Figures], other: Sequence[Figures]) -> list[Result]:
    """Medians over the rounds, and of the ratios pair by pair."""
    results = []
    for name, (_, unit) in own[0].items():
        reference = ratio = None
        if other and all(name in figures and figures[name][0] for figures in other):
            reference = statistics.median(figures[name][0] for figures in other)
            ratio = statistics.median(a[name][0] / b[name][0] for a, b in zip(own, other, strict=True))
        value = statistics.median(figures[name][0] for figures in own)
        results.append(Result(name=name, value=value, unit=unit, reference=reference, ratio=ratio and round(ratio, 3)))
    return results


def measure(*, libcuda: Path, against: Path | None, rounds: int, flags: Sequence[str]) -> list[Result]:
    """Run `rounds` times, both builds in turn."""
    program = paths.softgpu_bench_program()
    own: list[Figures] = []
    other: list[Figures] = []
    for _ in range(rounds):
        own.append(run_once(program, libcuda, *flags))
        if against:
            other.append(run_once(program, against, *flags))
    return combine(own, other)


def library_in(path: str) -> Path:
    """The library that a person means by its directory or its own path."""
    named = Path(path)
    return paths.require(named / "libcuda.so.1" if named.is_dir() else named, what="the software GPU to compare with")


def rounds_of(text: str) -> int:
    """A number of rounds from the command line."""
    if not text.isdecimal() or not 1 <= int(text) <= ROUNDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1 to {ROUNDS_MAX}")
    return int(text)


#: What ``farbus bench softgpu --help`` says before the options.
DESCRIPTION = """\
Measure how fast the software GPU executes kernels, alone or beside another
build of one.

The two builds take turns, and a ratio is the median over the pairs: below 1,
this build is faster.
"""
EXAMPLES = (
    "farbus bench softgpu --quick",
    "farbus bench softgpu --against /opt/other/lib --json",
    "farbus bench softgpu --processor-time            on a machine that others use",
)


def main(arguments: Sequence[str]) -> int:
    """Print the figures as a table, or with ``--json`` as one document."""
    parser = MeasurementParser("softgpu", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--against", metavar="PATH", help="directory of another build's libcuda.so.1")
    parser.add_argument("--rounds", type=rounds_of, default=3, metavar="N", help="runs of each build (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small kernels, one round")
    parser.add_argument(
        "--processor-time", action="store_true", help="processor time of all threads: for a machine that others use"
    )
    options = parser.parse_args(list(arguments))
    try:
        results = measure(
            libcuda=paths.software_gpu_library(),
            against=library_in(options.against) if options.against else None,
            rounds=1 if options.quick else options.rounds,
            flags=[*(["--quick"] if options.quick else []), *(["--processor-time"] if options.processor_time else [])],
        )
    except (Unavailable, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"farbus: bench softgpu: {error}", file=sys.stderr)
        return 1
    if options.json:
        rows = [{key: value for key, value in asdict(result).items() if value is not None} for result in results]
        print(json.dumps({"bench": "softgpu", "results": rows}, indent=1))
        return 0
    for result in results:
        beside = f"   other {result.reference:10.3f}   ratio {result.ratio:6.3f}" if result.reference else ""
        print(f"{result.name:24} {result.value:10.3f} {result.unit}{beside}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
