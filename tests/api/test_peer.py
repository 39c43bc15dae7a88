"""The service between agents over mutual TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.identity import Identity, Role
from farbus.api.peer import PeerClient, PeerHandler, serve_peers
from farbus.errors import Conflict, FarbusError, NotPermitted, Unavailable
from farbus.model.lease import LeasedDevice, PeerLease, PeerReply, PeerRequest

REQUEST = PeerRequest(
    leases=(PeerLease(lease_id="l1", device_side=True, devices=(LeasedDevice(device="GPU-1", epoch=4),)),),
    released=(PeerLease(lease_id="l2", device_side=False, devices=()),),
    peer_endpoint="10.0.0.1:7412",
)


class Handler(PeerHandler):
    def __init__(self) -> None:
        self.calls: list[tuple[Identity, PeerRequest]] = []

    async def renew(self, caller: Identity, request: PeerRequest) -> PeerReply:
        self.calls.append((caller, request))
        return PeerReply(renewed=("l1",), void=("l2",))


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.create(directory / "ca")
        self.handler = Handler()

    def credentials(self, name: str, role: Role = Role.NODE, authority: Authority | None = None) -> Credentials:
        issued = (authority or self.authority).issue(name, role)
        return write_credentials(self.directory / f"{role}-{name}", name, issued)

    @contextlib.asynccontextmanager
    async def serving(self, credentials: Credentials) -> AsyncIterator[str]:
        server = await serve_peers(handler=self.handler, address="127.0.0.1", port=0, credentials=credentials)
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            await server.stop()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_node_asks_another_under_its_own_name(site: Site) -> None:
    async with site.serving(site.credentials("d")) as endpoint:
        reply = await PeerClient(site.credentials("c")).renew("d", endpoint, REQUEST)
    assert reply == PeerReply(renewed=("l1",), void=("l2",))
    assert site.handler.calls == [(Identity(name="c", role=Role.NODE), REQUEST)]


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.SCHEDULER])
async def test_only_nodes_are_served(site: Site, role: Role) -> None:
    async with site.serving(site.credentials("d")) as endpoint:
        with pytest.raises(NotPermitted, match="may not call Renew"):
            await PeerClient(site.credentials("c", role)).renew("d", endpoint, REQUEST)
    assert site.handler.calls == []


@pytest.mark.parametrize(
    ("name", "role"),
    [("e", Role.NODE), ("D", Role.NODE), ("d", Role.USER), ("d", Role.OPERATOR), ("d", Role.SCHEDULER)],
)
async def test_nobody_else_can_answer_for_a_node(site: Site, name: str, role: Role) -> None:
    async with site.serving(site.credentials(name, role)) as endpoint:
        with pytest.raises(FarbusError):
            await PeerClient(site.credentials("c")).renew("d", endpoint, REQUEST)
    assert site.handler.calls == []


async def test_another_clusters_node_is_refused(site: Site, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other")
    async with site.serving(site.credentials("d")) as endpoint:
        with pytest.raises(FarbusError):
            await PeerClient(site.credentials("c", authority=other)).renew("d", endpoint, REQUEST)
    assert site.handler.calls == []


async def test_a_node_that_is_off_is_unavailable(site: Site) -> None:
    async with site.serving(site.credentials("d")) as endpoint:
        pass
    with pytest.raises(Unavailable, match="the agent of node d at"):
        await PeerClient(site.credentials("c")).renew("d", endpoint, REQUEST)


async def test_an_agent_that_was_started_again_is_reached_at_once(site: Site) -> None:
    client = PeerClient(site.credentials("c"))
    credentials = site.credentials("d")
    async with site.serving(credentials) as endpoint:
        await client.renew("d", endpoint, REQUEST)
    with pytest.raises(Unavailable):
        await client.renew("d", endpoint, REQUEST)
    port = int(endpoint.rpartition(":")[2])
    server = await serve_peers(handler=site.handler, address="127.0.0.1", port=port, credentials=credentials)
    try:
        assert (await client.renew("d", endpoint, REQUEST)).renewed == ("l1",)
    finally:
        await server.stop()


async def test_a_question_to_a_socket_that_never_answers_can_be_given_up(site: Site) -> None:
    accepted = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    question = asyncio.create_task(PeerClient(site.credentials("c")).renew("d", endpoint, REQUEST))
    await accepted.wait()
    assert not question.done()
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    silent.close()


async def test_a_name_without_an_address_is_told_as_that(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(host: str, port: int) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    with pytest.raises(Unavailable, match="'n9' has no IP address here: Name or service not known; set address"):
        await serve_peers(handler=site.handler, address="n9", port=0, credentials=site.credentials("n9"))


async def test_a_port_in_use_is_told_in_one_line(site: Site) -> None:
    credentials = site.credentials("d")
    async with site.serving(credentials) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        with pytest.raises(Conflict, match=f"can't serve other agents on {endpoint}"):
            await serve_peers(handler=site.handler, address="127.0.0.1", port=port, credentials=credentials)
