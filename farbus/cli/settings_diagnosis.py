"""Checks of ``farbus doctor`` on the agent's settings as a whole: whether an agent starts with them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from farbus.cli.daemons import missing_settings, read_settings, with_agent_defaults
from farbus.cli.decoding import convert_fields
from farbus.cli.findings import Finding, Verdict
from farbus.cli.installation import USERS, Role
from farbus.cli.node_settings import AGENT_SETTINGS
from farbus.cli.softgpu_settings import refused_settings
from farbus.errors import FarbusError
from farbus.linux.files import check_state_directory
from farbus.linux.users import is_known

if TYPE_CHECKING:
    from farbus.agent.config import AgentConfig

REMOTING_USER = USERS[Role.AGENT]


def examine_settings(path: str = "") -> Iterator[Finding]:
    """Yield whether an agent would take the file at ``path``, or the one that services have, if that is there."""
    path = path or AGENT_SETTINGS
    if not os.access(path, os.R_OK):
        # There is none, or it is not for this user to know.
        return
    try:
        config = _check(path)
    except FarbusError as error:
        told = error.message if path in error.message else f"{path}: {error.message}"
        yield Finding(check="settings", verdict=Verdict.BROKEN, found=told, cure=error.hint or "correct it there")
    else:
        yield Finding(check="settings", verdict=Verdict.OK, found=path)
        yield from _examine_user(config.remoting_user, path)
        if config.softgpu and (reason := asyncio.run(refused_settings(config.softgpu))):
            # The agent starts all the same, and serves what else it has.
            yield Finding(
                check="software gpus",
                verdict=Verdict.WARNING,
                found=f"{path}: softgpu: {reason}: the node would offer none",
                cure="docs/softgpu.md lists its settings",
            )


def _examine_user(user: str, path: str) -> Iterator[Finding]:
    """Yield what is wrong with the user who serves GPUs to programs of other nodes."""
    check = "remoting user"
    if not user and os.geteuid() == 0:
        yield Finding(
            check=check,
            verdict=Verdict.WARNING,
            found=f"{path} sets no remoting_user: what programs of other nodes send to GPUs here is read by root",
            cure=f'add remoting_user = "{REMOTING_USER}" at its top, a user that farbus install agent makes',
        )
    elif user and not is_known(user):
        yield Finding(
            check=check,
            verdict=Verdict.BROKEN,
            found=f"{path}: remoting_user: there is no user {user}: GPUs of this node can't be served to others",
            cure=f"farbus install agent makes {REMOTING_USER}; or name another",
        )


def _check(path: str) -> AgentConfig:
    """Return the settings; raise :class:`FarbusError` where no agent starts with the file."""
    from farbus.agent.config import STATE_MARKS, AgentConfig  # noqa: PLC0415 - takes a while to load

    # Certificates have checks of their own, and only root reads them all.
    files = {"authority": path, "certificate": path, "key": path}
    settings = with_agent_defaults(read_settings(path, {"credentials": files}, credentials=""))
    # What is not set may be given as an option.
    given = dict.fromkeys(missing_settings(AgentConfig, settings, source=path), "scheduler:7411")
    config = convert_fields({**settings, **given}, AgentConfig, name=path)
    config.check()
    if os.access(config.state, os.R_OK):
        check_state_directory(Path(config.state), marks=STATE_MARKS, what="an agent's state")
    return config
