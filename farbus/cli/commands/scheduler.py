"""``farbus scheduler``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.daemons import read_settings, serve_daemon
from farbus.cli.options import CredentialsOption, command_app, examples

app = command_app()

DEFAULT_PORT = 7411


@app.command(
    epilog=examples(
        "farbus scheduler --credentials /etc/farbus/scheduler",
        "farbus scheduler --listen 10.0.0.1:7411 --credentials /etc/farbus/scheduler",
        "farbus scheduler --credentials /etc/farbus/scheduler \\",
        "    --ca /etc/farbus/ca --join 0.0.0.0:7413",
        "farbus scheduler --config /etc/farbus/scheduler.toml",
    )
)
def scheduler(
    config: Annotated[
        str, typer.Option("--config", "-c", metavar="FILE", help="Settings in TOML or JSON.", show_default=False)
    ] = "",
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="ADDRESS:PORT",
            help=f"Where to serve.  [default: 0.0.0.0:{DEFAULT_PORT}]",
            show_default=False,
        ),
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Ledger and queue.  [default: /var/lib/farbus/scheduler]",
            show_default=False,
        ),
    ] = "",
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            metavar="ADDRESS:PORT",
            help="Serve Prometheus here, without authentication.",
            show_default=False,
        ),
    ] = "",
    policy: Annotated[
        str,
        typer.Option(
            "--policy", metavar="NAME", help="Placement policy: docs/scheduling.md lists them.", show_default=False
        ),
    ] = "",
    ca: Annotated[
        str,
        typer.Option(
            "--ca",
            metavar="DIR",
            help="The authority's directory, to renew certificates and let machines join.",
            show_default=False,
        ),
    ] = "",
    join: Annotated[
        str,
        typer.Option(
            "--join",
            metavar="ADDRESS:PORT",
            help="Let machines join here with tokens (farbus ca token); needs --ca.",
            show_default=False,
        ),
    ] = "",
    credentials: CredentialsOption = "",
) -> int:
    """Serve the cluster's scheduler, until it is stopped."""
    options = {"listen": listen, "state": state, "metrics": metrics, "policy": policy}
    options |= {"ca_directory": ca, "join": join}
    settings = read_settings(config, options, credentials=credentials)
    settings.setdefault("listen", f"0.0.0.0:{DEFAULT_PORT}")
    settings.setdefault("state", "/var/lib/farbus/scheduler")
    serve_daemon("scheduler", "SchedulerConfig", settings, source=config or "farbus scheduler")
