"""What an authority has issued: certificates and join tokens, in ``registry.db`` beside its key.

The ``farbus ca`` command and the scheduler's issuing service use it at the
same time; each operation is one SQLite transaction of its own, so that of two
that use one token one comes first, and a process that dies leaves the whole
of an operation or nothing of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from farbus.errors import Conflict, NotFound, NotPermitted
from farbus.model.value import Value

FILE_NAME = "registry.db"

BUSY_TIMEOUT_S = 5.0
"""How long another process's transaction is waited for; each takes milliseconds."""

TOKEN_BYTES = 20
"""Random bytes of a token: guessing one of a million of them takes 2^140 attempts."""

MAX_TOKENS = 10_000
"""Tokens that are neither used nor expired, so that a script that runs wild fills no disk."""

MIN_TOKEN_S, MAX_TOKEN_S = 60.0, 7 * 86_400.0
"""A token is carried to a machine by a person, and must not lie about for long."""

KEPT_AFTER_EXPIRY_S = 366 * 86_400.0
"""How long the record of an expired certificate or token is kept for those who ask who had one."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS certificate (
    serial TEXT PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL,
    valid_from REAL NOT NULL, expires_at REAL NOT NULL,
    revoked_at REAL NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '', pem TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS certificate_name ON certificate (name);
CREATE TABLE IF NOT EXISTS token (
    digest TEXT PRIMARY KEY, node TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL,
    key_digest TEXT NOT NULL DEFAULT '', serial TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS revoked_name (name TEXT PRIMARY KEY, revoked_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT OR IGNORE INTO counter VALUES ('revoked', 0);
"""


class CertificateRecord(Value, frozen=True, kw_only=True):
    """A certificate that was issued; times are seconds since the epoch, ``revoked_at`` 0 where it is not."""

    serial: str
    name: str
    role: str
    valid_from: float
    expires_at: float
    revoked_at: float = 0.0
    reason: str = ""
    of_earlier: bool = False
    """Whether an authority signed it that another one has taken over from since."""


_COLUMNS = "serial, name, role, valid_from, expires_at, revoked_at, reason"


