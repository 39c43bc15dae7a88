"""The workload-aware placement paper as a policy of rounds: its switch of composition rules, and EDF.

Its simulator with the published numbers is another thing: :mod:`farbus.sim.workload_aware_placement`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farbus.scheduler.composition.rules import CompositionRule, DisaggregationAware
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import AGING_ROUNDS, Floats, Integers, Waiting


class WorkloadAwarePolicy(DefaultPolicy):
    """Equation 4 for drives, the default policy for all else; within a priority the earliest deadline is first."""

    name = "workload-aware"
    composition: CompositionRule = DisaggregationAware()

    def urgency(self, waiting: Waiting) -> Sequence[Integers | Floats]:
        """Return priority (raised by waiting), then the time that is left.

        Deadlines that are over come after all others: nothing can be saved there.
        """
        over = (waiting.left_s < 0).astype(np.int64)
        return -(waiting.priority + waiting.rounds_waited // AGING_ROUNDS), over, waiting.left_s
