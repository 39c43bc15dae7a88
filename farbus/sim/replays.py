"""``farbus sim run openb`` and ``philly``: a trace under each policy, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from farbus.errors import InvalidInput
from farbus.scheduler.costs.drmaestro import DRMaestroPolicy
from farbus.scheduler.costs.fgd import Demand, FGDPolicy, Workload, demand_of
from farbus.scheduler.costs.named import POLICIES, policy_named
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.costs.workload_aware import WorkloadAwarePolicy
from farbus.sim.measures import Outcome, offered_load
from farbus.sim.replay import Network, Replay
from farbus.sim.traces import Trace, compress, shrink

ALL = "all"
"""In place of a policy's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a trace is replayed.

    ``compress`` times as many submissions come in a second, on one of
    ``shrink`` nodes of each shape; ``limit`` keeps the first so many jobs, 0
    all.  A job whose devices are remote runs ``slowdown`` longer, as a part of
    its time.  ``seed`` is that of the random policy.
    """

    compress: float = 1.0
    shrink: int = 1
    limit: int = 0
    slowdown: float = 0.0
    every_s: float = 0.0
    seed: int = 0
    certify: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy."""

    policy: str
    outcome: Outcome


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a replay."""

    experiment: str
    nodes: int
    gpus: int
    jobs: int
    tasks: int
    compress: float
    shrink: int
    slowdown: float
    every_s: float
    seed: int
    offered_load: float
    """GPUs that the jobs would hold on average while jobs arrive, if none waited, of all there are."""
    sharing_jobs: int
    """Jobs that shared a GPU in the trace, and have a whole one here."""
    gpu_seconds_added: float
    """GPU time that giving them whole ones adds, as a part of what the trace used."""
    rows: list[Row]


Tell = Callable[[str, int, int], None]
"""Told the policy, and how many of how many jobs have ended."""


def names(policy: str) -> tuple[str, ...]:
    """Return the policies that ``policy`` names; raise :class:`InvalidInput` for one that there is not."""
    if policy == ALL:
        return tuple(POLICIES)
    if policy not in POLICIES:
        raise InvalidInput(f"--policy: there is none called {policy!r}", hint=f"use {ALL} or {', '.join(POLICIES)}")
    return (policy,)


def replay(
    experiment: str, trace: Trace, policies: Sequence[str], options: Options, *, tell: Tell | None = None
) -> Report:
    """Replay ``trace`` under each of the policies."""
    submissions = compress(trace.submissions, options.compress)
    if options.limit:
        submissions = submissions[: options.limit]
    trace = replace(shrink(trace, options.shrink), submissions=submissions)
    kinds = {each.kind: each.profile for each in submissions}
    network = Network(
        sensitivity={kind: profile.sensitivity for kind, profile in kinds.items() if profile},
        distance=dict.fromkeys(kinds, options.slowdown),
    )
    rows = []
    have_deadlines = any(each.job.goal.deadline_s for each in submissions)
    for name in policies:

        def told(done: int, total: int, name: str = name) -> None:
            if tell is not None:
                tell(name, done, total)

        policy = policy_for(name, trace, seed=options.seed)
        world = Replay(
            trace,
            policy,
            network=network,
            every_s=options.every_s,
            # Whoever postpones looks again as time goes by; without a distance of rounds, when something has ended.
            patient=isinstance(policy, DRMaestroPolicy) and options.every_s > 0,
            by_deadline=isinstance(policy, WorkloadAwarePolicy) and have_deadlines,
            certify=options.certify,
            tell=told,
        )  # fmt: skip
        rows.append(Row(policy=name, outcome=world.run()))
    sharing = [each for each in submissions if each.gpus_used < each.gpus]
    used = sum(each.gpus_used * each.runs_s for each in submissions)
    return Report(
        experiment=experiment,
        nodes=len(trace.nodes),
        gpus=len(trace.devices),
        jobs=len(submissions),
        tasks=sum(group.count for each in submissions for group in each.job.groups),
        compress=options.compress,
        shrink=options.shrink,
        slowdown=options.slowdown,
        every_s=options.every_s,
        seed=options.seed,
        offered_load=offered_load(trace),
        sharing_jobs=len(sharing),
        gpu_seconds_added=sum((each.gpus - each.gpus_used) * each.runs_s for each in sharing) / used if used else 0.0,
        rows=rows,
    )


def policy_for(name: str, trace: Trace, *, seed: int) -> Policy:
    """Return a policy, with the profiles or the workload that the trace knows beforehand."""
    policy = policy_named(name, seed=seed)
    if isinstance(policy, DRMaestroPolicy):
        profiles = {each.job.name: each.profile for each in trace.submissions if each.profile is not None}
        return replace(policy, profiles=profiles)
    if isinstance(policy, FGDPolicy):
        return replace(policy, workload=Workload.of(tasks_of(trace)), history=None)
    return policy


def tasks_of(trace: Trace) -> Counter[Demand]:
    """Return how many tasks of a trace want which part of a node, and how many GPUs."""
    tasks: Counter[Demand] = Counter()
    for each in trace.submissions:
        for group in each.job.groups:
            tasks[demand_of(group.requests)] += group.count
    return tasks
