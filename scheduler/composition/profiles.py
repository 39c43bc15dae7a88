"""What is known of programs that use drives, by name: the performance model, and what more drives are good for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farbus.scheduler.composition.performance import PerformanceModel, Smufin

MEGABYTE = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageProfile:
    """``base_s`` is how long it runs on what it asks for; ``peak_bytes_per_s`` the most that it can make use of."""

    name: str
    model: PerformanceModel
    base_s: float
    peak_bytes_per_s: int

    def execution_s(self, bytes_per_s: int, sharers: int) -> float:
        """Return how long it runs on drives of ``bytes_per_s`` together, as one of ``sharers`` of its kind."""
        return self.model.execution_s(bytes_per_s // MEGABYTE, sharers)


PROFILES: Mapping[str, StorageProfile] = {
    # Table I of the workload-aware placement paper.
    "smufin": StorageProfile(name="smufin", model=Smufin(), base_s=1_600.0, peak_bytes_per_s=6_000 * MEGABYTE),
}
"""Profiles that come with the scheduler."""
