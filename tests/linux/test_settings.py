"""Reading a daemon's settings again: by the command that started it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from farbus.agent.config import AgentConfig
from farbus.api.authority import Authority, write_credentials
from farbus.api.identity import Role
from farbus.errors import InvalidInput
from farbus.linux.settings import settings_reader


async def _awaited(read: Callable[[], Awaitable[AgentConfig]]) -> AgentConfig:
    return await read()


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    # As whoever starts a daemon sets it.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration file of an agent, with a certificate."""
    issued = Authority.create(tmp_path / "ca", cluster="test").issue("alpha", Role.NODE)
    write_credentials(tmp_path / "node", "alpha", issued)
    path = tmp_path / "agent.toml"
    path.write_text(f'name = "alpha"\nscheduler = "control:7411"\ncredentials = "{tmp_path}/node"\n')
    return path


def test_settings_are_those_of_file_and_options_now(no_terminal: None, file: Path) -> None:
    read = settings_reader(["agent", "--config", str(file), "--address", "10.0.0.7"], AgentConfig)
    assert read is not None
    file.write_text(file.read_text() + '[labels]\nrack = "r12"\n')
    config = asyncio.run(_awaited(read))
    assert (config.labels, config.address) == ({"rack": "r12"}, "10.0.0.7")
    assert config.credentials.certificate == str(file.parent / "node" / "alpha.crt")


def test_wrong_settings_are_told_as_the_command_tells_them(no_terminal: None, file: Path) -> None:
    read = settings_reader(["agent", "--config", str(file)], AgentConfig)
    assert read is not None
    file.write_text("nonsense")
    with pytest.raises(InvalidInput, match=r"agent\.toml: not TOML"):
        asyncio.run(_awaited(read))


def test_a_daemon_at_a_terminal_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    assert settings_reader(["agent"], AgentConfig) is None
