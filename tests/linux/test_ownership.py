"""As whom root works in a directory: its owner's rights, found along the whole way to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farbus.errors import Conflict
from farbus.linux.ownership import acting_for_owner, make_directory
from farbus.linux.users import Account, FakeUsers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

ROOT = Account(name="root", uid=0, gid=0)
SOMEBODY = Account(name="somebody", uid=61_001, gid=61_002, groups=(61_002, 61_003))
OTHER = Account(name="other", uid=61_011, gid=61_012)
USERS = FakeUsers((ROOT, SOMEBODY, OTHER))


def made(path: Path, owner: Account) -> Path:
    path.mkdir()
    os.chown(path, owner.uid, owner.gid)
    return path


def acting_in(path: Path) -> int:
    with acting_for_owner(path, users=USERS):
        return os.geteuid()


def test_root_has_its_owners_rights_inside_and_its_own_afterwards(tmp_path: Path) -> None:
    before = os.getresuid(), os.getresgid(), os.getgroups()
    with acting_for_owner(made(tmp_path / "a", SOMEBODY), users=USERS):
        assert (os.geteuid(), os.getegid(), os.getgroups()) == (61_001, 61_002, [61_002, 61_003])
        # Who is not root may signal those only whose real or saved user is himself (kill(2)).
        assert os.getresuid()[0] == os.getresuid()[2] == 0
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before


def test_rights_come_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), acting_for_owner(made(tmp_path / "a", SOMEBODY), users=USERS):
        Path("/etc/shadow").read_bytes()
    assert (os.geteuid(), os.getegid()) == (0, 0)


def test_in_a_directory_of_its_own_root_stays_root(tmp_path: Path) -> None:
    assert acting_in(tmp_path) == 0


def test_what_is_not_there_yet_is_of_who_owns_the_way(tmp_path: Path) -> None:
    assert acting_in(made(tmp_path / "a", SOMEBODY) / "b" / "c") == 61_001


def test_directory_of_roots_behind_another_users_is_the_others_to_replace(tmp_path: Path) -> None:
    assert acting_in(made(made(tmp_path / "a", SOMEBODY) / "b", ROOT)) == 61_001


def test_first_of_several_owners_counts(tmp_path: Path) -> None:
    assert acting_in(made(made(tmp_path / "a", OTHER) / "b", SOMEBODY)) == 61_011


def test_link_of_another_user_is_theirs_wherever_it_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(made(tmp_path / "a", ROOT))
    os.lchown(tmp_path / "link", SOMEBODY.uid, SOMEBODY.gid)
    assert acting_in(tmp_path / "link") == 61_001


@pytest.mark.parametrize("target", ["a", "../up/a", "absolute"])
def test_roots_own_link_is_followed(tmp_path: Path, target: str) -> None:
    up = made(tmp_path / "up", ROOT)
    made(up / "a", SOMEBODY)
    (up / "link").symlink_to(up / "a" if target == "absolute" else target)
    assert acting_in(up / "link") == 61_001


def test_directory_that_everybody_can_write_is_refused_but_for_one_like_tmp(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o1777)
    assert acting_in(tmp_path / "a" / "b") == 0
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(Conflict, match="a: everybody can write there; take that away"):
        acting_in(tmp_path / "a" / "b")


def shared(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o1777)
    return path


def test_what_another_user_has_made_in_a_directory_like_tmp_is_refused(tmp_path: Path) -> None:
    trap = made(shared(tmp_path / "tmp") / "node7", SOMEBODY)
    for path in (trap, trap / "certificates"):
        with pytest.raises(Conflict, match="node7: made by user id 61001, where everybody can make something; choose"):
            acting_in(path)


def test_what_root_has_made_in_a_directory_like_tmp_may_be_given_away(tmp_path: Path) -> None:
    own = made(shared(tmp_path / "tmp") / "mine", ROOT)
    assert acting_in(made(own / "a", SOMEBODY)) == 61_001


def test_directory_that_somebody_makes_before_root_can_is_not_used(tmp_path: Path) -> None:
    place = shared(tmp_path / "tmp") / "node7"
    with acting_for_owner(place, users=USERS):
        made(place, SOMEBODY)
        with pytest.raises(Conflict, match="where everybody can make something"):
            make_directory(place)


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(Conflict, match="its symbolic links lead in a circle; name the directory itself"):
        acting_in(tmp_path / "a")


def test_user_without_a_name_is_served_by_number(tmp_path: Path) -> None:
    path = made(tmp_path / "a", Account(name="nameless", uid=61_021, gid=61_022))
    with acting_for_owner(path, users=USERS):
        assert (os.geteuid(), os.getegid(), os.getgroups()) == (61_021, 61_022, [])
