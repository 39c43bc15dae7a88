"""How long a scheduler takes from its start to its first answer, with a ledger of 100,000 jobs and as many leases.

Half of the live jobs wait, half run with two tasks and two leases each on
10,000 nodes; as many jobs have ended and as many leases are released, the
most that a ledger keeps.  Reference: reading the same live rows from SQLite
and checking the file, without understanding them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import structlog

from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.job import DevicePlacement, Job, Requests, TaskGroup, TaskPlacement
from farbus.model.lease import Lease, LeasedDevice
from farbus.model.node import Node, Resources
from farbus.model.states import JobState, LeaseState
from farbus.model.value import to_json
from farbus.scheduler import events
from farbus.scheduler.config import SchedulerConfig
from farbus.scheduler.daemon import serve
from farbus.scheduler.ledger import Ledger
from farbus.scheduler.records import StoredProgress
from farbus.scheduler.runs import ClientSide, Program, TaskRun

JOBS = 100_000
"""Live jobs, and as many live leases."""
NODES_PER_JOB = 10
"""Live jobs for each node."""
GIB = 2**30
BATCH = 5_000
"""Jobs that are written together while the ledger is made."""
STORY = ("2026-11-21 10:00:00 queued by ada", "2026-11-21 10:00:01 preparing", "2026-11-21 10:00:02 running")


def run(*, jobs: int = JOBS) -> list[dict[str, Any]]:
    """Make such a ledger, start a scheduler on it and return its rows."""
    with tempfile.TemporaryDirectory(prefix="farbus-bench-") as directory:
        base = Path(directory)
        make_ledger(base / "state", jobs)
        reading_s = _read(base / "state" / "ledger.db")
        authority = Authority.create(base / "ca")
        credentials, operator = (
            write_credentials(base / role, role, authority.issue(role, role))
            for role in (Role.SCHEDULER, Role.OPERATOR)
        )
        config = SchedulerConfig(listen="127.0.0.1:0", state=str(base / "state"), credentials=credentials)
        restart_s = asyncio.run(_start(config, operator))
    labels = {"jobs": jobs, "leases": jobs, "ended_jobs": jobs, "released_leases": jobs, "aim_s": 5}
    row = {"name": "restart_s", "value": round(restart_s, 3), "unit": "s", "reference": round(reading_s, 3)}
    return [{**row, "ratio": round(restart_s / reading_s, 2), "reference_name": "reading the rows", **labels}]


async def _start(config: SchedulerConfig, operator: Credentials) -> float:
    """Return the seconds from the start of a scheduler until it has answered a call."""
    stop = asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    began = time.perf_counter()
    # What it logs is no part of a listing of measurements.
    with structlog.testing.capture_logs():
        running = asyncio.create_task(serve(config, stop=stop, ready=port.set_result))
        running.add_done_callback(lambda _: port.done() or port.cancel())
        await asyncio.wait({port})
        try:
            address = f"127.0.0.1:{port.result()}"
            async with ClusterClient.remote(address=address, credentials=operator) as client:
                await client.cluster_info()
            return time.perf_counter() - began
        finally:
            stop.set()
            await running


def _read(path: Path) -> float:
    began = time.perf_counter()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA quick_check(1)").fetchall()
    for table in ("jobs WHERE live", "tasks", "leases WHERE live", "devices", "nodes"):
        connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - the names are ours
    connection.close()
    return time.perf_counter() - began


def make_ledger(directory: Path, jobs: int) -> None:
    """Write a ledger with ``jobs`` live jobs and live leases, and as many that have ended."""
    ledger = Ledger(directory)
    nodes = max(2, jobs // NODES_PER_JOB)
    write = []
    for number in range(nodes):
        node = Node(
            name=f"n{number:06}",
            address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            boot_id="b",
            agent_version="1",
            capacity=Resources(cpu_milli=64_000, memory_bytes=256 * GIB),
            labels={"rack": f"r{number // 40}"},
            devices=tuple(_device(number, slot) for slot in range(NODES_PER_JOB)),
        )
        write.append(events.PersistNode(node=node, seen_at=time.time()))
    ledger.write(write).result()
    for first in range(0, 2 * jobs, BATCH):
        batch: list[events.Persist] = []
        for number in range(first, min(first + BATCH, 2 * jobs)):
            batch += _job(number, nodes, live=number >= jobs)
        ledger.write(batch).result()
    ledger.close()


def _device(node: int, slot: int) -> Device:
    return Device(
        id=f"GPU-{node:08x}-0000-4000-8000-{slot:012x}",
        kind=DeviceKind.GPU,
        model="NVIDIA H100 80GB HBM3",
        memory_bytes=80 * GIB,
        pci_address=f"0000:{slot:02x}:00.0",
        compute_capability="9.0",
    )


def _job(number: int, nodes: int, *, live: bool) -> list[events.Persist]:
    requests = Requests(cpu_milli=1000, memory_bytes=4 * GIB, gpus=1)
    group = TaskGroup(name="main", command=("python", "train.py", "--epochs", "90"), count=2, requests=requests)
    job = Job(
        id=f"j{number + 1}",
        name=f"train-{number}",
        user=f"user{number % 100}",
        groups=(group,),
        cwd="/home/user/project",
        environment={"HOME": "/home/user", "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
        submitted_at=1_700_000_000.0 + number,
    )
    state = JobState.QUEUED if number % 2 else JobState.RUNNING
    if not live:
        state = JobState.SUCCEEDED
    if state is JobState.QUEUED:
        progress = StoredProgress(story=[STORY[0]])
        return [events.PersistJob(job=job, state=state, progress=progress, new=True)]
    runs: list[TaskRun] = []
    lasting: list[events.Persist] = []
    for task in range(2):
        place = number // 2 * 2 + task
        node, client = place % nodes, (place + 1) % nodes
        device = _device(node, place // nodes % NODES_PER_JOB)
        lease = Lease(
            id=f"{job.id}-1-{task}",
            job=job.id,
            task=f"main.{task}",
            user=job.user,
            client_node=f"n{client:06}",
            device_node=f"n{node:06}",
            route=Route.REMOTE,
            devices=(LeasedDevice(device=device.id, epoch=1 + live),),
            term=1,
            secret="5e" * 32,
        )
        places = (DevicePlacement(device=device.id, node=lease.device_node, route=Route.REMOTE),)
        placement = TaskPlacement(task=lease.task, node=lease.client_node, devices=places, cost=12, why="least cost")
        runs.append(
            TaskRun(
                placement=placement,
                group=0,
                requests=requests,
                leases=(lease.id,),
                client=ClientSide.PREPARED,
                program=Program.RUNNING,
                occupies=live,
            )
        )
        lease_state = LeaseState.PREPARED if live else LeaseState.RELEASED
        lasting.append(events.PersistLease(lease=lease, state=lease_state, endpoint="10.0.0.1:7000", prepared=True))
        lasting.append(
            events.PersistDevice(
                id=device.id, node=lease.device_node, epoch=lease.devices[0].epoch, device=to_json(device)
            )
        )
    progress = StoredProgress(attempt=1, started_at=1_700_000_000.0 + number, story=list(STORY))
    if live:
        tasks = tuple((run.task, msgspec.json.encode(run)) for run in runs)
        lasting.append(events.PersistTasks(job_id=job.id, tasks=tasks))
    else:
        progress.runs = runs
    return [events.PersistJob(job=job, state=state, progress=progress, new=True), *lasting]
