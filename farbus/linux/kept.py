"""Programs under keepers: started, found again by the next agent, and ended when their keeper was killed.

A keeper (:mod:`farbus.linux.keeper`) is a process of its own for each program,
in a directory of its own.  Where the service manager starts programs, each
keeper is a transient service; elsewhere it is a process that has
no parent.  The code on both sides is the same.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from farbus.errors import Conflict, FarbusError, InvalidInput, TimedOut, Unavailable
from farbus.linux import keeper
from farbus.linux.disposable import run_disposable
from farbus.linux.keeper import LINE_BYTES, MARK, VERSION
from farbus.linux.limits import inherited_descriptor_limit
from farbus.linux.output import START, Piece, Position, end_of, read_pieces
from farbus.linux.processes import Child, Exit, Program, kill_process, start_error
from farbus.linux.remnants import (
    KILL_WITHIN_S,
    Plan,
    ask_to_end,
    boot_id,
    may_have_begun,
    read_struct,
    saved_exit,
    short_path,
    was_started,
)
from farbus.linux.side_by_side import side_by_side
from farbus.linux.spawning import spawn
from farbus.linux.sweeper import Sweeper
from farbus.linux.usage import memory_bytes_below, resident_bytes_below

SLICE = "farbus-programs.slice"
"""Where the units of programs are: apart from the agent's own unit, which may be stopped."""

START_TIMEOUT_S = 90.0
"""Longest that fork, identity, directory and exec may take: a dead network file system can hold exec for ever.

A keeper is a Python of its own: a second where nothing else runs, most of a minute on a node that is overcommitted."""

UNIT_STOP_S = 15.0
"""Between SIGTERM and SIGKILL where the service manager ends a program's unit: its keeper's own end takes a moment."""

ANSWER_TIMEOUT_S = 10.0
"""Longest that a keeper may take to say who it is; one that does not is taken for dead."""

FINDS_AT_ONCE = 64
"""Programs of an earlier agent that are looked for side by side: each takes a descriptor or two."""

MEMORY_TIMEOUT_S = 10.0
"""Longest for the count of a program's memory: a process that waits in the kernel may have its memory locked."""

KILLED = Exit(-signal.SIGKILL, "its keeper was killed")

HEARD = "heard.json"
"""How far a program's output is heard, in its directory."""

BACKLOG = 16

UNHEARD_LENGTH = 64
"""Signals and notes that wait for a connection to be made anew, which takes a moment; the oldest are dropped first."""


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,229}")


