"""Tasks' output on its way from agents to readers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from farbus.errors import FarbusError, NotFound, Unavailable
from farbus.model.cluster import LogChunk
from farbus.scheduler import relay
from farbus.scheduler.relay import LogRelay


class Nodes:
    def __init__(self) -> None:
        self.requests: list[tuple[str, ...]] = []
        self.cancelled: list[tuple[str, str]] = []
        self.credit: list[tuple[str, str, int]] = []
        self.connected = True
        self.relay = LogRelay(
            request=self.request,
            credit=lambda *given: self.credit.append(given),
            cancel=lambda node, number: self.cancelled.append((node, number)),
        )

    def request(
        self, node: str, number: str, job_id: str, positions: Mapping[str, int], follow: bool, user: str
    ) -> bool:
        self.requests.append((node, number, job_id, *positions))
        return self.connected

    def give(
        self,
        data: bytes,
        *,
        number: str = "log-1",
        node: str = "a",
        end: bool = False,
        error: str = "",
        missing: bool = False,
    ) -> None:
        chunk = LogChunk(data=data) if data else None
        self.relay.take(node, number, chunk, end=end, error=error, missing=missing)


async def test_chunks_arrive_in_order_until_the_end() -> None:
    nodes = Nodes()
    chunks = nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=False)
    waiting = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    assert nodes.requests == [("a", "log-1", "j1", "main.0")]
    nodes.give(b"one")
    nodes.give(b"two", end=True)
    assert (await waiting).data == b"one"
    assert [chunk.data async for chunk in chunks] == [b"two"]
    assert nodes.cancelled == []


async def reading(nodes: Nodes) -> list[bytes]:
    return [chunk.data async for chunk in nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=True)]


async def test_no_user_takes_the_readers_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_READERS_PER_USER", 1)
    nodes = Nodes()
    nodes.relay._request = lambda _node, number, *_: (nodes.give(b"some", number=number), True)[1]
    chunks = nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=True)
    await anext(chunks)
    with pytest.raises(Unavailable, match="user ada reads 1 logs already, the most that one user may"):
        await anext(nodes.relay.read("b", "j2", {"main.0": 0}, user="ada", follow=True))
    others = nodes.relay.read("a", "j3", {"main.0": 0}, user="eve", follow=True)
    assert (await anext(others)).data == b"some"
    await chunks.aclose()
    again = nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=True)
    assert (await anext(again)).data == b"some"
    await others.aclose()
    await again.aclose()


async def test_a_node_without_a_session_is_told() -> None:
    nodes = Nodes()
    nodes.connected = False
    with pytest.raises(Unavailable, match="node a"):
        await reading(nodes)


async def test_what_the_node_says_against_it_is_told() -> None:
    nodes = Nodes()
    nodes.request = lambda *_: (nodes.give(b"", end=True, error="no such log"), True)[1]  # type: ignore[method-assign]
    nodes.relay._request = nodes.request
    with pytest.raises(FarbusError, match="no such log"):
        await reading(nodes)


async def test_a_log_that_is_not_there_is_not_found() -> None:
    nodes = Nodes()
    nodes.relay._request = lambda *_: (nodes.give(b"", end=True, error="no output is kept", missing=True), True)[1]
    with pytest.raises(NotFound, match="no output is kept"):
        await reading(nodes)


async def test_a_lost_node_ends_its_readers() -> None:
    nodes = Nodes()
    chunks = nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=True)
    nodes.relay._request = lambda *_: (nodes.give(b"some"), nodes.relay.lose("a"), True)[2]
    assert (await anext(chunks)).data == b"some"
    with pytest.raises(Unavailable, match="node a, which has the log, was lost"):
        await anext(chunks)


async def test_credit_follows_what_the_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "CREDIT_STEP_BYTES", 10)
    nodes = Nodes()
    chunks = nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=True)
    nodes.relay._request = lambda *_: ([nodes.give(b"12345") for _ in range(5)], True)[1]
    await anext(chunks)
    await anext(chunks)
    assert nodes.credit == []
    await anext(chunks)
    assert nodes.credit == [("a", "log-1", 10)]
    await anext(chunks)
    await anext(chunks)
    assert nodes.credit == [("a", "log-1", 10)] * 2
    await chunks.aclose()


async def test_a_log_that_has_ended_gets_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "CREDIT_STEP_BYTES", 1)
    nodes = Nodes()
    nodes.relay._request = lambda *_: ([nodes.give(b"12345", end=True)], True)[1]
    assert len(await reading(nodes)) == 1
    assert nodes.credit == []


async def test_a_slow_reader_of_an_agent_without_credit_is_cut_off_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_READER_BYTES", 10)
    nodes = Nodes()
    slow = nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=True)
    fast = nodes.relay.read("a", "j2", {"main.0": 0}, user="ada", follow=True)
    nodes.relay._request = lambda _node, number, *_: (nodes.give(b"x", number=number), True)[1]
    await anext(slow)
    await anext(fast)
    for _ in range(3):
        nodes.give(b"12345", number="log-1")
        nodes.give(b"12345", number="log-2")
        assert (await anext(fast)).data == b"12345"
    assert nodes.cancelled == [("a", "log-1")]
    with pytest.raises(Unavailable, match="read too slowly"):
        _ = [chunk async for chunk in slow]
    await fast.aclose()


async def test_a_reader_that_goes_away_is_cancelled_at_the_node() -> None:
    nodes = Nodes()
    chunks = nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=True)
    nodes.relay._request = lambda *_: (nodes.give(b"some"), True)[1]
    await anext(chunks)
    await chunks.aclose()
    assert nodes.cancelled == [("a", "log-1")]
    nodes.give(b"late")


async def test_nobody_can_write_into_the_log_of_another_node() -> None:
    nodes = Nodes()
    chunks = nodes.relay.read("a", "j1", {"main.0": 0}, user="ada", follow=True)
    nodes.relay._request = lambda *_: (
        nodes.give(b"false", node="b"),
        nodes.give(b"true", end=True),
        True,
    )[2]
    assert [chunk.data async for chunk in chunks] == [b"true"]
