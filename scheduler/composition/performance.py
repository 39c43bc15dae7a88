"""How long a workload runs on a composition of drives that it shares: measured models."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

DRIVE_BANDWIDTH = 2_000
"""MB/s of the drives that the models were measured on."""


class PerformanceModel(abc.ABC):
    """Execution times of one kind of workload."""

    @abc.abstractmethod
    def execution_s(self, bandwidth: int, sharers: int) -> float:
        """Return the seconds it runs on a composition of ``bandwidth`` MB/s, as one of ``sharers`` of its kind."""


@dataclass(frozen=True, slots=True)
class Smufin(PerformanceModel):
    """SMUFIN, a genomics workload (the paper's figure 3; the numbers are those of the authors' simulator)."""

    measured: tuple[tuple[float, ...], ...] = (
        (1489.15, 1601.25, 1677.35, 1936.245, 2411.56, 2802.62),
        (1455.48, 1455.45, 1474.12, 1569.89, 1668.35, 1835.62),
        (1478.5, 1461.5, 1513.0, 1550.5, 1578.5, 1618.5),
    )
    """Seconds by drives (1 to 3) and sharers (1 to 6)."""

    def execution_s(self, bandwidth: int, sharers: int) -> float:
        """Return the measured time in whole seconds; beyond six sharers, that of a fitted plane."""
        drives = min(bandwidth // DRIVE_BANDWIDTH, len(self.measured))
        if drives >= 1 and 1 <= sharers <= len(self.measured[0]):
            return float(math.floor(self.measured[drives - 1][sharers - 1]))
        return float(math.ceil(-0.113236 * bandwidth + 123.627 * sharers + 1719.01))