class KeptChild:
    """A program under a keeper, or what a keeper has left of it."""

    def __init__(self, directory: Path, plan: Plan, sweeper: Sweeper, *, pid: int = 0, keeper: int = 0) -> None:
        self._directory = directory
        self._sweeper = sweeper
        self._plan = plan
        self._pid = pid
        self._keeper = keeper
        self._output = Path(plan.output)
        self._writer: asyncio.StreamWriter | None = None
        """None while there is no connection."""
        self._unheard: deque[dict[str, Any]] = deque(maxlen=UNHEARD_LENGTH)
        """What was told meanwhile."""
        self._endings: dict[str, dict[str, Any]] = {}
        """The last end and the last kill that were told: they may have been lost with their connection."""
        self._changed = asyncio.Event()
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._listener: asyncio.Task[None] | None = None
        self.forgotten: Callable[[], object] = lambda: None
        """Hears that it was forgotten."""

    async def settle_soon(self) -> None:
        """Settle, within some time if that can be done."""
        self._listener = asyncio.create_task(self.settle(), name=f"end of {self.name}")
        await asyncio.wait({self._listener}, timeout=KILL_WITHIN_S)

    def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear what its keeper says from now on."""
        self._writer = writer
        self._listener = asyncio.create_task(self._listen(reader), name=f"keeper of {self.name}")

    def has_ended(self, ended: Exit) -> None:
        """Take note of the end."""
        if not self._ended.done():
            self._ended.set_result(ended)
        # For good: nobody waits for output any more.
        self._changed.set()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError):
                while line := await reader.readline():
                    self._hear(json.loads(line))
            assert self._writer is not None
            self._writer.close()
            self._writer = None
            if self._ended.done():
                return
            try:
                reader, self._writer, hello = await _connect(self._directory)
            except (OSError, ValueError, KeyError, TimeoutError):
                # Without a word: it was killed, or has written its word down.
                await self.settle()
                return
            # It was too slow to hear us out, or we were.  What it has said meanwhile is not known.
            self._hear({"event": "output"})
            if hello["state"] == "ended":
                self._hear({**hello, "event": "exited"})
            self._tell_again(hello)

    def _tell_again(self, hello: dict[str, Any]) -> None:
        """Tell a keeper, which has greeted with ``hello`` after its connection was made anew, what it may not know."""
        unheard, endings = list(self._unheard), dict(self._endings)
        self._unheard.clear()
        for message in unheard:
            self._tell(**message)
        for do, message in endings.items():
            # An end that was heard has left its reason; the program is not sent the same signal twice.
            if do == "kill" or not hello["reason"]:
                self._tell(**message)

    async def settle(self) -> None:
        """Find out how the program of a keeper that is gone has ended, and kill what it may have left.

        Returns only when all of it is gone: until then it may use its devices.
        """
        ended = saved_exit(self._directory, self._plan)
        if ended is None:
            await self._sweeper.sweep(self._directory, self._plan.mark)
            ended = KILLED
        self.has_ended(ended)

    def _hear(self, message: dict[str, Any]) -> None:
        if message["event"] == "output":
            self._wake()
        elif message["event"] == "exited":
            self.has_ended(Exit(int(message["code"]), str(message["reason"])))

    def _wake(self) -> None:
        self._changed.set()
        if not self._ended.done():
            self._changed = asyncio.Event()

    def _tell(self, **message: Any) -> None:
        if self._ended.done():
            return
        if message["do"] in ("end", "kill"):
            self._endings[message["do"]] = message
        elif self._writer is None and message["do"] != "watch":
            # Who waits for output asks for it again.
            self._unheard.append(message)
        if self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(json.dumps(message).encode() + b"\n")

    @property
    def name(self) -> str:
        """The program's name."""
        return self._directory.name

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._pid

    @property
    def keeper(self) -> int:
        """The keeper's process id."""
        return self._keeper

    @property
    def running(self) -> bool:
        """Whether its end has not been heard of."""
        return not self._ended.done()

    async def output(
        self, *, position: Position = START, follow: bool = True, turn: asyncio.Lock | None = None
    ) -> AsyncGenerator[Piece, None]:
        """Yield its output."""
        while True:
            # Both are taken before the files are looked at: what is written later is heard of.
            ended, changed = self._ended.done(), self._changed
            before = position
            async with turn or contextlib.nullcontext():
                for piece in read_pieces(self._output, position):
                    yield piece
                    position = piece.position
            if position != before:
                # Reading does not wait, so nothing else here gives way to others.
                await asyncio.sleep(0)
                continue
            if ended or not follow:
                return
            self._tell(do="watch", position=position)
            await changed.wait()

    def heard_until(self) -> Position:
        """Return what was noted, else where the output ends now, else its beginning: a disk that fails ends nothing."""
        try:
            noted = json.loads((self._directory / HEARD).read_bytes())
            return Position(int(noted["segment"]), int(noted["offset"]))
        except (OSError, ValueError, KeyError, TypeError):
            with contextlib.suppress(OSError):
                return end_of(self._output)
        return START

    def note_heard(self, position: Position) -> None:
        """Write it beside what the keeper has written down; after a power cut nobody asks for it."""
        temporary = self._directory / f".{HEARD}.new"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(position._asdict()))
            temporary.replace(self._directory / HEARD)

    async def wait(self) -> Exit:
        """Return how it ended."""
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """Send a signal to the program's group."""
        self._tell(do="signal", number=int(number))

    def end(self, *, grace_s: float, reason: str) -> None:
        """End the program, with grace."""
        self._tell(do="end", grace_s=grace_s, reason=reason)

    def kill(self, reason: str = "") -> None:
        """Kill the program and its descendants."""
        self._tell(do="kill", reason=reason)

    def note(self, text: str) -> None:
        """Add a line to the output."""
        self._tell(do="note", text=text)

    def resident_bytes(self) -> int:
        """Return the resident memory of the keeper's descendants; that is read without any lock."""
        return resident_bytes_below(self._keeper)

    async def memory_bytes(self) -> int:
        """Return the memory of the keeper's descendants."""
        try:
            async with asyncio.timeout(MEMORY_TIMEOUT_S):
                counted: int = await run_disposable(memory_bytes_below, self._keeper)
        except TimeoutError as error:
            raise TimedOut(
                f"{self._plan.what}: its memory is not counted after {MEMORY_TIMEOUT_S:g} s",
                hint="a process of it hangs in the kernel; see dmesg",
            ) from error
        return counted

    def forget(self) -> None:
        """Remove the directory; a keeper that has stayed, since the disk refused its status, ends."""
        if self._writer is not None and not self._writer.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(b'{"do": "forget"}\n')
        shutil.rmtree(self._directory, ignore_errors=True)
        self.leave()
        self.forgotten()

    def leave(self) -> None:
        """Let go of the keeper."""
        if self._listener is not None:
            self._listener.cancel()
        if self._writer is not None:
            self._writer.close()


