"""A program in the caller's own terminal, forked early and started late.

``farbus run`` has to ask for devices, which takes threads, before it may start
the program, and a fork in a process with threads must not run Python.  So the
child is forked first, while there is one thread, and waits at a pipe for the
environment; closing the pipe instead lets it end without having run anything.
It asks the kernel to end it with its parent: without that, who kills ``farbus
run`` would leave a program behind whose devices are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import signal
import struct
from collections.abc import Mapping, Sequence
from typing import NoReturn

from farbus.errors import ExitCode, InvalidInput

# linux/prctl.h
_PR_SET_PDEATHSIG = 1

_LENGTH = struct.Struct("<I")


class ForegroundProgram:
    """A program that has been forked and waits for its environment."""

    def __init__(self, pid: int, commands: int, answers: int) -> None:
        self.pid = pid
        self._commands = commands
        self._answers = answers
        self.started = False

    @classmethod
    def fork(cls, path: str, arguments: Sequence[str]) -> ForegroundProgram:
        """Fork the child that will become ``path``.  To be called while this process has one thread."""
        child_reads, commands = os.pipe()
        answers, child_writes = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(commands)
            os.close(answers)
            _become(path, arguments, parent, child_reads, child_writes)
        os.close(child_reads)
        os.close(child_writes)
        return cls(pid, commands, answers)

    def start(self, environment: Mapping[str, str]) -> None:
        """Let the program start with ``environment``, which is the whole of it.

        Raises :class:`InvalidInput`, with the exit code that shells use, where exec fails.
        """
        text = json.dumps(dict(environment)).encode()
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._commands, "wb") as pipe:
            pipe.write(_LENGTH.pack(len(text)) + text)
        with os.fdopen(self._answers, "rb") as pipe:
            # Its other end is closed by a successful exec, without a word.
            answer = pipe.read()
        if answer:
            number = int(answer)
            code = ExitCode.COMMAND_NOT_FOUND if number == errno.ENOENT else ExitCode.NOT_EXECUTABLE
            raise InvalidInput(f"the program can't be started: {os.strerror(number)}").with_exit_code(code)
        self.started = True

    def abandon(self) -> None:
        """Let a program that has not been started end without having run."""
        if not self.started:
            with contextlib.suppress(OSError):
                os.close(self._commands)
            with contextlib.suppress(OSError):
                os.close(self._answers)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Say whether it has ended, whether or not :meth:`wait` has heard of it."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    async def wait(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        # It has ended: this waits for nothing.
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])  # noqa: ASYNC222


def _become(path: str, arguments: Sequence[str], parent: int, commands: int, answers: int) -> NoReturn:
    """Wait for the environment, then turn into the program.  Runs in the child and never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(ExitCode.RUN_FAILED)
        with os.fdopen(commands, "rb") as pipe:
            header = pipe.read(_LENGTH.size)
            if len(header) < _LENGTH.size:
                os._exit(ExitCode.RUN_FAILED)
            text = pipe.read(_LENGTH.unpack(header)[0])
        environment = json.loads(text)
        os.execve(path, list(arguments), environment)  # noqa: S606 - the program that the user named
    except OSError as error:
        os.write(answers, str(error.errno or errno.EIO).encode())
    finally:
        os._exit(ExitCode.RUN_FAILED)


# asm-generic/siginfo.h: si_code of a signal that the kernel sent, for example the terminal's Ctrl-C.
_SI_KERNEL = 0x80

# linux/signalfd.h: struct signalfd_siginfo has 128 bytes and begins with ssi_signo, ssi_errno, ssi_code.
_SIGINFO = struct.Struct("=Iii")
_SIGINFO_BYTES = 128

# bits/types/__sigset_t.h: 1024 bits, signal n at bit n - 1.
_SIGSET_BYTES = 128


class SignalListener:
    """Signals of this process as values in the event loop, with word of who sent them.

    A Ctrl-C reaches every process of the terminal's foreground group, the
    program too; a ``kill`` reaches this process alone and must be passed on.
    Only siginfo tells the two apart, so the signals are blocked and read from
    a signalfd(2).  To be made before any thread is: threads inherit the mask.
    """

    SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self) -> None:
        self._old = signal.pthread_sigmask(signal.SIG_BLOCK, self.SIGNALS)
        mask = sum(1 << (number - 1) for number in self.SIGNALS).to_bytes(_SIGSET_BYTES, "little")
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = int(libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "signalfd")

    def close(self) -> None:
        """Let the signals do again what they did."""
        os.close(self._descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old)

    async def next(self) -> tuple[int, bool]:
        """Wait for a signal; return its number and whether the kernel sent it, to the terminal's whole group."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._descriptor, ready.set)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    number, _, code = _SIGINFO.unpack_from(os.read(self._descriptor, _SIGINFO_BYTES))
                    return number, code == _SI_KERNEL
                ready.clear()
                await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)
