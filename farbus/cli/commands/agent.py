"""``farbus agent``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.connection import AGENT_SOCKET
from farbus.cli.daemons import METRICS_LISTEN, read_settings, serve_daemon, with_agent_defaults
from farbus.cli.options import CredentialsOption, command_app, examples
from farbus.errors import InvalidInput

app = command_app()


@app.command(
    epilog=examples(
        "farbus agent --scheduler control:7411 --credentials /etc/farbus/node",
        "farbus agent --config /etc/farbus/agent.toml",
        "",
        'A configuration file has these settings in TOML or JSON, such as scheduler = "control:7411", and others, '
        "as for remoting, storage and shares of GPUs: docs/cli.md says which file lists them all.",
    )
)
def agent(
    config: Annotated[
        str, typer.Option("--config", "-c", metavar="FILE", help="Settings in TOML or JSON.", show_default=False)
    ] = "",
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="[default: the machine's name]", show_default=False),
    ] = "",
    scheduler: Annotated[
        str, typer.Option("--scheduler", metavar="HOST:PORT", help="Where the scheduler serves.", show_default=False)
    ] = "",
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Name or IP address at which other nodes reach this one.  [default: the node's name]",
            show_default=False,
        ),
    ] = "",
    peer_port: Annotated[
        int | None,
        typer.Option(
            "--peer-port",
            metavar="PORT",
            help="Port for the agents of other nodes; 0 for any free one.  [default: 7412]",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        str,
        typer.Option(
            "--state",
            metavar="DIR",
            help="[default: /var/lib/farbus/agent]",
            show_default=False,
        ),
    ] = "",
    socket: Annotated[
        str,
        typer.Option(
            "--socket", metavar="PATH", help=f"Socket for commands.  [default: {AGENT_SOCKET}]", show_default=False
        ),
    ] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label of the node; repeat for several.")
    ] = None,
    softgpu: Annotated[
        str,
        typer.Option(
            "--softgpu", metavar="OPTIONS", help="Software GPUs to offer, like count=2,mem=1GiB.", show_default=False
        ),
    ] = "",
    metrics_listen: Annotated[
        str,
        typer.Option(
            "--metrics-listen",
            metavar="ADDRESS:PORT",
            help=f"Serve Prometheus here, without authentication; off for nowhere.  [default: {METRICS_LISTEN}]",
            show_default=False,
        ),
    ] = "",
    credentials: CredentialsOption = "",
) -> int:
    """Serve this machine as a node, until it is stopped."""
    options = {
        "name": name,
        "scheduler": scheduler,
        "address": address,
        "peer_port": peer_port,
        "state": state,
        "socket": socket,
        "softgpu": softgpu,
        "metrics_listen": metrics_listen,
        "labels": _read_labels(label or []) or None,
    }
    settings = with_agent_defaults(read_settings(config, options, credentials=credentials))
    serve_daemon("agent", "AgentConfig", settings, source=config or "farbus agent")


def _read_labels(words: list[str]) -> dict[str, str]:
    labels = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InvalidInput(f"--label {word}: not KEY=VALUE", hint="for example --label rack=r12")
        labels[key] = value
    return labels
