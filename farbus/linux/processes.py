"""The process door: programs that start whole, are ended whole, and outlive no agent.

Every program runs under a guard of its own (:mod:`farbus.linux.guard`), which
drops privileges, sets limits and kills the program with all its descendants
when it is told to, or when the agent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from farbus.errors import ExitCode, FarbusError, InvalidInput, NotPermitted, Unavailable
from farbus.linux.users import Account

GUARD = Path(__file__).with_name("guard.py")

OUTPUT_PIECE_BYTES = 64 * 1024
OUTPUT_QUEUE_LENGTH = 8
"""Pieces of output that wait for their reader; a program that writes faster waits, as at any pipe."""

START_TIMEOUT_S = 30.0
"""Longest that fork, identity, directory and exec may take: a dead network file system can hold exec for ever."""

OUTPUT_DRAIN_S = 2.0
"""How long output is still read after the guard has killed everything that could write it."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to start.

    ``environment`` is the whole environment; ``argv[0]`` is searched in its
    PATH.  ``account`` is whom to become; ``None`` stays who the agent is.
    ``limits`` are names of the resource module (``RLIMIT_NOFILE``) with soft
    and hard value in one, lowered to the hard limit there is.  ``cgroup`` is
    the directory of the cgroup to run in, or empty.  ``keep`` are descriptors
    that the program inherits, under the same numbers.
    """

    what: str
    """Names it in process listings: ``task j1/main.0``."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str = "/"
    account: Account | None = None
    umask: int = 0o022
    limits: Mapping[str, int] = {}
    cgroup: str = ""
    keep: tuple[int, ...] = ()


class Child(Protocol):
    """A program that runs, or has run."""

    @property
    def pid(self) -> int:
        """The program's process id (not the guard's)."""
        ...

    async def read_output(self) -> tuple[int, bytes] | None:
        """Return the next piece as (1 for standard output or 2 for error, data); None at the end of both."""
        ...

    async def wait(self) -> int:
        """Return the exit code, negative for a signal, once the program and all its descendants are gone."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group; nothing happens when it has ended."""
        ...

    def kill(self) -> None:
        """Kill the program and all its descendants; :meth:`wait` tells when they are gone."""
        ...

    def memory_bytes(self) -> int:
        """Return the memory of the program and its descendants.

        Proportional set size (shared pages counted once), resident where that can't be read.
        """
        ...


class Processes(Protocol):
    """Starts programs."""

    async def spawn(self, program: Program) -> Child:
        """Start ``program``; return once exec has worked.

        Raises a :class:`FarbusError` that says what failed (no such program,
        not executable, wrong architecture, no such directory, identity), with
        the exit code that shells use for it.
        """
        ...

    def remains(self) -> Sequence[Remains]:
        """List guards of this owner that are not children of this process: what a dead agent left."""
        ...

    def end(self, remains: Remains) -> None:
        """Kill what a dead agent left."""
        ...


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """A guard left by an agent that died: its process id, when it started, what it guards."""

    pid: int
    started_at: float
    what: str


def start_error(program: Program, *, stage: str, number: int, text: str = "") -> FarbusError:
    """Say in one line why a program could not be started, with the exit code that shells use."""
    reason = os.strerror(number) if number else text
    name = program.argv[0]
    if stage == "program":
        if number == errno.ENOENT:
            error: FarbusError = InvalidInput(
                f"{name}: no such program", hint=f"give a path from {program.cwd} or one in PATH"
            )
            return error.with_exit_code(ExitCode.COMMAND_NOT_FOUND)
        if number == errno.ENOEXEC:
            error = InvalidInput(
                f"{name}: built for another architecture than {os.uname().machine}, or a script without #!"
            )
            return error.with_exit_code(ExitCode.NOT_EXECUTABLE)
        if number in (errno.EACCES, errno.EPERM):
            error = InvalidInput(f"{name}: not executable", hint="chmod +x it, and check the directories on its path")
            return error.with_exit_code(ExitCode.NOT_EXECUTABLE)
        return InvalidInput(f"{name}: {reason}").with_exit_code(ExitCode.RUN_FAILED)
    if stage == "directory":
        who = f" as {program.account.name}" if program.account else ""
        return InvalidInput(
            f"working directory {program.cwd}{who}: {reason}", hint="choose one that exists on the node"
        ).with_exit_code(ExitCode.RUN_FAILED)
    if stage == "identity" and program.account is not None:
        return NotPermitted(
            f"become {program.account.name}: {reason}",
            hint="run the agent as root, or with run_as_self for its own user only",
        ).with_exit_code(ExitCode.RUN_FAILED)
    return Unavailable(f"start {name}: {stage}: {reason}").with_exit_code(ExitCode.RUN_FAILED)


