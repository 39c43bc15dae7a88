"""The door to fio, which measures block devices and files: a job for each call, its JSON read."""

from __future__ import annotations

import enum
import shutil
from typing import Any

import msgspec

from farbus.errors import Unavailable
from farbus.linux.children import run_tool
from farbus.model.value import Value

START_S = 60.0
"""What fio may take beside the time that it measures: to start, to lay out a file, on a busy machine."""


class Pattern(enum.StrEnum):
    """What is done to the device, in fio's words (``rw``)."""

    READ = "read"
    WRITE = "write"
    RANDOM_READ = "randread"
    RANDOM_WRITE = "randwrite"

    @property
    def writes(self) -> bool:
        """Say whether it changes what is there."""
        return self in (Pattern.WRITE, Pattern.RANDOM_WRITE)


class FioJob(Value, frozen=True, kw_only=True):
    """One measurement.  ``path`` is a block device, or a file, which is made with ``size_bytes`` where it is not there.

    ``seconds`` is how long is measured, after ``ramp_s`` that does not count.
    """

    path: str
    pattern: Pattern
    block_bytes: int
    depth: int = 1
    seconds: float
    ramp_s: float = 0.0
    size_bytes: int = 0
    offset_bytes: int = 0
    """Where it begins: what is before stays as it is."""
    verify: bool = False
    """Write checksums and read them back: fio fails where one does not fit."""


class FioResult(Value, frozen=True, kw_only=True):
    """What was reached: bytes and operations a second, and the time that one took, in microseconds."""

    bytes_per_s: float
    iops: float
    mean_us: float
    p99_us: float


def check_fio(program: str = "fio") -> None:
    """Raise :class:`Unavailable` where this machine has no fio."""
    if shutil.which(program) is None:
        raise Unavailable(f"{program}: this machine does not have it", hint="apt install fio")


def run_fio(job: FioJob, *, program: str = "fio") -> FioResult:
    """Measure; raise :class:`Unavailable` with what fio says where it can't."""
    # For fio a colon ends a name of several: /dev/block/259:1 would be two files.
    path = job.path.replace(":", "\\:")
    arguments = [
        program, "--output-format=json", "--name=farbus", f"--filename={path}", f"--rw={job.pattern}",
        f"--bs={job.block_bytes}", f"--iodepth={job.depth}", "--ioengine=libaio", "--direct=1", "--group_reporting",
    ]  # fmt: skip
    if job.verify:
        # Each block is read back once all are written; the amount and not the time decides.
        arguments += ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1"]
    else:
        # In whole milliseconds: fio takes half a second, written as 0.5s, for none.
        arguments += ["--time_based", f"--runtime={job.seconds * 1000:.0f}ms", f"--ramp_time={job.ramp_s * 1000:.0f}ms"]
    if not job.pattern.writes:
        arguments.append("--readonly")
    if job.size_bytes:
        arguments.append(f"--size={job.size_bytes}")
    if job.offset_bytes:
        arguments.append(f"--offset={job.offset_bytes}")
    done = run_tool(arguments, timeout_s=job.seconds + job.ramp_s + START_S)
    if done.code:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(
            f"fio {job.pattern} on {job.path}: {said[0] if said else f'it ended with {done.code}'}",
            hint="install fio, and run as root for block devices",
        )
    return parse_fio(done.stdout, job.pattern)


class _Percentiles(msgspec.Struct):
    mean: float
    percentile: dict[str, float] = {}


class _Side(msgspec.Struct):
    bw_bytes: float
    iops: float
    clat_ns: _Percentiles


class _Job(msgspec.Struct):
    read: _Side
    write: _Side
    error: int = 0


class _Output(msgspec.Struct):
    jobs: list[_Job]


def parse_fio(text: str, pattern: Pattern) -> FioResult:
    """Read fio's JSON (3.x, ``--output-format=json``); what it prints before is left out."""
    try:
        output: _Output = msgspec.json.decode(text[text.index("{") :], type=_Output)
        (job,) = output.jobs
    except (ValueError, msgspec.MsgspecError) as error:
        raise Unavailable(f"fio: its output is not understood: {error}") from error
    if job.error:
        raise Unavailable(f"fio {pattern}: it failed with error {job.error}")
    side = job.write if pattern.writes else job.read
    return FioResult(
        bytes_per_s=side.bw_bytes,
        iops=side.iops,
        mean_us=side.clat_ns.mean / 1000,
        p99_us=side.clat_ns.percentile.get("99.000000", side.clat_ns.mean) / 1000,
    )


def fio_labels(job: FioJob) -> dict[str, Any]:
    """Return what a row of a benchmark says of a measurement."""
    return {"pattern": str(job.pattern), "block_bytes": job.block_bytes, "depth": job.depth}
