"""Options that several commands share, and how help texts show examples."""

from __future__ import annotations

import enum
import re
from itertools import groupby
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from farbus.cli.jobfile import MAX_GPUS, ResourceTable, parse_deadline
from farbus.errors import InvalidInput
from farbus.model.device import Route
from farbus.model.job import MAX_IMPORTANCE, Goal
from farbus.model.quantity import parse_seconds


class Output(enum.StrEnum):
    """Forms of a listing."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="table, wide (more columns) or json (every field, for programs)."),
]

CREDENTIALS_VARIABLE = "FARBUS_CREDENTIALS"

SocketOption = Annotated[
    str,
    typer.Option(
        "--socket",
        metavar="PATH",
        envvar="FARBUS_SOCKET",
        help="Speak to the agent that serves this Unix socket.",
        show_default=False,
    ),
]

ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        envvar="FARBUS_SERVER",
        help="Speak to the scheduler itself; needs --credentials.",
        show_default=False,
    ),
]

CredentialsOption = Annotated[
    str,
    typer.Option(
        "--credentials",
        metavar="DIR",
        envvar=CREDENTIALS_VARIABLE,
        help="Directory with ca.crt and one NAME.crt with its NAME.key (farbus ca issue).",
        show_default=False,
    ),
]


GpusOption = Annotated[int, typer.Option("--gpus", metavar="N", min=0, max=MAX_GPUS, help="GPUs that each task needs.")]
GpuMemoryOption = Annotated[
    str, typer.Option("--gpu-memory", metavar="SIZE", help="Least memory of each GPU, like 8GiB.", show_default=False)
]
GpuModelOption = Annotated[
    str,
    typer.Option("--gpu-model", metavar="TEXT", help="Part of the GPU model's name, in any case.", show_default=False),
]
GpuShareOption = Annotated[
    str,
    typer.Option(
        "--gpu-share",
        metavar="PART",
        help="Have a share of a GPU, of at least 0.25, 1/4 or 25%, instead of a whole one.",
        show_default=False,
    ),
]
GpuSpanOption = Annotated[
    bool,
    typer.Option("--gpu-span", help="Take GPUs of several nodes, where no node has so many.", show_default=False),
]
CpusOption = Annotated[str, typer.Option("--cpus", metavar="N", help="Processors: 2, 0.5 or 250m.")]
NetworkOption = Annotated[
    str,
    typer.Option(
        "--network",
        metavar="SPEED",
        help="Network of its node, beside what remote GPUs take, like 10Gbit/s.",
        show_default=False,
    ),
]
RemoteNetworkOption = Annotated[
    str,
    typer.Option(
        "--remote-network",
        metavar="SPEED",
        help="Network that each remote GPU takes at both ends; else the cluster's figure.",
        show_default=False,
    ),
]
MemoryOption = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory, like 512MiB or 4GiB.")]
RouteOption = Annotated[
    list[Route] | None,
    typer.Option("--route", help="How devices may be given: repeat for several.  [default: local, remote]"),
]


SloOption = Annotated[
    str,
    typer.Option(
        "--slo", metavar="TIME", help="Within how long from its start it is to be done: a wish.", show_default=False
    ),
]
ImportanceOption = Annotated[
    float | None,
    typer.Option(
        "--importance",
        metavar="N",
        help="How little missing --slo counts: from 1, in full, to below 10.",
        show_default=False,
    ),
]
DeadlineOption = Annotated[
    str,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="When it should be done: 2h from now on, or 2027-01-31T18:00.",
        show_default=False,
    ),
]
ApplicationOption = Annotated[
    str,
    typer.Option(
        "--application", metavar="NAME", help="What its runs are remembered under; else its name.", show_default=False
    ),
]


def read_goal(*, slo: str, importance: float | None, deadline: str) -> Goal:
    """Turn the options into what is wished for the job."""
    if importance is not None and not 1 <= importance < MAX_IMPORTANCE:
        raise InvalidInput(f"--importance: {importance:g} is not from 1 to below {MAX_IMPORTANCE:g}")
    deadline_s, deadline_at = parse_deadline(deadline or 0, what="--deadline")
    return Goal(
        slo_s=parse_seconds(slo or 0, what="--slo"),
        importance=importance or 0.0,
        deadline_s=deadline_s,
        deadline_at=deadline_at,
    )


def resource_table(
    *,
    gpus: int,
    gpu_memory: str,
    gpu_model: str,
    gpu_share: str,
    gpu_span: bool,
    remote_network: str,
    cpus: str,
    memory: str,
    network: str,
) -> ResourceTable:
    """Return what each task needs as a job file would say it; options that were left out are empty."""
    return ResourceTable(
        cpus=cpus,
        memory=memory,
        network=network or 0,
        gpus=gpus,
        gpu_memory=gpu_memory or 0,
        gpu_model=gpu_model,
        gpu_share=gpu_share or 0,
        gpu_span=gpu_span,
        remote_network=remote_network or None,
    )


class WholeTable(TyperGroup):
    """Commands of a command, each with its first sentence whole: click cuts it to what is left of a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what there is."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=SENTENCE_LIMIT)) for name, command in found if command]
            )


def command_app() -> typer.Typer:
    """Return a typer application for one command's module, without typer's own colours and boxes."""
    return typer.Typer(
        cls=WholeTable,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


_BESIDE = re.compile(r"(?<=\S) {2,}(?=\S)")

SENTENCE_LIMIT = 1000
"""More characters than a first sentence has."""

EXAMPLE_COLUMNS = 76
"""Columns of an example: what a terminal of 80 leaves beside the help's and the heading's indent."""


def examples(*lines: str) -> str:
    """Return the end of a help text: ``lines`` under a heading.

    A line is a command, or a command, two blanks or more, and what it is for,
    which stands below where some line of them has no room for it. After an
    empty line come ordinary paragraphs, a line each; those that begin with a
    blank stand as they are, one below the other: the lines of a file.
    """
    end = lines.index("") if "" in lines else len(lines)
    commands, paragraphs = lines[:end], [line for line in lines[end:] if line]
    if max(map(len, commands)) > EXAMPLE_COLUMNS:
        commands = tuple(_BESIDE.sub("\n      ", line) for line in commands)
    # \b keeps the lines of a paragraph as they are; an empty line begins an ordinary paragraph.
    blocks = [
        ["\b", *block] if kept else ["\n\n".join(block)]
        for kept, block in ((kept, list(block)) for kept, block in groupby(paragraphs, lambda line: line[0] == " "))
    ]
    parts = [["\b", "Examples:", *(f"  {line}" for line in commands)], *blocks]
    return "\n\n".join("\n".join(part) for part in parts)


class CommandAfterDashes(TyperCommand):
    """A command that may end with ``--`` and a program with the program's own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remember whether ``--`` stood before the program: click takes it away."""
        ctx.meta[_DASHES] = "--" in args
        return super().parse_args(ctx, args)


class ProgramCommand(CommandAfterDashes):
    """A command that ends with a program: what follows the program's name is the program's own."""

    allow_interspersed_args = False


_DASHES = "farbus.dashes"


def has_dashes(ctx: typer.Context) -> bool:
    """Say whether ``--`` was among the arguments of a :class:`CommandAfterDashes`."""
    return bool(ctx.meta[_DASHES])
