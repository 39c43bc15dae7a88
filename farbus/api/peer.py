"""Between agents: server and client of the Peer service, over mutual TLS with node certificates on both sides."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from farbus.api.authority import Credentials, node_server_name
from farbus.api.client import CLIENT_OPTIONS
from farbus.api.conversion import check_elements, from_message, to_message
from farbus.api.gate import Gate, caller_of_call, errors_become_status
from farbus.api.identity import Identity
from farbus.api.server import SERVER_OPTIONS, RunningServer, gated_server, tls_credentials
from farbus.api.status import converted
from farbus.api.trust import Trust
from farbus.api.v1 import peer_pb2, peer_pb2_grpc
from farbus.errors import Conflict, Unavailable, Unsatisfiable
from farbus.model.address import host_and_port
from farbus.model.fabric import ChassisReply, ChassisRequest
from farbus.model.lease import PeerReply, PeerRequest

MAX_PEER_MESSAGE_BYTES = 16 * 2**20
"""Largest request or reply between agents: more than 10,000 leases of 16 devices each."""

MAX_PEER_ELEMENTS = 262_144
"""Leases and devices in one of them."""


class PeerHandler(abc.ABC):
    """What an agent does for other agents; ``caller`` is a node."""

    @abc.abstractmethod
    async def renew(self, caller: Identity, request: PeerRequest) -> PeerReply:
        """Renew what this node holds of the leases, and end those released.

        Raises :class:`farbus.errors.NotPermitted` for a lease that is not
        between the caller's node and this one.
        """

    async def ask_chassis(self, caller: Identity, request: ChassisRequest) -> ChassisReply:
        """Ask a chassis that this node serves for what concerns the caller's node.

        Raises :class:`farbus.errors.Unsatisfiable` where this agent does not
        serve it, or not in the term that is asked for, and
        :class:`farbus.errors.NotPermitted` for a port of another node.
        """
        raise Unsatisfiable(f"chassis {request.chassis}: not served by this agent")


class _PeerServicer(peer_pb2_grpc.PeerServicer):
    def __init__(self, handler: PeerHandler) -> None:
        self._handler = handler

    async def Renew(self, request: peer_pb2.PeerRequest, context: Any) -> Any:
        path = "/farbus.v1.Peer/Renew"
        async with errors_become_status(context, path):
            caller = caller_of_call(context, path)
            check_elements(request, most=MAX_PEER_ELEMENTS, what="leases")
            reply = await self._handler.renew(caller, from_message(request, PeerRequest))
            return to_message(reply, peer_pb2.PeerReply)

    async def AskChassis(self, request: peer_pb2.ChassisRequest, context: Any) -> Any:
        path = "/farbus.v1.Peer/AskChassis"
        async with errors_become_status(context, path):
            caller = caller_of_call(context, path)
            reply = await self._handler.ask_chassis(caller, from_message(request, ChassisRequest))
            return to_message(reply, peer_pb2.ChassisReply)


async def serve_peers(*, handler: PeerHandler, address: str, port: int, credentials: Credentials) -> RunningServer:
    """Serve other agents on ``port`` of ``address``, 0 for any free one.

    Raises :class:`Conflict` for an address that can't be bound,
    :class:`Unavailable` for a name that has none now,
    :class:`farbus.errors.InvalidInput` for bad credentials.
    """
    try:
        await asyncio.get_running_loop().getaddrinfo(address, port)
    except OSError as error:
        # Not the configuration's fault for certain: a name service may be away while a machine boots.
        raise Unavailable(
            f"address: {address!r} has no IP address here: {error.strerror}",
            hint="set address to the name or IP address at which other nodes reach this one",
        ) from error
    trust = Trust(credentials)
    gate = Gate(trust)
    limit = {"grpc.max_receive_message_length": MAX_PEER_MESSAGE_BYTES}
    server = grpc.aio.server(options=[*({**dict(SERVER_OPTIONS), **limit}).items()], interceptors=[gate])
    peer_pb2_grpc.add_PeerServicer_to_server(_PeerServicer(handler), server)
    try:
        bound = server.add_secure_port(host_and_port(address, port), tls_credentials(trust))
    except RuntimeError as error:
        raise Conflict(
            f"can't serve other agents on {host_and_port(address, port)}: the address is in use or not of this node",
            hint="choose another peer_port, or correct the address",
        ) from error
    await server.start()
    return gated_server(server, bound, gate)


class PeerClient:
    """Asks other agents.

    Each question has a connection of its own: they are rare, and an agent
    that was started again must not be held against its earlier self's port.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def renew(self, node: str, endpoint: str, request: PeerRequest) -> PeerReply:
        """Ask the agent of ``node`` at ``endpoint``; every error is a :class:`farbus.errors.FarbusError`.

        Waits for as long as the other side keeps the connection: the caller
        has the deadline.
        """
        with converted(f"the agent of node {node} at {endpoint}"):
            async with self._stub(node, endpoint) as stub:
                reply = await stub.Renew(to_message(request, peer_pb2.PeerRequest))
        return from_message(reply, PeerReply)

    async def ask_chassis(self, node: str, endpoint: str, request: ChassisRequest) -> ChassisReply:
        """Ask the agent of ``node`` for a chassis that it serves; as :meth:`renew`."""
        with converted(f"the agent of node {node} at {endpoint}"):
            async with self._stub(node, endpoint) as stub:
                reply = await stub.AskChassis(to_message(request, peer_pb2.ChassisRequest))
        return from_message(reply, ChassisReply)

    @contextlib.asynccontextmanager
    async def _stub(self, node: str, endpoint: str) -> AsyncIterator[Any]:
        pem = self._credentials.read()
        channel = grpc.aio.secure_channel(
            # With its scheme: a host may be called "unix".
            f"dns:///{endpoint}",
            grpc.ssl_channel_credentials(pem.authority, pem.key, pem.certificate),
            options=[
                *CLIENT_OPTIONS,
                ("grpc.ssl_target_name_override", node_server_name(node)),
                # Else a refused connection's back-off would be shared with the next question.
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        try:
            yield peer_pb2_grpc.PeerStub(channel)
        finally:
            await channel.close()