class Registry:
    """The registry in one authority's directory; made at the first write."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            # Made here for its mode; SQLite gives its journal the same.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            with contextlib.closing(
                sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
            ) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                try:
                    yield connection
                except BaseException:
                    # A full disk has ended it already (sqlite.org/lang_transaction.html).
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        except OSError as error:
            raise Conflict(f"{self._path}: {error.strerror}", hint="use it as the authority's owner") from error
        except sqlite3.Error as error:
            raise Conflict(f"{self._path}: {error}", hint="see that its disk has room and is writable") from error

    def add(self, record: CertificateRecord) -> None:
        """Record a new certificate."""
        with self._transaction() as connection:
            _insert(connection, record, pem="")

    def certificates(self) -> tuple[CertificateRecord, ...]:
        """Return all records, those that expire first at the front."""
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS}, rowid <= (SELECT value FROM counter WHERE name = 'switch')"  # noqa: S608
                " FROM certificate ORDER BY expires_at, serial"
            )
            return tuple(msgspec.structs.replace(_record(row[:-1]), of_earlier=bool(row[-1])) for row in rows)

    def note_switch(self) -> None:
        """Take note that what is recorded from now on is signed by another authority than what there is."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO counter SELECT 'switch', coalesce(max(rowid), 0) FROM certificate"
            )

    def not_replaced(self, now: float) -> tuple[CertificateRecord, ...]:
        """Return what is valid at ``now``, from before the last switch, and whose holder has none from after it."""
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM certificate AS old WHERE revoked_at = 0 AND expires_at > ?"  # noqa: S608
                " AND rowid <= (SELECT value FROM counter WHERE name = 'switch') AND NOT EXISTS ("
                "SELECT 1 FROM certificate AS new WHERE new.name = old.name AND new.role = old.role"
                " AND new.rowid > (SELECT value FROM counter WHERE name = 'switch')) ORDER BY role, name",
                (now,),
            )
            return tuple(_record(row) for row in rows)

    def check_renewal(self, serial: str, name: str) -> None:
        """Raise :class:`NotPermitted` where the certificate, or its name as a whole, is revoked."""
        with self._transaction() as connection:
            _check_renewal(connection, serial, name)

    def valid_of(self, name: str, *, at: float) -> tuple[CertificateRecord, ...]:
        """Return the records of a name's certificates that are valid at ``at``."""
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM certificate "  # noqa: S608
                "WHERE name = ? AND revoked_at = 0 AND expires_at > ? ORDER BY serial",
                (name, at),
            )
            return tuple(_record(row) for row in rows)

    def revoked(self) -> tuple[int, tuple[CertificateRecord, ...]]:
        """Return how many were ever revoked, and the records of those that are."""
        with self._transaction() as connection:
            (number,) = connection.execute("SELECT value FROM counter WHERE name = 'revoked'").fetchone()
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM certificate WHERE revoked_at > 0 ORDER BY serial"  # noqa: S608
            )
            return number, tuple(_record(row) for row in rows)

    def revoke(self, what: str, *, reason: str, at: float) -> tuple[CertificateRecord, ...]:
        """Revoke a serial number, or every certificate of a name that is valid at ``at``; return what was revoked.

        Tokens of that name can't be used any more, and nothing of that name
        is renewed until it is issued again.

        Raises :class:`NotFound` for what names no certificate that is valid
        and no name that was ever issued.
        """
        serial = what.replace(":", "").lower().rjust(40, "0")
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM certificate "  # noqa: S608
                "WHERE (name = ? OR serial = ?) AND revoked_at = 0 AND expires_at > ?",
                (what, serial, at),
            ).fetchall()
            named = connection.execute(
                "SELECT 1 FROM certificate WHERE name = ?1 UNION SELECT 1 FROM token WHERE node = ?1", (what,)
            ).fetchone()
            if not rows and not named:
                raise NotFound(
                    f"{what}: names no certificate that is valid now",
                    hint="farbus ca list shows names and serial numbers",
                )
            if named:
                connection.execute("INSERT OR REPLACE INTO revoked_name VALUES (?, ?)", (what, at))
            for row in rows:
                connection.execute(
                    "UPDATE certificate SET revoked_at = ?, reason = ? WHERE serial = ?", (at, reason, row[0])
                )
            connection.execute("UPDATE counter SET value = value + ? WHERE name = 'revoked'", (len(rows),))
            connection.execute("DELETE FROM token WHERE node = ?", (what,))
        return tuple(
            CertificateRecord(
                serial=row[0],
                name=row[1],
                role=row[2],
                valid_from=row[3],
                expires_at=row[4],
                revoked_at=at,
                reason=reason,
            )
            for row in rows
        )

    def create_token(self, node: str, *, ttl_s: float, now: float) -> str:
        """Return the secret of a new token for ``node``; only its hash is kept."""
        secret = secrets.token_hex(TOKEN_BYTES)
        with self._transaction() as connection:
            (waiting,) = connection.execute(
                "SELECT count(*) FROM token WHERE expires_at > ? AND key_digest = ''", (now,)
            ).fetchone()
            if waiting >= MAX_TOKENS:
                raise Conflict(f"{MAX_TOKENS} tokens wait to be used", hint="let them expire")
            connection.execute("DELETE FROM token WHERE expires_at < ?", (now - KEPT_AFTER_EXPIRY_S,))
            connection.execute(
                "INSERT INTO token (digest, node, created_at, expires_at) VALUES (?, ?, ?, ?)",
                (_digest(secret), node, now, now + ttl_s),
            )
        return secret

    def redeem(
        self, secret: str, *, key_digest: str, now: float, issue: Callable[[str], tuple[CertificateRecord, str]]
    ) -> tuple[str, str]:
        """Use up a token for one public key; return the node it is for and its certificate in PEM.

        ``issue`` makes record and certificate for a node's name.  A machine
        that asks again with the same key, because it died before it had the
        answer, gets the same certificate; any other key is refused.
        """
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT digest, node, expires_at, key_digest, serial FROM token WHERE digest = ?", (_digest(secret),)
            ).fetchone()
            if row is None or not hmac.compare_digest(row[0], _digest(secret)):
                raise NotPermitted("there is no such token", hint="make one with farbus ca token")
            _, node, expires_at, used_by, serial = row
            if expires_at <= now:
                raise NotPermitted(f"the token for {node} has expired", hint="make another with farbus ca token")
            if used_by:
                if used_by != key_digest:
                    raise NotPermitted(
                        f"the token for {node} was used already",
                        hint=f"if that was not you, farbus ca revoke {node}; then make another with farbus ca token",
                    )
                (pem,) = connection.execute("SELECT pem FROM certificate WHERE serial = ?", (serial,)).fetchone()
                return node, pem
            record, pem = issue(node)
            _insert(connection, record, pem=pem)
            connection.execute(
                "UPDATE token SET key_digest = ?, serial = ? WHERE digest = ?",
                (key_digest, record.serial, _digest(secret)),
            )
            return node, pem

    def renew(self, serial: str, name: str, issue: Callable[[], tuple[CertificateRecord, str]]) -> str:
        """Record the successor of a certificate, and return it in PEM; raise as :meth:`check_renewal` does."""
        with self._transaction() as connection:
            _check_renewal(connection, serial, name)
            record, pem = issue()
            _insert(connection, record, pem="")
            return pem


def _insert(connection: sqlite3.Connection, record: CertificateRecord, *, pem: str) -> None:
    connection.execute("DELETE FROM certificate WHERE expires_at < ?", (record.valid_from - KEPT_AFTER_EXPIRY_S,))
    # The name is trusted again: renewals have been checked before.
    connection.execute("DELETE FROM revoked_name WHERE name = ?", (record.name,))
    connection.execute(
        f"INSERT INTO certificate ({_COLUMNS}, pem) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (record.serial, record.name, record.role, record.valid_from, record.expires_at, 0.0, "", pem),
    )


def _check_renewal(connection: sqlite3.Connection, serial: str, name: str) -> None:
    revoked = connection.execute("SELECT 1 FROM certificate WHERE serial = ? AND revoked_at > 0", (serial,)).fetchone()
    if revoked:
        raise NotPermitted("the certificate is revoked", hint="ask the authority's operator for another")
    # Also what the registry does not know: a certificate that was made before it, or with a stolen key.
    if connection.execute("SELECT 1 FROM revoked_name WHERE name = ?", (name,)).fetchone():
        raise NotPermitted(f"all of {name} is revoked", hint="ask the authority's operator for another")


def _record(row: tuple[str, str, str, float, float, float, str]) -> CertificateRecord:
    return CertificateRecord(
        serial=row[0], name=row[1], role=row[2], valid_from=row[3], expires_at=row[4], revoked_at=row[5],
        reason=row[6],
    )  # fmt: skip


def _digest(secret: str) -> str:
    # A token has 160 random bits: a plain hash can't be searched.
    return hashlib.sha256(secret.encode()).hexdigest()
