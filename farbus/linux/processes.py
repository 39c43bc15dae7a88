"""The process door: programs that start whole, are ended whole, and outlive the agent that started them.

What a program is and how it is spoken to; :mod:`farbus.linux.kept` has the
real thing, a keeper for each program (:mod:`farbus.linux.keeper`), and here is
its fake.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from farbus.errors import Conflict, ExitCode, FarbusError, InvalidInput, NotPermitted, Unavailable
from farbus.linux.clock import Clock, FakeClock
from farbus.linux.keeper import NOTICE_STREAM, TIME_LIMIT_GRACE_S, OutputLog
from farbus.linux.output import START, Piece, Position
from farbus.linux.users import Account
from farbus.model.nvmeof import IoLimit

OUTPUT_BYTES = 2**20
"""Output kept of a program that nobody wants more of."""


class DeviceLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What a program may do with a block device, by a path and by the kernel's ``MAJOR:MINOR``."""

    path: str
    number: str
    limit: IoLimit


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to start.

    ``name`` names it on this node, and its directory: letters, digits and
    ``_.-``.  ``environment`` is the whole environment; ``argv[0]`` is searched
    in its PATH.  ``account`` is whom to become; ``None`` stays who the agent
    is.  ``limits`` are names of the resource module (``RLIMIT_NOFILE``) with
    soft and hard value in one, lowered to the hard limit there is.  ``cgroup``
    is the directory of the cgroup to run in, or empty.  ``keep`` are
    descriptors that the program inherits, under the same numbers.

    ``output`` is the directory that gets what it writes, at most
    ``output_bytes``, the oldest going first; empty for one that goes with the
    program.  After ``time_limit_s``, and when no agent has been connected for
    ``orphan_limit_s``, its keeper ends it (0: never).  ``memory_bytes`` and
    ``cpu_milli`` (0: no limit) are kept by the service manager where programs
    have units of their own; elsewhere ``cgroup`` does it.
    """

    name: str
    what: str
    """Names it to people: ``task j1/main.0``."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str = "/"
    account: Account | None = None
    umask: int = 0o022
    limits: Mapping[str, int] = {}
    cgroup: str = ""
    keep: tuple[int, ...] = ()
    output: str = ""
    output_bytes: int = OUTPUT_BYTES
    time_limit_s: float = 0.0
    orphan_limit_s: float = 0.0
    memory_bytes: int = 0
    cpu_milli: int = 0
    io_limits: tuple[DeviceLimit, ...] = ()
    """What it may do with block devices; kept by the service manager where programs have units, else by ``cgroup``."""
    memory_reason: str = "it used more memory than it asked for"
    """Why it ended, when the kernel has killed it for its memory."""


class Exit(msgspec.Struct, frozen=True):
    """How a program ended: its exit code, negative for a signal, and why it was ended, if it was."""

    code: int
    reason: str = ""


class Child(Protocol):
    """A program that runs, or has run and is not yet forgotten."""

    @property
    def name(self) -> str:
        """The program's name."""
        ...

    @property
    def pid(self) -> int:
        """The program's process id (not its keeper's); 0 when that is not known any more."""
        ...

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as this process has heard."""
        ...

    def output(
        self, *, position: Position = START, follow: bool = True, turn: asyncio.Lock | None = None
    ) -> AsyncGenerator[Piece, None]:
        """Yield its output from ``position`` on, by default from the oldest that is kept; ``follow``ed to its end.

        Who reads the output of many gives all of them one ``turn``: who has it has some of its output in memory.
        """
        ...

    def heard_until(self) -> Position:
        """Return what :meth:`note_heard` noted last, also before this process; else the end of its output now."""
        ...

    def note_heard(self, position: Position) -> None:
        """Note how far its output is heard, for whoever follows this process; one that can't be written is left."""
        ...

    async def wait(self) -> Exit:
        """Return how it ended, once the program and all its descendants are gone and its output is complete."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group; nothing happens when it has ended."""
        ...

    def end(self, *, grace_s: float, reason: str) -> None:
        """End it: SIGTERM to its group, after ``grace_s`` SIGKILL to all of it, whatever becomes of the agent."""
        ...

    def kill(self, reason: str = "") -> None:
        """Kill the program and all its descendants; :meth:`wait` tells when they are gone."""
        ...

    def note(self, text: str) -> None:
        """Add a line of Farbus's own to the output of a running program."""
        ...

    def resident_bytes(self) -> int:
        """Return the resident memory of the program and its descendants: at least :meth:`memory_bytes`, at once."""
        ...

    async def memory_bytes(self) -> int:
        """Return the memory of the program and its descendants.

        Proportional set size (shared pages counted once), resident where that
        can't be read.  Takes some 150 ms of processor time; raises
        :class:`FarbusError` where the kernel does not answer.
        """
        ...

    def forget(self) -> None:
        """Remove what is kept of a program that has ended: its status is safe elsewhere."""
        ...


