"""Both servers with real connections: identities, values, streams, errors."""

from __future__ import annotations

import asyncio
import os
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import grpc.aio
import pytest

from farbus.api import gate
from farbus.api import server as server_module
from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.conversion import from_message
from farbus.api.identity import Identity, Role
from farbus.api.server import ClusterHandler, SendToNode, SessionHandler, serve_local, serve_scheduler
from farbus.api.session import open_session
from farbus.api.v1 import cluster_pb2, cluster_pb2_grpc, session_pb2, types_pb2
from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, Unavailable
from farbus.model.cluster import ClusterInfo, HoldEvent, HoldLost, HoldReady, LogChunk
from farbus.model.device import DeviceStatus, Route
from farbus.model.explanation import Explanation
from farbus.model.job import NO_GOAL, Goal, Job, JobStatus, Requests, TaskGroup
from farbus.model.lease import LeaseStatus
from farbus.model.node import NodeStatus
from farbus.model.operation import CordonKind, CordonResult, DrainStatus, ForgottenNode
from farbus.model.states import JobState, NodeState
from farbus.model.telemetry import ClusterTelemetry, NodeTelemetry

JOB = Job(id="", name="hello", user="", groups=(TaskGroup(name="main", command=("true",)),))


class Recorder(ClusterHandler):
    """Answers with what it was asked."""

    def __init__(self) -> None:
        self.callers: list[Identity] = []
        self.hold_closed = asyncio.Event()
        self.watch_closed = asyncio.Event()
        self.nodes_asked = asyncio.Event()

    async def submit(self, caller: Identity, job: Job, *, check_only: bool) -> tuple[str, JobStatus | None]:
        self.callers.append(caller)
        return "7", JobStatus(job=job, state=JobState.QUEUED) if check_only else None

    async def list_jobs(self, caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        raise ValueError("a planted defect")

    async def get_job(self, caller: Identity, job_id: str) -> JobStatus:
        raise NotFound(f"job {job_id}: no such job", hint="see farbus jobs --all")

    async def watch_job(self, caller: Identity, job_id: str) -> AsyncIterator[JobStatus]:
        try:
            yield JobStatus(job=JOB, state=JobState.QUEUED)
            await asyncio.Event().wait()
        finally:
            self.watch_closed.set()

    async def cancel_job(
        self, caller: Identity, job_id: str, *, released: bool, exit_code: int | None = None
    ) -> JobStatus:
        return JobStatus(job=JOB, state=JobState.CANCELLED)

    async def read_logs(
        self, caller: Identity, job_id: str, *, task: str, follow: bool, position: int = 0
    ) -> AsyncIterator[LogChunk]:
        yield LogChunk(data=b"one")
        yield LogChunk(data=b"two", stream=2)
        raise Conflict("the log was cut")

    async def list_nodes(self, caller: Identity) -> tuple[NodeStatus, ...]:
        self.nodes_asked.set()
        await asyncio.Event().wait()
        return ()

    async def list_devices(self, caller: Identity) -> tuple[DeviceStatus, ...]:
        return ()

    async def list_leases(self, caller: Identity, *, include_released: bool) -> tuple[LeaseStatus, ...]:
        return ()

    async def get_telemetry(self, caller: Identity, *, nodes: Collection[str]) -> ClusterTelemetry:
        return ClusterTelemetry(nodes=tuple(NodeTelemetry(node=name, state=NodeState.LOST) for name in sorted(nodes)))

    async def explain(self, caller: Identity, job_id: str) -> Explanation:
        return Explanation(status=JobStatus(job=JOB, state=JobState.QUEUED), lines=("one", "two"))

    async def cluster_info(self, caller: Identity) -> ClusterInfo:
        return ClusterInfo(node=caller.name, term=3)

    async def cordon(self, caller: Identity, name: str, *, reason: str) -> CordonResult:
        return CordonResult(name=f"{name} {reason}", kind=CordonKind.NODE, changed=True)

    async def uncordon(self, caller: Identity, name: str) -> CordonResult:
        return CordonResult(name=name, kind=CordonKind.DEVICE, changed=False)

    async def drain(self, caller: Identity, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
        yield DrainStatus(node=f"{node} {evict} {reason}", jobs=(JobStatus(job=JOB, state=JobState.RUNNING),))
        yield DrainStatus(node=node)

    async def forget(self, caller: Identity, node: str) -> ForgottenNode:
        return ForgottenNode(node=node, leases=("l1",), devices=("d1", "d2"), jobs=("j1",))

    async def hold(
        self,
        caller: Identity,
        *,
        name: str,
        requests: Requests,
        routes: tuple[Route, ...],
        wait_limit_s: float,
        job_id: str = "",
        goal: Goal = NO_GOAL,
        application: str = "",
    ) -> AsyncIterator[HoldEvent]:
        try:
            yield HoldReady(status=JobStatus(job=JOB, state=JobState.RUNNING), environment={"A": name})
            await asyncio.Event().wait()
            yield HoldLost(reason="never")
        finally:
            self.hold_closed.set()


class Echo(SessionHandler):
    """Answers each outcome with a refusal that quotes it."""

    async def session(
        self, caller: Identity, incoming: AsyncIterator[session_pb2.NodeMessage], send: SendToNode
    ) -> None:
        async for message in incoming:
            if message.outcome.command_id == "end":
                raise Conflict(f"node {caller.name} is known already")
            await send(session_pb2.SchedulerMessage(refused={"reason": message.outcome.command_id}))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca")


@pytest.fixture
def credentials(authority: Authority, tmp_path: Path) -> Callable[[str, Role], Credentials]:
    return lambda name, role: write_credentials(tmp_path / "certs", name, authority.issue(name, role))


@pytest.fixture
async def scheduler(
    credentials: Callable[[str, Role], Credentials],
) -> AsyncIterator[tuple[Recorder, str]]:
    handler = Recorder()
    server = await serve_scheduler(
        cluster=handler, sessions=Echo(), listen="127.0.0.1:0", credentials=credentials("s", Role.SCHEDULER)
    )
    yield handler, f"127.0.0.1:{server.port}"
    await server.stop()


async def test_user_submits_over_tls(scheduler, credentials) -> None:
    handler, address = scheduler
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        job_id, would_be = await client.submit(JOB, check_only=True)
    assert (job_id, would_be.job) == ("7", JOB)
    assert handler.callers == [Identity(name="bob", role=Role.USER)]


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (types_pb2.Job(groups=[types_pb2.TaskGroup()] * 65), "groups: has more than 64 groups"),
        (types_pb2.Job(cwd="x" * (2 * 2**20)), "job: 2097157 bytes are more than 2097152"),
        (types_pb2.Job(groups=[types_pb2.TaskGroup(command=[""] * 70_000)]), "command and what else it lists"),
    ],
    ids=["groups", "bytes", "words"],
)
async def test_too_large_a_job_is_refused_before_it_is_read(scheduler, credentials, job, told) -> None:
    handler, address = scheduler
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        stub = cluster_pb2_grpc.ClusterStub(client.channel)
        with pytest.raises(grpc.aio.AioRpcError, match=told) as refused:
            await stub.Submit(cluster_pb2.SubmitRequest(job=job))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert handler.callers == []


