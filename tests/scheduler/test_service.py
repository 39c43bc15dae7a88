"""The scheduler over real connections, with light agents."""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog.testing
from prometheus_client.parser import text_string_to_metric_families

from farbus.api.client import ClusterClient
from farbus.api.conversion import to_message
from farbus.api.identity import Identity, Role
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import Conflict, InvalidInput, NotFound, NotPermitted, Unavailable, Unsatisfiable
from farbus.linux.tcp_ports import HeldPort
from farbus.model.device import DeviceKind
from farbus.model.fabric import ChassisView, FabricDevice, FabricPort, StepHistory
from farbus.model.job import GPU_SHARE, Job, Miss
from farbus.model.metrics import series
from farbus.model.rules import Quota, QuotaStatus
from farbus.model.series import SeriesEncoder
from farbus.model.states import DeviceState, JobState, LeaseState, NodeState
from farbus.model.telemetry import Telemetry
from farbus.model.value import to_json
from farbus.scheduler import events
from farbus.scheduler.engine import Engine
from farbus.scheduler.ledger import Contents, Ledger
from farbus.scheduler.service import _advice
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import job, node
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def asked(**wanted: object) -> Job:
    return job("", **wanted)  # type: ignore[arg-type]


async def until_state(client: ClusterClient, job_id: str, state: JobState) -> None:
    async for status in client.watch_job(job_id):
        if status.state is state:
            return
    raise AssertionError(f"job {job_id} ended as {(await client.get_job(job_id)).state}")


async def test_a_job_is_placed_runs_and_leaves_nothing(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client() as client,
        site.agent(LightAgent(node("a", 1))) as a,
        site.agent(LightAgent(node("c"))) as c,
    ):
        job_id, _ = await client.submit(asked(gpus=1, on="c"))
        await c.until(events.StartTask, job_id)
        await until_state(client, job_id, JobState.RUNNING)
        (lease,) = await client.list_leases()
        assert (lease.state, lease.lease.secret) == (LeaseState.PREPARED, "")
        (device,) = await client.list_devices()
        assert (device.state, device.job) == (DeviceState.LEASED, job_id)
        await c.finish(job_id)
        states = [status.state async for status in client.watch_job(job_id)]
        assert states[-1] is JobState.SUCCEEDED
        assert await client.list_leases() == ()
        assert [lease.state for lease in await client.list_leases(include_released=True)] == [LeaseState.RELEASED]
        assert [status.job.id for status in await client.list_jobs(include_ended=True)] == [job_id]
        assert await client.list_jobs() == ()
        assert not a.state.device_side


async def test_a_waiting_job_is_explained(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("a", 1))) as a:
        first, _ = await client.submit(asked(gpus=1))
        await a.until(events.StartTask, first)
        second, _ = await client.submit(asked(gpus=1))
        async for status in client.watch_job(second):
            if status.misses:
                break
        lines = (await client.explain(second)).lines
        assert any("1 GPUs are not free" in line for line in lines)
        lines = (await client.explain(first)).lines
        assert any("first fit" in line for line in lines)


async def test_who_holds_what_a_job_waits_for_is_told_by_name_to_those_who_may_see_it(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client("ada") as ada,
        site.client("bob") as bob,
        site.client("root", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("a", 1))) as a,
    ):
        first, _ = await ada.submit(asked(gpus=1, user="", time_limit_s=600.0))
        await until_state(ada, first, JobState.RUNNING)
        second, _ = await bob.submit(asked(gpus=1, user=""))
        async for status in bob.watch_job(second):
            if status.misses:
                break
        told = await operator.explain(second)
        assert told.opening is not None
        (holder,) = told.opening.holders
        assert (holder.job, holder.user, holder.devices, holder.basis) == (first, "ada", ("GPU-a-0",), "time limit")
        assert holder.leases == (f"{first}-1-0",)
        assert [task.node for task in told.opening.placements] == ["a"]
        assert told.opening.expected_s is not None
        assert 0.0 < told.opening.expected_s <= 600.0
        assert any(f"job {first} of ada (GPU-a-0)" in line for line in told.lines)
        hidden = await bob.explain(second)
        assert hidden.opening is not None
        assert (hidden.opening.holders, hidden.opening.others) == ((), 1)
        assert not any(first in line or "ada" in line for line in hidden.lines)
        assert any("1 job of other users" in line for line in hidden.lines)
        await a.finish(first)


async def test_what_can_never_fit_is_refused(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("a", 1))):
        with pytest.raises(Unsatisfiable, match="2 GPUs"):
            await client.submit(asked(gpus=2))
        assert await client.list_jobs(include_ended=True) == ()


@pytest.mark.parametrize(
    ("resources", "advice"),
    [
        ((GPU_SHARE,), "farbus devices says what is offered"),
        ((GPU_SHARE, "gpus"), "ask for less, or add nodes"),
        (("gpus",), "ask for less, or add nodes"),
    ],
)
def test_what_never_fits_is_given_one_advice(resources: tuple[str, ...], advice: str) -> None:
    """Of a GPU that is offered otherwise, the miss itself says what to ask for."""
    misses = [Miss(phase="gpu", resource=resource, message="", permanent=True) for resource in resources]
    assert _advice(misses).startswith(advice)


