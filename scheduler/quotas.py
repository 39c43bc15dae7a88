"""Quotas: what each user has, and which waiting jobs may go to a round because of it.  Pure.

Users are counted by what the ledger has granted: a device counts until its
node has confirmed the release, a job until it has ended.  Waiting jobs are
admitted in the order of the queue, each counted as if it were placed; one
that is too many is left out, and later ones that still fit are not held up.
"""

from __future__ import annotations

from collections import Counter

from farbus.errors import NotPermitted, Unsatisfiable
from farbus.model.job import Job, Miss, TaskGroup
from farbus.model.lease import Lease
from farbus.model.quantity import format_bytes
from farbus.model.rules import QuotaStatus, Rules

QUOTA = "quota"
"""The phase that a quota's misses are told under."""


def devices_of_lease(lease: Lease) -> int:
    """Return for how many devices a lease counts: storage is one for its task, over however many drives and nodes."""
    if lease.storage is not None:
        return int(lease.storage.part == 0)
    return len(lease.devices)


def devices_of_task(group: TaskGroup) -> int:
    """Return for how many devices a task of ``group`` counts."""
    return group.requests.gpus + len(group.storage)


def devices_of(job: Job) -> int:
    """Return how many devices the tasks of ``job`` take together, in the flavour that takes most."""
    names = job.flavours
    flavours = [job.in_flavour(name) for name in names] if len(names) > 1 else [job]
    return max(sum(group.count * devices_of_task(group) for group in flavour.groups) for flavour in flavours)


def check_rules(job: Job, rules: Rules, *, by_operator: bool) -> None:
    """Refuse what is beyond the limits of those who submit, whatever else runs.

    Operators may raise priorities and time limits, also of others' jobs; a
    quota is its user's, whoever submits.  Raises :class:`NotPermitted` and
    :class:`Unsatisfiable` with the field.
    """
    if not by_operator:
        if job.priority > rules.user_priority:
            raise NotPermitted(
                f"priority: {job.priority} is more than {rules.user_priority}", hint="ask an operator to submit it"
            )
        if rules.max_time_limit_s and job.time_limit_s > rules.max_time_limit_s:
            raise NotPermitted(
                f"time_limit: {job.time_limit_s:g} s are more than {rules.max_time_limit_s:g} s",
                hint="ask an operator to submit it",
            )
    quota, wanted = rules.quota_of(job.user), devices_of(job)
    if quota.devices is not None and wanted > quota.devices:
        raise Unsatisfiable(
            f"job {job.name} takes {wanted} devices; {job.user} may have {quota.devices} at a time",
            hint="farbus quota shows what you may have",
        )
    if quota.jobs == 0:
        raise Unsatisfiable(f"{job.user} may run no jobs here", hint="farbus quota shows what you may have")


def check_volume_bytes(user: str, more: int, *, has: int, rules: Rules) -> None:
    """Raise :class:`Unsatisfiable` where volumes of ``has`` bytes and ``more`` are beyond their user's quota."""
    limit = rules.quota_of(user).volume_bytes
    if limit is not None and more > 0 and has + more > limit:
        raise Unsatisfiable(
            f"{user} has volumes of {format_bytes(has)}, and may have {format_bytes(limit)}; "
            f"this takes {format_bytes(more)} more",
            hint="farbus volume delete gives room back, farbus quota shows what you may have",
        )


class Accounts:
    """Jobs and devices of each user."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        self.devices: Counter[str] = Counter()
        self.eased: set[str] = set()
        """Users who have less than before, until somebody takes note."""

    def take(self, user: str, *, jobs: int = 0, devices: int = 0) -> None:
        """Count what a user was granted."""
        self.jobs[user] += jobs
        self.devices[user] += devices

    def give(self, user: str, *, jobs: int = 0, devices: int = 0) -> None:
        """Count what a user gave back."""
        for counter, count in ((self.jobs, jobs), (self.devices, devices)):
            counter[user] -= count
            assert counter[user] >= 0, f"account of user {user}"
            if not counter[user]:
                del counter[user]
        self.eased.add(user)

    def room_for_devices(self, user: str, rules: Rules, admitted: Admitted | None = None) -> int | None:
        """Return how many more devices a user may have, beside what was ``admitted``; None without a limit."""
        limit = rules.quota_of(user).devices
        if limit is None:
            return None
        return max(0, limit - self.devices[user] - (admitted.devices[user] if admitted else 0))

    def miss(self, job: Job, rules: Rules, admitted: Admitted | None = None) -> Miss | None:
        """Say what of its user's quota ``job`` would exceed, beside what was ``admitted``; None where it fits."""
        quota = rules.quota_of(job.user)
        more_jobs, more_devices = (admitted.jobs[job.user], admitted.devices[job.user]) if admitted else (0, 0)
        wanted = devices_of(job)
        for noun, limit, has, more, asks in (
            ("devices", quota.devices, self.devices[job.user], more_devices, wanted),
            ("jobs", quota.jobs, self.jobs[job.user], more_jobs, 1),
        ):
            if limit is not None and asks and has + more + asks > limit:
                ahead = f", {more} more go to jobs ahead of this one" if more else ""
                return Miss(
                    phase=QUOTA,
                    resource=noun,
                    message=f"{job.user} has {has} of {limit} {noun}{ahead}; this job takes {asks}",
                    short_by=has + more + asks - limit,
                )
        return None

    def statuses(self, rules: Rules, waiting: Counter[str], stored: Counter[str]) -> tuple[QuotaStatus, ...]:
        """Return all users who have something, wait for something or have a quota of their own, by name.

        ``stored`` has the bytes of their volumes.
        """
        users = {*self.jobs, *self.devices, *waiting, *stored, *rules.quotas}
        return tuple(
            QuotaStatus(
                user=user,
                jobs=self.jobs[user],
                jobs_limit=rules.quota_of(user).jobs,
                devices=self.devices[user],
                devices_limit=rules.quota_of(user).devices,
                waiting=waiting[user],
                volume_bytes=stored[user],
                volume_bytes_limit=rules.quota_of(user).volume_bytes,
            )
            for user in sorted(users)
        )


class Admitted:
    """What the jobs that go to a round would add, if all of them were placed."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        self.devices: Counter[str] = Counter()

    def add(self, job: Job) -> None:
        """Count a job that goes to the round."""
        self.jobs[job.user] += 1
        self.devices[job.user] += devices_of(job)