class Processes(Protocol):
    """Starts programs, and finds those that an earlier agent has started."""

    @property
    def limits_memory(self) -> bool:
        """Whether ``memory_bytes`` of a program is enforced."""
        ...

    async def spawn(self, program: Program) -> Child:
        """Start ``program``; return once exec has worked.

        Raises a :class:`FarbusError` that says what failed (no such program,
        not executable, wrong architecture, no such directory, identity), with
        the exit code that shells use for it.
        """
        ...

    async def survivors(self, prefix: str = "") -> Sequence[Child]:
        """Return the programs of an earlier agent whose names begin with ``prefix``.

        They are connected to: those that run, and those that have ended and
        are not forgotten.  What a killed keeper has left is killed first.
        """
        ...

    async def close(self) -> None:
        """Leave what runs: it goes on, for the next agent to find."""
        ...


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
        if number == errno.EISDIR:
            error = InvalidInput(f"{name}: a directory, not a program", hint="name a program in it")
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


def kill_process(process: asyncio.subprocess.Process) -> None:
    """Kill a child that may have ended already.

    Not by its own kill(): in CPython 3.11 that looks with waitpid first, and so
    takes the exit code away from the event loop, which then reports 255.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


Script = Callable[["FakeChild"], Awaitable[int]]
"""A fake program: writes output, waits for signals, returns its exit code."""


class FakeChild:
    """A program that is a coroutine."""

    def __init__(self, program: Program, script: Script, pid: int, door: FakeProcesses) -> None:
        self.program = program
        self._pid = pid
        self._door = door
        self._pieces: list[Piece] = []
        self._log = OutputLog(program.output, limit_bytes=program.output_bytes) if program.output else None
        self._changed = asyncio.Event()
        self._heard: Position | None = None
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._reason = ""
        self._exit: Exit | None = None
        self.memory = 0
        self.shared_memory = 0
        """What of it counts more than once."""
        self._task = asyncio.create_task(self._run(script), name=f"fake {program.what}")
        self._timers: list[asyncio.Task[None]] = []
        if program.time_limit_s:
            self._timers.append(asyncio.create_task(self._limit(program.time_limit_s)))

    async def _run(self, script: Script) -> Exit:
        try:
            code = await script(self)
        except asyncio.CancelledError:
            code = -9
        for timer in self._timers:
            timer.cancel()
        if self._reason:
            self.write(f"farbus: stopped: {self._reason}\n".encode(), stream=NOTICE_STREAM)
        if self._log is not None:
            self._log.close()
        self._exit = Exit(code, self._reason)
        self._changed.set()
        return self._exit

    async def _limit(self, seconds: float) -> None:
        await self._door.clock.sleep(seconds)
        self.end(grace_s=TIME_LIMIT_GRACE_S, reason=f"it has run for its time limit of {seconds:g} s")

    async def _kill_later(self, seconds: float) -> None:
        await self._door.clock.sleep(seconds)
        self._task.cancel()

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name

    @property
    def pid(self) -> int:
        """An invented process id."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the script has not ended."""
        return self._exit is None

    def write(self, data: bytes, *, stream: int = 1) -> None:
        """Write output, for scripts."""
        self._pieces.append(Piece(stream, data, Position(1, len(self._pieces) + 1)))
        if self._log is not None:
            self._log.append(stream, data)
        self._changed.set()
        self._changed = asyncio.Event()

    async def next_signal(self) -> int:
        """Wait for a signal, for scripts."""
        return await self._signals.get()

    async def output(
        self, *, position: Position = START, follow: bool = True, turn: asyncio.Lock | None = None
    ) -> AsyncGenerator[Piece, None]:
        """Yield what was written; all of it is in memory."""
        at = position.offset
        while True:
            ended, changed = self._exit is not None, self._changed
            while at < len(self._pieces):
                at += 1
                yield self._pieces[at - 1]
            if ended or not follow:
                return
            if self._exit is None:
                await changed.wait()

    def heard_until(self) -> Position:
        """Return what was noted, else the end of what was written."""
        return self._heard or Position(1, len(self._pieces))

    def note_heard(self, position: Position) -> None:
        """Note it, for as long as this child is there."""
        self._heard = position

    async def wait(self) -> Exit:
        """Return the script's exit code."""
        return await asyncio.shield(self._task)

    def signal(self, number: int) -> None:
        """Queue a signal for the script."""
        self._signals.put_nowait(number)

    def end(self, *, grace_s: float, reason: str) -> None:
        """Queue a SIGTERM, and cancel the script when the clock says so."""
        if self._exit is not None:
            return
        self._reason = self._reason or reason
        if grace_s > 0:
            self.signal(signal.SIGTERM)
            self._timers.append(asyncio.create_task(self._kill_later(grace_s)))
        else:
            self._task.cancel()

    def kill(self, reason: str = "") -> None:
        """Cancel the script."""
        self.end(grace_s=0.0, reason=reason)

    def note(self, text: str) -> None:
        """Add to the output."""
        if self._exit is None:
            self.write(text.encode(), stream=NOTICE_STREAM)

    def resident_bytes(self) -> int:
        """Return what the test has set."""
        return self.memory

    async def memory_bytes(self) -> int:
        """Return what the test has set."""
        return self.memory - self.shared_memory

    def forget(self) -> None:
        """Let the door forget it."""
        self._door.children.pop(self.name, None)


