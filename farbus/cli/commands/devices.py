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
from farbus.cli.pci_tree import TREE_COLUMNS, read_tree
from farbus.cli.tables import DEVICE_COLUMNS
from farbus.errors import FarbusError, InvalidInput
from farbus.model.device import DeviceKind, DeviceStatus

app = command_app()


@app.command(
    epilog=examples(
        "farbus devices                       all devices and who uses them",
        "farbus devices --node alpha          those of one node",
        "farbus devices --kind gpu -o wide    GPUs, with lease, epoch and PCI address",
        "farbus devices --tree                this machine's PCI tree, and who holds what",
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
    tree: Annotated[
        bool, typer.Option("--tree", help="This machine's PCI tree instead, with holders and leases; needs no cluster.")
    ] = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """List devices, or show one: those of nodes, and those that are free in a chassis or on their way."""
    if tree:
        _show_tree(names, node, kind, output, socket=socket, server=server, credentials=credentials)
        return
    target = find_target(socket=socket, server=server, credentials=credentials)
    statuses = ask(target, lambda client: client.list_devices())
    if node and not any(status.node == node for status in statuses):
        # It may be a node without devices, or none at all.
        choose(ask(target, lambda client: client.list_nodes()), [node], key=lambda each: each.node.name, noun="node")
    statuses = choose(statuses, names, key=lambda status: status.device.id, noun="device")
    statuses = tuple(
        status
        for status in statuses
        if (not node or status.node == node) and (kind is None or status.device.kind is kind)
    )
    print_listing(
        statuses, DEVICE_COLUMNS, output, nothing="the cluster has no such device" if node or kind else "no device yet"
    )


def _show_tree(
    names: list[str] | None,
    node: str,
    kind: DeviceKind | None,
    output: Output,
    *,
    socket: str,
    server: str,
    credentials: str,
) -> None:
    if names or node or kind is not None:
        raise InvalidInput("--tree shows the whole of this machine", hint="leave out names, --node and --kind")
    statuses: tuple[DeviceStatus, ...] = ()
    try:
        target = find_target(socket=socket, server=server, credentials=credentials)
        own = ask(target, lambda client: client.cluster_info()).node
        listed = ask(target, lambda client: client.list_devices())
        statuses = tuple(status for status in listed if status.node == own)
    except FarbusError as error:
        typer.echo(f"leases are not known: {error.message}", err=True)
    print_listing(read_tree(statuses), TREE_COLUMNS, output, nothing="this machine has no PCI bus")
