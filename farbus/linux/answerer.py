"""A child process that answers questions, one at a time: for work that must neither stop nor take down its parent.

Question and answer are bytes, each with its length before it.  An answer may
come in parts, so that its parent goes on with the first one before all is there.  The child is
this Python running a module that calls :func:`serve`; it ends with its parent,
or when its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterable

from farbus.errors import TimedOut, Unavailable
from farbus.linux.children import die_with_parent
from farbus.linux.processes import kill_process
from farbus.linux.spawning import spawn

_LENGTH = struct.Struct("!Q")
START_LIMIT_S = 60.0
"""Longest for a child to load what it needs: seconds of processor time, many more where all processors are busy."""

END_LIMIT_S = 5.0
"""Longest wait for a child that was killed."""

MAX_ANSWER_BYTES = 2**30
"""More is no answer but a fault."""


class Answerer:
    """The parent's end.  The child is started by the first question, and anew by the next one after it was killed."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = (sys.executable, "-P", "-m", module, str(os.getpid()), *arguments)
        self._name = module.rpartition(".")[2]
        self._child: asyncio.subprocess.Process | None = None
        self._is_ready = False
        """Whether the child has said that it listens: until then no question's time runs."""
        self.starts = 0
        """How often a child was started: what an earlier one was told, the present one does not know."""

    @property
    def pid(self) -> int:
        """The child's process id; 0 where there is none."""
        return self._child.pid if self._child is not None else 0

    async def start(self) -> None:
        """Start the child unless there is one; raise :class:`Unavailable` where that can't be."""
        if self._child is not None:
            return
        try:
            self._child = await spawn(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError as error:
            raise Unavailable(f"{self._name}: start its process: {error.strerror}") from error
        self._is_ready = False
        self.starts += 1

    async def ask(self, question: bytes, *, limit_s: float) -> bytes:
        """Return the answer, or its first part; the caller asks one question at a time, and reads all of its answer.

        Raises :class:`TimedOut` after ``limit_s`` seconds, not counting the child's start, and
        :class:`Unavailable` where the child has ended; in both cases, and when
        the caller is cancelled, it is killed.
        """
        await self.start()
        return await self._exchange(question, limit_s)

    async def read(self, *, limit_s: float) -> bytes:
        """Return the next part of the answer; see :meth:`ask`."""
        if self._child is None:
            raise Unavailable(f"{self._name}: its process has ended")
        return await self._exchange(None, limit_s)

    async def _exchange(self, question: bytes | None, limit_s: float) -> bytes:
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            if not self._is_ready:
                async with asyncio.timeout(max(START_LIMIT_S, limit_s)):
                    await child.stdout.readexactly(_LENGTH.size)
                self._is_ready = True
            async with asyncio.timeout(limit_s):
                # uvloop's word for a child that was killed since the last question is RuntimeError.
                with contextlib.suppress(ConnectionError, RuntimeError):
                    if question is not None:
                        child.stdin.write(_LENGTH.pack(len(question)) + question)
                        await child.stdin.drain()
                (length,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
                if length > MAX_ANSWER_BYTES:
                    raise asyncio.IncompleteReadError(b"", length)
                return await child.stdout.readexactly(length)
        except TimeoutError as error:
            await self.kill()
            waited = f"no answer after {limit_s:g} s" if self._is_ready else f"not ready after {START_LIMIT_S:g} s"
            raise TimedOut(f"{self._name}: {waited}") from error
        except asyncio.IncompleteReadError as error:
            code = await self.kill()
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            raise Unavailable(f"{self._name}: its process has ended ({how})") from error
        except BaseException:
            # The answer that was not waited for must not reach the next question.
            kill_process(child)
            self._child = None
            raise

    async def kill(self) -> int:
        """End the child; return what it ended with, negative for a signal."""
        child, self._child = self._child, None
        if child is None:
            return 0
        if child.stdin is not None:
            child.stdin.close()
        # One that ended by itself says how only a moment after its output has ended.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                return await child.wait()
        kill_process(child)
        return await child.wait()

    async def end(self) -> None:
        """End the child and wait for that: an event loop that is closed before hears of it too late, and says so."""
        child, self._child = self._child, None
        if child is None:
            return
        kill_process(child)
        # One that the kernel holds is left to it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_LIMIT_S):
                await child.wait()

    def close(self) -> None:
        """End the child without waiting for it."""
        child, self._child = self._child, None
        if child is not None:
            kill_process(child)


def serve(answer: Callable[[bytes], Iterable[bytes]], parent: int) -> None:
    """Answer questions, in parts, until standard input ends; ``parent`` is the process id of who asks."""
    die_with_parent(parent)
    # Where memory runs out, as by a policy that takes ever more of it, this process ends, and not its parent (proc(5)).
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    # A signal to the whole group or service is its parent's to obey: this one ends when nothing more is asked.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What anything here prints must not be taken for an answer.
    os.dup2(2, 1)
    with questions, answers:
        # Ready: an answer without a question, of no bytes.
        answers.write(_LENGTH.pack(0))
        answers.flush()
        while len(header := questions.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(header)
            question = questions.read(length)
            if len(question) < length:
                return
            for part in answer(question):
                answers.write(_LENGTH.pack(len(part)))
                answers.write(part)
                answers.flush()
