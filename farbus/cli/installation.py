"""What ``farbus install`` puts where, and how it is taken away again.

Units and their companions go below ``/usr/local/lib``, where systemd, udev,
systemd-sysusers and systemd-tmpfiles look and no package puts anything;
settings go to ``/etc/farbus``.  A record of what was put there, by content,
tells later what is ours and what somebody has changed.  It is written before
the files, so that an installation that was cut short can be repeated or undone.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

import farbus
from farbus.cli.node_settings import NodeSettings, node_settings
from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.linux.files import write_owned
from farbus.model.value import Value

SOURCES = Path(farbus.__file__).parent / "systemd"

UNITS = "/usr/local/lib/systemd/system"
RECORD = "/usr/local/lib/farbus/installed.json"
NEW = ".farbus-new"
"""Ends the name of a file that was not put in place of a changed one."""

RECORD_VERSION = 1

_MODE = 0o644

# What systemd can neither quote in ExecStart= nor programs in LD_PRELOAD.
_COMMAND = re.compile(r"/[A-Za-z0-9_./+-]+")

HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - nothing is written there
"""Where the units can't look (ProtectHome=, PrivateTmp=)."""


class Role(enum.StrEnum):
    """What a machine is made into."""

    AGENT = "agent"
    SCHEDULER = "scheduler"

    @property
    def service(self) -> str:
        """The unit that serves it."""
        return f"farbus-{self}.service"


SETTINGS: Mapping[Role, str] = {Role.AGENT: "/etc/farbus/agent.toml", Role.SCHEDULER: "/etc/farbus/scheduler.toml"}
"""Files that an operator is meant to write: made where there is none, and never touched again."""

RULES = "/usr/local/lib/udev/rules.d"
STORAGE_RULES = "12-farbus-storage.rules"
"""Have udev leave alone what users write on what Farbus gives them."""
STORAGE_RULES_SOURCE = f"udev/{STORAGE_RULES}"

SHARED = {"system/farbus.slice": f"{UNITS}/farbus.slice"}
FILES: Mapping[Role, Mapping[str, str]] = {
    Role.AGENT: {
        **SHARED,
        "system/farbus-agent.service": f"{UNITS}/farbus-agent.service",
        "system/farbus-programs.slice": f"{UNITS}/farbus-programs.slice",
        "system/farbus-lease-.service.d/sandbox.conf": f"{UNITS}/farbus-lease-.service.d/sandbox.conf",
        "sysusers.d/farbus-agent.conf": "/usr/local/lib/sysusers.d/farbus-agent.conf",
        "tmpfiles.d/farbus-agent.conf": "/usr/local/lib/tmpfiles.d/farbus-agent.conf",
        "udev/60-farbus.rules": f"{RULES}/60-farbus.rules",
        STORAGE_RULES_SOURCE: f"{RULES}/{STORAGE_RULES}",
        "config/agent.toml": SETTINGS[Role.AGENT],
    },
    Role.SCHEDULER: {
        **SHARED,
        "system/farbus-scheduler.service": f"{UNITS}/farbus-scheduler.service",
        "sysusers.d/farbus-scheduler.conf": "/usr/local/lib/sysusers.d/farbus-scheduler.conf",
        "tmpfiles.d/farbus-scheduler.conf": "/usr/local/lib/tmpfiles.d/farbus-scheduler.conf",
        "config/scheduler.toml": SETTINGS[Role.SCHEDULER],
    },
}
"""For each role: files of systemd/ in the sources, and where they go."""

STORAGE_SOURCE = "system/farbus-agent.service.d/storage.conf"
STORAGE_DROP_IN = f"{UNITS}/farbus-agent.service.d/storage.conf"
"""What the agent's unit allows besides, where its settings say that the node stores, or uses what others store."""

TLS_SOURCE = "system/tlshd.service.d/farbus.conf"
TLS_DROP_IN = f"{UNITS}/tlshd.service.d/farbus.conf"
"""What tlshd needs before it starts, where the agent's settings say that storage is encrypted."""

MANUAL = "/usr/local/share/man/man1/farbus.1"

DEFAULT_SCHEDULER = "localhost:7411"
"""In a new agent.toml where nothing else was said: a machine that is both."""

