"""The door to this process's own limits."""

from __future__ import annotations

import resource

_at_start = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may; return how many.

    The usual soft limit of 1,024 (kept low for programs that use select(2))
    is less than a scheduler's connections to a thousand agents, or an
    agent's to some hundred ``farbus run``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def inherited_descriptor_limit() -> int:
    """Return the soft limit that this process was started with: what programs that it starts should have."""
    return _at_start[0]
