"""What the agent's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from farbus.agent.config import AgentConfig
from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.identity import Role
from tests.agent.harness import AgentInProcess, ScriptedScheduler


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest_asyncio.fixture
async def scheduler(tmp_path: Path, authority: Authority) -> AsyncIterator[ScriptedScheduler]:
    scripted = ScriptedScheduler(tmp_path, authority)
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
def node_credentials(tmp_path: Path, authority: Authority) -> Credentials:
    return write_credentials(tmp_path / "credentials", "n1", authority.issue("n1", Role.NODE))


@pytest.fixture
def config(tmp_path: Path, scheduler: ScriptedScheduler, node_credentials: Credentials) -> AgentConfig:
    return AgentConfig(
        name="n1",
        scheduler=scheduler.address,
        address="127.0.0.1",
        peer_port=0,
        state=str(tmp_path / "state"),
        socket=str(tmp_path / "agent.sock"),
        credentials=node_credentials,
        physical_devices=False,
        run_as_self=True,
        end_on_stop=True,
        orphan_limit_s=60.0,
    )


@pytest_asyncio.fixture
async def agent() -> AsyncIterator[AgentInProcess]:
    one = AgentInProcess()
    yield one
    await one.stop()
