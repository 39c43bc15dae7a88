"""Jobs with storage: what they are granted of drives and volumes, beside each other and across restarts."""

from __future__ import annotations

import msgspec
import pytest

from farbus.model.decision import JobPlacement, PendingJob, StorageShare
from farbus.model.device import Route
from farbus.model.job import (
    Alternative,
    DevicePlacement,
    Goal,
    GroupVariant,
    Job,
    Requests,
    StorageRequest,
    TaskPlacement,
)
from farbus.model.operation import Cordon, CordonKind
from farbus.model.rules import Quota, Rules
from farbus.model.volume import StorageUse
from farbus.scheduler import events
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.decision_maker import decision_maker
from farbus.scheduler.openings import find_opening, holding_of, without
from farbus.scheduler.round import decide
from tests.scheduler.scripted import GIB, Cluster, job, node, storing

TEMPORARY = StorageRequest(name="tmp", size_bytes=60 * GIB, routes=(Route.LOCAL, Route.REMOTE))


def stored(job_id: str, *requests: StorageRequest, on: str = "", count: int = 1, **more: object) -> Job:
    plain = job(job_id, on=on, count=count, cpu_milli=100, **more)  # type: ignore[arg-type]
    (group,) = plain.groups
    return msgspec.structs.replace(plain, groups=(msgspec.structs.replace(group, storage=requests),))


def volume(name: str = "data", *, parts: int = 1, **more: object) -> StorageRequest:
    routes = (Route.LOCAL, Route.REMOTE)
    return StorageRequest(name="in", volume=name, devices=parts, routes=routes, **more)  # type: ignore[arg-type]


def cluster_of(*nodes: object) -> Cluster:
    cluster = Cluster(*(nodes or (storing("a", 2), node("c"))))  # type: ignore[arg-type]
    cluster.decision_maker = decision_maker("")
    cluster.join()
    return cluster


def shares(cluster: Cluster, device: str) -> dict[str, int]:
    return {key: share.size_bytes for key, share in cluster.machine.devices[device].shares.items()}


def test_room_is_a_lease_of_drives_which_others_share() -> None:
    cluster = cluster_of(storing("a", 1), node("c"))
    request = msgspec.structs.replace(TEMPORARY, size_bytes=40 * GIB, bandwidth_bytes_per_s=GIB, use=StorageUse.RAW)
    cluster.submit(stored("j1", request, on="c"), stored("j2", request, on="a"))
    cluster.settle()
    assert [cluster.state_of(each) for each in ("j1", "j2")] == ["running", "running"]
    leases = {status.lease.job: status.lease for status in cluster.machine.lease_statuses(cluster.now)}
    assert (leases["j1"].route, leases["j2"].route) == (Route.REMOTE, Route.LOCAL)
    grant = leases["j1"].storage
    assert grant is not None
    assert (grant.name, grant.volume, grant.size_bytes, grant.use) == ("tmp", "", 40 * GIB, StorageUse.RAW)
    drives = {lease.devices[0].device for lease in leases.values()}
    assert drives == {"NVME-a-0"}
    # Each grant counts.
    assert sorted(lease.devices[0].epoch for lease in leases.values()) == [1, 2]
    assert shares(cluster, "NVME-a-0") == {"j1-1-0": 40 * GIB, "j2-1-0": 40 * GIB}
    cluster.tell(cluster.agents["c"].exit("j1", "main.0"))
    cluster.settle()
    assert shares(cluster, "NVME-a-0") == {"j2-1-0": 40 * GIB}


def test_a_stripe_is_one_lease_of_several_drives() -> None:
    cluster = cluster_of()
    cluster.submit(stored("j1", msgspec.structs.replace(TEMPORARY, devices=2)))
    cluster.settle()
    (status,) = cluster.machine.lease_statuses(cluster.now)
    assert [leased.device for leased in status.lease.devices] == ["NVME-a-0", "NVME-a-1"]
    assert shares(cluster, "NVME-a-1") == {"j1-1-0": 30 * GIB}
    assert cluster.machine.accounts.devices["ada"] == 1


