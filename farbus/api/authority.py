"""The cluster's certificate authority, and the files that hold credentials.

Keys are ECDSA P-256.  A certificate carries its holder's role as organisation
and name as common name (:mod:`farbus.api.identity`).  The scheduler's carries
:data:`SCHEDULER_SERVER_NAME` as a DNS name, an agent's that of its node
(:func:`node_server_name`), and clients ask for that name whatever address
they dialled, so that no other holder can pose as it.
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
from farbus.errors import Conflict, InvalidInput, NotFound
from farbus.model.value import Value

SCHEDULER_SERVER_NAME = "scheduler.farbus.internal"
NODE_DOMAIN = "node.farbus.internal"

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365

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
        pem = [_read_file(path) for path in (self.authority, self.certificate, self.key)]
        try:
            authority = x509.load_pem_x509_certificate(pem[0])
        except ValueError as error:
            raise InvalidInput(f"{self.authority}: not a PEM certificate") from error
        try:
            certificate = x509.load_pem_x509_certificate(pem[1])
        except ValueError as error:
            raise InvalidInput(f"{self.certificate}: not a PEM certificate") from error
        try:
            key = serialization.load_pem_private_key(pem[2], password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InvalidInput(f"{self.key}: not an unencrypted PEM private key") from error
        if key.public_key() != certificate.public_key():
            raise InvalidInput(f"{self.key}: not the key of {self.certificate}")
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise InvalidInput(
                f"{self.certificate}: not signed by {self.authority}", hint="issue it with the cluster's own authority"
            ) from error
        if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
            raise InvalidInput(
                f"{self.certificate}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}",
                hint="issue a new one with farbus ca issue",
            )
        return IssuedCertificate(certificate=pem[1], key=pem[2], authority=pem[0])

    def identity(self) -> Identity:
        """Return whose certificate it is."""
        return identity_of(self.read().certificate)

    def expires_at(self) -> datetime.datetime:
        """Return the moment, in UTC, at which the certificate expires."""
        return x509.load_pem_x509_certificate(self.read().certificate).not_valid_after_utc


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


class Authority:
    """The key that signs a cluster's certificates, in a directory of its own."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.directory = directory
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
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{cluster} authority")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
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
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(base / "ca.key", _key_pem(key))
        write_private(base / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
        return cls(base, certificate, key)

    @classmethod
    def open(cls, directory: str | Path) -> Authority:
        """Open the authority in ``directory``; raise :class:`NotFound` where there is none."""
        base = Path(directory)
        try:
            certificate = x509.load_pem_x509_certificate(_read_file(str(base / "ca.crt")))
            key = serialization.load_pem_private_key(_read_file(str(base / "ca.key")), password=None)
        except NotFound as error:
            raise NotFound(f"{base}: no authority here", hint="make one with farbus ca init") from error
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{base}: ca.crt or ca.key is malformed") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInput(f"{base / 'ca.key'}: not an elliptic-curve key")
        return cls(base, certificate, key)

    def issue(
        self, name: str, role: Role, *, addresses: Sequence[str] = (), days: int = CERTIFICATE_DAYS
    ) -> IssuedCertificate:
        """Issue a certificate for ``name`` in ``role``; ``addresses`` are extra DNS names or IP addresses."""
        if not valid_name(name):
            raise InvalidInput(f"{name!r} can't name a {role}", hint="use 1 to 63 letters, digits, '_', '.', '@', '-'")
        if not 1 <= days <= AUTHORITY_DAYS:
            raise InvalidInput(f"a certificate can't be valid for {days} days", hint=f"use 1 to {AUTHORITY_DAYS}")
        key = ec.generate_private_key(ec.SECP256R1())
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
            .public_key(key.public_key())
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
        certificate = builder.sign(self._key, hashes.SHA256())
        return IssuedCertificate(
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key=_key_pem(key),
            authority=self._certificate.public_bytes(serialization.Encoding.PEM),
        )


def write_credentials(directory: str | Path, name: str, issued: IssuedCertificate) -> Credentials:
    """Write ``ca.crt``, ``NAME.crt`` and ``NAME.key`` (mode 0600) into ``directory``."""
    base = Path(directory)
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    credentials = Credentials.in_directory(base, name)
    write_private(Path(credentials.key), issued.key)
    write_private(Path(credentials.certificate), issued.certificate, mode=0o644)
    write_private(Path(credentials.authority), issued.authority, mode=0o644)
    return credentials


def write_private(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a file whole or not at all, never readable by others for a moment."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


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


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)
