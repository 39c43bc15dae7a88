"""Every model value that travels has a message with the same fields, and survives the trip."""

from __future__ import annotations

import msgspec
import pytest

from farbus.api.conversion import check_elements, from_message, to_message
from farbus.api.v1 import cluster_pb2, peer_pb2, profile_pb2, session_pb2, types_pb2
from farbus.errors import InvalidInput
from farbus.model.cluster import ClusterInfo, LogChunk
from farbus.model.device import Device, DeviceKind, DeviceStatus, PoolReach, Route
from farbus.model.explanation import Explanation, Holder, Opening
from farbus.model.job import (
    Alternative,
    DevicePlacement,
    Goal,
    GroupVariant,
    Job,
    JobStatus,
    Miss,
    Requests,
    StorageRequest,
    TaskGroup,
    TaskPlacement,
    TaskState,
    TaskStatus,
)
from farbus.model.lease import Lease, LeasedDevice, LeaseStatus, PeerLease, PeerReply, PeerRequest
from farbus.model.node import Link, Node, NodeStatus, Resources
from farbus.model.operation import MovedJob, RoomPlan
from farbus.model.profile import ApplicationProfile, FlavourTime, ObservedRun
from farbus.model.rules import QuotaStatus
from farbus.model.series import CollectorState, CollectorStates, SeriesStart, TelemetryUpdate
from farbus.model.states import DeviceState, JobState, LeaseState, NodeState, VolumeState
from farbus.model.telemetry import (
    ClusterTelemetry,
    DeviceTelemetry,
    GpuTelemetry,
    LinkTelemetry,
    NodeTelemetry,
    SessionTelemetry,
    Telemetry,
)
from farbus.model.value import Value
from farbus.model.volume import (
    AttachRequest,
    FileSystem,
    StorageGrant,
    StorageUse,
    VolumePart,
    VolumeRequest,
    VolumeStatus,
)

RESOURCES = Resources(cpu_milli=4000, memory_bytes=2**34)
DEVICE = Device(
    id="GPU-1", kind=DeviceKind.GPU, model="Software GPU", memory_bytes=2**33, software=True, numa_node=1,
    pci_address="0000:17:00.0", compute_capability="9.0", attributes={"sms": "16"},
    pool="p", bandwidth_bytes_per_s=7,
)  # fmt: skip
NODE = Node(
    name="alpha", address="127.0.0.1", boot_id="b", agent_version="1", capacity=RESOURCES, labels={"rack": "r1"},
    devices=(DEVICE,), links=(Link(name="eth0", speed_mbit_s=25000),), peer_endpoint="h:1",
    pools=(PoolReach(pool="p", attach_s=4.5),), storage_attach_s=2.5, remoting_tls="off",
)  # fmt: skip
GROUP = TaskGroup(
    name="main", command=("./a", "b"), count=2, requests=Requests(gpus=1, gpu_model="H200"), node="alpha",
    labels={"a": "b"}, routes=(Route.REMOTE,),
    storage=(StorageRequest(name="in", size_bytes=5, bandwidth_bytes_per_s=6, devices=2, profile="p"),),
)  # fmt: skip
JOB = Job(
    id="1", name="j", user="u", groups=(GROUP,), cwd="/tmp", environment={"A": "1"}, priority=-3, time_limit_s=1.5,
    interactive=True, submitted_at=12.25, application="a",
    goal=Goal(slo_s=1.5, importance=2.5, deadline_s=3.5, deadline_at=4.5),
    alternatives=(Alternative(name="cpu", cost=5, groups=(GroupVariant(name="main", requests=Requests()),)),),
)  # fmt: skip
PLACEMENT = TaskPlacement(
    task="main.0",
    node="alpha",
    devices=(DevicePlacement(device="GPU-1", node="beta", route=Route.REMOTE),),
    cost=7,
    why="because",
)
STATUS = JobStatus(
    job=JOB, state=JobState.RUNNING, reason="r", placements=(PLACEMENT,),
    tasks=(TaskStatus(task="main.0", state=TaskState.EXITED, node="alpha", exit_code=-9, reason="killed"),),
    misses=(Miss(phase="gpu", resource="gpus", message="m", short_by=2, permanent=True),),
    rounds_waited=3, started_at=1.0, ended_at=2.0, story=("queued", "running"),
)  # fmt: skip
LEASE = Lease(
    id="L1", job="1", task="main.0", user="u", client_node="a", device_node="b", route=Route.REMOTE,
    devices=(LeasedDevice(device="GPU-1", epoch=4),), term=2, secret="00",
)  # fmt: skip

