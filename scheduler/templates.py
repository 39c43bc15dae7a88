"""The template store: composites of jobs expanded into groups with flavour vectors.

HIRE (Bloecher et al., ASPLOS 2021), section 4: a job is a *composite request*;
the store holds for each *template* its in-network implementations, with what
they take of a device, and rewrites the composite into a *polymorphic request*,
groups of equal tasks with flavour vectors (sections 4.3 and 4.4).  The demands
are those of table 3: what one device gives once for all instances of a
service, and a range for each instance, within which the job says what it needs.

Each group that a composite brings or names has one decision in the vectors: 1
in its own and in those of the groups that go with it, 0 in those of the other
implementations.  Departures from the paper:

* The number of instances is by table 3's formulas, with the logarithm to the
  base two, which the table does not say.
* Connections between composites are not expressed: locality is that of the job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from farbus.errors import InvalidInput
from farbus.model.job import Composite, Job, Requests, ServiceRequest, TaskGroup

RECIRCULATION, STAGES, SRAM = "recirculation", "stages", "sram_bytes"
"""Resources of a switch: percent of its recirculation capacity, match-action stages, bytes of memory."""

KIB, MIB = 2**10, 2**20

CONTROL = Requests(cpu_milli=100, memory_bytes=64 * MIB)
"""What the task beside an instance takes of its node: it sets the device up, and moves no data."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """One group of equal tasks of an implementation, each beside one instance of ``service``."""

    name: str
    service: str
    count: Callable[[int], int]
    shared: Mapping[str, int] = field(default_factory=dict)
    own: Mapping[str, Range] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def request(self, own: Mapping[str, int]) -> ServiceRequest:
        """Return what an instance takes; raise :class:`InvalidInput` for what is outside the ranges."""
        for name, amount in own.items():
            least, most = self.own.get(name, (0, 0))
            if not least <= amount <= most:
                raise InvalidInput(f"own.{name}: {amount} is not from {least} to {most}, what {self.service} takes")
        amounts = {name: own.get(name, least) for name, (least, _) in self.own.items()}
        return ServiceRequest(
            name=self.service,
            own={name: amount for name, amount in amounts.items() if amount},
            shared=dict(self.shared),
        )


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to serve a composite in the network: parts that are placed together."""

    name: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A function that jobs may ask for; ``implementations`` are instead of each other, and of servers."""

    name: str
    implementations: tuple[Implementation, ...]
    command: tuple[str, ...] = ("sleep", "infinity")
    """What a task beside an instance runs where the composite says nothing: it is there until the job ends."""


def _log(size: int) -> int:
    return max(1, math.ceil(math.log2(size)))


def _replicas(size: int) -> int:
    return max(3, math.ceil(math.log2(size)))


def _chain(size: int) -> int:
    return max(3, 3 * math.ceil(size / 1000))


def _each_9000(size: int) -> int:
    return math.ceil(size / 9000)


_CACHE: dict[str, Range] = {RECIRCULATION: (0, 10), STAGES: (0, 8), SRAM: (6 * MIB, 12 * MIB)}
"""Table 3, NetCache, DistCache and NetChain: for each instance."""


def _single(
    name: str, count: Callable[[int], int], shared: Mapping[str, int], own: Mapping[str, Range]
) -> Implementation:
    return Implementation(name, (Part(name, name, count, shared, own),))


TABLE_3 = (
    Template(
        "aggregation",
        (
            _single("sharp", _log, {}, {SRAM: (1 * MIB, 8 * MIB)}),
        ),
    ),
    Template(
        "cache",
        (
            _single("incbricks", _replicas, {}, {RECIRCULATION: (0, 40), STAGES: (4, 8), SRAM: (3 * MIB, 12 * MIB)}),
            _single("netcache", _replicas, {STAGES: 8}, _CACHE),
            Implementation(
                "distcache",
                (
                    Part("leaf", "distcache", _replicas, {STAGES: 8}, _CACHE),
                    Part("spine", "distcache", _replicas, {STAGES: 8}, _CACHE),
                ),
            ),
        ),
    ),
    Template("coordinator", (_single("netchain", _chain, {STAGES: 8}, _CACHE),)),
    Template(
        "replication",
        (
            _single("harmonia", _each_9000, {STAGES: 3}, {STAGES: (0, 3), SRAM: (768 * KIB, 2048 * KIB)}),
            _single(
                "hovercraft",
                _each_9000,
                {STAGES: 18},
                {RECIRCULATION: (0, 10), STAGES: (0, 18), SRAM: (0, 128 * KIB)},
            ),
        ),
    ),
    Template(
        "rpc",
        # Table 3: as many stages as tasks; a switch has 48.
        (_single("r2p2", _each_9000, {}, {RECIRCULATION: (0, 30), STAGES: (0, 48), SRAM: (1 * KIB, 64 * KIB)}),),
    ),
)  # fmt: skip


class TemplateStore:
    """Templates by name."""

    def __init__(self, templates: tuple[Template, ...] = TABLE_3) -> None:
        self.templates = {template.name: template for template in templates}

    @property
    def services(self) -> tuple[str, ...]:
        """Return the services of all templates, by name."""
        parts = (part for each in self.templates.values() for way in each.implementations for part in way.parts)
        return tuple(sorted({part.service for part in parts}))

    def expand(self, job: Job) -> Job:
        """Return ``job`` with its composites turned into groups and vectors: a polymorphic request.

        Raises :class:`InvalidInput` with the field and the reason.
        """
        vectors = {group.name: group.flavour for group in job.groups}
        length = max((len(vector) for vector in vectors.values()), default=0)
        added: list[TaskGroup] = []
        for number, composite in enumerate(job.composites):
            where = f"composites[{number}]"
            try:
                ways = self._ways(composite)
            except InvalidInput as error:
                raise InvalidInput(f"{where}.{error.message}", hint=error.hint) from None
            servers = [name for name in composite.servers if name in vectors]
            if len(servers) != len(composite.servers):
                lacking = next(name for name in composite.servers if name not in vectors)
                raise InvalidInput(f"{where}.servers: the job has no group {lacking[:80]!r}")
            names = ([servers] if servers else []) + [[group.name for group in way] for way in ways]
            decisions = sum(len(way) for way in names)
            first = 0
            for way in names:
                own = "0" * first + "1" * len(way) + "0" * (decisions - first - len(way))
                first += len(way)
                for name in way:
                    before = vectors.get(name, "").ljust(length, "x")
                    # A group that no decision but this one concerns.
                    vectors[name] = before + own
            length += decisions
            added += [group for way in ways for group in way]
        groups = (*job.groups, *added)
        return replace(
            job,
            groups=tuple(replace(group, flavour=vectors[group.name]) for group in groups),
            composites=(),
        )

    def _ways(self, composite: Composite) -> list[list[TaskGroup]]:
        """Return the groups of each implementation in the network that may be chosen."""
        template = self.templates.get(composite.template)
        if template is None:
            known = ", ".join(self.templates)
            raise InvalidInput(
                f"template: there is none called {composite.template[:80]!r}", hint=f"use one of {known}"
            )
        known_ways = {way.name: way for way in template.implementations}
        for name in composite.implementations:
            if name not in known_ways:
                raise InvalidInput(
                    f"implementations: {template.name} has none called {name[:80]!r}",
                    hint=f"use one of {', '.join(known_ways)}",
                )
        chosen = composite.implementations or tuple(known_ways)
        return [
            [
                TaskGroup(
                    name=f"{composite.name}-{way.name}" + (f"-{part.name}" if len(way.parts) > 1 else ""),
                    command=composite.command or template.command,
                    count=part.count(composite.size),
                    requests=CONTROL,
                    labels=dict(part.labels),
                    service=part.request(composite.own),
                )
                for part in way.parts
            ]
            for way in (known_ways[name] for name in dict.fromkeys(chosen))
        ]