class KeptProcesses:
    """The machine's programs, each under a keeper, in a directory each below ``directory``.

    ``owner`` names this agent in its keepers' command lines; ``mark`` goes
    into the environment of all that it starts.  With ``units`` each keeper
    is a transient service of the service manager (systemd-run(1)), which
    starts it: then programs inherit nothing of the agent's own sandbox.
    """

    def __init__(
        self, directory: Path, *, owner: str, mark: Mapping[str, str] | None = None, units: bool = False
    ) -> None:
        self.owner = owner
        self.mark = dict(mark or {})
        self._directory = directory
        self._units = units
        self._boot_id = boot_id()
        self._sweeper = Sweeper()
        self._children: dict[str, KeptChild] = {}

    @property
    def limits_memory(self) -> bool:
        """Whether units limit the memory of programs."""
        return self._units

    async def spawn(self, program: Program) -> Child:
        """Start ``program`` under a keeper."""
        if not program.argv or not program.argv[0]:
            raise InvalidInput(f"{program.what}: there is no command to run")
        if not _NAME.fullmatch(program.name):
            raise InvalidInput(f"{program.what}: {program.name!r} can't name a program")
        directory = self._directory / program.name
        output = program.output or str(directory / "output")
        plan = Plan(
            version=VERSION, what=program.what, mark=secrets.token_hex(16), boot_id=self._boot_id, output=output
        )
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700)
        except FileExistsError as error:
            raise Conflict(f"{program.what}: it is there already", hint=f"see {directory}") from error
        except OSError as error:
            raise Unavailable(f"make {directory}: {error.strerror}", hint="is the disk full or read-only?") from error
        starting: asyncio.subprocess.Process | None = None
        child: KeptChild | None = None
        try:
            (directory / "program.json").write_bytes(msgspec.json.encode(plan))
            starting = await self._start_keeper(program, directory, plan)
            # At once: its socket is there before the keeper is.
            child = await self._start(program, directory, plan)
            await _reap(starting)
        except BaseException as error:
            if child is not None:
                child.leave()
            if starting is not None and isinstance(error, asyncio.CancelledError):
                # The agent ends.  The next one takes hold of what was begun, as after a kill.
                raise
            if starting is None or isinstance(error, FarbusError):
                # No keeper was told what to start, or it has said that it could not.
                shutil.rmtree(directory, ignore_errors=True)
            else:
                # It may have started what nobody will ask for.
                await self._end_start(directory, plan)
            if starting is not None:
                raised = await _start_failure(program, starting) if isinstance(error, ConnectionError) else None
                kill_process(starting)
                if raised is not None:
                    raise raised from error
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"start {program.argv[0]}: not started after {START_TIMEOUT_S:g} s",
                    hint=f"is the file system of {program.cwd} there?",
                ) from error
            if isinstance(error, OSError):
                raise Unavailable(f"start a keeper for {program.what}: {error.strerror}") from error
            raise
        self._know(child)
        return child

    async def _start_keeper(self, program: Program, directory: Path, plan: Plan) -> asyncio.subprocess.Process:
        """Start a keeper, with the socket at which it will listen; return the process that becomes its parent."""
        command = keeper.command(sys.executable, self.owner, program.name)
        # None of the agent's own environment: it may hold what the program's user must not see.
        environment = {"LC_ALL": "C.UTF-8", **self.mark}
        if self._units:
            unit = unit_name(program.name, plan.mark)
            command = [*service_command(program, unit=unit, directory=directory, environment=environment), *command]
            return await _start_unit(program, command, directory)
        listener = socket.socket(socket.AF_UNIX)
        try:
            with short_path(directory) as path:
                listener.bind(f"{path}/control")
            listener.listen(BACKLOG)
            return await spawn(
                *command,
                stdin=listener.fileno(), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                start_new_session=True, close_fds=True, cwd=directory,
                env=environment,
            )  # fmt: skip
        finally:
            listener.close()

    async def _start(self, program: Program, directory: Path, plan: Plan) -> KeptChild:
        """Tell a new keeper what to start."""
        account = program.account
        specification = {
            "do": "start",
            "argv": program.argv,
            "environment": {**self.mark, **program.environment, MARK: plan.mark},
            "cwd": program.cwd,
            "uid": account.uid if account else None,
            "gid": account.gid if account else None,
            "groups": account.groups if account else [],
            "umask": program.umask,
            "descriptors": inherited_descriptor_limit(),
            "limits": dict(program.limits),
            "cgroup": program.cgroup,
            "unit": self._units,
            "keep": program.keep,
            "output": plan.output,
            "output_bytes": program.output_bytes,
            "time_limit_s": program.time_limit_s,
            "orphan_limit_s": program.orphan_limit_s,
            "memory_reason": program.memory_reason,
        }
        reader, writer = await _dial(directory, descriptors=program.keep)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                hello = await _hear_hello(directory, reader)
                writer.write(json.dumps(specification).encode() + b"\n")
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                answer = await reader.readline()
            if not answer:
                raise ConnectionResetError
            message = json.loads(answer)
            if message["event"] == "failed":
                raise start_error(
                    program, stage=message["stage"], number=message["errno"], text=message.get("text", "")
                )
        except BaseException:
            writer.close()
            raise
        child = KeptChild(directory, plan, self._sweeper, pid=int(message["pid"]), keeper=int(hello["keeper"]))
        child.listen(reader, writer)
        return child

    async def _end_start(self, directory: Path, plan: Plan) -> None:
        """End what a start that failed may have begun, and remove its directory once nothing is there.

        Waits for that as long as it takes: who has asked must not take the program for gone.
        """
        await asyncio.to_thread(ask_to_end, directory)
        await KeptChild(directory, plan, self._sweeper).settle()
        shutil.rmtree(directory, ignore_errors=True)

    async def survivors(self, prefix: str = "") -> Sequence[Child]:
        """Find the programs of an earlier agent."""
        try:
            names = sorted(entry.name for entry in self._directory.iterdir() if entry.is_dir())
        except FileNotFoundError:
            return ()

        async def find(name: str) -> KeptChild | None:
            child = await self._find(self._directory / name)
            if child is not None:
                self._know(child)
            return child

        wanted = [name for name in names if name.startswith(prefix) and name not in self._children]
        found = await side_by_side(find, wanted, most=FINDS_AT_ONCE)
        return [child for child in found if child is not None]

    def _know(self, child: KeptChild) -> None:
        """Keep a child until it is forgotten: an agent that runs for months starts millions."""
        self._children[child.name] = child
        child.forgotten = lambda: self._children.pop(child.name, None)

    async def _find(self, directory: Path) -> KeptChild | None:
        """Return what a directory is of; None, and nothing left of it, where no program was started."""
        plan = read_struct(directory / "program.json", Plan)
        if plan is None:
            if not was_started(directory):
                # The agent was killed while it made the directory.  With anything else in it it is none of ours.
                if set(os.listdir(directory)) <= {"program.json"}:
                    shutil.rmtree(directory, ignore_errors=True)
                return None
            # Whose it is can't be read any more; but it may use devices.
            plan = Plan(
                version=VERSION, what=directory.name, mark="", boot_id=self._boot_id, output=str(directory / "output")
            )
            await asyncio.to_thread(ask_to_end, directory)
            child = KeptChild(directory, plan, self._sweeper)
            await child.settle_soon()
            return child
        try:
            reader, writer, hello = await _connect(directory)
        except (OSError, ValueError, TimeoutError, KeyError) as error:
            nobody = isinstance(error, ConnectionRefusedError | FileNotFoundError)
            if nobody and plan.boot_id == self._boot_id and not may_have_begun(directory):
                # The agent was killed before there was a keeper to be told what to start.
                shutil.rmtree(directory, ignore_errors=True)
                return None
            child = KeptChild(directory, plan, self._sweeper)
            await child.settle_soon()
            return child
        if hello["state"] == "new":
            # Its agent died before it had said what to start; now that we are gone too, so is the keeper.
            writer.close()
            shutil.rmtree(directory, ignore_errors=True)
            return None
        child = KeptChild(directory, plan, self._sweeper, pid=int(hello["pid"]), keeper=int(hello["keeper"]))
        child.listen(reader, writer)
        if hello["state"] == "ended":
            child.has_ended(Exit(int(hello["code"]), str(hello["reason"])))
        return child

    async def close(self) -> None:
        """Let go of all keepers."""
        for child in self._children.values():
            child.leave()
        self._children.clear()
        self._sweeper.close()


