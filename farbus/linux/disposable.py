"""The door for calls that may block for ever: each runs in a child process that can be left behind.

A write to sysfs or configfs, an ioctl, a driver that does not answer: in state
D nothing can be killed, and a thread that waits there takes its process with
it.  So the call is made by a process that is good for nothing else.  Who waits
too long for it stops waiting; the call goes on (:mod:`farbus.agent.steps`).

``farbus.linux.disposable`` is also the child's program: it reads which function
to call, with which arguments, from standard input, and writes what it returned
or raised to standard output, each as one JSON document.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from farbus import errors
from farbus.errors import FarbusError, Unavailable
from farbus.linux.processes import kill_process
from farbus.linux.spawning import spawn

ANSWER_LIMIT_BYTES = 1 << 20
"""Most that a call may return: what the kernel says of a device is some kilobytes."""


class _Raised(msgspec.Struct):
    kind: str
    message: str
    hint: str = ""
    number: int = 0
    file: str = ""


class _Answer(msgspec.Struct):
    value: Any = None
    raised: _Raised | None = None


async def run_disposable(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a blocking call in a process of its own; return what it returns, raise what it raises.

    ``call`` is a function of a module; arguments and result are what JSON can
    hold.  A :class:`FarbusError` or OSError arrives as it was raised, any other
    exception as :class:`Unavailable`.  Cancelled, the child is killed and not
    waited for: in state D it ends when the kernel lets it.
    """
    name = f"{call.__module__}:{call.__qualname__}"
    try:
        child = await spawn(
            sys.executable, "-P", "-m", "farbus.linux.disposable", name,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=ANSWER_LIMIT_BYTES, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"{name}: start a process for it: {error.strerror}") from error
    try:
        # By the library's JSON, which has room for names of files that are no UTF-8.
        output, _ = await child.communicate(json.dumps(msgspec.to_builtins(arguments)).encode())
    except BaseException:
        kill_process(child)
        raise
    try:
        answer = msgspec.convert(json.loads(output), _Answer)
    except (ValueError, msgspec.MsgspecError) as error:
        # Killed before it answered, or in the middle of that.
        got = "half an answer" if output else "no answer"
        raise Unavailable(f"{name}: its process ended with {child.returncode} and {got}", hint="see dmesg") from error
    if answer.raised is not None:
        raise _error(name, answer.raised)
    return answer.value


def _error(name: str, raised: _Raised) -> Exception:
    if raised.number:
        return OSError(raised.number, raised.message, raised.file or None)
    kind = getattr(errors, raised.kind, None)
    if isinstance(kind, type) and issubclass(kind, FarbusError):
        return kind(raised.message, hint=raised.hint)
    return Unavailable(f"{name}: {raised.kind}: {raised.message}")


def _answer(name: str, arguments: list[Any]) -> _Answer:
    module, _, function = name.partition(":")
    try:
        return _Answer(value=getattr(importlib.import_module(module), function)(*arguments))
    except FarbusError as error:
        return _Answer(raised=_Raised(type(error).__name__, error.message, error.hint))
    except OSError as error:
        file = error.filename if isinstance(error.filename, str) else ""
        return _Answer(raised=_Raised("OSError", error.strerror or str(error), number=error.errno or 0, file=file))
    except Exception as error:
        return _Answer(raised=_Raised(type(error).__name__, str(error)))


def main() -> None:
    """Make one call."""
    arguments = json.loads(sys.stdin.buffer.read())
    # What the function prints must not become part of the answer.
    answer_to = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answer_to, "wb") as pipe:
        # As the arguments have come: in what is told of files and their names there may be bytes that are no UTF-8.
        pipe.write(json.dumps(msgspec.to_builtins(_answer(sys.argv[1], arguments))).encode())


if __name__ == "__main__":
    main()
