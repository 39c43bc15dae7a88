"""`farbus ca`, `farbus join`, `farbus audit`: what they print, write and refuse."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from farbus.api.audit import AuditLog, AuditRecord, append_records
from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.enrollment import Issuer
from farbus.api.identity import Identity, Role
from farbus.api.joining import serve_joins
from farbus.api.trust import Trust
from farbus.cli.commands.audit import parse_since
from farbus.cli.connection import find_credentials
from farbus.errors import ExitCode, InvalidInput
from tests.cli.conftest import Farbus, clean_environment


@pytest.fixture
def ca(here: Farbus) -> Farbus:
    def run(*arguments: str) -> object:
        return here("ca", *arguments, environment={"FARBUS_CA": "ca"})

    run("init")
    return run


@pytest.fixture
def joins(ca: Farbus, tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler that takes joins."""
    own = write_credentials(tmp_path / "s", "s", Authority.open(tmp_path / "ca").issue("s", Role.SCHEDULER))
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), []

    async def serve() -> None:
        issuer = Issuer(tmp_path / "ca", audit=AuditLog(tmp_path / "audit.jsonl"))
        server = await serve_joins(join=issuer.join, listen="127.0.0.1:0", trust=Trust(own), scheduler_port=7411)
        address.append(f"127.0.0.1:{server.port}")
        ready.set()
        await stop.wait()
        await server.stop()

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    yield address[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def listed(ca: Farbus) -> list[tuple[str, str]]:
    return [(each["name"], each["state"]) for each in json.loads(ca("list", "-o", "json").stdout)]


def test_list_tells_valid_expiring_and_revoked(ca: Farbus) -> None:
    ca("issue", "alice", "--role", "user", "--out", "alice")
    ca("issue", "bob", "--role", "user", "--out", "bob", "--days", "10")
    done = ca("revoke", "alice", "--reason", "left")
    assert done.stdout.startswith("revoked user alice, serial ")
    assert listed(ca) == [("bob", "expires soon"), ("alice", "revoked")]


def test_one_of_several_certificates_is_revoked_by_its_serial_number(ca: Farbus) -> None:
    for out in ("a", "b"):
        ca("issue", "alice", "--role", "user", "--out", out)
    serial = json.loads(ca("list", "-o", "json").stdout)[0]["serial"]
    done = ca("revoke", serial.upper())
    assert sorted(state for _, state in listed(ca)) == ["revoked", "valid"]
    assert done.stderr.splitlines()[0] == (
        "still valid, and perhaps renewed from this one: 1 of alice; farbus ca revoke alice revokes them all"
    )


def test_revoking_a_name_says_what_it_means_for_renewals(ca: Farbus) -> None:
    ca("issue", "alice", "--role", "user", "--out", "alice")
    told = "alice is not renewed until it is issued again (farbus ca issue, farbus ca token)"
    assert ca("revoke", "alice").stderr.splitlines()[0] == told
    again = ca("revoke", "alice")
    assert (again.returncode, again.stdout) == (0, "revoked alice, which has no certificate that is valid now\n")
    assert again.stderr.splitlines()[0] == told


def test_revoking_nobody_says_where_names_are(ca: Farbus) -> None:
    done = ca("revoke", "nobody")
    assert done.returncode == ExitCode.NOT_FOUND
    assert done.stderr == (
        "farbus: nobody: names no certificate that is valid now; farbus ca list shows names and serial numbers\n"
    )


def test_renewed_certificate_takes_the_place_of_the_old_one(ca: Farbus, tmp_path: Path) -> None:
    ca("issue", "alice", "--role", "user", "--out", "alice", "--days", "1")
    before = (tmp_path / "alice" / "alice.key").read_bytes()
    assert ca("renew", "alice").returncode == 0
    assert (tmp_path / "alice" / "alice.key").read_bytes() != before
    assert Credentials.in_directory(tmp_path / "alice", "alice").identity() == Identity(name="alice", role=Role.USER)


def test_revoked_certificate_is_not_renewed(ca: Farbus) -> None:
    ca("issue", "alice", "--role", "user", "--out", "alice")
    ca("revoke", "alice")
    done = ca("renew", "alice")
    assert done.returncode == ExitCode.NOT_PERMITTED
    assert done.stderr == "farbus: alice/alice.crt: the certificate is revoked; issue another with farbus ca issue\n"


def test_what_was_done_to_an_authority_is_on_record(ca: Farbus, here: Farbus) -> None:
    ca("issue", "alice", "--role", "user", "--out", "alice")
    ca("token", "node8")
    ca("revoke", "alice")
    records = json.loads(here("audit", "--authority", "ca", "-o", "json").stdout)
    assert [record["method"] for record in records] == ["ca init", "ca issue", "ca token", "ca revoke"]


def test_machine_joins_and_has_a_configuration(ca: Farbus, here: Farbus, joins: str, tmp_path: Path) -> None:
    token = ca("token", "node8").stdout.strip()
    done = here("join", joins, "--token", token, "--out", "node", "--config", "agent.toml", "--address", "10.0.0.8")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "agent.toml", "a") as file:
        # As install.md has people do.
        file.write('remoting_user = "farbus-remoting"\n')
    settings = tomllib.loads((tmp_path / "agent.toml").read_text())
    assert (settings["name"], settings["scheduler"], settings["address"]) == ("node8", "127.0.0.1:7411", "10.0.0.8")
    assert settings["remoting_user"] == "farbus-remoting"
    assert find_credentials(settings["credentials"]).identity() == Identity(name="node8", role=Role.NODE)
    assert not (tmp_path / "node" / "join.key").exists()


