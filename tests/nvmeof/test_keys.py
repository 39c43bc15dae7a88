"""Keys of leases: in the form of the specification, and other ones for each lease, epoch and side."""

from __future__ import annotations

import base64
import binascii

import pytest

from farbus.errors import InvalidInput
from farbus.model.nvmeof import SubsystemName
from farbus.nvmeof.keys import keys_of, representation

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
