"""The process door for the command line: services of ``farbus up``, short tools, and their end.

What tasks need (guards, privileges, limits) is in :mod:`farbus.linux.processes`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from farbus.errors import ExitCode, FarbusError, TimedOut, Unavailable
from farbus.linux.spawning import spawn

# linux/prctl.h
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when ``parent``, its parent, ends (prctl(2), PR_SET_PDEATHSIG).

    Raises :class:`Unavailable` where ``parent`` has ended already: then no
    signal will come, and nobody is there to serve.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0) != 0:
        raise Unavailable(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    # The parent may have ended before the request: then this process has another one by now.
    if os.getppid() != parent:
        raise Unavailable(f"process {parent}, which started this one, has ended")


def become(arguments: Sequence[str], *, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a program (execve(2)): same process id, same parent, same streams.

    A request of :func:`die_with_parent` stays.  Raises :class:`Unavailable` where the program can't be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(arguments[0], list(arguments), dict(environment))  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise Unavailable(f"start {arguments[0]}: {error.strerror}") from error


class Service:
    """A long-running child whose output goes to a file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Say whether it has not ended yet."""
        return self._process.returncode is None

    @property
    def exit_code(self) -> ExitCode:
        """What it ended with, as one of Farbus's own exit codes; FAILED for any other."""
        return _as_exit_code(self._process.returncode)

    async def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        return await self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when it has ended."""
        if self.running:
            self._process.send_signal(number)


async def start_service(arguments: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Service:
    """Start a service in a session of its own, so that a Ctrl-C at the terminal does not reach it.

    Its output is appended to ``log``.  Raises :class:`FarbusError` where it can't be started.
    """
    with open(log, "ab") as output:  # noqa: ASYNC230 - opening a local file for appending does not wait
        try:
            process = await spawn(
                *arguments,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise FarbusError(f"start {arguments[0]}: {error.strerror}") from error
    return Service(process, log)


def start_detached(arguments: Sequence[str], *, environment: Mapping[str, str], output: int) -> int:
    """Start a process that outlives this one, in a session of its own; return its process id.

    ``output`` is the descriptor of the file that gets what it says.
    """
    try:
        process = subprocess.Popen(
            list(arguments),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        raise FarbusError(f"start {arguments[0]}: {error.strerror}") from error
    # Nobody waits for it here; Popen would warn that it still runs.
    process.returncode = 0
    return process.pid


def detached_exit_code(pid: int) -> ExitCode:
    """Return what a process of :func:`start_detached` has ended with, as :attr:`Service.exit_code`."""
    try:
        return _as_exit_code(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    except ChildProcessError:
        return ExitCode.FAILED


def _as_exit_code(code: int | None) -> ExitCode:
    try:
        return ExitCode(code or ExitCode.FAILED)
    except ValueError:
        return ExitCode.FAILED


class Finished(NamedTuple):
    """What a short tool printed, and how it ended."""

    code: int
    stdout: str
    stderr: str


def run_tool(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float | None = 60.0,
) -> Finished:
    """Run a tool to its end and return what it printed; ``environment`` is the whole of it, by default this one's.

    With ``timeout_s`` None it may take as long as it takes.
    """
    try:
        done = subprocess.run(
            list(arguments),
            env=None if environment is None else dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"{arguments[0]}: not done after {timeout_s:g} s") from error
    except OSError as error:
        raise Unavailable(f"{arguments[0]}: {error.strerror}") from error
    return Finished(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def run_showing(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    show: Callable[[str], None],
) -> Finished:
    """Run a tool, pass each line of its output (standard error too) to ``show`` as it comes, and return all of it."""
    lines = []
    try:
        with subprocess.Popen(
            list(arguments),
            env=None if environment is None else dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    lines.append(line)
                    show(line.rstrip("\n"))
            except BaseException:
                process.terminate()
                raise
    except OSError as error:
        raise Unavailable(f"{arguments[0]}: {error.strerror}") from error
    return Finished(process.returncode, "".join(lines), "")


def process_exists(pid: int) -> bool:
    """Say whether there is a process of that id that has not ended (a zombie has, unless threads of it live on)."""
    try:
        # The state follows the command in parentheses, which may hold any character (proc(5)).
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        # A first thread that has ended is a zombie until the last one has: that may hang in a driver.
        return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    except (OSError, IndexError):
        return False


def processes_naming(text: str) -> list[int]:
    """Return the ids of processes whose command line or first environment holds ``text``; this process is left out.

    Those of other users are seen by their command line alone.
    """
    return processes_naming_each([text])[0]


def processes_naming_each(texts: Sequence[str]) -> list[list[int]]:
    """Return what :func:`processes_naming` returns for each of several texts; it looks at each process once."""
    wanted = [text.encode() for text in texts]
    found: list[list[int]] = [[] for _ in texts]
    for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        if pid == os.getpid():
            continue
        said = _said_by(Path("/proc", str(pid)))
        names = [number for number, text in enumerate(wanted) if text in said]
        if names and process_exists(pid):
            for number in names:
                found[number].append(pid)
    return found


def _said_by(process: Path) -> bytes:
    """Return a process's command line and environment."""
    command = _read(process / "cmdline")
    said = command + b"\0" + _read(process / "environ")
    if command:
        return said
    # Without a command line: a kernel thread, or a process whose first thread has ended; the others have its memory.
    try:
        threads = os.listdir(process / "task")
    except OSError:
        return said
    return b"\0".join([said, *(_read(process / "task" / thread / "environ") for thread in threads)])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
