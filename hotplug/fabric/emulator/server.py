"""The emulator on the network: H3's dialect over HTTP, Redfish over TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farbus.errors import InvalidInput, Unavailable
from farbus.hotplug.fabric.emulator.chassis import Dropped, Hanging
from farbus.hotplug.fabric.emulator.config import EmulatorConfig, addresses
from farbus.hotplug.fabric.emulator.emulator import Emulator
from farbus.hotplug.fabric.emulator.front import MAX_BODY_BYTES, CutReply, Front
from farbus.hotplug.fabric.http import Request
from farbus.linux.files import write_owned

HANG_LIMIT_S = 3600.0
"""How long a request that hangs is kept: a client that never leaves is not kept for ever."""

STOP_S = 1.0
"""How long open requests may go on at the end; what hangs on purpose would for an hour."""

VALID_DAYS = 3650


_log = logging.getLogger(__name__)


class _WithoutTraces(logging.Filter):
    """Tells what is wrong with a request in one line: whoever sends rubbish is no defect of the emulator's."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record of such a request; let all through."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            record.msg, record.args = f"{record.getMessage()}: {' '.join(str(error).split())}", ()
            record.exc_info = None
        return True


@dataclass(frozen=True)
class Served:
    """Where one chassis is served in one dialect."""

    chassis: str
    dialect: str
    url: str


class Server:
    """Serves an emulator until :meth:`close`."""

    def __init__(self) -> None:
        self._runners: list[web.AppRunner] = []
        if not any(isinstance(each, _WithoutTraces) for each in _log.filters):
            _log.addFilter(_WithoutTraces())

    async def start(self, emulator: Emulator, config: EmulatorConfig, tls: ssl.SSLContext | None) -> list[Served]:
        """Listen at all addresses of ``config`` (port 0 is any free one) and return where."""
        served = []
        for chassis in config.chassis:
            fronts: Mapping[str, Front] = {
                "h3": emulator.h3[chassis.name],
                "redfish": emulator.redfish[chassis.name],
            }
            for dialect, (host, port) in addresses(chassis).items():
                context = tls if dialect == "redfish" else None
                bound = await self._listen(fronts[dialect], host, port, context)
                scheme = "https" if context else "http"
                name = f"[{host}]" if ":" in host else host
                served.append(Served(chassis.name, dialect, f"{scheme}://{name}:{bound}"))
        return served

    async def _listen(self, front: Front, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        application = web.Application(client_max_size=MAX_BODY_BYTES)

        async def answer(request: web.Request) -> web.StreamResponse:
            return await _answer(front, request)

        application.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(
            application, access_log=None, logger=_log, handler_cancellation=True, shutdown_timeout=STOP_S
        )
        self._runners.append(runner)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, ssl_context=tls)
            await site.start()
        except OSError as error:
            raise Unavailable(
                f"{host}:{port}: can't listen: {error.strerror or error}", hint="choose another address"
            ) from error
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening and end all connections."""
        for runner in self._runners:
            await runner.cleanup()


async def _answer(front: Front, incoming: web.Request) -> web.StreamResponse:
    body = None
    if incoming.can_read_body:
        try:
            body = msgspec.json.decode(await incoming.read())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, web.RequestPayloadError):
            return web.Response(status=400, text="the body is not JSON")
    try:
        reply = await front.exchange(Request(incoming.method, incoming.path_qs, body, dict(incoming.headers)))
    except Dropped:
        return _abort(incoming)
    except Hanging:
        await asyncio.sleep(HANG_LIMIT_S)
        return _abort(incoming)
    if isinstance(reply, CutReply):
        response = web.StreamResponse(status=reply.status, headers=dict(reply.headers))
        response.content_length = len(reply.body)
        await response.prepare(incoming)
        await response.write(reply.body[: len(reply.body) // 2])
        return _abort(incoming)
    return web.Response(status=reply.status, headers=dict(reply.headers), body=reply.body)


def _abort(incoming: web.Request) -> web.StreamResponse:
    if incoming.transport is not None:
        incoming.transport.abort()
    # Nobody hears it any more.
    return web.Response(status=500)


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the context for serving; raise :class:`InvalidInput` for files that can't be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"{certificate}, {key}: can't be used for TLS: {error.strerror or error}") from error
    return context


def make_certificate(directory: Path, *, now: float) -> tuple[Path, Path]:
    """Return certificate and key of this emulator in ``directory``; make them, signed by itself, where there are none.

    ``now`` is seconds since the epoch.
    """
    certificate, key = directory / "redfish.crt", directory / "redfish.key"
    if certificate.exists() and key.exists():
        return certificate, key
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farbus fabric emulator")])
    start = datetime.datetime.fromtimestamp(now, datetime.UTC)
    host = os.uname().nodename
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - datetime.timedelta(days=1))
        .not_valid_after(start + datetime.timedelta(days=VALID_DAYS))
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    x509.DNSName("localhost"),
                    x509.DNSName(host),
                    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                    x509.IPAddress(ipaddress.ip_address("::1")),
                ]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    private = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # The key first: a certificate without its key would be found and not be usable.
    write_owned(key, private, account=None, durable=True)
    write_owned(certificate, made.public_bytes(serialization.Encoding.PEM), account=None, mode=0o644, durable=True)
    return certificate, key