class GuardedChild:
    """A program under a real guard."""

    def __init__(self, guard: asyncio.subprocess.Process, pid: int, outputs: Sequence[asyncio.StreamReader]) -> None:
        self._guard = guard
        self._pid = pid
        self._pieces: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(OUTPUT_QUEUE_LENGTH)
        self._open_outputs = len(outputs)
        self._readers = [
            asyncio.create_task(self._read(stream, reader), name=f"output {stream} of {pid}")
            for stream, reader in enumerate(outputs, start=1)
        ]
        self._exit = asyncio.create_task(self._collect(), name=f"exit of {pid}")

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._pid

    async def _read(self, stream: int, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(OUTPUT_PIECE_BYTES):
                await self._pieces.put((stream, data))
        finally:
            self._open_outputs -= 1
            if not self._open_outputs:
                await self._pieces.put(None)

    async def _collect(self) -> int:
        assert self._guard.stdout is not None
        line = await self._guard.stdout.readline()
        await self._guard.wait()
        if line:
            return int(json.loads(line)["code"])
        # The guard itself was killed; the program died with it (PR_SET_PDEATHSIG).
        return -9

    async def read_output(self) -> tuple[int, bytes] | None:
        """Return the next piece of output, None at the end."""
        piece = await self._pieces.get()
        if piece is None:
            self._pieces.put_nowait(None)
        return piece

    async def wait(self) -> int:
        """Return the exit code once everything is gone."""
        code = await asyncio.shield(self._exit)
        # All writers are dead, unless one has escaped the guard: then the rest is given up.
        pending = [reader for reader in self._readers if not reader.done()]
        if pending and self._pieces.empty():
            await asyncio.wait(pending, timeout=OUTPUT_DRAIN_S)
        return code

    def _tell(self, line: bytes) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._guard.stdin.write(line)

    def signal(self, number: int) -> None:
        """Send a signal to the program's group."""
        self._tell(b"signal %d\n" % number)

    def kill(self) -> None:
        """Kill the program and its descendants."""
        self._tell(b"kill\n")

    def memory_bytes(self) -> int:
        """Return the memory of the guard's descendants."""
        total = 0
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._guard.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    try:
                        total += process.memory_full_info().pss
                    except psutil.AccessDenied:
                        total += process.memory_info().rss
        return total


class GuardedProcesses:
    """The machine's processes.

    ``owner`` marks what this agent started, in the guards' command lines;
    ``mark`` does so in the environment of all of it.
    """

    def __init__(self, *, owner: str, mark: Mapping[str, str] | None = None) -> None:
        self.owner = owner
        self.mark = dict(mark or {})

    async def spawn(self, program: Program) -> Child:
        """Start ``program`` under a guard."""
        if not program.argv or not program.argv[0]:
            raise InvalidInput(f"{program.what}: there is no command to run")
        specification = {
            "argv": program.argv,
            "environment": {**self.mark, **program.environment},
            "cwd": program.cwd,
            "uid": program.account.uid if program.account else None,
            "gid": program.account.gid if program.account else None,
            "groups": program.account.groups if program.account else [],
            "umask": program.umask,
            "limits": dict(program.limits),
            "cgroup": program.cgroup,
            "keep": program.keep,
        }
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for _ in range(2):
                read_end, write_end = os.pipe()
                ours.append(read_end)
                theirs.append(write_end)
            guard = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(GUARD), self.owner, program.what,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                pass_fds=(*theirs, *program.keep), start_new_session=True, close_fds=True, cwd="/",
                # None of the agent's own environment: it may hold what the program's user must not see.
                env={"LC_ALL": "C.UTF-8", **self.mark},
            )  # fmt: skip
        except OSError as error:
            for descriptor in ours:
                os.close(descriptor)
            raise Unavailable(f"start a guard for {program.what}: {error.strerror}") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        assert guard.stdin is not None
        assert guard.stdout is not None
        outputs = [await _reader(descriptor) for descriptor in ours]
        line = json.dumps({**specification, "stdout": theirs[0], "stderr": theirs[1]}).encode() + b"\n"
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                guard.stdin.write(line)
                with contextlib.suppress(ConnectionError):
                    await guard.stdin.drain()
                answer = await guard.stdout.readline()
        except TimeoutError as error:
            kill_process(guard)
            raise Unavailable(
                f"start {program.argv[0]}: not started after {START_TIMEOUT_S:g} s",
                hint=f"is the file system of {program.cwd} there?",
            ) from error
        except asyncio.CancelledError:
            kill_process(guard)
            raise
        if not answer:
            raise Unavailable(f"start {program.argv[0]}: its guard died")
        message = json.loads(answer)
        if message["event"] == "failed":
            await guard.wait()
            raise start_error(program, stage=message["stage"], number=message["errno"], text=message.get("text", ""))
        return GuardedChild(guard, message["pid"], outputs)

    def remains(self) -> Sequence[Remains]:
        """List this owner's guards whose agent is gone."""
        mine = os.getpid()
        found = []
        for process in psutil.process_iter(["cmdline", "ppid", "create_time"]):
            line = process.info["cmdline"] or []
            if len(line) < 6 or line[3:5] != [str(GUARD), self.owner] or process.info["ppid"] == mine:
                continue
            found.append(Remains(pid=process.pid, started_at=process.info["create_time"], what=line[5]))
        return found

    def end(self, remains: Remains) -> None:
        """Kill a guard's descendants and the guard, if it is still the same process."""
        with contextlib.suppress(psutil.Error):
            guard = psutil.Process(remains.pid)
            if guard.create_time() != remains.started_at:
                return
            for process in [*guard.children(recursive=True), guard]:
                with contextlib.suppress(psutil.Error):
                    process.kill()


