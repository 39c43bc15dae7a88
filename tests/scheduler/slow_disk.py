"""A disk that writes the ledger late, for machines of random histories."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.scheduler.scripted import Cluster


class SlowDisk(RuleBasedStateMachine):
    """Rules of a disk under the scheduler of ``cluster``."""

    cluster: Cluster

    @precondition(lambda self: self.cluster.unwritten is None)
    @rule()
    def the_disk_is_slow(self) -> None:
        """From now on nothing is written at once, so nothing is sent; a kill finds the ledger where it was."""
        self.cluster.unwritten = []

    @precondition(lambda self: self.cluster.unwritten is not None)
    @rule(most=st.sampled_from([1, 2, None, None]))
    def write_down(self, most: int | None) -> None:
        self.cluster.write_down(most)
