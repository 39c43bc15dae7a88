"""How the daemons are set up from a file and options, and how they are started.

A configuration file is TOML or JSON with the fields of ``SchedulerConfig``
or ``AgentConfig``; options go before it.  The daemons themselves are loaded
only here, when one is to be served.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from farbus.cli.connection import find_credentials
from farbus.cli.decoding import convert_fields, decode_fields, read_file
from farbus.errors import InvalidInput
from farbus.linux.children import die_with_parent

PARENT_VARIABLE = "FARBUS_UP_PID"
"""Set by ``farbus up`` for its daemons: they end with the process of this id."""


def read_settings(path: str, options: Mapping[str, Any], *, credentials: str) -> dict[str, Any]:
    """Return the settings of a daemon: those of the file at ``path`` (none if empty), then what options gave.

    ``credentials`` is a directory as ``farbus ca issue`` makes it.
    """
    settings: dict[str, Any] = {}
    if path:
        decoded = decode_fields(read_file(path, what="configuration file"), name=path)
        if not isinstance(decoded, dict):
            raise InvalidInput(f"{path}: expected a table of settings", hint="docs/cli.md shows one")
        settings |= decoded
    settings |= {name: value for name, value in options.items() if value not in (None, "")}
    if credentials:
        files = find_credentials(credentials)
        settings["credentials"] = {
            "authority": files.authority,
            "certificate": files.certificate,
            "key": files.key,
        }
    return settings


def serve_daemon(package: str, kind: str, settings: Mapping[str, Any], *, source: str) -> int:
    """Serve ``farbus.PACKAGE.daemon`` with a ``kind`` (a class of ``farbus.PACKAGE.config``) until it is stopped."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if parent.isdigit():
        die_with_parent(int(parent))
    config_type = getattr(importlib.import_module(f"farbus.{package}.config"), kind)
    missing = [
        field.name for field in msgspec.structs.fields(config_type) if field.required and field.name not in settings
    ]
    if missing:
        options = ", ".join(f"--{field.replace('_', '-')}" for field in missing)
        raise InvalidInput(
            f"not set: {', '.join(missing)}", hint=f"give {options}, or a configuration file with --config"
        )
    config = convert_fields(dict(settings), config_type, name=source)
    # structlog draws tracebacks with rich where there is one: 4 MB that a daemon, whose log is a file, never needs.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    return int(importlib.import_module(f"farbus.{package}.daemon").main(config))
