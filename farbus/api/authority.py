"""The cluster's certificate authority, and the files that hold credentials.

Keys are ECDSA P-256.  A certificate carries its holder's role as organisation
and name as common name (:mod:`farbus.api.identity`).  The scheduler's carries
:data:`SCHEDULER_SERVER_NAME` as a DNS name, an agent's that of its node
(:func:`node_server_name`), and clients ask for that name whatever address
they dialled, so that no other holder can pose as it.

Every certificate is recorded beside the key (:mod:`farbus.api.registry`), so
that it can be listed and revoked.  What is revoked stands in ``ca.crl``, which
the key signs (RFC 5280, section 5) and which lies beside each ``ca.crt``.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from farbus.api.identity import Identity, Role, valid_name
from farbus.api.registry import CertificateRecord, Registry
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted
from farbus.model.value import Value

SCHEDULER_SERVER_NAME = "scheduler.farbus.internal"
NODE_DOMAIN = "node.farbus.internal"

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365

MAX_REQUEST_BYTES = 8_192
"""Longest certificate signing request: one of a P-384 key has less than 1 KiB."""

MAX_AUTHORITIES = 4
"""Authorities in one ``ca.crt``: one takes over from another, and perhaps the next begins."""

MAX_TOLD = 5
"""Names in one line of error."""

REVOCATIONS = "ca.crl"
"""Name of the revocation list, beside ``ca.crt``."""

_AUTHORITY = " authority"
"""Behind the cluster's name in the certificate of its authority."""

_NEXT = ".next"
"""Ends the name of a certificate whose key is being put in place."""

# A node whose clock runs behind the authority's by less than this accepts a new certificate.
_CLOCK_SKEW = datetime.timedelta(minutes=10)


def node_server_name(name: str) -> str:
    """Return the DNS name in the certificate of the agent of node ``name``.

    Other agents ask for it, so that no certificate of another node or role
    can answer in its place.  A digest, because DNS names have fewer
    characters than names of nodes, and their case says nothing.
    """
    return f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.{NODE_DOMAIN}"


class IssuedCertificate(Value, frozen=True, kw_only=True):
    """A new certificate with its key and the authority's certificate, each as PEM."""

    certificate: bytes
    key: bytes
    authority: bytes


