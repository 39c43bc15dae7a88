"""Phase 2: GPUs, local or remote, by model and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import msgspec
import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import DeviceKind, Route
from farbus.model.job import Miss, TaskGroup
from farbus.model.quantity import format_bytes
from farbus.scheduler.phases.base import Flags
from farbus.scheduler.phases.cluster import Cluster
from farbus.scheduler.phases.device import DevicePhase, DeviceRequest


class GpuFilter(msgspec.Struct, frozen=True):
    """Which GPUs will do: ``model`` is a part of the name in lower case."""

    model: str
    memory_bytes: int


class GpuPhase(DevicePhase):
    """GPUs as a plug-in of the round."""

    name = "gpu"
    kind = DeviceKind.GPU
    noun = "GPU"
    # The shim speaks to one server: a program's GPUs come from one node.
    may_span = False

    def request(self, pending: PendingJob, group: TaskGroup) -> DeviceRequest | None:
        """Return the GPUs that each task of ``group`` wants."""
        del pending
        wanted = group.requests
        if not wanted.gpus:
            return None
        gpu_filter = GpuFilter(wanted.gpu_model.lower(), wanted.gpu_memory_bytes)
        network = wanted.remote_network_mbit_s or 0 if Route.REMOTE in group.routes else 0
        return DeviceRequest(wanted.gpus, gpu_filter, frozenset(group.routes), network)

    def matches(self, cluster: Cluster, wanted: Hashable) -> Flags:
        """Return which devices have the model in their name and memory enough."""
        assert isinstance(wanted, GpuFilter)
        return np.array(
            [
                wanted.model in device.model.lower() and device.memory_bytes >= wanted.memory_bytes
                for device in cluster.devices
            ],
            bool,
        )

    def explain_filter(self, cluster: Cluster, wanted: Hashable) -> Miss | None:
        """Say whether there is no GPU at all, none of the model, or none with memory enough."""
        assert isinstance(wanted, GpuFilter)
        gpus = [device for device in cluster.devices if device.kind == DeviceKind.GPU]
        if not gpus:
            return Miss(phase=self.name, resource="gpu", message="the cluster has no GPU", short_by=1, permanent=True)
        named = [device for device in gpus if wanted.model in device.model.lower()]
        if not named:
            there = ", ".join(f"{count} {model}" for model, count in sorted(Counter(d.model for d in gpus).items()))
            return Miss(
                phase=self.name,
                resource="gpu model",
                message=f"no GPU of the cluster has {wanted.model!r} in its model; there are {there}",
                permanent=True,
            )
        largest = max(device.memory_bytes for device in named)
        of_model = f" with {wanted.model!r} in its model" if wanted.model else ""
        return Miss(
            phase=self.name,
            resource="gpu memory",
            message=(
                f"no GPU{of_model} has {format_bytes(wanted.memory_bytes)} of memory; "
                f"the largest has {format_bytes(largest)}"
            ),
            short_by=wanted.memory_bytes - largest,
            permanent=True,
        )
