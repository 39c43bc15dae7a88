"""Phases of devices: bundles of whole devices, from the task's own node or lent by another.

The node of each task is decided (phase 1); this phase decides its devices.
All devices of one task are one *bundle*: it goes to one node as a unit, never
split by the flow, because a flow of sizes would split it (unsplittable flow
is NP-hard).  Tasks of one node and request share a
source with parallel routes: a preference arc to their own node (local) and an
aggregator to all lenders (remote).  A bundle larger than any one node has is
served device by device, and may then come from several lenders.

A new kind of device is a subclass of :class:`DevicePhase`; see
docs/scheduling.md for one written out.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence

import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import DeviceKind
from farbus.model.job import Miss, TaskGroup
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.phases.base import Desk, Flags, Phase
from farbus.scheduler.phases.cluster import Cluster
from farbus.scheduler.phases.device_desk import DeviceDesk
from farbus.scheduler.phases.stock import DeviceRequest
from farbus.scheduler.phases.tables import Integers

__all__ = ["DevicePhase", "DeviceRequest"]


class DevicePhase(Phase):
    """One kind of device as a plug-in of the round: what a group wants, and which devices will do."""

    kind: DeviceKind
    noun: str
    """What a person calls the device: ``GPU``."""

    @abc.abstractmethod
    def request(self, pending: PendingJob, group: TaskGroup) -> DeviceRequest | None:
        """Return what each task of ``group`` wants, judging by nothing but the job; None for nothing."""

    def asks(self, pending: PendingJob, group: TaskGroup) -> Hashable:
        """Return the request."""
        return self.request(pending, group)

    @abc.abstractmethod
    def matches(self, cluster: Cluster, wanted: Hashable) -> Flags:
        """Return, shape (D,), which devices of the cluster satisfy the filter ``wanted``, free or not."""

    def explain_filter(self, cluster: Cluster, wanted: Hashable) -> Miss | None:
        """Say why no device of the cluster satisfies ``wanted``."""
        del cluster
        return Miss(
            phase=self.name,
            resource=self.noun,
            message=f"no {self.noun} of the cluster is what the job wants ({wanted})",
            permanent=True,
        )

    def zones(self, cluster: Cluster) -> Integers:
        """Return, shape (M,), which nodes can lend to each other: those of one zone; a negative zone lends nothing."""
        return np.zeros(cluster.size, np.int64)

    def explain_zones(self, cluster: Cluster) -> str:
        """Say which zones there are, and why; nothing where that explains itself."""
        del cluster
        return ""

    def open(self, cluster: Cluster, policy: Policy, later: Sequence[Desk]) -> Desk:
        """Return the desk of the last round, brought up to date, or a new one."""
        del later
        kept = cluster.kept.desks.get(self.name)
        if isinstance(kept, DeviceDesk) and kept.serves(self, cluster, policy):
            kept.renew(cluster)
            return kept
        cluster.kept.desks[self.name] = desk = DeviceDesk(self, cluster, policy)
        return desk
