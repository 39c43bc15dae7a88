"""Nodes: machines with one agent."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from farbus.model.device import Device, PoolReach
from farbus.model.quantity import (
    MAX_BYTES,
    MAX_CPU_MILLI,
    MAX_NETWORK_MBIT_S,
    format_bytes,
    format_cpu,
    format_network,
)
from farbus.model.states import NodeState
from farbus.model.value import Value

REMOTING_TLS = "on"
"""What ``remoting_tls`` of an agent is where nobody has set it."""
MAX_NAMED = 8
"""Nodes named in one breath."""


class Resources(Value, frozen=True, kw_only=True):
    """What a node has, or a task takes, of each of :data:`DIMENSIONS`."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    network_mbit_s: int = 0
    """Of the link by which other nodes reach it; as a capacity 0 where nobody knows it: nothing counts against that."""

    def __add__(self, other: Resources) -> Resources:
        """Return what both are together."""
        return Resources(
            cpu_milli=self.cpu_milli + other.cpu_milli,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            network_mbit_s=self.network_mbit_s + other.network_mbit_s,
        )

    def __sub__(self, other: Resources) -> Resources:
        """Return what is left, which may be negative."""
        return Resources(
            cpu_milli=self.cpu_milli - other.cpu_milli,
            memory_bytes=self.memory_bytes - other.memory_bytes,
            network_mbit_s=self.network_mbit_s - other.network_mbit_s,
        )

    def __mul__(self, count: int) -> Resources:
        """Return it so many times."""
        return Resources(
            cpu_milli=self.cpu_milli * count,
            memory_bytes=self.memory_bytes * count,
            network_mbit_s=self.network_mbit_s * count,
        )

    def within(self, capacity: Resources) -> Resources:
        """Return it cut to from nothing to what ``capacity`` has."""
        return Resources(
            cpu_milli=max(0, min(self.cpu_milli, capacity.cpu_milli)),
            memory_bytes=max(0, min(self.memory_bytes, capacity.memory_bytes)),
            network_mbit_s=max(0, min(self.network_mbit_s, capacity.network_mbit_s)),
        )

    def lacks(self, other: Resources, capacity: Resources) -> bool:
        """Say whether ``other`` is more than this, in a dimension that counts on a node of ``capacity``."""
        return any(
            wanted > there
            for wanted, there, whole, dimension in zip(
                amounts_of(other), amounts_of(self), amounts_of(capacity), DIMENSIONS, strict=True
            )
            if whole or not dimension.may_be_unknown
        )


class Dimension(Value, frozen=True, kw_only=True):
    """Something of which nodes have an amount and each task takes a part: what there is to know of it.

    What is to count as another dimension is a field of :class:`Resources` and
    of :class:`farbus.model.job.Requests`, and a row of :data:`DIMENSIONS`.
    """

    name: str
    """Its field of both."""
    most: int
    """Largest amount of a node or a request."""
    write: Callable[[int], str]
    """Writes an amount for a person."""
    noun: str
    """What follows the amount: ``of memory``."""
    noun_of_one: str = ""
    may_be_unknown: bool = False
    """A capacity of 0 is one that nobody knows: then nothing counts against it."""
    packs: bool = True
    """Whether policies go by it where they pack or spread tasks; one that does not only limits."""

    def describe(self, amount: int) -> str:
        """Write an amount with what it is of: ``2 CPUs``, ``4 GiB of memory``."""
        written = self.write(amount)
        return f"{written} {self.noun_of_one if self.noun_of_one and written == '1' else self.noun}"


DIMENSIONS = (
    Dimension(name="cpu_milli", most=MAX_CPU_MILLI, write=format_cpu, noun="CPUs", noun_of_one="CPU"),
    Dimension(name="memory_bytes", most=MAX_BYTES, write=format_bytes, noun="of memory"),
    Dimension(
        name="network_mbit_s",
        most=MAX_NETWORK_MBIT_S,
        write=format_network,
        noun="of network",
        may_be_unknown=True,
        packs=False,
    ),
)
"""The dimensions of nodes, in the order of the phases' columns: those that pack come first."""

amounts_of: Callable[[object], tuple[int, ...]] = operator.attrgetter(*(dimension.name for dimension in DIMENSIONS))
"""Returns what :class:`Resources` or :class:`farbus.model.job.Requests` have of each dimension, in their order."""


STORAGE_ATTACH_S = 1.0
"""Seconds in which storage of another node is attached over the network, where nobody has measured it: what is typical,
and no less is told apart."""


class Link(Value, frozen=True, kw_only=True):
    """A network interface that is up; ``speed_mbit_s`` is 0 where the kernel does not know it."""

    name: str
    speed_mbit_s: int = 0


class Node(Value, frozen=True, kw_only=True):
    """A node as its agent announces it.

    ``address`` is the name or IP address at which other nodes reach what this
    node serves, ``peer_endpoint`` (``ADDRESS:PORT``) that at which its agent
    serves other agents.  ``boot_id`` is the kernel's, and tells a reboot.
    ``trouble`` says why nothing new may begin there, and is empty when nothing
    is wrong.
    """

    name: str
    address: str
    boot_id: str
    agent_version: str
    capacity: Resources
    labels: dict[str, str] = {}
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    peer_endpoint: str = ""
    trouble: str = ""
    pools: tuple[PoolReach, ...] = ()
    """The fabric pools that devices can come from."""
    storage_attach_s: float = 0.0
    """Seconds that attaching storage of other nodes over the network took here; 0 where nobody has measured it."""
    remoting_tls: str = ""
    """Whether programs and remoting servers encrypt what they say over TCP, ``on`` or ``off``; empty where an older
    agent does not tell it."""


def name_some(names: Sequence[str]) -> str:
    """Write the first of some nodes, and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def by_remoting_tls(nodes: Iterable[Node]) -> dict[str, tuple[str, ...]]:
    """Return the names of nodes by their ``remoting_tls``: with more than one, they can't use each other's GPUs.

    Those that do not tell it are left out.
    """
    told: dict[str, list[str]] = {}
    for node in nodes:
        if node.remoting_tls:
            told.setdefault(node.remoting_tls, []).append(node.name)
    return {setting: tuple(sorted(names)) for setting, names in sorted(told.items())}


def describe_remoting_tls(names: Mapping[str, Sequence[str]]) -> str:
    """Say that nodes differ in ``remoting_tls``, which ``names`` are by, and what comes of it."""

    told = ", and ".join(f"{setting} at {name_some(of)}" for setting, of in sorted(names.items()))
    return f"remoting_tls is {told}: programs of the ones can't use GPUs of the others"


class NodeStatus(Value, frozen=True, kw_only=True):
    """A node with what the scheduler knows of it.

    ``seen_s`` is seconds since it was last heard; ``cordon`` says who has
    cordoned it, when and why, or why it takes nothing new by itself, and is
    empty when nobody has.
    """

    node: Node
    state: NodeState
    free: Resources
    seen_s: float = 0.0
    cordon: str = ""