def test_who_finds_no_room_is_told_and_has_his_turn() -> None:
    cluster = cluster_of(storing("a", 1), node("c"))
    cluster.submit(stored("j1", TEMPORARY), stored("j2", TEMPORARY))
    cluster.settle()
    (miss,) = cluster.machine.jobs["j2"].misses
    assert miss.message == (
        "storage tmp of group main: 60 GiB; no drives have so much free now: most has NVME-a-0 of node a, 40 GiB"
    )
    assert not cluster.machine.situations.awake
    cluster.tell(cluster.agents[cluster.machine.jobs["j1"].runs.first.node].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j2") == "running"


def test_bandwidth_is_shared_too() -> None:
    cluster = cluster_of(storing("a", 1))
    request = msgspec.structs.replace(TEMPORARY, size_bytes=GIB, bandwidth_bytes_per_s=3 * GIB)
    cluster.submit(stored("j1", request), stored("j2", request))
    cluster.settle()
    assert [cluster.state_of(each) for each in ("j1", "j2")] == ["running", "queued"]


def test_a_volume_takes_room_that_jobs_do_not_get() -> None:
    cluster = cluster_of(storing("a", 1))
    cluster.create(size=50 * GIB)
    cluster.submit(stored("j1", TEMPORARY))
    cluster.settle()
    assert cluster.state_of("j1") == "queued"
    cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_shares_outlive_a_restart_with_their_profiles() -> None:
    cluster = cluster_of()
    cluster.create(size=5 * GIB)
    request = msgspec.structs.replace(TEMPORARY, profile="smufin", devices=2)
    cluster.submit(stored("j1", request, on="c"))
    cluster.settle()
    before = {name: dict(device.shares) for name, device in cluster.machine.devices.items()}
    assert any(share.profile == "smufin" for found in before.values() for share in found.values())
    cluster.restart()
    assert {name: dict(device.shares) for name, device in cluster.machine.devices.items()} == before
    cluster.join()
    cluster.settle()
    assert cluster.state_of("j1") == "running"


def test_rounds_are_told_since_when_who_shares_a_drive_runs_and_until_when_it_may() -> None:
    cluster = cluster_of()
    request = msgspec.structs.replace(TEMPORARY, profile="smufin", devices=1)
    wanted = msgspec.structs.replace(
        stored("j1", request, on="c"), submitted_at=cluster.wall, goal=Goal(deadline_s=2_000.0)
    )  # fmt: skip
    due_at = cluster.now + 2_000.0
    cluster.submit(wanted)
    cluster.decide()

    def moments() -> set[tuple[float | None, float | None]]:
        views = cluster.machine.snapshot(cluster.now).devices
        return {(share.started_at, share.due_at) for view in views for share in view.shares}

    assert moments() == {(cluster.now, due_at)}
    # What it is prepared for is not what it runs.
    cluster.now += 3
    cluster.settle()
    assert cluster.state_of("j1") == "running"
    began = cluster.now
    assert moments() == {(began, due_at)}
    cluster.now += 60
    cluster.restart()
    ((started_at, told),) = moments()
    assert (started_at, told) == (pytest.approx(began), pytest.approx(due_at))


def test_of_programs_of_which_nobody_knows_how_they_behave_no_moments_are_kept() -> None:
    cluster = cluster_of()
    cluster.submit(stored("j1", TEMPORARY, on="c"))
    cluster.settle()
    shares = [share for device in cluster.machine.devices.values() for share in device.shares.values()]
    assert [(share.started_at, share.due_at) for share in shares] == [(None, None)] * len(shares)


def test_a_job_uses_each_part_where_it_is() -> None:
    cluster = cluster_of(storing("a", 1), storing("b", 1), node("c"))
    cluster.create(stripe=2)
    cluster.settle()
    cluster.submit(stored("j1", volume(parts=2), on="b"))
    cluster.settle()
    leases = [status.lease for status in cluster.machine.lease_statuses(cluster.now)]
    assert {(lease.device_node, lease.route, lease.storage and lease.storage.part) for lease in leases} == {
        ("a", Route.REMOTE, 0),
        ("b", Route.LOCAL, 1),
    }
    (command,) = [command for _, command in cluster.sent if isinstance(command, events.PrepareClient)]
    assert [prepared.lease.storage and prepared.lease.storage.name for prepared in command.leases] == ["in", "in"]
    (run,) = cluster.machine.jobs["j1"].runs
    assert {place.storage for place in run.placement.devices} == {"in"}


def test_gpus_and_storage_are_leases_of_their_own() -> None:
    cluster = cluster_of(storing("a", 1), node("g", 1))
    cluster.create(size=5 * GIB)
    cluster.settle()
    cluster.submit(stored("j1", TEMPORARY, volume(), on="g", gpus=1))
    cluster.settle()
    leases = [status.lease for status in cluster.machine.lease_statuses(cluster.now)]
    assert sorted((lease.device_node, lease.storage.name if lease.storage else "") for lease in leases) == [
        ("a", "in"),
        ("a", "tmp"),
        ("g", ""),
    ]
    assert cluster.machine.accounts.devices["ada"] == 3


def test_one_job_at_a_time_has_a_volume() -> None:
    cluster = cluster_of()
    cluster.create()
    cluster.settle()
    cluster.submit(stored("j1", volume()), stored("j2", volume()), stored("j3", volume()))
    cluster.settle()
    assert [cluster.state_of(each) for each in ("j1", "j2", "j3")] == ["running", "queued", "queued"]
    (miss,) = cluster.machine.jobs["j2"].misses
    assert miss.message.startswith("volume data is used by job j1 on node ")
    where = cluster.machine.jobs["j1"].runs.first.node
    cluster.tell(cluster.agents[where].exit("j1", "main.0"))
    cluster.settle()
    assert cluster.state_of("j2") == "running"


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("attach", "volume data is attached to node c"),
        ("lose", "volume data is lost: node a, which has part 0, can't be reached, last heard at"),
        ("cordon", "node a, which has part 0 of volume data, takes nothing new: ann"),
        ("delete", "volume data is being deleted"),
    ],
)
def test_what_a_volume_lacks_is_told(before: str, told: str) -> None:
    cluster = cluster_of(storing("a", 1), node("c"), node("d"))
    cluster.create()
    cluster.settle()
    if before == "attach":
        cluster.attach("data", "c", "j7")
        cluster.settle()
    elif before == "lose":
        cluster.lose("a")
    elif before == "cordon":
        cordon = Cordon(kind=CordonKind.NODE, name="a", by="ann", at=1.0)
        cluster.tell(events.Cordoned(cordon=cordon))
    else:
        cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    cluster.submit(stored("j1", volume(), on="d"))
    cluster.decide()
    (miss,) = cluster.machine.jobs["j1"].misses
    assert (miss.phase, miss.resource) == ("storage", "volume")
    assert miss.message.startswith(told)


