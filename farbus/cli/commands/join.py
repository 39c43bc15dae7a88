"""``farbus join``."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from farbus.api.authority import new_request, request_for, write_credentials, write_private
from farbus.api.joining import Token
from farbus.api.joining import join as join_cluster
from farbus.cli.options import command_app, examples
from farbus.errors import Conflict, InvalidInput, NotPermitted
from farbus.model.address import check_host, is_endpoint

app = command_app()

DEFAULT_OUT = "/etc/farbus/node"
DEFAULT_CONFIG = "/etc/farbus/agent.toml"

PENDING_KEY = "join.key"
"""The key of a join that is under way: a join that broke off is repeated with the same one."""


@app.command(
    epilog=examples(
        "farbus join control:7413 --token farbus-join.5f0c...",
        "farbus join control:7413 --token - < token           read it, so that it stands in no process list",
        "farbus join control:7413 --token ... --address 10.0.0.7 \\",
        "    --out ~/node --config ~/agent.toml",
        "",
        "farbus ca token NODE makes the token, where the cluster's authority is.",
    )
)
def join(
    where: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The scheduler's --join address.")],
    token: Annotated[str, typer.Option("--token", metavar="TOKEN", help="The token; - reads it from standard input.")],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where certificate and key go.")] = DEFAULT_OUT,
    config: Annotated[
        str, typer.Option("--config", "-c", metavar="FILE", help="The agent's configuration to write.")
    ] = DEFAULT_CONFIG,
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Name or IP address at which other nodes reach this one.  [default: the node's name]",
            show_default=False,
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace certificate and configuration.")] = False,
) -> None:
    """Make this machine a node: get it a certificate with a token, and write agent.toml.

    The key is made here and stays here.
    """
    host, _, port = where.rpartition(":")
    if not is_endpoint(where):
        raise InvalidInput(f"{where}: not HOST:PORT", hint="for example farbus join control:7413")
    if address:
        check_host(address, field="--address")
    parsed = Token.parse(_read_token() if token == "-" else token)  # noqa: S105
    directory, settings = Path(out).absolute(), Path(config)
    if not force:
        for path in (*directory.glob("*.crt"), settings):
            if path.exists():
                raise Conflict(f"{path}: is there already", hint="--force replaces it")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.parent.mkdir(parents=True, exist_ok=True)
        key, request = _pending(directory / PENDING_KEY)
        try:
            joined = join_cluster(host, int(port), parsed, key=key, request=request)
        except NotPermitted:
            # Asked again, it would be refused again.
            (directory / PENDING_KEY).unlink()
            with contextlib.suppress(OSError):
                directory.rmdir()
            raise
        for old in directory.glob("*.crt"):
            if old.stem not in ("ca", joined.node):
                old.with_suffix(".key").unlink(missing_ok=True)
                old.unlink()
        write_credentials(directory, joined.node, joined.issued)
        scheduler = f"{host}:{joined.scheduler_port}"
        text = "".join(
            (
                _line("name", joined.node),
                _line("scheduler", scheduler),
                _line("address", address or joined.node),
                # No table: what somebody adds behind it would be the table's.
                _line("credentials", str(directory)),
            )
        )
        write_private(settings, text.encode(), mode=0o644)
        (directory / PENDING_KEY).unlink()
    except OSError as error:
        raise Conflict(
            f"{error.filename or directory}: {error.strerror}", hint="choose others with --out and --config"
        ) from error
    typer.echo(f"node {joined.node} of the cluster of {scheduler}; start it with farbus agent --config {settings}")


def _read_token() -> str:
    """Read the token from standard input; ask for it at a terminal, where nobody is to read it on the screen."""
    if not sys.stdin.isatty():
        return sys.stdin.readline()
    try:
        return getpass.getpass("Token: ")
    except EOFError:
        return ""


def _line(name: str, value: str) -> str:
    # A JSON string is a TOML basic string, but for pairs of surrogates, which are not escaped here.
    return f"{name} = {json.dumps(value, ensure_ascii=False)}\n"


def _pending(path: Path) -> tuple[bytes, bytes]:
    """Return the key of a join that broke off, or a new one that is kept until the join is done."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        key = path.read_bytes()
        return key, request_for(key)
    key, request = new_request()
    write_private(path, key)
    os.sync()
    return key, request
