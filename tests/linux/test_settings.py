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
from farbus.linux.notify import FakeNotifier
from farbus.linux.settings import keep_reloading, settings_reader
from farbus.model.value import Value


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


class Small(Value, frozen=True, kw_only=True):
    label: str = "old"
    address: str = "a"


class Listener(FakeNotifier):
    """Knows when it has heard of the end of some reloads."""

    def __init__(self, reloads: int) -> None:
        super().__init__()
        self.reloads = reloads
        self.heard = asyncio.Event()

    def tell(self, state: str) -> None:
        super().tell(state)
        if self.told.count("READY=1") == self.reloads:
            self.heard.set()


async def reload_with(*answers: Small | InvalidInput) -> tuple[list[Small], list[str]]:
    """Ask for one reload for each answer; return the settings that were taken, and what was told."""
    taken: list[Small] = []
    notifier = Listener(len(answers))
    asked, left = asyncio.Event(), list(answers)

    async def reread() -> Small:
        answer = left.pop(0)
        if left:
            asked.set()
        if isinstance(answer, InvalidInput):
            raise answer
        return answer

    async def take(settings: Small) -> None:
        taken.append(settings)

    asked.set()
    reloader = asyncio.create_task(
        keep_reloading(
            asked, Small(), reread=reread, check=lambda settings: None, changeable=frozenset({"label"}), take=take,
            notifier=notifier,
        )
    )  # fmt: skip
    await notifier.heard.wait()
    reloader.cancel()
    return taken, [state.partition("\n")[0] for state in notifier.told]


async def test_a_reload_takes_what_may_change_and_nothing_else() -> None:
    taken, told = await reload_with(Small(label="new", address="b"))
    assert taken == [Small(label="new", address="a")]
    assert told == ["RELOADING=1", "READY=1"]


async def test_a_reload_of_wrong_settings_takes_nothing_and_the_next_one_is_heard() -> None:
    taken, told = await reload_with(InvalidInput("not TOML"), Small(label="new"))
    assert taken == [Small(label="new")]
    assert told == ["RELOADING=1", "READY=1"] * 2