class Credentials(Value, frozen=True, kw_only=True):
    """Paths of the files that prove who a process is."""

    authority: str
    certificate: str
    key: str

    @classmethod
    def in_directory(cls, directory: str | Path, name: str) -> Credentials:
        """Name the files as :func:`write_credentials` lays them out."""
        base = Path(directory)
        return cls(authority=str(base / "ca.crt"), certificate=str(base / f"{name}.crt"), key=str(base / f"{name}.key"))

    def read(self) -> IssuedCertificate:
        """Read and check the three files.

        Raises :class:`NotFound` or :class:`InvalidInput` in one line that
        names the file: missing, unreadable, malformed, key and certificate of
        different pairs, not signed by the authority, expired.
        """
        authorities = read_authorities(Path(self.authority))
        certificate, certificate_pem, key_pem = self.read_pair()
        if not any(is_issued_by(certificate, authority) for authority in authorities):
            raise InvalidInput(
                f"{self.certificate}: not signed by {self.authority}", hint="issue it with the cluster's own authority"
            )
        check_validity(certificate, what=self.certificate)
        return IssuedCertificate(
            certificate=certificate_pem, key=key_pem, authority=b"".join(_pem(authority) for authority in authorities)
        )

    def read_pair(self) -> tuple[x509.Certificate, bytes, bytes]:
        """Return certificate, its PEM and its key's, also in the middle of :func:`replace_pair`."""
        for path in (self.certificate, self.certificate + _NEXT, self.certificate):
            key_pem = _read_file(self.key)
            try:
                certificate_pem = _read_file(path)
            except NotFound:
                if path == self.certificate:
                    raise
                continue
            try:
                certificate = x509.load_pem_x509_certificate(certificate_pem)
            except ValueError as error:
                raise InvalidInput(f"{path}: not a PEM certificate") from error
            try:
                key = serialization.load_pem_private_key(key_pem, password=None)
            except (ValueError, TypeError, UnsupportedAlgorithm) as error:
                raise InvalidInput(f"{self.key}: not an unencrypted PEM private key") from error
            if key.public_key() == certificate.public_key():
                return certificate, certificate_pem, key_pem
        raise InvalidInput(f"{self.key}: not the key of {self.certificate}")

    @property
    def revocations(self) -> str:
        """Path of the revocation list, which need not be there."""
        return str(Path(self.authority).with_name(REVOCATIONS))

    def identity(self) -> Identity:
        """Return whose certificate it is."""
        return identity_of(self.read().certificate)

    def expires_at(self) -> datetime.datetime:
        """Return the moment, in UTC, at which the certificate expires."""
        return x509.load_pem_x509_certificate(self.read().certificate).not_valid_after_utc

    def is_of_signing_authority(self) -> bool:
        """Say whether the authority that signs now, which is first in ``ca.crt``, has signed the certificate."""
        return is_issued_by(self.read_pair()[0], read_authorities(Path(self.authority))[0])

    def lifetime(self) -> tuple[datetime.datetime, datetime.datetime]:
        """Return from when and until when, in UTC, the certificate is valid."""
        certificate, _, _ = self.read_pair()
        return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def check_validity(
    certificate: x509.Certificate, *, what: str, hint: str = "get a new one with farbus ca renew or farbus ca issue"
) -> None:
    """Raise :class:`InvalidInput` for a certificate that is expired, with what to do then, or not yet valid."""
    now = datetime.datetime.now(datetime.UTC)
    if certificate.not_valid_after_utc < now:
        raise InvalidInput(f"{what}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}", hint=hint)
    if certificate.not_valid_before_utc > now:
        raise InvalidInput(
            f"{what}: not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
            hint="is this machine's clock right?",
        )


def read_authorities(path: Path) -> tuple[x509.Certificate, ...]:
    """Return the authorities that a ``ca.crt`` trusts: one, or two while one takes over from the other."""
    return authorities_from(_read_file(str(path)), what=str(path))


def authorities_from(pem: bytes, *, what: str) -> tuple[x509.Certificate, ...]:
    """Return authorities from PEM; raise :class:`InvalidInput` where there are none, too many, or expired ones."""
    try:
        found = tuple(x509.load_pem_x509_certificates(pem))
    except ValueError as error:
        raise InvalidInput(f"{what}: not a PEM certificate") from error
    if len(found) > MAX_AUTHORITIES:
        raise InvalidInput(f"{what}: {len(found)} authorities, more than {MAX_AUTHORITIES}")
    for authority in found:
        check_validity(authority, what=what, hint="make another authority with farbus ca init, and issue anew")
    return found


def check_successors(authorities: bytes, *, trusted: bytes) -> tuple[x509.Certificate, ...]:
    """Return the authorities that another process says are trusted now.

    Raises :class:`InvalidInput` where none of them was ``trusted`` until now:
    one takes over from another while both are.
    """
    now = authorities_from(authorities, what="the authorities received")
    if not set(now) & set(authorities_from(trusted, what="ca.crt")):
        raise InvalidInput("none of the authorities received was trusted before", hint="copy ca.crt by hand")
    return now


def check_issued(issued: IssuedCertificate, *, trusted: bytes, holder: Identity) -> None:
    """Check what an issuing service sent: our key's, our name's, and of an authority that we trusted before.

    ``trusted`` are the authorities known until now; of those that came at
    least one must be among them.  Raises :class:`InvalidInput`.
    """
    now = check_successors(issued.authority, trusted=trusted)
    try:
        certificate = x509.load_pem_x509_certificate(issued.certificate)
    except ValueError as error:
        raise InvalidInput("the certificate received is not PEM") from error
    key = serialization.load_pem_private_key(issued.key, password=None)
    if (
        not any(is_issued_by(certificate, authority) for authority in now)
        or certificate.public_key() != key.public_key()
        or identity_of(issued.certificate) != holder
    ):
        raise InvalidInput(f"the certificate received is not one for {holder.role} {holder.name} of this cluster")
    check_validity(certificate, what="the certificate received")


