"""``farbus demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.demo import Tour
from farbus.cli.options import command_app, examples

app = command_app()


@app.command(epilog=examples("farbus demo", "farbus demo --programs DIR    with heat.cu and saxpy.cu from elsewhere"))
def demo(
    programs: Annotated[
        str,
        typer.Option("--programs", metavar="DIR", help="Where the CUDA programs are.", show_default=False),
    ] = "",
) -> None:
    """Watch CUDA programs run on a node without a GPU.

    Starts a cluster of three nodes on this machine, compiles two CUDA programs
    with nvcc, runs one as a job and one in this terminal, both on the node
    without a GPU, checks their results, stops the cluster, and makes sure that
    nothing is left.  Every step shows the command that you would type.
    """
    Tour(programs=programs).run()
