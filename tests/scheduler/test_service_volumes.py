"""Volumes over real connections: who may ask, what is streamed, listed and audited, and storage of jobs."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from farbus.api.client import ClusterClient
from farbus.api.conversion import to_message
from farbus.api.identity import BELIEVE_USERS, Identity, Role
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, NotPermitted, Unsatisfiable
from farbus.model.device import Route
from farbus.model.job import Job, StorageRequest
from farbus.model.rules import Quota
from farbus.model.states import JobState, VolumeState
from farbus.model.volume import AdoptRequest, AttachRequest, StorageUse, VolumePart, VolumeRequest, VolumeStatus
from farbus.scheduler import events
from farbus.scheduler.decision_maker import decision_maker
from farbus.scheduler.engine import Engine
from farbus.scheduler.volume_service import VolumeService
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import GIB, Cluster, job, node, storing
from tests.scheduler.site import Site

pytestmark = pytest.mark.timeout(120)


class Shop:
    """Agents of nodes a and b, which store, and c, with clients of an operator and two users."""

    def __init__(
        self, site: Site, agents: dict[str, LightAgent], operator: ClusterClient, ada: ClusterClient, bob: ClusterClient
    ) -> None:
        self.site, self.agents, self.operator, self.ada, self.bob = site, agents, operator, ada, bob

    async def create(self, name: str = "data", size: int = 10 * GIB, **more: object) -> list[VolumeStatus]:
        request = VolumeRequest(name=name, size_bytes=size, **more)  # type: ignore[arg-type]
        return [status async for status in self.ada.create_volume(request)]

    async def attach(self, name: str = "data", on: str = "c", **more: object) -> list[VolumeStatus]:
        request = AttachRequest(volume=name, node=on, **more)  # type: ignore[arg-type]
        return [status async for status in self.operator.attach_volume(request)]


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    site = Site(tmp_path)
    async with site.scheduler(decide=decision_maker("")), opened(site) as found:
        yield found


@contextlib.asynccontextmanager
async def opened(site: Site) -> AsyncIterator[Shop]:
    agents = {each.name: LightAgent(each) for each in (storing("a", 1), storing("b", 1), node("c"))}
    async with contextlib.AsyncExitStack() as stack:
        for agent in agents.values():
            await stack.enter_async_context(site.agent(agent))
        operator = await stack.enter_async_context(site.client("ann", Role.OPERATOR))
        ada = await stack.enter_async_context(site.client())
        bob = await stack.enter_async_context(site.client("bob"))
        yield Shop(site, agents, operator, ada, bob)


async def gone(client: ClusterClient, name: str = "data") -> VolumeStatus:
    return [status async for status in client.delete_volume(name)][-1]


def stored(*requests: StorageRequest, on: str = "", count: int = 1) -> Job:
    plain = job("", on=on, count=count, user="")
    (group,) = plain.groups
    return msgspec.structs.replace(plain, groups=(msgspec.structs.replace(group, storage=requests),))


async def until(client: ClusterClient, job_id: str, state: JobState) -> None:
    async for status in client.watch_job(job_id):
        if status.state is state:
            return
    raise AssertionError(f"{job_id} was never {state}")


async def test_a_volume_is_streamed_until_it_is_there(shop: Shop) -> None:
    statuses = await shop.create(stripe=2, bandwidth_bytes_per_s=GIB)
    assert [statuses[0].state, statuses[-1].state] == [VolumeState.CREATING, VolumeState.AVAILABLE]
    last = statuses[-1]
    assert (last.name, last.user, last.nodes, last.bandwidth_bytes_per_s) == ("data", "ada", ("a", "b"), GIB)
    assert await shop.ada.list_volumes() == (last,)
    assert await shop.operator.list_volumes() == (last,)
    assert await shop.bob.list_volumes() == ()


async def test_why_a_volume_is_not_made_is_its_last_word(shop: Shop) -> None:
    shop.agents["b"].state.refuses[events.MakeVolume] = "its volume group is damaged"
    last = (await shop.create(stripe=2))[-1]
    assert (last.state, last.error) == (VolumeState.DELETED, "node b: its volume group is damaged")
    assert await shop.ada.list_volumes() == ()


async def test_what_can_not_be_is_refused(shop: Shop) -> None:
    with pytest.raises(Unsatisfiable, match="the most would be 200 GiB"):
        await shop.create(size=999 * GIB)
    with pytest.raises(Unsatisfiable, match="on 3 drives: the cluster has no 3 drives for that; it has 2"):
        await shop.create(stripe=3)
    with pytest.raises(Unsatisfiable, match=r"with 999 GiB/s: .* no drives so fast free now; the most would be .*/s"):
        await shop.create(bandwidth_bytes_per_s=999 * GIB)
    with pytest.raises(Unsatisfiable, match=r"node c offers no NVMe drives as storage; .*farbus storage init"):
        await shop.create(node="c")
    with pytest.raises(InvalidInput, match="no name for a volume"):
        await shop.create("A")
    with pytest.raises(NotFound, match="there is no volume data"):
        await gone(shop.ada)
    with pytest.raises(NotFound, match="there is no volume data that you may use"):
        await shop.attach()
    await shop.create()
    with pytest.raises(Conflict, match="there is a volume data already"):
        await shop.create()
    with pytest.raises(NotFound, match="there is no node z"):
        await shop.attach(on="z")
    with pytest.raises(InvalidInput, match=r"attachment\.path: is set, and use is raw"):
        await shop.attach(use=StorageUse.RAW, path="/srv")
    with pytest.raises(InvalidInput, match=r"attachment\.read_only: is set, and swap space is written"):
        await shop.attach(use=StorageUse.SWAP, read_only=True)
    with pytest.raises(Conflict, match="volume data is attached to no node"):
        async for _ in shop.operator.detach_volume("data"):
            pass


async def test_others_volumes_are_not_there(shop: Shop) -> None:
    await shop.create()
    with pytest.raises(NotFound, match="there is no volume data that you may use"):
        await gone(shop.bob)
    with pytest.raises(NotFound, match="that you may use"):
        async for _ in shop.bob.resize_volume("data", size_bytes=20 * GIB):
            pass
    with pytest.raises(NotFound, match=r"groups\[0\].storage\[0\].volume: there is no volume data"):
        await shop.bob.submit(stored(StorageRequest(name="in", volume="data")))
    with pytest.raises(NotPermitted):
        async for _ in shop.ada.attach_volume(AttachRequest(volume="data", node="c")):
            pass
    assert (await gone(shop.operator)).state is VolumeState.DELETED


async def test_a_volume_is_made_larger(shop: Shop) -> None:
    await shop.create()
    statuses = [status async for status in shop.ada.resize_volume("data", size_bytes=20 * GIB)]
    assert statuses[-1].size_bytes == 20 * GIB
    with pytest.raises(InvalidInput, match="is never made smaller"):
        async for _ in shop.ada.resize_volume("data", size_bytes=GIB):
            pass


async def test_volumes_keep_within_their_users_quota(tmp_path: Path) -> None:
    site, quotas = Site(tmp_path), {"ada": Quota(volume_bytes=15 * GIB)}
    async with site.scheduler(decide=decision_maker(""), quotas=quotas), opened(site) as shop:
        await shop.create()
        with pytest.raises(
            Unsatisfiable, match="ada has volumes of 10 GiB, and may have 15 GiB; this takes 6 GiB more"
        ):
            await shop.create("more", 6 * GIB)
        assert [status.size_bytes async for status in shop.ada.resize_volume("data", size_bytes=12 * GIB)][
            -1
        ] == 12 * GIB
        with pytest.raises(Unsatisfiable, match="ada has volumes of 12 GiB"):  # whoever asks
            await anext(aiter(shop.operator.resize_volume("data", size_bytes=16 * GIB)))
        (told,) = await shop.ada.list_quotas()
        assert (told.volume_bytes, told.volume_bytes_limit) == (12 * GIB, 15 * GIB)
        await gone(shop.ada)
        await shop.create("more", 15 * GIB)


async def test_a_quota_is_of_what_volumes_take_however_small_they_are_said_to_be(tmp_path: Path) -> None:
    site, quotas = Site(tmp_path), {"ada": Quota(volume_bytes=20 << 20)}
    async with site.scheduler(decide=decision_maker(""), quotas=quotas), opened(site) as shop:
        for name in ("one", "two"):
            await shop.create(name, 1 << 20, stripe=2)
        (told,) = await shop.ada.list_quotas()
        assert told.volume_bytes == 16 << 20
        with pytest.raises(Unsatisfiable, match="has volumes of 16 MiB, and may have 20 MiB; this takes 8 MiB more"):
            await shop.create("three", 1 << 20, stripe=2)
        await shop.create("three", 1 << 20)


async def test_a_quota_counts_what_a_failed_resize_has_left_and_lets_it_be_asked_again(tmp_path: Path) -> None:
    site, quotas = Site(tmp_path), {"ada": Quota(volume_bytes=40 * GIB)}
    async with site.scheduler(decide=decision_maker(""), quotas=quotas), opened(site) as shop:
        await shop.create(stripe=2)
        shop.agents["b"].state.refuses[events.ResizeVolume] = "its volume group is full"
        async for status in shop.ada.resize_volume("data", size_bytes=40 * GIB):
            last = status
        assert (last.size_bytes, [part.size_bytes for part in last.parts]) == (10 * GIB, [20 * GIB, 5 * GIB])
        with pytest.raises(Unsatisfiable, match="ada has volumes of 25 GiB, and may have 40 GiB"):
            await shop.create("more", 16 * GIB)
        shop.agents["b"].state.refuses.clear()
        async for status in shop.ada.resize_volume("data", size_bytes=40 * GIB):
            last = status
        assert (last.size_bytes, last.error) == (40 * GIB, "")
        (told,) = await shop.ada.list_quotas()
        assert told.volume_bytes == 40 * GIB


async def test_a_volume_is_attached_and_detached(shop: Shop) -> None:
    await shop.create()
    statuses = await shop.attach(path="/srv/data", read_only=True)
    assert statuses[0].says.startswith("node")
    last = statuses[-1]
    assert (last.state, last.attached_to, last.path, last.use) == (VolumeState.ATTACHED, "c", "/srv/data", "mount")
    assert await shop.operator.list_jobs() == ()
    (kept,) = await shop.operator.list_jobs(include_ended=True)
    assert (kept.job.id, kept.state, kept.job.attachment) == (last.job, JobState.RUNNING, True)
    with pytest.raises(Conflict, match="volume data is attached to node c; farbus volume detach data"):
        await gone(shop.ada)
    with pytest.raises(Conflict, match="volume data is attached to node c already, or is to be"):
        await shop.attach(on="a")
    with pytest.raises(InvalidInput, match="it has no program, and no output"):
        async for _ in shop.operator.read_logs(last.job):
            pass
    statuses = [status async for status in shop.operator.detach_volume("data")]
    assert (statuses[-1].state, statuses[-1].job) == (VolumeState.AVAILABLE, "")
    (ended,) = await shop.operator.list_jobs(include_ended=True)
    assert (ended.state, ended.reason) == (JobState.SUCCEEDED, "detached by ann")
    assert (await gone(shop.ada)).state is VolumeState.DELETED


async def test_an_attachment_that_waits_for_a_job_says_so(shop: Shop) -> None:
    await shop.create()
    first, _ = await shop.ada.submit(stored(StorageRequest(name="in", volume="data"), on="a"))
    await until(shop.ada, first, JobState.RUNNING)
    waits = f"is to be attached to node c: volume data is used by job {first} on node a"
    asked = cast(
        "AsyncGenerator[VolumeStatus, None]", shop.operator.attach_volume(AttachRequest(volume="data", node="c"))
    )
    async with contextlib.aclosing(asked):
        async for status in asked:
            if status.says == waits:
                break
    (listed,) = await shop.ada.list_volumes()
    assert (listed.job, listed.says) == (first, waits)
    await shop.agents["a"].finish(first)
    while listed.attached_to != "c":
        (listed,) = await shop.ada.list_volumes()


async def test_an_attachment_that_fails_says_why(shop: Shop) -> None:
    await shop.create()
    shop.agents["c"].holds_back = (events.PrepareClient,)
    async with contextlib.aclosing(shop.operator.attach_volume(AttachRequest(volume="data", node="c"))) as statuses:
        async for status in statuses:
            if status.job:
                break
    job_id = status.job
    await shop.operator.cancel_job(job_id)
    assert (await shop.operator.get_job(job_id)).state in (JobState.FINISHING, JobState.SUCCEEDED, JobState.CANCELLED)


async def test_volumes_and_attachments_outlive_the_scheduler(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.scheduler(decide=decision_maker("")), opened(site) as shop:
        await shop.create(stripe=2)
        before = (await shop.attach())[-1]
        kept = {name: agent.state for name, agent in shop.agents.items()}
    async with site.scheduler(decide=decision_maker("")), opened(site) as again:
        found = await again.operator.list_volumes()
        # New agents hold nothing: the attachment begins anew, and the parts are not there.
        assert [each.name for each in found] == ["data"]
        assert found[0].parts == before.parts
        assert kept["a"].parts


async def test_calls_about_volumes_are_audited(shop: Shop) -> None:
    await shop.create(node="b")
    await shop.attach()
    async for _ in shop.operator.detach_volume("data"):
        pass
    await gone(shop.ada)
    records = [record async for record in shop.operator.read_audit()]
    told = [
        (record.method, record.who, record.target)
        for record in records
        if record.method.endswith("Volume") and record.outcome == "ok"
    ]
    assert told == [
        ("CreateVolume", "ada", "data"),
        ("AttachVolume", "ann", "data"),
        ("DetachVolume", "ann", "data"),
        ("DeleteVolume", "ada", "data"),
    ]


async def test_parts_that_nobody_knows_are_adopted_by_operators(shop: Shop) -> None:
    agent = shop.agents["b"]
    part = VolumePart(volume="old", size_bytes=10 * GIB, drives=("NVME-b-0",))
    assert agent.state.do(events.MakeVolume(command_id="by hand", part=part)) is not None
    await agent.send(inventory_changed=session_pb2.InventoryChanged(node=to_message(agent.state.node, types_pb2.Node)))
    await agent.beat()
    await agent.until(events.HeartbeatReply, "")
    with pytest.raises(NotPermitted):
        async for _ in shop.ada.adopt_volume(AdoptRequest(volume="old")):
            pass
    statuses = [status async for status in shop.operator.adopt_volume(AdoptRequest(volume="old", user="ada"))]
    assert (statuses[-1].state, statuses[-1].user) == (VolumeState.AVAILABLE, "ada")
    assert await shop.ada.list_volumes() == (statuses[-1],)
    assert (await gone(shop.ada, "old")).state is VolumeState.DELETED
    assert agent.state.parts == {}


async def test_a_job_has_room_of_its_own(shop: Shop) -> None:
    scratch = StorageRequest(name="tmp", size_bytes=30 * GIB, bandwidth_bytes_per_s=GIB)
    job_id, _ = await shop.ada.submit(stored(scratch, on="c"))
    await until(shop.ada, job_id, JobState.RUNNING)
    (lease,) = await shop.ada.list_leases()
    grant = lease.lease.storage
    assert grant is not None
    assert (grant.name, grant.volume, grant.size_bytes, grant.bandwidth_bytes_per_s) == ("tmp", "", 30 * GIB, GIB)
    assert (lease.lease.client_node, lease.lease.route) == ("c", Route.REMOTE)
    # Others have the rest of the drive.
    second, _ = await shop.bob.submit(stored(scratch))
    await until(shop.bob, second, JobState.RUNNING)
    await shop.agents["c"].finish(job_id)
    await until(shop.ada, job_id, JobState.SUCCEEDED)
    assert await shop.ada.list_leases() == ()


async def test_a_job_uses_a_volume_which_nobody_takes_away(shop: Shop) -> None:
    await shop.create(stripe=2)
    wanted = stored(StorageRequest(name="in", volume="data", use=StorageUse.RAW))
    first, _ = await shop.ada.submit(wanted)
    await until(shop.ada, first, JobState.RUNNING)
    (volume,) = await shop.ada.list_volumes()
    assert (volume.state, volume.job, volume.use) == (VolumeState.ATTACHED, first, "raw")
    assert {lease.lease.storage.part for lease in await shop.ada.list_leases() if lease.lease.storage} == {0, 1}
    with pytest.raises(Conflict, match=f"volume data is named by job {first} of ada, which uses it"):
        await gone(shop.ada)
    second, _ = await shop.ada.submit(wanted)
    explained = await shop.ada.explain(second)
    while not explained.status.misses:
        explained = await shop.ada.explain(second)
    assert re.search(f"storage: volume data is used by job {first} on node [abc]", "; ".join(explained.lines))
    (placement,) = (await shop.ada.get_job(first)).placements
    assert {place.storage for place in placement.devices} == {"in"}
    await shop.agents[placement.node].finish(first)
    await until(shop.ada, second, JobState.RUNNING)
    with pytest.raises(Conflict, match=f"volume data is used by job {second} on node"):
        async for _ in shop.operator.detach_volume("data"):
            pass


@pytest.mark.parametrize(
    ("request_", "count", "told"),
    [
        (StorageRequest(name="s", volume="none"), 1, "there is no volume none that you may use"),
        (StorageRequest(name="s", volume="data"), 2, "can be used by one task at a time, and the group has 2"),
        (StorageRequest(name="s", volume="data", size_bytes=5), 1, "size_bytes: is set, and the volume has its own"),
        (StorageRequest(name="s", volume="data", devices=3), 1, "devices: is set, and volume data has its own"),
        (StorageRequest(name="s", volume="data", use=StorageUse.SWAP), 1, "swap is memory of a whole node"),
        (StorageRequest(name="s", size_bytes=5, read_only=True), 1, "read_only: is set, and nothing is on it yet"),
        (StorageRequest(name="s", size_bytes=2**50), 1, "no node has drives for that"),
    ],
)
async def test_storage_that_can_not_be_is_refused(shop: Shop, request_: StorageRequest, count: int, told: str) -> None:
    await shop.create()
    with pytest.raises(FarbusError, match=told):
        await shop.ada.submit(stored(request_, count=count))


async def test_a_volume_is_named_once_in_a_job(shop: Shop) -> None:
    await shop.create()
    twice = stored(StorageRequest(name="s", volume="data"), StorageRequest(name="t", volume="data"))
    with pytest.raises(InvalidInput, match=r"storage\.volume: two have the same name"):
        await shop.ada.submit(twice)


@pytest.mark.parametrize("method", ["AttachVolume", "DetachVolume"])
def test_who_operates_a_node_may_ask_for_it(method: str) -> None:
    operator = Identity(name="eve", role=Role.OPERATOR, node="c")
    believed = BELIEVE_USERS.believed(operator, f"/farbus.v1.Cluster/{method}")
    assert (believed.is_operator, believed.may_operate("c"), believed.may_operate("b")) == (False, True, False)


async def test_who_operates_a_node_attaches_his_own_volumes_there() -> None:
    cluster = Cluster(storing("b", 1), node("c"))
    cluster.join()
    cluster.create(user="eve")
    cluster.create("other")
    cluster.settle()
    engine = cast(Engine, types.SimpleNamespace(machine=cluster.machine))
    service = VolumeService(engine, policy="", in_turn=lambda job: job)
    eve = Identity(name="eve", role=Role.USER, node="c", operates=True)

    async def ask(volume: str, on: str) -> None:
        request = AttachRequest(volume=volume, node=on)
        async for _ in service.attach(eve, request, new_job_id=lambda: "j1"):
            pass

    with pytest.raises(NotPermitted, match="eve of node c does not operate node b"):
        await ask("data", "b")
    with pytest.raises(NotFound, match="there is no volume other that you may use"):
        await ask("other", "c")
    with pytest.raises(AttributeError, match="tell"):
        # It is allowed: what comes next is to tell the engine, which is none here.
        await ask("data", "c")


async def test_only_operators_attach_by_a_job_file(shop: Shop) -> None:
    with pytest.raises(InvalidInput, match="attachment: is no job that is submitted"):
        await shop.operator.submit(msgspec.structs.replace(stored(), attachment=True))