def test_join_that_broke_off_is_repeated_with_its_key(
    ca: Farbus, here: Farbus, joins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = ca("token", "node8").stdout.strip()

    def die(*_: object) -> None:
        raise OSError(28, "No space left on device", "node")

    with monkeypatch.context() as dying:
        dying.setattr("farbus.cli.commands.join.write_credentials", die)
        assert here("join", joins, "--token", token, "--out", "node", "--config", "a.toml").returncode == 7
    done = here("join", joins, "--token", token, "--out", "node", "--config", "a.toml")
    assert done.returncode == 0, done.stderr


def test_join_asks_for_the_token_at_a_terminal_and_does_not_show_it(
    ca: Farbus, here: Farbus, joins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = ca("token", "node8").stdout.strip()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda prompt: token if prompt == "Token: " else "")
    assert here("join", joins, "--token", "-", "--out", "node", "--config", "a.toml").returncode == 0


def test_join_says_where_there_is_no_room(
    ca: Farbus, here: Farbus, joins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        # As of a write: no file is named.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    token = ca("token", "node8").stdout.strip()
    monkeypatch.setattr("farbus.cli.commands.join.write_credentials", full)
    done = here("join", joins, "--token", token, "--out", "node", "--config", "a.toml")
    told = f"farbus: {tmp_path / 'node'}: No space left on device; choose others with --out and --config\n"
    assert (done.returncode, done.stderr) == (7, told)


def test_join_that_is_refused_leaves_nothing(ca: Farbus, here: Farbus, joins: str, tmp_path: Path) -> None:
    token = ca("token", "node8").stdout.strip()
    here("join", joins, "--token", token, "--out", "node", "--config", "a.toml")
    done = here("join", joins, "--token", token, "--out", "other", "--config", "b.toml")
    assert done.returncode == ExitCode.NOT_PERMITTED
    assert "the token for node8 was used already" in done.stderr
    assert not (tmp_path / "other").exists()


def test_doctor_warns_of_a_certificate_that_expires_soon(
    ca: Farbus, here: Farbus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ca("issue", "node8", "--role", "node", "--out", "node", "--days", "5")
    monkeypatch.setattr("farbus.cli.diagnosis.OWN_CERTIFICATES", (str(tmp_path / "node"), "/nowhere"))
    found = [each for each in json.loads(here("doctor", "-o", "json").stdout) if each["check"] == "certificate"]
    assert [(each["verdict"], each["found"]) for each in found] == [("warning", "node node8, valid for 4 more days")]


@pytest.mark.parametrize("as_table", [True, False])
def test_doctor_looks_at_the_certificate_that_the_settings_name(
    ca: Farbus, here: Farbus, as_table: bool, tmp_path: Path
) -> None:
    ca("issue", "node8", "--role", "node", "--out", "node")
    node = tmp_path / "node"
    files = {"authority": node / "ca.crt", "certificate": node / "node8.crt", "key": node / "node8.key"}
    table = "[credentials]\n" + "".join(f'{name} = "{path}"\n' for name, path in files.items())
    (tmp_path / "agent.toml").write_text(table if as_table else f'credentials = "{node}"\n')

    def found() -> list[tuple[str, str]]:
        told = json.loads(here("doctor", "--config", "agent.toml", "-o", "json").stdout)
        return [(each["verdict"], each["found"]) for each in told if each["check"] == "certificate"]

    assert ("ok", "node node8, valid for 364 more days") in found()
    files["key"].write_text("nonsense")
    assert ("broken", f"{files['key']}: not an unencrypted PEM private key") in found()
    files["key"].unlink()
    missing = f"{files['key']}: no such file" if as_table else f"{node}: no certificate with its key"
    assert ("broken", missing) in found()


def test_doctor_tells_of_credentials_that_are_not_whole(here: Farbus, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[credentials]\nauthority = "ca.crt"\n')
    told = json.loads(here("doctor", "--config", "agent.toml", "-o", "json").stdout)
    (found,) = [each for each in told if each["check"] == "certificate" and each["verdict"] == "broken"]
    assert found["found"].startswith("agent.toml: credentials")


def test_join_does_not_overwrite_a_node(ca: Farbus, here: Farbus, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").touch()
    token = ca("token", "node8").stdout.strip()
    done = here("join", "127.0.0.1:1", "--token", token, "--out", "node", "--config", "agent.toml")
    assert (done.returncode, done.stderr) == (7, "farbus: agent.toml: is there already; --force replaces it\n")


@pytest.mark.parametrize("ttl", ["1s", "8d", "200h", "never"])
def test_impossible_life_of_a_token_is_refused(ca: Farbus, ttl: str) -> None:
    assert ca("token", "node8", "--ttl", ttl).returncode == ExitCode.USAGE


def test_rotation_goes_step_by_step(ca: Farbus) -> None:
    assert ca("rotate", "switch").returncode == ExitCode.CONFLICT
    assert ca("rotate", "begin").returncode == 0
    assert ca("rotate", "finish").returncode == ExitCode.CONFLICT
    assert ca("rotate", "switch").returncode == 0
    assert ca("rotate", "finish").returncode == 0
    assert ca("issue", "alice", "--role", "user", "--out", "alice").returncode == 0


def test_rotation_does_not_finish_while_it_would_shut_somebody_out(ca: Farbus) -> None:
    for name, role in (("alice", "user"), ("node7", "node"), ("eve", "user")):
        ca("issue", name, "--role", role, "--out", name)
    ca("revoke", "eve")
    ca("rotate", "begin")
    ca("rotate", "switch")
    ca("renew", "alice")
    refused = ca("rotate", "finish")
    assert (refused.returncode, refused.stderr) == (
        ExitCode.CONFLICT,
        "farbus: ca: only the old authority vouches for node node7; "
        "renew (farbus ca renew DIR) or revoke their certificates; --force shuts them out\n",
    )
    ca("renew", "node7")
    assert ca("rotate", "finish").returncode == 0


def test_a_listing_tells_who_has_signed_what_and_what_nobody_trusts_any_more(ca: Farbus) -> None:
    def listed() -> list[tuple[str, str, str]]:
        rows = json.loads(ca("list", "-o", "json").stdout)
        return sorted((row["name"], row["authority"], row["state"]) for row in rows)

    for name in ("alice", "bob"):
        ca("issue", name, "--role", "user", "--out", name)
    ca("rotate", "begin")
    assert listed() == [("alice", "present", "valid"), ("bob", "present", "valid")]
    ca("rotate", "switch")
    ca("renew", "alice")
    valid = [("alice", "earlier", "valid"), ("alice", "present", "valid"), ("bob", "earlier", "valid")]
    assert listed() == valid
    assert "AUTHORITY" in ca("list", "-o", "wide").stdout
    ca("rotate", "finish", "--force")
    assert listed() == [(*row[:2], "untrusted" if row[1] == "earlier" else "valid") for row in valid]


def test_rotation_can_be_made_to_shut_somebody_out(ca: Farbus) -> None:
    ca("issue", "alice", "--role", "user", "--out", "alice")
    ca("rotate", "begin")
    ca("rotate", "switch")
    assert ca("rotate", "finish", "--force").returncode == 0


def test_since_is_a_time_or_how_long_ago() -> None:
    assert parse_since("") == ""
    assert parse_since("2026-03-01T12:00") == "2026-03-01T12:00:00.000Z"
    assert parse_since("2026-03-01T12:00+02:00") == "2026-03-01T10:00:00.000Z"
    assert parse_since("1d") < parse_since("1m")
    with pytest.raises(InvalidInput, match="--since soon: no time"):
        parse_since("soon")


def test_line_that_sums_calls_up_says_how_many_they_were(ca: Farbus, here: Farbus, tmp_path: Path) -> None:
    summed = AuditRecord(at="2026-03-01T12:00:00.000Z", who="bob", method="Submit", outcome="failed", omitted=17)
    append_records(tmp_path / "ca" / "audit.jsonl", [summed])
    (line,) = [line for line in here("audit", "--authority", "ca").stdout.splitlines() if "bob" in line]
    assert line.endswith("17 more of the same")


SOMEBODY = 61_001
"""A number that no name belongs to: the kernel needs none."""

ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def theirs(ca: Farbus, tmp_path: Path) -> Path:
    """The authority's directory, which belongs to another user than the one who runs the command."""
    let_through(tmp_path)
    for path in (tmp_path / "ca", *(tmp_path / "ca").iterdir()):
        os.chown(path, SOMEBODY, SOMEBODY)
    return tmp_path / "ca"


def let_through(path: Path) -> None:
    """Let everybody go through the directories on the way, which pytest keeps to their owner."""
    for each in (path, *path.parents):
        if each.stat().st_mode & 0o001 == 0:
            each.chmod(each.stat().st_mode | 0o011)


@ROOT_ALONE
@pytest.mark.parametrize("name", ["registry.db", "audit.jsonl"])
def test_link_in_another_users_authority_leads_to_nothing_of_roots(
    ca: Farbus, theirs: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.touch(mode=0o600)
    (theirs / name).unlink(missing_ok=True)
    (theirs / name).symlink_to(outside)
    done = ca("token", "node8")
    assert done.returncode == ExitCode.CONFLICT
    assert done.stderr.count("\n") == 1
    assert (outside.stat().st_uid, outside.read_bytes()) == (0, b"")


@ROOT_ALONE
def test_link_to_a_secret_of_roots_copies_it_nowhere(ca: Farbus, theirs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    (theirs / "ca.crl").unlink()
    (theirs / "ca.crl").symlink_to(secret)
    done = ca("issue", "alice", "--role", "user", "--out", "alice")
    assert (done.returncode, done.stderr) == (ExitCode.USAGE, "farbus: ca/ca.crl: Permission denied\n")
    assert not (tmp_path / "alice").exists()


@ROOT_ALONE
def test_what_root_makes_in_another_users_authority_is_theirs(ca: Farbus, theirs: Path, tmp_path: Path) -> None:
    for arguments in (
        ("issue", "alice", "--role", "user", "--out", "alice"),
        ("renew", "alice"),
        ("token", "node8"),
        ("rotate", "begin"),
        ("rotate", "switch"),
        ("rotate", "finish", "--force"),
        ("revoke", "alice"),
    ):
        done = ca(*arguments)
        assert done.returncode == 0, done.stderr
    assert {path.stat().st_uid for path in theirs.iterdir()} == {SOMEBODY}
    # What goes elsewhere belongs to whom that directory belongs.
    assert {path.stat().st_uid for path in (tmp_path / "alice").iterdir()} == {0}
    assert os.geteuid() == 0


WATCHED = """
import contextlib, sys
from farbus.cli import main
from farbus.cli.commands import ca
acting = ca.acting_for_owner

@contextlib.contextmanager
def watched(directory):
    before = set(sys.modules)
    with acting(directory):
        yield
    assert set(sys.modules) == before, sorted(set(sys.modules) - before)

ca.acting_for_owner = watched
for command in ("init", "issue a --role user --out a", "renew a", "token b", "revoke a"):
    assert main(["ca", *command.split()]) == 0
"""


def test_nothing_is_loaded_with_the_rights_of_an_owner_who_may_not_read_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WATCHED],
        cwd=tmp_path,
        env=clean_environment(tmp_path, FARBUS_CA="ca"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_failed_at_an_authority_is_on_record_too(ca: Farbus, here: Farbus) -> None:
    ca("rotate", "switch")
    last = json.loads(here("audit", "--authority", "ca", "-o", "json").stdout)[-1]
    assert (last["method"], last["outcome"]) == ("ca rotate switch", "failed")
    assert last["error"] == "ca: no authority is taking over"
