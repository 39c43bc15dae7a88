"""Experiments 2 to 5 of DRMaestro (tables 2 to 5), in shape: what the paper leaves open is assumed.

Amaral et al., Journal of Cloud Computing 10 (2021).  The decisions are those of
:func:`farbus.scheduler.round.decide_on` under three policies: a server-only
flow (Firmament), DRMaestro without and with its network-aware policy (NA).

Given: machines with 160 hardware threads, 512 GB and 4 GPUs; eight Rodinia
applications in equal parts; Poisson arrivals, 16 jobs a second; how many jobs
on how many machines; warm-up jobs that hold processors alone, for about 2,000 s
in the prototype; and, of two applications, the share of time in the network
without and with load (figure 3), from which their sensitivity follows.

Assumed, each a constant here:

* Times and the other six sensitivities (:data:`APPLICATIONS`).  The mean of
  the times, 72 s, is what makespan times usable GPUs over jobs gives for
  Firmament's 128 jobs.
* One GPU, 8 threads and 8 GiB for each job.
* The warm-up takes all threads of half of the machines: the prototype's
  Firmament could use 8 of 16 GPUs; 2,000 s, in the simulations 600 s.
* A job with a remote GPU spends its share of time in the network beside the
  local time, and loads the links at both ends in that measure; the load that
  it meets is the sum of the others' traffic there.
* A goal (tau) of :data:`GOAL` times the local time for the run itself; a job
  has its QoS violated when its run takes longer.
* A round each second, as DRMaestro's rounds are periodic.
* Collocated jobs do not slow each other down but through links: of what the
  paper's simulator knows of that, nothing is printed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from farbus.errors import InvalidInput
from farbus.model.decision import DeviceView, NodeView
from farbus.model.device import Device, DeviceKind
from farbus.model.job import Job, Requests, TaskGroup
from farbus.model.node import Resources
from farbus.scheduler.costs.drmaestro import DRMaestroPolicy, Profile
from farbus.scheduler.costs.firmament import FirmamentPolicy
from farbus.scheduler.costs.policy import Policy
from farbus.sim.replay import Network, Replay
from farbus.sim.traces import Submission, Trace

GIB = 2**30
THREADS, MEMORY, GPUS = 160_000, 512 * GIB, 4
"""Of a machine: thousandths of hardware threads, bytes, GPUs."""

JOB = Requests(cpu_milli=8_000, memory_bytes=8 * GIB, gpus=1)
RATE = 16.0
"""Jobs a second."""

GOAL = 1.1
ROUND_S = 1.0
POSTPONE_ROUNDS = 600


@dataclass(frozen=True, slots=True)
class Application:
    """Local time in seconds, share of the time in the network while remote, and sensitivity to its load."""

    name: str
    time_s: float
    network: float
    sensitivity: float

    @property
    def distance(self) -> float:
        """How much longer it runs with a remote GPU and idle links: what is not network takes as long as ever."""
        return self.network / (1 - self.network)


def _from_shares(alone: float, loaded: float) -> float:
    """Return sf where the network takes the share ``alone`` of the time, and ``loaded`` under load.

    What is not network takes as long in both, so T (1 - alone) = T' (1 - loaded), and sf = T'/T - 1.
    """
    return (1 - alone) / (1 - loaded) - 1


APPLICATIONS = (
    Application("btree", 45.0, 0.10, 0.30),
    Application("backprop", 80.0, 0.08, 0.20),
    Application("gaussian", 95.0, 0.03, 0.05),
    # Figure 3, the two that the text has numbers of.
    Application("hotspot", 60.0, 0.002, _from_shares(0.002, 0.01)),
    Application("lavamd", 85.0, 0.01, 0.02),
    Application("nw", 52.0, 0.17, _from_shares(0.17, 0.49)),
    Application("pathfinder", 52.0, 0.15, 0.45),
    Application("srad", 107.0, 0.05, 0.10),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Jobs on machines, the warm-up's length, and the paper's makespans and violations of the three policies."""

    jobs: int
    machines: int
    warm_up_s: float
    makespan_s: tuple[float, float, float]
    violated: tuple[int, int, int]


SCENARIOS = (
    Scenario(128, 4, 2000.0, (1145.16, 760.53, 744.61), (106, 117, 112)),
    Scenario(512, 4, 2000.0, (3413.27, 2690.08, 2593.50), (445, 463, 431)),
    Scenario(512, 16, 600.0, (1019.33, 842.58, 815.56), (377, 382, 272)),
    Scenario(4096, 128, 600.0, (1087.73, 972.20, 907.18), (2160, 1310, 818)),
)

