"""A job that runs in a replay."""

from __future__ import annotations

import math
from dataclasses import dataclass

from farbus.model.decision import JobPlacement
from farbus.sim.traces import Submission


@dataclass(eq=False, slots=True)
class Run:
    """A job that runs.  ``left_s`` is what it has to do still, in seconds at full speed, as of ``since``."""

    submission: Submission
    placement: JobPlacement
    started: float
    left_s: float
    since: float
    slowness: float = 0.0
    ends_at: float = math.inf
    links: frozenset[str] = frozenset()
    """Nodes at both ends of its remote devices."""