def test_an_alternative_without_the_volume_is_taken_where_it_is_used() -> None:
    cluster = cluster_of()
    cluster.create()
    cluster.settle()
    other = GroupVariant(name="main", requests=Requests(cpu_milli=100), routes=(Route.LOCAL,), storage=(TEMPORARY,))
    both = msgspec.structs.replace(
        stored("j2", volume()), alternatives=(Alternative(name="fresh", cost=10, groups=(other,)),)
    )
    cluster.submit(stored("j1", volume()))
    cluster.settle()
    cluster.submit(both)
    cluster.settle()
    assert cluster.state_of("j2") == "running"
    assert cluster.machine.jobs["j2"].progress.alternative == "fresh"


def test_quotas_count_storage_once() -> None:
    cluster = cluster_of(storing("a", 4))
    cluster.tell(events.RulesChanged(rules=Rules(quota=Quota(devices=2))))
    request = msgspec.structs.replace(TEMPORARY, devices=4, size_bytes=4 * GIB)
    cluster.submit(*(stored(f"j{number}", request) for number in (1, 2, 3)))
    cluster.settle()
    assert [cluster.state_of(f"j{number}") for number in (1, 2, 3)] == ["running", "running", "queued"]
    (miss,) = cluster.machine.jobs["j3"].misses
    assert miss.message == "ada has 2 of 2 devices; this job takes 1"


def placement(*places: DevicePlacement, on: str = "a") -> JobPlacement:
    return JobPlacement(job="j1", tasks=(TaskPlacement(task="main.0", node=on, devices=places),))


