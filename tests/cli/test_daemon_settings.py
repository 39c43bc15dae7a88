"""Whose credentials a daemon takes, that the environment's are not taken in silence, and where paths begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from farbus.cli import daemons
from farbus.cli.node_settings import node_settings
from farbus.cli.options import CREDENTIALS_VARIABLE


@pytest.fixture
def directories(tmp_path: Path) -> tuple[str, str]:
    """A node's credentials, which ``agent.toml`` names, and an operator's."""
    for name in ("node", "operator"):
        (tmp_path / name).mkdir()
        for file in ("ca.crt", f"{name}.crt", f"{name}.key"):
            (tmp_path / name / file).touch()
    (tmp_path / "agent.toml").write_text(f'credentials = "{tmp_path / "node"}"\n')
    return str(tmp_path / "node"), str(tmp_path / "operator")


@pytest.mark.usefixtures("directories")
def test_a_files_credentials_are_taken_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = daemons.read_settings(str(tmp_path / "agent.toml"), {}, credentials="")
    assert settings["credentials"]["key"].endswith("node/node.key")
    assert capsys.readouterr().err == ""


def test_the_variable_that_counts_before_a_file_is_named(
    directories: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, operator = directories
    monkeypatch.setenv(CREDENTIALS_VARIABLE, operator)
    settings = daemons.read_settings(str(tmp_path / "agent.toml"), {}, credentials=operator)
    assert settings["credentials"]["key"].endswith("operator/operator.key")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"farbus: taking the credentials in {operator}, which FARBUS_CREDENTIALS names; "
        f"it counts before those of {tmp_path / 'agent.toml'}: unset it to take these"
    )


def test_an_option_is_taken_without_a_word(
    directories: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node, operator = directories
    monkeypatch.setenv(CREDENTIALS_VARIABLE, operator)
    daemons.read_settings(str(tmp_path / "agent.toml"), {}, credentials=node)
    assert capsys.readouterr().err == ""


def test_relative_paths_begin_at_the_files_directory_or_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervisors and programs of an agent have directories of their own, where such a state would be another one."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    lines = ['state = "state"', 'cdi_directory = "/run/cdi"', 'fabric = ""', 'softgpu = "count=1"']
    lines += ["[credentials]", 'authority = "node/ca.crt"', f'key = "{tmp_path}/a.key"']
    (tmp_path / "etc/agent.toml").write_text("\n".join(lines))
    settings = daemons.read_settings("../etc/agent.toml", {"socket": "agent.sock", "name": "alpha"}, credentials="")
    assert settings == {
        "state": f"{tmp_path}/etc/state",
        "cdi_directory": "/run/cdi",
        "fabric": "",
        "softgpu": "count=1",
        "credentials": {"authority": f"{tmp_path}/etc/node/ca.crt", "key": f"{tmp_path}/a.key"},
        "socket": f"{tmp_path}/there/agent.sock",
        "name": "alpha",
    }


def test_commands_find_relative_paths_of_a_nodes_settings_where_its_agent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.toml").write_text('fabric = "fabric.toml"\ncredentials = "node"\nvolume_group = "fast"\n')
    monkeypatch.chdir(tmp_path.parent)
    settings = node_settings(f"{tmp_path.name}/agent.toml")
    assert (settings.fabric, settings.credentials) == (f"{tmp_path}/fabric.toml", f"{tmp_path}/node")
    assert settings.volume_group == "fast"
