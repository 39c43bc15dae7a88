"""Sessions of the emulated Redfish service: who may ask."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farbus.hotplug.fabric.emulator.chassis import EmulatedChassis, raise_fault
from farbus.hotplug.fabric.emulator.front import faulty, json_reply
from farbus.hotplug.fabric.emulator.redfish_words import V1, Collection, Ports, Resource, Single, as_sent, error, link
from farbus.hotplug.fabric.http import Reply
from farbus.hotplug.fabric.redfish_client import Credentials
from farbus.linux.clock import Clock
from farbus.model.fabric import FabricStep

MAX_SESSIONS = 32
SESSION_IDLE_S = 1800.0


@dataclass
class _Session:
    token: str
    used_at: float


class Sessions:
    """All sessions. Without ``credentials`` everybody may do everything."""

    def __init__(self, chassis: EmulatedChassis, *, clock: Clock, credentials: Credentials | None) -> None:
        self._chassis = chassis
        self._clock = clock
        self._credentials = credentials
        self._sessions: dict[str, _Session] = {}
        self._number = 0
        self.collections: Sequence[Collection] = (
            Collection("/SessionService/Sessions", "SessionCollection", lambda _: list(self._sessions)),
        )
        self.singles: Sequence[Single] = (
            Single(r"/SessionService", self._service),
            Single(r"/SessionService/Sessions/([^/]+)", self._resource),
        )

    def log_in(self, body: Any) -> Reply:
        """Answer who asks for a session."""
        fault = self._chassis.faults.draw(FabricStep.LIST, has_devices=False)
        raise_fault(fault, after=False)
        said = body if isinstance(body, dict) else {}
        if self._credentials is not None and not (
            hmac.compare_digest(str(said.get("UserName")).encode(), self._credentials.user.encode())
            & hmac.compare_digest(str(said.get("Password")).encode(), self._credentials.password.encode())
        ):
            return error(401, "NoValidSession", "Name or password is wrong.")
        now = self._clock.monotonic()
        self._sessions = {
            name: session for name, session in self._sessions.items() if now - session.used_at < SESSION_IDLE_S
        }
        if len(self._sessions) >= MAX_SESSIONS:
            # A chassis has few; a client that never logs out keeps nobody out for ever.
            del self._sessions[min(self._sessions, key=lambda name: self._sessions[name].used_at)]
        self._number += 1
        name, token = str(self._number), secrets.token_urlsafe(24)
        self._sessions[name] = _Session(token, now)
        resource = self._resource({}, name)
        assert resource is not None
        where = f"{V1}/SessionService/Sessions/{name}"
        return faulty(json_reply(201, resource, {"x-auth-token": token, "location": where}), fault)

    def log_out(self, name: str) -> Reply:
        """End a session; that it is not there is as good."""
        self._sessions.pop(name, None)
        return Reply(204, {}, b"")

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Say whether a request with these headers, their names in lower case, may be answered."""
        if self._credentials is None:
            return True
        given = headers.get("x-auth-token", "")
        now = self._clock.monotonic()
        for session in self._sessions.values():
            if hmac.compare_digest(session.token.encode(), as_sent(given)) and now - session.used_at < SESSION_IDLE_S:
                session.used_at = now
                return True
        return False

    def _service(self, _: Ports) -> Resource:
        return {
            "@odata.type": "#SessionService.v1_1_9.SessionService",
            "Id": "SessionService",
            "Name": "Session service",
            "SessionTimeout": int(SESSION_IDLE_S),
            "Sessions": link("/SessionService/Sessions"),
        }

    def _resource(self, _: Ports, name: str) -> Resource | None:
        if name not in self._sessions:
            return None
        user = self._credentials.user if self._credentials else None
        return {
            "@odata.id": f"{V1}/SessionService/Sessions/{name}",
            "@odata.type": "#Session.v1_7_0.Session",
            "Id": name,
            "Name": f"Session {name}",
            "UserName": user,
        }
