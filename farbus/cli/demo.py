"""The guided tour: a CUDA program on a node without a GPU, step by step, every result checked.

It runs in a directory of its own under /tmp, which it also makes the runtime
directory, so that a ``farbus up`` of the same user is not disturbed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farbus.cli import runtime
from farbus.cli.embedded import SHARED_MEMORY
from farbus.cli.listing import has_colours
from farbus.cli.toolchain import Toolchain, find_toolchain
from farbus.errors import FarbusError, NotFound, TimedOut
from farbus.linux.children import Finished, processes_naming, run_showing, run_tool
from farbus.remoting.paths import package_root

SOURCES = ("heat.cu", "saxpy.cu")

JOB = """\
name = "heat"
command = ["./heat", "2000", "1500"]
node = "gamma"                          # the node without a GPU

[resources]
gpus = 1
"""

STARTS_WITHIN_S = 60.0
LOOK_EVERY_S = 0.1
READING_PAUSE_S = 1.5

KEPT_LOGS = Path(".demo") / "logs"
"""Where the cluster's logs go when a step fails."""


class Tour:
    """One run of the demo."""

    def __init__(self, *, programs: str = "") -> None:
        self._programs = _find_programs(programs)
        self._place = Path(tempfile.mkdtemp(prefix="farbus-demo-", dir="/tmp"))
        self._work = self._place / "work"
        root = str(package_root())
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("FARBUS_")}
        self._environment["XDG_RUNTIME_DIR"] = str(self._place)
        # Named, since an agent of this machine would be found first.
        self._environment["FARBUS_SOCKET"] = str(self._place / "farbus" / "up" / "sockets" / "gamma.sock")
        self._environment["PYTHONPATH"] = ":".join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        self._devices: list[str] = []
        self._terminal = sys.stdout.isatty()
        self._colours = has_colours()
        self._started = time.monotonic()

    def run(self) -> None:
        """Do all steps; raise :class:`FarbusError` at the first that does not do what it should."""
        self._work.mkdir()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # As an exception, so that the cluster is stopped and the directory removed.
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        try:
            self._say("Farbus: CUDA programs on a node without a GPU.  Everything happens on this machine.")
            toolchain = self._toolchain()
            self._start_cluster()
            self._show_cluster()
            self._compile(toolchain)
            self._run_job()
            self._run_here()
            self._give_back()
        except BaseException as error:
            if isinstance(error, Exception):
                self._keep_logs()
            self._remove(force=True)
            raise
        self._stop()
        seconds = time.monotonic() - self._started
        self._say(f"Done in {seconds:.0f} s: both results are the processor's own, and nothing is left behind.")

    # -- the steps

    def _toolchain(self) -> Toolchain:
        return find_toolchain()

    def _start_cluster(self) -> None:
        self._step("Start a cluster: a scheduler and three nodes, the last of them without a GPU.")
        self._farbus("up", "--detach", "--quiet")

    def _show_cluster(self) -> None:
        self._step("What is there?")
        self._farbus("nodes")
        self._farbus("devices")
        self._devices = [device["device"]["id"] for device in self._ask("devices")]
        _expect(len(self._devices) == 3, f"the cluster has {len(self._devices)} devices where 3 were to be")

    def _compile(self, toolchain: Toolchain) -> None:
        self._step("Compile two ordinary CUDA programs: nothing in them knows of Farbus.")
        for source in SOURCES:
            shutil.copy(self._programs / source, self._work)
            program = Path(source).stem
            self._show_command(toolchain.command(source, program))
            toolchain.compile(self._work / source, self._work / program)

    def _run_job(self) -> None:
        self._step("Submit one as a job to gamma, the node without a GPU.")
        (self._work / "job.toml").write_text(JOB)
        self._show_command(["cat", "job.toml"])
        for line in JOB.splitlines():
            print(f"  {line}")  # noqa: T201
        self._farbus("submit", "job.toml", "--check")
        job_id = self._farbus("submit", "job.toml").stdout.strip()
        self._wait_until_running(job_id)
        self._step("While it runs: where is it and why, who holds which device?")
        self._farbus("explain", job_id)
        self._farbus("leases")
        self._farbus("devices")
        leases = self._ask("leases")
        _expect(
            [lease["lease"]["client_node"] for lease in leases] == ["gamma"]
            and leases[0]["lease"]["device_node"] != "gamma",
            "the job's lease is not one of a device of another node for gamma",
        )
        self._step("Follow its output: heat spreads in a plate; at the end each cell must be as the processor has it.")
        output = self._farbus("logs", "--follow", job_id).stdout
        _expect("CORRECT: all" in output, "the job did not report a correct result")
        self._wait_until_ended(job_id)
        self._farbus("jobs", "--all")
        (job,) = self._ask("jobs", job_id)
        _expect(job["state"] == "succeeded", f"the job is {job['state']}, not succeeded")

    def _run_here(self) -> None:
        self._step("Run the other one in this terminal, as on gamma.  Its GPU is in another node again.")
        output = self._farbus("run", "--gpus", "1", "--", "./saxpy").stdout
        _expect("CORRECT: all" in output, "saxpy did not report a correct result")

    def _give_back(self) -> None:
        self._step("The devices are free again.")
        deadline = time.monotonic() + STARTS_WITHIN_S
        while any(device["state"] != "free" for device in self._ask("devices")):
            if time.monotonic() > deadline:
                raise TimedOut("a device is still not free")
            time.sleep(LOOK_EVERY_S)
        self._farbus("devices")
        self._farbus("leases")

    def _stop(self) -> None:
        self._step("Stop everything.")
        try:
            self._farbus("down")
            self._look_for_leftovers()
        finally:
            self._remove(force=False)

    # -- helpers

    def _say(self, text: str) -> None:
        print(f"\033[1m{text}\033[0m" if self._colours else text, flush=True)  # noqa: T201

    def _step(self, text: str) -> None:
        if self._terminal:
            time.sleep(READING_PAUSE_S)
        print()  # noqa: T201
        self._say(f"# {text}")

    def _show_command(self, command: Sequence[str]) -> None:
        words = [Path(command[0]).name if shutil.which(Path(command[0]).name) == command[0] else command[0]]
        text = shlex.join([*words, *command[1:]])
        print(f"\033[36m$ {text}\033[0m" if self._colours else f"$ {text}", flush=True)  # noqa: T201

    def _farbus(self, *arguments: str) -> Finished:
        """Run a farbus command where the newcomer sees it; raise where it fails."""
        self._show_command(["farbus", *arguments])
        done = run_showing(
            [sys.executable, "-P", "-m", "farbus.cli", *arguments],
            environment=self._environment,
            cwd=self._work,
            show=lambda line: print(f"  {line}", flush=True),  # noqa: T201
        )
        if done.code:
            lines = done.stdout.strip().splitlines()
            reason = lines[-1].removeprefix("farbus: ") if lines else f"exit code {done.code}"
            raise FarbusError(f"farbus {shlex.join(arguments)}: {reason}")
        return done

    def _ask(self, *arguments: str) -> list[dict[str, Any]]:
        """Ask for a listing without showing it, to check what was shown."""
        done = run_tool(
            [sys.executable, "-P", "-m", "farbus.cli", *arguments, "-o", "json"], environment=self._environment
        )
        if done.code:
            raise FarbusError(f"farbus {shlex.join(arguments)}: {done.stderr.strip().removeprefix('farbus: ')}")
        listing: list[dict[str, Any]] = json.loads(done.stdout)
        return listing

    def _wait_until_running(self, job_id: str) -> None:
        self._wait_for_state(job_id, {"running"})

    def _wait_until_ended(self, job_id: str) -> None:
        self._wait_for_state(job_id, {"succeeded", "failed", "cancelled"})

    def _wait_for_state(self, job_id: str, states: set[str]) -> None:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            (job,) = self._ask("jobs", job_id)
            if job["state"] in states:
                return
            if job["state"] in ("failed", "cancelled"):
                raise FarbusError(f"the job {job['state']}: {job['reason']}")
            if time.monotonic() > deadline:
                raise TimedOut(f"job {job_id} is still {job['state']} after {STARTS_WITHIN_S:g} s")
            time.sleep(LOOK_EVERY_S)

    def _look_for_leftovers(self) -> None:
        left = [f"process {pid}" for pid in processes_naming(str(self._place))]
        left += [str(path) for path in self._place.iterdir() if path != self._work]
        for device in self._devices:
            board = SHARED_MEMORY / f"farbus-softgpu-{device.removeprefix('GPU-')}"
            left += [str(board)] if board.exists() else []
        _expect(not left, f"left behind: {', '.join(left)}")
        print("  no process, no socket, no shared memory, no file is left")  # noqa: T201

    def _keep_logs(self) -> None:
        logs = self._place / "farbus" / "up" / "state" / "logs"
        if logs.is_dir():
            with contextlib.suppress(OSError):
                shutil.copytree(logs, KEPT_LOGS, dirs_exist_ok=True)
                print(f"farbus: the cluster's logs are in {KEPT_LOGS}", file=sys.stderr)  # noqa: T201

    def _remove(self, *, force: bool) -> None:
        if force:
            with contextlib.suppress(FarbusError):
                for arguments in (("down",), ("down", "--force")):
                    if runtime.lock_holder(self._place / "farbus") is not None:
                        run_tool([sys.executable, "-P", "-m", "farbus.cli", *arguments], environment=self._environment)
        shutil.rmtree(self._place, ignore_errors=True)


def _expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise FarbusError(f"the demo went wrong: {otherwise}", hint="please report it with the logs in .demo")


def _find_programs(chosen: str) -> Path:
    """Return the directory of the demo's CUDA programs: chosen, or where they are in a checkout."""
    place = Path(chosen) if chosen else package_root() / "tests" / "programs" / "demo"
    if not all((place / source).is_file() for source in SOURCES):
        raise NotFound(
            f"{place}: {' and '.join(SOURCES)} are not there", hint="run farbus demo in a checkout, or give --programs"
        )
    return place
