"""The end of a session is noted, however it comes: its node's next agent is let in by that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest

from farbus.api.conversion import to_message
from farbus.api.identity import Identity, Role
from farbus.api.session import PROTOCOL_VERSION
from farbus.api.v1 import session_pb2, types_pb2
from farbus.scheduler import events
from farbus.scheduler.engine import Engine
from farbus.scheduler.sessions import Sessions
from tests.scheduler.scripted import node


class Told:
    """Stands for the engine: what a session tells it."""

    def __init__(self) -> None:
        self.machine = SimpleNamespace(nodes={}, term=1)
        self.heard: list[events.Event] = []

    def next_session(self) -> int:
        return 1

    def attach(self, *_: object) -> None:
        pass

    def detach(self, *_: object) -> None:
        pass

    def tell(self, event: events.Event) -> None:
        self.heard.append(event)


async def break_while_it_ends() -> list[events.Event]:
    """Have an agent close its session, and the connection break while the scheduler still tidies up."""
    engine, ending = Told(), asyncio.Event()
    sessions = Sessions(cast("Engine", engine), lease_ttl_s=15.0, heartbeat_s=3.0)

    async def incoming() -> AsyncIterator[session_pb2.NodeMessage]:
        hello = session_pb2.NodeHello(protocol=PROTOCOL_VERSION, node=to_message(node("a"), types_pb2.Node))
        yield session_pb2.NodeMessage(hello=hello)

    async def send(_: session_pb2.SchedulerMessage) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # Cancelled, it takes its time.
            ending.set()
            await asyncio.Event().wait()

    caller = Identity(name="a", role=Role.NODE)
    session = asyncio.create_task(sessions.session(caller, incoming(), send))
    await ending.wait()
    session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session
    return engine.heard


def test_a_session_whose_connection_breaks_while_it_ends_has_ended() -> None:
    joined, lost = asyncio.run(break_while_it_ends())
    assert isinstance(joined, events.NodeJoined)
    assert isinstance(lost, events.NodeLost)
