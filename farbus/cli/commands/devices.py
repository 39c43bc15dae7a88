"""``farbus devices``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.completion import complete_device, complete_node
from farbus.cli.connection import ask, find_target
from farbus.cli.listing import choose, print_listing
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.tables import DEVICE_COLUMNS
from farbus.model.device import DeviceKind

app = command_app()


@app.command(
    epilog=examples(
        "farbus devices                       all devices and who uses them",
        "farbus devices --node alpha          those of one node",
        "farbus devices --kind gpu -o wide    GPUs, with lease, epoch and PCI address",
    )
)
def devices(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DEVICE", help="Only these devices.", autocompletion=complete_device, show_default=False
        ),
    ] = None,
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="NAME",
            help="Only devices of this node.",
            autocompletion=complete_node,
            show_default=False,
        ),
    ] = "",
    kind: Annotated[DeviceKind | None, typer.Option("--kind", help="Only devices of this kind.")] = None,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List devices, or show one."""
    target = find_target(socket=socket, server=server, credentials=credentials)
    statuses = ask(target, lambda client: client.list_devices())
    statuses = choose(statuses, names, key=lambda status: status.device.id, noun="device")
    statuses = tuple(
        status
        for status in statuses
        if (not node or status.node == node) and (kind is None or status.device.kind is kind)
    )
    print_listing(
        statuses, DEVICE_COLUMNS, output, nothing="the cluster has no such device" if node or kind else "no device yet"
    )
