"""Run random calls on a driver itself and through the shim, and say where the two part."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.remoting.harness import PROGRAM_TIMEOUT_S, ROOT, Remote
from tests.softgpu import driver_programs

#: Two lines of one call that differ by more than an error's number, of which something is known:
#: function -> (result of the driver itself, of the shim; None: any) and why.
KNOWN: Final[dict[str, tuple[int | None, int | None, str]]] = {
    "cuDeviceGetAttribute": (0, 0, "what a remote GPU lacks is 0"),
    "cuMemHostRegister": (0, 801, "memory of the program's that is only read is not there"),
    "cuMemHostRegister_v2": (0, 801, "the same"),
    "cuMemHostGetDevicePointer_v2": (0, 801, "pinned memory is not mapped over sockets, nor what is registered"),
    "cuGraphAddMemcpyNode": (0, 801, "no copy node between this process's memory and an array or a volume"),
    "cuGraphAddNode": (0, 801, "the same"),
    "cuGraphAddNode_v2": (0, 801, "the same"),
    "cuGraphMemcpyNodeSetParams": (0, 801, "a copy node that names this process's memory is not changed"),
    "cuGraphExecMemcpyNodeSetParams": (0, 801, "the same"),
    "cuGraphNodeSetParams": (0, 801, "the same"),
    "cuGraphExecNodeSetParams": (0, 801, "the same"),
    "cuPointerGetAttribute": (801, 0, "the software GPU knows fewer"),
    "cuPointerGetAttributes": (801, 0, "the same"),
    "cuEventDestroy_v2": (709, 0, "an event of a context that has ended is gone with it"),
    "cuGraphEventRecordNodeGetEvent": (0, 0, "an event that was destroyed has no name"),
    "cuGraphEventWaitNodeGetEvent": (0, 0, "the same"),
    "cuMemsetD2D8_v2": (1, 0, "a pitch less than the only row is the driver's to refuse, later"),
    "cuMemsetD2D16_v2": (1, 0, "the same"),
    "cuMemsetD2D32_v2": (1, 0, "the same"),
    "cuMemsetD2D8Async": (1, 0, "the same"),
    "cuMemsetD2D16Async": (1, 0, "the same"),
    "cuMemsetD2D32Async": (1, 0, "the same"),
    "cuLibraryGetModule": (0, 0, "the module of a library is one for all contexts"),
    "cuMemCreate": (0, 801, "memory of the host that a driver gives is its own node's"),
    "cuMemPoolCreate": (0, 801, "the same"),
    "cuTexRefSetMipmapLevelClamp": (0, 400, "a reference ends with its context"),
}
#: Where no context is current, or it has ended, a software GPU asks less of a call than the shim does, or more.
CONTEXTS: Final = {201, 709}
#: What a capture says of a call that is wrong in another way, too; one of the two then ends it.
CAPTURES: Final = set(range(900, 909))

LINE: Final = re.compile(r"\d+ (\w+)\((.*)\) -> (\d+)(.*)")


@dataclass(frozen=True)
class Run:
    """What a process said, line by line, and how it ended."""

    lines: tuple[str, ...]
    code: int
    error: str


def command(seed: int, steps: int, folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.remoting.random_calls.caller", str(seed), str(steps), str(folder)]


def _run(arguments: list[str], environment: dict[str, str]) -> Run:
    done = subprocess.run(
        arguments,
        env=environment | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    return Run(tuple(done.stdout.splitlines()), done.returncode, done.stderr)


def natively(seed: int, steps: int, folder: Path, keeper: Path, options: str) -> Run:
    """On the software GPU itself; with ``keeper`` no object gets the address of another that was destroyed."""
    environment = driver_programs.environment(str(folder), options, LD_BIND_NOW="", LD_PRELOAD=str(keeper))
    return _run(command(seed, steps, folder), environment)


def remotely(seed: int, steps: int, folder: Path, remote: Remote, transport: str) -> Run:
    return _run(command(seed, steps, folder), remote.environment(FARBUS_TRANSPORT=transport))


def _parts(line: str) -> tuple[str, int, str] | None:
    found = LINE.fullmatch(line)
    return (found[1], int(found[3]), found[4]) if found else None


def difference(native: Run, remote: Run) -> str:
    """Where two runs part and nothing says why, in words; empty: nowhere."""
    for one, other in zip(native.lines, remote.lines, strict=False):
        if one == other:
            continue
        if "would take one object for another" in one + other:
            return ""
        left, right = _parts(one), _parts(other)
        if left and right and left[0] == right[0]:
            results = {left[1], right[1]}
            if results & CONTEXTS or (0 not in results and results & CAPTURES):
                return ""
            if 0 not in results:
                continue
            known = KNOWN.get(left[0])
            if known and known[0] in (None, left[1]) and known[1] in (None, right[1]):
                return ""
        return f"driver: {one}\n  shim: {other}\n{remote.error[-500:]}"
    if len(native.lines) != len(remote.lines) or native.code != remote.code:
        ends = f"driver: {len(native.lines)} lines, {native.code}; shim: {len(remote.lines)}, {remote.code}"
        return f"{ends}\n{remote.error[-500:]}"
    return ""
