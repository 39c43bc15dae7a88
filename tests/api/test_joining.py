"""Joining with tokens: who gets a certificate, and who does not."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from farbus.api import joining
from farbus.api.audit import AuditLog, read_records
from farbus.api.authority import Authority, key_of_request, new_request, write_credentials
from farbus.api.enrollment import Issuer, Rate
from farbus.api.identity import Identity, Role
from farbus.api.joining import Joined, Token, join, serve_joins
from farbus.api.registry import FILE_NAME
from farbus.api.server import RunningServer
from farbus.api.trust import Trust
from farbus.errors import InvalidInput, NotPermitted, Unavailable

NOW = 1_000_000.0


class Site:
    """An authority whose scheduler takes joins."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.authority = Authority.create(tmp_path / "ca")
        self.audit = AuditLog(tmp_path / "audit.jsonl")
        self.wall = NOW
        self.issuer = Issuer(tmp_path / "ca", audit=self.audit, wall=lambda: self.wall, now=lambda: 0.0)
        self.own = write_credentials(tmp_path / "s", "s", self.authority.issue("s", Role.SCHEDULER))
        self.server: RunningServer

    def token(self, node: str = "alpha") -> Token:
        secret = self.authority.registry.create_token(node, ttl_s=60.0, now=self.wall)
        return Token(secret=secret, fingerprint=self.authority.fingerprint)

    async def join(self, token: Token, pair: tuple[bytes, bytes] | None = None) -> Joined:
        key, request = pair or new_request()
        return await asyncio.to_thread(join, "127.0.0.1", self.server.port, token, key=key, request=request)

    async def served(self) -> None:
        """Wait until the scheduler has done with all that have connected."""
        joins = [task for task in asyncio.all_tasks() if task.get_name() == "join"]
        await asyncio.gather(*joins, return_exceptions=True)

    def outcomes(self) -> list[tuple[str, str]]:
        return [(record.target, record.outcome) for record in read_records(self.audit.path)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    made.server = await serve_joins(
        join=made.issuer.join, listen="127.0.0.1:0", trust=Trust(made.own), scheduler_port=7411
    )
    yield made
    await made.server.stop()


async def test_machine_with_a_token_becomes_its_node(site: Site) -> None:
    joined = await site.join(site.token("alpha"))
    credentials = write_credentials(site.path / "node", joined.node, joined.issued)
    assert credentials.identity() == Identity(name="alpha", role=Role.NODE)
    assert joined.scheduler_port == 7411
    assert site.outcomes() == [("alpha", "ok")]


async def test_used_token_is_refused(site: Site) -> None:
    token = site.token()
    await site.join(token)
    with pytest.raises(NotPermitted, match="the token for alpha was used already; if that was not you, farbus ca rev"):
        await site.join(token)
    assert site.outcomes() == [("alpha", "ok"), ("", "refused")]


async def test_machine_that_lost_the_answer_gets_it_again_for_the_same_key(site: Site) -> None:
    token, pair = site.token(), new_request()
    first, again = await site.join(token, pair), await site.join(token, pair)
    assert first.issued.certificate == again.issued.certificate


async def test_of_two_that_race_with_one_token_one_joins(site: Site) -> None:
    token = site.token()
    both = await asyncio.gather(site.join(token), site.join(token), return_exceptions=True)
    assert sorted(type(each).__name__ for each in both) == ["Joined", "NotPermitted"]


def test_of_many_threads_that_race_for_one_token_one_gets_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    token, barrier, got = site.token(), threading.Barrier(8), []

    def race() -> None:
        _, request = new_request()
        barrier.wait()
        try:
            got.append(site.issuer._join(token.secret, request))
        except NotPermitted:
            pass

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1


async def test_expired_token_is_refused(site: Site) -> None:
    token = site.token()
    site.wall += 61.0
    with pytest.raises(NotPermitted, match="the token for alpha has expired"):
        await site.join(token)


async def test_revoking_a_node_takes_its_tokens_away(site: Site) -> None:
    await site.join(site.token())
    token = site.token()
    site.authority.revoke("alpha")
    with pytest.raises(NotPermitted, match="there is no such token"):
        await site.join(token)


async def test_invented_token_is_refused(site: Site) -> None:
    with pytest.raises(NotPermitted, match="there is no such token"):
        await site.join(Token(secret="0" * 40, fingerprint=site.authority.fingerprint))


async def test_scheduler_of_another_cluster_never_sees_the_token(site: Site, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other")
    asked = []

    async def listen(address: str, secret: str, request: bytes) -> tuple[str, bytes, bytes]:
        asked.append(secret)
        raise AssertionError("unreachable")

    posing = write_credentials(tmp_path / "posing", "s", other.issue("s", Role.SCHEDULER))
    server = await serve_joins(join=listen, listen="127.0.0.1:0", trust=Trust(posing), scheduler_port=1)
    try:
        key, request = new_request()
        with pytest.raises(NotPermitted, match="is not the scheduler of the token's cluster"):
            await asyncio.to_thread(join, "127.0.0.1", server.port, site.token(), key=key, request=request)
    finally:
        await server.stop()
    assert asked == []


async def test_node_of_the_same_cluster_can_not_take_joins(site: Site, tmp_path: Path) -> None:
    posing = write_credentials(tmp_path / "posing", "eve", site.authority.issue("eve", Role.NODE))
    server = await serve_joins(join=site.issuer.join, listen="127.0.0.1:0", trust=Trust(posing), scheduler_port=1)
    try:
        key, request = new_request()
        with pytest.raises(NotPermitted, match="is not the scheduler"):
            await asyncio.to_thread(join, "127.0.0.1", server.port, site.token(), key=key, request=request)
    finally:
        await server.stop()


async def test_guesser_is_slowed_down(site: Site) -> None:
    wrong = Token(secret="0" * 40, fingerprint=site.authority.fingerprint)
    for _ in range(20):
        with pytest.raises(NotPermitted, match="no such token"):
            await site.join(wrong)
    with pytest.raises(Unavailable, match=r"joins from 127\.0\.0\.1: more than 20 in 60 s; wait a while"):
        await site.join(site.token())


async def test_token_is_nowhere_on_the_disk(site: Site) -> None:
    token = site.token()
    await site.join(token)
    for path in site.path.rglob("*"):
        if path.is_file():
            assert token.secret.encode() not in path.read_bytes()
    assert (site.path / "ca" / FILE_NAME).stat().st_mode & 0o077 == 0


async def test_takes_up_a_renewed_certificate_in_the_next_handshake(site: Site) -> None:
    await site.join(site.token("alpha"))
    site.authority.begin_rotation()
    site.authority.switch_rotation()
    site.authority = Authority.open(site.path / "ca")
    site.issuer.renew_own(site.own)
    # Its token pins the new authority alone.
    assert (await site.join(site.token("beta"))).node == "beta"


async def test_machine_counts_from_when_it_has_connected(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_CONNECTIONS", 1)
    silent = await asyncio.open_connection("127.0.0.1", site.server.port)
    with pytest.raises(Unavailable, match="too many machines are joining; try again in a minute"):
        await site.join(site.token())
    silent[1].close()


async def test_machines_of_one_address_leave_room_for_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_ADDRESS_CONNECTIONS", 1)
    silent = await asyncio.open_connection("127.0.0.1", site.server.port)
    with pytest.raises(Unavailable, match="too many machines are joining"):
        await site.join(site.token())
    key, request = new_request()
    monkeypatch.setattr(joining.socket, "create_connection", functools.partial(connect_from, "127.0.0.2"))
    assert (await site.join(site.token("beta"), (key, request))).node == "beta"
    silent[1].close()


def connect_from(source: str, address: tuple[str, int], **options: Any) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(options["timeout"])
    connection.bind((source, 0))
    connection.connect(address)
    return connection


async def test_guesser_with_a_whole_ipv6_network_is_slowed_down(site: Site) -> None:
    for number in range(20):
        with pytest.raises(NotPermitted, match="there is no such token"):
            await site.issuer.join(f"2001:db8::{number:x}", "x", new_request()[1])
    with pytest.raises(Unavailable, match="more than 20 in 60 s"):
        await site.issuer.join("2001:db8::ffff", "x", new_request()[1])
    with pytest.raises(NotPermitted, match="there is no such token"):
        await site.issuer.join("2001:db8:0:1::1", "x", new_request()[1])


async def test_machines_beyond_those_that_are_told_are_hung_up_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(joining, "MAX_TOLD", 1)
    silent = [await asyncio.open_connection("127.0.0.1", site.server.port) for _ in range(2)]
    with pytest.raises(Unavailable, match="can't be reached"):
        await site.join(site.token())
    for _, writer in silent:
        writer.close()


async def test_place_of_a_machine_that_has_gone_is_free(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_CONNECTIONS", 1)
    for name in ("alpha", "beta"):
        assert (await site.join(site.token(name))).node == name
        await site.served()


async def test_machine_that_says_nothing_is_hung_up_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "TIMEOUT_S", 0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    assert await reader.read() == b""
    writer.close()


def test_machine_joins_in_the_event_loop_that_the_scheduler_has(tmp_path: Path) -> None:
    async def scenario() -> str:
        site = Site(tmp_path)
        site.server = await serve_joins(
            join=site.issuer.join, listen="127.0.0.1:0", trust=Trust(site.own), scheduler_port=7411
        )
        try:
            return (await site.join(site.token("alpha"))).node
        finally:
            await site.server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scenario()) == "alpha"


def csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, *, name: str = "x") -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


async def test_nothing_of_a_request_but_its_key_is_believed(site: Site) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _, pem, _ = await site.issuer.join("a", site.token("alpha").secret, csr(key, name="root"))
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate.subject.rfc4514_string() == "CN=alpha,O=node"
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def forged() -> bytes:
    """Return a request whose signature is of another key."""
    good = x509.load_pem_x509_csr(csr(ec.generate_private_key(ec.SECP256R1()))).public_bytes(Encoding.DER)
    return x509.load_der_x509_csr(good[:-4] + bytes([good[-4] ^ 1]) + good[-3:]).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("request_pem", "told"),
    [
        (b"", "malformed"),
        (b"\0" * 100, "malformed"),
        (b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "malformed"),
        (b"x" * 8_193, "8193 bytes, more than 8192"),
        (csr(rsa.generate_private_key(65_537, 2_048)), "not ECDSA"),
        (csr(ec.generate_private_key(ec.SECP224R1())), "not ECDSA"),
        (forged(), "not signed by its own key"),
    ],
    ids=["empty", "zeros", "rubbish", "long", "rsa", "weak curve", "forged"],
)
def test_hostile_request_is_refused(request_pem: bytes, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        key_of_request(request_pem)


async def test_certificate_of_a_machine_that_left_is_on_record(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, really = asyncio.Event(), threading.Event(), site.issuer._join
    loop = asyncio.get_running_loop()

    def slowly(secret: str, request: bytes) -> tuple[str, bytes, bytes]:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        return really(secret, request)

    monkeypatch.setattr(site.issuer, "_join", slowly)
    _, request = new_request()
    joining = asyncio.create_task(site.issuer.join("10.0.0.7", site.token("alpha").secret, request))
    await begun.wait()
    joining.cancel()
    go_on.set()
    await site.issuer.close()
    assert site.outcomes() == [("alpha", "ok")]


async def test_refused_request_does_not_use_up_the_token(site: Site) -> None:
    token = site.token()
    with pytest.raises(InvalidInput):
        await site.issuer.join("a", token.secret, b"rubbish")
    assert (await site.join(token)).node == "alpha"


async def test_rubbish_on_the_port_hurts_nobody(site: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    writer.close()
    assert (await site.join(site.token())).node == "alpha"


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    site = Site(tmp_path)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port} can't be reached"):
        await asyncio.to_thread(join, "127.0.0.1", port, site.token(), key=b"", request=b"")


@pytest.mark.parametrize("text", ["", "farbus-join.", "farbus-join.00.11", "x" * 200])
def test_what_is_no_token_is_not_repeated(text: str) -> None:
    with pytest.raises(InvalidInput, match="--token: that is no join token") as caught:
        Token.parse(text)
    assert not text or text not in str(caught.value)


def test_token_reads_back_as_it_was_written() -> None:
    token = Token(secret="ab" * 20, fingerprint="cd" * 32)
    assert Token.parse(f"{token}\n") == token


def test_rate_forgets_with_time() -> None:
    now = 0.0
    rate = Rate(2, 10.0, now=lambda: now)
    rate.take("a", what="x")
    rate.take("a", what="x")
    rate.take("b", what="x")
    with pytest.raises(Unavailable):
        rate.take("a", what="x")
    now = 10.0
    rate.take("a", what="x")