def kill_process(process: asyncio.subprocess.Process) -> None:
    """Kill a child that may have ended already.

    Not by its own kill(): in CPython 3.11 that looks with waitpid first, and so
    takes the exit code away from the event loop, which then reports 255.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=OUTPUT_PIECE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader


Script = Callable[["FakeChild"], Awaitable[int]]
"""A fake program: writes output, waits for signals, returns its exit code."""


class FakeChild:
    """A program that is a coroutine."""

    def __init__(self, program: Program, script: Script, pid: int) -> None:
        self.program = program
        self._pid = pid
        self._pieces: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self.memory = 0
        self._task = asyncio.create_task(self._run(script), name=f"fake {program.what}")

    async def _run(self, script: Script) -> int:
        try:
            return await script(self)
        except asyncio.CancelledError:
            return -9
        finally:
            self._pieces.put_nowait(None)

    @property
    def pid(self) -> int:
        """An invented process id."""
        return self._pid

    def write(self, data: bytes, *, stream: int = 1) -> None:
        """Write output, for scripts."""
        self._pieces.put_nowait((stream, data))

    async def next_signal(self) -> int:
        """Wait for a signal, for scripts."""
        return await self._signals.get()

    async def read_output(self) -> tuple[int, bytes] | None:
        """Return the next piece of output, None at the end."""
        piece = await self._pieces.get()
        if piece is None:
            self._pieces.put_nowait(None)
        return piece

    async def wait(self) -> int:
        """Return the script's exit code."""
        return await asyncio.shield(self._task)

    def signal(self, number: int) -> None:
        """Queue a signal for the script."""
        self._signals.put_nowait(number)

    def kill(self) -> None:
        """Cancel the script."""
        self._task.cancel()

    def memory_bytes(self) -> int:
        """Return what the test has set."""
        return self.memory


class FakeProcesses:
    """Processes that are scripts by name: ``FakeProcesses({"sleep": script})``."""

    def __init__(self, scripts: Mapping[str, Script] | None = None, *, directories: Sequence[str] = ("/",)) -> None:
        self.scripts = dict(scripts or {})
        self.directories = set(directories)
        self.spawned: list[FakeChild] = []
        self.left: list[Remains] = []
        self.ended: list[Remains] = []

    async def spawn(self, program: Program) -> Child:
        """Run the script of ``argv[0]``."""
        if not program.argv or not program.argv[0]:
            raise InvalidInput(f"{program.what}: there is no command to run")
        if program.cwd not in self.directories:
            raise start_error(program, stage="directory", number=errno.ENOENT)
        script = self.scripts.get(program.argv[0])
        if script is None:
            raise start_error(program, stage="program", number=errno.ENOENT)
        child = FakeChild(program, script, 100_000 + len(self.spawned))
        self.spawned.append(child)
        # A started script runs up to its first wait, as exec'd programs do before their parent looks.
        await asyncio.sleep(0)
        return child

    def remains(self) -> Sequence[Remains]:
        """Return what the test has left."""
        return list(self.left)

    def end(self, remains: Remains) -> None:
        """Forget one."""
        self.left.remove(remains)
        self.ended.append(remains)
