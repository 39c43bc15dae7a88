"""``farbus top``."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated

import typer

from farbus.cli.completion import complete_node
from farbus.cli.connection import Target, ask, connect, find_target
from farbus.cli.listing import choose, has_colours, print_json
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.cli.top import SORT_KEYS, Sort, picture
from farbus.errors import ExitCode, FarbusError, InvalidInput
from farbus.model.telemetry import ClusterTelemetry

app = command_app()


LEAST_INTERVAL_S = 0.5
MOST_INTERVAL_S = 3600.0
PLAIN_WIDTH = 80
WIDE_WIDTH = 120
"""Columns of a picture, and of a wide one, that goes into a file or pipe; a wide one that stands has no fewer."""


@app.command(
    epilog=examples(
        "farbus top                       live; q ends it, n b m t choose the order",
        "farbus top --once                one picture, for a file or a ticket",
        "farbus top alpha --sort traffic  one node, busiest sessions first",
        "farbus top -o wide               also the process ids of programs and of their servers, in 119 columns",
        "farbus top -o json               every figure once, for programs",
        "",
        "BUSY of a GPU is the share of time in which kernels ran. BUSY of a program is the share in which the "
        "GPU's node had a call of it in work, waiting for the GPU included: at most 100%, however many threads wait.",
        "WAITS (wide) is for how long a program's server has had calls in work without finishing or taking any, from "
        "5 s on. One that hangs is process SERVER on node ON: killing that ends the program's session.",
        "VIA is what carries a program's calls: shm and unix within a node, tls between nodes (tcp where encryption is "
        "off, rdma where that is on).",
        "Figures of jobs are shown to their users, and to operators all.",
    )
)
def top(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE", help="Only these nodes.", autocompletion=complete_node, show_default=False),
    ] = None,
    sort: Annotated[Sort, typer.Option("--sort", "-s", help="What comes first.")] = Sort.NAME,
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", help="Time between two pictures.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one picture and end.")] = False,
    output: OutputOption = Output.TABLE,
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> int:
    """Watch how busy nodes, GPUs and remoting sessions are."""
    if not LEAST_INTERVAL_S <= interval <= MOST_INTERVAL_S:
        raise InvalidInput(
            f"--interval {interval:g}: not from {LEAST_INTERVAL_S:g} to {MOST_INTERVAL_S:g} seconds",
            hint="agents measure every three seconds",
        )
    target = find_target(socket=socket, server=server, credentials=credentials)
    wanted = tuple(nodes or ())
    live = sys.stdout.isatty() and sys.stdin.isatty() and not once and output is not Output.JSON
    if live:
        try:
            asyncio.run(_watch(target, wanted, sort=sort, interval_s=interval, wide=output is Output.WIDE))
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM
        return int(ExitCode.OK)
    telemetry = ask(target, lambda client: client.get_telemetry(nodes=wanted))
    # For a name that no node has: one line that says so.
    choose(telemetry.nodes, wanted, key=lambda node: node.node, noun="node")
    if output is Output.JSON:
        print_json(telemetry)
    else:
        _print(telemetry, sort, wide=output is Output.WIDE)
    return int(ExitCode.OK)


def _print(telemetry: ClusterTelemetry, sort: Sort, *, wide: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - takes its time to load

    width = WIDE_WIDTH if wide else PLAIN_WIDTH
    if sys.stdout.isatty():
        # What was asked for is not cut: a narrow terminal breaks the lines itself.
        width = max(Console().width, WIDE_WIDTH) if wide else Console().width
    console = Console(width=width, highlight=False, no_color=not has_colours())
    console.print(picture(telemetry, sort=sort, wide=wide))


async def _watch(target: Target, wanted: tuple[str, ...], *, sort: Sort, interval_s: float, wide: bool) -> None:
    """Show one picture after the other until q is pressed; while the cluster can't be reached, the last one."""
    from rich.console import Console  # noqa: PLC0415 - takes its time to load
    from rich.live import Live  # noqa: PLC0415

    from farbus.linux.terminal import keys  # noqa: PLC0415 - with it

    console = Console(highlight=False, no_color=not has_colours())
    async with connect(target) as client, keys(sys.stdin.fileno()) as pressed:
        telemetry = await client.get_telemetry(nodes=wanted)
        choose(telemetry.nodes, wanted, key=lambda node: node.node, noun="node")
        with Live(console=console, screen=True, auto_refresh=False) as live:
            error = ""
            while True:
                height = console.size.height
                shown = picture(telemetry, sort=sort, height=height, error=error, keys=True, wide=wide)
                live.update(shown, refresh=True)
                key = await pressed.next(interval_s)
                if key == "q":
                    return
                sort = SORT_KEYS.get(key or "", sort)
                if key is None:
                    try:
                        telemetry, error = await client.get_telemetry(nodes=wanted), ""
                    except FarbusError as problem:
                        error = str(problem)