async def test_what_users_have_is_listed_to_themselves_and_to_operators(site: Site) -> None:
    quotas = {"bob": Quota(devices=1, jobs=3), "eve": Quota(jobs=0)}
    async with (
        site.scheduler(quotas=quotas),
        site.client("ada") as ada,
        site.client("bob") as bob,
        site.client("root", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("a", 2))),
    ):
        job_id, _ = await ada.submit(asked(gpus=1, user=""))
        await until_state(ada, job_id, JobState.RUNNING)
        with pytest.raises(Unsatisfiable, match="takes 2 devices; bob may have 1 at a time"):
            await bob.submit(asked(gpus=2, user=""))
        await bob.submit(asked(gpus=1, user=""), check_only=True)
        with pytest.raises(Unsatisfiable, match="eve may run no jobs here"):
            await operator.submit(asked(user="eve"))
        assert await ada.list_quotas() == (QuotaStatus(user="ada", jobs=1, devices=1),)
        of_bob = QuotaStatus(user="bob", jobs_limit=3, devices_limit=1)
        assert await bob.list_quotas() == (of_bob,)
        assert await operator.list_quotas() == (
            QuotaStatus(user="ada", jobs=1, devices=1),
            of_bob,
            QuotaStatus(user="eve", jobs_limit=0),
        )


async def test_a_job_that_a_quota_holds_up_is_told_so_and_nothing_of_room(site: Site) -> None:
    async with (
        site.scheduler(quota=Quota(jobs=1)),
        site.client() as client,
        site.agent(LightAgent(node("a", 2))),
    ):
        first, _ = await client.submit(asked(gpus=1))
        await until_state(client, first, JobState.RUNNING)
        second, _ = await client.submit(asked(gpus=1))
        async for status in client.watch_job(second):
            if status.misses:
                break
        told = await client.explain(second)
        assert "quota: ada has 1 of 1 jobs; this job takes 1" in told.lines
        assert f"it waits for the end of other jobs of ada: {first}" in told.lines
        assert told.opening is None
        assert not any("room" in line for line in told.lines)


async def test_operators_alone_raise_priorities_and_time_limits_above_the_users(site: Site) -> None:
    async with (
        site.scheduler(user_priority=10, max_time_limit_s=60.0),
        site.client() as client,
        site.client("root", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("a"))),
    ):
        with pytest.raises(NotPermitted, match="priority: 11 is more than 10"):
            await client.submit(asked(priority=11))
        with pytest.raises(NotPermitted, match="time_limit: 61 s are more than 60 s"):
            await client.submit(asked(time_limit_s=61.0))
        job_id, _ = await client.submit(asked(priority=10))
        assert (await client.get_job(job_id)).job.time_limit_s == 60.0
        job_id, _ = await operator.submit(asked(priority=11, time_limit_s=61.0))
        assert (await operator.get_job(job_id)).job.priority == 11


async def test_what_a_remote_gpu_takes_of_the_network_is_the_clusters_word_where_the_job_has_none(site: Site) -> None:
    def with_word(mbit_s: int | None, *, gpus: int = 1) -> Job:
        made = asked(gpus=gpus)
        requests = msgspec.structs.replace(made.groups[0].requests, remote_network_mbit_s=mbit_s)
        return msgspec.structs.replace(made, groups=(msgspec.structs.replace(made.groups[0], requests=requests),))

    async with site.scheduler(remote_network_mbit_s=70), site.client() as client:
        told = []
        for own in (with_word(None), with_word(0), with_word(9), with_word(None, gpus=0)):
            job_id, _ = await client.submit(own)
            told.append((await client.get_job(job_id)).job.groups[0].requests.remote_network_mbit_s)
        assert told == [70, 0, 9, None]


async def test_before_the_first_node_a_job_is_queued(site: Site) -> None:
    async with site.scheduler(), site.client() as client:
        job_id, _ = await client.submit(asked(gpus=1))
        async with site.agent(LightAgent(node("a", 1))) as a:
            await a.until(events.StartTask, job_id)


async def test_a_check_says_where_the_job_would_go_and_queues_nothing(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("a", 1))):
        job_id, would_be = await client.submit(asked(gpus=1), check_only=True)
        assert job_id == ""
        assert would_be is not None
        assert would_be.placements[0].node == "a"
        assert await client.list_jobs() == ()


async def test_a_malformed_job_is_refused_with_the_field(site: Site) -> None:
    async with site.scheduler(), site.client() as client:
        with pytest.raises(InvalidInput, match=r"groups\[0\].requests.cpu_milli: -1 is less than 1"):
            await client.submit(asked(cpu_milli=-1))


