"""The door to the keys of TLS: its promise, lists of keys that are odd, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from farbus.errors import Unavailable
from farbus.linux.fake_tls_keys import FakeTlsKeys
from farbus.linux.tls_keys import KernelTlsKeys, shakes_hands
from farbus.model.nvmeof import SubsystemName, TlsIdentity, tls_identity
from farbus.nvmeof.keys import tls_key_of
from tests.linux.tls_keys_contract import SECRET, a_long_name_is_kept, keeps_its_promise

NAME = SubsystemName(lease="l1", epoch=3)
KEY = tls_key_of(SECRET, NAME)

# As Linux 6.12 lists keys, with names of ours; the digest is any.
LISTED = """\
0db4b0c5 I--Q---     3 perm 3b010000     0     0 psk       {ours}: 32
0f2f8a91 IR-Q---     1 perm 3b010000     0     0 psk       {revoked}: 32
1c9b4f02 I--Q---     2   6d 3b010000     0     0 psk       NVMe0R01 nqn.2014-08.org.example:h nqn.2014-08.org.ex:s: 32
2b1d7a6e I------     2 perm 1f0b0000     0     0 keyring   .nvme: 2
3aa0c1f0 I--Q---     4 perm 1f3f0000     0 65534 keyring   _uid.0: empty
this is no line
"""


async def test_the_fake_keeps_the_promise(tmp_path: Path) -> None:
    await keeps_its_promise(FakeTlsKeys(tmp_path))
    await a_long_name_is_kept(FakeTlsKeys(tmp_path))


async def test_who_comes_after_finds_the_keys(tmp_path: Path) -> None:
    await FakeTlsKeys(tmp_path).add(KEY.identity, KEY.psk)
    assert [one.identity for one in FakeTlsKeys(tmp_path).held()] == [KEY.identity]
    assert FakeTlsKeys(tmp_path).psk(NAME)[1] == KEY.psk


def test_a_list_is_read_and_others_keys_are_left_out(tmp_path: Path) -> None:
    revoked = TlsIdentity(name=NAME, digest="b" * 43 + "=")
    (tmp_path / "keys").write_text(LISTED.format(ours=KEY.identity, revoked=revoked))
    assert [(one.serial, one.identity) for one in KernelTlsKeys(proc=tmp_path).held()] == [(0x0DB4B0C5, KEY.identity)]


def test_where_there_is_no_list_there_is_no_key(tmp_path: Path) -> None:
    assert KernelTlsKeys(proc=tmp_path).held() == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVMe1R01",
        f"NVMe0R01 {NAME.host_nqn} {NAME.nqn}",
        f"NVMe1R02 {NAME.host_nqn} {NAME.nqn} digest",
        f"NVMe1R01 {NAME.host_nqn} nqn.2014-08.org.example:s digest",
        # The host of another lease.
        f"NVMe1R01 {SubsystemName(lease='l2', epoch=3).host_nqn} {NAME.nqn} digest",
    ],
)
def test_what_farbus_does_not_call_a_key_is_not_its_own(text: str) -> None:
    assert tls_identity(text) is None


def test_a_name_is_read_as_it_is_written() -> None:
    assert tls_identity(str(KEY.identity)) == KEY.identity


async def test_without_the_daemon_the_cure_is_told(tmp_path: Path) -> None:
    keys = FakeTlsKeys(tmp_path)
    keys.stop_daemon()
    with pytest.raises(Unavailable, match="tlshd does not run on this node") as caught:
        await keys.add(KEY.identity, KEY.psk)
    assert "ktls-utils" in caught.value.hint
    assert keys.held() == ()


async def test_a_kernel_without_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="this kernel has no TLS for NVMe") as caught:
        await FakeTlsKeys(tmp_path, kernel=False).add(KEY.identity, KEY.psk)
    assert "CONFIG_NVME_TCP_TLS" in caught.value.hint


def test_who_has_ended_shakes_no_hands(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "self").mkdir()
    assert not shakes_hands(tmp_path)
    # Programs choose their names, by prctl(2).
    (tmp_path / "6").mkdir()
    (tmp_path / "6/comm").write_bytes(b"\xff\n")
    assert not shakes_hands(tmp_path)
    (tmp_path / "7/comm").write_text("tlshd\n")
    assert shakes_hands(tmp_path)
