"""What commands said that failed: subprocess's errors name command and exit code alone, and tests capture output."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator

LONGEST = 20_000
"""Characters that are shown of one stream, its last ones."""


def said_by_commands(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Yield a title and what was said, for each captured stream of each command whose end led to ``error``."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (subprocess.CalledProcessError, subprocess.TimeoutExpired)):
            yield from _streams(one)
        waiting += [one.__context__, one.__cause__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _streams(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> Iterator[tuple[str, str]]:
    one_word = isinstance(error.cmd, (str, os.PathLike))
    command = str(error.cmd) if one_word else shlex.join(map(str, error.cmd))
    for name, said in (("stdout", error.stdout), ("stderr", error.stderr)):
        if said is not None:
            text = said.decode(errors="replace") if isinstance(said, bytes) else said
            yield f"{name} of {command}", text[-LONGEST:] or "nothing"
