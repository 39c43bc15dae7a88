"""As which local user a task runs: by name, by the node's map, and as its operator allows."""

from __future__ import annotations

import fnmatch

from farbus.errors import InvalidInput, NotPermitted
from farbus.linux.users import Account, Users
from farbus.model.value import Value


class UserRules(Value, frozen=True, kw_only=True):
    """What an operator says about users; names and patterns (``*``, ``?``, ``[]``) as in fnmatch(3).

    ``user_map`` has local users by names of the cluster's users, and is
    looked at in its order; a ``*`` in its value stands for what the only
    ``*`` of the pattern met.  Without a match a user has the same name here.
    ``allow`` and ``deny`` are about local users; what is denied is not allowed.
    """

    user_map: dict[str, str] = {}
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise :class:`InvalidInput` for a rule that means nothing."""
        for pattern, local in self.user_map.items():
            if "*" in local and (pattern.count("*") != 1 or any(each in pattern for each in "?[")):
                raise InvalidInput(
                    f"user_map: {pattern} = {local}: nothing that its * could stand for",
                    hint='use one * on both sides, like "*@example.org" = "*"',
                )
            if not local:
                raise InvalidInput(f"user_map: {pattern}: names no local user", hint="leave it out, or use deny_users")

    def local_name(self, user: str) -> str:
        """Return the name of the local user for a user of the cluster."""
        if (exact := self.user_map.get(user)) is not None and "*" not in exact:
            return exact
        for pattern, local in self.user_map.items():
            if fnmatch.fnmatchcase(user, pattern):
                return local.replace("*", _middle(user, pattern)) if "*" in local else local
        return user

    def permit(self, name: str) -> bool:
        """Say whether tasks may run as the local user ``name``."""
        return _any(name, self.allow) and not _any(name, self.deny)


NO_RULES = UserRules()
"""Everybody has the name here that he has in the cluster, and is served."""


def _middle(user: str, pattern: str) -> str:
    before, _, after = pattern.partition("*")
    return user[len(before) : len(user) - len(after)]


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def choose_account(
    user: str, *, users: Users, run_as_self: bool, allow_root: bool, rules: UserRules = NO_RULES
) -> Account | None:
    """Return whom a task of ``user`` runs as; None for whom the agent runs as.

    Raises :class:`NotPermitted` for a user that this node must not serve,
    :class:`farbus.errors.NotFound` for one that it does not know.
    """
    myself = users.myself()
    if run_as_self:
        if user != myself.name:
            raise NotPermitted(
                f"task of {user}: this agent runs tasks of its own user {myself.name} only",
                hint="submit as that user, or run the agent as a service (farbus agent, as root)",
            )
        return None
    name = rules.local_name(user)
    # By what the user database makes of the name: an alias of root is root.
    account = users.by_name(name)
    who = user if name == user else f"{user}, here {name}"
    if account.uid == 0 and not allow_root:
        raise NotPermitted(
            f"task of {who}: this node runs nothing as root",
            hint="submit as another user, or set allow_root = true in its agent.toml",
        )
    if not rules.permit(account.name) or not rules.permit(name):
        raise NotPermitted(
            f"task of {who}: this node does not serve that user", hint="its operator sets allow_users and deny_users"
        )
    if account.uid == myself.uid:
        return None
    if myself.uid != 0:
        raise NotPermitted(
            f"task of {who}: this agent runs as {myself.name} and can't become another user",
            hint="run the agent as root",
        )
    return account
