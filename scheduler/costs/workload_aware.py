"""The workload-aware placement paper as a policy of rounds: its switch of composition rules, and EDF.

Its simulator with the published numbers is another thing: :mod:`farbus.sim.workload_aware_placement`.
"""

from __future__ import annotations

from collections.abc import Sequence

from farbus.model.decision import PendingJob
from farbus.scheduler.composition.rules import CompositionRule, DisaggregationAware
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.policy import AGING_ROUNDS


class WorkloadAwarePolicy(DefaultPolicy):
    """Equation 4 for drives, the default policy for all else; within a priority the earliest deadline is first."""

    name = "workload-aware"
    composition: CompositionRule = DisaggregationAware()

    def rank(self, pending: Sequence[PendingJob]) -> list[tuple[PendingJob, int]]:
        """Return the jobs by priority (raised by waiting), then by the time that is left, then by submission.

        Deadlines that are over come after all others: nothing can be saved there.
        """

        def key(entry: PendingJob) -> tuple[int, bool, float, float, str]:
            priority = entry.job.priority + entry.rounds_waited // AGING_ROUNDS
            return -priority, entry.left_s < 0, entry.left_s, entry.job.submitted_at, entry.job.id

        ordered = sorted(pending, key=key)
        ranked: list[tuple[PendingJob, int]] = []
        tier, urgency = -1, None
        for entry in reversed(ordered):
            if key(entry)[:3] != urgency:
                tier, urgency = tier + 1, key(entry)[:3]
            ranked.append((entry, tier))
        ranked.reverse()
        return ranked
