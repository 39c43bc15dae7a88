"""An agent's end of its session: what one sender does must not end it for the others."""

from __future__ import annotations

import asyncio

import pytest

from farbus.api.authority import Credentials
from farbus.api.session import NodeStream
from farbus.api.v1 import session_pb2
from farbus.errors import Unavailable

LOG = session_pb2.NodeMessage(log_data=session_pb2.LogData(request_id="r1"))
BEAT = session_pb2.NodeMessage(heartbeat=session_pb2.Heartbeat())


class SlowCall:
    """A call whose peer reads when it is told to, and which ends when a write is cancelled, as those of gRPC do."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.began = asyncio.Event()
        self.written: list[session_pb2.NodeMessage] = []
        self.ended = False

    async def write(self, message: session_pb2.NodeMessage) -> None:
        if self.ended:
            raise asyncio.InvalidStateError("RPC already finished.")
        self.began.set()
        try:
            await self.reads.wait()
        except asyncio.CancelledError:
            self.ended = True
            raise
        self.written.append(message)


@pytest.fixture
def call() -> SlowCall:
    return SlowCall()


@pytest.fixture
def stream(call: SlowCall) -> NodeStream:
    return NodeStream(call, "scheduler at test", Credentials(certificate="", key="", authority=""))


async def test_a_sender_who_gives_up_in_the_middle_of_a_message_does_not_end_the_session(
    call: SlowCall, stream: NodeStream
) -> None:
    log = asyncio.create_task(stream.send(LOG))
    await call.began.wait()
    log.cancel()
    with pytest.raises(asyncio.CancelledError):
        await log
    call.reads.set()
    await stream.send(BEAT)
    assert call.written == [LOG, BEAT]


async def test_a_session_that_has_ended_is_told_to_who_sends(call: SlowCall, stream: NodeStream) -> None:
    call.ended = True
    with pytest.raises(Unavailable, match="the session has ended"):
        await stream.send(BEAT)
