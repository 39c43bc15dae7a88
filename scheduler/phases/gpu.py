"""Phase 2: GPUs, local or remote, by model and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from farbus.model.decision import PendingJob
from farbus.model.device import Device, DeviceKind, GpuFilter, Route
from farbus.model.job import GPU_SHARE, Miss, TaskGroup
from farbus.model.node import describe_remoting_tls
from farbus.model.quantity import format_bytes
from farbus.scheduler.phases.base import Flags
from farbus.scheduler.phases.cluster import Cluster
from farbus.scheduler.phases.device import DevicePhase, DeviceRequest
from farbus.scheduler.phases.tables import Integers


class GpuPhase(DevicePhase):
    """GPUs as a plug-in of the round."""

    name = "gpu"
    kind = DeviceKind.GPU
    noun = "GPU"

    def request(self, pending: PendingJob, group: TaskGroup) -> DeviceRequest | None:
        """Return the GPUs that each task of ``group`` wants."""
        del pending
        wanted = group.requests
        if not wanted.gpus:
            return None
        network = wanted.remote_network_mbit_s or 0 if Route.REMOTE in group.routes else 0
        return DeviceRequest(wanted.gpus, wanted.gpu_filter, frozenset(group.routes), network, wanted.gpu_span)

    def matches(self, cluster: Cluster, wanted: Hashable) -> Flags:
        """Return which devices have the model in their name and memory enough."""
        assert isinstance(wanted, GpuFilter)
        return np.array(
            [wanted.takes(device) for device in cluster.devices],
            bool,
        )

    def zones(self, cluster: Cluster) -> Integers:
        """Let those lend to each other that agree whether sessions are encrypted: others refuse each other's."""
        number = {setting: row for row, setting in enumerate(sorted(set(cluster.remoting_tls)))}
        return np.array([number[setting] for setting in cluster.remoting_tls], np.int64)

    def explain_zones(self, cluster: Cluster) -> str:
        """Say which nodes differ in ``remoting_tls``."""
        nodes: dict[str, list[str]] = {}
        for name, setting, is_pool in zip(cluster.names, cluster.remoting_tls, cluster.fabric.is_pool, strict=True):
            if not is_pool:
                nodes.setdefault(setting, []).append(name)
        return describe_remoting_tls(nodes) if len(nodes) > 1 else ""

    def explain_filter(self, cluster: Cluster, wanted: Hashable) -> Miss | None:
        """Say whether there is no GPU at all, none of the model, or none with memory enough."""
        assert isinstance(wanted, GpuFilter)
        gpus = [device for device in cluster.devices if device.kind == DeviceKind.GPU]
        if not gpus:
            return Miss(phase=self.name, resource="gpu", message="the cluster has no GPU", short_by=1, permanent=True)
        gpus_there = gpus
        gpus = [device for device in gpus if wanted.takes_part(device)]
        if not gpus:
            return self._no_part(gpus_there, wanted)
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

    def _no_part(self, gpus: Sequence[Device], wanted: GpuFilter) -> Miss:
        """Say that no GPU is shared, or none whole, or no share so large."""
        shares = [device.share_milli for device in gpus if device.share_milli]
        if not wanted.share_milli:
            message = (
                "all GPUs of the cluster are offered in shares; ask for one (gpu_share in a job file, --gpu-share)"
            )
        elif not shares:
            message = "no GPU of the cluster is offered in shares (gpu_shares of a node's agent); ask for a whole one"
        else:
            message = f"no share of a GPU is {wanted.share_milli / 10:g} % of it; the largest is {max(shares) / 10:g} %"
        return Miss(phase=self.name, resource=GPU_SHARE, message=message, permanent=True)
