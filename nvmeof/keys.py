"""Keys of a lease for NVMe in-band authentication (DH-HMAC-CHAP), made of its secret at both ends and never sent.

Form: NVM Express Base Specification 2.0, 8.13.5.8 (secret representation):
``DHHC-1:HH:BASE64:``, where HH is how the key is transformed before use (01:
HMAC with SHA-256, for a key of 32 bytes), and BASE64 is of the key and its
CRC-32 in little-endian order.  Why two names go in:
docs/decisions/0021-names-and-keys-of-nvme-over-fabrics.md.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from farbus.errors import InvalidInput
from farbus.model.nvmeof import SubsystemName

KEY_BYTES = 32
SECRET_BYTES = 32
"""Of a lease."""

_TRANSFORMATION = 1
"""HMAC with SHA-256 over the key with the name of who has it."""


@dataclass(frozen=True)
class Keys:
    """What a host and the controllers of one subsystem prove to each other.  Not shown by ``repr``."""

    host: str = field(repr=False)
    """The host's: ``dhchap_key`` of the target, ``--dhchap-secret`` of the initiator."""
    controller: str = field(repr=False)
    """The controllers': ``dhchap_ctrl_key``, ``--dhchap-ctrl-secret``."""


def keys_of(secret: str, name: SubsystemName) -> Keys:
    """Return the keys of a lease's subsystem.

    ``secret`` is the lease's, 32 bytes in hexadecimal.  Raises :class:`InvalidInput`, which does not tell it.
    """
    try:
        material = bytes.fromhex(secret)
    except ValueError:
        material = b""
    if len(material) != SECRET_BYTES:
        raise InvalidInput(f"lease {name.lease}: its secret is not {SECRET_BYTES} bytes in hexadecimal")
    return Keys(host=_key(material, "host", name), controller=_key(material, "controller", name))


def _key(secret: bytes, role: str, name: SubsystemName) -> str:
    # Separated by a byte that is in no name: no two choices of names give the same text.
    purpose = "\0".join(("farbus dhchap", role, name.nqn, name.host_nqn)).encode("ascii")
    return representation(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(secret))


def representation(key: bytes) -> str:
    """Write a key of 32 bytes as kernel and nvme-cli take it."""
    check = binascii.crc32(key).to_bytes(4, "little")
    return f"DHHC-1:{_TRANSFORMATION:02}:{base64.b64encode(key + check).decode('ascii')}:"