USERS: Mapping[Role, str] = {Role.AGENT: "farbus-remoting", Role.SCHEDULER: "farbus"}

AGENT_STATE = "/var/lib/farbus/agent"
STATE: Mapping[Role, Sequence[str]] = {
    Role.AGENT: (AGENT_STATE, "/etc/farbus/node"),
    Role.SCHEDULER: ("/var/lib/farbus/scheduler", "/etc/farbus/scheduler"),
}
"""What a role gathers in its life: state, certificate.  An authority in it is nobody's but the operator's."""

AUTHORITY_KEY = "ca.key"
"""What makes a directory that of an authority: without it no node gets a certificate any more."""

SHARED_DIRECTORIES = ("/var/lib/farbus", "/etc/farbus")
"""Made by systemd for the directories of :data:`STATE`; they go with the last of these."""


class Entry(msgspec.Struct, kw_only=True):
    """One file of ours: what we put there, and for which roles."""

    sha256: str
    roles: list[str]


class Record(msgspec.Struct, kw_only=True):
    """What was put where; the content of :data:`RECORD`."""

    version: int = RECORD_VERSION
    files: dict[str, Entry] = {}
    directories: list[str] = []
    """Made for the files, each after the one that it is in."""


class Outcome(enum.StrEnum):
    """What became of a file."""

    MADE = "made"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"
    KEPT = "kept"
    CHANGED = "kept, since it was changed here"
    AUTHORITY = "kept, since it is an authority"
    REMOVED = "removed"


class Step(Value, frozen=True, kw_only=True):
    """One file, and what became of it or, in a rehearsal, would."""

    path: str
    outcome: Outcome

    def __str__(self) -> str:
        """Return the line that tells it."""
        beside = f"; the new one: {self.path}{NEW}" if self.outcome is Outcome.CHANGED else ""
        return f"{self.path}: {self.outcome}{beside}"


def check_command(command: str, *, root: str) -> None:
    """Raise :class:`InvalidInput` or :class:`NotFound` where a unit could not start ``command``."""
    if not _COMMAND.fullmatch(command):
        raise InvalidInput(
            f"{command}: not an absolute path of letters, digits and ._+-",
            hint="install farbus into such a path, for example /opt/farbus",
        )
    if root:
        return
    if not os.access(command, os.X_OK):
        raise NotFound(f"{command}: no such program", hint="give the path of farbus with --command")
    for place in {command, os.path.realpath(command), *_interpreter(command)}:
        if any(Path(place).is_relative_to(hidden) for hidden in HIDDEN):
            raise InvalidInput(
                f"{place}: services can't look into {'/'.join(place.split('/')[:2])}",
                hint="install farbus into another place, for example /opt/farbus",
            )


def _interpreter(command: str) -> Iterator[str]:
    """Yield the interpreter that a script names, and what that is really."""
    try:
        with open(command, "rb") as file:
            first = file.readline(4096)
    except OSError as error:
        raise NotFound(f"{command}: {error.strerror}", hint="give the path of farbus with --command") from error
    words = first[2:].split()
    if first.startswith(b"#!") and words:
        yield (name := os.fsdecode(words[0]))
        yield os.path.realpath(name)


