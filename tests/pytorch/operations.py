"""Which operations compute right on the device that PyTorch sees: each is compared with PyTorch on the processor.

    python operations.py [-o report.json] [--mode eager] [--mode compiled] [--only WORD] [--processes N] [--list]

A program of its own that needs nothing but PyTorch, so that it runs unchanged under the shim, on a software GPU and
on a machine with a GPU of its own, where every operation must be right.  ``eager`` runs the kernels that the wheel
carries, ``compiled`` what torch.compile makes of the same function.

Operations run in worker processes, one after another or N at a time: what ends a CUDA context, hangs or crashes costs
that operation alone, and the rest goes on in a new process.  Exit status: 0 if all are right, 1 if some are not, 2 if
nothing ran.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: Beyond it an operation hangs: torch.compile runs a C compiler and Triton for one.
OPERATION_TIMEOUT_S = float(os.environ.get("FARBUS_OPERATION_TIMEOUT_S", "900"))
#: Importing PyTorch reads gigabytes of libraries.
START_TIMEOUT_S = 600.0

VERDICTS = ("right", "wrong", "no code", "failed", "crashed", "hung")
MODES = ("eager", "compiled")


# ---- the worker: imports PyTorch, runs what it is told, one line of JSON for each operation ----


def verdict_of(error: BaseException) -> str:
    """``no code`` where the driver says that there is no kernel image for this device."""
    text = str(error)
    no_code = "no kernel image is available" in text or "NO_BINARY_FOR_GPU" in text
    return "no code" if no_code else "failed"


def work(mode: str, names: list[str], descriptor: int) -> None:
    """Reports go into a pipe of their own: libraries write to standard output what they like."""
    import override_arch
    import torch
    from operation_table import operations, run

    def tell(**report: object) -> None:
        os.write(descriptor, json.dumps(report).encode() + b"\n")

    table = {operation.name: operation for operation in operations()}
    override_arch.install()
    # Convolutions would be rounded to 10 bits, further than TOLERANCES.
    torch.backends.cudnn.allow_tf32 = False
    torch.cuda.init()
    for name in names:
        tell(begin=name)
        started = time.perf_counter()
        verdict, why = "right", ""
        try:
            run(table[name], mode)
        except AssertionError as error:
            verdict, why = "wrong", str(error)
        except Exception as error:
            verdict, why = verdict_of(error), f"{type(error).__name__}: {error}"
        lines = [line for line in why.strip().splitlines() if line.strip()]
        seconds = round(time.perf_counter() - started, 3)
        tell(end=name, verdict=verdict, why=" ".join(lines[:3])[:400], seconds=seconds)
        if verdict != "right" and not healthy():
            sys.exit(3)


def healthy() -> bool:
    """Whether the context still works: most errors end with their call, some stay."""
    import torch

    try:
        torch.cuda.synchronize()
        return bool((torch.arange(4).cuda().cpu() == torch.arange(4)).all())
    except Exception:
        return False


# ---- the parent ----


class Worker:
    """One process, which says what it begins and how it ends."""

    def __init__(self, mode: str, names: list[str]) -> None:
        self.output, writing = os.pipe()
        self.words = tempfile.TemporaryFile()  # noqa: SIM115 (close() does it)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", mode, "--reports", str(writing)],
            stdin=subprocess.PIPE,
            stdout=self.words,
            stderr=self.words,
            pass_fds=[writing],
        )
        os.close(writing)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(names).encode())
        self.process.stdin.close()
        self.buffer = b""
        self.heard = 0
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.output, selectors.EVENT_READ)

    def line(self, timeout_s: float) -> dict[str, object] | None:
        """The next report; None where the process has ended.  Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            while b"\n" in self.buffer:
                line, self.buffer = self.buffer.split(b"\n", 1)
                report: dict[str, object] = json.loads(line)
                return report
            if not self.selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            some = os.read(self.output, 65536)
            if not some:
                return None
            self.buffer += some

    def said(self) -> list[str]:
        """The last lines that the process wrote since the last call: drivers and compilers say there what is wrong."""
        # The offset of the file is the process's too: it writes there.
        written = os.pread(self.words.fileno(), 1 << 20, self.heard)
        self.heard += len(written)
        lines = [line.strip() for line in written.decode(errors="replace").splitlines() if line.strip()]
        return [line[:400] for line in lines[-3:]]

    def close(self) -> int:
        self.process.kill()
        self.selector.close()
        os.close(self.output)
        status = self.process.wait()
        self.words.close()
        return status