async def test_a_user_sees_only_his_own(site: Site) -> None:
    async with (
        site.scheduler(),
        site.agent(LightAgent(node("a", 1))) as a,
        site.client("ada") as ada,
        site.client("bob") as bob,
        site.client("root", Role.OPERATOR) as operator,
    ):
        job_id, _ = await ada.submit(asked(user="", gpus=1))
        await a.until(events.StartTask, job_id)
        assert await bob.list_jobs() == ()
        assert await bob.list_leases() == ()
        assert [device.used_by for device in await bob.list_devices()] == ["another user"]
        for refused in (bob.get_job(job_id), bob.cancel_job(job_id), bob.explain(job_id)):
            with pytest.raises(NotFound):
                await refused
        with pytest.raises(NotPermitted):
            await bob.submit(asked(user="ada"))
        assert len(await operator.list_jobs()) == 1
        assert (await operator.cancel_job(job_id)).state in (JobState.FINISHING, JobState.CANCELLED)
        states = [status async for status in operator.watch_job(job_id)]
        assert states[-1].reason == "cancelled by root"


async def test_a_job_is_beside_one_that_its_user_has(site: Site) -> None:
    async with site.scheduler(), site.client("ada") as ada, site.client("bob") as bob:
        first, _ = await ada.submit(asked(user=""))
        second, _ = await ada.submit(msgspec.structs.replace(asked(user=""), beside=first))
        assert (await ada.get_job(second)).job.beside == first
        for client, user, other in ((ada, "ada", "j99"), (bob, "bob", first)):
            with pytest.raises(NotFound, match=f"beside: {user} has no job {other} that waits or runs"):
                await client.submit(msgspec.structs.replace(asked(user=""), beside=other))


async def test_only_the_agent_of_the_node_submits_interactive_jobs(site: Site) -> None:
    async with site.scheduler(), site.agent(LightAgent(node("c"))):
        wanted = asked(interactive=True, on="c")
        async with site.client() as client:
            with pytest.raises(NotPermitted):
                await client.submit(wanted)
        ada = Identity(name="ada", role=Role.USER)
        async with ClusterClient.remote(
            address=site.address, credentials=site.credentials("c"), on_behalf_of=ada
        ) as agent:
            job_id, _ = await agent.submit(wanted)
            await until_state(agent, job_id, JobState.RUNNING)
            await agent.cancel_job(job_id)
            assert [status.state async for status in agent.watch_job(job_id)][-1] is JobState.CANCELLED


async def test_output_comes_from_the_node_that_has_it(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("c"))) as c:
        job_id, _ = await client.submit(asked())
        c.logs[job_id, "main.0"] = [b"hello ", b"world"]
        await c.until(events.StartTask, job_id)
        chunks = [chunk.data async for chunk in client.read_logs(job_id, follow=True)]
        assert b"".join(chunks) == b"hello world"
        with pytest.raises(NotFound, match="no task other"):
            _ = [chunk async for chunk in client.read_logs(job_id, task="other")]


async def test_output_of_several_tasks_is_one_stream_of_each_node(site: Site) -> None:
    wanted = asked(count=3, cpu_milli=2000)
    async with (
        site.scheduler(),
        site.client() as client,
        site.agent(LightAgent(node("c"))) as c,
        site.agent(LightAgent(node("d"))) as d,
    ):
        job_id, _ = await client.submit(wanted)
        await until_state(client, job_id, JobState.RUNNING)
        nodes = {task.task: task.node for task in (await client.get_job(job_id)).tasks}
        for task, name in nodes.items():
            {"c": c, "d": d}[name].logs[job_id, task] = [f"of {task}".encode()]
        chunks = [
            (chunk.task, chunk.data)
            async for chunk in client.read_several_logs(job_id, dict.fromkeys(nodes, 0), follow=True)
        ]
        assert sorted(chunks) == [(task, f"of {task}".encode()) for task in nodes]
        assert set(nodes.values()) == {"c", "d"}
        assert (len(c.log_requests), len(d.log_requests)) == (1, 1)
        with pytest.raises(NotFound, match="no task other"):
            _ = [chunk async for chunk in client.read_several_logs(job_id, {"main.0": 0, "other": 0})]


async def test_output_of_a_task_that_comes_late_is_waited_for_until_it_begins(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("c"))) as c:

        async def followed(task: str) -> list[bytes]:
            return [chunk.data async for chunk in client.read_logs(job_id, task=task, follow=True)]

        job_id, _ = await client.submit(asked(count=2, min_count=1, cpu_milli=3000))
        await until_state(client, job_id, JobState.RUNNING)
        d = LightAgent(node("d"))
        d.holds_back = (events.StartTask,)
        async with site.agent(d):
            await d.until(events.StartTask, job_id)
            c.logs[job_id, "main.0"], d.logs[job_id, "main.1"] = [b"all along"], [b"at last"]
            late = asyncio.create_task(followed("main.1"))
            # Who asked its node now would be told that there is none.
            assert await followed("main.0") == [b"all along"]
            assert d.log_requests == []
            (start,) = (command for command in d.commands if isinstance(command, events.StartTask))
            outcome = d.state.do(start)
            assert outcome is not None
            await d.answer(outcome)
            assert await late == [b"at last"]


