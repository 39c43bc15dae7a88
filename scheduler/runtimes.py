"""How long jobs ran: what is learned from those that succeeded, to tell others when room may come.  Pure.

An estimate for people, never for the ledger: it is kept in memory alone and
begins anew with each start of the scheduler.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import OrderedDict, deque

import msgspec

from farbus.model.job import Job, JobStatus
from farbus.model.states import JobState

MAX_KINDS = 4_096
"""Kinds of jobs that are remembered; those that ended longest ago go first."""
MAX_RUNS = 8
"""Latest runs of a kind that count."""


class Runtimes:
    """Run times in seconds by kind: jobs of one user with one name that ask for the same."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[bytes, deque[float]] = OrderedDict()

    def learn(self, status: JobStatus) -> None:
        """Take in a job that has ended; only those that succeeded tell how long their like take."""
        seconds = status.ended_at - status.started_at
        if status.state is not JobState.SUCCEEDED or not status.started_at or seconds < 0.0:
            return
        kind = _kind(status.job)
        runs = self._seconds.setdefault(kind, deque(maxlen=MAX_RUNS))
        runs.append(seconds)
        self._seconds.move_to_end(kind)
        while len(self._seconds) > MAX_KINDS:
            self._seconds.popitem(last=False)

    def expect(self, job: Job) -> float | None:
        """Return the median run time of jobs like ``job``; None where none was seen."""
        runs = self._seconds.get(_kind(job))
        return statistics.median(runs) if runs else None


def _kind(job: Job) -> bytes:
    # By digest: commands are long.
    return hashlib.sha256(msgspec.json.encode((job.user, job.name, job.groups, job.stage_in))).digest()
