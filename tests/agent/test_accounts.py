"""Whose task runs as whom: the map, what is allowed and denied."""

from __future__ import annotations

import pytest

from farbus.agent.accounts import UserRules, choose_account
from farbus.errors import InvalidInput, NotFound, NotPermitted
from farbus.linux.users import Account, FakeUsers

ROOT = Account(name="root", uid=0, gid=0)
TOOR = Account(name="toor", uid=0, gid=0)
ANN = Account(name="ann", uid=1001, gid=1001)
BOB = Account(name="bob", uid=1002, gid=1002)


def account(user: str, *, allow_root: bool = False, **rules: object) -> Account | None:
    users = FakeUsers([ROOT, TOOR, ANN, BOB])
    return choose_account(user, users=users, run_as_self=False, allow_root=allow_root, rules=UserRules(**rules))


def test_user_is_mapped_by_exact_name_before_patterns() -> None:
    rules = {"*@example.org": "bob", "ann@example.org": "ann"}
    assert account("ann@example.org", user_map=rules) == ANN
    assert account("zoe@example.org", user_map=rules) == BOB


def test_star_stands_for_what_it_met() -> None:
    assert account("ann@example.org", user_map={"*@example.org": "*"}) == ANN


def test_user_without_a_rule_has_the_same_name() -> None:
    assert account("bob", user_map={"*@example.org": "ann"}) == BOB


def test_first_pattern_that_matches_decides() -> None:
    assert account("x1", user_map={"x?": "ann", "x*": "bob"}) == ANN


def test_map_makes_nobody_root() -> None:
    with pytest.raises(NotPermitted, match="task of eve, here root: this node runs nothing as root"):
        account("eve", user_map={"eve": "root"})


def test_another_name_of_root_is_root() -> None:
    with pytest.raises(NotPermitted, match="runs nothing as root"):
        account("toor")


def test_denied_user_is_refused_also_where_he_is_allowed() -> None:
    with pytest.raises(NotPermitted, match="task of bob: this node does not serve that user"):
        account("bob", allow=("bob",), deny=("b*",))


def test_only_allowed_users_are_served() -> None:
    assert account("ann", allow=("ann",)) == ANN
    with pytest.raises(NotPermitted, match="does not serve"):
        account("bob", allow=("ann",))


def test_map_to_nobody_known_is_told() -> None:
    with pytest.raises(NotFound, match="user zoe: not known on this node"):
        account("zoe@example.org", user_map={"*@example.org": "*"})


@pytest.mark.parametrize("rules", [{"a": "*"}, {"a*b*": "*"}, {"[ab]*": "*"}, {"a": ""}])
def test_rule_that_means_nothing_is_refused_at_the_start(rules: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="user_map"):
        UserRules(user_map=rules).check()
