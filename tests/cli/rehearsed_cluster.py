"""A cluster whose answers are known: an agent's socket served with real gRPC, for tests of the commands.

Run as a process: ``python -m tests.cli.rehearsed_cluster SOCKET``.  It prints
one line for each thing that tests wait for.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Collection

import msgspec

from farbus.api.identity import Identity, Role
from farbus.api.server import ClusterHandler, serve_local
from farbus.errors import Conflict, InvalidInput, NotFound, Unavailable, Unsatisfiable
from farbus.model.cluster import ClusterInfo, HoldEvent, HoldLost, HoldReady, HoldWaiting, LogChunk
from farbus.model.device import Device, DeviceKind, DeviceStatus, Route
from farbus.model.explanation import Explanation
from farbus.model.fabric import ChassisStatus, ChassisView, FabricDevice, FabricPort
from farbus.model.job import (
    NO_GOAL,
    DevicePlacement,
    Goal,
    Job,
    JobStatus,
    Miss,
    Requests,
    TaskGroup,
    TaskPlacement,
    TaskState,
    TaskStatus,
)
from farbus.model.lease import Lease, LeasedDevice, LeaseStatus
from farbus.model.move import MoveRequest, MoveState, MoveStatus
from farbus.model.node import Node, NodeStatus, Resources
from farbus.model.operation import CordonKind, CordonResult, DrainStatus, ForgottenNode, MovedJob, RoomPlan
from farbus.model.profile import ApplicationProfile, FlavourTime, ObservedRun
from farbus.model.rules import QuotaStatus
from farbus.model.series import CollectorState
from farbus.model.states import DeviceState, JobState, LeaseState, NodeState, VolumeState
from farbus.model.telemetry import ClusterTelemetry, GpuTelemetry, LinkTelemetry, NodeTelemetry, SessionTelemetry
from farbus.model.volume import AdoptRequest, AttachRequest, VolumePart, VolumeRequest, VolumeStatus

GPU = Device(id="GPU-0001", kind=DeviceKind.GPU, model="Farbus Software GPU", memory_bytes=2**30, software=True)
MOVING = Device(id="GPU-0002", kind=DeviceKind.GPU, model="Farbus Software GPU")
PLACEMENT = TaskPlacement(
    task="main.0",
    node="gamma",
    devices=(DevicePlacement(device="GPU-0001", node="alpha", route=Route.REMOTE),),
    why="alpha has the fewest free GPUs that suffice",
)


def volume(name: str, state: VolumeState, **more: object) -> VolumeStatus:
    """A volume of ada's on three drives of node beta."""
    part = VolumePart(volume=name, size_bytes=100 * 2**30, drives=("NVME-1", "NVME-2", "NVME-3"))
    about = {"size_bytes": 100 * 2**30, "at": 1e9, **more}
    return VolumeStatus(name=name, user="ada", state=state, parts=(part,), nodes=("beta",), **about)  # type: ignore[arg-type]


TELEMETRY = (
    NodeTelemetry(
        node="alpha", state=NodeState.READY, seen_s=1.0, cpu_milli=4000, cpu_busy_fraction=0.5,
        memory_bytes=8 * 2**30, memory_used_bytes=2 * 2**30, cpu_pressure=0.12, memory_pressure=0.0, io_pressure=0.03,
        links=(LinkTelemetry(name="eth0", speed_bytes_per_s=1.25e9, receive_bytes_per_s=2e8, send_bytes_per_s=1e8),),
        gpus=(
            GpuTelemetry(
                device="GPU-0001", model="Farbus Software GPU", software=True, state="leased", memory_bytes=2**30,
                busy_fraction=0.97, memory_used_bytes=2**29, lease="l-1", job="j-1", user="ada", client_node="gamma",
            ),
        ),
        sessions=(
            SessionTelemetry(
                lease="l-1", job="j-1", user="ada", client_node="gamma", client_pid=77, program="train",
                calls_per_s=1200.0, receive_bytes_per_s=3e6, send_bytes_per_s=4e3, busy_fraction=0.9,
                memory_bytes=2**29, transport="tls",
            ),
        ),
        stale=(CollectorState(name="network", reason="no answer after 5 s"),),
    ),
    NodeTelemetry(node="gamma", state=NodeState.LOST, seen_s=75.0, cpu_milli=4000, memory_bytes=8 * 2**30),
)  # fmt: skip
MISS = Miss(phase="gpu", resource="gpus", message="needs 8 GPUs, 3 are free", short_by=5)


