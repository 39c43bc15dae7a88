"""Where the measurements take place: a directory, an authority, and daemons in processes of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec

from farbus import __version__
from farbus.agent.events import Event
from farbus.agent.light import LightAgent
from farbus.agent.session import Stream
from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.api.session import open_session
from farbus.errors import FarbusError, TimedOut
from farbus.linux.children import Service, start_service
from farbus.linux.clock import SystemClock
from farbus.linux.tcp_ports import HeldPort
from farbus.linux.usage import ProcessUsage, usage_of
from farbus.model.device import Device, DeviceKind
from farbus.model.node import Node, Resources
from farbus.remoting.paths import package_root

READY_WITHIN_S = 60.0
"""Longest start of a daemon: importing everything takes seconds on a busy machine."""

LOOK_EVERY_S = 0.02
"""How often a daemon that starts is tried: what a measured start may be too long."""

STOP_WITHIN_S = 20.0

# Daemons end with the process of this id (farbus.cli.daemons), however it ends.
_PARENT_VARIABLE = "FARBUS_UP_PID"

GIB = 2**30


class Site:
    """A cluster's files; use :func:`new_site`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._authority = Authority.create(directory / "ca")
        self.port = HeldPort()
        self.scheduler: Service | None = None

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the scheduler."""
        return f"127.0.0.1:{self.port.number}"

    def credentials(self, name: str, role: Role) -> Credentials:
        """Return credentials for ``name``, issued at the first call."""
        known = Credentials.in_directory(self.directory / "credentials", name)
        if Path(known.certificate).exists():
            return known
        return write_credentials(self.directory / "credentials", name, self._authority.issue(name, role))

    def client(self) -> ClusterClient:
        """Return an operator's connection to the scheduler."""
        return ClusterClient.remote(address=self.address, credentials=self.credentials("operator", Role.OPERATOR))

    async def start_scheduler(self, **settings: object) -> None:
        """Start the scheduler, again on the same state and port, and return once it accepts connections."""
        home = self.directory / "scheduler"
        self.scheduler = await self._start(
            "scheduler",
            {
                "listen": self.address,
                "state": str(home),
                "credentials": self.credentials("scheduler", Role.SCHEDULER),
                **settings,
            },
        )
        await self._until(self.scheduler, self._accepts)

    def scheduler_usage(self) -> ProcessUsage:
        """Return what the scheduler's process uses."""
        assert self.scheduler is not None
        return usage_of(self.scheduler.pid)

    async def start_agent(self, name: str) -> Service:
        """Start a real agent as a service would, and return once its session is open."""
        home = self.directory / "agent"
        service = await self._start(
            "agent",
            {
                "name": name,
                "scheduler": self.address,
                "address": "127.0.0.1",
                "state": str(home),
                "socket": str(self.directory / "agent.sock"),
                "credentials": self.credentials(name, Role.NODE),
            },
        )

        async def joined() -> bool:
            async with self.client() as client:
                return any(status.node.name == name for status in await client.list_nodes())

        await self._until(service, joined)
        return service

    async def stop(self, service: Service) -> None:
        """Stop a daemon; kill one that does not end."""
        service.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await service.wait()
        except TimeoutError:
            service.signal(signal.SIGKILL)
            await service.wait()

    async def _start(self, command: str, settings: Mapping[str, object]) -> Service:
        path = self.directory / f"{command}.json"
        path.write_bytes(msgspec.json.encode(settings))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FARBUS_")}
        environment[_PARENT_VARIABLE] = str(os.getpid())
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package_root()), os.environ.get("PYTHONPATH")]))
        return await start_service(
            [sys.executable, "-P", "-m", "farbus.cli", command, "--config", str(path)],
            environment=environment,
            log=self.directory / f"{command}.log",
        )

    async def _accepts(self) -> bool:
        _, writer = await asyncio.open_connection("127.0.0.1", self.port.number)
        writer.close()
        return True

    async def _until(self, service: Service, condition: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                while True:
                    if not service.running:
                        raise FarbusError(f"{service.log.stem} ended: {last_line(service.log)}")
                    try:
                        if await condition():
                            return
                    except (OSError, FarbusError):
                        pass
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError as error:
            raise TimedOut(f"{service.log.stem}: not ready after {READY_WITHIN_S:g} s") from error

    # Light agents.

    def light_agent(
        self, node: Node, *, task_s: float = 0.0, heard: Callable[[str, Event], None] | None = None
    ) -> LightAgent:
        """Return a light agent with a certificate of its own."""
        credentials = self.credentials(node.name, Role.NODE)

        def open_stream() -> AbstractAsyncContextManager[Stream]:
            return open_session(address=self.address, credentials=credentials)

        return LightAgent(
            node,
            open_stream=open_stream,
            clock=SystemClock(),
            task_s=task_s,
            heard=heard or (lambda _node, _event: None),
        )


@asynccontextmanager
async def new_site() -> AsyncIterator[Site]:
    """Make a site in a temporary directory; its scheduler, and all files, go at the end."""
    directory = Path(tempfile.mkdtemp(prefix="farbus-bench-"))
    site = Site(directory)
    try:
        yield site
    finally:
        if site.scheduler is not None:
            await site.stop(site.scheduler)
        site.port.close()
        shutil.rmtree(directory, ignore_errors=True)


def light_node(number: int, *, gpus: int = 0) -> Node:
    """Return the ``number``-th pretended node."""
    name = f"light-{number:04d}"
    return Node(
        name=name,
        address="127.0.0.1",
        boot_id=f"{number:08x}-0000-4000-8000-000000000000",
        agent_version=__version__,
        capacity=Resources(cpu_milli=64_000, memory_bytes=256 * GIB),
        devices=tuple(
            Device(
                id=f"GPU-{number:08x}-0000-4000-8000-{slot:012x}",
                kind=DeviceKind.GPU,
                model="Light GPU",
                memory_bytes=16 * GIB,
                software=True,
            )
            for slot in range(gpus)
        ),
    )


def last_line(log: Path) -> str:
    """Return the last line of a daemon's log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
