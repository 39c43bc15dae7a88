"""Situations: which waiting jobs are worth a look, because something that they miss has changed.  Pure.

A job that a round could not place *sleeps* until something that it misses may
have come: a node that it could use has more free than before, a device that
suits it has become free, its user's quota has room.  What a round has seen and
found too little does not become enough by being looked at again; so a cluster
that is full costs nothing while nothing ends.

What is gained is told by comparing the views of two snapshots
(:mod:`farbus.scheduler.views`), whatever brought it about.  Jobs with the same
wants and misses share a key and are looked up once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from farbus.model.decision import DeviceView, NodeView
from farbus.model.device import DeviceKind, Route
from farbus.model.job import Job, Miss, Requests
from farbus.scheduler.quotas import QUOTA
from farbus.scheduler.views import Gains

COMPUTE, GPU = "compute", "gpu"
"""Phases whose misses tell what would have to come."""
ROUTE = "route"
"""The resource of a miss where devices are free that can't be reached now; a loaded network may be to blame."""
NETWORK = "network_mbit_s"
"""The resource of a miss where devices are free, and their nodes' links are full: any end of anything may help."""
FLAVOUR = "flavour"
"""The resource of a miss where a policy would rather decide later how the job is to run: time will tell."""
ALTERNATIVES = "alternatives"
"""Stands among the phases of a job that could also be run in another way."""
LONG_WAIT_ROUNDS = 30
"""A job that waited so many rounds has room kept for it (:data:`farbus.scheduler.round.HOLD_ROUNDS`): rounds in which
others could take that room must see it."""
MAX_COMPANIONS = 8
"""Jobs that are seen for this reason in one round."""

_Want = tuple[Requests, str, tuple[tuple[str, str], ...], tuple[Route, ...]]
_Key = tuple[frozenset[str], tuple[_Want, ...], str]
"""What is missed, by groups that want what, and the user whose quota is to blame."""


class Situations:
    """The jobs of the queue, awake or asleep."""

    def __init__(self, jobs: Iterable[str] = ()) -> None:
        self.awake: set[str] = set(jobs)
        """Jobs that the next round is to look at."""
        self._asleep: dict[str, _Key] = {}
        self._by_key: defaultdict[_Key, set[str]] = defaultdict(set)
        self._long: set[str] = set()

    def add(self, job_id: str) -> None:
        """Take in a job that begins to wait."""
        self.awake.add(job_id)

    def remove(self, job_id: str) -> None:
        """Forget a job that waits no longer."""
        self._wake(job_id)
        self.awake.discard(job_id)

    def sleep(self, job: Job, misses: Collection[Miss], *, rounds_waited: int) -> None:
        """Have a job wait until something that it misses changes."""
        self.remove(job.id)
        phases = frozenset(_cause(miss) for miss in misses)
        if len(job.flavours) > 1:
            # The misses tell of one of its flavours; what it gains may serve another.
            phases |= {ALTERNATIVES}
        wants = tuple(
            (group.requests, group.node, tuple(sorted(group.labels.items())), group.routes) for group in job.groups
        )
        user = job.user if QUOTA in phases else ""
        key = (phases, wants, user)
        self._asleep[job.id] = key
        self._by_key[key].add(job.id)
        if rounds_waited >= LONG_WAIT_ROUNDS:
            self._long.add(job.id)

    def is_asleep(self, job_id: str) -> bool:
        """Say whether no round will look at the job before something changes."""
        return job_id in self._asleep

    def companions(self) -> frozenset[str]:
        """Return sleeping jobs that a round must see all the same, so that what is kept for them is not taken."""
        return frozenset(self._long)

    def wake(self, job_id: str) -> None:
        """Have the next round look at a job that waits."""
        self._wake(job_id)

    def wake_for_gains(self, gains: Gains) -> None:
        """Wake the jobs that may have gained by what there is more of."""
        if not gains.nodes and not gains.devices:
            return
        for key in list(self._by_key):
            phases, wants, _ = key
            if _gains(phases, wants, gains):
                self._wake_key(key)

    def wake_for_quota(self, users: Collection[str] | None = None) -> None:
        """Wake the jobs that wait for a quota: those of ``users``, or all."""
        for key in list(self._by_key):
            phases, _, user = key
            if QUOTA in phases and (users is None or user in users):
                self._wake_key(key)

    @property
    def waits_for_load(self) -> bool:
        """Say whether the network's load matters to any that sleeps."""
        return any(ROUTE in key[0] for key in self._by_key)

    def wake_for_load(self) -> bool:
        """Wake the jobs to which the network's load matters; say whether there are any."""
        found = [key for key in self._by_key if ROUTE in key[0]]
        for key in found:
            self._wake_key(key)
        return bool(found)

    def wake_all(self) -> None:
        """Wake every job: what is kept for whom has changed, or what a round believed has proved wrong."""
        for key in list(self._by_key):
            self._wake_key(key)

    def _wake_key(self, key: _Key) -> None:
        for job_id in list(self._by_key[key]):
            self._wake(job_id)

    def _wake(self, job_id: str) -> None:
        key = self._asleep.pop(job_id, None)
        if key is None:
            return
        self._by_key[key].discard(job_id)
        if not self._by_key[key]:
            del self._by_key[key]
        self._long.discard(job_id)
        self.awake.add(job_id)


def _cause(miss: Miss) -> str:
    """Return what tells which gains may help against ``miss``: its phase, or what it misses beside it."""
    beside = miss.resource == ROUTE or (miss.resource == NETWORK and miss.phase != COMPUTE)
    return miss.resource if beside else miss.phase


def _gains(phases: frozenset[str], wants: tuple[_Want, ...], gains: Gains) -> bool:
    if phases - {QUOTA, COMPUTE, GPU}:
        # Of a job that finds no room as a whole, and of phases not known here, anything may be the missing piece.
        return True
    if COMPUTE in phases and any(_may_run(view, want) for want in wants for view in gains.nodes):
        return True
    if GPU not in phases:
        return False
    if gains.lending and any(want[0].gpus and Route.REMOTE in want[3] for want in wants):
        return True
    # A node that reaches a pool as of now can have devices that were free all the time.
    movable = [want for want in wants if want[0].gpus and Route.RECOMPOSED in want[3]]
    return any(_suits(view, want[0]) for want in wants for view in gains.devices) or any(
        _may_run(view, want) for want in movable for view in gains.reaching
    )


def _may_run(view: NodeView, want: _Want) -> bool:
    requests, node, labels, _ = want
    return (
        node in ("", view.name)
        and not view.capacity.lacks(requests.resources, view.capacity)
        and all(view.labels.get(key) == value for key, value in labels)
    )


def _suits(view: DeviceView, requests: Requests) -> bool:
    device = view.device
    return requests.gpus > 0 and device.kind is DeviceKind.GPU and requests.gpu_filter.takes(device)
