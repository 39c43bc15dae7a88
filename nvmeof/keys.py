"""Keys of a lease for NVMe in-band authentication (DH-HMAC-CHAP) and TLS, made of its secret at both ends, never sent.

Form of those for authentication: NVM Express Base Specification 2.0, 8.13.5.8 (secret representation):
``DHHC-1:HH:BASE64:``, where HH is how the key is transformed before use (01:
HMAC with SHA-256, for a key of 32 bytes), and BASE64 is of the key and its
CRC-32 in little-endian order.  Why two names go in:
docs/decisions/0021-names-and-keys-of-nvme-over-fabrics.md.

A key of TLS goes into the kernel's keyring as it is used: that it is not made
of a key in the interchange format is docs/decisions/0024-tls-of-nvme-over-tcp.md.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from farbus.errors import InvalidInput
from farbus.model.nvmeof import SubsystemName, TlsIdentity

KEY_BYTES = 32
SECRET_BYTES = 32
"""Of a lease."""

_TRANSFORMATION = 1
"""HMAC with SHA-256 over the key with the name of who has it."""

_ROLES = ("host", "controller")


@dataclass(frozen=True)
class Keys:
    """What a host and the controllers of one subsystem prove to each other.  Not shown by ``repr``."""

    host: str = field(repr=False)
    """The host's: ``dhchap_key`` of the target, ``--dhchap-secret`` of the initiator."""
    controller: str = field(repr=False)
    """The controllers': ``dhchap_ctrl_key``, ``--dhchap-ctrl-secret``."""


@dataclass(frozen=True)
class TlsKey:
    """The pre-shared key of TLS of a subsystem, in hexadecimal, and what it is called.  Not shown by ``repr``."""

    identity: TlsIdentity
    psk: str = field(repr=False)


@dataclass(frozen=True)
class LeaseKeys:
    """What a node that uses a lease proves it by, and what it encrypts by; neither where it has no secret of it."""

    host: str = field(default="", repr=False)
    """For DH-HMAC-CHAP."""
    tls: TlsKey | None = None


def keys_of(secret: str, name: SubsystemName) -> Keys:
    """Return the keys of a lease's subsystem.

    ``secret`` is the lease's, 32 bytes in hexadecimal.  Raises :class:`InvalidInput`, which does not tell it.
    """
    material = _material(secret, name)
    host, controller = (representation(_derived(material, f"farbus dhchap\0{role}", name)) for role in _ROLES)
    return Keys(host=host, controller=controller)


def tls_key_of(secret: str, name: SubsystemName) -> TlsKey:
    """Return the key by which connections to a lease's subsystem are encrypted; raise as :func:`keys_of`."""
    psk = _derived(_material(secret, name), "farbus tls", name)
    # The specification's digest of a key, with its own words (NVM Express TCP Transport 1.1, 3.6.1.3).
    digest = hmac.digest(psk, f"{name.host_nqn} {name.nqn} NVMe-over-Fabrics".encode("ascii"), "sha256")
    identity = TlsIdentity(name=name, digest=base64.b64encode(digest).decode("ascii"))
    return TlsKey(identity=identity, psk=psk.hex())


def _material(secret: str, name: SubsystemName) -> bytes:
    try:
        material = bytes.fromhex(secret)
    except ValueError:
        material = b""
    if len(material) != SECRET_BYTES:
        raise InvalidInput(f"lease {name.lease}: its secret is not {SECRET_BYTES} bytes in hexadecimal")
    return material


def _derived(secret: bytes, purpose: str, name: SubsystemName) -> bytes:
    # Separated by a byte that is in no name: no two choices of names give the same text.
    info = "\0".join((purpose, name.nqn, name.host_nqn)).encode("ascii")
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def representation(key: bytes) -> str:
    """Write a key of 32 bytes as kernel and nvme-cli take it."""
    check = binascii.crc32(key).to_bytes(4, "little")
    return f"DHHC-1:{_TRANSFORMATION:02}:{base64.b64encode(key + check).decode('ascii')}:"
