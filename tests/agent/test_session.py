"""The agent's session over streams that a test makes: whatever a stream does at its end, the agent dials again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.agent.logs import LogStore
from farbus.agent.machine import NodeMachine
from farbus.agent.membership import Membership
from farbus.agent.session import SessionRunner
from farbus.api.v1 import session_pb2
from farbus.errors import FarbusError, Unavailable
from farbus.linux.clock import SystemClock
from tests.scheduler.scripted import node

pytestmark = pytest.mark.timeout(30)


class ImpatientClock(SystemClock):
    """Sleeps are over at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class EndingStream:
    """Welcomes, takes ``sends`` messages, and ends as ``how`` says."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._waiting = asyncio.Event()
        self._sends = 0

    async def send(self, message: session_pb2.NodeMessage) -> None:
        self._sends += 1
        if self._sends == 1:
            return
        self._waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            if self._how == "the sender fails while it is cancelled":
                raise Unavailable("the session has ended") from error
            raise

    async def __aiter__(self) -> AsyncIterator[session_pb2.SchedulerMessage]:
        yield session_pb2.SchedulerMessage(welcome=session_pb2.Welcome(term=1, lease_ttl_s=15.0, heartbeat_s=3.0))
        await self._waiting.wait()
        match self._how:
            case "the reader fails":
                raise Unavailable("the connection was closed")
            case "the reader is cancelled by nobody":
                raise asyncio.CancelledError


@pytest.mark.parametrize(
    "how",
    [
        "it ends",
        "the sender fails while it is cancelled",
        "the reader fails",
        "the reader is cancelled by nobody",
    ],
)
async def test_a_session_that_has_ended_is_dialled_again_and_again(how: str) -> None:
    dials: asyncio.Queue[None] = asyncio.Queue()

    @contextlib.asynccontextmanager
    async def open_stream() -> AsyncIterator[EndingStream]:
        dials.put_nowait(None)
        yield EndingStream(how)

    runner = SessionRunner(
        open_stream=open_stream,
        machine=NodeMachine(node="a"),
        membership=Membership(None),
        node=lambda: node("a"),
        telemetry=lambda encoder: encoder.update({}),
        logs=LogStore(Path("/nonexistent"), limit_bytes_per_task=0, limit_bytes=0),
        clock=ImpatientClock(),
        post=lambda event: None,
    )
    running = asyncio.create_task(runner.run())
    try:
        for _ in range(4):
            dialled = asyncio.create_task(dials.get())
            await asyncio.wait({running, dialled}, return_when=asyncio.FIRST_COMPLETED)
            assert not running.done(), "the agent has given its session up"
            dialled.cancel()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, FarbusError):
            await running