def unit_name(name: str, mark: str) -> str:
    """Return the name of a program's unit: new each time, since a failed one may still be there.

    The kind comes first and a dash after it: what is set for ``farbus-lease-.service`` goes for all leases
    (systemd.unit(5)).
    """
    kind, _, rest = name.partition(".")
    return f"farbus-{kind}-{rest or kind}-{mark[:8]}.service"


def service_command(program: Program, *, unit: str, directory: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the command that lets the service manager start another one, and returns when that is ready.

    Delegate lets the keeper divide its group: its program gets a leaf that can
    be killed without the keeper.  When the keeper is gone, what is left of the
    unit is killed.
    """
    command = [shutil.which("systemd-run") or "systemd-run", "--collect", "--quiet"]
    command += [f"--slice={SLICE}", f"--unit={unit}", f"--description=Farbus {program.what}"]
    command += [f"--setenv={name}={value}" for name, value in environment.items()]
    properties = {
        "Type": "notify",
        "WorkingDirectory": str(directory),
        "Delegate": "yes",
        # To stop the unit is to tell the keeper, which knows then why its program ends; what is left is killed.
        "KillMode": "mixed",
        "TimeoutStopSec": f"{UNIT_STOP_S:g}",
        # The keeper itself says how its program has ended.
        "OOMPolicy": "continue",
    }
    if program.memory_bytes:
        properties["MemoryMax"] = str(program.memory_bytes)
    if program.cpu_milli:
        # In hundredths of a processor; at least one.
        properties["CPUQuota"] = f"{max(1, program.cpu_milli // 10)}%"
    options = [f"--property={name}={value}" for name, value in properties.items()]
    for device in program.io_limits:
        options += [
            f"--property={name}={device.path} {number}"
            for name, number in (
                ("IOReadBandwidthMax", device.limit.read_bytes_s),
                ("IOWriteBandwidthMax", device.limit.write_bytes_s),
                ("IOReadIOPSMax", device.limit.read_iops),
                ("IOWriteIOPSMax", device.limit.write_iops),
            )
            if number
        ]
    return [*command, *options, "--"]


async def _start_unit(program: Program, command: Sequence[str], directory: Path) -> asyncio.subprocess.Process:
    """Run ``command`` and return when its keeper listens; raise :class:`Unavailable` where it never does."""
    starting = await spawn(
        *command,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        start_new_session=True, cwd=directory,
    )  # fmt: skip
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            _, said = await starting.communicate()
    except TimeoutError as error:
        kill_process(starting)
        raise Unavailable(
            f"start a keeper for {program.what}: the service manager has not started it after {START_TIMEOUT_S:g} s"
        ) from error
    except BaseException:
        kill_process(starting)
        raise
    if starting.returncode:
        words = said.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"start a keeper for {program.what}: {words[-1] if words else 'systemd-run failed'}")
    return starting


async def _dial(
    directory: Path, *, descriptors: Sequence[int] = ()
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a keeper's socket and greet; raise OSError where nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with short_path(directory) as path:
            connection.connect(f"{path}/control")
        greeting = json.dumps({"version": VERSION, "descriptors": len(descriptors)}).encode() + b"\n"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        connection.sendmsg([greeting], rights)
        return await asyncio.open_unix_connection(sock=connection, limit=LINE_BYTES)
    except BaseException:
        connection.close()
        raise


async def _hear_hello(directory: Path, reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return a keeper's first line; raise ConnectionError where it ends instead."""
    line = await reader.readline()
    if not line:
        raise ConnectionResetError
    hello: dict[str, Any] = json.loads(line)
    if hello["version"] > VERSION:
        raise Conflict(
            f"{directory.name}: kept by a newer Farbus (protocol {hello['version']}, this is {VERSION})",
            hint="install that version again, or end the program first",
        )
    return hello


async def _connect(directory: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, Any]]:
    """Return a connection to a keeper and its first line; raise OSError, ValueError or TimeoutError for none."""
    reader, writer = await _dial(directory)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return reader, writer, await _hear_hello(directory, reader)
    except BaseException:
        writer.close()
        raise


async def _start_failure(program: Program, starting: asyncio.subprocess.Process) -> FarbusError:
    """Say why there is no keeper."""
    said = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            _, said = await starting.communicate()
    words = said.decode(errors="replace").strip().splitlines()
    return Unavailable(f"start a keeper for {program.what}: {words[-1] if words else 'it died'}")


async def _reap(starting: asyncio.subprocess.Process) -> None:
    """Wait for the end of the process that started a keeper; it has nothing else to do."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await starting.communicate()
    except TimeoutError:
        kill_process(starting)