def job(job_id: str, *command: str, name: str = "train") -> Job:
    """A job of one task with one GPU."""
    group = TaskGroup(name="main", command=command or ("./train",), requests=Requests(gpus=1))
    return Job(id=job_id, name=name, user="ada", groups=(group,), submitted_at=1e9)


def ended(submitted: Job, code: int) -> JobStatus:
    """The job after its only task has ended with ``code``."""
    task = TaskStatus(task="main.0", state=TaskState.EXITED, node="gamma", exit_code=code)
    return JobStatus(
        job=submitted,
        state=JobState.FAILED if code else JobState.SUCCEEDED,
        placements=(PLACEMENT,),
        tasks=(task,),
        started_at=1e9 + 1,
        ended_at=1e9 + 3,
    )


def running(submitted: Job) -> JobStatus:
    """The job while it runs."""
    task = TaskStatus(task="main.0", state=TaskState.RUNNING, node="gamma")
    return JobStatus(job=submitted, state=JobState.RUNNING, placements=(PLACEMENT,), tasks=(task,), started_at=1e9 + 1)


PROFILES = (
    ApplicationProfile(
        application="nw",
        user="ada",
        times=(
            FlavourTime(flavour=Route.LOCAL, count=3, median_s=72.5, spread_s=2.0),
            FlavourTime(flavour=Route.REMOTE, count=2, median_s=90.0, spread_s=1.0),
        ),
        sensitivity=0.63,
        sensitivity_count=2,
    ),
    ApplicationProfile(
        application="srad",
        times=(FlavourTime(count=1, median_s=0.25, spread_s=0.0),),
        set_by="ann",
        set_at=1_700_000_000.0,
    ),
)
RUN = ObservedRun(
    application="nw", user="ada", shape="0123456789abcdef", flavour=Route.REMOTE, network_load=0.5, seconds=91.0
)


