"""The authority and the files that hold credentials."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from farbus.api.authority import (
    Authority,
    Credentials,
    IssuedCertificate,
    check_issued,
    write_credentials,
)
from farbus.api.identity import Identity, Role, resolve_caller
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted
from tests.disks import small_disk


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca")


def credentials_for(authority: Authority, directory: Path, name: str, role: Role) -> Credentials:
    return write_credentials(directory, name, authority.issue(name, role))


def test_issued_certificate_names_its_holder(authority: Authority, tmp_path: Path) -> None:
    credentials = credentials_for(authority, tmp_path / "c", "alpha", Role.NODE)
    assert credentials.identity() == Identity(name="alpha", role=Role.NODE)


def test_keys_are_readable_by_their_owner_alone(authority: Authority, tmp_path: Path) -> None:
    credentials = credentials_for(authority, tmp_path / "c", "alpha", Role.NODE)
    for path in (Path(credentials.key), tmp_path / "ca" / "ca.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_second_authority_in_one_directory_is_refused(authority: Authority) -> None:
    with pytest.raises(Conflict, match="there is an authority already"):
        Authority.create(authority.directory)


def test_opened_authority_issues_what_the_first_would_accept(authority: Authority, tmp_path: Path) -> None:
    credentials_for(Authority.open(authority.directory), tmp_path / "c", "bob", Role.USER).read()


def test_missing_authority_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="farbus ca init"):
        Authority.open(tmp_path)


@pytest.mark.parametrize("name", ["", "a b", "x" * 64, "../etc", "-rf"])
def test_impossible_name_is_refused(authority: Authority, name: str) -> None:
    with pytest.raises(InvalidInput, match="can't name a user"):
        authority.issue(name, Role.USER)


def test_certificate_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other")
    credentials = credentials_for(authority, tmp_path / "c", "bob", Role.USER)
    Path(credentials.authority).write_bytes((other.directory / "ca.crt").read_bytes())
    with pytest.raises(InvalidInput, match=r"bob\.crt: not signed by"):
        credentials.read()


def test_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    credentials = credentials_for(authority, tmp_path / "c", "bob", Role.USER)
    Path(credentials.key).write_bytes(authority.issue("eve", Role.USER).key)
    with pytest.raises(InvalidInput, match=r"bob\.key: not the key of"):
        credentials.read()


@pytest.mark.parametrize("member", ["authority", "certificate", "key"])
def test_malformed_file_is_named(authority: Authority, tmp_path: Path, member: str) -> None:
    credentials = credentials_for(authority, tmp_path / "c", "bob", Role.USER)
    path = getattr(credentials, member)
    Path(path).write_text("rubbish")
    with pytest.raises(InvalidInput, match=path):
        credentials.read()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"ca\.crt: no such file"):
        Credentials.in_directory(tmp_path, "bob").read()


SUBMIT = "/farbus.v1.Cluster/Submit"
NODE = Identity(name="alpha", role=Role.NODE)


def test_node_vouches_for_its_user() -> None:
    caller = resolve_caller(NODE, {"farbus-user": "bob", "farbus-role": "user"}, SUBMIT)
    assert caller == Identity(name="bob", role=Role.USER, node="alpha")


@pytest.mark.parametrize("metadata", [{}, {"farbus-user": "bob", "farbus-role": "node"}, {"farbus-user": "a b"}])
def test_node_itself_may_not_submit(metadata: dict[str, str]) -> None:
    with pytest.raises(NotPermitted):
        resolve_caller(NODE, metadata, SUBMIT)


def test_user_may_not_vouch_for_another() -> None:
    with pytest.raises(NotPermitted, match="can't vouch"):
        resolve_caller(Identity(name="eve", role=Role.USER), {"farbus-user": "bob"}, SUBMIT)


def test_user_may_not_open_a_node_session() -> None:
    with pytest.raises(NotPermitted, match="may not call Session"):
        resolve_caller(Identity(name="eve", role=Role.USER), {}, "/farbus.v1.NodeSession/Session")


def issue_many(authority: Authority) -> None:
    """Issue until what a file has room for is used up, too."""
    for number in range(100):
        authority.issue(f"n{number}", Role.NODE)


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_bytes=2**20) as disk:
        authority = Authority.create(disk.path / "ca")
        authority.issue("a", Role.NODE)
        disk.fill()
        with pytest.raises(Conflict, match="database or disk is full; see that its disk has room"):
            issue_many(authority)
        disk.make_room()
        authority.issue("b", Role.NODE)


HOLDER = Identity(name="alpha", role=Role.NODE)


def received(authority: Authority, other: Authority, fault: str) -> IssuedCertificate:
    """What a service that issues certificates may send to alpha; of ``authority``, but for the ``fault``."""
    good, bad = authority.issue("alpha", Role.NODE), other.issue("alpha", Role.NODE)
    return {
        "": good,
        # Said to be of the authority that is trusted, beside which another may take over.
        "signed by another authority": replace(good, certificate=bad.certificate, key=bad.key),
        "for another key": replace(good, key=authority.issue("alpha", Role.NODE).key),
        "for another node": authority.issue("beta", Role.NODE),
        "for a user of its name": authority.issue("alpha", Role.USER),
        "no certificate": replace(good, certificate=b"rubbish"),
        "with other authorities": bad,
    }[fault]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("signed by another authority", "is not one for node alpha of this cluster"),
        ("for another key", "is not one for node alpha of this cluster"),
        ("for another node", "is not one for node alpha of this cluster"),
        ("for a user of its name", "is not one for node alpha of this cluster"),
        ("no certificate", "the certificate received is not PEM"),
        ("with other authorities", "none of the authorities received was trusted before"),
    ],
)
def test_what_is_not_our_certificate_is_refused(authority: Authority, tmp_path: Path, fault: str, told: str) -> None:
    other = Authority.create(tmp_path / "other")
    trusted = authority.bundle()
    check_issued(received(authority, other, ""), trusted=trusted, holder=HOLDER)
    with pytest.raises(InvalidInput, match=told):
        check_issued(received(authority, other, fault), trusted=trusted, holder=HOLDER)
