"""The issuing service: the scheduler signs for nodes with tokens, and renews what is about to expire.

It runs where an operator has given the scheduler the authority's directory
(docs/decisions/0008).  A token gives a certificate of role node and no other;
a renewal gives the caller's own name and role.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from farbus.api.audit import AuditLog, AuditRecord, bounded, now_text
from farbus.api.authority import (
    CERTIFICATE_DAYS,
    Authority,
    Credentials,
    IssuedCertificate,
    check_issued,
    key_digest,
    key_of_request,
    new_request,
    record_of,
    replace_pair,
    write_private,
)
from farbus.api.client import open_enrollment
from farbus.api.identity import Identity, Role
from farbus.api.registry import CertificateRecord
from farbus.api.server import EnrollmentHandler
from farbus.api.trust import Peer
from farbus.errors import Conflict, FarbusError, Unavailable
from farbus.model.address import origin_of

JOINS_PER_MINUTE = 20
"""From one address: a rack behind one translated address may join at once, a guesser gets nowhere."""

ALL_JOINS_PER_MINUTE = 300
"""From all addresses: each costs a signature and an fsync."""

RENEWALS_PER_HOUR = 6
"""Of one name and role: one is due each few months."""

MAX_RATES = 4_096
"""Addresses or names that are counted at one time; the one that was longest silent is forgotten first."""

RENEW_FRACTION = 1 / 3
"""A certificate is renewed when less than this part of its life is left."""


class Rate:
    """At most ``limit`` in any ``window_s`` seconds, for each key."""

    def __init__(self, limit: int, window_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._window_s = window_s
        self._now = now
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, key: str, *, what: str) -> None:
        """Count one more; raise :class:`Unavailable` where it is one too many."""
        now = self._now()
        times = self._times.setdefault(key, deque())
        self._times.move_to_end(key)
        while len(self._times) > MAX_RATES:
            self._times.popitem(last=False)
        while times and times[0] <= now - self._window_s:
            times.popleft()
        if len(times) >= self._limit:
            raise Unavailable(
                f"{what}: more than {self._limit} in {self._window_s:g} s", hint="wait a while and try again"
            )
        times.append(now)


class Issuer(EnrollmentHandler):
    """Signs with the authority in ``directory``; raises what :meth:`Authority.open` raises when it is made."""

    def __init__(
        self,
        directory: str | Path,
        *,
        audit: AuditLog | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._audit = audit
        self._wall = wall
        self._joins = Rate(JOINS_PER_MINUTE, 60.0, now=now)
        self._all_joins = Rate(ALL_JOINS_PER_MINUTE, 60.0, now=now)
        self._renewals = Rate(RENEWALS_PER_HOUR, 3600.0, now=now)
        self._joining: set[asyncio.Task[tuple[str, bytes, bytes]]] = set()
        Authority.open(directory)

    def authorities(self) -> bytes:
        """Return the authorities that the cluster trusts now, as PEM."""
        return Authority.open(self._directory).bundle()

    async def renew(self, peer: Peer, request_pem: bytes) -> tuple[bytes, bytes]:
        """Return a certificate for the request's key, of the peer's own name and role, and the authorities."""
        holder = peer.identity
        self._renewals.take(f"{holder.role} {holder.name}", what=f"renewals of {holder.role} {holder.name}")
        return await asyncio.to_thread(self._renew, peer, request_pem)

    def _renew(self, peer: Peer, request_pem: bytes) -> tuple[bytes, bytes]:
        authority = Authority.open(self._directory)
        key = key_of_request(request_pem)

        def issue() -> tuple[CertificateRecord, str]:
            certificate = authority.sign(key, peer.identity.name, peer.identity.role, days=CERTIFICATE_DAYS)
            return record_of(certificate), certificate.public_bytes(Encoding.PEM).decode()

        return authority.registry.renew(peer.serial, peer.identity.name, issue).encode(), authority.bundle()

    async def join(self, address: str, secret: str, request_pem: bytes) -> tuple[str, bytes, bytes]:
        """Use up a token from ``address``; return the node's name, its certificate and the authorities.

        What has begun is done, and noted, also if the machine leaves meanwhile.
        """
        joining = asyncio.create_task(self._join_noted(address, secret, request_pem), name="issue")
        self._joining.add(joining)
        joining.add_done_callback(self._joining.discard)
        return await asyncio.shield(joining)

    async def close(self) -> None:
        """Wait for what has begun; nobody may join any more."""
        await asyncio.gather(*self._joining, return_exceptions=True)

    async def _join_noted(self, address: str, secret: str, request_pem: bytes) -> tuple[str, bytes, bytes]:
        node = ""
        try:
            self._joins.take(origin_of(address), what=f"joins from {address}")
            self._all_joins.take("", what="joins")
            node, certificate, authorities = await asyncio.to_thread(self._join, secret, request_pem)
        except FarbusError as error:
            # Refusals alone are limited in the log: whoever floods the port must not push everything else out of it.
            await self._note(address, node, "failed" if isinstance(error, Conflict) else "refused", error.message)
            raise
        await self._note(address, node, "ok", "")
        return node, certificate, authorities

    def _join(self, secret: str, request_pem: bytes) -> tuple[str, bytes, bytes]:
        authority = Authority.open(self._directory)
        key = key_of_request(request_pem)

        def issue(node: str) -> tuple[CertificateRecord, str]:
            certificate = authority.sign(key, node, Role.NODE, days=CERTIFICATE_DAYS)
            return record_of(certificate), certificate.public_bytes(Encoding.PEM).decode()

        node, certificate = authority.registry.redeem(secret, key_digest=key_digest(key), now=self._wall(), issue=issue)
        return node, certificate.encode(), authority.bundle()

    async def _note(self, address: str, node: str, outcome: str, error: str) -> None:
        if self._audit is not None:
            await self._audit.record(
                AuditRecord(
                    at=now_text(),
                    who=node or "unknown",
                    role=Role.NODE.value if node else "",
                    peer=bounded(address),
                    method="Join",
                    target=node,
                    outcome=outcome,
                    error=bounded(error),
                )
            )

    def renew_own(self, credentials: Credentials) -> bool:
        """Renew the certificate of the process that has the authority, if it is due; say whether it was."""
        authority = Authority.open(self._directory)
        bundle = authority.bundle()
        changed = Path(credentials.authority).read_bytes() != bundle
        due = not authority.has_signed(credentials) or is_due(credentials, now=self._wall())
        if due:
            certificate, _, _ = credentials.read_pair()
            replace_pair(credentials, authority.renew(certificate, what=credentials.certificate))
        if changed:
            write_private(Path(credentials.authority), bundle, mode=0o644)
        revocations = Path(credentials.revocations)
        current = authority.revocations()
        if not revocations.exists() or revocations.read_bytes() != current:
            write_private(revocations, current, mode=0o644)
        return due or changed


def is_due(credentials: Credentials, *, now: float) -> bool:
    """Say whether a certificate should be renewed: little of its life is left, or its authority is being replaced."""
    if not credentials.is_of_signing_authority():
        return True
    first, last = credentials.lifetime()
    return last.timestamp() - now < (last - first).total_seconds() * RENEW_FRACTION


async def renew_at(address: str, credentials: Credentials) -> Identity:
    """Have the scheduler at ``address`` renew a certificate, and put it with a new key in the old one's place.

    Raises :class:`FarbusError` where the scheduler issues none or answers
    with what is not ours; the old files are then as they were.
    """
    key, request = await asyncio.to_thread(new_request)
    certificate, authorities = await open_enrollment(address, credentials, request)
    issued = IssuedCertificate(certificate=certificate, key=key, authority=authorities)
    holder = credentials.identity()
    check_issued(issued, trusted=credentials.read().authority, holder=holder)
    # First the authorities: those before are among them.
    write_private(Path(credentials.authority), authorities, mode=0o644)
    replace_pair(credentials, issued)
    return holder
