"""A phase for CXL memory expanders, as docs/scheduling.md shows it."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import DeviceKind, Route
from farbus.model.job import TaskGroup
from farbus.scheduler.phases.base import Flags, Integers
from farbus.scheduler.phases.cluster import Cluster
from farbus.scheduler.phases.device import DevicePhase, DeviceRequest


class CxlMemoryPhase(DevicePhase):
    """CXL memory expanders: PCI devices, lent among the nodes of one switch (one rack)."""

    name = "cxl"
    kind = DeviceKind.PCI
    noun = "CXL expander"

    def request(self, pending: PendingJob, group: TaskGroup) -> DeviceRequest | None:
        """Take ``CXL_EXPANDERS`` of the job's environment: how many each of its tasks wants."""
        count = int(pending.job.environment.get("CXL_EXPANDERS", "0"))
        if not count:
            return None
        return DeviceRequest(count, "cxl-memory", frozenset({Route.LOCAL, Route.REMOTE}))

    def matches(self, cluster: Cluster, wanted: Hashable) -> Flags:
        """Accept the devices that say what they are."""
        return np.array([device.attributes.get("type") == wanted for device in cluster.devices], bool)

    def zones(self, cluster: Cluster) -> Integers:
        """Let the nodes behind one switch lend to each other, and nobody else."""
        return cluster.rack