PAIRS = [
    (STATUS, types_pb2.JobStatus),
    (NodeStatus(node=NODE, state=NodeState.LOST, free=RESOURCES, seen_s=2.5, cordon="ann"), types_pb2.NodeStatus),
    (
        DeviceStatus(
            device=DEVICE, node="a", state=DeviceState.LEASED, epoch=2, lease="L", job="1", used_by="u", cordon="ann"
        ),
        types_pb2.DeviceStatus,
    ),
    (
        PeerRequest(
            leases=(PeerLease(lease_id="l1", device_side=True, devices=LEASE.devices),),
            released=(PeerLease(lease_id="l2", device_side=False, devices=LEASE.devices),),
            peer_endpoint="h:2",
        ),
        peer_pb2.PeerRequest,
    ),
    (PeerReply(renewed=("l1",), void=("l2",)), peer_pb2.PeerReply),
    (LeaseStatus(lease=LEASE, state=LeaseState.PREPARED, expires_in_s=2.5, endpoint="h:1"), types_pb2.LeaseStatus),
    (
        ClusterInfo(
            scheduler_version="1",
            term=2,
            lease_ttl_s=3.5,
            nodes=4,
            jobs_queued=5,
            jobs_running=6,
            node="a",
            agent_version="7",
            scheduler_error="e",
        ),
        cluster_pb2.ClusterInfo,
    ),
    (
        ObservedRun(
            application="nw", user="u", shape="0f", flavour=Route.REMOTE, sharing=2, network_load=0.5, seconds=30.0
        ),
        profile_pb2.ObservedRun,
    ),
    (
        ApplicationProfile(
            application="nw",
            user="u",
            set_by="ann",
            set_at=2.5,
            runs=(ObservedRun(application="nw", seconds=1.0),),
            times=(
                FlavourTime(flavour=Route.LOCAL, sharing=1, count=3, median_s=10.0, spread_s=0.5),
                FlavourTime(sharing=1, count=1, median_s=5.0, spread_s=0.0),
            ),
            sensitivity=0.6,
            sensitivity_count=2,
        ),
        profile_pb2.ApplicationProfile,
    ),
    (LogChunk(data=b"\xff\x00", stream=2), cluster_pb2.LogChunk),
    (
        Telemetry(
            cpu_busy_fraction=0.5,
            memory_used_bytes=1,
            devices=(DeviceTelemetry(device="GPU-1", busy_fraction=0.25, memory_used_bytes=9),),
            network_receive_bytes_per_s=2.5,
            network_send_bytes_per_s=3.5,
            update=TelemetryUpdate(
                number=3,
                started=(SeriesStart(series=1, metric="m", labels={"a": "b"}, step=0.5),),
                ended=(2,),
                series=(1, 4),
                values=(-7, 2**40),
                collectors=CollectorStates(stale=(CollectorState(name="gpu", reason="hangs"),)),
            ),
        ),
        session_pb2.Telemetry,
    ),
    (Telemetry(), session_pb2.Telemetry),
    (
        ClusterTelemetry(
            nodes=(
                NodeTelemetry(
                    node="a",
                    state=NodeState.READY,
                    seen_s=1.5,
                    cpu_milli=4000,
                    cpu_busy_fraction=0.0,
                    memory_bytes=9,
                    io_pressure=0.25,
                    links=(LinkTelemetry(name="eth0", speed_bytes_per_s=1e9, receive_bytes_per_s=2.0, age_s=3.0),),
                    gpus=(GpuTelemetry(device="GPU-1", software=True, memory_used_bytes=0, last_xid=79, user="u"),),
                    sessions=(
                        SessionTelemetry(
                            lease="l", client_pid=7, program="p", transport="shm", server_pid=8, waiting_s=6.5,
                            stopped=True,
                        ),
                    ),
                    stale=(CollectorState(name="gpu", reason="hangs"),),
                ),
            )
        ),
        cluster_pb2.ClusterTelemetry,
    ),
    (
        RoomPlan(
            job="j1",
            placements=(TaskPlacement(task="main.0", node="a"),),
            moved=(MovedJob(job="j2", user="u", came_from=(TaskPlacement(task="main.0", node="a"),)),),
            begun=True,
        ),
        cluster_pb2.RoomPlan,
    ),
    (QuotaStatus(user="ada", jobs=1, jobs_limit=0, devices=2, waiting=3), cluster_pb2.QuotaStatus),
    (
        Explanation(
            status=JobStatus(job=JOB, state=JobState.QUEUED),
            lines=("one",),
            ahead=2,
            opening=Opening(
                holders=(
                    Holder(job="j1", user="u", nodes=("a",), devices=("d",), leases=("l",), ends_in_s=0.0, basis="b"),
                ),
                others=1,
                expected_s=2.5,
                placements=(TaskPlacement(task="main.0", node="a", why="w"),),
            ),
        ),
        cluster_pb2.Explanation,
    ),
    (Explanation(status=JobStatus(job=JOB, state=JobState.RUNNING)), cluster_pb2.Explanation),
    (
        VolumeRequest(name="v", size_bytes=5, stripe=2, bandwidth_bytes_per_s=3, node="a"),
        cluster_pb2.VolumeRequest,
    ),
    (
        AttachRequest(
            volume="v", node="a", use=StorageUse.RAW, path="/p", file_system=FileSystem.XFS, read_only=True
        ),
        cluster_pb2.AttachRequest,
    ),
    (
        VolumeStatus(
            name="v",
            user="u",
            state=VolumeState.ATTACHED,
            size_bytes=5,
            bandwidth_bytes_per_s=6,
            parts=(VolumePart(volume="v", part=1, parts=2, size_bytes=3, drives=("d1", "d2")),),
            nodes=("a",),
            epoch=7,
            attached_to="b",
            job="j1",
            path="/p",
            use="raw",
            troubles=("t",),
            at=2.5,
            says="s",
            error="e",
            hint="h",
        ),
        cluster_pb2.VolumeStatus,
    ),
    (
        Lease(
            id="L2", job="1", task="main.0", user="u", client_node="a", device_node="b", route=Route.LOCAL,
            devices=LEASE.devices, term=2, secret="00",
            storage=StorageGrant(
                name="s", volume="v", size_bytes=5, bandwidth_bytes_per_s=6, part=1, parts=2, use=StorageUse.MMAP,
                file_system=FileSystem.XFS, path="/p", read_only=True,
            ),
        ),
        types_pb2.Lease,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), PAIRS, ids=lambda item: getattr(item, "__name__", type(item).__name__))
