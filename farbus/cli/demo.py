"""The guided tour: a CUDA program on a node without a GPU, step by step, every result checked.

It runs in a directory of its own under /tmp, which it also makes the runtime
directory, so that a ``farbus up`` of the same user is not disturbed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import stat
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

PLACES = Path("/tmp")  # noqa: S108 - sockets want a short path
"""Where each demo makes a directory of its own, which it holds locked."""

PREFIX = "farbus-demo-"

ENDS_WITHIN_S = 10.0
"""How long what has been killed may take to be gone."""

KEPT_LOGS = Path(".demo") / "logs"
"""Where the cluster's logs go when a step fails."""


class Tour:
    """One run of the demo."""

    def __init__(self, *, programs: str = "") -> None:
        self._programs = _find_programs(programs)
        self._place, self._lock = _make_place()
        self._work = self._place / "work"
        self._environment = _environment_in(self._place)
        # Named, since an agent of this machine would be found first.
        self._environment["FARBUS_SOCKET"] = str(self._place / "farbus" / "up" / "sockets" / "gamma.sock")
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
            for left in end_killed_demos():
                self._say(f"A demo that was killed had left its cluster and {left}: both are gone.")
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
        (place,) = self._wait_until_begun(job_id)["placements"]
        _expect(
            place["node"] == "gamma" and [device["node"] != "gamma" for device in place["devices"]] == [True],
            "the job was not placed on gamma with one device of another node",
        )
        self._step("While it runs: where is it and why, who holds which device?")
        self._farbus("explain", job_id)
        self._farbus("leases")
        self._farbus("devices")
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

    def _wait_until_begun(self, job_id: str) -> dict[str, Any]:
        # On a busy machine commands take seconds each: the job may be over when it is looked at.
        return self._wait_for_state(job_id, {"running", "finishing", "succeeded"})

    def _wait_until_ended(self, job_id: str) -> None:
        self._wait_for_state(job_id, {"succeeded", "failed", "cancelled"})

    def _wait_for_state(self, job_id: str, states: set[str]) -> dict[str, Any]:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            (job,) = self._ask("jobs", job_id)
            if job["state"] in states:
                return job
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
        # Once begun, this goes on to its end: a second signal would leave the cluster running.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if force:
            _end_cluster(self._place, self._environment)
        shutil.rmtree(self._place, ignore_errors=True)
        os.close(self._lock)


def is_of_demo(directory: Path) -> bool:
    """Say whether a runtime directory is that of a demo, which stops its own cluster and no other's."""
    return directory.parent.parent == PLACES and directory.parent.name.startswith(PREFIX)


def end_killed_demos() -> list[Path]:
    """End the clusters of this user's demos that were killed, and remove their directories, which are returned."""
    ended = []
    for place in sorted(PLACES.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            facts = place.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
                continue
            handle = _lock_place(place)
            if handle is None:
                continue
            _end_cluster(place, _environment_in(place))
            shutil.rmtree(place, ignore_errors=True)
            os.close(handle)
            ended.append(place)
    return ended


def _make_place() -> tuple[Path, int]:
    """Make a demo's directory; return it and the descriptor that locks it."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACES))
        handle = _lock_place(place)
        # Another demo may have come between, and taken it for one that is left.
        if handle is not None and os.fstat(handle).st_nlink:
            return place, handle
        if handle is not None:
            os.close(handle)


def _lock_place(place: Path) -> int | None:
    """Lock a demo's directory for as long as this process lives; None where the demo itself does, or it is gone."""
    try:
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _environment_in(place: Path) -> dict[str, str]:
    """Return the environment of commands whose runtime directory is ``place``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FARBUS_")}
    environment["XDG_RUNTIME_DIR"] = str(place)
    environment["PYTHONPATH"] = ":".join(filter(None, [str(package_root()), os.environ.get("PYTHONPATH", "")]))
    return environment


def _end_cluster(place: Path, environment: dict[str, str]) -> None:
    """Stop the ``farbus up`` of ``place`` if there is one, and kill whatever else names the directory."""
    with contextlib.suppress(FarbusError):
        for arguments in (("down",), ("down", "--force")):
            if arguments == ("down",) or runtime.lock_holder(place / "farbus") is not None:
                run_tool([sys.executable, "-P", "-m", "farbus.cli", *arguments], environment=environment)
    # A cluster that was only about to start has no lock yet.
    deadline = time.monotonic() + ENDS_WITHIN_S
    while (left := processes_naming(str(place))) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_EVERY_S)


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
