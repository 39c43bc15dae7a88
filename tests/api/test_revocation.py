"""Certificates that are revoked, expired, renewed or of another authority, over real connections."""

from __future__ import annotations

import asyncio
import datetime
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from farbus.api import authority as authorities
from farbus.api import gate as gates
from farbus.api import trust as trusts
from farbus.api.audit import AuditLog, AuditRecord, read_records
from farbus.api.authority import (
    Authority,
    Credentials,
    IssuedCertificate,
    check_issued,
    key_of_request,
    new_request,
    replace_pair,
    write_credentials,
)
from farbus.api.client import ClusterClient
from farbus.api.enrollment import Issuer, is_due, renew_at
from farbus.api.gate import Gate, _OpenCall
from farbus.api.identity import METHOD_ROLES, READ_METHODS, Identity, Role
from farbus.api.server import RunningServer, SendToNode, SessionHandler, serve_scheduler
from farbus.api.session import SessionDialer, open_session
from farbus.api.trust import Trust, receive_authorities, receive_revocations
from farbus.api.v1 import cluster_pb2, enrollment_pb2, peer_pb2, session_pb2, staging_pb2
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.model.job import Job, JobStatus
from farbus.model.operation import DrainStatus
from tests.api.test_servers import JOB, Echo, Recorder


