"""Requests to a Redfish service: its session, single resources, collections, and changes with their tasks."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from farbus.errors import FarbusError, InvalidInput
from farbus.hotplug.fabric import redfish_resources as resources
from farbus.hotplug.fabric.driver import Answer
from farbus.hotplug.fabric.errors import BadReply, ChassisRefused, ChassisUnavailable
from farbus.hotplug.fabric.http import Reply, Request, Transport, check_status, decode_reply, plain_words, remark
from farbus.linux.clock import Clock

SESSIONS = "/redfish/v1/SessionService/Sessions"

MAX_MEMBERS = 4096
MAX_PAGES = 64
MAX_URI = 1024
MAX_POLL_S = 10.0
FIRST_POLL_S = 0.25
"""Seconds until a task is asked for the first time; each next time after twice as long, to ``MAX_POLL_S``."""

UNFINISHED = frozenset({"New", "Starting", "Running", "Suspended", "Interrupted", "Pending", "Stopping", "Cancelling"})
"""States of a task (DSP2046, TaskState) that another one follows."""

LOG_OUT_S = 5.0
"""For the end of a session: who leaves waits for no chassis that hangs, and nor does the agent that is named next."""

SAID_NO = frozenset({400, 404, 405, 422})

_URI = re.compile(r"/redfish/v1(/[A-Za-z0-9._~$%:@+=?&()',*;-]*)*")

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Credentials:
    """Name and password for a session; neither is shown in texts."""

    user: str
    password: str = field(repr=False)


class RedfishClient:
    """Speaks with the service of one chassis. Every URI that it gave is checked before it is used."""

    def __init__(
        self, chassis: str, transport: Transport, *, clock: Clock, credentials: Credentials | None = None
    ) -> None:
        self.chassis = chassis
        self.can_expand = False
        """Whether the service can ``$expand`` a collection by one level."""
        self._transport = transport
        self._clock = clock
        self._credentials = credentials
        self._token = ""
        self._session = ""
        self._logging_in = asyncio.Lock()

    async def close(self) -> None:
        """End the session, since a chassis has few of them, and let the connections go."""
        try:
            if self._token and self._session:
                async with asyncio.timeout(LOG_OUT_S):
                    await self._transport.exchange(
                        Request("DELETE", self._session, None, {"X-Auth-Token": self._token})
                    )
        except (FarbusError, TimeoutError):
            # It ends by itself when nobody uses it.
            pass
        finally:
            self._token = ""
            await self._transport.close()

    async def ask(self, method: str, path: str, body: Any = None, *, etag: str = "") -> Reply:
        """Send one request in the session, which is opened, or opened anew, where that is needed."""
        headers = {"OData-Version": "4.0"} | ({"If-Match": etag} if etag else {})
        request = Request(method, path, body, headers)
        if self._credentials is None:
            reply = await self._transport.exchange(request)
            if reply.status == 401:
                raise ChassisRefused(
                    f"chassis {self.chassis}: it asks who is there, and no credentials are configured",
                    hint="name a file by credentials in the fabric's configuration",
                )
            return reply
        for last in (False, True):
            token = self._token or await self._log_in("")
            reply = await self._transport.exchange(Request(method, path, body, headers | {"X-Auth-Token": token}))
            if reply.status != 401 or last:
                break
            # Sessions end when they are not used, and with the chassis' service: nothing was done.
            await self._log_in(token)
        return reply

    async def _log_in(self, ended: str) -> str:
        """Open a session, unless another task has done so since the one with the token ``ended``."""
        async with self._logging_in:
            if self._token != ended:
                return self._token
            assert self._credentials is not None
            body = {"UserName": self._credentials.user, "Password": self._credentials.password}
            request = Request("POST", SESSIONS, body)
            reply = await self._transport.exchange(request)
            if reply.status in (400, 401, 403):
                raise ChassisRefused(
                    f"chassis {self.chassis}: user {remark(self._credentials.user)} can't log in",
                    hint="look at its credentials file",
                )
            check_status(self.chassis, request, reply, ok=frozenset({200, 201}), words_of=_words)
            token = reply.headers.get("x-auth-token", "")
            if not token or len(token) > 4096 or not token.isascii() or not token.isprintable():
                raise BadReply(f"chassis {self.chassis}: {request}: session without a usable token")
            location = reply.headers.get("location", "")
            self._session = self.uri(urlsplit(location).path) if location else ""
            self._token = token
            return token

    async def _fetch(self, path: str) -> Reply:
        """Ask for what may be asked for twice, and do so where the connection broke or a gateway failed.

        A reading takes several requests: without this, each fault of a
        connection would cost all of it.  503 is not repeated: it says to wait.
        """
        try:
            reply = await self.ask("GET", path)
        except ChassisUnavailable:
            return await self.ask("GET", path)
        return await self.ask("GET", path) if reply.status in (500, 502, 504) else reply

    async def get(self, path: str, kind: type[T]) -> T:
        """Read one resource."""
        request = Request("GET", path)
        reply = await self._fetch(path)
        check_status(self.chassis, request, reply, ok=frozenset({200}), words_of=_words)
        value = decode_reply(self.chassis, request, reply, kind)
        if "etag" in reply.headers and getattr(value, "etag", None) == "":
            value = msgspec.structs.replace(value, etag=reply.headers["etag"])
        return value

    def uri(self, path: str) -> str:
        """Check a URI that the chassis gave: of this service, and not long."""
        if len(path) > MAX_URI or not _URI.fullmatch(path) or ".." in path:
            raise BadReply(f"chassis {self.chassis}: {remark(path)!r} is no URI of a Redfish resource")
        return path

    async def members(self, path: str, kind: type[T]) -> list[T]:
        """Read all members of a collection, by ``$expand`` where the service can, else one by one."""
        page = self.uri(path) + ("?$expand=.($levels=1)" if self.can_expand else "")
        found: list[T] = []
        for _ in range(MAX_PAGES):
            collection = await self.get(page, resources.Collection)
            if len(found) + len(collection.Members) > MAX_MEMBERS:
                raise BadReply(f"chassis {self.chassis}: {path}: more than {MAX_MEMBERS} members")
            for raw in collection.Members:
                found.append(await self._member(path, raw, kind))
            if not collection.next:
                if len(found) < (collection.count or 0):
                    # What is not listed would look free, or as if it were not there.
                    raise BadReply(f"chassis {self.chassis}: {path}: lists {len(found)} of {collection.count} members")
                return found
            page = self.uri(collection.next)
        raise BadReply(f"chassis {self.chassis}: {path}: more than {MAX_PAGES} pages")

    async def _member(self, path: str, raw: msgspec.Raw, kind: type[T]) -> T:
        request = Request("GET", path)
        plain = Reply(200, {}, bytes(raw))
        # Not everybody expands what it says it expands: a bare link is followed.
        if self.can_expand and len(decode_reply(self.chassis, request, plain, dict[str, msgspec.Raw])) > 1:
            return decode_reply(self.chassis, request, plain, kind)
        return await self.get(self.uri(decode_reply(self.chassis, request, plain, resources.Link).uri), kind)

    async def one_of(self, collection: resources.Link, kind: type[T], name: str, *, what: str) -> T:
        """Return the member called ``name``; without a name the only one there is."""
        found = [
            each for each in await self.members(collection.uri, kind) if not name or getattr(each, "Id", "") == name
        ]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(remark(getattr(each, "Id", "")) for each in found)
            raise InvalidInput(
                f"chassis {self.chassis}: has several: {ids}", hint=f"set {what}_id in its configuration"
            )
        raise BadReply(f"chassis {self.chassis}: has no {what} {name}".rstrip())

    async def change(self, method: str, path: str, body: Any = None, *, etag: str = "") -> Answer:
        """Ask for a change, and wait for its task where it has one.

        By DSP0266 a task's monitor answers 202 until the task is done, and then
        as the change itself would have.  Some services give the task's own URI
        instead, which answers 200 all the while, and tells its state.
        """
        request = Request(method, path)
        if len(etag) > MAX_URI or not etag.isascii() or not etag.isprintable():
            # It becomes a header, and a line end in it would be two.
            raise BadReply(f"chassis {self.chassis}: {request}: the resource has the ETag {remark(etag)!r}")
        reply = await self.ask(method, path, body, etag=etag)
        pause_s = FIRST_POLL_S
        monitor = ""
        task = None
        while reply.status == 202 or (task is not None and task.TaskState in UNFINISHED):
            location = reply.headers.get("location", "")
            monitor = self.uri(urlsplit(location).path) if location else monitor
            if not monitor:
                raise BadReply(f"chassis {self.chassis}: {request}: accepted without a task monitor")
            await self._clock.sleep(max(pause_s, _retry_after_s(reply)))
            pause_s = min(MAX_POLL_S, 2 * pause_s)
            reply = await self._fetch(monitor)
            is_told = reply.status == 200 and reply.body
            task = decode_reply(self.chassis, request, reply, resources.Task) if is_told else None
        if monitor and reply.status == 404:
            # The service was started anew and has forgotten its tasks; what became of it is read.
            return Answer(False, "its task is not known any more")
        if reply.status in SAID_NO:
            return Answer(False, _words(reply) or f"status {reply.status}")
        check_status(self.chassis, request, reply, ok=frozenset({200, 201, 204}), words_of=_words)
        if task is not None and task.TaskState not in ("", "Completed"):
            words = "; ".join(message.Message for message in task.Messages[:4])
            return Answer(False, remark(words or f"its task is {task.TaskState}"))
        return Answer(True)


def _words(reply: Reply) -> str:
    """Return what an error says for people: the messages in it, else all of it."""
    try:
        error = msgspec.json.decode(reply.body, type=resources.ErrorReply).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return plain_words(reply)
    return remark("; ".join(each.Message for each in error.extended[:4]) or error.message) or plain_words(reply)


def _retry_after_s(reply: Reply) -> float:
    value = reply.headers.get("retry-after", "")
    return min(MAX_POLL_S, float(value)) if value.isascii() and value.isdigit() and len(value) < 9 else 0.0
