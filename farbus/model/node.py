"""Nodes: machines with one agent."""

from __future__ import annotations

from farbus.model.device import Device, PoolReach
from farbus.model.states import NodeState
from farbus.model.value import Value


class Resources(Value, frozen=True, kw_only=True):
    """What a node has, or a task wants, of processor and memory."""

    cpu_milli: int = 0
    memory_bytes: int = 0


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
