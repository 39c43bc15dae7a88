"""What the command line does around any command."""

from __future__ import annotations

import re
import sys

import pytest
import typer

import farbus
from farbus.cli import application, main
from farbus.errors import ExitCode, NotFound


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert application.run(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out == f"farbus {farbus.__version__}\n"


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "farbus.cli.application":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "farbus.cli.application")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert main(["version"]) == 130
    assert capsys.readouterr() == ("", "")


def test_error_in_a_task_group_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        inner = ExceptionGroup("inner", [NotFound("there is no job j9", hint="farbus jobs --all lists them")])
        raise ExceptionGroup("unhandled errors in a TaskGroup", [inner])

    monkeypatch.setattr(typer, "echo", lambda text: fail())
    assert application.run(["version"]) == ExitCode.NOT_FOUND
    assert capsys.readouterr().err == "farbus: there is no job j9; farbus jobs --all lists them\n"


def test_what_follows_the_examples_of_a_help_text_is_a_paragraph_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    application.run(["forget", "--help"])
    examples, _, paragraph = capsys.readouterr().out.partition("  Examples:\n")[2].partition("\n\n")
    assert examples.splitlines()[0] == "    farbus forget beta           a node that was switched off, or taken away"
    assert "may still use them. Forgetting it is your word" in " ".join(paragraph.split())
    assert ".       " not in paragraph


@pytest.mark.parametrize("command", ["jobs", "submit", "run", "volume create", "ca issue", "ca token", "softgpu run"])
def test_help_speaks_of_no_types_of_python(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert application.run([*command.split(), "--help"]) == ExitCode.OK
    assert re.findall(r"<(?:str|int|float|path|list\[)[^|>]*>", capsys.readouterr().out) == []


@pytest.mark.parametrize("command", ["sim run", "profiles", "storage", "ca", "volume", "fabric"])
def test_commands_of_a_command_are_described_whole_in_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert application.run([*command.split(), "--help"]) == ExitCode.OK
    listed = capsys.readouterr().out.partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
    assert listed
    assert max(map(len, listed)) <= 80
    # The last line of each ends its sentence.
    ends = [line for line, after in zip(listed, [*listed[1:], "  x"], strict=True) if after[2] != " "]
    assert [line for line in ends if not line.endswith(".") or line.endswith("...")] == []


def test_measurements_of_remoting_explain_what_stands_beside_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert application.run(["bench", "remoting", "--help"]) == ExitCode.OK
    told = capsys.readouterr().out.partition("Beside a figure stand:\n")[2].partition("\noptions:")[0]
    assert re.findall(r"^  (\w+) ", told, re.MULTILINE) == ["bare", "ratio", "best", "wire"]