class FakeProcesses:
    """Processes that are scripts by name: ``FakeProcesses({"sleep": script})``.

    They outlive the agent that is given this door: the next one may be given
    it too, after :meth:`restart`.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script] | None = None,
        *,
        directories: Sequence[str] = ("/",),
        clock: Clock | None = None,
        limits_memory: bool = False,
    ) -> None:
        self.scripts = dict(scripts or {})
        self.directories = set(directories)
        self.clock = clock or FakeClock()
        self.limits_memory = limits_memory
        self.spawned: list[FakeChild] = []
        self.children: dict[str, FakeChild] = {}
        self._known: set[str] = set()

    async def spawn(self, program: Program) -> Child:
        """Run the script of ``argv[0]``."""
        if not program.argv or not program.argv[0]:
            raise InvalidInput(f"{program.what}: there is no command to run")
        if program.name in self.children:
            raise Conflict(f"{program.what}: it is there already")
        if program.cwd not in self.directories:
            raise start_error(program, stage="directory", number=errno.ENOENT)
        script = self.scripts.get(program.argv[0])
        if script is None:
            raise start_error(program, stage="program", number=errno.ENOENT)
        child = FakeChild(program, script, 100_000 + len(self.spawned), self)
        self.spawned.append(child)
        self.children[program.name] = child
        self._known.add(program.name)
        # A started script runs up to its first wait, as exec'd programs do before their parent looks.
        await asyncio.sleep(0)
        return child

    async def survivors(self, prefix: str = "") -> Sequence[Child]:
        """Return the children of before the last restart."""
        found = [child for name, child in self.children.items() if name.startswith(prefix) and name not in self._known]
        self._known |= {child.name for child in found}
        return found

    def restart(self) -> None:
        """Let this be the door of another agent."""
        self._known.clear()

    async def close(self) -> None:
        """Leave what runs."""
        self.restart()