class RehearsedCluster(ClusterHandler):
    """Three jobs, two nodes, one GPU; submitted jobs end as their command says (``exits 3``, ``killed``)."""

    def __init__(self) -> None:
        self.jobs = {
            "j-1": running(job("j-1")),
            "j-2": JobStatus(job=job("j-2", name="big\x1b[31m"), state=JobState.QUEUED, misses=(MISS,)),
            "j-3": ended(job("j-3"), -9),
        }
        self.away = False
        """The next exit code meets an agent that has just ended."""

    def _job(self, job_id: str) -> JobStatus:
        if job_id not in self.jobs:
            raise NotFound(f"job {job_id}: no such job", hint="farbus jobs --all lists them")
        return self.jobs[job_id]

    async def submit(self, caller: Identity, job: Job, *, check_only: bool) -> tuple[str, JobStatus | None]:
        gpus = job.groups[0].requests.gpus
        if gpus > 32:
            raise Unsatisfiable(f"needs {gpus} GPUs, the whole cluster has 3", hint="ask for fewer")
        if check_only and gpus > 16:
            miss = Miss(phase="gpu", resource="gpus", message="the whole cluster has 3 GPUs", permanent=True)
            return "", JobStatus(job=job, state=JobState.QUEUED, misses=(miss,))
        if check_only and gpus > 3:
            return "", JobStatus(job=job, state=JobState.QUEUED, misses=(MISS,))
        if check_only:
            return "", JobStatus(job=job, state=JobState.QUEUED, placements=(PLACEMENT,))
        environment = dict(sorted(job.environment.items()))
        print(f"submitted {job.name} cwd={job.cwd} env={environment} node={job.groups[0].node}", flush=True)
        submitted = msgspec.structs.replace(job, id="j-9", user=caller.name, submitted_at=1e9)
        self.jobs["j-9"] = JobStatus(job=submitted, state=JobState.QUEUED, misses=(MISS,))
        return "j-9", None

    async def list_jobs(self, caller: Identity, *, include_ended: bool) -> tuple[JobStatus, ...]:
        return tuple(self.jobs[name] for name in ("j-1", "j-2", "j-3") if include_ended or name != "j-3")

    async def get_job(self, caller: Identity, job_id: str) -> JobStatus:
        return self._job(job_id)

    async def watch_job(self, caller: Identity, job_id: str) -> AsyncIterator[JobStatus]:
        status = self._job(job_id)
        yield status
        command = status.job.groups[0].command
        if command[0] == "hangs":
            print("watched", flush=True)
            await asyncio.Event().wait()
        yield JobStatus(job=status.job, state=JobState.PREPARING, placements=(PLACEMENT,))
        yield running(status.job)
        code = int(command[1]) if command[0] == "exits" else -9 if command[0] == "killed" else 0
        yield ended(status.job, code)

    async def cancel_job(
        self, caller: Identity, job_id: str, *, released: bool, exit_code: int | None = None
    ) -> JobStatus:
        if exit_code and self.away:
            self.away = False
            print("exit code refused", flush=True)
            raise Unavailable("the agent is restarted")
        if exit_code:
            print(f"{job_id} ended with {exit_code}", flush=True)
        status = self._job(job_id)
        if status.state is JobState.FAILED:
            raise Conflict(f"job {job_id} has ended already")
        return JobStatus(job=status.job, state=JobState.CANCELLED)

    async def read_logs(
        self, caller: Identity, job_id: str, *, task: str, follow: bool, position: int = 0
    ) -> AsyncIterator[LogChunk]:
        self._job(job_id)
        yield LogChunk(data=b"to standard output\n")
        yield LogChunk(data=b"to standard error\n", stream=2)

    async def list_nodes(self, caller: Identity) -> tuple[NodeStatus, ...]:
        capacity = Resources(cpu_milli=4000, memory_bytes=8 * 2**30)
        return tuple(
            NodeStatus(
                node=Node(
                    name=name, address="127.0.0.1", boot_id="b", agent_version="0.1.0", capacity=capacity,
                    labels={"rack": "r1"}, devices=(GPU,) if name == "alpha" else (),
                    storage_attach_s=0.25 if name == "gamma" else 0.0,
                ),
                state=NodeState.READY,
                free=Resources(cpu_milli=3500, memory_bytes=7 * 2**30),
                seen_s=1.0,
            )
            for name in ("alpha", "gamma")
        )  # fmt: skip

    async def list_devices(self, caller: Identity) -> tuple[DeviceStatus, ...]:
        return (
            DeviceStatus(
                device=GPU, node="alpha", state=DeviceState.LEASED, epoch=7, lease="l-1", job="j-1", used_by="ada"
            ),
            DeviceStatus(device=MOVING, node="", state=DeviceState.MOVING, chassis="falcon", move="m8"),
        )

    async def list_leases(self, caller: Identity, *, include_released: bool) -> tuple[LeaseStatus, ...]:
        lease = Lease(
            id="l-1", job="j-1", task="main.0", user="ada", client_node="gamma", device_node="alpha",
            route=Route.REMOTE, devices=(LeasedDevice(device="GPU-0001", epoch=7),), term=3, secret="",
        )  # fmt: skip
        return (LeaseStatus(lease=lease, state=LeaseState.PREPARED, expires_in_s=4.5, endpoint="127.0.0.1:9"),)

    async def get_telemetry(self, caller: Identity, *, nodes: Collection[str]) -> ClusterTelemetry:
        return ClusterTelemetry(nodes=tuple(node for node in TELEMETRY if not nodes or node.node in nodes))

    async def explain(self, caller: Identity, job_id: str) -> Explanation:
        lines = ("it waits because", "needs 8 GPUs, 3 are free")
        return Explanation(status=self._job(job_id), lines=lines)

    async def list_quotas(self, caller: Identity) -> tuple[QuotaStatus, ...]:
        ada = QuotaStatus(
            user="ada", jobs=2, devices=3, devices_limit=4, waiting=1,
            volume_bytes=5 * 2**30, volume_bytes_limit=8 * 2**30,
        )  # fmt: skip
        return (ada, QuotaStatus(user="bob"))

    async def defragment(self, caller: Identity, job_id: str, *, dry_run: bool) -> RoomPlan:
        moved = MovedJob(
            job="j-7",
            user="bob",
            came_from=(TaskPlacement(task="main.0", node="alpha"),),
            goes_to=(TaskPlacement(task="main.0", node="beta"),),
        )
        placements = (TaskPlacement(task="main.0", node="alpha"),)
        return RoomPlan(job=job_id, placements=placements, moved=(moved,), begun=not dry_run)

    async def cordon(self, caller: Identity, name: str, *, reason: str) -> CordonResult:
        return self._cordoned(name)

    async def uncordon(self, caller: Identity, name: str) -> CordonResult:
        return self._cordoned(name)

    def _cordoned(self, name: str) -> CordonResult:
        kinds = {"alpha": CordonKind.NODE, "GPU-0001": CordonKind.DEVICE}
        if name == "gamma":
            return CordonResult(name=name, kind=CordonKind.NODE, changed=False)
        if name not in kinds:
            raise NotFound(f"there is no node or device {name}")
        return CordonResult(name=name, kind=kinds[name], changed=True)

    async def drain(self, caller: Identity, node: str, *, evict: bool, reason: str) -> AsyncIterator[DrainStatus]:
        print(f"drain {node} {evict} {reason}", flush=True)
        if node == "alpha":
            yield DrainStatus(node=node, jobs=(self.jobs["j-1"],))
            yield DrainStatus(node=node, jobs=(msgspec.structs.replace(self.jobs["j-1"], reason="it goes on"),))
        if node == "lost":
            yield DrainStatus(node=node, jobs=(self.jobs["j-1"],), lost=True)
        yield DrainStatus(node=node, lost=node == "lost")

    async def forget(self, caller: Identity, node: str) -> ForgottenNode:
        if node == "gamma":
            raise Conflict(f"node {node} is connected")
        return ForgottenNode(node=node, leases=("l-1",), devices=("GPU-0001",), jobs=("j-1",))

    async def move_device(
        self, caller: Identity, request: MoveRequest, *, local: bool = False
    ) -> AsyncIterator[MoveStatus]:
        print(f"move {msgspec.json.encode(request).decode()}{' local' if local else ''}", flush=True)
        if request.device == "GPU-none":
            raise NotFound("there is no device GPU-none", hint="farbus devices lists them")
        begun = MoveStatus(
            id="m7", device=request.device, from_node="alpha", to_node=request.node, chassis="falcon",
            state=MoveState.DETACHING, says="wait for holders", step=1, steps=5, expected_s=40.0, took_s=2.0,
            by="ada", at=1e9,
        )  # fmt: skip
        if request.dry_run:
            yield msgspec.structs.replace(
                begun,
                state=MoveState.FAILED if request.device == "GPU-held" else MoveState.DONE,
                error="node alpha: it is in use" if request.device == "GPU-held" else "",
                plan=("alpha: close it", "beta: scan the bus"),
                in_the_way=("alpha: pid 7 (python3)",) if request.device == "GPU-held" else (),
            )
            return
        yield begun
        if request.device == "GPU-slow":
            await asyncio.Event().wait()
        if request.device == "GPU-torn":
            raise Unavailable("the agent is restarted")
        ends = {
            "GPU-refused": (MoveState.FAILED, "node alpha: still open in pid 7 (python3)"),
            "GPU-back": (MoveState.UNDONE, "node beta: no room for BAR 2"),
            "GPU-stuck": (MoveState.STUCK, "node alpha: wedged"),
        }
        state, error = ends.get(request.device, (MoveState.DONE, ""))
        path = "/dev/nvidia3" if request.node and state is MoveState.DONE else ""
        hint = "have a look" if state is MoveState.STUCK else ""
        yield msgspec.structs.replace(begun, state=state, error=error, hint=hint, took_s=31.0, path=path)

    async def list_moves(self, caller: Identity, *, include_ended: bool) -> tuple[MoveStatus, ...]:
        ended = MoveStatus(
            id="m7", device="GPU-torn", from_node="alpha", to_node="beta", chassis="falcon", state=MoveState.DONE,
            took_s=33.0, by="ada", at=1e9,
        )  # fmt: skip
        live = MoveStatus(
            id="m8", device="GPU-0002", to_node="beta", chassis="falcon", port="31h", state=MoveState.ATTACHING,
            says="scan the bus", step=2, steps=5, expected_s=20.0, took_s=4.0, by="ann", at=1e9,
        )  # fmt: skip
        return (ended, live) if include_ended else (live,)

    async def cancel_move(self, caller: Identity, move: str) -> MoveStatus:
        print(f"cancel move {move}", flush=True)
        if move == "m7":
            raise Conflict("move m7 has ended: done", hint="farbus attach moves it back")
        (live,) = await self.list_moves(caller, include_ended=False)
        return msgspec.structs.replace(live, id=move, says=f"called off by {caller.name}; scan the bus")

    async def create_volume(self, caller: Identity, request: VolumeRequest) -> AsyncIterator[VolumeStatus]:
        print(f"create {msgspec.json.encode(request).decode()}", flush=True)
        if request.name == "large":
            raise Unsatisfiable(
                "volume large of 1 PB: the cluster has no drives with so much free now", hint="ask for less"
            )
        begun = volume(request.name, VolumeState.CREATING, says="node beta is asked to make its part, 1 of 1")
        yield begun
        if request.name == "torn":
            raise Unavailable("the agent is restarted")
        if request.name == "refused":
            yield msgspec.structs.replace(
                begun, state=VolumeState.DELETED, says="", error="node beta: its volume group is full"
            )
            return
        yield volume(request.name, VolumeState.AVAILABLE, size_bytes=request.size_bytes)

    async def resize_volume(self, caller: Identity, name: str, *, size_bytes: int) -> AsyncIterator[VolumeStatus]:
        yield volume(name, VolumeState.AVAILABLE, says="node beta is asked to make its part larger, 1 of 1")
        late = "node gamma uses it with its old size until it is attached again" if size_bytes > 200 * 2**30 else ""
        yield volume(name, VolumeState.AVAILABLE, size_bytes=size_bytes, says=late)

    async def delete_volume(self, caller: Identity, name: str) -> AsyncIterator[VolumeStatus]:
        print(f"delete {name}", flush=True)
        if name == "used":
            raise Conflict("volume used is attached to node gamma", hint="farbus volume detach used")
        yield volume(name, VolumeState.DELETING, says="node beta is asked to wipe and remove its part, 1 of 1")
        yield volume(name, VolumeState.DELETED)

    async def list_volumes(self, caller: Identity) -> tuple[VolumeStatus, ...]:
        attached = volume("data", VolumeState.ATTACHED, attached_to="gamma", job="j7", use="mount", path="/srv/data")
        lost = volume("old", VolumeState.LOST, troubles=("node beta, which has part 0, can't be reached",))
        return attached, lost, volume("torn", VolumeState.AVAILABLE)

    async def adopt_volume(self, caller: Identity, request: AdoptRequest) -> AsyncIterator[VolumeStatus]:
        print(f"adopt {msgspec.json.encode(request).decode()}", flush=True)
        if request.remove:
            yield volume(request.volume, VolumeState.DELETING, says="node beta is asked to wipe and remove its part")
            yield volume(request.volume, VolumeState.DELETED)
            return
        yield msgspec.structs.replace(volume(request.volume, VolumeState.AVAILABLE), user=request.user or caller.name)

    async def attach_volume(self, caller: Identity, request: AttachRequest) -> AsyncIterator[VolumeStatus]:
        print(f"attach {msgspec.json.encode(request).decode()}", flush=True)
        begun = volume(request.volume, VolumeState.AVAILABLE, job="j7", says="node gamma prepares it")
        yield begun
        if request.volume == "broken":
            yield msgspec.structs.replace(begun, says="", job="", error="it was not attached: bad superblock")
            return
        if request.volume == "slow":
            await asyncio.Event().wait()
        yield volume(
            request.volume, VolumeState.ATTACHED, attached_to=request.node, job="j7", path=request.path or "/run/v"
        )

    async def detach_volume(self, caller: Identity, name: str) -> AsyncIterator[VolumeStatus]:
        print(f"detach {name}", flush=True)
        yield volume(name, VolumeState.ATTACHED, says="is being detached: pid 812 (python3) has a file open")
        yield volume(name, VolumeState.AVAILABLE)

    async def list_chassis(self, caller: Identity) -> tuple[ChassisStatus, ...]:
        view = ChassisView(
            chassis="falcon",
            ports=(FabricPort(id="30h", node="alpha"), FabricPort(id="31h", node="beta")),
            devices=(
                FabricDevice(id="GPU-0001", handle="001300", kind=DeviceKind.GPU, port="30h"),
                FabricDevice(id="S2", handle="002300", kind=DeviceKind.NVME, serial="S2"),
            ),
        )
        return (
            ChassisStatus(name="falcon", served_by="alpha", term=3, view=view),
            ChassisStatus(name="pod", served_by="beta", term=1),
            ChassisStatus(
                name="rack",
                served_by="beta",
                view=ChassisView(chassis="rack", ports=(), devices=()),
                trouble="chassis rack: it is off",
            ),
        )

    async def list_profiles(self, caller: Identity, *, application: str) -> tuple[ApplicationProfile, ...]:
        if not application:
            return PROFILES
        found = (each for each in PROFILES if each.application == application)
        return tuple(each if each.set_by else msgspec.structs.replace(each, runs=(RUN,)) for each in found)

    async def set_profile(self, caller: Identity, profile: ApplicationProfile) -> ApplicationProfile:
        print(f"set {msgspec.json.encode(profile).decode()}", flush=True)
        return profile

    async def forget_profile(
        self, caller: Identity, application: str, *, user: str | None
    ) -> tuple[ApplicationProfile, ...]:
        found = tuple(each for each in PROFILES if each.application == application and user in (None, each.user))
        if not found:
            raise NotFound(f"nothing is known of application {application}")
        return found

    async def cluster_info(self, caller: Identity) -> ClusterInfo:
        return ClusterInfo(scheduler_version="0.1.0", nodes=2, node="gamma", agent_version="0.1.0")

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
        if requests.gpu_model == "nonsense":
            raise Unsatisfiable("no GPU of this cluster is a nonsense", hint="farbus devices lists the models")
        if requests.gpu_model == "refuse":
            raise InvalidInput("refused")
        print(f"hold {job_id} again" if job_id else f"hold {name} {requests.gpus}", flush=True)
        if goal != NO_GOAL or application:
            print(f"wishes {msgspec.json.encode(goal).decode()} {application}", flush=True)
        try:
            yield HoldWaiting(status=JobStatus(job=job("j-5"), state=JobState.QUEUED, misses=(MISS,)))
            if requests.gpus == 8:
                await asyncio.Event().wait()
            environment = {"FARBUS_SESSION": "/run/session", "LD_LIBRARY_PATH": "/shim"}
            if routes == (Route.LOCAL,):
                environment = {"CUDA_VISIBLE_DEVICES": "GPU-0001"}
            self.away = requests.gpu_model == "away" and not job_id
            yield HoldReady(status=running(job("j-5")), environment=environment)
            if requests.gpu_model == "restart" and not job_id:
                raise Unavailable("the agent is restarted")
            if requests.gpu_model == "away":
                raise Unavailable("the agent is restarted")
            if requests.gpu_model == "lost":
                yield HoldLost(reason="node alpha went away")
            await asyncio.Event().wait()
        finally:
            print("released", flush=True)


def identify(uid: int, gid: int, pid: int) -> Identity:
    """Everybody is Ada, who operates the cluster."""
    return Identity(name="ada", role=Role.OPERATOR)


async def serve(socket: str) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await serve_local(cluster=RehearsedCluster(), socket=socket, identify=identify)
    print("ready", flush=True)
    await stop.wait()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
