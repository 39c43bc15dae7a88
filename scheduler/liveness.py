"""Nodes and their leases: who is there, what each holds, who is gone.  Pure.

A lost session, a restarted agent and a restarted scheduler are the same case:
forget what was outstanding, compare with what the node says it holds, advance.
A device is free again when its node confirmed the release: by the outcome of
UnprepareDevices, or by a hello that no longer lists a lease which that node
once confirmed.
"""

from __future__ import annotations

from collections.abc import Callable

from farbus.model.cluster import network_load
from farbus.model.device import Route
from farbus.model.job import TaskState, TaskStatus
from farbus.model.states import JobState, LeaseState
from farbus.scheduler import events
from farbus.scheduler.agenda import Look
from farbus.scheduler.attempts import MAX_STOP_TRIES, Attempts
from farbus.scheduler.events import Verb
from farbus.scheduler.records import JobRecord, LeaseRecord, NodeRecord
from farbus.scheduler.runs import ClientSide, Program
from farbus.scheduler.steps import Step
from farbus.scheduler.words import describe_time

STALL_PART = 0.2
"""Part of the lease time by which a look may be late, a heartbeat's worth: more means that this process stood still."""
SILENT_PART = 0.5
"""Part of the lease time after which a node counts as silent: two heartbeats are missing.  What is left unrenewed then
is not its word on a lease."""
STALL_S = 1.0
"""Least such time: a busy event loop is no stall."""


