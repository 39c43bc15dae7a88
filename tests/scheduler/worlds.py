"""Small clusters and jobs for the tests of the decision maker, and what must hold of every decision."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from farbus.model.decision import Decision, DeviceView, NodeView, PendingJob, Snapshot
from farbus.model.device import Device, DeviceKind, Route
from farbus.model.job import Goal, Job, Requests, TaskGroup, add_room, room_of
from farbus.model.node import Resources

GIB = 2**30
NOW = 1e9


def node(name: str, *, cpus: int = 8, memory_gib: int = 32, free_cpus: int | None = None, **more: Any) -> NodeView:
    network = more.pop("network", 0)
    capacity = Resources(cpu_milli=cpus * 1000, memory_bytes=memory_gib * GIB, network_mbit_s=network)
    free = Resources(
        cpu_milli=(cpus if free_cpus is None else free_cpus) * 1000,
        memory_bytes=more.pop("free_memory_gib", memory_gib) * GIB,
        network_mbit_s=more.pop("free_network", network),
    )
    return NodeView(name=name, capacity=capacity, free=free, **more)


def gpu(name: str, on: str, *, memory_gib: int = 80, model: str = "Software A100", free: bool = True) -> DeviceView:
    device = Device(id=name, kind=DeviceKind.GPU, model=model, memory_bytes=memory_gib * GIB)
    return DeviceView(device=device, node=on, free=free)


def group(name: str = "main", *, count: int = 1, cpus: float = 1, memory_gib: int = 1, **more: Any) -> TaskGroup:
    names = {"gpus": "gpus", "gpu_model": "gpu_model", "network": "network_mbit_s", "remote": "remote_network_mbit_s"}
    wanted = {name: more.pop(key) for key, name in names.items() if key in more}
    if "gpu_memory_gib" in more:
        wanted["gpu_memory_bytes"] = more.pop("gpu_memory_gib") * GIB
    requests = Requests(cpu_milli=round(cpus * 1000), memory_bytes=memory_gib * GIB, **wanted)
    return TaskGroup(name=name, command=("true",), count=count, requests=requests, **more)


def job(name: str, *groups: TaskGroup, priority: int = 0, waited: int = 0, at: float = 0.0, **more: Any) -> PendingJob:
    tasks = groups or (group(**more),)
    made = Job(id=name, name=name, user="u", groups=tasks, priority=priority, submitted_at=at)
    return PendingJob(job=made, rounds_waited=waited)


def due(entry: PendingJob, left_s: float) -> PendingJob:
    """Return the job with a deadline in ``left_s`` seconds from a round that takes place at ``NOW``."""
    goal = Goal() if math.isinf(left_s) else Goal(deadline_at=NOW + left_s)
    return replace(entry, job=replace(entry.job, goal=goal), left_s=left_s)


def world(*parts: NodeView | DeviceView) -> Snapshot:
    """Return the cluster that these nodes and devices make."""
    return Snapshot(
        nodes=tuple(part for part in parts if isinstance(part, NodeView)),
        devices=tuple(part for part in parts if isinstance(part, DeviceView)),
    )


def check_decision(snapshot: Snapshot, pending: Sequence[PendingJob], decision: Decision) -> None:
    """Assert what must hold of every decision, by sums of its own: no book of the scheduler is trusted."""
    jobs = {entry.job.id: entry.job for entry in pending}
    placed = [placement.job for placement in decision.placements]
    missed = [miss.job for miss in decision.misses]
    assert Counter(placed + missed) == Counter(entry.job.id for entry in pending)
    nodes = {view.name: view for view in snapshot.nodes}
    devices = {view.device.id: view for view in snapshot.devices}
    used: Counter[tuple[str, str]] = Counter()
    wires: Counter[str] = Counter()
    given: Counter[str] = Counter()
    for placement in decision.placements:
        wanted = {
            f"{tasks.name}.{number}": tasks for tasks in jobs[placement.job].groups for number in range(tasks.count)
        }
        names = [task.task for task in placement.tasks]
        assert len(set(names)) == len(names)
        for tasks in jobs[placement.job].groups:
            own = [name for name in names if wanted[name] is tasks]
            assert tasks.least <= len(own) <= tasks.count, "a job is whole"
            assert sorted(own) == sorted(f"{tasks.name}.{number}" for number in range(len(own)))
        for task in placement.tasks:
            tasks = wanted[task.task]
            used[task.node, "cpu"] += tasks.requests.cpu_milli
            used[task.node, "memory"] += tasks.requests.memory_bytes
            wires[task.node] += tasks.requests.network_mbit_s
            assert tasks.node in ("", task.node)
            assert all(nodes[task.node].labels.get(key) == value for key, value in tasks.labels.items())
            assert len(task.devices) == tasks.requests.gpus
            assert len({device.route for device in task.devices}) <= 1
            for device in task.devices:
                view = devices[device.device]
                given[device.device] += 1
                if device.route == Route.REMOTE:
                    # Both ends.
                    wires[task.node] += tasks.requests.remote_network_mbit_s or 0
                    wires[device.node] += tasks.requests.remote_network_mbit_s or 0
                assert view.free
                assert device.node == view.node
                assert device.route in tasks.routes
                assert (device.route == Route.LOCAL) == (device.node == task.node)
                assert tasks.requests.gpu_model.lower() in view.device.model.lower()
                assert view.device.memory_bytes >= tasks.requests.gpu_memory_bytes
            assert task.why
            assert task.cost >= 0
    for (name, what), amount in used.items():
        free = nodes[name].free
        assert amount <= (free.cpu_milli if what == "cpu" else free.memory_bytes), f"{name} is overcommitted in {what}"
    for name, amount in wires.items():
        counted = name in nodes and nodes[name].capacity.network_mbit_s
        assert not counted or amount <= nodes[name].free.network_mbit_s, f"{name} is overcommitted in network"
    assert all(count == 1 for count in given.values()), "a device is given out once"
    for miss in decision.misses:
        assert miss.misses
        assert all(part.message for part in miss.misses)
    assert decision.report.placed == len(placed)
    assert decision.report.certified or not decision.report.solves


def node_of(decision: Decision, name: str) -> list[str]:
    """Return the nodes of a placed job's tasks, in the order of its tasks."""
    return [task.node for placement in decision.placements if placement.job == name for task in placement.tasks]


