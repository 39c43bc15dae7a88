"""Volumes, attachments and jobs with storage under any interleaving of what can happen to them."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from farbus.errors import FarbusError
from farbus.model.device import Route
from farbus.model.job import StorageRequest, TaskState
from farbus.model.states import JobState, VolumeState
from farbus.scheduler import events
from farbus.scheduler.decision_maker import decision_maker
from farbus.scheduler.volume_plans import check_resize
from tests.scheduler.scripted import GIB, TTL_S, Cluster, about, node, storing
from tests.scheduler.slow_disk import SlowDisk
from tests.scheduler.test_stored_jobs import stored

VOLUMES = st.sampled_from(["data", "more"])
NODES = st.sampled_from(["a", "b", "c"])
REFUSED = st.sampled_from([events.MakeVolume, events.ResizeVolume, events.RemoveVolume, events.GrowClient])


class AnyOrder(SlowDisk):
    """Nodes a and b store, c has no drives; every step is followed by the checks of books, states and agents."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(storing("a", 2, size=100 * GIB), storing("b", 1, size=100 * GIB), node("c"))
        self.cluster.decision_maker = decision_maker("")
        self.cluster.join()
        self.jobs = 0

    @initialize(
        stripe=st.integers(1, 3),
        made=st.booleans(),
        begun=st.sampled_from(["attach", "use", ""]),
        settled=st.booleans(),
    )
    def begin_with_volumes(self, stripe: int, made: bool, begun: str, settled: bool) -> None:
        """Begin where it is interesting: with volumes that are made, or used by now, and room that is taken."""
        self.create("data", stripe, 60)
        self.create("more", 0, 10)
        if made or begun:
            self.cluster.settle()
        if begun == "attach":
            self.attach("data", "c")
        elif begun == "use":
            self.use("data", "c")
            self.use("more", "b")
        self.take_room(50, 0, "c")
        if settled:
            self.cluster.settle()
        self.grow(10 if made else 0)

    def grow(self, more: int) -> None:
        if more:
            self.resize("data", more)

    def new_job(self) -> str:
        self.jobs += 1
        return f"j{self.jobs}"

    @rule(name=VOLUMES, stripe=st.integers(0, 3), size=st.sampled_from([10, 60, 120]))
    def create(self, name: str, stripe: int, size: int) -> None:
        with contextlib.suppress(FarbusError):
            self.cluster.create(name, size * GIB, stripe=stripe)

    @rule(name=VOLUMES, more=st.integers(1, 40))
    def resize(self, name: str, more: int) -> None:
        record = self.cluster.machine.volumes.get(name)
        if record is None:
            return
        size = record.volume.size_bytes + more * GIB
        with contextlib.suppress(FarbusError):
            check_resize(self.cluster.machine, record, size)
            self.cluster.tell(events.VolumeResizeAsked(name=name, size_bytes=size, by="ada"))

    @rule(name=VOLUMES)
    def delete(self, name: str) -> None:
        record = self.cluster.machine.volumes.get(name)
        # As the service asks first.
        if record is not None and not record.jobs:
            self.cluster.tell(events.VolumeDeletionAsked(name=name, by="ada"))

    @rule(name=VOLUMES, on=NODES)
    def attach(self, name: str, on: str) -> None:
        record = self.cluster.machine.volumes.get(name)
        if record is None or record.volume.state is not VolumeState.AVAILABLE:
            return
        if self.cluster.machine.attachment_of(record) is None:
            self.cluster.attach(name, on, self.new_job())

    @rule(name=VOLUMES, on=st.sampled_from(["", "b", "c"]))
    def use(self, name: str, on: str) -> None:
        record = self.cluster.machine.volumes.get(name)
        if record is None or record.volume.state is not VolumeState.AVAILABLE:
            return
        request = StorageRequest(
            name="in", volume=name, devices=len(record.volume.parts), routes=(Route.LOCAL, Route.REMOTE)
        )
        self.cluster.submit(stored(self.new_job(), request, on=on))

    @rule(size=st.sampled_from([5, 50, 90]), devices=st.integers(0, 2), on=st.sampled_from(["", "c"]))
    def take_room(self, size: int, devices: int, on: str) -> None:
        routes = (Route.LOCAL, Route.REMOTE)
        request = StorageRequest(name="tmp", size_bytes=size * GIB, devices=devices, routes=routes)
        self.cluster.submit(stored(self.new_job(), request, on=on))

    @precondition(lambda self: self.cluster.machine.jobs)
    @rule(data=st.data(), released=st.booleans())
    def cancel(self, data: st.DataObject, released: bool) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.cluster.machine.jobs)))
        released = released and self.cluster.machine.jobs[job_id].job.attachment
        self.cluster.tell(events.JobCancelled(job_id=job_id, reason="enough", released=released))

    @rule(name=NODES)
    def finish(self, name: str) -> None:
        agent = self.cluster.agents[name]
        running = [key for key, status in agent.tasks.items() if status.state is TaskState.RUNNING]
        if running and agent.session:
            self.cluster.tell(agent.exit(*running[0]))

    @rule()
    def decide(self) -> None:
        if self.cluster.round_asked:
            self.cluster.decide()

    @rule(name=NODES)
    def step(self, name: str) -> None:
        self.cluster.step(name)

    @rule()
    def settle(self) -> None:
        self.cluster.settle()

    @rule(name=NODES, kind=REFUSED, refuses=st.booleans())
    def refuse(self, name: str, kind: type[events.Command], refuses: bool) -> None:
        refusals = self.cluster.agents[name].refuses
        if refuses:
            refusals[kind] = "it can't"
        else:
            refusals.pop(kind, None)

    @rule(name=NODES)
    def lose(self, name: str) -> None:
        if self.cluster.agents[name].session:
            self.cluster.lose(name)

    @rule(name=NODES)
    def forget(self, name: str) -> None:
        """A node is off, for good as an operator believes; what it stores may come back as nobody's."""
        agent = self.cluster.agents[name]
        if not agent.session:
            agent.die()
            self.cluster.tell(events.NodeForgotten(node=name, reason="off, says ann"))

    @rule(name=VOLUMES, remove=st.booleans())
    def adopt(self, name: str, remove: bool) -> None:
        with contextlib.suppress(FarbusError):
            self.cluster.adopt(name, remove=remove)

    @precondition(lambda self: self.cluster.machine.leases)
    @rule(data=st.data(), rate=st.sampled_from([0, 3 * GIB, 4 * GIB]))
    def overuse(self, data: st.DataObject, rate: int) -> None:
        record = self.cluster.machine.leases[data.draw(st.sampled_from(sorted(self.cluster.machine.leases)))]
        agent = self.cluster.agents[record.lease.device_node]
        self.cluster.tell(
            events.LeaseOverused(
                node=agent.name, session=agent.session, lease_id=record.lease.id, bytes_per_s=rate,
                granted_bytes_per_s=GIB,
            )
        )  # fmt: skip

    @precondition(lambda self: self.cluster.machine.leases)
    @rule(data=st.data(), trouble=st.sampled_from(["", "one of two paths is connecting"]))
    def lose_paths(self, data: st.DataObject, trouble: str) -> None:
        record = self.cluster.machine.leases[data.draw(st.sampled_from(sorted(self.cluster.machine.leases)))]
        agent = self.cluster.agents[record.lease.client_node]
        self.cluster.tell(
            events.LeasePaths(node=agent.name, session=agent.session, lease_id=record.lease.id, trouble=trouble)
        )

    @rule(name=NODES)
    def boot(self, name: str) -> None:
        agent = self.cluster.agents[name]
        if agent.session:
            self.cluster.lose(name)
        agent.die()

    @rule(name=NODES)
    def join(self, name: str) -> None:
        self.cluster.join(name)

    @rule()
    def restart(self) -> None:
        self.cluster.restart()

    @rule(name=NODES, position=st.integers(0, 3))
    def step_out_of_order(self, name: str, position: int) -> None:
        """What is asked of different things is done in any order."""
        agent = self.cluster.agents[name]
        if agent.inbox:
            command = agent.inbox[position % len(agent.inbox)]
            first = next(each for each in agent.inbox if about(each) == about(command))
            agent.inbox.remove(first)
            agent.inbox.insert(0, first)
            self.cluster.step(name)

    @rule(seconds=st.sampled_from([1.0, TTL_S, 3 * TTL_S]))
    def pass_time(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @invariant()
    def what_is_shown_can_be_told(self) -> None:
        for status in self.cluster.machine.volume_statuses():
            assert status.says.isprintable()
            assert (status.state is VolumeState.ATTACHED) <= bool(status.attached_to)

    def teardown(self) -> None:
        """Once everybody is back and nobody wants anything any more, nothing is left."""
        cluster = self.cluster
        if cluster.unwritten is not None:
            cluster.write_down()
        for agent in cluster.agents.values():
            agent.refuses.clear()
            if not agent.session:
                cluster.join(agent.name)
        cluster.settle()
        for job_id in list(cluster.machine.jobs):
            cluster.tell(events.JobCancelled(job_id=job_id, reason="the end"))
        for _ in range(4):
            cluster.settle()
            cluster.pass_time(60, step_s=5)
        assert not cluster.machine.jobs
        assert not cluster.machine.leases
        assert {status.state for status in cluster.ended.values()} <= {
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
        # Of a name that the ledger has parts of others may be left, which can be removed once its own are.
        for _ in range(2):
            for name in {status.name for status in cluster.machine.volume_statuses()} - set(cluster.machine.volumes):
                cluster.adopt(name, remove=True)
            for name, record in list(cluster.machine.volumes.items()):
                assert record.volume.state in (VolumeState.AVAILABLE, VolumeState.DELETING), record
                cluster.tell(events.VolumeDeletionAsked(name=name, by="ada"))
            for _ in range(4):
                cluster.settle()
                cluster.pass_time(60, step_s=5)
        assert cluster.machine.volume_statuses() == (), cluster.machine.volume_statuses()
        assert not cluster.memory.volumes
        assert not any(device.shares for device in cluster.machine.devices.values())
        assert not any(agent.parts for agent in cluster.agents.values())
        assert len(cluster.machine.steps) == 0


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestAnyOrder = AnyOrder.TestCase
