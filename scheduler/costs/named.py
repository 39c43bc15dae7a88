"""Policies by name, as the scheduler's configuration and ``farbus sim run`` take them."""

from __future__ import annotations

from collections.abc import Callable

from farbus.errors import InvalidInput
from farbus.scheduler.costs.baselines import BestFitPolicy, FirstFitPolicy, RandomPolicy
from farbus.scheduler.costs.default import DefaultPolicy
from farbus.scheduler.costs.drmaestro import DRMaestroPolicy
from farbus.scheduler.costs.fgd import FGDPolicy
from farbus.scheduler.costs.firmament import FirmamentPolicy
from farbus.scheduler.costs.hire import HirePolicy
from farbus.scheduler.costs.kubecomp import KubeCompPolicy
from farbus.scheduler.costs.policy import Policy
from farbus.scheduler.costs.workload_aware import WorkloadAwarePolicy

POLICIES: dict[str, Callable[[], Policy]] = {
    "default": DefaultPolicy,
    "drmaestro": DRMaestroPolicy,
    "kubecomp": KubeCompPolicy,
    "hire": HirePolicy,
    "workload-aware": WorkloadAwarePolicy,
    "firmament": FirmamentPolicy,
    "fgd": FGDPolicy,
    "first-fit": FirstFitPolicy,
    "best-fit": BestFitPolicy,
    "random": lambda: RandomPolicy(seed=0),
}


def policy_named(name: str, *, seed: int = 0) -> Policy:
    """Return the policy called ``name``, with nothing known yet of profiles and loads; else :class:`InvalidInput`.

    ``seed`` is where the random policy's draws begin.
    """
    if name not in POLICIES:
        raise InvalidInput(f"policy: there is none called {name!r}", hint=f"use one of {', '.join(POLICIES)}")
    return RandomPolicy(seed=seed) if name == RandomPolicy.name else POLICIES[name]()