async def test_output_of_a_node_that_is_away_is_unavailable(site: Site) -> None:
    async with site.scheduler(), site.client() as client:
        async with site.agent(LightAgent(node("c"))) as c:
            job_id, _ = await client.submit(asked())
            await until_state(client, job_id, JobState.RUNNING)
            await c.finish(job_id)
            _ = [status async for status in client.watch_job(job_id)]
        while (await client.list_nodes())[0].state is not NodeState.LOST:
            pass
        with pytest.raises(Unavailable, match="node c"):
            _ = [chunk async for chunk in client.read_logs(job_id)]


async def test_a_hello_under_another_name_is_refused(site: Site) -> None:
    async with site.scheduler():
        liar = LightAgent(node("b"))
        async with liar.connected(site.address, site.credentials("a")):
            assert "the certificate is of node a" in liar.welcome.result().refused.reason


async def test_a_second_agent_of_the_same_name_is_refused(site: Site) -> None:
    async with site.scheduler(), site.agent(LightAgent(node("a"))):
        twin = LightAgent(msgspec.structs.replace(node("a"), boot_id="boot-2"))
        async with twin.connected(site.address, site.credentials("a")):
            assert "another agent is connected as node a" in twin.welcome.result().refused.reason


async def test_nodes_that_differ_in_encryption_are_named_when_they_join(site: Site) -> None:
    """Those that do not tell it, being older, are no others."""

    def encrypting(name: str, remoting_tls: str) -> LightAgent:
        return LightAgent(msgspec.structs.replace(node(name), remoting_tls=remoting_tls))

    with structlog.testing.capture_logs() as lines:
        async with (
            site.scheduler(),
            site.agent(encrypting("a", "on")),
            site.agent(encrypting("b", "on")),
            site.agent(encrypting("c", "")),
        ):
            assert not [line for line in lines if line["event"].startswith("nodes differ")]
            async with site.agent(encrypting("d", "off")):
                pass
    (line,) = [line for line in lines if line["event"] == "nodes differ in remoting_tls"]
    assert (line["node"], line["remoting_tls"], line["others"]) == ("d", "off", "a, b")


async def test_of_many_nodes_that_differ_in_encryption_the_first_are_named(site: Site) -> None:
    names = "abcdefghij"
    with structlog.testing.capture_logs() as lines:
        async with site.scheduler(), contextlib.AsyncExitStack() as stack:
            for name in names:
                agent = LightAgent(msgspec.structs.replace(node(name), remoting_tls="on"))
                await stack.enter_async_context(site.agent(agent))
            other = LightAgent(msgspec.structs.replace(node("z"), remoting_tls="off"))
            await stack.enter_async_context(site.agent(other))
    (line,) = [line for line in lines if line["event"] == "nodes differ in remoting_tls"]
    assert line["others"] == "a, b, c, d, e, f, g, h and 2 more"


async def test_a_node_that_reports_nonsense_is_refused(site: Site) -> None:
    async with site.scheduler():
        agent = LightAgent(node("a", cpu_milli=-5))
        async with agent.connected(site.address, site.credentials("a")):
            assert "capacity.cpu_milli -5" in agent.welcome.result().refused.reason


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"boot_id": "x" * (4 * 2**20)}, "node a says more than 4 MiB of itself and its devices"),
        ({"devices": [types_pb2.Device()] * 4097}, "node a reports more than 4096 devices"),
        ({"links": [types_pb2.Link()] * 131_073}, "the hello of node a: .* more than 131072 elements"),
    ],
    ids=["bytes", "devices", "elements"],
)
async def test_a_node_that_says_too_much_is_refused_before_it_is_read(site: Site, said: dict, told: str) -> None:
    agent = LightAgent(node("a"))
    greeting = agent.hello()
    greeting.hello.node.MergeFrom(types_pb2.Node(**said))
    agent.hello = lambda: greeting  # type: ignore[method-assign]
    async with site.scheduler(), agent.connected(site.address, site.credentials("a")):
        assert re.search(told, agent.welcome.result().refused.reason)


async def test_what_a_node_says_of_a_tasks_end_is_not_longer_than_a_person_reads(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("a"))) as a:
        job_id, _ = await client.submit(asked())
        await a.until(events.StartTask, job_id)
        status = types_pb2.TaskStatus(task="main.0", state="exited", exit_code=1, reason="x" * 100_000)
        await a.send(task_changed=session_pb2.TaskChanged(job_id=job_id, status=status))
        (ended,) = [s async for s in client.watch_job(job_id) if s.state is JobState.FAILED]
        assert len(ended.tasks[0].reason) == 4096


async def test_heartbeats_are_answered_and_nodes_listed(site: Site) -> None:
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(node("a", 1))) as a:
        job_id, _ = await client.submit(asked(gpus=1))
        await a.until(events.StartTask, job_id)
        await a.beat()
        await a.until(events.HeartbeatReply, "")
        reply = next(command for command in a.commands if isinstance(command, events.HeartbeatReply))
        assert reply.renewed == (f"{job_id}-1-0",)
        (status,) = await client.list_nodes()
        assert (status.state, status.free.cpu_milli) == (NodeState.READY, 3000)
        info = await client.cluster_info()
        assert (info.nodes, info.term, info.lease_ttl_s) == (1, 1, 15.0)


