"""The command line as a whole: which commands there are, and how errors end it.

Each command lives in a module of its own in :mod:`farbus.cli.commands`, with a
``app`` that typer builds the command from.  The table here holds what the
overview shows, so that ``farbus --help`` loads none of them.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

import farbus
from farbus.cli.faults import as_farbus_error
from farbus.errors import ExitCode, FarbusError

COMMANDS: dict[str, tuple[str, str, str]] = {
    # command: module, chapter of the overview, one line
    "up": ("up", "Start here", "Start a whole cluster on this machine, with software GPUs."),
    "down": ("down", "Start here", "Stop your `farbus up`, and all that runs in it."),
    "demo": ("demo", "Start here", "Watch a CUDA program run on a node without a GPU."),
    "softgpu": ("softgpu", "Start here", "Run a CUDA program on the software GPU, without a cluster."),
    "doctor": ("doctor", "Start here", "Check this machine, and say what to do about each fault."),
    "run": ("run", "Work", "Run a program here with devices of the cluster."),
    "submit": ("submit", "Work", "Queue a job."),
    "jobs": ("jobs", "Work", "List jobs, or show one."),
    "logs": ("logs", "Work", "Show what a job printed."),
    "fetch": ("fetch", "Work", "Fetch the files that a job has put out."),
    "trace": ("trace", "Work", "Sum up the CUDA calls that a program has made."),
    "cancel": ("cancel", "Work", "End jobs."),
    "explain": ("explain", "Work", "Say why a job waits, or why it was placed where it is."),
    "schema": ("schema", "Work", "Print the JSON schema of job files."),
    "nodes": ("nodes", "Cluster", "List nodes, or show one."),
    "devices": ("devices", "Cluster", "List devices, or show one."),
    "leases": ("leases", "Cluster", "List who may use which devices now."),
    "volume": ("volume", "Cluster", "Make volumes on NVMe drives, attach them, and remove them."),
    "profiles": ("profiles", "Cluster", "List, set and forget what is known of applications."),
    "quota": ("quota", "Cluster", "List what users have, and what they may have."),
    "top": ("top", "Cluster", "Watch how busy nodes, GPUs and sessions are."),
    "storage": ("storage", "Operate", "Give drives of this machine to Farbus, or take them back."),
    "fabric": ("fabric", "Operate", "Look at PCIe fabrics, and assign their devices to nodes."),
    "attach": ("attach", "Operate", "Bring devices to a node over a PCIe fabric."),
    "detach": ("detach", "Operate", "Take devices from their nodes."),
    "moves": ("moves", "Operate", "List devices that are being attached and detached."),
    "cordon": ("cordon", "Operate", "Give nodes or devices nothing new."),
    "uncordon": ("uncordon", "Operate", "Let nodes or devices be used again."),
    "drain": ("drain", "Operate", "Cordon a node and wait until no job uses it."),
    "defragment": ("defragment", "Operate", "Move jobs so that a waiting one has room."),
    "forget": ("forget", "Operate", "Give up a node that is off for good."),
    "scheduler": ("scheduler", "Operate", "Serve the cluster's scheduler."),
    "agent": ("agent", "Operate", "Serve this machine as a node."),
    "install": ("install", "Operate", "Make this machine a node or the scheduler, as a service."),
    "ca": ("ca", "Operate", "Make the cluster's authority and certificates."),
    "join": ("join", "Operate", "Make this machine a node, with a token."),
    "audit": ("audit", "Operate", "Show who did what, and how it came out."),
    "bench": ("bench", "Operate", "Measure, beside the limit that the machine sets."),
    "sim": ("sim", "Operate", "Run experiments with the scheduler's code under a virtual clock."),
    "version": ("version", "Operate", "Print the version."),
}


def _without_types(command: Any) -> None:
    """Let the help of ``command`` call its arguments as they are called, without what Python makes of them.

    Newer versions of typer say ``JOB <list[str]>``.
    """
    for parameter in command.params:
        if parameter.param_type_name == "argument" and parameter.metavar:
            parameter.display_type_rich = lambda ctx: None
    for below in getattr(command, "commands", {}).values():
        _without_types(below)


class CommandTable(TyperGroup):
    """The top-level group: loads a command's module only when that command is meant."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of the overview."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load and return one command, or None where there is none of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"farbus.cli.commands.{COMMANDS[cmd_name][0]}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        _without_types(command)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that ``args`` name; a wrong name gets the nearest right one."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            raise FarbusError(
                f"there is no command {name!r}",
                hint=f"did you mean farbus {near[0]}?" if near else "farbus --help lists them",
            ).with_exit_code(ExitCode.USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the overview, by chapter."""
        del ctx
        chapters: dict[str, list[tuple[str, str]]] = {}
        for name, (_, chapter, line) in COMMANDS.items():
            chapters.setdefault(chapter, []).append((name, line))
        for chapter, rows in chapters.items():
            with formatter.section(chapter):
                formatter.write_dl(rows, col_spacing=3)


app = typer.Typer(
    name="farbus",
    cls=CommandTable,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`farbus COMMAND --help` explains a command, with examples.  Exit codes are in docs/cli.md.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"farbus {farbus.__version__}")
        raise typer.Exit


@app.callback()
def overview(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Devices of a data centre, usable from any machine in it."""
    del version


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; print an error as one line; return the exit code."""
    _open_closed_streams()
    _replace_unknown_characters()
    code = int(ExitCode.OK)
    try:
        code = _invoke(list(sys.argv[1:] if arguments is None else arguments))
        # What is still buffered must meet its error here, not in the interpreter's exit.
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe went away (`farbus jobs | head`): that ends a command as it ends cat.
        _drop(sys.stdout)
        code = 128 + signal.SIGPIPE
    except OSError as error:
        # A full disk; what the command itself met there was told.
        _drop(sys.stdout)
        code = code or _fail(error)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    return code


def _open_closed_streams() -> None:
    """Give a command that was started without a standard stream (``>&-``) an empty one.

    Otherwise the next file or connection would be its standard output.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            continue
        # The lowest that is free, which is this one.
        os.open(os.devnull, os.O_RDWR)
        setattr(sys, name, open(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _replace_unknown_characters() -> None:
    """Have what the locale has no character for written as a question mark: µ and ° of our own, names of others."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop(stream: TextIO) -> None:
    """Have what is still buffered go nowhere, and all that follows it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _invoke(arguments: list[str]) -> int:
    try:
        outcome = typer.main.get_command(app).main(arguments, prog_name="farbus", standalone_mode=False)
    except SystemExit as ended:
        # Typer answers EPIPE by sys.exit(1).
        if isinstance(ended.__context__, BrokenPipeError):
            raise BrokenPipeError from ended
        raise
    except typer.Abort as error:
        _report("given up", error)
        return int(ExitCode.FAILED)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        if isinstance(error, ExceptionGroup) and error.subgroup(BrokenPipeError) is not None:
            # One of several tasks wrote (`farbus logs --follow JOB | head`).
            raise BrokenPipeError from error
        # Typer brings its own copy of click or uses the installed one, by version: go by what a usage error can do.
        describe = getattr(error, "format_message", None)
        if type(error).__name__ == "NoArgsIsHelpError" and describe is not None:
            typer.echo(describe())
            return int(ExitCode.OK)
        if describe is not None:
            _report(_usage_line(error, str(describe())), error)
            return int(getattr(error, "exit_code", ExitCode.USAGE))
        return _fail(error)
    return outcome if isinstance(outcome, int) else int(ExitCode.OK)


def _fail(error: Exception) -> int:
    known = as_farbus_error(error)
    _report(str(known), error)
    return int(known.exit_code)


_PARSERS_WORDS = {
    "Value error, ": "",
    "Input should be ": "it must be ",
    "valid integer, unable to parse string as an integer": "whole number",
    "valid number, unable to parse string as a number": "number",
}
"""What the library that reads option values says of them, and what Farbus says."""


def _usage_line(error: Exception, message: str) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "farbus"
    message = message[:1].lower() + message[1:].rstrip(".")
    for words, ours in _PARSERS_WORDS.items():
        message = message.replace(words, ours)
    return f"{message}; {command} --help shows how it is used"


def _report(message: str, error: BaseException) -> None:
    if os.environ.get("FARBUS_DEBUG") == "1":
        traceback.print_exception(error)
    # What others wrote (names, file contents) stays text: it moves no cursor and sets no colour.
    line = " ".join("".join(each if each.isprintable() else " " for each in message).split())
    try:
        print(f"farbus: {line}", file=sys.stderr, flush=True)  # noqa: T201 - the one place that errors are printed
    except OSError:
        # The exit code tells it.
        _drop(sys.stderr)
