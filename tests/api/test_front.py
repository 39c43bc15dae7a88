"""An agent's socket: who is let in, how many at one time, and what is left of those who are not."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest

from farbus.api import front
from farbus.api.client import ClusterClient
from farbus.api.front import Caller, LocalFront
from farbus.api.identity import Identity, Role
from farbus.api.private import PREFIX, PrivateDirectory
from farbus.api.server import _ClusterServicer
from farbus.api.v1 import cluster_pb2_grpc
from farbus.errors import NotFound, NotPermitted, Unavailable
from tests.api.test_servers import Recorder

Identify = Callable[[int, int, int], Identity]


class Node:
    """A front whose callers are whom the test says."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "agent.sock")
        self.name: str | None = "bob"
        self.seen = asyncio.Event()
        self.front = LocalFront(self.path, self.identify, (self.add,), options=())

    def identify(self, uid: int, gid: int, pid: int) -> Identity:
        self.seen.set()
        if self.name is None:
            raise NotFound(f"user id {uid}: not known on this node")
        return Identity(name=self.name, role=Role.USER)

    @staticmethod
    def add(caller: Caller, server: grpc.aio.Server) -> None:
        cluster_pb2_grpc.add_ClusterServicer_to_server(_ClusterServicer(Recorder(), caller), server)

    async def ask(self) -> str:
        async with ClusterClient.local(socket=self.path) as client:
            return (await client.cluster_info()).node

    async def connect(self) -> asyncio.StreamWriter:
        """Connect, say nothing, and return once the front has seen it."""
        self.seen.clear()
        _, writer = await asyncio.open_unix_connection(self.path)
        await self.seen.wait()
        return writer

    async def refused(self) -> None:
        """Wait until no refused connection is left: gRPC would make the next call of this process over it."""
        while self.front._refused:
            await asyncio.wait(self.front._connections, return_when=asyncio.FIRST_COMPLETED)

    async def settled(self) -> None:
        """Wait until all connections have ended."""
        while self.front._connections:
            await asyncio.wait(self.front._connections)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.front.start()
    yield made
    await made.front.stop(0.0)


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the next connections come from these user ids."""

    def come(*uids: int) -> None:
        following = itertools.chain(uids, itertools.repeat(uids[-1]))
        monkeypatch.setattr(front, "_peer_credentials", lambda _: (next(following), 0, 1))

    return come


async def test_caller_who_can_not_be_named_is_told_so(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.name = None
    with pytest.raises(NotPermitted, match="this node does not serve your user id; ask for an account"):
        await node.ask()
    assert f"user id {os.getuid()}: not known on this node" in caplog.text


async def test_refused_user_ids_leave_nothing(node: Node, users: Callable[..., None]) -> None:
    node.name = None
    for uid in range(100_000, 100_000 + 2 * front.MAX_REFUSED):
        users(uid)
        with pytest.raises(NotPermitted):
            await node.ask()
        await node.settled()
    assert (len(node.front._servers), len(node.front._users), node.front._refused) == (1, 0, 0)
    node.name = "bob"
    assert await node.ask() == "bob"


async def test_refusals_do_not_fill_the_log(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.name = None
    for _ in range(5):
        with pytest.raises(NotPermitted):
            await node.ask()
    assert len([record for record in caplog.records if "refused a local connection" in record.message]) == 1


async def test_refused_caller_who_stays_is_hung_up_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "REFUSED_S", 0.01)
    node.name = None
    reader, writer = await asyncio.open_unix_connection(node.path)
    await reader.read()
    assert reader.at_eof()
    writer.close()


async def test_refused_connections_beyond_those_that_are_told_are_hung_up_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "MAX_REFUSED", 1)
    node.name = None
    staying = await node.connect()
    with pytest.raises(Unavailable):
        await node.ask()
    staying.close()


async def test_user_with_too_many_connections_is_told_so_and_others_are_served(
    node: Node, users: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "MAX_USER_CONNECTIONS", 2)
    users(1000)
    open_ones = [await node.connect() for _ in range(2)]
    with pytest.raises(Unavailable, match="too many connections are open on the agent's socket; end some of your"):
        await node.ask()
    await node.refused()
    users(1001)
    assert await node.ask() == "bob"
    for each in open_ones:
        each.close()
    await node.settled()
    users(1000)
    assert await node.ask() == "bob"


async def test_root_is_let_in_when_users_have_taken_all_connections(
    node: Node, users: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "MAX_CONNECTIONS", 2)
    users(1000, 1001)
    open_ones = [await node.connect() for _ in range(2)]
    users(1002)
    with pytest.raises(Unavailable, match="too many connections"):
        await node.ask()
    await node.refused()
    users(0)
    assert await node.ask() == "bob"
    for each in open_ones:
        each.close()


async def test_server_of_a_user_who_has_left_makes_room_for_another(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "MAX_CALLERS", 2)
    for name in ("alice", "bob", "carol", "alice"):
        node.name = name
        assert await node.ask() == name
        await node.settled()
    assert len(node.front._servers) == 2


async def test_servers_of_users_who_are_connected_stay(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "MAX_CALLERS", 1)
    node.name = "alice"
    async with ClusterClient.local(socket=node.path) as alice:
        await alice.cluster_info()
        node.name = "bob"
        reader, writer = await asyncio.open_unix_connection(node.path)
        assert await reader.read() == b""
        writer.close()
        assert (await alice.cluster_info()).node == "alice"


def test_sockets_that_a_killed_agent_has_left_go_with_the_next_start(tmp_path: Path) -> None:
    killed = PrivateDirectory(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(killed.path("1"))
    (left,) = tmp_path.iterdir()
    # What the kernel does with a process: its locks are gone, its files stay.
    assert killed._held is not None
    os.close(killed._held)
    other = tmp_path / f"{PREFIX}of_other"
    other.mkdir()
    (other / "file").touch()
    serving = PrivateDirectory(tmp_path)

    started = PrivateDirectory(tmp_path)
    assert not left.exists()
    assert (other / "file").exists()
    assert len([*tmp_path.iterdir()]) == 3
    started.remove()
    serving.remove()
    assert [*tmp_path.iterdir()] == [other]


async def test_agents_whose_sockets_lie_side_by_side_leave_each_others_alone(node: Node, tmp_path: Path) -> None:
    beside = LocalFront(str(tmp_path / "beside.sock"), node.identify, (node.add,), options=())
    await beside.start()
    assert await node.ask() == "bob"
    async with ClusterClient.local(socket=str(tmp_path / "beside.sock")) as client:
        assert (await client.cluster_info()).node == "bob"
    await beside.stop(0.0)
    assert await node.ask() == "bob"


async def test_a_socket_may_be_as_deep_as_its_own_path_may_be_long(tmp_path: Path) -> None:
    """The private sockets beside it have longer names."""
    deep = tmp_path / ("d" * (100 - len(str(tmp_path)) - len("//agent.sock")))
    node = Node(deep)
    assert len(node.path) == 100
    await node.front.start()
    assert await node.ask() == "bob"
    await node.front.stop(0.0)
    assert not os.listdir(deep)