PROFILES = {
    one.name: Profile(
        goal_s=GOAL * one.time_s,
        expected_s=one.time_s,
        sensitivity=one.sensitivity,
        remote_s=one.time_s * (1 + one.distance),
    )
    for one in APPLICATIONS
}

POLICIES: dict[str, Callable[[], Policy]] = {
    "firmament": FirmamentPolicy,
    "drmaestro": lambda: DRMaestroPolicy(profiles=PROFILES, network_aware=False),
    "drmaestro + NA": lambda: DRMaestroPolicy(profiles=PROFILES, postpone_rounds=POSTPONE_ROUNDS),
}

NETWORK = Network(
    traffic={one.name: one.network for one in APPLICATIONS},
    sensitivity={one.name: one.sensitivity for one in APPLICATIONS},
    distance={one.name: one.distance for one in APPLICATIONS},
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one scenario, average over the seeds, with what the paper prints."""

    jobs: int
    machines: int
    policy: str
    makespan_s: float
    violated: float
    remote: float
    wait_mean_s: float
    decision_cpu_p50_ms: float
    published_makespan_s: float
    published_violated: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the experiment found."""

    experiment: str
    seeds: int
    rows: list[Row]


def make_trace(jobs: int, machines: int, *, seed: int) -> Trace:
    """Draw the jobs, for idle machines."""
    dice = random.Random(seed)  # noqa: S311 - an experiment's dice
    capacity = Resources(cpu_milli=THREADS, memory_bytes=MEMORY)
    views = tuple(NodeView(name=f"n{number:03}", capacity=capacity, free=capacity) for number in range(machines))
    gpus = tuple(
        DeviceView(device=Device(id=f"{view.name}-{slot}", kind=DeviceKind.GPU, model="K80"), node=view.name, free=True)
        for view in views
        for slot in range(GPUS)
    )
    submissions, now = [], 0.0
    group = TaskGroup(name="main", command=("true",), requests=JOB)
    for number in range(jobs):
        now += dice.expovariate(RATE)
        one = dice.choice(APPLICATIONS)
        job = Job(id=f"j{number:05}", name=one.name, user="u", groups=(group,), submitted_at=now)
        submissions.append(Submission(job, now, one.time_s, one.name, 1, 1.0, PROFILES[one.name]))
    return Trace(views, gpus, tuple(submissions))


def simulate(jobs: int, machines: int, policy: Policy, *, warm_up_s: float, seed: int) -> tuple[Replay, int]:
    """Run one scenario; return the world at its end, and how many jobs had their QoS violated."""
    trace = make_trace(jobs, machines, seed=seed)
    warm = {view.name: (Resources(cpu_milli=THREADS), warm_up_s) for view in trace.nodes[: machines // 2]}
    patient = isinstance(policy, DRMaestroPolicy) and policy.network_aware
    world = Replay(trace, policy, network=NETWORK, every_s=ROUND_S, patient=patient, busy=warm)
    world.run()
    violated = sum(end - run.started > GOAL * run.submission.runs_s + 1e-6 for run, end in world.ended)
    return world, violated


Tell = Callable[[int, int], None]


def run(*, seeds: int = 1, seed: int = 0, scenarios: int = len(SCENARIOS), tell: Tell | None = None) -> Report:
    """Run the first ``scenarios`` under the three policies, each with ``seeds`` seeds from ``seed`` on."""
    if not 1 <= scenarios <= len(SCENARIOS):
        raise InvalidInput(f"--scenarios: {scenarios} is not from 1 to {len(SCENARIOS)}")
    rows = []
    for number, scenario in enumerate(SCENARIOS[:scenarios]):
        for column, (name, make) in enumerate(POLICIES.items()):
            if tell is not None:
                tell(number * len(POLICIES) + column, scenarios * len(POLICIES))
            ended = []
            for each in range(seed, seed + seeds):
                world, violated = simulate(
                    scenario.jobs, scenario.machines, make(), warm_up_s=scenario.warm_up_s, seed=each
                )
                ended.append((world.measures.outcome(world.ended, never=0), violated))
            rows.append(
                Row(
                    jobs=scenario.jobs,
                    machines=scenario.machines,
                    policy=name,
                    makespan_s=sum(outcome.makespan_s for outcome, _ in ended) / seeds,
                    violated=sum(violated for _, violated in ended) / seeds,
                    remote=sum(outcome.remote for outcome, _ in ended) / seeds,
                    wait_mean_s=sum(outcome.wait_mean_s for outcome, _ in ended) / seeds,
                    decision_cpu_p50_ms=sum(outcome.decision_cpu_p50_ms for outcome, _ in ended) / seeds,
                    published_makespan_s=scenario.makespan_s[column],
                    published_violated=scenario.violated[column],
                )
            )
    return Report(experiment="drmaestro", seeds=seeds, rows=rows)