async def test_a_restarted_scheduler_takes_over_what_runs(site: Site) -> None:
    agent = LightAgent(node("a", 1))
    async with site.scheduler(), site.client() as client, site.agent(agent):
        running, _ = await client.submit(asked(gpus=1))
        await agent.until(events.StartTask, running)
        await until_state(client, running, JobState.RUNNING)
        waiting, _ = await client.submit(asked(gpus=1))
    async with site.scheduler(), site.client() as client, site.agent(agent):
        assert (await client.cluster_info()).term == 2
        assert (await client.get_job(running)).state is JobState.RUNNING
        assert (await client.get_job(waiting)).state is JobState.QUEUED
        await agent.finish(running)
        await until_state(client, waiting, JobState.RUNNING)
        (device,) = await client.list_devices()
        assert device.epoch == 2


async def test_a_second_scheduler_on_the_ledger_is_refused(site: Site) -> None:
    async with site.scheduler():
        port = site.port
        with pytest.raises(Exception, match="in use by process"):
            async with site.scheduler():
                pass
        site.port = port
        async with site.client() as client:
            assert (await client.cluster_info()).term == 1


async def test_a_port_in_use_is_one_line(site: Site, tmp_path: Path) -> None:
    async with site.scheduler():
        taken = site.address
        with pytest.raises(Exception, match="the address is in use"):
            async with site.scheduler(listen=taken, state=str(tmp_path / "other")):
                pass


async def test_metrics_are_served(site: Site, held_port: HeldPort) -> None:
    address = f"127.0.0.1:{held_port.number}"
    async with site.scheduler(metrics=address), site.agent(LightAgent(node("a", 1))):
        text = (await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{address}/metrics").read())).decode()
    read = {family.name: family for family in text_string_to_metric_families(text)}
    assert [(sample.labels, sample.value) for sample in read["farbus_scheduler_nodes"].samples] == [
        ({"state": "ready"}, 1.0),
        ({"state": "cordoned"}, 0.0),
        ({"state": "lost"}, 0.0),
    ]
    assert [sample.labels for sample in read["farbus_scheduler_devices"].samples] == [{"kind": "gpu", "state": "free"}]
    assert read["farbus_scheduler_node_up"].samples[0].labels == {"node": "a"}
    assert read["farbus_scheduler_queue_jobs"].samples[0].value == 0.0


FIGURES = {
    series("node_cpu_busy_ratio"): 0.5,
    series("node_memory_total_bytes"): 2.0**32,
    series("node_memory_available_bytes"): 2.0**31,
    series("gpu_busy_ratio", "GPU-a-0"): 0.75,
    series("gpu_memory_used_bytes", "GPU-a-0"): 2.0**20,
}


async def test_telemetry_shows_a_user_his_own_and_an_operator_all(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client() as ada,
        site.client("eve") as eve,
        site.client("root", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("a", 1))) as a,
        site.agent(LightAgent(node("c"))) as c,
    ):
        job_id, _ = await ada.submit(asked(gpus=1, on="c"))
        await c.until(events.StartTask, job_id)
        (lease,) = await ada.list_leases()
        session = series("session_calls_per_second", lease.lease.id, 500, 77, "train")
        update = SeriesEncoder().update({**FIGURES, session: 20.0})
        await a.send(
            heartbeat=session_pb2.Heartbeat(telemetry=to_message(Telemetry(update=update), session_pb2.Telemetry))
        )
        await a.until(events.HeartbeatReply, "")
        for client in (ada, operator):
            node_a, node_c = (await client.get_telemetry()).nodes
            assert (node_a.cpu_busy_fraction, node_a.memory_used_bytes) == (0.5, 2**31)
            (used,) = node_a.gpus
            assert (used.busy_fraction, used.memory_used_bytes, used.power_watts) == (0.75, 2**20, None)
            assert (used.job, used.user, used.client_node) == (job_id, "ada", "c")
            (program,) = node_a.sessions
            assert (program.client_pid, program.program, program.calls_per_s) == (77, "train", 20.0)
            assert (node_c.node, node_c.cpu_busy_fraction) == ("c", None)
        (node_a,) = (await eve.get_telemetry(nodes=["a", "unknown"])).nodes
        (used,) = node_a.gpus
        assert (used.busy_fraction, used.job, used.lease, used.user) == (0.75, "", "", "another user")
        assert node_a.sessions == ()


