"""What a process holds of certificates: its own, who signs, who is revoked; read again when the files change.

gRPC for Python offers no revocation lists, so they are looked at here: for
each call, and once a second for the calls that stay open.  Files are replaced
while processes run: a server takes them up with the next connection, a client
when it dials next.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from farbus.api.authority import (
    Credentials,
    IssuedCertificate,
    authorities_from,
    check_successors,
    check_validity,
    identity_of,
    is_issued_by,
    load_revocations,
    read_authorities,
    read_revocations,
    revocations_number,
    serial_text,
    write_private,
)
from farbus.api.identity import Identity
from farbus.errors import FarbusError, InvalidInput, NotPermitted
from farbus.model.value import Value

_log = logging.getLogger(__name__)

MAX_KNOWN = 4_096
"""Certificates whose contents are remembered, so that a caller's is not parsed for each call."""

Stamp = tuple[tuple[int, int, int], ...]


class Peer(Value, frozen=True, kw_only=True):
    """A certificate that a peer has shown and TLS has verified."""

    identity: Identity
    serial: str
    expires_at: float
    authority: str
    """SHA-256 of the authority that signed it."""


class Trust:
    """The state behind one set of credential files.

    Raises what :meth:`Credentials.read` raises when it is made; later files
    that are no good are told in the log and change nothing.
    """

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._stamp: Stamp = ()
        self._peers: OrderedDict[bytes, tuple[Peer, x509.Certificate]] = OrderedDict()
        self._refreshing = threading.Lock()
        """Threads of gRPC's look for changes, too: of two that read at once the later one may have the older files."""
        self._number = -1
        self._revoked: frozenset[str] = frozenset()
        self._stamp = self._look()
        self.files = credentials.read()
        self._trusted = _by_digest(self.files)
        self._take(read_revocations(Path(credentials.revocations), tuple(self._trusted.values())))

    def refresh(self) -> bool:
        """Read the files again if they have changed; say whether anything did."""
        with self._refreshing:
            return self._refresh()

    def _refresh(self) -> bool:
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            authorities = read_authorities(Path(self.credentials.authority))
            self._take(read_revocations(Path(self.credentials.revocations), authorities))
        except FarbusError as error:
            _log.error("revocations not taken up: %s", error)
        try:
            files = self.credentials.read()
        except FarbusError as error:
            _log.error("credentials not taken up: %s", error)
            return False
        self.files = files
        self._trusted = _by_digest(files)
        # Their authority may not be trusted any more.  Another one: whoever checks just now, in another thread, counts
        # what is in the one that he has.
        self._peers = OrderedDict()
        return True

    def revocations(self) -> bytes:
        """Return the revocation list as PEM; empty where there is none."""
        with contextlib.suppress(OSError):
            return Path(self.credentials.revocations).read_bytes()
        return b""

    def is_revoked(self, serial: str) -> bool:
        """Say whether the list names that serial number."""
        return serial in self._revoked

    def check(self, certificate_pem: bytes) -> Peer:
        """Return whose certificate it is.

        Raises :class:`NotPermitted` for one that is revoked, has expired
        since its connection was made, or names no role.
        """
        self.refresh()
        peers = self._peers
        known = peers.get(certificate_pem)
        if known is None:
            known = peers[certificate_pem] = self._known(certificate_pem)
            while len(peers) > MAX_KNOWN:
                peers.popitem(last=False)
        peer, certificate = known
        try:
            check_validity(certificate, what=_described(peer))
        except FarbusError as error:
            raise NotPermitted(error.message, hint=error.hint) from error
        trouble = self.trouble_with(peer)
        if trouble is not None:
            raise trouble
        return peer

    def _known(self, certificate_pem: bytes) -> tuple[Peer, x509.Certificate]:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        authority = next((digest for digest, each in self._trusted.items() if is_issued_by(certificate, each)), "")
        peer = Peer(
            identity=identity_of(certificate_pem),
            serial=serial_text(certificate),
            expires_at=certificate.not_valid_after_utc.timestamp(),
            authority=authority,
        )
        return peer, certificate

    def trouble_with(self, peer: Peer) -> NotPermitted | None:
        """Return why a certificate is no good by what was read last, None if it is."""
        if peer.serial in self._revoked:
            return NotPermitted(f"{_described(peer)} is revoked", hint="ask the cluster's operator for another")
        if peer.authority not in self._trusted:
            return NotPermitted(
                f"{_described(peer)} is of an authority that is not trusted any more", hint="dial again with a new one"
            )
        if peer.expires_at < time.time():
            return NotPermitted(f"{_described(peer)} has expired", hint="get a new one with farbus ca renew")
        return None

    def _take(self, revocations: x509.CertificateRevocationList | None) -> None:
        # An older list than the one we have, put back by whoever, frees nobody.
        if revocations is None or revocations_number(revocations) <= self._number:
            return
        self._number = revocations_number(revocations)
        self._revoked = frozenset(f"{revoked.serial_number:040x}" for revoked in revocations)

    def _look(self) -> Stamp:
        files = self.credentials
        return tuple(_stamp(path) for path in (files.authority, files.certificate, files.key, files.revocations))


def receive_authorities(credentials: Credentials, authorities: bytes) -> bool:
    """Keep the authorities that the scheduler passed on; say whether they are others than before.

    Raises :class:`farbus.errors.InvalidInput` where none of them was trusted until now.
    """
    before = Path(credentials.authority).read_bytes()
    if before == authorities:
        return False
    check_successors(authorities, trusted=before)
    certificate, _, _ = credentials.read_pair()
    if not any(is_issued_by(certificate, authority) for authority in authorities_from(authorities, what="ca.crt")):
        raise InvalidInput(
            f"{credentials.certificate}: of an authority that is trusted no more", hint="join again with a token"
        )
    write_private(Path(credentials.authority), authorities, mode=0o644)
    return True


def receive_revocations(credentials: Credentials, revocations: bytes) -> bool:
    """Keep a revocation list that the scheduler passed on, if it is newer than the one there is; say whether it was.

    Raises :class:`farbus.errors.InvalidInput` for one that no authority of ours signed.
    """
    authorities = read_authorities(Path(credentials.authority))
    received = load_revocations(revocations, authorities, what="the revocation list received")
    try:
        before = read_revocations(Path(credentials.revocations), authorities)
    except InvalidInput:
        # Of an authority that has been replaced.
        before = None
    if before is not None and revocations_number(received) <= revocations_number(before):
        return False
    write_private(Path(credentials.revocations), revocations, mode=0o644)
    return True


def _by_digest(files: IssuedCertificate) -> dict[str, x509.Certificate]:
    return {
        authority.fingerprint(hashes.SHA256()).hex(): authority
        for authority in authorities_from(files.authority, what="ca.crt")
    }


def _described(peer: Peer) -> str:
    return f"the certificate of {peer.identity.role} {peer.identity.name}"


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


__all__ = ["IssuedCertificate", "Peer", "Trust"]
