"""How the daemons are set up from a file and options, and how they are started.

A configuration file is TOML or JSON with the fields of ``SchedulerConfig``
or ``AgentConfig``; options go before it.  A daemon runs in a program of its
own, ``python -m farbus.agent`` or ``farbus.scheduler``, which takes this
process over: what reads a command line would stay in the daemon's memory, a
seventh of it, for as long as that runs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from farbus.cli.connection import AGENT_SOCKET, find_credentials
from farbus.cli.decoding import convert_fields, decode_fields, read_file, with_whole_paths
from farbus.cli.options import CREDENTIALS_VARIABLE
from farbus.errors import ExitCode, InvalidInput
from farbus.linux.children import become, die_with_parent
from farbus.linux.settings import SETTINGS_VARIABLE
from farbus.model.value import to_json
from farbus.remoting.paths import package_root

PARENT_VARIABLE = "FARBUS_UP_PID"
"""Set by ``farbus up`` for its daemons: they end with the process of this id."""

METRICS_LISTEN = "127.0.0.1:9465"
"""Where an agent serves Prometheus unless it is told otherwise.

Next to the ports of dcgm-exporter (9400) and node_exporter (9100), and not known to be anybody's.
"""


def read_settings(path: str, options: Mapping[str, Any], *, credentials: str) -> dict[str, Any]:
    """Return the settings of a daemon: those of the file at ``path`` (none if empty), then what options gave.

    Relative paths of the file begin at its directory, those of options at the working directory.  ``credentials`` is a
    directory as ``farbus ca issue`` makes it.
    """
    settings: dict[str, Any] = {}
    if path:
        decoded = decode_fields(read_file(path, what="configuration file"), name=path)
        if not isinstance(decoded, dict):
            raise InvalidInput(f"{path}: expected a table of settings", hint="docs/cli.md shows one")
        settings |= with_whole_paths(decoded, base=os.path.dirname(path))
    given = {name: value for name, value in options.items() if value not in (None, "")}
    settings |= with_whole_paths(given, base=os.curdir)
    named = settings.get("credentials")
    if credentials and credentials == os.environ.get(CREDENTIALS_VARIABLE):
        # It may be an operator's own, for commands, and not meant for a daemon.
        before = f"; it counts before those of {path}: unset it to take these" if path and named else ""
        print(  # noqa: T201
            f"farbus: taking the credentials in {credentials}, which {CREDENTIALS_VARIABLE} names{before}",
            file=sys.stderr,
        )
    # A file may name a directory as well.
    if isinstance(named, str):
        credentials = credentials or named
    if credentials:
        files = find_credentials(os.path.abspath(credentials))
        settings["credentials"] = {
            "authority": files.authority,
            "certificate": files.certificate,
            "key": files.key,
        }
    return settings


def serve_daemon(package: str, kind: str, settings: Mapping[str, Any], *, source: str) -> NoReturn:
    """Become the daemon ``farbus.PACKAGE`` with a ``kind`` (a class of ``farbus.PACKAGE.config``).

    Its exit code is then that of this process.  With ``FARBUS_SETTINGS=print`` only its settings are printed.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if parent.isdigit():
        die_with_parent(int(parent))
    config_type = getattr(importlib.import_module(f"farbus.{package}.config"), kind)
    missing = missing_settings(config_type, settings, source=source)
    if missing:
        options = ", ".join(f"--{field.replace('_', '-')}" for field in missing)
        raise InvalidInput(
            f"not set: {', '.join(missing)}", hint=f"give {options}, or a configuration file with --config"
        )
    config = convert_fields(dict(settings), config_type, name=source)
    if os.environ.get(SETTINGS_VARIABLE) == "print":
        sys.stdout.buffer.write(to_json(config))
        sys.exit(ExitCode.OK)
    # The same farbus as this one, also where it is not installed but lies in the current directory.
    path = os.pathsep.join(filter(None, [str(package_root()), os.environ.get("PYTHONPATH", "")]))
    become(
        # The last words are for people who list processes, and for reading the settings again.
        [sys.executable, "-P", "-m", f"farbus.{package}", str(_in_memory(to_json(config))), *sys.argv[1:]],
        environment={**os.environ, "PYTHONPATH": path},
    )


def missing_settings(config_type: type[msgspec.Struct], settings: Mapping[str, Any], *, source: str) -> list[str]:
    """Return what has to be set and is not; raise :class:`InvalidInput` where it stands in the wrong place."""
    missing = [
        field.name for field in msgspec.structs.fields(config_type) if field.required and field.name not in settings
    ]
    for field in missing:
        # TOML gives a line behind [table] to the table, whoever wrote it for the file's own.
        for table, held in settings.items():
            if isinstance(held, dict) and field in held:
                raise InvalidInput(
                    f"{source}: {field} stands in the table [{table}]", hint="put it above the first [table]"
                )
    return missing


def with_agent_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an agent with what holds where they are silent."""
    name = settings.get("name", os.uname().nodename)
    defaults = {
        "name": name,
        "address": name,
        "state": "/var/lib/farbus/agent",
        "socket": AGENT_SOCKET,
        "metrics_listen": METRICS_LISTEN,
    }
    whole = {**defaults, **settings}
    return {**whole, "metrics_listen": ""} if whole["metrics_listen"] == "off" else whole


def _in_memory(data: bytes) -> int:
    """Return a descriptor that the next program inherits and reads ``data`` from."""
    descriptor = os.memfd_create("farbus-settings", 0)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