def test_value_survives_the_trip(value: Value, kind: type) -> None:
    assert from_message(kind.FromString(to_message(value, kind).SerializeToString()), type(value)) == value


@pytest.mark.parametrize(("value", "kind"), PAIRS, ids=lambda item: getattr(item, "__name__", type(item).__name__))
def test_value_and_message_have_the_same_fields(value: Value, kind: type) -> None:
    def compare(value: Value, descriptor: object) -> None:
        assert set(value.__struct_fields__) == set(descriptor.fields_by_name)
        for field in msgspec.structs.fields(type(value)):
            item = getattr(value, field.name)
            nested = item[0] if isinstance(item, tuple) and item else item
            if isinstance(nested, Value):
                compare(nested, descriptor.fields_by_name[field.name].message_type)

    compare(value, kind.DESCRIPTOR)


def test_a_choice_that_an_older_peer_does_not_know_is_left_to_the_default() -> None:
    message = types_pb2.StorageRequest(name="s", size_bytes=5)
    assert from_message(message, StorageRequest) == StorageRequest(name="s", size_bytes=5)
    message.use = "sing"
    with pytest.raises(InvalidInput, match="use: 'sing' is not one of mount, raw, swap, mmap"):
        from_message(message, StorageRequest)


def test_unknown_enum_value_is_refused_with_the_path() -> None:
    message = to_message(JOB, types_pb2.Job)
    message.groups[0].routes.append("teleport")
    with pytest.raises(InvalidInput, match=r"Job\.groups\[0\]\.routes\[1\]: 'teleport' is not one of local, remote"):
        from_message(message, Job)


def test_elements_are_counted_at_every_depth() -> None:
    message = types_pb2.Job(
        environment={"A": "x" * 20, "B": ""},
        groups=[types_pb2.TaskGroup(name="x" * 20, command=["a", "b"], labels={"c": "d"})] * 2,
    )
    check_elements(message, most=10, what="job")
    with pytest.raises(InvalidInput, match=r"job: .* have more than 9 elements"):
        check_elements(message, most=9, what="job")