def read_revocations(path: Path, authorities: Sequence[x509.Certificate]) -> x509.CertificateRevocationList | None:
    """Return the list at ``path``, None where there is none.

    Raises :class:`InvalidInput` for one that is malformed or not signed by
    one of ``authorities``.
    """
    try:
        data = _read_file(str(path))
    except NotFound:
        return None
    return load_revocations(data, authorities, what=str(path))


def load_revocations(
    data: bytes, authorities: Sequence[x509.Certificate], *, what: str
) -> x509.CertificateRevocationList:
    """Return a revocation list from PEM; raise :class:`InvalidInput` as :func:`read_revocations` does."""
    try:
        revocations = x509.load_pem_x509_crl(data)
        numbered = revocations_number(revocations)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise InvalidInput(f"{what}: not a PEM revocation list", hint="copy ca.crl from the authority") from error
    del numbered
    for authority in authorities:
        key = authority.public_key()
        if isinstance(key, ec.EllipticCurvePublicKey) and revocations.is_signature_valid(key):
            return revocations
    raise InvalidInput(f"{what}: not signed by the authority", hint="copy ca.crl from the authority")


def revocations_number(revocations: x509.CertificateRevocationList) -> int:
    """Return the list's number (RFC 5280, section 5.2.3): a newer list has a higher one."""
    return revocations.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def fingerprint_of(certificate_pem: bytes) -> str:
    """Return the SHA-256 of a certificate in hexadecimal."""
    return x509.load_pem_x509_certificate(certificate_pem).fingerprint(hashes.SHA256()).hex()


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Say whether ``authority`` signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such file", hint="make credentials with farbus ca issue") from error
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error


def identity_of(certificate_pem: bytes) -> Identity:
    """Return the holder's identity from its certificate in PEM."""
    try:
        subject = x509.load_pem_x509_certificate(certificate_pem).subject
        name = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        role = Role(str(subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value))
    except (ValueError, IndexError) as error:
        raise InvalidInput("the certificate's subject names no Farbus role and name") from error
    return Identity(name=name, role=role)


def check_cluster_name(name: str, *, field: str) -> None:
    """Raise :class:`InvalidInput` naming ``field`` where no authority can have ``name`` in its certificate."""
    # The subject's common name, which says "authority" too, has 64 characters at most (RFC 5280, ub-common-name).
    if not 1 <= len(name) <= 64 - len(_AUTHORITY) or not name.isprintable():
        raise InvalidInput(
            f"{field}: {name[:80]!r} can't name a cluster", hint=f"use 1 to {64 - len(_AUTHORITY)} printable characters"
        )


