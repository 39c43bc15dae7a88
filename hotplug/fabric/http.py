"""HTTP with a chassis: small requests, replies that are limited in size and checked before anything is made of them.

:class:`Transport` is all that a dialect needs; :class:`HttpTransport` is it
over a network, and the emulator brings one without.  No redirect is followed,
no proxy or cookie used, nothing decompressed.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from farbus.errors import InvalidInput
from farbus.hotplug.fabric.errors import BadReply, ChassisBusy, ChassisRefused, ChassisUnavailable

MAX_REPLY_BYTES = 8 << 20
"""Largest reply that is read: a full rack of devices is a hundredth of it."""

MAX_REMARK = 200
"""Characters of what a chassis says that are shown in an error."""

CONNECT_TIMEOUT_S = 10.0
"""A chassis is a hop away: who has not answered a connection by then is off."""

BUSY = frozenset({409, 412, 423, 429, 503})
"""Statuses that say: not now, or not as you thought that it was. Asking again after reading is right."""

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One request; ``body`` is sent as JSON."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Reply:
    """A whole reply, with the names of its headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """A way to one chassis."""

    async def exchange(self, request: Request) -> Reply:
        """Send ``request`` and return the whole reply, whatever its status.

        Raises :class:`ChassisUnavailable` when there is no connection or it
        breaks, :class:`ChassisRefused` when the chassis is not the one that it
        should be, and :class:`BadReply` for what is not HTTP or too large.
        """
        ...

    async def close(self) -> None:
        """Let connections go."""
        ...