async def test_of_a_lost_node_its_devices_are_shown_without_figures(site: Site) -> None:
    async with site.scheduler(), site.client() as client:
        async with site.agent(LightAgent(node("a", 1))) as a:
            update = SeriesEncoder().update(FIGURES)
            await a.send(
                heartbeat=session_pb2.Heartbeat(telemetry=to_message(Telemetry(update=update), session_pb2.Telemetry))
            )
            await a.until(events.HeartbeatReply, "")
        while (await client.list_nodes())[0].state is NodeState.READY:
            pass
        (lost,) = (await client.get_telemetry()).nodes
        assert (lost.state, lost.cpu_busy_fraction, lost.memory_bytes) == (NodeState.LOST, None, 4 * 2**30)
        assert [(gpu.device, gpu.busy_fraction, gpu.state) for gpu in lost.gpus] == [("GPU-a-0", None, "lost")]


async def test_operators_cordon_drain_and_forget(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client("ann", Role.OPERATOR) as operator,
        site.client("ada") as ada,
        site.agent(LightAgent(node("c"))) as c,
    ):
        async with site.agent(LightAgent(node("a", 1))) as a:
            job_id, _ = await ada.submit(asked(gpus=1, on="c"))
            await until_state(ada, job_id, JobState.RUNNING)
            seen = []
            async for status in operator.drain("a", reason="new driver"):
                seen.append([one.job.id for one in status.jobs])
                if len(seen) == 1:
                    await c.finish(job_id)
            assert (seen[0], seen[-1]) == ([job_id], [])
            states = {status.node.name: status.state for status in await ada.list_nodes()}
            assert states == {"a": NodeState.CORDONED, "c": NodeState.READY}
            assert not (await operator.cordon("a")).changed
            assert (await operator.uncordon("a")).changed
            assert (await operator.cordon("GPU-a-0")).kind == "device"
            with pytest.raises(NotFound, match=r"there is no node or device GPU-a; did you mean GPU-a-0\?"):
                await operator.cordon("GPU-a")
            with pytest.raises(Conflict, match="node a is connected"):
                await operator.forget("a")
            assert not a.state.device_side
        while (await ada.list_nodes())[0].state is not NodeState.LOST:
            pass
        assert (await operator.forget("a")).devices == ("GPU-a-0",)
        assert [status.node.name for status in await ada.list_nodes()] == ["c"]
        for question in (operator.forget("a"), operator.cordon("GPU-a-0")):
            with pytest.raises(NotFound, match="farbus nodes"):
                await question


async def test_a_waiting_job_is_told_what_is_cordoned(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client("ann", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("a", 1))),
    ):
        await operator.cordon("a", reason="new driver")
        job_id, _ = await operator.submit(asked(gpus=1))
        lines = (await operator.explain(job_id)).lines
        # Once a round has looked, what the cluster could serve speaks of it, too.
        (line,) = [line for line in lines if "is cordoned:" in line]
        assert line.startswith("node a is cordoned: ann, ")
        assert line.endswith(": new driver")


async def test_a_waiting_job_is_told_which_node_is_in_trouble(site: Site) -> None:
    troubled = msgspec.structs.replace(node("a", 1), trouble="journal: disk I/O error")
    async with site.scheduler(), site.client() as client, site.agent(LightAgent(troubled)):
        job_id, _ = await client.submit(asked(gpus=1))
        lines = (await client.explain(job_id)).lines
        assert "node a takes nothing new: journal: disk I/O error" in lines


async def test_a_waiting_job_is_told_of_a_lost_node_until_that_is_forgotten(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client("ann", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("c"))),
    ):
        async with site.agent(LightAgent(node("a", 1))):
            job_id, _ = await operator.submit(asked(gpus=1, on="c"))
            await until_state(operator, job_id, JobState.RUNNING)
            waiting, _ = await operator.submit(asked(gpus=1, on="c"))
        told = "node a is lost: until it is back nothing of it is free"
        while told not in (await operator.explain(waiting)).lines:
            pass
        await operator.forget("a")
        assert told not in (await operator.explain(waiting)).lines


async def test_a_drain_of_a_lost_node_says_that_it_is_lost(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client("ann", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("c"))),
    ):
        async with site.agent(LightAgent(node("a", 1))):
            job_id, _ = await operator.submit(asked(gpus=1, on="c"))
            await until_state(operator, job_id, JobState.RUNNING)
            assert not (await anext(operator.drain("a"))).lost
        while (await operator.list_nodes())[0].state is not NodeState.LOST:
            pass
        status = await anext(operator.drain("a"))
        assert (status.lost, [one.job.id for one in status.jobs]) == (True, [job_id])


async def test_a_drain_may_end_what_runs(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client("ann", Role.OPERATOR) as operator,
        site.agent(LightAgent(node("a", 1))),
    ):
        job_id, _ = await operator.submit(asked(gpus=1))
        await until_state(operator, job_id, JobState.RUNNING)
        assert [status async for status in operator.drain("a", evict=True)][-1].jobs == ()
        ended = await operator.get_job(job_id)
        assert (ended.state, ended.reason) == (JobState.CANCELLED, "evicted from node a by ann")


async def test_users_do_not_operate(site: Site) -> None:
    async with site.scheduler(), site.client() as ada:
        for refused in (ada.cordon("a"), ada.uncordon("a"), ada.forget("a"), anext(ada.drain("a"))):
            with pytest.raises(NotPermitted):
                await refused