async def test_agents_socket_takes_no_message_larger_than_a_job_or_a_piece_of_a_file(agent_socket) -> None:
    _, path, _ = agent_socket
    async with ClusterClient.local(socket=path) as client:
        stub = cluster_pb2_grpc.ClusterStub(client.channel)
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
            await stub.GetTelemetry(cluster_pb2.GetTelemetryRequest(nodes=["x" * (4 * 2**20)]))


async def test_one_caller_has_only_so_many_calls_open(scheduler, credentials, monkeypatch) -> None:
    _, address = scheduler
    monkeypatch.setattr(gate, "MAX_OPEN_CALLS", 1)
    bob = ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER))
    eve = ClusterClient.remote(address=address, credentials=credentials("eve", Role.USER))
    async with bob, eve:
        stream = bob.watch_job("1")
        await anext(stream)
        with pytest.raises(Unavailable, match="bob has 1 calls open, the most that one may; end some of them"):
            await bob.list_devices()
        assert await eve.list_devices() == ()
        await stream.aclose()
        await scheduler[0].watch_closed.wait()


async def test_caller_that_does_not_say_who_it_is_is_hung_up_on(credentials, monkeypatch) -> None:
    options = [("grpc.server_handshake_timeout_ms", 50) if "handshake" in name else (name, value)
               for name, value in server_module.SERVER_OPTIONS]  # fmt: skip
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", options)
    server = await serve_scheduler(
        cluster=Recorder(), sessions=Echo(), listen="127.0.0.1:0", credentials=credentials("s", Role.SCHEDULER)
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await reader.read() == b""
    writer.close()
    await server.stop()


async def test_node_forwards_a_user(scheduler, credentials) -> None:
    handler, address = scheduler
    bob = Identity(name="bob", role=Role.USER)
    async with ClusterClient.remote(
        address=address, credentials=credentials("alpha", Role.NODE), on_behalf_of=bob
    ) as client:
        await client.submit(JOB)
    assert handler.callers == [Identity(name="bob", role=Role.USER, node="alpha")]


async def test_user_can_not_vouch(scheduler, credentials) -> None:
    _, address = scheduler
    bob = Identity(name="bob", role=Role.OPERATOR)
    async with ClusterClient.remote(
        address=address, credentials=credentials("eve", Role.USER), on_behalf_of=bob
    ) as client:
        with pytest.raises(NotPermitted, match="can't vouch"):
            await client.submit(JOB)


async def test_error_keeps_its_kind_and_hint(scheduler, credentials) -> None:
    _, address = scheduler
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        with pytest.raises(NotFound) as caught:
            await client.get_job("99")
    assert (caught.value.message, caught.value.hint) == ("job 99: no such job", "see farbus jobs --all")


async def test_defect_tells_the_caller_no_more_than_that(scheduler, credentials) -> None:
    _, address = scheduler
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        with pytest.raises(FarbusError, match="a defect in StreamJobs") as caught:
            await client.list_jobs()
    assert "planted" not in str(caught.value)


async def test_error_that_quotes_too_much_arrives_all_the_same(scheduler, credentials, monkeypatch) -> None:
    handler, address = scheduler

    async def get_job(caller: Identity, job_id: str) -> JobStatus:
        raise NotFound(f"no job {job_id}", hint="look at farbus jobs")

    monkeypatch.setattr(handler, "get_job", get_job)
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        with pytest.raises(NotFound, match=r"no job ÄÄÄÄ.* \.\.\.; look at farbus jobs"):
            await client.get_job("Ä" * 100_000)


async def test_listing_that_is_too_long_leaves_out_what_is_long(scheduler, credentials, monkeypatch) -> None:
    handler, address = scheduler
    group = TaskGroup(name="main", command=("program", "x" * 1_000))
    long = JobStatus(
        job=Job(id="j7", name="long", user="eve", groups=(group,), environment={"A": "x" * 1_000}),
        state=JobState.QUEUED,
    )

    async def list_jobs(caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        return (long,)

    monkeypatch.setattr(handler, "list_jobs", list_jobs)
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        assert await client.list_jobs() == (long,)
        monkeypatch.setattr(server_module, "MAX_LISTING_BYTES", 2_000)
        # As clients ask that know of no pieces.
        reply = await cluster_pb2_grpc.ClusterStub(client.channel).ListJobs(cluster_pb2.ListJobsRequest())
        (listed,) = [from_message(job, JobStatus) for job in reply.jobs]
    assert (listed.job.id, listed.job.groups[0].command, listed.job.environment) == ("j7", ("program",), {})


async def test_listing_of_any_length_arrives_whole_in_pieces(scheduler, credentials, monkeypatch) -> None:
    handler, address = scheduler
    group = TaskGroup(name="main", command=("program", "x" * 100_000))
    many = tuple(
        JobStatus(job=Job(id=f"j{number}", name="long", user="eve", groups=(group,)), state=JobState.QUEUED)
        for number in range(700)
    )

    async def list_jobs(caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        return many if include_ended else ()

    monkeypatch.setattr(handler, "list_jobs", list_jobs)
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        assert await client.list_jobs(include_ended=True) == many
        assert await client.list_jobs() == ()
        # More than one message may hold.
        assert server_module.MAX_MESSAGE_BYTES < 700 * 100_000


async def test_stream_ends_with_its_error(scheduler, credentials) -> None:
    _, address = scheduler
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        chunks = client.read_logs("7")
        assert [await anext(chunks), await anext(chunks)] == [LogChunk(data=b"one"), LogChunk(data=b"two", stream=2)]
        with pytest.raises(Conflict, match="the log was cut"):
            await anext(chunks)


async def test_abandoned_stream_is_closed_on_the_server(scheduler, credentials) -> None:
    handler, address = scheduler
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        stream = client.watch_job("7")
        await anext(stream)
        await stream.aclose()
        await handler.watch_closed.wait()


async def test_closing_a_client_ends_its_calls_with_an_error_that_can_be_retried(scheduler, credentials) -> None:
    handler, address = scheduler
    client = ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER))
    call = asyncio.create_task(client.list_nodes())
    stream = client.watch_job("7")
    await anext(stream)
    following = asyncio.create_task(anext(stream))
    await handler.nodes_asked.wait()
    await client.close()
    for task in (call, following):
        with pytest.raises(Unavailable, match="the connection was closed; try again"):
            await task


async def test_cancelling_a_caller_cancels_its_call(scheduler, credentials) -> None:
    handler, address = scheduler
    async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
        call = asyncio.create_task(client.list_nodes())
        await handler.nodes_asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize("streams", [False, True], ids=["unary", "stream"])
async def test_a_caller_who_leaves_while_he_is_refused_makes_no_defect(
    credentials, monkeypatch, caplog: pytest.LogCaptureFixture, streams: bool
) -> None:
    waits, refused = asyncio.Event(), asyncio.Event()

    async def refuse() -> None:
        try:
            waits.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # His leaving is noticed here, while he is being refused.
            refused.set()
            raise NotFound("there is no such job") from None

    async def get_job(caller: Identity, job_id: str) -> JobStatus:
        await refuse()
        raise AssertionError

    async def watch_job(caller: Identity, job_id: str) -> AsyncIterator[JobStatus]:
        await refuse()
        yield JobStatus(job=JOB, state=JobState.QUEUED)

    handler = Recorder()
    monkeypatch.setattr(handler, "get_job", get_job)
    monkeypatch.setattr(handler, "watch_job", watch_job)
    server = await serve_scheduler(
        cluster=handler, sessions=Echo(), listen="127.0.0.1:0", credentials=credentials("s", Role.SCHEDULER)
    )
    bob = credentials("bob", Role.USER)
    async with ClusterClient.remote(address=f"127.0.0.1:{server.port}", credentials=bob) as client:
        call = anext(client.watch_job("7")) if streams else client.get_job("7")
        asked = asyncio.ensure_future(call)
        await waits.wait()
        asked.cancel()
        await asyncio.wait({asked})
    await refused.wait()
    await server.stop()
    assert not [record.getMessage() for record in caplog.records]


async def test_certificate_of_another_authority_is_not_accepted(scheduler, tmp_path) -> None:
    _, address = scheduler
    other = Authority.create(tmp_path / "other")
    wrong = write_credentials(tmp_path / "wrong", "bob", other.issue("bob", Role.USER))
    async with ClusterClient.remote(address=address, credentials=wrong) as client:
        with pytest.raises(NotPermitted, match="certificates were not accepted") as refused:
            await client.cluster_info()
    # Whoever was away while the authority was replaced meets the same error.
    assert "(farbus ca rotate), copy its ca.crt of now" in refused.value.hint


async def test_node_can_not_pose_as_the_scheduler(credentials, authority, tmp_path) -> None:
    posing = write_credentials(
        tmp_path / "posing", "eve", authority.issue("eve", Role.NODE, addresses=["127.0.0.1", "localhost"])
    )
    server = await serve_scheduler(cluster=Recorder(), sessions=Echo(), listen="127.0.0.1:0", credentials=posing)
    try:
        async with ClusterClient.remote(
            address=f"127.0.0.1:{server.port}", credentials=credentials("bob", Role.USER)
        ) as client:
            with pytest.raises((NotPermitted, Unavailable)):
                await client.cluster_info()
    finally:
        await server.stop()


async def test_scheduler_that_is_away_is_unavailable(credentials) -> None:
    with sockets.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with ClusterClient.remote(address=address, credentials=credentials("bob", Role.USER)) as client:
            with pytest.raises(Unavailable, match=f"scheduler at {address} can't be reached"):
                await client.cluster_info()


async def test_port_in_use_is_a_conflict(scheduler, credentials) -> None:
    _, address = scheduler
    with pytest.raises(Conflict, match=f"can't listen on {address}"):
        await serve_scheduler(
            cluster=Recorder(), sessions=Echo(), listen=address, credentials=credentials("t", Role.SCHEDULER)
        )


async def test_session_carries_messages_both_ways(scheduler, credentials) -> None:
    _, address = scheduler
    async with open_session(address=address, credentials=credentials("alpha", Role.NODE)) as stream:
        await stream.send(session_pb2.NodeMessage(outcome={"command_id": "c1"}))
        message = await anext(aiter(stream))
    assert message.refused.reason == "c1"


async def test_session_ends_with_the_schedulers_error(scheduler, credentials) -> None:
    _, address = scheduler
    async with open_session(address=address, credentials=credentials("alpha", Role.NODE)) as stream:
        await stream.send(session_pb2.NodeMessage(outcome={"command_id": "end"}))
        with pytest.raises(Conflict, match="node alpha is known already"):
            await anext(aiter(stream))


async def test_session_needs_a_node_certificate(scheduler, credentials) -> None:
    _, address = scheduler
    async with open_session(address=address, credentials=credentials("bob", Role.USER)) as stream:
        with pytest.raises(NotPermitted, match="may not call Session"):
            await anext(aiter(stream))


def name_by_uid(uid: int, _gid: int, _pid: int) -> Identity:
    return Identity(name=f"uid{uid}", role=Role.USER)


@pytest.fixture
async def agent_socket(tmp_path: Path) -> AsyncIterator[tuple[Recorder, str, Callable[[], Awaitable[None]]]]:
    handler, path = Recorder(), str(tmp_path / "agent.sock")
    server = await serve_local(cluster=handler, socket=path, identify=name_by_uid)
    yield handler, path, server.stop
    await server.stop()


async def test_local_caller_is_named_by_the_kernel(agent_socket) -> None:
    _, path, _ = agent_socket
    async with ClusterClient.local(socket=path) as client:
        assert (await client.cluster_info()).node == f"uid{os.getuid()}"


async def test_closing_the_stream_ends_the_hold(agent_socket) -> None:
    handler, path, _ = agent_socket
    async with ClusterClient.local(socket=path) as client:
        events = client.hold(name="run", requests=Requests(), routes=(Route.LOCAL,))
        event = await anext(events)
        assert event.environment == {"A": "run"}
        await events.aclose()
        await handler.hold_closed.wait()


async def test_closing_the_connection_ends_the_hold(agent_socket) -> None:
    handler, path, _ = agent_socket
    client = ClusterClient.local(socket=path)
    events = client.hold(name="run", requests=Requests(), routes=(Route.LOCAL,))
    await anext(events)
    await client.close()
    await handler.hold_closed.wait()


async def test_second_agent_on_one_socket_is_refused(agent_socket) -> None:
    _, path, _ = agent_socket
    with pytest.raises(Conflict, match="another agent serves this socket"):
        await serve_local(cluster=Recorder(), socket=path, identify=name_by_uid)


async def test_a_file_in_place_of_the_socket_is_kept(tmp_path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("mine")
    with pytest.raises(InvalidInput, match=r"agent\.toml: is there, and no socket"):
        await serve_local(cluster=Recorder(), socket=str(path), identify=name_by_uid)
    assert path.read_text() == "mine"


async def test_a_link_that_leads_nowhere_in_place_of_the_socket_is_named(tmp_path) -> None:
    (tmp_path / "agent.sock").symlink_to("nowhere")
    with pytest.raises(InvalidInput, match=r"agent\.sock: is a link that leads nowhere; remove it"):
        await serve_local(cluster=Recorder(), socket=str(tmp_path / "agent.sock"), identify=name_by_uid)


async def test_a_directory_in_place_of_the_socket_is_named(tmp_path) -> None:
    with pytest.raises(InvalidInput, match="is there, and no socket"):
        await serve_local(cluster=Recorder(), socket=str(tmp_path), identify=name_by_uid)


async def test_socket_of_a_killed_agent_is_replaced(tmp_path) -> None:
    path = tmp_path / "agent.sock"
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(path))
    server = await serve_local(cluster=Recorder(), socket=str(path), identify=name_by_uid)
    async with ClusterClient.local(socket=str(path)) as client:
        assert (await client.cluster_info()).term == 3
    await server.stop()


async def test_stopped_agent_leaves_nothing(agent_socket, tmp_path) -> None:
    _, path, stop = agent_socket
    async with ClusterClient.local(socket=path) as client:
        await client.cluster_info()
    await stop()
    assert list(tmp_path.iterdir()) == []


async def test_missing_agent_is_unavailable(tmp_path) -> None:
    async with ClusterClient.local(socket=str(tmp_path / "none.sock")) as client:
        with pytest.raises(Unavailable, match="can't be reached"):
            await client.cluster_info()