class Installation:
    """The files of Farbus below ``root`` (empty for the machine itself).

    With ``rehearse`` nothing is changed; what is returned is what would be.
    """

    def __init__(self, *, root: str = "", rehearse: bool = False) -> None:
        self._root = Path(root or "/")
        self._rehearse = rehearse
        self._record_path = self._at(RECORD)
        self._record = self._read_record()

    def gathered(self, role: Role) -> list[str]:
        """Return what there is of :data:`STATE`."""
        return [path for path in STATE[role] if self._at(path).exists()]

    def node_settings(self) -> NodeSettings:
        """Return what the agent's settings say, and what holds where there are none yet."""
        return node_settings(str(self._at(SETTINGS[Role.AGENT])))

    def roles(self) -> tuple[Role, ...]:
        """Return the roles that are installed."""
        named = {role for entry in self._record.files.values() for role in entry.roles}
        return tuple(role for role in Role if role in named)

    def install(self, role: Role, *, command: str, scheduler: str, manual: str) -> Iterator[Step]:
        """Put the files of ``role`` in place; ``command`` is the path of farbus on the machine.

        Raises :class:`NotPermitted` or :class:`Unavailable` in one line for what can't be written.
        """
        settings = SETTINGS[role]
        there = self._at(settings).exists()
        if there and scheduler:
            raise Conflict(
                f"{self._at(settings)} is there already", hint="set scheduler in it, or leave --scheduler out"
            )
        files, said = dict(FILES[role]), NodeSettings()
        if role is Role.AGENT:
            said = self.node_settings()
            for source, drop_in, wanted in (
                (STORAGE_SOURCE, STORAGE_DROP_IN, said.needs_rights),
                (TLS_SOURCE, TLS_DROP_IN, said.encrypts_storage),
            ):
                if wanted:
                    files[source] = drop_in
                else:
                    yield from self._withdraw(drop_in)
        words = {"farbus": command, "scheduler": scheduler or DEFAULT_SCHEDULER, **_words(said.volume_group)}
        contents = {path: _filled_in(source, words) for source, path in files.items()}
        contents[MANUAL] = manual.encode()
        if there:
            del contents[settings]
            yield Step(path=settings, outcome=Outcome.KEPT)
        outcomes = {path: self._outcome(path, content) for path, content in contents.items()}
        before = self._record
        self._record = self._with(role, contents)
        self._save()
        for path, content in contents.items():
            outcome = outcomes[path]
            if outcome is Outcome.CHANGED:
                # Once for each new content: what was put beside it earlier may have been looked at and removed.
                if path not in before.files or before.files[path].sha256 != _digest(content):
                    self._write(path + NEW, content)
            else:
                self._unlink(path + NEW)
                if outcome is not Outcome.UNCHANGED:
                    self._write(path, content)
            yield Step(path=path, outcome=outcome)

    def remove(self, role: Role, *, purge: bool) -> Iterator[Step]:
        """Take away the files that ``role`` alone has; what was changed only with ``purge``.

        Every file goes before the record of it.
        """
        if purge and SETTINGS[role] not in self._record.files and self._unlink(SETTINGS[role]):
            yield Step(path=SETTINGS[role], outcome=Outcome.REMOVED)
        for path, entry in list(self._record.files.items()):
            if role not in entry.roles:
                continue
            if entry.roles == [role]:
                yield from self._take_away(path, entry, purge=purge)
            else:
                entry.roles.remove(role)
        self._remove_directories()
        self._save()

    def _take_away(self, path: str, entry: Entry, *, purge: bool = False) -> Iterator[Step]:
        """Remove a file of ours, and after it the record of it; one that was changed only with ``purge``."""
        self._unlink(path + NEW)
        place = self._at(path)
        if place.exists() and not purge and _digest(place.read_bytes()) != entry.sha256:
            yield Step(path=path, outcome=Outcome.KEPT)
        elif self._unlink(path):
            yield Step(path=path, outcome=Outcome.REMOVED)
        del self._record.files[path]

    def _withdraw(self, path: str) -> Iterator[Step]:
        """Take a file away that was put once and is not wanted any more."""
        if path in self._record.files:
            yield from self._take_away(path, self._record.files[path])
            self._remove_directories()
            self._save()

    def purge(self, role: Role) -> Iterator[Step]:
        """Remove what a role has gathered in its life (:data:`STATE`), but for an authority that lies in it."""
        for path in STATE[role]:
            place = self._at(path)
            if not place.exists():
                continue
            # Below an agent's state lie files of tasks, which are called what their users like.
            keys = () if path == AGENT_STATE else place.rglob(AUTHORITY_KEY)
            authorities = [key.parent for key in sorted(keys)]
            if not self._rehearse:
                try:
                    _remove_all_but(place, authorities)
                except OSError as error:
                    raise _trouble("remove", place, error) from error
            if place not in authorities:
                yield Step(path=path, outcome=Outcome.REMOVED)
            for kept in authorities:
                yield Step(path=f"/{kept.relative_to(self._root)}", outcome=Outcome.AUTHORITY)
        for path in SHARED_DIRECTORIES:
            with contextlib.suppress(OSError):
                if not self._rehearse:
                    self._at(path).rmdir()

    # The plan.

    def _outcome(self, path: str, content: bytes) -> Outcome:
        try:
            there = self._at(path).read_bytes()
        except FileNotFoundError:
            return Outcome.MADE
        except OSError as error:
            raise _trouble("read", self._at(path), error) from error
        if there == content:
            return Outcome.UNCHANGED
        entry = self._record.files.get(path)
        if entry is not None and _digest(there) == entry.sha256:
            return Outcome.REPLACED
        return Outcome.CHANGED

    def _with(self, role: Role, contents: Mapping[str, bytes]) -> Record:
        files = {
            path: Entry(sha256=entry.sha256, roles=list(entry.roles)) for path, entry in self._record.files.items()
        }
        directories = list(self._record.directories)
        for path, content in contents.items():
            roles = files[path].roles if path in files else []
            files[path] = Entry(sha256=_digest(content), roles=sorted({*roles, role.value}))
        for path in (*contents, RECORD):
            missing = [str(parent) for parent in Path(path).parents if not self._at(str(parent)).exists()]
            directories += [parent for parent in reversed(missing) if parent not in directories]
        return Record(files=files, directories=directories)

    # The files.

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _write(self, path: str, content: bytes) -> None:
        if self._rehearse:
            return
        place = self._at(path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_owned(place, content, account=None, mode=_MODE)
        except OSError as error:
            raise _trouble("write", place, error) from error

    def _unlink(self, path: str) -> bool:
        place = self._at(path)
        if self._rehearse:
            return place.exists()
        try:
            place.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _trouble("remove", place, error) from error
        return True

    def _read_record(self) -> Record:
        try:
            text = self._record_path.read_bytes()
        except FileNotFoundError:
            return Record()
        except OSError as error:
            raise _trouble("read", self._record_path, error) from error
        try:
            record = msgspec.json.decode(text, type=Record)
        except msgspec.DecodeError as error:
            raise InvalidInput(
                f"{self._record_path}: damaged: {error}", hint="remove it, install again, then uninstall"
            ) from error
        if record.version > RECORD_VERSION:
            raise InvalidInput(
                f"{self._record_path}: written by a newer farbus (version {record.version})", hint="use that one"
            )
        return record

    def _save(self) -> None:
        if self._record.files:
            self._write(RECORD, msgspec.json.format(msgspec.json.encode(self._record), indent=1) + b"\n")
        else:
            self._unlink(RECORD)
            self._remove_directories()

    def _remove_directories(self) -> None:
        """Remove the directories that were made and are empty now; the others are somebody's."""
        if self._rehearse:
            return
        for path in reversed(list(self._record.directories)):
            try:
                self._at(path).rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                continue
            self._record.directories.remove(path)


def _remove_all_but(place: Path, kept: Sequence[Path]) -> None:
    """Remove a directory, but for those in it that are to be ``kept``."""
    if place in kept:
        return
    if not any(each.is_relative_to(place) for each in kept):
        shutil.rmtree(place)
        return
    for child in place.iterdir():
        if child.is_dir() and not child.is_symlink():
            _remove_all_but(child, kept)
        else:
            child.unlink()


def storage_rules(group: str) -> bytes:
    """Return the rules of udev that a node with this volume group is to have."""
    return _filled_in(STORAGE_RULES_SOURCE, _words(group))


def _words(group: str) -> dict[str, str]:
    # device-mapper doubles each hyphen of a group's name, and puts one behind it.
    return {"group": group.replace("-", "--")}


def _filled_in(source: str, words: Mapping[str, str]) -> bytes:
    """Return a file of systemd/ as it is to be put: ``@WORD@`` stands for what a machine says."""
    try:
        text = (SOURCES / source).read_text(encoding="utf-8")
    except OSError as error:
        raise FarbusError(f"{SOURCES / source}: {error.strerror}", hint="install farbus again") from error
    for word, stands_for in words.items():
        text = text.replace(f"@{word}@", stands_for)
    return text.encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _trouble(what: str, place: Path, error: OSError) -> FarbusError:
    if isinstance(error, PermissionError):
        return NotPermitted(f"{what} {place}: {error.strerror}", hint="run it as root, or stage it with --root DIR")
    return Unavailable(f"{what} {place}: {error.strerror}", hint="is the disk full or read-only?")
