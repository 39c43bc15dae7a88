"""Volumes that are there, beside phase 3: the parts of each, where they are stored.

What a task wants are certain devices, all of them, whoever stores them: a
bundle of devices that may come from several nodes, like GPUs that may.  What
a volume lacks to be used (who has it, why it is lost) is told before a round
(:mod:`farbus.scheduler.volumes`); here is only said who else wants it.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import DeviceKind
from farbus.model.job import GroupVariant, Miss, TaskGroup
from farbus.model.volume import volume_of
from farbus.scheduler.phases.base import Flags
from farbus.scheduler.phases.cluster import Cluster
from farbus.scheduler.phases.device import DevicePhase, DeviceRequest
from farbus.scheduler.phases.storage import STORAGE_ROUTES


class VolumePhase(DevicePhase):
    """Parts of volumes, as a plug-in of the round."""

    name = "volume"
    kind = DeviceKind.VOLUME
    noun = "part of a volume"

    def concerns(self, group: TaskGroup | GroupVariant) -> bool:
        """Say whether the group uses a volume."""
        return any(request.volume for request in group.storage)

    def request(self, pending: PendingJob, group: TaskGroup) -> DeviceRequest | None:
        """Return all parts of the volumes that each task of ``group`` uses."""
        del pending
        wanted = [request for request in group.storage if request.volume]
        if not wanted:
            return None
        routes = frozenset(STORAGE_ROUTES).intersection(*(request.routes or group.routes for request in wanted))
        names = tuple(sorted(request.volume for request in wanted))
        # The scheduler has set how many parts each has.
        return DeviceRequest(sum(max(1, request.devices) for request in wanted), names, routes)

    def matches(self, cluster: Cluster, wanted: Hashable) -> Flags:
        """Accept the parts of those volumes, and no other device."""
        assert isinstance(wanted, tuple)
        names = set(wanted)
        return np.array([volume_of(device.id) in names for device in cluster.devices], bool)

    def explain_filter(self, cluster: Cluster, wanted: Hashable) -> Miss | None:
        """Say that no node has any part of them."""
        del cluster
        assert isinstance(wanted, tuple)
        return Miss(
            phase="storage", resource="volume", message=f"no node has volume {', '.join(wanted)} now", permanent=False
        )