async def test_a_drain_tells_who_uses_the_node_and_not_what_their_programs_are_given(site: Site) -> None:
    async with (
        site.scheduler(),
        site.client("ada") as ada,
        site.agent(LightAgent(node("a", 1))),
        site.agent(LightAgent(node("c"))),
        by_word_of(site, "a") as root,
    ):
        wanted = asked(gpus=1, on="c")
        group = msgspec.structs.replace(wanted.groups[0], command=("train", "--key=secret"))
        job_id, _ = await ada.submit(msgspec.structs.replace(wanted, groups=(group,), environment={"TOKEN": "secret"}))
        await until_state(ada, job_id, JobState.RUNNING)
        (told,) = (await anext(root.drain("a"))).jobs
        assert (told.job.id, told.job.user, told.job.environment) == (job_id, "ada", {})
        assert told.job.groups[0].command == ("train",)
        assert (await ada.get_job(job_id)).job.environment == {"TOKEN": "secret"}


def by_word_of(site: Site, name: str) -> ClusterClient:
    """Return root of a node, whom the node calls an operator."""
    root = Identity(name="root", role=Role.OPERATOR)
    return ClusterClient.remote(address=site.address, credentials=site.credentials(name), on_behalf_of=root)


async def test_operator_by_a_nodes_word_operates_that_node_and_no_other(site: Site) -> None:
    async with (
        site.scheduler(),
        site.agent(LightAgent(node("a", 1))),
        site.agent(LightAgent(node("b", 1))),
        by_word_of(site, "a") as root,
    ):
        assert (await root.cordon("GPU-a-0")).changed
        assert (await root.uncordon("GPU-a-0")).changed
        assert [status async for status in root.drain("a")][-1].jobs == ()
        assert (await root.uncordon("a")).changed
        for refused in (root.cordon("b"), root.uncordon("b"), root.cordon("GPU-b-0"), anext(root.drain("b"))):
            with pytest.raises(NotPermitted, match="root of node a operates that node only; use an operator's cert"):
                await refused
        assert not any(status.state is NodeState.CORDONED for status in await root.list_nodes())


async def test_operator_by_a_nodes_word_is_a_user_to_the_cluster(site: Site) -> None:
    async with (
        site.scheduler(),
        site.agent(LightAgent(node("a", 1))),
        site.client("ada") as ada,
        by_word_of(site, "a") as root,
    ):
        job_id, _ = await ada.submit(asked(user="", gpus=1))
        assert await root.list_jobs() == ()
        with pytest.raises(NotFound, match="operators of the cluster see everybody's"):
            await root.cancel_job(job_id)
        with pytest.raises(NotPermitted, match="root may not submit a job as ada"):
            await root.submit(asked(user="ada"))
        for refused in (root.forget("a"), anext(root.read_audit())):
            with pytest.raises(NotPermitted, match="operates that node only, and may not call"):
                await refused


async def test_operator_by_a_nodes_word_does_not_lift_the_clusters_cordon(site: Site) -> None:
    async with (
        site.scheduler(),
        site.agent(LightAgent(node("a", 1))),
        site.client("ann", Role.OPERATOR) as operator,
        by_word_of(site, "a") as root,
    ):
        await operator.cordon("a")
        with pytest.raises(NotPermitted, match="a: cordoned by ann, who operates the cluster; ask ann"):
            await root.uncordon("a")
        assert (await operator.uncordon("a")).changed
        await root.cordon("a")
        assert (await operator.uncordon("a")).changed


async def test_operators_of_the_nodes_that_are_named_operate_the_cluster(site: Site) -> None:
    async with (
        site.scheduler(operator_nodes=("login*",)),
        site.agent(LightAgent(node("a", 1))),
        site.client("ada") as ada,
        by_word_of(site, "login1") as root,
    ):
        job_id, _ = await ada.submit(asked(user="", gpus=1))
        assert [status.job.id for status in await root.list_jobs()] == [job_id]
        assert (await root.cordon("a")).changed
        await root.cancel_job(job_id)


async def test_node_that_may_not_speak_for_users_does_not(site: Site) -> None:
    ada = Identity(name="ada", role=Role.USER)
    async with (
        site.scheduler(user_nodes=("login*",)),
        site.agent(LightAgent(node("a", 1))),
        by_word_of(site, "a") as root,
    ):
        for name, refused in (("a", True), ("login1", False)):
            async with ClusterClient.remote(
                address=site.address, credentials=site.credentials(name), on_behalf_of=ada
            ) as client:
                if refused:
                    with pytest.raises(NotPermitted, match="node a may not speak for its users; use a node of the sch"):
                        await client.list_jobs()
                else:
                    assert await client.list_jobs() == ()
        # Its operator may still take it out of service.
        assert (await root.cordon("a")).changed


