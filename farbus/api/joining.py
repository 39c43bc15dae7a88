"""How a machine without a certificate gets one: with a token, over TLS that the token pins.

A port of its own, since the others want a certificate from every caller.  One
exchange of lines of JSON on each connection:

1. the scheduler sends the certificates of the cluster's authorities;
2. the machine checks that the authority whose fingerprint stands in its token
   is among them, and that it signed the certificate with which the scheduler
   has just made this connection (nothing was sent until then), then sends the
   token's secret and a signing request;
3. the scheduler answers with the certificate, or with why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from farbus.api.authority import (
    SCHEDULER_SERVER_NAME,
    IssuedCertificate,
    authorities_from,
    check_issued,
    check_validity,
    fingerprint_of,
    identity_of,
    is_issued_by,
)
from farbus.api.identity import Identity, Role
from farbus.api.server import RunningServer
from farbus.api.trust import Trust
from farbus.errors import Conflict, FarbusError, InvalidInput, NotPermitted, Unavailable
from farbus.model.address import origin_of, split_address
from farbus.model.value import Value

_log = logging.getLogger(__name__)

MAX_LINE_BYTES = 65_536
"""Longest line either side reads: three certificates and a request have less than 8 KiB."""

TIMEOUT_S = 15.0
"""Longest that a whole join may take, the handshake included."""

MAX_CONNECTIONS = 64
"""Machines that join at one time, from the moment that they have connected; the next are told to come again."""

MAX_ADDRESS_CONNECTIONS = 32
"""Those of them at one address, or in one IPv6 network: a rack behind one translated address leaves room for others."""

MAX_TOLD = 64
"""Machines that are told so at one time, which costs a handshake; those beyond are hung up on."""

BACKLOG = 100
"""Connections that the kernel keeps until they are accepted."""

ACCEPT_AGAIN_S = 1.0
"""How long no connection is accepted after one could not be."""

_TOKEN = re.compile(r"farbus-join\.([0-9a-f]{40})\.([0-9a-f]{64})")

Join = Callable[[str, str, bytes], Awaitable[tuple[str, bytes, bytes]]]

T = TypeVar("T", bound=Value)


class Greeting(Value, frozen=True, kw_only=True):
    """The scheduler's first line."""

    authorities: str


class Question(Value, frozen=True, kw_only=True):
    """The machine's line."""

    secret: str
    request: str


class Answer(Value, frozen=True, kw_only=True):
    """The scheduler's second line; ``error`` is empty when the machine has joined."""

    error: str = ""
    hint: str = ""
    again: bool = False
    """The same question may be answered later."""
    node: str = ""
    certificate: str = ""
    authorities: str = ""
    scheduler_port: int = 0


class Token(Value, frozen=True, kw_only=True):
    """A join token: the secret, and the fingerprint of the authority that the scheduler must be of."""

    secret: str
    fingerprint: str

    def __str__(self) -> str:
        return f"farbus-join.{self.secret}.{self.fingerprint}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token; the error for what is none does not repeat it."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise InvalidInput(
                "--token: that is no join token", hint="copy the whole line that farbus ca token printed"
            )
        return cls(secret=match[1], fingerprint=match[2])


class Joined(Value, frozen=True, kw_only=True):
    """What a machine has when it has joined."""

    node: str
    issued: IssuedCertificate
    scheduler_port: int


async def serve_joins(*, join: Join, listen: str, trust: Trust, scheduler_port: int) -> RunningServer:
    """Serve joins on ``listen`` (``ADDRESS:PORT``); ``join`` is :meth:`farbus.api.enrollment.Issuer.join`."""
    server = _JoinServer(join, trust, scheduler_port)
    host, port = split_address(listen, field="--join", example="0.0.0.0:7413")
    try:
        listeners = await _listen(host, port)
    except OSError as error:
        raise Conflict(
            f"can't listen on {listen}: {error.strerror}", hint="stop what uses it or choose another with --join"
        ) from error
    accepting = [asyncio.create_task(server.accept(listener), name="joins") for listener in listeners]

    async def stop(grace_s: float) -> None:
        del grace_s
        for task in accepting:
            task.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)
        for listener in listeners:
            listener.close()
        await server.stop()

    return RunningServer(int(listeners[0].getsockname()[1]), stop)


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets at all addresses of ``host``."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as undo:
        listeners = [
            undo.enter_context(socket.create_server(address, family=family, backlog=BACKLOG))
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found)
        ]
        for listener in listeners:
            listener.setblocking(False)
        undo.pop_all()
        return listeners


