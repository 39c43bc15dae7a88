"""Every call of the scheduler's services with messages that make no sense: one line that says why, and nothing left.

``NONSENSE_SEED`` and ``NONSENSE_CALLS`` in the environment try others and more by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from google.protobuf.message_factory import GetMessageClass

from farbus.api.client import open_tls_channel
from farbus.api.conversion import to_message
from farbus.api.identity import METHOD_ROLES, Role
from farbus.api.session import PROTOCOL_VERSION
from farbus.api.status import HINT_METADATA, is_broken
from farbus.api.v1 import cluster_pb2, enrollment_pb2, session_pb2, staging_pb2, types_pb2
from farbus.model.states import JOB_STATES, NodeState
from farbus.scheduler.decision_maker import decision_maker
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.nonsense import Nonsense
from tests.scheduler.scripted import job, node
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("NONSENSE_SEED", "5"))
CALLS = int(os.environ.get("NONSENSE_CALLS", "6"))
"""Calls of each method in each role."""
LASTS_S = 0.2
"""How long a call is listened to that would last: a watch, a drain."""
ANSWERED_S = 30.0
"""How long an answer may take."""

SERVICES = (cluster_pb2, staging_pb2, enrollment_pb2)
METHODS = [
    method
    for module in SERVICES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
WORDS = (
    "a", "b", "c", "GPU-a-0", "GPU-b-1", "j1", "j2", "j3", "j1-1-0", "main", "main.0", "main.1", "ada", "op", "job",
    "program", "local", "remote", "running", "exited", "pending", "gpu", "/", "2026-01-01T00:00:00Z",
)  # fmt: skip
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""Never INTERNAL or UNKNOWN: those would be defects."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def channel(site: Site, name: str, role: Role) -> grpc.aio.Channel:
    return open_tls_channel(site.address, site.credentials(name, role))


def check(method: str, code: grpc.StatusCode, details: str, hint: bytes | str = b"") -> None:
    said = f"{method}: {code.name}: {details!r}"
    assert code in ANSWERS, said
    assert details.isprintable(), said
    assert len(details.encode()) < 2_100, said
    told = hint.decode() if isinstance(hint, bytes) else hint
    assert told.isprintable(), f"{said}; {told!r}"


async def call(
    links: grpc.aio.Channel, method: Any, requests: Sequence[Any], *, may_last: bool = True
) -> grpc.StatusCode:
    """Call ``method`` and return what came of it; one that ``may_last`` is listened to for a moment."""
    may_last = may_last and bool(method.server_streaming)
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = ("stream" if method.client_streaming else "unary") + ("_stream" if method.server_streaming else "_unary")
    answer: Any = GetMessageClass(method.output_type)
    begin = getattr(links, kind)(
        path,
        request_serializer=lambda sent: sent if isinstance(sent, bytes) else sent.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    under_way = begin(iter(requests)) if method.client_streaming else begin(requests[0])
    try:
        async with asyncio.timeout(LASTS_S if may_last else ANSWERED_S):
            if method.server_streaming:
                async for _ in under_way:
                    pass
            code = await under_way.code()
            if is_broken(code, await under_way.details() or ""):
                # Refused while it was still sent, and the status has not come in time.
                return await call(links, method, requests, may_last=may_last)
            trailing = dict(await under_way.trailing_metadata() or ())
            check(path, code, str(await under_way.details() or ""), trailing.get(HINT_METADATA, b""))
            return code
    except TimeoutError:
        assert may_last, f"{path} does not come back"
        under_way.cancel()
        return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        trailing = dict(error.trailing_metadata() or ())
        check(path, error.code(), error.details() or "", trailing.get(HINT_METADATA, b""))
        return error.code()


def requests_for(method: Any, chance: random.Random) -> list[Any]:
    kind = GetMessageClass(method.input_type)
    nonsense = Nonsense(chance.randrange(2**62), WORDS, largest=chance.choice((0, 0, 0, 100_000)))
    made = []
    for _ in range(chance.randrange(5) if method.client_streaming else 1):
        message: Any = kind()
        if isinstance(message, cluster_pb2.SubmitRequest) and chance.random() < 0.8:
            message.job.CopyFrom(to_message(job("", gpus=chance.randrange(2)), types_pb2.Job))
            nonsense.spoil(message, times=chance.randrange(1, 4))
        else:
            nonsense.fill(message, likely=chance.choice((0.3, 0.9)))
        if message.ByteSize() < 15 * 2**20:
            made.append(message)
    return made or [kind()]


@contextlib.asynccontextmanager
async def no_defects(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    caplog.set_level(logging.ERROR)
    with structlog.testing.capture_logs() as lines:
        yield
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [line for line in lines if line["log_level"] in ("error", "critical")]


async def end_all(links: grpc.aio.Channel) -> None:
    """Cancel what waits or runs; see that it ends."""
    listing = links.unary_stream(
        "/farbus.v1.Cluster/StreamJobs",
        request_serializer=cluster_pb2.ListJobsRequest.SerializeToString,
        response_deserializer=cluster_pb2.ListJobsReply.FromString,
    )
    cancel = links.unary_unary(
        "/farbus.v1.Cluster/CancelJob",
        request_serializer=cluster_pb2.CancelJobRequest.SerializeToString,
        response_deserializer=types_pb2.JobStatus.FromString,
    )
    watch = links.unary_stream(
        "/farbus.v1.Cluster/WatchJob",
        request_serializer=cluster_pb2.JobRequest.SerializeToString,
        response_deserializer=types_pb2.JobStatus.FromString,
    )
    async for page in listing(cluster_pb2.ListJobsRequest(all=True)):
        for status in page.jobs:
            if JOB_STATES.is_final(status.state):
                continue
            await cancel(cluster_pb2.CancelJobRequest(job_id=status.job.id))
            async for _ in watch(cluster_pb2.JobRequest(job_id=status.job.id)):
                pass


async def test_no_call_makes_a_defect_or_leaves_anything(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(SEED)
    async with (
        no_defects(caplog),
        site.scheduler(decide=decision_maker("")),
        site.client("op", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("a", 2))),
        site.agent(LightAgent(node("b", 2))),
    ):
        callers = [("ada", Role.USER), ("op", Role.OPERATOR), ("c", Role.NODE)]
        links = [channel(site, *caller) for caller in callers]
        seen: set[grpc.StatusCode] = set()
        for method in METHODS:
            rounds = [call(each, method, requests_for(method, chance)) for each in links for _ in range(CALLS)]
            seen |= set(await asyncio.gather(*rounds))
        await end_all(links[1])
        for name in ("a", "b", "GPU-a-0", "GPU-b-1"):
            await operator.uncordon(name)
        for each in links:
            await each.close()
        assert grpc.StatusCode.INVALID_ARGUMENT in seen
        assert not await operator.list_leases()
        assert {status.state for status in await operator.list_nodes()} == {NodeState.READY}
        assert all(status.free == status.node.capacity for status in await operator.list_nodes())


async def test_bytes_that_are_no_message_are_refused(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    session = session_pb2.DESCRIPTOR.services_by_name["NodeSession"].methods[0]
    async with no_defects(caplog), site.scheduler():
        links = {each: channel(site, each, Role(each)) for each in ("user", "node")}
        for method in (*METHODS, session):
            allowed = METHOD_ROLES[f"/{method.containing_service.full_name}/{method.name}"]
            for role, each in links.items():
                code = await call(each, method, [b"\xff" * 64], may_last=False)
                wanted = "INVALID_ARGUMENT" if Role(role) in allowed else "PERMISSION_DENIED"
                assert code.name == wanted, (method.name, role)
        for each in links.values():
            await each.close()


def hello(name: str) -> session_pb2.NodeMessage:
    said = session_pb2.NodeHello(protocol=PROTOCOL_VERSION, node=to_message(node(name, 2), types_pb2.Node))
    return session_pb2.NodeMessage(hello=said)


async def test_no_session_makes_a_defect_or_ends_the_scheduler(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(SEED)
    method = session_pb2.DESCRIPTOR.services_by_name["NodeSession"].methods[0]
    async with (
        no_defects(caplog),
        site.scheduler(decide=decision_maker("")),
        site.client("op", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("b", 2))) as other,
    ):
        links = channel(site, "a", Role.NODE)
        job_id, _ = await operator.submit(job("", gpus=1, on="b"))
        for _ in range(CALLS * 10):
            nonsense = Nonsense(chance.randrange(2**62), WORDS, largest=chance.choice((0, 0, 0, 100_000)))
            said = [hello("a")]
            for _ in range(chance.randrange(5)):
                said.append(session_pb2.NodeMessage())
                nonsense.fill(said[-1], likely=chance.choice((0.3, 0.9)))
            if chance.random() < 0.4:
                nonsense.spoil(said[0], times=chance.randrange(1, 5))
            if chance.random() < 0.1:
                chance.shuffle(said)
            await call(links, method, [each for each in said if each.ByteSize() < 15 * 2**20])
        await links.close()
        await other.finish(job_id)
        assert [status.state async for status in operator.watch_job(job_id)][-1] == "succeeded"
        await operator.get_telemetry()
