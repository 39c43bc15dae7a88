"""The manual page, made of the commands' own help texts (man-pages(7) says what is in one)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import typer

import farbus
from farbus.cli.application import COMMANDS, app

_SEE_ALSO = "systemctl(1), nvidia-smi(1)"


@functools.cache
def manual_page() -> str:
    """Return farbus(1) in troff."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name="farbus")
    lines = [
        f'.TH FARBUS 1 "" "farbus {farbus.__version__}" "User Commands"',
        ".SH NAME",
        f"farbus \\- {_text(farbus.__doc__ or '').partition(': ')[2].rstrip('.')}",
        ".SH SYNOPSIS",
        r".B farbus",
        r"\fICOMMAND\fR [\fIOPTION\fR]...",
        ".SH DESCRIPTION",
        "A program on one machine uses devices of another.",
        "Each command explains itself, with examples: \\fBfarbus\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR.",
    ]
    chapter = ""
    for name, (_, heading, line) in COMMANDS.items():
        if heading != chapter:
            chapter = heading
            lines.append(f'.SH "{heading.upper()}"')
        command = group.get_command(context, name)
        lines += [f".SS farbus {_text(name)}", _text(line), *_parameters(command)]
        for below, sub in sorted(getattr(command, "commands", {}).items()):
            lines += [".TP", f"\\fBfarbus {_text(name)} {_text(below)}\\fR", _text(sub.get_short_help_str(limit=200))]
    lines += [
        ".SH FILES",
        *(".TP", "/etc/farbus/agent.toml, /etc/farbus/scheduler.toml", "Settings of the services."),
        *(".TP", "/run/farbus/agent.sock", "Where the agent of this machine serves commands."),
        ".SH SEE ALSO",
        _text(_SEE_ALSO),
    ]
    return "\n".join(lines) + "\n"


def _parameters(command: Any) -> Iterator[str]:
    for parameter in command.params:
        help_text = getattr(parameter, "help", None)
        if not help_text or getattr(parameter, "hidden", False) or "--help" in parameter.opts:
            continue
        names = ", ".join(f"\\fB{_text(name)}\\fR" for name in parameter.opts if name.startswith("-"))
        metavar = parameter.metavar or ""
        words = " ".join(word for word in (names, f"\\fI{_text(metavar)}\\fR" if metavar else "") if word)
        if words:
            yield from (".TP", words, _text(help_text))


def _text(text: str) -> str:
    """Return ``text`` so that troff prints it as it stands, in one line."""
    line = re.sub(r"\s+", " ", text).strip().replace("\\", "\\e").replace("-", "\\-")
    # A control line begins with a dot or an apostrophe.
    return f"\\&{line}" if line.startswith((".", "'")) else line
