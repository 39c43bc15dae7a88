"""The users door: names to numeric identities and back."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Sequence
from typing import Protocol

import msgspec

from farbus.errors import NotFound


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A local user: what getpwnam(3) and getgrouplist(3) say."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"
    shell: str = "/bin/sh"


class Users(Protocol):
    """The node's user database."""

    def by_name(self, name: str) -> Account:
        """Return the user of that name; raise :class:`NotFound`."""
        ...

    def by_uid(self, uid: int) -> Account:
        """Return the user of that number; raise :class:`NotFound`."""
        ...

    def myself(self) -> Account:
        """Return who this process is."""
        ...


class SystemUsers:
    """The name service switch: files, LDAP, whatever the node is set to."""

    def by_name(self, name: str) -> Account:
        """Look a user up by name."""
        try:
            return _account(pwd.getpwnam(name))
        except (KeyError, ValueError) as error:
            raise NotFound(
                f"user {name}: not known on this node", hint="add a local user of that name, or user_map in agent.toml"
            ) from error

    def by_uid(self, uid: int) -> Account:
        """Look a user up by number."""
        try:
            return _account(pwd.getpwuid(uid))
        except (KeyError, OverflowError) as error:
            raise NotFound(f"user id {uid}: not known on this node") from error

    def myself(self) -> Account:
        """Return the effective user; a number without a name, as in some containers, names itself."""
        try:
            return self.by_uid(os.geteuid())
        except NotFound:
            return Account(name=f"uid{os.geteuid()}", uid=os.geteuid(), gid=os.getegid(), groups=tuple(os.getgroups()))


def is_known(name: str) -> bool:
    """Say whether this machine has a user of that name."""
    try:
        SystemUsers().by_name(name)
    except NotFound:
        return False
    return True


def _account(entry: pwd.struct_passwd) -> Account:
    try:
        groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    except OSError:
        groups = (entry.pw_gid, *(group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem))
    return Account(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=groups,
        home=entry.pw_dir or "/",
        shell=entry.pw_shell or "/bin/sh",
    )


class FakeUsers:
    """A user database of given accounts; the first is this process."""

    def __init__(self, accounts: Sequence[Account]) -> None:
        self.accounts = list(accounts)

    def by_name(self, name: str) -> Account:
        """Look a user up by name."""
        for account in self.accounts:
            if account.name == name:
                return account
        raise NotFound(
            f"user {name}: not known on this node", hint="add a local user of that name, or user_map in agent.toml"
        )

    def by_uid(self, uid: int) -> Account:
        """Look a user up by number."""
        for account in self.accounts:
            if account.uid == uid:
                return account
        raise NotFound(f"user id {uid}: not known on this node")

    def myself(self) -> Account:
        """Return the first account."""
        return self.accounts[0]