class Authority:
    """The key that signs a cluster's certificates, in a directory of its own."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.directory = directory
        self.registry = Registry(directory)
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, directory: str | Path, *, cluster: str = "farbus") -> Authority:
        """Make a new authority: ``ca.crt`` and ``ca.key`` (mode 0600) in ``directory``.

        Raises :class:`Conflict` where there is one already.
        """
        base = Path(directory)
        if (base / "ca.key").exists():
            raise Conflict(f"{base / 'ca.key'}: there is an authority already", hint="choose another directory")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{cluster}{_AUTHORITY}")])
        certificate = _self_signed(name, key)
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(base / "ca.key", _key_pem(key))
        write_private(base / "ca.crt", _pem(certificate), mode=0o644)
        made = cls(base, certificate, key)
        made.write_revocations()
        return made

    @classmethod
    def open(cls, directory: str | Path) -> Authority:
        """Open the authority in ``directory``; raise :class:`NotFound` where there is none."""
        return cls._open(Path(directory), Path(directory) / "ca.key")

    @classmethod
    def _open(cls, base: Path, key_path: Path) -> Authority:
        try:
            authorities = read_authorities(base / "ca.crt")
            key = serialization.load_pem_private_key(_read_file(str(key_path)), password=None)
        except NotFound as error:
            raise NotFound(f"{base}: no authority here", hint="make one with farbus ca init") from error
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                f"{base}: ca.crt or {key_path.name} is malformed", hint="restore the directory from a backup"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInput(f"{key_path}: not an elliptic-curve key")
        for certificate in authorities:
            if certificate.public_key() == key.public_key():
                return cls(base, certificate, key)
        raise InvalidInput(f"{base}: {key_path.name} is the key of no certificate in ca.crt")

    def issue(
        self, name: str, role: Role, *, addresses: Sequence[str] = (), days: int = CERTIFICATE_DAYS
    ) -> IssuedCertificate:
        """Issue a certificate for ``name`` in ``role``; ``addresses`` are extra DNS names or IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.sign(key.public_key(), name, role, addresses=addresses, days=days)
        self.registry.add(record_of(certificate))
        return IssuedCertificate(certificate=_pem(certificate), key=_key_pem(key), authority=self.bundle())

    def sign(
        self,
        public_key: ec.EllipticCurvePublicKey,
        name: str,
        role: Role,
        *,
        addresses: Sequence[str] = (),
        days: int = CERTIFICATE_DAYS,
    ) -> x509.Certificate:
        """Return a certificate for ``public_key`` that is in no record yet."""
        if not valid_name(name):
            raise InvalidInput(f"{name!r} can't name a {role}", hint="use 1 to 63 letters, digits, '_', '.', '@', '-'")
        if not 1 <= days <= AUTHORITY_DAYS:
            raise InvalidInput(f"a certificate can't be valid for {days} days", hint=f"use 1 to {AUTHORITY_DAYS}")
        now = datetime.datetime.now(datetime.UTC)
        names: list[x509.GeneralName] = [_general_name(address) for address in addresses]
        if role is Role.SCHEDULER:
            names.insert(0, x509.DNSName(SCHEDULER_SERVER_NAME))
        elif role is Role.NODE:
            names.insert(0, x509.DNSName(node_server_name(name)))
        builder = (
            x509.CertificateBuilder()
            .subject_name(
                x509.Name(
                    [
                        x509.NameAttribute(NameOID.ORGANIZATION_NAME, role.value),
                        x509.NameAttribute(NameOID.COMMON_NAME, name),
                    ]
                )
            )
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(min(now + datetime.timedelta(days=days), self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                    if role in (Role.SCHEDULER, Role.NODE)
                    else [ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def bundle(self) -> bytes:
        """Return the certificates of all authorities that are trusted now, as PEM; the one that signs is first."""
        trusted = read_authorities(self.directory / "ca.crt")
        others = (each for each in trusted if each != self._certificate)
        return b"".join(_pem(each) for each in (self._certificate, *others))

    def has_signed(self, credentials: Credentials) -> bool:
        """Say whether a certificate is of this authority, and not of the one before it."""
        return is_issued_by(credentials.read_pair()[0], self._certificate)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate in hexadecimal."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def begin_rotation(self) -> None:
        """Make the authority that will take over; both are trusted from now on, and this one goes on signing."""
        if len(read_authorities(self.directory / "ca.crt")) > 1:
            raise Conflict(f"{self.directory}: one authority is taking over already", hint="switch, then finish")
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _self_signed(self._certificate.subject, key)
        # The key first: a crash in between leaves one that nobody trusts.
        write_private(self.directory / "next.key", _key_pem(key))
        write_private(self.directory / "ca.crt", _pem(self._certificate) + _pem(certificate), mode=0o644)

    def switch_rotation(self) -> None:
        """Sign with the next authority's key from now on.  The key says which authority signs: one rename switches."""
        if not (self.directory / "next.key").exists():
            raise Conflict(f"{self.directory}: no authority is taking over", hint="begin with farbus ca rotate begin")
        following = Authority._open(self.directory, self.directory / "next.key")
        following.write_revocations()
        # Before, so that a crash leaves a mark; after, so that what was signed in between counts as of the old one.
        self.registry.note_switch()
        os.replace(self.directory / "next.key", self.directory / "ca.key")
        self.registry.note_switch()

    @property
    def is_replacing(self) -> bool:
        """Whether it signs already, and the one before it is still trusted."""
        return not (self.directory / "next.key").exists() and len(read_authorities(self.directory / "ca.crt")) > 1

    def finish_rotation(self, *, force: bool = False) -> None:
        """Trust the authority that signs, and no other.

        Raises :class:`Conflict` while somebody has a valid certificate of the old authority only, but with ``force``.
        """
        if (self.directory / "next.key").exists():
            raise Conflict(f"{self.directory}: the next authority does not sign yet", hint="farbus ca rotate switch")
        if not self.is_replacing:
            raise Conflict(
                f"{self.directory}: no authority is being replaced", hint="begin with farbus ca rotate begin"
            )
        now = datetime.datetime.now(datetime.UTC).timestamp()
        left = sorted({f"{record.role} {record.name}" for record in self.registry.not_replaced(now)})
        if left and not force:
            more = f" and {len(left) - MAX_TOLD} more" if len(left) > MAX_TOLD else ""
            raise Conflict(
                f"{self.directory}: only the old authority vouches for {', '.join(left[:MAX_TOLD])}{more}",
                hint="renew (farbus ca renew DIR) or revoke their certificates; --force shuts them out",
            )
        write_private(self.directory / "ca.crt", _pem(self._certificate), mode=0o644)
        self.write_revocations()

    def renew(self, certificate: x509.Certificate, *, what: str, days: int = CERTIFICATE_DAYS) -> IssuedCertificate:
        """Return a new certificate, with a new key, for the holder of one of this authority that is not revoked.

        An expired one is renewed too: whoever has the authority's key needs
        no proof.  ``what`` names the certificate in errors.
        """
        if not any(is_issued_by(certificate, authority) for authority in read_authorities(self.directory / "ca.crt")):
            raise InvalidInput(f"{what}: not signed by the authority in {self.directory}")
        holder = identity_of(_pem(certificate))
        try:
            self.registry.check_renewal(serial_text(certificate), holder.name)
        except NotPermitted as error:
            raise NotPermitted(f"{what}: {error.message}", hint="issue another with farbus ca issue") from error
        return self.issue(holder.name, holder.role, addresses=_addresses(certificate), days=days)

    def revocations(self) -> bytes:
        """Return the revocation list as PEM."""
        return _read_file(str(self.directory / REVOCATIONS))

    def revoke(self, what: str, *, reason: str = "") -> tuple[CertificateRecord, ...]:
        """Revoke the certificate with the serial number ``what``, or all valid ones of that name; write the list.

        A name is not renewed until it is issued again.  Raises
        :class:`NotFound` where there is nothing to revoke.
        """
        now = datetime.datetime.now(datetime.UTC)
        revoked = self.registry.revoke(what, reason=reason, at=now.timestamp())
        self.write_revocations()
        return revoked

    def write_revocations(self) -> None:
        """Write ``ca.crl`` from the registry.

        Its number is the count of all that was ever revoked, so that doing
        it again makes no newer list.
        """
        now = datetime.datetime.now(datetime.UTC)
        number, revoked = self.registry.revoked()
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - _CLOCK_SKEW)
            # A list holds until there is a newer one: a cluster must not stop because nobody signed one.
            .next_update(self._certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for record in revoked:
            if record.expires_at < now.timestamp():
                continue
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(int(record.serial, 16))
                .revocation_date(datetime.datetime.fromtimestamp(record.revoked_at, datetime.UTC))
                .build()
            )
        signed = builder.sign(self._key, hashes.SHA256())
        write_private(self.directory / REVOCATIONS, signed.public_bytes(serialization.Encoding.PEM), mode=0o644)
        if self.registry.revoked()[0] != number:
            # Another process has revoked one meanwhile, and its list may have been replaced by this older one.
            self.write_revocations()


def _self_signed(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def new_request() -> tuple[bytes, bytes]:
    """Return a new key and a signing request for it, each as PEM; the authority decides whom it names."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _key_pem(key), request_for(_key_pem(key))


def request_for(key_pem: bytes) -> bytes:
    """Return a signing request for a key that is there already, as PEM."""
    key = serialization.load_pem_private_key(key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def key_of_request(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key that a request asks a certificate for, all that is believed of a request.

    Raises :class:`InvalidInput` for one that is malformed, too long, not
    signed by its own key, or of a kind of key that is not used here.
    """
    if len(request_pem) > MAX_REQUEST_BYTES:
        raise InvalidInput(f"the signing request has {len(request_pem)} bytes, more than {MAX_REQUEST_BYTES}")
    try:
        request = x509.load_pem_x509_csr(request_pem)
        key = request.public_key()
        signed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise InvalidInput("the signing request is malformed") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        raise InvalidInput("the signing request is for a key that is not ECDSA P-256 or P-384")
    if not signed:
        raise InvalidInput("the signing request is not signed by its own key")
    return key


def key_digest(key: ec.EllipticCurvePublicKey) -> str:
    """Return what tells one public key from another: the SHA-256 of its encoding, in hexadecimal."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
    )
    return digest.finalize().hex()


def serial_text(certificate: x509.Certificate) -> str:
    """Return a certificate's serial number as it is written everywhere: 40 hexadecimal digits."""
    return f"{certificate.serial_number:040x}"


def record_of(certificate: x509.Certificate) -> CertificateRecord:
    """Return the registry's record of a certificate."""
    holder = identity_of(_pem(certificate))
    return CertificateRecord(
        serial=serial_text(certificate),
        name=holder.name,
        role=holder.role.value,
        valid_from=certificate.not_valid_before_utc.timestamp(),
        expires_at=certificate.not_valid_after_utc.timestamp(),
    )


def write_credentials(directory: str | Path, name: str, issued: IssuedCertificate) -> Credentials:
    """Write ``ca.crt``, ``NAME.crt`` and ``NAME.key`` (mode 0600) into ``directory``."""
    base = Path(directory)
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    credentials = Credentials.in_directory(base, name)
    write_private(Path(credentials.authority), issued.authority, mode=0o644)
    replace_pair(credentials, issued)
    return credentials


def replace_pair(credentials: Credentials, issued: IssuedCertificate) -> None:
    """Put a certificate and its key in the place of others, so that at any moment there is a pair.

    First the certificate under another name, then the key, then the
    certificate under its own: :meth:`Credentials.read` looks for it under
    both, so neither a reader nor a crash in between meets a key without its
    certificate.
    """
    following = Path(credentials.certificate + _NEXT)
    write_private(following, issued.certificate, mode=0o644)
    write_private(Path(credentials.key), issued.key)
    os.replace(following, credentials.certificate)


def write_private(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a file whole or not at all, never readable by others for a moment."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            _give_to_owner(file.fileno(), path.parent)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _give_to_owner(descriptor: int, directory: Path) -> None:
    """Give a file that root makes to whom its directory belongs: the scheduler reads what root issues there."""
    owner = directory.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _addresses(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the further names of a certificate, as :meth:`Authority.issue` takes them."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    ours = (SCHEDULER_SERVER_NAME, NODE_DOMAIN)
    return tuple(str(name.value) for name in names if not str(name.value).endswith(ours))


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)