class Site:
    """A scheduler with the authority's directory, as `farbus scheduler --ca` has it."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.authority = Authority.create(tmp_path / "ca")
        self.audit = AuditLog(tmp_path / "audit.jsonl")
        self.issuer = Issuer(tmp_path / "ca", audit=self.audit)
        self.own = self.issue("s", Role.SCHEDULER)
        self.handler = Recorder()
        self.server: RunningServer
        self.address = ""

    def issue(self, name: str, role: Role, *, days: int = 365) -> Credentials:
        return write_credentials(self.path / name, name, self.authority.issue(name, role, days=days))

    async def start(
        self, *, operator_only: frozenset[str] = frozenset(), sessions: SessionHandler | None = None
    ) -> None:
        self.server = await serve_scheduler(
            cluster=self.handler,
            sessions=sessions or Echo(),
            listen="127.0.0.1:0",
            credentials=self.own,
            enrollment=self.issuer,
            audit=self.audit,
            operator_only=operator_only,
        )
        self.address = f"127.0.0.1:{self.server.port}"

    def revoke(self, what: str) -> None:
        self.authority.revoke(what)
        self.issuer.renew_own(self.own)

    def client(self, credentials: Credentials) -> ClusterClient:
        return ClusterClient.remote(address=self.address, credentials=credentials)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.start()
    yield made
    await made.server.stop()


async def test_revoked_certificate_is_refused_at_its_next_call(site: Site) -> None:
    async with site.client(site.issue("bob", Role.USER)) as client:
        await client.cluster_info()
        site.revoke("bob")
        with pytest.raises(NotPermitted, match="the certificate of user bob is revoked"):
            await client.cluster_info()


async def test_revoked_operators_open_stream_ends(site: Site) -> None:
    async with site.client(site.issue("root", Role.OPERATOR)) as client:
        stream = client.watch_job("7")
        await anext(stream)
        following = asyncio.create_task(anext(stream))
        site.revoke("root")
        await site.server.end_untrusted()
        with pytest.raises(NotPermitted, match="the certificate of operator root is revoked"):
            await following
    await site.handler.watch_closed.wait()


async def test_open_streams_are_looked_at_whenever_there_are_some(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LOOK_INTERVAL_S", 0.0)
    for name in ("ann", "bob"):
        async with site.client(site.issue(name, Role.OPERATOR)) as client:
            stream = client.watch_job("7")
            await anext(stream)
            site.revoke(name)
            with pytest.raises(NotPermitted, match=f"the certificate of operator {name} is revoked"):
                await anext(stream)


async def test_without_open_calls_nobody_looks_at_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LOOK_INTERVAL_S", 0.0)
    looked: list[str] = []
    monkeypatch.setattr(Trust, "refresh", lambda trust: looked.append("refresh"))
    watch = asyncio.create_task(Gate(Trust(Site(tmp_path).own)).watch())
    for _ in range(20):
        await asyncio.sleep(0)
    watch.cancel()
    assert looked == []


async def test_calls_are_looked_at_again_where_a_look_meets_what_nobody_thought_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "LOOK_INTERVAL_S", 0.0)
    site, looked = Site(tmp_path), asyncio.Event()
    trust = Trust(site.own)
    peer = trust.check(site.issue("bob", Role.USER).read().certificate)
    gate = Gate(trust)
    gate._open.add(_OpenCall(Abort(looked, looked), peer, peer.identity, "/farbus.v1.Cluster/Submit", None, address=""))
    gate._opened.set()
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise ValueError("nobody thought of it")
        looked.set()

    monkeypatch.setattr(gate, "end_untrusted", look)
    watch, waiting = asyncio.create_task(gate.watch()), asyncio.create_task(looked.wait())
    await asyncio.wait({watch, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (watch, waiting):
        task.cancel()
    await asyncio.gather(watch, waiting, return_exceptions=True)
    assert looks > 1


async def test_revoked_nodes_session_ends(site: Site) -> None:
    async with open_session(address=site.address, credentials=site.issue("alpha", Role.NODE)) as stream:
        await stream.send(session_pb2.NodeMessage(outcome={"command_id": "c1"}))
        messages = aiter(stream)
        await anext(messages)
        site.revoke("alpha")
        await site.server.end_untrusted()
        with pytest.raises(NotPermitted, match="the certificate of node alpha is revoked"):
            await anext(messages)


async def test_session_that_is_ended_while_its_first_message_is_on_its_way_ends(tmp_path: Path) -> None:
    site = Site(tmp_path)

    class Revoking(SessionHandler):
        async def session(
            self, caller: Identity, incoming: AsyncIterator[session_pb2.NodeMessage], send: SendToNode
        ) -> None:
            await anext(incoming)
            sending = asyncio.create_task(send(session_pb2.SchedulerMessage()))
            site.revoke(caller.name)
            await asyncio.sleep(0)  # The message is handed over, and not yet known to be sent.
            ending.append(asyncio.create_task(site.server.end_untrusted()))
            await sending
            await asyncio.Event().wait()

    ending: list[asyncio.Task[None]] = []
    await site.start(sessions=Revoking())
    try:
        async with open_session(address=site.address, credentials=site.issue("alpha", Role.NODE)) as stream:
            await stream.send(session_pb2.NodeMessage())
            with pytest.raises(NotPermitted, match="the certificate of node alpha is revoked"):
                async with asyncio.timeout(30):
                    _ = [message async for message in stream]
        await asyncio.gather(*ending)
    finally:
        await site.server.stop()


async def test_others_go_on_when_one_is_revoked(site: Site) -> None:
    site.issue("eve", Role.USER)
    async with site.client(site.issue("bob", Role.USER)) as client:
        stream = client.watch_job("7")
        await anext(stream)
        site.revoke("eve")
        await site.server.end_untrusted()
        await client.cluster_info()
        assert not site.handler.watch_closed.is_set()
        await stream.aclose()


async def test_certificate_that_expires_while_its_connection_is_open_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.client(site.issue("bob", Role.USER)) as client:
        await client.cluster_info()
        later(monkeypatch, days=400)
        with pytest.raises(NotPermitted, match="the certificate of user bob: expired on"):
            await client.cluster_info()


def later(monkeypatch: pytest.MonkeyPatch, *, days: float) -> None:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            del tz
            return moment

    monkeypatch.setattr(authorities.datetime, "datetime", Later)


@pytest.mark.parametrize(("days", "told"), [(400, "expired on"), (-1, "not valid before .* clock")])
def test_own_certificate_outside_its_time_is_told_before_dialling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, told: str
) -> None:
    credentials = write_credentials(tmp_path / "bob", "bob", Authority.create(tmp_path / "ca").issue("bob", Role.USER))
    later(monkeypatch, days=days)
    with pytest.raises(InvalidInput, match=told):
        credentials.read()


@pytest.mark.parametrize(
    ("days", "told"),
    [(400, "the certificate received: expired on"), (4000, "the authorities received: expired on .* farbus ca init")],
)
def test_issued_certificate_or_authority_that_has_expired_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, told: str
) -> None:
    authority = Authority.create(tmp_path / "ca")
    issued, trusted = authority.issue("alpha", Role.NODE), authority.bundle()
    later(monkeypatch, days=days)
    with pytest.raises(InvalidInput, match=told):
        check_issued(issued, trusted=trusted, holder=Identity(name="alpha", role=Role.NODE))


async def test_server_takes_up_a_renewed_certificate_without_a_restart(site: Site) -> None:
    first = Trust(site.own).files.certificate
    certificate, _, _ = site.own.read_pair()
    replace_pair(site.own, site.authority.renew(certificate, what="s"))
    async with site.client(site.issue("bob", Role.USER)) as client:
        await client.cluster_info()
    assert Trust(site.own).files.certificate != first


async def test_authority_changes_over_while_both_are_trusted(site: Site) -> None:
    old, following = site.issue("old", Role.USER), site.issue("following", Role.USER)
    site.authority.begin_rotation()
    site.issuer.renew_own(site.own)
    await renew_at(site.address, old)
    site.authority.switch_rotation()
    site.authority = Authority.open(site.path / "ca")
    new = site.issue("new", Role.USER)
    # The server's own certificate is still of the old authority, which both trust.
    for credentials in (old, following, new):
        async with site.client(credentials) as client:
            await client.cluster_info()
    site.issuer.renew_own(site.own)
    await renew_at(site.address, old)
    site.authority.finish_rotation(force=True)
    site.issuer.renew_own(site.own)
    async with site.client(old) as client:
        await client.cluster_info()
    with pytest.raises((NotPermitted, Unavailable)):
        async with site.client(following) as client:
            await client.cluster_info()


async def test_open_connection_of_an_authority_that_is_trusted_no_more_is_refused(site: Site) -> None:
    async with site.client(site.issue("bob", Role.USER)) as client:
        await client.cluster_info()
        site.authority.begin_rotation()
        site.authority.switch_rotation()
        site.issuer.renew_own(site.own)
        site.authority = Authority.open(site.path / "ca")
        site.authority.finish_rotation(force=True)
        site.issuer.renew_own(site.own)
        with pytest.raises(NotPermitted, match="authority that is not trusted any more"):
            await client.cluster_info()


async def test_open_call_of_an_authority_that_is_trusted_no_more_ends(site: Site) -> None:
    async with site.client(site.issue("bob", Role.USER)) as client:
        stream = client.watch_job("7")
        await anext(stream)
        following = asyncio.create_task(anext(stream))
        site.authority.begin_rotation()
        site.authority.switch_rotation()
        site.issuer.renew_own(site.own)
        await site.server.end_untrusted()
        assert not site.handler.watch_closed.is_set()
        site.authority = Authority.open(site.path / "ca")
        site.authority.finish_rotation(force=True)
        site.issuer.renew_own(site.own)
        await site.server.end_untrusted()
        with pytest.raises(NotPermitted, match="user bob is of an authority that is not trusted any more"):
            await following
    await site.handler.watch_closed.wait()


class Abort:
    """The context of an open call that ends once another one's end has begun."""

    def __init__(self, mine: asyncio.Event, other: asyncio.Event) -> None:
        self.mine = mine
        self.other = other
        self.done = False

    async def abort(self, code: grpc.StatusCode, reason: str) -> None:
        self.mine.set()
        await self.other.wait()
        self.done = True


