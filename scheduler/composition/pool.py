"""The resources of the paper's cluster: nodes with processors, drives of nodes or of a pool, compositions of drives.

Bandwidths are in MB/s, capacities in GB, times in whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from farbus.scheduler.composition.performance import PerformanceModel


@dataclass(frozen=True, slots=True)
class Drive:
    """One NVMe drive."""

    bandwidth: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What every workload of one kind asks for (table I).

    ``peak_bandwidth`` is the most that it can make use of; ``model`` says how
    its execution time depends on its composition, and is None where nobody knows.
    """

    kind: str
    execution_s: int
    cores: int
    bandwidth: int = 0
    capacity: int = 0
    peak_bandwidth: int = 0
    model: PerformanceModel | None = None

    @property
    def needs_drives(self) -> bool:
        """Say whether it uses drives at all."""
        return self.bandwidth > 0 or self.capacity > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One job; ``number`` is its place in the order of arrival."""

    number: int
    demand: Demand
    arrival: int
    deadline: int
    urgent: bool


@dataclass(eq=False, slots=True)
class Run:
    """A workload that has been placed."""

    workload: Workload
    cores_on: Node
    started: int
    execution_s: float
    ends_at: float
    composition: Composition | None = None
    bandwidth: int = 0
    """What it has reserved of the composition."""

    def left(self, now: int) -> float:
        """Return the seconds that it still needs."""
        return self.ends_at - now


@dataclass(eq=False, slots=True)
class Composition:
    """Drives of one node or pool that are used as one, by the workloads of one node."""

    place: Node
    cores_on: Node
    drives: tuple[int, ...]
    bandwidth: int
    capacity: int
    free_bandwidth: int
    free_capacity: int
    runs: list[Run] = field(default_factory=list)

    @property
    def ends_at(self) -> float:
        """Return when the last of its workloads will end."""
        return max((run.ends_at for run in self.runs), default=-1)

    def retime(self, now: int) -> None:
        """Let the runs with a model go on at the speed of as many as there are now."""
        for run in self.runs:
            model = run.workload.demand.model
            if model is not None:
                execution_s = model.execution_s(self.bandwidth, len(self.runs))
                run.ends_at = now + run.left(now) / run.execution_s * execution_s
                run.execution_s = execution_s

    @property
    def model(self) -> PerformanceModel | None:
        """Return the model by which its workloads run, if they have one."""
        return next((run.workload.demand.model for run in self.runs if run.workload.demand.model is not None), None)


@dataclass(eq=False, slots=True)
class Node:
    """Processors, drives, or both; a pool of drives is a node without processors."""

    cores: int
    drives: tuple[Drive, ...] = ()
    free_cores: int = field(init=False)
    free_drives: list[bool] = field(init=False)
    slots: list[Composition | None] = field(init=False)
    """A new composition takes the first free slot: the order in which they are looked at."""

    def __post_init__(self) -> None:
        self.free_cores = self.cores
        self.free_drives = [True] * len(self.drives)
        self.slots = [None] * len(self.drives)

    @property
    def compositions(self) -> Iterator[Composition]:
        """Yield the compositions of its drives."""
        return (slot for slot in self.slots if slot is not None)

    def has_cores(self, cores: int) -> bool:
        """Say whether a workload could use this node's drives: those of a pool go to any node."""
        return self.cores == 0 or self.free_cores >= cores

    def select(self, bandwidth: int, capacity: int) -> tuple[int, ...]:
        """Return the fewest free drives with that much of both, the first ones; empty if they do not suffice.

        All drives are alike, as in the paper.
        """
        chosen: list[int] = []
        for number, drive in enumerate(self.drives):
            if self.free_drives[number]:
                chosen.append(number)
                bandwidth -= drive.bandwidth
                capacity -= drive.capacity
                if bandwidth <= 0 and capacity <= 0:
                    return tuple(chosen)
        return ()


@dataclass(eq=False, slots=True)
class Cluster:
    """All nodes and pools, in the order in which policies look at them."""

    nodes: tuple[Node, ...]
    changes: int = 0
    """Counts changes of what is free: what was found at one count holds as long as it stays."""

    @property
    def drives(self) -> int:
        """Return the number of drives."""
        return sum(len(node.drives) for node in self.nodes)

    @property
    def compositions(self) -> Iterator[Composition]:
        """Yield all compositions, node by node."""
        return (one for node in self.nodes for one in node.compositions)

    def first_with_cores(self, cores: int) -> Node | None:
        """Return the first node with so many free cores."""
        return next((node for node in self.nodes if node.free_cores >= cores), None)

    def compose(self, place: Node, chosen: tuple[int, ...], cores_on: Node) -> Composition:
        """Take drives of ``place`` together."""
        assert all(place.free_drives[number] for number in chosen)
        bandwidth = sum(place.drives[number].bandwidth for number in chosen)
        capacity = sum(place.drives[number].capacity for number in chosen)
        made = Composition(place, cores_on, chosen, bandwidth, capacity, bandwidth, capacity)
        for number in chosen:
            place.free_drives[number] = False
        place.slots[place.slots.index(None)] = made
        self.changes += 1
        return made

    def start(self, run: Run) -> None:
        """Take the processors, and the workload's share of its composition, for ``run``."""
        self.changes += 1
        run.cores_on.free_cores -= run.workload.demand.cores
        assert run.cores_on.free_cores >= 0
        if run.composition is not None:
            run.composition.runs.append(run)

    def end(self, run: Run) -> None:
        """Free what ``run`` has; a composition without workloads is taken apart."""
        self.changes += 1
        run.cores_on.free_cores += run.workload.demand.cores
        composition = run.composition
        if composition is None:
            return
        composition.runs.remove(run)
        composition.free_bandwidth += run.bandwidth
        composition.free_capacity += run.workload.demand.capacity
        if not composition.runs:
            place = composition.place
            for number in composition.drives:
                place.free_drives[number] = True
            place.slots[place.slots.index(composition)] = None
