"""What operators do to the cluster: cordon, evict, forget, and what they say of applications.  Pure.

A cordon outlives a restart of the scheduler and of the node.  A node is
forgotten on an operator's word that it is off: nothing there can confirm a
release any more, and should the node come back after all, it must first give
up what it still holds.
"""

from __future__ import annotations

from farbus.model.operation import CordonKind
from farbus.model.states import JobState, LeaseState
from farbus.scheduler import events
from farbus.scheduler.cluster import persist_device
from farbus.scheduler.liveness import Liveness


class Operations(Liveness):
    """Operators' part of the machine."""

    def _cordoned(self, event: events.Cordoned) -> None:
        cordon = event.cordon
        self._record_of(cordon.kind, cordon.name).cordon = cordon
        self._effects.append(events.PersistCordon(kind=cordon.kind, name=cordon.name, cordon=cordon))
        self.generation += 1

    def _uncordoned(self, event: events.Uncordoned) -> None:
        self._uncordon(event.kind, event.name)
        self._want_round()

    def _uncordon(self, kind: CordonKind, name: str) -> None:
        record = self._record_of(kind, name)
        if record.cordon is not None:
            record.cordon = None
            self._effects.append(events.PersistCordon(kind=kind, name=name, cordon=None))

    def _profile_set(self, event: events.ProfileSet) -> None:
        self.inference.set(event.profile)
        self._effects.append(events.PersistProfile(profile=event.profile))

    def _profile_forgotten(self, event: events.ProfileForgotten) -> None:
        if self.inference.forget(event.application, event.user):
            self._effects.append(events.ForgetProfile(application=event.application, user=event.user))

    def _job_evicted(self, event: events.JobEvicted) -> None:
        """Have a job leave a node: one that runs ends, one that does not run yet or may begin anew starts elsewhere.

        Where it needs nothing of the node any more, or can do without what is there, it goes on.
        """
        job = self.jobs.get(event.job_id)
        runs = job.runs.at(event.node) if job is not None else []
        if job is None or not runs:
            return
        if job.state in (JobState.PREPARING, JobState.RUNNING) and not any(run.is_unfinished for run in runs):
            # What a task had that has ended well is on its way back.
            for run in runs:
                if not run.succeeded:
                    self._drop(job, run, event.reason)
            return
        begun = self._has_begun(job) or (job.state is JobState.RUNNING and not job.job.attachment)
        moves = job.state is JobState.RUNNING and job.job.moveable
        # A volume is attached again once the node takes something new.
        state = JobState.CANCELLED if begun and not moves else JobState.QUEUED
        if job.state in (JobState.PREPARING, JobState.RUNNING):
            self._undo(job, state, event.reason, moved=moves)

    def _node_forgotten(self, event: events.NodeForgotten) -> None:
        """Release what only the node could confirm; its devices keep their epochs in the ledger."""
        record = self.nodes.get(event.node)
        if record is None or record.node is None or record.connected:
            return
        self._node_gone(record, event.reason, is_off=True)
        for job_id in sorted(self._interactive[event.node]):
            self._cancel(self.jobs[job_id], event.reason)
        for lease_id in sorted(self.leases_of_node[event.node]):
            lease = self.leases[lease_id]
            if lease.state is not LeaseState.RELEASING:
                self._move_lease(lease, LeaseState.RELEASING)
            self._released(lease)
        for device_id in sorted(self.devices_of_node[event.node]):
            device = self.devices[device_id]
            device.device, device.present = None, False
            self._uncordon(CordonKind.DEVICE, device_id)
            self._effects.append(persist_device(device))
            self._effects += self.settle_claims([device_id])
        self._uncordon(CordonKind.NODE, event.node)
        record.node = None
        self.links.pop(event.node, None)
        self._effects.append(events.ForgetNode(name=event.node))
        self.shape += 1
        self._want_round()