def after(snapshot: Snapshot, pending: Sequence[PendingJob], decision: Decision) -> Snapshot:
    """Return the cluster with what ``decision`` placed in place."""
    jobs = {entry.job.id: entry.job for entry in pending}
    used: dict[str, Resources] = {}
    taken: set[str] = set()
    for placement in decision.placements:
        requests = {tasks.name: tasks.requests for tasks in jobs[placement.job].groups}
        for task in placement.tasks:
            add_room(used, room_of(requests[task.task.rsplit(".", 1)[0]], task))
            taken |= {device.device for device in task.devices}
    return Snapshot(
        nodes=tuple(
            NodeView(
                name=view.name,
                capacity=view.capacity,
                free=view.free - used.get(view.name, Resources()),
                labels=view.labels,
                rack=view.rack,
            )
            for view in snapshot.nodes
        ),
        devices=tuple(
            DeviceView(device=view.device, node=view.node, free=view.free and view.device.id not in taken)
            for view in snapshot.devices
        ),
    )


ROUTES = ((Route.LOCAL,), (Route.REMOTE,), (Route.LOCAL, Route.REMOTE))


@st.composite
def snapshots(draw: st.DrawFn, *, most_nodes: int = 5) -> Snapshot:
    """Draw a cluster: nodes partly used, in racks, with labels; GPUs of two models and sizes, some held."""
    count = draw(st.integers(0, most_nodes))
    nodes, devices = [], []
    for number in range(count):
        cpus, memory = draw(st.integers(1, 8)), draw(st.integers(1, 16))
        network = draw(st.sampled_from((0, 0, 100, 250, 1000)))
        nodes.append(
            node(
                f"n{number}",
                cpus=cpus,
                memory_gib=memory,
                free_cpus=draw(st.integers(0, cpus)),
                free_memory_gib=draw(st.integers(0, memory)),
                network=network,
                free_network=draw(st.sampled_from((network, network // 2))),
                rack=draw(st.sampled_from(("", "r1", "r2"))),
                labels=draw(st.sampled_from(({}, {"disk": "ssd"}))),
            )
        )
        for index in range(draw(st.integers(0, 3))):
            devices.append(
                gpu(
                    f"g{number}-{index}",
                    f"n{number}",
                    memory_gib=draw(st.sampled_from((16, 80))),
                    model=draw(st.sampled_from(("A100", "H100"))),
                    free=draw(st.booleans()),
                )
            )
    return Snapshot(nodes=tuple(nodes), devices=tuple(devices))


@st.composite
def pending_jobs(draw: st.DrawFn, *, most: int = 8) -> list[PendingJob]:
    """Draw a queue: gangs, several groups, pins, labels, GPUs by every set of routes."""
    jobs = []
    for number in range(draw(st.integers(0, most))):
        groups = [
            group(
                f"part{part}",
                count=(count := draw(st.integers(1, 3))),
                min_count=draw(st.sampled_from((0, 0, 0, 1, count))),
                cpus=draw(st.sampled_from((0, 0.5, 1, 3))),
                memory_gib=draw(st.integers(0, 4)),
                gpus=draw(st.sampled_from((0, 0, 1, 1, 2, 4))),
                gpu_model=draw(st.sampled_from(("", "", "a100"))),
                gpu_memory_gib=draw(st.sampled_from((0, 0, 40))),
                network=draw(st.sampled_from((0, 0, 50, 200))),
                remote=draw(st.sampled_from((None, 0, 100, 100, 150))),
                routes=draw(st.sampled_from(ROUTES)),
                node=draw(st.sampled_from(("", "", "", "n0", "n1", "n9"))),
                labels=draw(st.sampled_from(({}, {}, {"disk": "ssd"}))),
            )
            for part in range(draw(st.integers(1, 2)))
        ]
        jobs.append(
            job(
                f"j{number}",
                *groups,
                priority=draw(st.integers(0, 2)),
                waited=draw(st.sampled_from((0, 0, 1, 2, 40))),
                at=number,
            )
        )
    return jobs