async def test_calls_are_ended_beside_each_other(tmp_path: Path) -> None:
    site = Site(tmp_path)
    trust = Trust(site.own)
    peer = trust.check(site.issue("bob", Role.USER).read().certificate)
    events = asyncio.Event(), asyncio.Event()
    contexts = [Abort(*events), Abort(*reversed(events))]
    gate = Gate(trust)
    for context in contexts:
        call = _OpenCall(context, peer, peer.identity, "/farbus.v1.Cluster/Submit", None, address="")
        call.task = None
        gate._open.add(call)
    site.revoke("bob")
    await gate.end_untrusted()
    assert all(context.done for context in contexts)


async def test_node_renews_with_a_new_key_and_keeps_its_name(site: Site) -> None:
    node = site.issue("alpha", Role.NODE)
    before = node.read()
    assert await renew_at(site.address, node) == Identity(name="alpha", role=Role.NODE)
    after = node.read()
    assert node.identity() == Identity(name="alpha", role=Role.NODE)
    assert before.key != after.key


async def test_revoked_certificate_can_not_be_renewed(site: Site) -> None:
    node = site.issue("alpha", Role.NODE)
    site.authority.revoke("alpha")
    with pytest.raises(NotPermitted, match="revoked"):
        await renew_at(site.address, node)