def run_all(mode: str, names: list[str], results: dict[str, dict[str, object]], *, processes: int, loud: bool) -> None:
    # Neighbours in the table take alike long: dealt out, none of the processes has all that is slow.
    shares = [names[first::processes] for first in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(lambda share: run_share(mode, share, results, loud=loud), shares))


def run_share(mode: str, names: list[str], results: dict[str, dict[str, object]], *, loud: bool) -> None:
    """Run them one after another and add how each ended to ``results``."""
    left = list(names)

    def settle(name: str, result: dict[str, object]) -> None:
        results[name] = result
        left.remove(name)
        if loud:
            print(f"{mode:8} {result['verdict']:8} {name}  {result['why']}", flush=True)

    while left:
        worker = Worker(mode, left)
        begun = ""
        timeout_s, verdict, why = START_TIMEOUT_S, "crashed", ""
        before = len(left)
        try:
            # One that has told all may stand at its exit for minutes, for inductor's own processes (docs/pytorch.md).
            while left and (report := worker.line(timeout_s)) is not None:
                timeout_s = OPERATION_TIMEOUT_S
                if "begin" in report:
                    begun = str(report["begin"])
                else:
                    begun = ""
                    said = worker.said()
                    if report["verdict"] != "right":
                        report["said"] = said
                    settle(str(report.pop("end")), report)
            why = " ".join(worker.said())
        except TimeoutError:
            verdict, why = "hung", f"no answer within {timeout_s:.0f} s"
        finally:
            status = worker.close()
        if begun:
            settle(begun, {"verdict": verdict, "why": f"status {status}: {why}", "seconds": 0.0})
        elif len(left) == before:
            raise RuntimeError(f"the worker ended with status {status} before its first operation: {why}")


def summary(results: dict[str, dict[str, object]]) -> dict[str, int]:
    counted = Counter(str(result["verdict"]) for result in results.values())
    return {verdict: counted[verdict] for verdict in VERDICTS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write all results as JSON")
    parser.add_argument("--mode", action="append", choices=MODES, help="default: eager")
    parser.add_argument("--only", action="append", default=[], help="only operations with this in their name")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="run so many at a time")
    parser.add_argument("--quiet", action="store_true", help="print the counts alone")
    parser.add_argument("--list", action="store_true", help="print the names of the operations")
    parser.add_argument("--work", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--reports", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, json.load(sys.stdin), arguments.reports)
        return 0

    import torch
    from operation_table import operations

    table = [operation for operation in operations() if all(word in operation.name for word in arguments.only)]
    if arguments.list:
        print("\n".join(operation.name for operation in table))
        return 0
    if not table or not torch.cuda.is_available():
        print("nothing to run: " + ("no such operation" if not table else "PyTorch sees no CUDA device"))
        return 2
    properties = torch.cuda.get_device_properties(0)
    document: dict[str, object] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "modes": {},
    }
    print(f"PyTorch {torch.__version__} on {properties.name} {document['compute_capability']}")
    all_right = True
    for mode in arguments.mode or ["eager"]:
        names = [operation.name for operation in table if mode == "eager" or operation.compiles]
        results: dict[str, dict[str, object]] = {}
        run_all(mode, names, results, processes=arguments.processes, loud=not arguments.quiet)
        counts = summary(results)
        document["modes"][mode] = {"counts": counts, "operations": results}  # type: ignore[index]
        rest = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count and verdict != "right")
        print(f"{mode}: computes right: {counts['right']} of {len(names)}" + (f" ({rest})" if rest else ""))
        all_right = all_right and counts["right"] == len(names)
    if arguments.output:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