class Liveness(Attempts):
    """Which nodes are there, and what they hold."""

    def __init__(
        self,
        *,
        term: int,
        lease_ttl_s: float,
        new_secret: Callable[[], str],
        boot_id: str = "",
        return_s: float | None = None,
        restart_grace_s: float = 0.0,
        unreachable_limit_s: float = 0.0,
    ) -> None:
        super().__init__(term=term, lease_ttl_s=lease_ttl_s, new_secret=new_secret, boot_id=boot_id)
        self.return_s = max(lease_ttl_s, return_s or 0.0)
        """How long nodes have to come back after this scheduler was away; they keep their leases meanwhile."""
        self.restart_grace_s = max(lease_ttl_s, restart_grace_s)
        """How long an agent that said that it stops may take to be started again; its leases are kept meanwhile."""
        self.unreachable_limit_s = unreachable_limit_s
        """How long a running job that does not say otherwise is kept while one of its nodes can't be reached."""

    # --- nodes that come -----------------------------------------------------------------

    def _node_joined(self, event: events.NodeJoined) -> None:
        name = event.node.name
        record = self.node(name)
        if record.session:
            self._effects.append(
                events.CloseSession(node=name, session=record.session, reason="the agent opened another session")
            )
        self._forget_commands(name)
        record.node = event.node
        record.session = event.session
        record.instance = event.instance
        record.gone = False
        record.back_by = 0.0
        self._heard(record)
        self._effects.append(events.PersistNode(node=event.node, seen_at=self._wall))
        self._effects += self.take_inventory(event.node)
        self._reached(record)
        self._watch_node(record, self._now + self.lease_ttl_s)
        self._reconcile_leases(record, {held.lease_id: held for held in event.held})
        self._reconcile_tasks(
            record,
            {(task.job_id, task.status.task): task.status for task in event.tasks},
            {held.lease_id for held in event.held},
            event.clients,
        )
        self._remove_strays(record, event)
        self._end_unheld(record)
        self._touch_node(name)
        self._want_round()

    def _end_unheld(self, record: NodeRecord) -> None:
        """End interactive jobs that an earlier process of the agent held: their programs' connections ended with it."""
        for job_id in sorted(self._interactive[record.name]):
            job = self.jobs[job_id]
            if not job.progress.holder:
                job.progress.holder = record.instance
                self._persist.add(job_id)
            elif job.progress.holder != record.instance:
                self._cancel(job, f"nobody holds it any more: the agent of node {record.name} was restarted")

    def _reconcile_leases(self, record: NodeRecord, held: dict[str, events.HeldLease]) -> None:
        for lease_id in sorted(self.leases_of_node[record.name]):
            lease = self.leases[lease_id]
            claim = held.get(lease_id)
            lease.trouble = claim.trouble if claim is not None and claim.device_side else lease.trouble
            is_held = claim is not None and (claim.device_side or lease.lease.route is Route.LOCAL)
            if is_held and claim is not None and lease.state is LeaseState.PREPARED:
                if claim.endpoint and claim.endpoint != lease.endpoint:
                    self._fail_lease(lease, f"its server on node {record.name} was restarted")
                lease.expires_at = self._now + self.lease_ttl_s
                # A look that waited for this agent to be started again comes too late.
                self._watch_lease(lease, lease.expires_at)
            elif not is_held and lease.prepared:
                if lease.state is LeaseState.PREPARED:
                    self._fail_lease(lease, f"the agent of node {record.name} no longer holds lease {lease_id}")
                    self._move_lease(lease, LeaseState.RELEASING)
                self._released(lease)

    def _reconcile_tasks(
        self,
        record: NodeRecord,
        tasks: dict[tuple[str, str], TaskStatus],
        held: set[str],
        clients: frozenset[tuple[str, str]] | None,
    ) -> None:
        lost = f"the agent of node {record.name} was restarted"
        for job_id in sorted(self.jobs_of_node[record.name]):
            job = self.jobs[job_id]
            for run in job.runs.at(record.name):
                if run.node != record.name:
                    continue
                status = tasks.get((job_id, run.task))
                if status is not None and run.is_alive:
                    self._apply_report(job, run, status)
                elif run.is_spare and run.program is Program.RUNNING:
                    run.lose(lost)
                    self._drop(job, run, lost)
                elif run.program is Program.RUNNING or (run.is_alive and job.state is JobState.FINISHING):
                    state = self._after_loss(job)
                    run.lose(lost)
                    self._undo(job, state, f"task {run.task} was lost: {lost}")
                if run.client is ClientSide.PREPARED and job.state is not JobState.FINISHING:
                    kept = any(lease in held for lease in run.leases) or status is not None
                    if clients is not None:
                        kept = (job_id, run.task) in clients or status is not None
                    if not kept and (run.leases or job.job.interactive):
                        self._lose_run(job, run, lost)

    def _remove_strays(self, record: NodeRecord, hello: events.NodeJoined) -> None:
        """Have the node undo what it holds without right; until then it gets nothing new."""
        strays: dict[str, Step] = {}

        def add(verb: Verb, *, job: str = "", task: str = "", lease: str = "") -> None:
            # What follows the node's name is its own word: a name has no slash, so it is no other node's key.
            key = f"{record.name}/{lease or f'{job}.{task}'}.{verb}"
            strays[key] = Step(verb=verb, node=record.name, job=job, task=task, lease=lease, stray=True)

        for held in hello.held:
            lease = self.leases.get(held.lease_id)
            if held.device_side and (lease is None or lease.lease.device_node != record.name):
                add(Verb.UNPREPARE_DEVICES, lease=held.lease_id)
        # Without its end, a task that is asked for again would be answered with how it ended before.
        ended = set()
        for told in hello.tasks:
            if self._is_wanted(record.name, told.job_id, told.status.task):
                continue
            if told.status.state is TaskState.EXITED:
                ended.add((told.job_id, told.status.task))
            else:
                add(Verb.STOP_TASK, job=told.job_id, task=told.status.task)
        for job_id, held_task in sorted(ended | (hello.clients or frozenset())):
            if not self._is_wanted(record.name, job_id, held_task):
                add(Verb.UNPREPARE_CLIENT, job=job_id, task=held_task)
        record.strays = frozenset(strays)
        for key, step in strays.items():
            self._step(key, step)

    def _is_wanted(self, node: str, job_id: str, task: str) -> bool:
        """Say whether an attempt has the task on the node, and has not let it go."""
        job = self.jobs.get(job_id)
        run = job.run(task) if job is not None else None
        return run is not None and run.node == node and run.client is not ClientSide.NONE

    def _settle_stray(self, key: str, step: Step, outcome: events.OutcomeArrived) -> None:
        if not outcome.ok and step.tries < MAX_STOP_TRIES and step.verb is Verb.STOP_TASK:
            self._retry(key, "")
        elif step.verb is Verb.STOP_TASK:
            step.verb, step.tries = Verb.UNPREPARE_CLIENT, 0
            self._ask(key)
        elif outcome.ok:
            self.steps.drop(key)
            self.nodes[step.node].strays -= {key}
            self._want_round()
        else:
            self._retry(key, "")

    # --- nodes that go -------------------------------------------------------------------

    def _node_lost(self, event: events.NodeLost) -> None:
        record = self.nodes.get(event.node)
        if record is None or record.session != event.session:
            return
        record.session = 0
        record.seen, record.seen_at = self._now, self._wall
        self._forget_commands(event.node)
        if record.node is not None:
            self._effects.append(events.PersistNode(node=record.node, seen_at=self._wall))
        self._watch_node(record, self._now + self.lease_ttl_s)
        self.generation += 1

    def _node_leaving(self, event: events.NodeLeaving) -> None:
        record = self._session(event.node, event.session)
        if record is not None:
            record.back_by = self._now + self.restart_grace_s

    def _node_gone(self, record: NodeRecord, reason: str, *, is_off: bool = False) -> None:
        """Give up what needs the node; where it may only be out of reach, some jobs are kept longer."""
        record.gone = True
        for job_id in sorted(self.jobs_of_node[record.name]):
            job = self.jobs[job_id]
            runs = job.runs.at(record.name)
            for run in runs:
                if run.is_spare:
                    self._drop(job, run, reason)
            job.runs.look_at(record.name)
            # What is taken back, or has ended well, has no need of the node; the steps of a spare's end are done with
            # where it is gone.
            if not any(run.is_unfinished for run in runs):
                self._end_absence(job, record, f"node {record.name} is not needed any more")
                self._touch(job_id)
                continue
            if not is_off and (until := self._kept_until(job, record)) > self._now:
                self._keep(job, record, until)
                continue
            for run in runs:
                if run.node == record.name:
                    self._lose_run(job, run, reason)
            for lease_id in self._leases_of(runs):
                if self.leases[lease_id].lease.device_node == record.name:
                    self._fail_lease(self.leases[lease_id], reason)
            self._touch(job_id)
        self._effects += self.settle_claims(self.devices_of_node[record.name])
        self.generation += 1

    def _kept_until(self, job: JobRecord, record: NodeRecord) -> float:
        """Return the monotonic time until which a job is kept though a node of its can't be reached.

        The agents of its leases renew them between them as long as they reach
        each other, which nobody here can know.  To wait costs no safety: a
        device stays the lease's until its node has confirmed the release.
        """
        if job.state is not JobState.RUNNING or not (self._has_begun(job) or job.job.attachment):
            return 0.0
        return max(record.seen, self.listening_since) + self._unreachable_limit_of(job)

    def _unreachable_limit_of(self, job: JobRecord) -> float:
        return job.job.unreachable_limit_s or self.unreachable_limit_s

    def _keep(self, job: JobRecord, record: NodeRecord, until: float) -> None:
        """Say of a job that it is kept, and look again when that is over."""
        self._watch_node(record, until)
        if record.name in job.progress.unreachable:
            return
        job.progress.unreachable.append(record.name)
        job.progress.reason = (
            f"unreachable: node {record.name} was last heard at {describe_time(record.seen_at)}; the job is kept for"
            f" {self._unreachable_limit_of(job):g} s"
        )
        self._tell(job, job.progress.reason)
        self._persist.add(job.job.id)
        self._announce(job)

    def _reached(self, record: NodeRecord) -> None:
        """A node is heard again: its jobs have outlived its absence, if it still holds what is theirs."""
        for job_id in sorted(self.jobs_of_node[record.name]):
            self._end_absence(self.jobs[job_id], record, f"node {record.name} is heard again")

    def _end_absence(self, job: JobRecord, record: NodeRecord, told: str) -> None:
        """Say of a job that it is not kept any longer for the sake of a node, if it is."""
        if record.name not in job.progress.unreachable:
            return
        job.progress.unreachable.remove(record.name)
        if job.state is JobState.RUNNING and not job.progress.unreachable:
            job.progress.reason = ""
        self._tell(job, told)
        self._persist.add(job.job.id)
        self._announce(job)

    # --- what nodes say ------------------------------------------------------------------

    def _inventory_changed(self, event: events.InventoryChanged) -> None:
        record = self._session(event.node.name, event.session)
        if record is None:
            return
        record.node = event.node
        self._effects.append(events.PersistNode(node=event.node, seen_at=self._wall))
        self._effects += self.take_inventory(event.node)
        self._want_round()

    def _heartbeat_arrived(self, event: events.HeartbeatArrived) -> None:
        record = self._session(event.node, event.session)
        if record is None:
            return
        lost = event.telemetry is not None and not record.figures.take(event.telemetry, self._now)
        self.links[event.node] = record.figures.links
        self.loads.note(event.node, network_load(record.figures.links, self._now), self._now)
        renewed, void = [], []
        for lease_id in dict.fromkeys(event.lease_ids):
            lease = self.leases.get(lease_id)
            if lease is None or event.node not in (lease.lease.device_node, lease.lease.client_node):
                void.append(lease_id)
            elif lease.state is not LeaseState.RELEASING:
                renewed.append(lease_id)
                if lease.lease.device_node == event.node:
                    lease.expires_at = self._now + self.lease_ttl_s
        self._send(record, events.HeartbeatReply(renewed=tuple(renewed), void=tuple(void), telemetry_lost=lost))

    def _session(self, name: str, session: int) -> NodeRecord | None:
        """Return the node if ``session`` is its session, and note that it was heard."""
        record = self.nodes.get(name)
        if record is None or record.session != session:
            return None
        self._heard(record)
        return record

    def _heard(self, record: NodeRecord) -> None:
        record.seen, record.seen_at = self._now, self._wall

    def _watch_node(self, record: NodeRecord, due: float) -> None:
        """Look at the node by ``due``."""
        self._agenda.watch(due, Look.NODE, record.name)

    def _watch_lease(self, lease: LeaseRecord, due: float) -> None:
        """Look at the lease by ``due``."""
        self._agenda.watch(due, Look.LEASE, lease.lease.id)

    def _touch_node(self, name: str) -> None:
        for job_id in sorted(self.jobs_of_node[name]):
            self.jobs[job_id].runs.look_at(name)
            self._touch(job_id)
        for lease_id in sorted(self.leases_of_node[name]):
            # Releases outlive their job when the node was gone.
            if self.leases[lease_id].state is LeaseState.RELEASING:
                self._release(self.leases[lease_id])

    # --- time ----------------------------------------------------------------------------

    @property
    def _patient_until(self) -> float:
        """Until then this scheduler's own absence may explain a silence."""
        return self.listening_since + self.return_s

    def _notice_stall(self) -> None:
        """A look that is long overdue shows that this process stood still (SIGSTOP, a suspended machine)."""
        due = self._agenda.next_due()
        if due is not None and self._now - due > max(STALL_S, self.lease_ttl_s * STALL_PART):
            self.listening_since = self._now

    def _check_node(self, name: str) -> None:
        record = self.nodes[name]
        due = max(record.seen + self.lease_ttl_s, record.back_by, self._patient_until)
        if due > self._now:
            self._watch_node(record, due)
            return
        if record.connected:
            reason = f"nothing was heard for {self.lease_ttl_s:g} s"
            self._effects.append(events.CloseSession(node=name, session=record.session, reason=reason))
            record.session = 0
            self._forget_commands(name)
        silent = f"its agent has not been heard for {self._now - record.seen:.0f} s"
        if record.back_by:
            silent = f"its agent was stopped, and was not started again within {self.restart_grace_s:g} s"
        self._node_gone(record, f"node {name} was lost: {silent}")

    def _check_lease(self, lease_id: str) -> None:
        lease = self.leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.PREPARED:
            return
        record, job = self.node(lease.lease.device_node), self.jobs.get(lease.lease.job)
        # A node whose agent is restarted, or which is silent, is looked at as a whole (_check_node).
        due = max(lease.expires_at, record.back_by, self._patient_until)
        if job is not None and self._now - record.seen > self.lease_ttl_s * SILENT_PART:
            due = max(due, record.seen + self.lease_ttl_s, self._kept_until(job, record))
        if due > self._now:
            self._watch_lease(lease, due)
        else:
            node = lease.lease.device_node
            self._fail_lease(lease, f"node {node} did not renew lease {lease_id} for {self.lease_ttl_s:g} s")