class HttpTransport:
    """HTTP/1.1 over TCP, with TLS where ``url`` says https.

    ``pinned`` is a file with the very certificate that the chassis shows,
    ``authority`` one with the authority that signed it (the name in ``url`` is
    then checked).  Without either, the system's authorities are trusted.
    """

    def __init__(self, chassis: str, url: str, *, pinned: str = "", authority: str = "") -> None:
        self._chassis = chassis
        self._url = url.rstrip("/")
        self._known_by = "pinned" if pinned else "authority" if authority else ""
        self._ssl: ssl.SSLContext | aiohttp.Fingerprint | bool = True
        if self._url.startswith("https:"):
            self._ssl = _trust(chassis, pinned=pinned, authority=authority)
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, request: Request) -> Reply:
        """See :class:`Transport`."""
        # The session needs the event loop that it is used in, so it is made by the first request.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
                headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "farbus"},
            )
        data = None if request.body is None else msgspec.json.encode(request.body)
        headers = dict(request.headers) | ({"Content-Type": "application/json"} if data is not None else {})
        try:
            async with self._session.request(
                request.method,
                self._url + request.path,
                data=data,
                headers=headers,
                allow_redirects=False,
                ssl=self._ssl,
            ) as response:
                body = await self._read(request, response)
                names = {name.lower(): value for name, value in response.headers.items()}
                return Reply(response.status, names, body)
        except (aiohttp.ServerFingerprintMismatch, aiohttp.ClientConnectorCertificateError) as error:
            raise self._untrusted() from error
        except aiohttp.ClientConnectorSSLError as error:
            # Its own text has the repr of what was to be checked.
            raise ChassisRefused(
                f"chassis {self._chassis}: no TLS with it: {remark(error.os_error)}",
                hint="is the port of its url that of https?",
            ) from error
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            raise ChassisUnavailable(
                f"chassis {self._chassis}: can't be reached: {remark(reason)}",
                hint="is it switched on, and its url in the fabric's configuration right?",
            ) from error
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            raise BadReply(f"chassis {self._chassis}: {request}: its reply is not HTTP: {remark(error)}") from error
        except aiohttp.ClientPayloadError as error:
            # Its text is of aiohttp's inside, over several lines.
            raise ChassisUnavailable(f"chassis {self._chassis}: {request}: connection broke: half a reply") from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            reason = remark(error) or type(error).__name__
            hint = ""
            if isinstance(error, aiohttp.ServerDisconnectedError) and self._url.startswith("http:"):
                # So does a server that waits for TLS.
                hint = "if it is so each time: does it want an https:// url?"
            raise ChassisUnavailable(
                f"chassis {self._chassis}: {request}: connection broke: {reason}", hint=hint
            ) from error

    def _untrusted(self) -> ChassisRefused:
        at = f"chassis {self._chassis}"
        renewed = "is it the right address? If its certificate was renewed, fetch it anew over a way you trust"
        match self._known_by:
            case "pinned":
                return ChassisRefused(f"{at}: its certificate is not the one that is known", hint=renewed)
            case "authority":
                return ChassisRefused(
                    f"{at}: its certificate is not by the known authority, not for its url's host, or not valid",
                    hint=renewed,
                )
            case _:
                return ChassisRefused(
                    f"{at}: its certificate is by no authority that this system trusts",
                    hint="name it by certificate, or who signed it by authority, in the fabric's configuration",
                )

    async def _read(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        """Read the body; its announced length is not believed, so that a lie costs no memory."""
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > MAX_REPLY_BYTES:
                # What is left of it would have to be read before the connection could be used again.
                response.close()
                raise BadReply(f"chassis {self._chassis}: {request}: reply is larger than {MAX_REPLY_BYTES >> 20} MiB")
            parts.append(part)
        return b"".join(parts)

    async def close(self) -> None:
        """See :class:`Transport`."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _trust(chassis: str, *, pinned: str, authority: str) -> ssl.SSLContext | aiohttp.Fingerprint | bool:
    try:
        if pinned:
            with open(pinned, "rb") as file:
                certificate = x509.load_pem_x509_certificate(file.read(1 << 20))
            # The certificate itself is what is known, so who signed it, for which name and until when does not matter.
            return aiohttp.Fingerprint(hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest())
        return ssl.create_default_context(cafile=authority) if authority else True
    except (OSError, ValueError) as error:
        # What OpenSSL and the parser say of a file that holds something else is of their inside.
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else ""
        raise InvalidInput(
            f"chassis {chassis}: certificate {pinned or authority}: {reason or 'is none in PEM'}",
            hint="correct its path" if reason else "one begins with -----BEGIN CERTIFICATE-----",
        ) from error


def remark(words: object) -> str:
    """Return foreign words as part of one line of an error: printable, without line ends, not long."""
    text = " ".join("".join(each if each.isprintable() else " " for each in str(words)[: 4 * MAX_REMARK]).split())
    return text if len(text) <= MAX_REMARK else text[: MAX_REMARK - 3] + "..."


def plain_words(reply: Reply) -> str:
    """Return the body of an error as part of one line."""
    return remark(reply.body.decode("utf-8", "replace"))


def check_status(
    chassis: str,
    request: Request,
    reply: Reply,
    *,
    ok: frozenset[int],
    words_of: Callable[[Reply], str] = plain_words,
) -> None:
    """Raise what a status outside of ``ok`` means; ``words_of`` finds the dialect's own words in the reply."""
    if reply.status in ok:
        return
    what = f"chassis {chassis}: {request}: status {reply.status}"
    if reply.status in (401, 403):
        raise ChassisRefused(what, hint="are its credentials right, and may they compose?")
    said = f"{what}: {words_of(reply)}".rstrip(".: ")
    if reply.status in BUSY:
        raise ChassisBusy(said)
    if reply.status >= 500:
        raise ChassisUnavailable(said)
    if 300 <= reply.status < 400:
        raise BadReply(f"{what}: redirects are not followed", hint="configure the address that it redirects to")
    raise BadReply(said)


def decode_reply(chassis: str, request: Request, reply: Reply, kind: type[T]) -> T:
    """Decode the body as a ``kind``; raise :class:`BadReply` saying what is wrong, and where."""
    encoding = reply.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise BadReply(
            f"chassis {chassis}: {request}: reply is compressed ({remark(encoding)}), which was not asked for"
        )
    charset = _charset(reply.headers.get("content-type", ""))
    if charset not in ("", "utf-8", "utf8", "us-ascii", "ascii"):
        raise BadReply(f"chassis {chassis}: {request}: reply is in {remark(charset)}, not UTF-8")
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReply(f"chassis {chassis}: {request}: reply can't be used: {remark(error)}") from error


def _charset(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return ""