def place(device: str = "NVME-a-0", *, storage: str = "tmp", size: int = 60 * GIB, **more: object) -> DevicePlacement:
    about = {"node": "a", "route": Route.LOCAL, **more}
    return DevicePlacement(device=device, storage=storage, size_bytes=size, **about)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "planned", "told"),
    [
        (TEMPORARY, placement(), "it is not on drives of one node"),
        (TEMPORARY, placement(place(), place()), "it is on 2 drives"),
        (TEMPORARY, placement(place("NVME-a-1")), "drive NVME-a-1 has 10 GiB free"),
        (TEMPORARY, placement(place("NVME-b-0")), "drive NVME-b-0 is not free on node a"),
        (TEMPORARY, placement(place(), on="c"), "device NVME-a-0 can't reach task main.0 by route local"),
        (TEMPORARY, placement(place(), place("NVME-a-1", storage="x")), "has storage that it did not ask for"),
        (volume(), placement(), "it is not all of volume data"),
        (volume(), placement(place("VOL-data:1")), "it is not all of volume data"),
        (volume("other"), placement(place("VOL-other:0")), "there is no volume other"),
        (TEMPORARY, placement(place()), ""),
        (volume(), placement(place("VOL-data:0")), ""),
    ],
)
def test_whatever_decided_the_ledger_has_the_last_word(
    request_: StorageRequest, planned: JobPlacement, told: str
) -> None:
    cluster = cluster_of()
    cluster.create(size=90 * GIB, stripe=1)
    cluster.settle()
    # The volume is on the first of the drives: what is asked of the plans is by the other one.
    swap = {"NVME-a-0": "NVME-a-1", "NVME-a-1": "NVME-a-0"}
    tasks = tuple(
        msgspec.structs.replace(
            task,
            devices=tuple(
                msgspec.structs.replace(each, device=swap.get(each.device, each.device)) for each in task.devices
            ),
        )
        for task in planned.tasks
    )
    cluster.submit(stored("j1", request_))
    problem = cluster.machine.placement_problem(
        cluster.machine.jobs["j1"], msgspec.structs.replace(planned, tasks=tasks)
    )
    for one, other in (("NVME-a-0", "NVME-x"), ("NVME-a-1", "NVME-a-0"), ("NVME-x", "NVME-a-1")):
        problem = problem.replace(one, other)
    assert told in problem
    assert bool(told) == bool(problem)


async def test_the_end_of_a_share_is_an_opening() -> None:
    cluster = cluster_of(storing("a", 1))
    cluster.submit(stored("j1", TEMPORARY), stored("j2", msgspec.structs.replace(TEMPORARY, size_bytes=10 * GIB)))
    cluster.settle()
    waiting = stored("j3", TEMPORARY)
    cluster.submit(waiting)
    cluster.settle()
    machine = cluster.machine
    snapshot = machine.snapshot(cluster.now)
    holdings = [holding_of(machine, machine.jobs[each]) for each in ("j2", "j1")]

    async def ask(snapshot: object, pending: tuple[PendingJob, ...]) -> object:
        return decide(snapshot, pending, policy=DefaultPolicy())  # type: ignore[arg-type]

    found = await find_opening(ask, snapshot, waiting, holdings)  # type: ignore[arg-type]
    assert found is not None
    assert [held.job for held in found.needed] == ["j1"]
    (view,) = without(snapshot, holdings[1:]).devices
    assert view.shares == (StorageShare(size_bytes=10 * GIB),)


def test_a_job_of_higher_priority_has_the_room_of_another() -> None:
    cluster = cluster_of(storing("a", 1))
    low = msgspec.structs.replace(stored("j1", TEMPORARY), moveable=True)
    cluster.submit(low)
    cluster.settle()
    high = stored("j2", TEMPORARY, priority=5)
    cluster.submit(high)
    cluster.settle()
    planned = JobPlacement(job="j2", tasks=(TaskPlacement(task="main.0", node="a", devices=(place(),)),))
    cluster.tell(events.RoomPlanned(placement=planned, moved=("j1",), reason="preempted", preempts=True))
    assert cluster.state_of("j1") == "finishing"
    cluster.settle()
    assert [cluster.state_of(each) for each in ("j1", "j2")] == ["queued", "running"]


def test_a_lost_node_ends_what_had_its_drives() -> None:
    cluster = cluster_of(storing("a", 1), node("c"))
    cluster.submit(stored("j1", TEMPORARY, on="c"))
    cluster.settle()
    cluster.lose("a")
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.state_of("j1") == "failed"
    assert "NVME-a-0 of task main.0 was lost" in cluster.reason_of("j1")
    # Until its node confirms, the room is the lease's.
    assert shares(cluster, "NVME-a-0") == {"j1-1-0": 60 * GIB}
    cluster.join("a")
    cluster.settle()
    assert shares(cluster, "NVME-a-0") == {}
