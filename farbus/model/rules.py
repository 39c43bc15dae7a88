"""What an operator allows users, and what the scheduler may do to make room: all of it can change while it runs."""

from __future__ import annotations

from farbus.model.value import Value


class Quota(Value, frozen=True, kw_only=True):
    """How much of the cluster one user may have at a time; None for no limit."""

    devices: int | None = None
    """Devices under leases, of all jobs together."""
    jobs: int | None = None
    """Jobs that are past the queue and have not ended."""
    volume_bytes: int | None = None
    """What volumes take together: their sizes, at least an extent of each drive, and what failed resizes have left."""


class Rules(Value, frozen=True, kw_only=True):
    """What a scheduler holds people to."""

    quota: Quota = Quota()
    """Of each user who has none of his own."""
    quotas: dict[str, Quota] = {}
    """Of single users, whole: what one leaves out is without limit."""
    user_priority: int = 100
    """Highest priority of a job that is submitted by somebody who is no operator."""
    max_time_limit_s: float = 0.0
    """Longest time limit of users' jobs, and that of those which name none; 0 for no limit."""
    remote_network_mbit_s: int = 100
    """What each remote GPU takes of the links at both ends, in Mbit/s, of jobs that do not say so themselves; 0 for
    nothing.  Jobs that have been submitted keep what it was."""
    preemption: bool = False
    """Whether jobs of higher priority may take the place of moveable ones of lower priority."""
    preemption_min_run_s: float = 60.0
    """How long a job runs at least before it may be preempted, or moved by the scheduler's own wish."""
    defragment_interval_s: float = 0.0
    """Pause between two looks for moves of moveable jobs that make room for a waiting one; 0 for no such looks."""
    defragment_jobs: int = 2
    """Most jobs that are being moved at a time by such looks."""
    defragment_pause_s: float = 3_600.0
    """How long a job that was moved is left alone by them."""

    def quota_of(self, user: str) -> Quota:
        """Return what ``user`` may have."""
        return self.quotas.get(user, self.quota)


class QuotaStatus(Value, frozen=True, kw_only=True):
    """What one user has now, and what he may have; a limit of None is none."""

    user: str
    jobs: int = 0
    jobs_limit: int | None = None
    devices: int = 0
    devices_limit: int | None = None
    waiting: int = 0
    """Jobs of his in the queue."""
    volume_bytes: int = 0
    volume_bytes_limit: int | None = None
