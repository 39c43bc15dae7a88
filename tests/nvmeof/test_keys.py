"""Keys of leases: in the form of the specification, and other ones for each lease, epoch and side."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import pytest

from farbus.errors import InvalidInput
from farbus.model.nvmeof import SubsystemName
from farbus.nvmeof.keys import keys_of, representation, tls_key_of

NAME = SubsystemName(lease="lease", epoch=3)


def test_a_key_is_written_with_its_check_sum() -> None:
    # As nvme gen-dhchap-key of nvme-cli 2.13 writes such a key: --hmac=1, and a secret of 32 zero bytes.
    zeros = bytes(32)
    kind, transformation, text, end = representation(zeros).split(":")
    assert (kind, transformation, end) == ("DHHC-1", "01", "")
    key = base64.b64decode(text)
    assert key[:32] == zeros
    assert int.from_bytes(key[32:], "little") == binascii.crc32(zeros)


def test_both_ends_make_the_same_keys() -> None:
    assert keys_of("5a" * 32, NAME) == keys_of("5A" * 32, NAME)


def test_each_lease_epoch_and_side_has_its_own() -> None:
    names = [NAME, SubsystemName(lease="lease", epoch=4), SubsystemName(lease="other", epoch=3)]
    pairs = [keys_of(secret, name) for secret in ("5a" * 32, "a5" * 32) for name in names]
    assert len({key for pair in pairs for key in (pair.host, pair.controller)}) == 12


@pytest.mark.parametrize("secret", ["", "5a", "no hexadecimal", "5a" * 33])
def test_a_secret_that_is_none_is_refused_and_not_told(secret: str) -> None:
    with pytest.raises(InvalidInput, match="lease lease: its secret is not 32 bytes in hexadecimal") as caught:
        keys_of(secret, NAME)
    assert not secret or secret not in str(caught.value)


def test_keys_are_not_shown() -> None:
    assert "DHHC" not in repr(keys_of("5a" * 32, NAME))


def test_keys_for_authentication_are_those_that_they_were() -> None:
    # Agents of two versions make them at the two ends.
    keys = keys_of("5a" * 32, NAME)
    digest = hashlib.sha256(f"{keys.host} {keys.controller}".encode()).hexdigest()
    assert digest == "4b11353016e70093036067b688b4c8fdd3714f84980b6b6d225f5702d614dd96"


def test_a_key_of_tls_is_called_by_both_names_and_its_digest() -> None:
    key = tls_key_of("5a" * 32, NAME)
    assert len(bytes.fromhex(key.psk)) == 32
    kind, host, nqn, digest = str(key.identity).split(" ")
    assert (kind, host, nqn) == ("NVMe1R01", NAME.host_nqn, NAME.nqn)
    expected = hmac.digest(bytes.fromhex(key.psk), f"{host} {nqn} NVMe-over-Fabrics".encode(), "sha256")
    assert base64.b64decode(digest) == expected


def test_a_key_of_tls_is_its_own_lease_s_epoch_s_and_purpose_s() -> None:
    names = [NAME, SubsystemName(lease="lease", epoch=4), SubsystemName(lease="other", epoch=3)]
    keys = [tls_key_of(secret, name).psk for secret in ("5a" * 32, "a5" * 32) for name in names]
    proofs = [base64.b64decode(keys_of("5a" * 32, name).host.split(":")[2])[:32].hex() for name in names]
    assert len({*keys, *proofs}) == 9


def test_a_key_of_tls_is_not_shown_and_asks_for_a_secret() -> None:
    key = tls_key_of("5a" * 32, NAME)
    assert key.psk not in repr(key)
    with pytest.raises(InvalidInput, match="its secret is not 32 bytes in hexadecimal"):
        tls_key_of("5a", NAME)