async def test_name_that_is_revoked_is_not_renewed_by_what_the_registry_does_not_know(site: Site) -> None:
    site.issue("alpha", Role.NODE)
    key, request = new_request()
    certificate = site.authority.sign(key_of_request(request), "alpha", Role.NODE)
    pair = IssuedCertificate(
        certificate=certificate.public_bytes(Encoding.PEM), key=key, authority=site.authority.bundle()
    )
    unknown = write_credentials(site.path / "unknown", "alpha", pair)
    site.revoke("alpha")
    with pytest.raises(NotPermitted, match="all of alpha is revoked"):
        await renew_at(site.address, unknown)


def test_name_is_renewed_again_once_it_has_been_issued_again(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    authority.issue("alpha", Role.NODE)
    authority.revoke("alpha")
    with pytest.raises(NotPermitted, match="all of alpha is revoked"):
        authority.registry.check_renewal("0" * 40, "alpha")
    authority.issue("alpha", Role.NODE)
    authority.registry.check_renewal("0" * 40, "alpha")


def test_every_certificate_of_a_name_is_revoked_also_what_a_thief_has_renewed(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    stolen = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    certificate, _, _ = stolen.read_pair()
    renewed = write_credentials(tmp_path / "b", "a", authority.renew(certificate, what="a"))
    assert len(authority.revoke("a")) == 2
    for each in (stolen, renewed):
        with pytest.raises(NotPermitted, match="the certificate is revoked"):
            authority.renew(each.read_pair()[0], what="a")


async def test_renewals_are_limited(site: Site) -> None:
    node = site.issue("alpha", Role.NODE)
    for _ in range(6):
        await renew_at(site.address, node)
    with pytest.raises(Unavailable, match="renewals of node alpha: more than 6 in 3600 s"):
        await renew_at(site.address, node)


async def test_renewed_session_is_dialled_again(site: Site) -> None:
    dialer = SessionDialer(address=site.address, credentials=site.issue("alpha", Role.NODE))
    async with dialer.open() as stream:
        await stream.send(session_pb2.NodeMessage(outcome={"command_id": "c1"}))
        messages = aiter(stream)
        await anext(messages)
        assert not dialer.redial_if_renewed()
        await renew_at(site.address, Credentials.in_directory(site.path / "alpha", "alpha"))
        assert dialer.redial_if_renewed()
        with pytest.raises(Unavailable):
            await anext(messages)


def test_certificate_is_due_in_the_last_third_of_its_life(tmp_path: Path) -> None:
    credentials = write_credentials(
        tmp_path / "a", "a", Authority.create(tmp_path / "ca").issue("a", Role.NODE, days=30)
    )
    until = credentials.expires_at().timestamp()
    assert not is_due(credentials, now=until - 11 * 86_400)
    assert is_due(credentials, now=until - 9 * 86_400)


@pytest.mark.parametrize("died_after", ["certificate", "key"])
def test_pair_is_whole_wherever_its_replacement_died(tmp_path: Path, died_after: str) -> None:
    authority = Authority.create(tmp_path / "ca")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    following = authority.issue("a", Role.NODE)
    Path(credentials.certificate + ".next").write_bytes(following.certificate)
    if died_after == "key":
        Path(credentials.key).write_bytes(following.key)
    found = credentials.read()
    assert (found.key == following.key) == (died_after == "key")
    assert credentials.identity().name == "a"


def test_revocation_list_that_came_later_is_kept_and_an_older_one_is_not(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    older = (tmp_path / "ca" / "ca.crl").read_bytes()
    authority.issue("eve", Role.USER)
    authority.revoke("eve")
    newer = (tmp_path / "ca" / "ca.crl").read_bytes()
    assert receive_revocations(credentials, newer)
    assert not receive_revocations(credentials, older)
    assert Path(credentials.revocations).read_bytes() == newer


def test_revocation_list_of_another_authority_is_refused(tmp_path: Path) -> None:
    authority, other = Authority.create(tmp_path / "ca"), Authority.create(tmp_path / "other")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    with pytest.raises(InvalidInput, match="not signed by the authority"):
        receive_revocations(credentials, (other.directory / "ca.crl").read_bytes())


def test_older_revocation_list_put_back_frees_nobody(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    older = (tmp_path / "ca" / "ca.crl").read_bytes()
    (revoked,) = authority.revoke("a")
    Path(credentials.revocations).write_bytes((tmp_path / "ca" / "ca.crl").read_bytes())
    trust = Trust(credentials)
    Path(credentials.revocations).write_bytes(older)
    trust.refresh()
    assert trust.is_revoked(revoked.serial)


def test_files_that_another_thread_takes_up_just_now_end_no_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For each connection gRPC looks whether they have changed, in a thread of its own.
    authority = Authority.create(tmp_path / "ca")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    pems = [authority.issue(name, Role.USER).certificate for name in ("bob", "eve")]
    trust = Trust(credentials)

    class Known(OrderedDict[bytes, Any]):
        def __len__(self) -> int:
            before = super().__len__()
            if before > 1:
                os.utime(credentials.certificate, ns=(1, 1))
                trust.refresh()
            return before

    monkeypatch.setattr(trusts, "MAX_KNOWN", 1)
    trust._peers = Known()
    assert [trust.check(pem).identity.name for pem in pems] == ["bob", "eve"]


def test_of_two_who_take_up_files_at_once_none_goes_back_to_older_ones(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    trust = Trust(credentials)
    begun, go_on = threading.Event(), threading.Event()
    read = trust.credentials.read

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(credentials, name)

        def read(self) -> Any:
            found = read()
            if threading.current_thread() is other:
                begun.set()
                assert go_on.wait(60)
            return found

    trust.credentials = Slow()  # type: ignore[assignment]
    write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    other = threading.Thread(target=trust.refresh)
    other.start()
    assert begun.wait(60)
    newest = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE)).read()
    mine = threading.Thread(target=trust.refresh)
    mine.start()
    assert trust._refreshing.locked()
    go_on.set()
    other.join(60)
    mine.join(60)
    assert trust.files == newest


def test_name_without_a_valid_certificate_can_not_be_revoked(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="names no certificate that is valid now"):
        Authority.create(tmp_path / "ca").revoke("nobody")


def test_authority_can_not_be_rotated_twice_at_once(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    authority.begin_rotation()
    with pytest.raises(Conflict, match="taking over already"):
        authority.begin_rotation()


async def test_changes_and_refusals_are_on_record_before_the_answer(site: Site) -> None:
    async with site.client(site.issue("bob", Role.USER)) as client:
        await client.submit(JOB)
        await client.cancel_job("7")
        with pytest.raises(NotFound):
            await client.get_job("99")
        with pytest.raises(NotPermitted):
            _ = [record async for record in client.read_audit()]
    found = [(record.who, record.method, record.target, record.outcome) for record in read_records(site.audit.path)]
    assert found == [
        ("bob", "Submit", "7", "ok"),
        ("bob", "CancelJob", "7", "ok"),
        ("bob", "ReadAudit", "", "refused"),
    ]


class Lasting(Recorder):
    """Does nothing at once; tells when it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def submit(self, caller: Identity, job: Job, *, check_only: bool) -> tuple[str, JobStatus | None]:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def drain(self, caller: Identity, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
        yield DrainStatus(node=node)
        if evict:
            raise Conflict(f"node {node}: in use")
        if reason:
            return
        await asyncio.Event().wait()


class Watched(AuditLog):
    """Tells of each record that arrives."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.arrived: asyncio.Queue[AuditRecord] = asyncio.Queue()

    def post(self, record: AuditRecord) -> asyncio.Future[None] | None:
        self.arrived.put_nowait(record)
        return super().post(record)


@pytest.fixture
async def lasting(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    made.handler = Lasting()
    made.audit = Watched(made.audit.path)
    await made.start()
    yield made
    await made.server.stop()


async def outcomes(site: Site, number: int) -> list[tuple[str, str, str]]:
    """Return what is in the log once ``number`` records have arrived."""
    assert isinstance(site.audit, Watched)
    for _ in range(number):
        await site.audit.arrived.get()
    await site.audit.close()
    return [(record.method, record.target, record.outcome) for record in read_records(site.audit.path)]


async def test_caller_who_leaves_while_his_change_is_under_way_leaves_a_line(lasting: Site) -> None:
    async with lasting.client(lasting.issue("bob", Role.USER)) as client:
        call = asyncio.create_task(client.submit(JOB))
        assert isinstance(lasting.handler, Lasting)
        await lasting.handler.begun.wait()
        call.cancel()
        async with asyncio.timeout(30):
            assert await outcomes(lasting, 1) == [("Submit", "", "left")]


@pytest.mark.parametrize(
    ("evict", "reason", "outcome"), [(False, "repair", "ok"), (True, "", "failed"), (False, "", "left")]
)
async def test_stream_that_changes_something_is_noted_with_its_outcome(
    lasting: Site, evict: bool, reason: str, outcome: str
) -> None:
    async with lasting.client(lasting.issue("root", Role.OPERATOR)) as client:
        stream = client.drain("alpha", evict=evict, reason=reason)
        await anext(stream)
        if outcome == "left":
            await stream.aclose()
        else:
            with pytest.raises(Conflict if evict else StopAsyncIteration):
                await anext(stream)
        async with asyncio.timeout(30):
            assert await outcomes(lasting, 2) == [("Drain", "alpha", "begun"), ("Drain", "alpha", outcome)]


async def test_call_that_the_gate_ends_is_noted_once_as_refused(lasting: Site) -> None:
    async with lasting.client(lasting.issue("root", Role.OPERATOR)) as client:
        stream = client.drain("alpha", evict=False, reason="")
        await anext(stream)
        lasting.revoke("root")
        await lasting.server.end_untrusted()
        with pytest.raises(NotPermitted, match="is revoked"):
            await anext(stream)
    await lasting.server.stop(1.0)
    assert await outcomes(lasting, 2) == [("Drain", "alpha", "begun"), ("Drain", "alpha", "refused")]


async def test_check_of_a_job_is_no_change(site: Site) -> None:
    async with site.client(site.issue("bob", Role.USER)) as client:
        await client.submit(JOB, check_only=True)
    assert list(read_records(site.audit.path)) == []


async def test_method_can_be_kept_for_operators(tmp_path: Path) -> None:
    site = Site(tmp_path)
    await site.start(operator_only=frozenset({"Submit"}))
    try:
        async with site.client(site.issue("root", Role.OPERATOR)) as client:
            await client.submit(JOB)
        async with site.client(site.issue("bob", Role.USER)) as client:
            with pytest.raises(NotPermitted, match="Submit is for operators only at present"):
                await client.submit(JOB)
    finally:
        await site.server.stop()


def every_method() -> set[str]:
    return {
        f"/{service.full_name}/{method.name}"
        for file in (cluster_pb2, enrollment_pb2, peer_pb2, session_pb2, staging_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_table_of_roles_has_every_method_of_every_service() -> None:
    assert set(METHOD_ROLES) == every_method()


def test_every_proto_is_looked_at_for_methods() -> None:
    with_services = {path.stem for path in Path("farbus/api/v1").glob("*.proto") if "\nservice " in path.read_text()}
    assert with_services == {"cluster", "enrollment", "peer", "session", "staging"}


def test_only_methods_that_there_are_count_as_reading() -> None:
    assert set(METHOD_ROLES) > READ_METHODS
    assert "/farbus.v1.Cluster/GetTelemetry" in READ_METHODS


def test_authority_that_takes_over_is_passed_on_and_makes_the_certificate_due(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    now = credentials.lifetime()[0].timestamp()
    authority.begin_rotation()
    assert receive_authorities(credentials, authority.bundle())
    assert not is_due(credentials, now=now)
    authority.switch_rotation()
    assert receive_authorities(credentials, Authority.open(tmp_path / "ca").bundle())
    assert is_due(credentials, now=now)


def test_authorities_without_any_that_was_trusted_are_refused(tmp_path: Path) -> None:
    authority, other = Authority.create(tmp_path / "ca"), Authority.create(tmp_path / "other")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    with pytest.raises(InvalidInput, match="none of the authorities received was trusted before"):
        receive_authorities(credentials, other.bundle())


def test_authorities_that_would_shut_out_a_node_are_not_taken(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    credentials = write_credentials(tmp_path / "a", "a", authority.issue("a", Role.NODE))
    authority.begin_rotation()
    receive_authorities(credentials, authority.bundle())
    authority.switch_rotation()
    authority = Authority.open(tmp_path / "ca")
    authority.finish_rotation(force=True)
    with pytest.raises(InvalidInput, match="of an authority that is trusted no more; join again with a token"):
        receive_authorities(credentials, Authority.open(tmp_path / "ca").bundle())
    credentials.read()