class _JoinServer:
    def __init__(self, join: Join, trust: Trust, scheduler_port: int) -> None:
        self._join = join
        self._trust = trust
        self._scheduler_port = scheduler_port
        self._connections: set[asyncio.Task[None]] = set()
        self._origins: Counter[str] = Counter()
        self._files = trust.files
        self._context = self._make()

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._trust.credentials.certificate, self._trust.credentials.key)
        return context

    def _current(self) -> ssl.SSLContext:
        """Return what the next handshake is made with, of files that were replaced too."""
        self._trust.refresh()
        if self._trust.files is not self._files:
            with contextlib.suppress(ssl.SSLError, OSError):
                self._context = self._make()
                self._files = self._trust.files
        return self._context

    async def accept(self, listener: socket.socket) -> None:
        """Serve machines that connect, until cancelled.

        By hand, since asyncio's servers tell of a connection only after its
        handshake, and by then it has cost what a limit is for.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                # Too many open files, no memory; or a machine that has gone already.
                _log.error("a machine that joins was not accepted: %s", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            number = len(self._connections)
            if number >= MAX_CONNECTIONS + MAX_TOLD:
                connection.close()
                continue
            origin = origin_of(str(address[0]))
            full = number >= MAX_CONNECTIONS or self._origins[origin] >= MAX_ADDRESS_CONNECTIONS
            task = asyncio.create_task(self._serve(connection, str(address[0]), full=full), name="join")
            self._connections.add(task)
            self._origins[origin] += 1
            task.add_done_callback(functools.partial(self._served, origin))

    def _served(self, origin: str, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._origins[origin] -= 1
        if not self._origins[origin]:
            del self._origins[origin]

    async def _serve(self, connection: socket.socket, address: str, *, full: bool) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        # A port that is open to the network is knocked at: not worth a word.
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(TIMEOUT_S):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=self._current(), ssl_handshake_timeout=TIMEOUT_S
                )
                with contextlib.closing(asyncio.StreamWriter(transport, protocol, reader, loop)) as writer:
                    writer.write(_line(Greeting(authorities=self._trust.files.authority.decode())))
                    writer.write(_line(await self._answer(reader, address, full=full)))
                    await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, address: str, *, full: bool) -> Answer:
        try:
            if full:
                raise Unavailable("too many machines are joining", hint="try again in a minute")
            try:
                question = _read(await reader.readuntil(b"\n"), Question)
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                raise InvalidInput("no question came") from error
            node, certificate, authorities = await self._join(address, question.secret, question.request.encode())
        except FarbusError as error:
            return Answer(error=error.message, hint=error.hint, again=isinstance(error, Unavailable))
        return Answer(
            node=node,
            certificate=certificate.decode(),
            authorities=authorities.decode(),
            scheduler_port=self._scheduler_port,
        )

    async def stop(self) -> None:
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


def join(host: str, port: int, token: Token, *, key: bytes, request: bytes) -> Joined:
    """Join the cluster whose scheduler takes joins at ``host``:``port``.

    Raises :class:`Unavailable` where nobody answers, :class:`NotPermitted`
    where it is not the token's cluster or the token is no good.
    """
    where = f"{host}:{port}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # What the token pins is checked below, before anything is sent.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=SCHEDULER_SERVER_NAME) as connection,
            connection.makefile("rb") as lines,
        ):
            shown = connection.getpeercert(binary_form=True)
            greeting = _read(lines.readline(MAX_LINE_BYTES), Greeting)
            trusted = _pinned(greeting.authorities.encode(), shown, token, where)
            connection.sendall(_line(Question(secret=token.secret, request=request.decode())))
            answer = _read(lines.readline(MAX_LINE_BYTES), Answer)
    except OSError as error:
        raise Unavailable(
            f"{where} can't be reached: {error.strerror or error}", hint="is it the scheduler's --join address?"
        ) from error
    if answer.error:
        raise (Unavailable if answer.again else NotPermitted)(f"{where}: {answer.error}", hint=answer.hint)
    issued = IssuedCertificate(certificate=answer.certificate.encode(), key=key, authority=answer.authorities.encode())
    check_issued(issued, trusted=trusted, holder=Identity(name=answer.node, role=Role.NODE))
    return Joined(node=answer.node, issued=issued, scheduler_port=answer.scheduler_port)


def _pinned(authorities: bytes, shown: bytes | None, token: Token, where: str) -> bytes:
    """Return the authority that the token names, which signed what the scheduler has shown."""
    stranger = NotPermitted(
        f"{where} is not the scheduler of the token's cluster",
        hint="compare the address; if it is right, somebody is in between",
    )
    for authority in authorities_from(authorities, what=where):
        pem = authority.public_bytes(Encoding.PEM)
        if fingerprint_of(pem) != token.fingerprint or shown is None:
            continue
        certificate = x509.load_der_x509_certificate(shown)
        holder = identity_of(certificate.public_bytes(Encoding.PEM))
        if is_issued_by(certificate, authority) and holder.role is Role.SCHEDULER:
            check_validity(certificate, what=f"the certificate of {where}")
            return pem
    raise stranger


def _line(value: Value) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _read(line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidInput("what came is not of this protocol", hint="is it the scheduler's --join address?") from error
