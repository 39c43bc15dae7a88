"""The cluster machine under any interleaving of what can happen to it."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from farbus.errors import Conflict, FarbusError, NotFound
from farbus.model.device import Route, whole_of
from farbus.model.job import Alternative, GroupVariant, TaskState, TaskStatus
from farbus.model.move import MoveState, NodeMove
from farbus.model.node import Resources
from farbus.model.operation import Cordon, CordonKind
from farbus.model.rules import Quota, Rules
from farbus.model.states import DeviceState
from farbus.scheduler import events
from farbus.scheduler.decision_maker import DecisionMaker, DecisionThread
from farbus.scheduler.room_planner import RoomPlanner
from tests.scheduler.scripted import HEARTBEAT_S, TTL_S, Cluster, ScriptedAgent, about, job, node
from tests.scheduler.slow_disk import SlowDisk

ROUTES = (Route.LOCAL, Route.REMOTE, Route.RECOMPOSED)
MOVES = (events.DetachDevice, events.AttachDevice)
DEVICES = st.sampled_from(["GPU-a-0", "GPU-a-1", "GPU-b-0"])
NAMES = st.sampled_from(["a", "b", "c"])


INDEX = st.integers(0, 2)


def has_work(machine: AnyOrder) -> bool:
    return any(agent.inbox for agent in machine.cluster.agents.values())


class AnyOrder(SlowDisk):
    """Nodes a and b have GPUs, c has none; the agents assert that no device is under two leases."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(node("a", 2, cpu_milli=2000), node("b", 1, cpu_milli=2000), node("c", cpu_milli=3000))
        self.fabric = self.cluster.give_fabric(to=("a", "b"))
        self.cluster.join()
        self.cluster.read_chassis()
        self.jobs = 0
        self.answered: list[events.OutcomeArrived] = []
        self.on_the_way: list[events.Event] = []
        """What agents have said, and nobody has heard yet."""
        self.deciding: list[events.Event] = []
        """What a round, or who makes room, will have decided on the cluster as it was."""

    @initialize(
        settled=st.booleans(),
        decided=st.booleans(),
        late=st.booleans(),
        kept_s=st.sampled_from([0.0, 3 * TTL_S]),
        looks_at_all=st.booleans(),
    )
    def begin_with_work(self, settled: bool, decided: bool, late: bool, kept_s: float, looks_at_all: bool) -> None:
        """Begin where it is interesting: with jobs that wait, are being prepared, or run, one with a late task."""
        self.cluster.looks_at_all = looks_at_all
        self.cluster.unreachable_limit_s = self.cluster.machine.unreachable_limit_s = kept_s
        self.jobs = 4
        for agent in self.cluster.agents.values():
            agent.stages = True
        self.cluster.submit(
            job("j1", gpus=1, on="c"),
            job("j2", on="a"),
            job("j3", gpus=1, on="c", interactive=True),
            # One of its tasks has room.
            job("j4", gpus=1, cpu_milli=500, count=3, min_count=1),
        )
        if late:
            self.cluster.settle()
            self.cluster.tell(self.cluster.agents["c"].exit("j1", "main.0"))
            while not self.cluster.machine.jobs["j4"].run("main.1"):
                if self.cluster.round_asked:
                    self.cluster.decide()
                for name in self.cluster.agents:
                    self.cluster.step(name)
        elif settled:
            self.cluster.settle()
        elif decided:
            self.cluster.decide()

    @rule(
        gpus=st.integers(0, 2),
        count=st.integers(1, 2),
        on=st.sampled_from(["", "", "a", "c"]),
        interactive=st.booleans(),
        limit=st.sampled_from([0.0, 0.0, 40.0]),
        priority=st.integers(0, 2),
        moveable=st.booleans(),
        min_count=st.sampled_from([0, 1]),
        recomposed=st.booleans(),
        shared=st.sampled_from([False, False, True]),
        staged=st.booleans(),
        flavours=st.booleans(),
    )
    def submit(
        self,
        gpus: int,
        count: int,
        on: str,
        interactive: bool,
        limit: float,
        priority: int,
        moveable: bool,
        min_count: int,
        recomposed: bool,
        shared: bool,
        staged: bool,
        flavours: bool,
    ) -> None:
        self.jobs += 1
        if interactive:
            new = job(f"j{self.jobs}", gpus=gpus, on="c", interactive=True, time_limit_s=limit)
        else:
            new = job(
                f"j{self.jobs}",
                gpus=gpus,
                count=count,
                min_count=min_count,
                on=on,
                time_limit_s=limit,
                priority=priority,
                routes=ROUTES if recomposed else ROUTES[:2],
            )
            new = msgspec.structs.replace(new, moveable=moveable, stage_in="digest" if staged else "")
            (group,) = new.groups
            if shared and gpus == 1:
                halves = msgspec.structs.replace(group.requests, gpu_share_milli=500)
                new = msgspec.structs.replace(new, groups=(msgspec.structs.replace(group, requests=halves),))
            elif flavours:
                fewer = msgspec.structs.replace(group.requests, gpus=max(0, gpus - 1))
                variant = GroupVariant(name=group.name, requests=fewer, routes=group.routes)
                new = msgspec.structs.replace(new, alternatives=(Alternative(name="small", groups=(variant,)),))
        self.cluster.submit(new)

    @rule(jobs=st.sampled_from([None, None, 1, 2]), devices=st.sampled_from([None, None, 1, 2]))
    def set_rules(self, jobs: int | None, devices: int | None) -> None:
        quota = Quota(jobs=jobs, devices=devices)
        self.cluster.tell(events.RulesChanged(rules=Rules(quota=quota, preemption=True, preemption_min_run_s=0.0)))

    @rule(moving=st.booleans(), at_once=st.booleans(), data=st.data())
    def make_room(self, moving: bool, at_once: bool, data: st.DataObject) -> None:
        """Jobs are preempted, or moved at an operator's wish, for one that waits."""
        cluster = self.cluster
        waiting = sorted(cluster.machine.queue)
        if not waiting:
            return
        planner = RoomPlanner(
            cluster.machine, DecisionMaker(DecisionThread(cluster.decision_maker)), lambda: cluster.now
        )
        plan: events.RoomPlanned | None = None
        if moving:
            with contextlib.suppress(NotFound, Conflict):
                _, plan = asyncio.run(planner.defragment(data.draw(st.sampled_from(waiting))))
        else:
            cluster.tell(events.RulesChanged(rules=Rules(preemption=True, preemption_min_run_s=0.0)))
            plan = asyncio.run(planner.preempt(waiting))
        if plan is not None:
            self.deciding.append(plan)
            if at_once:
                self.decided()

    @precondition(lambda self: self.cluster.round_asked)
    @rule()
    def decide(self) -> None:
        self.cluster.decide()

    @precondition(lambda self: self.cluster.round_asked)
    @rule(name=NAMES)
    def decide_late(self, name: str) -> None:
        """A node is lost, or comes back, between a round's snapshot and its decision."""
        cluster = self.cluster
        cluster.round_asked = False
        snapshot, pending, generation = cluster.machine.round_input(cluster.now)
        decision = cluster.decision_maker(snapshot, pending)
        if cluster.agents[name].session:
            cluster.lose(name)
        else:
            cluster.join(name)
        cluster.tell(events.RoundDecided(decision=decision, generation=generation))

    @precondition(lambda self: self.cluster.round_asked)
    @rule()
    def begin_to_decide(self) -> None:
        """A round takes its time: anything happens between its snapshot and its decision."""
        cluster = self.cluster
        cluster.round_asked = False
        snapshot, pending, generation = cluster.machine.round_input(cluster.now)
        self.deciding.append(
            events.RoundDecided(decision=cluster.decision_maker(snapshot, pending), generation=generation)
        )

    @precondition(lambda self: self.deciding)
    @rule()
    def decided(self) -> None:
        while self.deciding:
            self.cluster.tell(self.deciding.pop(0))

    def busy(self, index: int) -> ScriptedAgent:
        """Choose among the agents that have something to do."""
        agents = [agent for agent in self.cluster.agents.values() if agent.inbox]
        return agents[index % len(agents)]

    @precondition(has_work)
    @rule(index=INDEX, count=st.integers(1, 3))
    def work(self, index: int, count: int) -> None:
        name = self.busy(index).name
        for _ in range(count):
            self.cluster.step(name)

    @precondition(has_work)
    @rule(index=INDEX)
    def work_and_answer_twice(self, index: int) -> None:
        agent = self.busy(index)
        outcome = agent.do(agent.inbox.pop(0))
        if outcome is not None:
            self.answered.append(outcome)
            self.cluster.tell(outcome)
            self.cluster.tell(outcome)

    @precondition(has_work)
    @rule(index=INDEX, position=st.integers(0, 3))
    def work_unheard(self, index: int, position: int) -> None:
        """A command is carried out, whatever came before it for other leases and tasks; the answer takes its time."""
        agent = self.busy(index)
        command = agent.inbox[position % len(agent.inbox)]
        command = next(each for each in agent.inbox if about(each) == about(command))
        agent.inbox.remove(command)
        outcome = agent.do(command)
        if outcome is not None:
            self.on_the_way.append(outcome)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        said = data.draw(st.sampled_from(self.on_the_way))
        self.on_the_way.remove(said)
        self.cluster.tell(said)

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        self.cluster.tell(data.draw(st.sampled_from(self.answered)))

    @precondition(has_work)
    @rule(index=INDEX, done=st.booleans())
    def fail(self, index: int, done: bool) -> None:
        """A command fails, having done its work or not."""
        agent = self.busy(index)
        command = agent.inbox.pop(0)
        outcome = agent.answer(command, error="it failed")
        if isinstance(command, MOVES):
            # A node that says no has undone it, or is stuck.
            if command.move_id not in agent.moves:
                self.cluster.tell(msgspec.structs.replace(outcome, move=NodeMove(stuck=done)))
            return
        if done:
            agent.do(command)
        self.cluster.tell(outcome)

    @precondition(has_work)
    @rule(index=INDEX, done=st.booleans())
    def lose_an_answer(self, index: int, done: bool) -> None:
        agent = self.busy(index)
        command = agent.inbox.pop(0)
        if done:
            agent.do(command)
        if isinstance(command, MOVES):
            self.cluster.lose(agent.name)

    @rule(name=NAMES, code=st.sampled_from([0, 0, 0, 1, -9]), told=st.booleans())
    def exit(self, name: str, code: int, told: bool) -> None:
        agent = self.cluster.agents[name]
        for (job_id, task), status in agent.tasks.items():
            if status.state == "running":
                report = agent.exit(job_id, task, code)
                if told and agent.session:
                    self.cluster.tell(report)
                elif agent.session:
                    self.cluster.lose(name)  # a report is only lost with its session
                return

    @rule(name=NAMES, begins=st.booleans())
    def files_arrive(self, name: str, begins: bool) -> None:
        """A program that waited for its files begins, or never will: they could not be fetched."""
        agent = self.cluster.agents[name]
        for (job_id, task), status in agent.tasks.items():
            if status.unstarted and status.state is TaskState.RUNNING:
                now = msgspec.structs.replace(status, unstarted=False)
                if not begins:
                    now = msgspec.structs.replace(status, state=TaskState.EXITED, exit_code=1, reason="no files")
                agent.tasks[job_id, task] = now
                if agent.session:
                    report = events.TaskReported(node=name, session=agent.session, job_id=job_id, status=now)
                    self.cluster.tell(report)
                return

    @rule(name=NAMES)
    def end_a_client_side(self, name: str) -> None:
        """A node can't keep up its side of a task: what it used is gone."""
        agent = self.cluster.agents[name]
        if agent.session and agent.client_side:
            job_id, task = sorted(agent.client_side)[0]
            del agent.client_side[job_id, task]
            self.cluster.tell(
                events.LeaseEndedByNode(
                    node=name, session=agent.session, lease_id="", device_side=False, reason="its peer is silent",
                    job_id=job_id, task=task,
                )
            )  # fmt: skip

    @rule(name=NAMES)
    def end_a_lease(self, name: str) -> None:
        agent = self.cluster.agents[name]
        if agent.session and agent.device_side:
            lease_id = sorted(agent.device_side)[0]
            del agent.device_side[lease_id]
            self.cluster.tell(
                events.LeaseEndedByNode(
                    node=name, session=agent.session, lease_id=lease_id, device_side=True, reason="its server died"
                )
            )

    @rule(liar=NAMES, ok=st.booleans(), code=st.sampled_from([0, 1]), state=st.sampled_from(list(TaskState)))
    def lie_about_others(self, liar: str, ok: bool, code: int, state: TaskState) -> None:
        """A node answers, reports and ends what is another node's: nothing changes."""
        cluster, machine = self.cluster, self.cluster.machine
        session = cluster.agents[liar].session
        if not session or cluster.unwritten is not None:
            return
        before = len(cluster.sent), dict(cluster.memory.jobs), dict(cluster.memory.leases)
        for command_id, key in machine.steps.outstanding().items():
            if machine.steps[key].node != liar:
                cluster.tell(events.OutcomeArrived(node=liar, session=session, command_id=command_id, ok=ok))
        for record in list(machine.jobs.values()):
            for run in record.runs:
                if run.node != liar:
                    status = TaskStatus(task=run.task, state=state, node=liar, exit_code=code)
                    cluster.tell(events.TaskReported(node=liar, session=session, job_id=record.job.id, status=status))
        for lease in list(machine.leases.values()):
            if liar not in (lease.lease.device_node, lease.lease.client_node):
                cluster.tell(
                    events.LeaseEndedByNode(
                        node=liar, session=session, lease_id=lease.lease.id, device_side=True, reason="a lie"
                    )
                )
                expires_at = lease.expires_at
                cluster.tell(events.HeartbeatArrived(node=liar, session=session, lease_ids=(lease.lease.id,)))
                assert lease.expires_at == expires_at
                cluster.sent.pop()
        assert before == (len(cluster.sent), cluster.memory.jobs, cluster.memory.leases)

    @rule(name=NAMES)
    def cut_off(self, name: str) -> None:
        if self.cluster.agents[name].session:
            self.cluster.lose(name)

    @rule(name=NAMES)
    def cut_off_until_it_is_gone(self, name: str) -> None:
        if self.cluster.agents[name].session:
            self.cluster.lose(name)
            self.cluster.pass_time(TTL_S)

    @rule(name=NAMES)
    def stop_agent(self, name: str) -> None:
        """It says so first, and comes back in time, late or never."""
        if self.cluster.agents[name].session:
            self.cluster.stop(name)

    @rule()
    def stand_still(self) -> None:
        """The scheduler's process stops for a while and goes on."""
        alive = {name for name, record in self.cluster.machine.nodes.items() if not record.gone}
        self.cluster.now += 5 * TTL_S
        self.cluster.tell(events.ClockTicked())
        assert alive == {name for name, record in self.cluster.machine.nodes.items() if not record.gone}

    @rule()
    def settle(self) -> None:
        self.cluster.settle()

    @rule(name=NAMES)
    def kill_agent(self, name: str) -> None:
        agent = self.cluster.agents[name]
        if agent.session:
            self.cluster.lose(name)
        agent.die()

    @rule(name=NAMES, divides=st.sampled_from([None, None, False, True]))
    def come_back(self, name: str, divides: bool | None) -> None:
        """It has a new session; where it was started anew, its GPUs may be offered otherwise since."""
        agent = self.cluster.agents[name]
        agent.divides = agent.divides if divides is None else divides
        self.cluster.join(name)

    @rule(boots=st.booleans())
    def restart_scheduler(self, boots: bool) -> None:
        if boots:
            self.cluster.reboot()
        else:
            self.cluster.restart()
        self.answered.clear()
        self.deciding.clear()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), released=st.booleans(), code=st.sampled_from([None, 0, 1]))
    def cancel(self, data: st.DataObject, released: bool, code: int | None) -> None:
        job_id = f"j{data.draw(st.integers(1, self.jobs))}"
        record = self.cluster.machine.jobs.get(job_id)
        if released and record is not None and record.job.interactive:
            self.cluster.tell(events.JobCancelled(job_id=job_id, reason="", released=True, exit_code=code))
        else:
            self.cluster.tell(events.JobCancelled(job_id=job_id, reason="cancelled"))

    @rule(device=DEVICES, to=st.sampled_from(["", "a", "b", "c"]), dry_run=st.booleans())
    def move(self, device: str, to: str, dry_run: bool) -> None:
        """An operator has a device moved, where that is not refused."""
        with contextlib.suppress(FarbusError):
            self.cluster.move(device, to, dry_run=dry_run)

    @precondition(lambda self: self.cluster.machine.moves)
    @rule(data=st.data())
    def call_off(self, data: st.DataObject) -> None:
        move_id = data.draw(st.sampled_from(sorted(self.cluster.machine.moves)))
        if not self.cluster.machine.moves[move_id].move.dry_run:
            self.cluster.tell(events.MoveCancelled(move_id=move_id, by="ann"))

    @rule(name=NAMES, device=DEVICES, tells=st.booleans())
    def move_locally(self, name: str, device: str, tells: bool) -> None:
        """An operator takes a device from a node by hand, or to it, as its agent and, if it hears it, the scheduler
        let him."""
        agent, machine = self.cluster.agents[name], self.cluster.machine
        held = [leased.device for lease in agent.device_side.values() for leased in lease.devices]
        if any(whole_of(each) == device for each in held) or agent.late:
            return
        for status in machine.device_statuses() if agent.session else ():
            taken = status.lease or status.used_by or status.move or status.kept_for
            if whole_of(status.device.id) == device and taken:
                return
        # What is being done to it is done by one at a time.
        if any(getattr(command, "device", "") == device for command in agent.inbox):
            return
        agent.move_locally(device)
        if agent.session and tells:
            self.cluster.tell(agent.inventory())

    @rule()
    def read_chassis(self) -> None:
        self.cluster.read_chassis()

    @rule(name=NAMES)
    def tell_inventory(self, name: str) -> None:
        if self.cluster.agents[name].session:
            self.cluster.tell(self.cluster.agents[name].inventory())

    @rule(name=st.sampled_from(["a", "b", "c", "GPU-a-0"]), on=st.booleans())
    def cordon(self, name: str, on: bool) -> None:
        kind = CordonKind.DEVICE if name.startswith("GPU") else CordonKind.NODE
        machine = self.cluster.machine
        known = machine.devices[name].device if kind is CordonKind.DEVICE else machine.node(name).node
        if on and known is not None:
            cordon = Cordon(kind=kind, name=name, by="ann", at=0.0)
            self.cluster.tell(events.Cordoned(cordon=cordon))
        elif not on:
            self.cluster.tell(events.Uncordoned(kind=kind, name=name))

    @rule(name=NAMES)
    def evict(self, name: str) -> None:
        for job_id in sorted(self.cluster.machine.jobs_of_node[name]):
            self.cluster.tell(events.JobEvicted(job_id=job_id, node=name, reason="evicted"))

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        """An operator says that a node is off: it may be wrong, and the node comes back with all that it held."""
        agent = self.cluster.agents[name]
        # What was under way when it was lost has been done long since.
        while not agent.session and agent.late:
            agent.do(agent.late.pop(0))
        self.cluster.tell(events.NodeForgotten(node=name, reason="off"))

    @rule(seconds=st.sampled_from([1.0, 5.0, TTL_S, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @invariant()
    def nobody_was_to_get_what_somebody_has(self) -> None:
        assert not self.cluster.faults

    @invariant()
    def the_ledger_agrees_with_the_machine(self) -> None:
        machine, memory = self.cluster.machine, self.cluster.memory
        if self.cluster.unwritten is not None:
            return
        assert set(memory.leases) == set(machine.leases)
        assert set(memory.jobs) == set(machine.jobs)
        assert {move.id: move for move in memory.live_moves()} == {
            move_id: record.move for move_id, record in machine.moves.items() if not record.move.dry_run
        }
        for job_id, (_, state, _) in memory.jobs.items():
            assert state is machine.jobs[job_id].state

    def teardown(self) -> None:
        """Everything works from now on: every job ends or runs, and nothing is left over."""
        cluster = self.cluster
        if cluster.unwritten is not None:
            cluster.write_down()
        self.decided()
        for said in self.on_the_way:
            cluster.tell(said)
        for name, agent in cluster.agents.items():
            agent.stages = False
            while any(status.unstarted and status.state is TaskState.RUNNING for status in agent.tasks.values()):
                self.files_arrive(name, begins=True)
            if agent.divides:
                agent.divides = False
                cluster.join(name)
        cluster.tell(events.RulesChanged(rules=Rules()))
        for kind, name in list(cluster.memory.cordons):
            cluster.tell(events.Uncordoned(kind=kind, name=name))
        for name, agent in cluster.agents.items():
            if not agent.session:
                cluster.join(name)
        for _ in range(6):
            cluster.settle()
            cluster.pass_time(130.0, step_s=HEARTBEAT_S)
        cluster.settle()
        self.settle_moves()
        for agent in cluster.agents.values():
            for (job_id, task), status in agent.tasks.items():
                wanted = job_id in cluster.machine.jobs and cluster.machine.jobs[job_id].run(task) is not None
                assert wanted or status.state != "running", f"{job_id} runs on node {agent.name} without right"
        for _ in range(self.jobs + 1):
            for agent in cluster.agents.values():
                for (job_id, task), status in list(agent.tasks.items()):
                    if status.state == "running":
                        cluster.tell(agent.exit(job_id, task))
            for record in list(cluster.machine.jobs.values()):
                if record.job.interactive and record.state == "running":
                    cluster.tell(events.JobCancelled(job_id=record.job.id, reason="closed"))
            for _ in range(3):
                cluster.settle()
                cluster.pass_time(40.0, step_s=HEARTBEAT_S)
        cluster.settle()
        waiting = dict(cluster.machine.jobs)
        for record in waiting.values():
            assert record.state == "queued", (record.job.id, record.state, record.progress.story)
            assert any(miss.permanent for miss in record.misses), (record.misses, record.progress.story)
        assert not cluster.machine.leases
        assert not cluster.machine.reservations
        assert not len(cluster.machine.steps)
        assert not cluster.machine.steps.outstanding()
        for agent in cluster.agents.values():
            assert not agent.device_side, agent
            assert not agent.client_side, agent
            assert not agent.tasks, agent
        for record in cluster.machine.nodes.values():
            assert record.used == Resources()
            assert record.reserved == Resources()
            assert not record.strays
        # What was submitted and not written down before a kill nobody was told to be submitted.
        assert cluster.ended.keys() | waiting.keys() == cluster.memory.seen

    def settle_moves(self) -> None:
        """Nobody is on the way any more; what is stuck or free is brought to a node, and every device is at one."""
        cluster = self.cluster
        for name in cluster.agents:
            cluster.tell(cluster.agents[name].inventory())
        cluster.read_chassis()
        assert all(record.move.state is MoveState.STUCK for record in cluster.machine.moves.values())
        for device, node_name in self.fabric.at.items():
            if cluster.machine.mover_of(device) or not node_name:
                move = cluster.move(device, node_name or "a")
                cluster.settle()
                assert cluster.moves[move].state is MoveState.DONE, cluster.moves[move]
        assert not cluster.machine.moves
        assert not cluster.memory.moves
        for name in cluster.agents:
            cluster.tell(cluster.agents[name].inventory())
        for agent in cluster.agents.values():
            assert {device.id for device in agent.node.devices} == {
                device for device, node_name in self.fabric.at.items() if node_name == agent.name
            }
        for status in cluster.machine.device_statuses():
            if status.device.share_milli:
                # Its GPU went by hand from a node that had divided it, and that one offers none of it.
                assert status.state is DeviceState.LOST
                continue
            assert status.node == self.fabric.at[status.device.id], status
            assert status.state in (DeviceState.FREE, DeviceState.LEASED), status
        cluster.settle()


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
