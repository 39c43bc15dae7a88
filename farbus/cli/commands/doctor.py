"""``farbus doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from farbus.cli.diagnosis import examine
from farbus.cli.findings import Finding, Verdict
from farbus.cli.listing import has_colours, print_json, printable
from farbus.cli.node_settings import AGENT_SETTINGS
from farbus.cli.options import (
    CredentialsOption,
    Output,
    OutputOption,
    ServerOption,
    SocketOption,
    command_app,
    examples,
)
from farbus.errors import ExitCode

app = command_app()

_MARKS = {Verdict.OK: "ok", Verdict.NOTE: "--", Verdict.WARNING: "!!", Verdict.BROKEN: "XX"}
_COLOURS = {Verdict.OK: "green", Verdict.NOTE: None, Verdict.WARNING: "yellow", Verdict.BROKEN: "red"}


@app.command(
    epilog=examples(
        "farbus doctor",
        "farbus doctor --config ~/agent.toml",
        "farbus doctor --server control:7411 --credentials ~/.farbus",
        "farbus doctor -o json",
    )
)
def doctor(
    output: OutputOption = Output.TABLE,
    config: Annotated[
        str,
        typer.Option(
            "--config", "-c", metavar="FILE", help=f"Settings of this machine's agent.  [default: {AGENT_SETTINGS}]"
        ),
    ] = "",
    socket: SocketOption = "",
    server: ServerOption = "",
    credentials: CredentialsOption = "",
) -> int:
    """Check this machine, and say what to do about each fault.

    Ends with 1 when something that is needed is broken; notes and warnings are no faults.
    """
    findings = []
    for finding in examine(config=config, socket=socket, server=server, credentials=credentials):
        findings.append(finding)
        if output is not Output.JSON:
            _print(finding)
    if output is Output.JSON:
        print_json(findings)
    broken = sum(finding.verdict is Verdict.BROKEN for finding in findings)
    if output is not Output.JSON:
        typer.echo(f"\n{broken} broken" if broken else "\nnothing is broken")
    return int(ExitCode.FAILED if broken else ExitCode.OK)


def _print(finding: Finding) -> None:
    mark = (
        typer.style(_MARKS[finding.verdict], fg=_COLOURS[finding.verdict])
        if has_colours()
        else (_MARKS[finding.verdict])
    )
    typer.echo(f"{mark}  {finding.check:<16} {printable(finding.found)}")
    if finding.cure and finding.verdict is not Verdict.OK:
        typer.echo(f"    {'':<16} -> {printable(finding.cure)}")
