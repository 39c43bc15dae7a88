"""A directory with an authority, certificates and a scheduler's state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.scheduler.config import SchedulerConfig
from farbus.scheduler.daemon import serve
from farbus.scheduler.decision_maker import Decide
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import first_fit


class Site:
    """Certificates, and a scheduler that can be started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.create(directory / "ca")
        self.port = 0
        self._issue("scheduler", Role.SCHEDULER)

    def _issue(self, name: str, role: Role) -> Credentials:
        return write_credentials(self.directory / "credentials", name, self.authority.issue(name, role))

    def credentials(self, name: str, role: Role = Role.NODE) -> Credentials:
        known = Credentials.in_directory(self.directory / "credentials", name)
        return known if Path(known.certificate).exists() else self._issue(name, role)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def config(self, **changes: object) -> SchedulerConfig:
        settings = {
            "listen": "127.0.0.1:0",
            "state": str(self.directory / "state"),
            "credentials": self.credentials("scheduler"),
            "round_delay_s": 0.0,
            **changes,
        }
        return SchedulerConfig(**settings)  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def scheduler(self, *, decide: Decide = first_fit, **changes: object) -> AsyncIterator[None]:
        stop = asyncio.Event()
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(serve(self.config(**changes), stop=stop, ready=port.set_result, decide=decide))
        await asyncio.wait({running, port}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        self.port = port.result()
        try:
            yield
        finally:
            stop.set()
            await running

    @contextlib.asynccontextmanager
    async def agent(self, agent: LightAgent) -> AsyncIterator[LightAgent]:
        async with agent.connected(self.address, self.credentials(agent.state.name)):
            yield agent

    def client(self, name: str = "ada", role: Role = Role.USER) -> ClusterClient:
        return ClusterClient.remote(address=self.address, credentials=self.credentials(name, role))