async def test_a_cordon_is_there_after_a_restart(site: Site) -> None:
    for again in (False, True):
        async with (
            site.scheduler(),
            site.client("ann", Role.OPERATOR) as operator,
            site.agent(LightAgent(node("a", 1))),
        ):
            assert (await operator.cordon("a", reason="x")).changed is not again


# What a node can say of things that are another's.  Every kind of message of
# session.proto is here; hello and inventory are refused under another name.
def lies(job_id: str, lease_id: str) -> dict[str, object]:
    exited = types_pb2.TaskStatus(task="main.0", state="exited", node="c", exit_code=1)
    other = types_pb2.Node(name="a", address="127.0.0.1", boot_id="b", capacity=types_pb2.Resources(cpu_milli=1))
    device = FabricDevice(id="GPU-a-0", handle="1", kind=DeviceKind.GPU, port="p")
    chassis = ChassisView(chassis="box", ports=(FabricPort(id="p", node="liar"),), devices=(device,))
    return {
        "heartbeat": session_pb2.Heartbeat(lease_ids=[lease_id]),
        "outcome": session_pb2.Outcome(command_id=f"{lease_id}.unprepare-devices", ok=True),
        "task_changed": session_pb2.TaskChanged(job_id=job_id, status=exited),
        "lease_ended": session_pb2.LeaseEnded(lease_id=lease_id, device_side=True, reason="a lie"),
        "log_data": session_pb2.LogData(request_id="1", end=True, error="a lie"),
        "lease_overused": session_pb2.LeaseOverused(lease_id=lease_id, bytes_per_s=10**9, granted_bytes_per_s=1),
        "lease_paths": session_pb2.LeasePaths(lease_id=lease_id, trouble="a lie"),
        # It has no name in it: the scheduler waits longer for the liar alone.
        "leaving": session_pb2.Leaving(),
        "move_progress": session_pb2.MoveProgress(move_id="m1", device="GPU-a-0", steps=1, says="a lie"),
        "chassis_changed": session_pb2.ChassisChanged(term=1, view=to_json(chassis), history=to_json(StepHistory())),
        "inventory_changed": session_pb2.InventoryChanged(node=other),
        "hello": session_pb2.NodeHello(protocol=1, node=other),
    }


def test_every_message_of_a_node_is_lied_about() -> None:
    assert set(lies("j", "l")) == set(session_pb2.NodeMessage.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("kind", sorted(lies("j", "l")))
async def test_a_node_has_no_say_in_what_is_anothers(site: Site, kind: str) -> None:
    async with (
        site.scheduler(),
        site.client() as client,
        site.agent(LightAgent(node("a", 1))) as a,
        site.agent(LightAgent(node("c"))) as c,
        site.agent(LightAgent(node("liar"))) as liar,
    ):
        job_id, _ = await client.submit(asked(gpus=1, on="c"))
        await until_state(client, job_id, JobState.RUNNING)
        (lease,) = await client.list_leases()
        before = await client.get_job(job_id)
        await liar.send(**{kind: lies(job_id, lease.lease.id)[kind]})
        # Heard: it was answered, or its session was ended for it.
        if kind not in ("inventory_changed", "hello"):
            await liar.beat()
            await liar.until(events.HeartbeatReply, "")
        await c.finish(job_id, code=0)
        statuses = [status async for status in client.watch_job(job_id)]
        assert statuses[-1].state is JobState.SUCCEEDED
        assert before.state is JobState.RUNNING
        if kind == "heartbeat":
            replies = [command for command in liar.commands if isinstance(command, events.HeartbeatReply)]
            assert replies[0].void == (lease.lease.id,)
        assert not a.state.device_side


@pytest.mark.parametrize("kind", ["inventory_changed", "hello"])
async def test_a_node_that_speaks_as_another_loses_its_session(site: Site, kind: str) -> None:
    async with (
        site.scheduler(),
        site.client() as client,
        site.agent(LightAgent(node("a", 1))),
        site.agent(LightAgent(node("liar"))) as liar,
    ):
        devices = await client.list_devices()
        await liar.send(**{kind: lies("j1", "j1-1-0")[kind]})
        while {status.node.name: status.state for status in await client.list_nodes()}["liar"] is not NodeState.LOST:
            pass
        assert await client.list_devices() == devices


async def test_a_job_that_ends_while_jobs_are_listed_is_listed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Engine] = []
    restore, ended_jobs = Engine.restore, Ledger.ended_jobs

    def restore_noted(self: Engine, contents: Contents) -> None:
        engines.append(self)
        restore(self, contents)

    def ended_jobs_before_an_end(self: Ledger, *, user: str | None) -> Any:
        found = ended_jobs(self, user=user)
        found.result()
        engines[0].tell(events.JobCancelled(job_id="j1", reason="by its owner"))
        return found

    monkeypatch.setattr(Engine, "restore", restore_noted)
    monkeypatch.setattr(Ledger, "ended_jobs", ended_jobs_before_an_end)
    async with site.scheduler(), site.client() as client:
        await client.submit(asked())
        assert [status.job.id for status in await client.list_jobs(include_ended=True)] == ["j1"]
