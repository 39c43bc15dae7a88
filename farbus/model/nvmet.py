"""What a target exports now, and to whom: the tree of Linux's nvmet as values, Farbus's own objects and all others'."""

from __future__ import annotations

from farbus.errors import InvalidInput
from farbus.model.nvmeof import NQN_PREFIX, AnaState, Transport, TransportAddress, normal_address
from farbus.model.value import Value

FIRST_PORT = 64000
PORTS = range(FIRST_PORT, FIRST_PORT + 256)
"""Numbers of the ports that Farbus makes, of 65536.  Tools count from 1 (nvmetcli); ports outside are never touched."""

COMMON_ANA_GROUP = 1
"""The group that each port has from the start, optimized; a namespace of which nobody says anything is in it."""

NODE_ANA_GROUP = 2
"""The group of what an agent exports at several addresses.  Its state at a port is the address's, for all leases."""

MAX_ANA_GROUPS = 128
"""Of a port (NVMET_MAX_ANAGRPS, drivers/nvme/target/nvmet.h)."""

_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - read, never bound


class TargetNamespace(Value, frozen=True, kw_only=True):
    """A namespace of a subsystem.  ``nguid`` is 32 hexadecimal digits; ``device`` is empty before one is set."""

    nsid: int
    device: str
    uuid: str
    nguid: str
    ana_group: int
    enabled: bool


class TargetSubsystem(Value, frozen=True, kw_only=True):
    """A subsystem, offered or not."""

    nqn: str
    serial: str
    model: str
    any_host: bool
    hosts: tuple[str, ...]
    """Names of those that may connect, where not everybody may."""
    namespaces: tuple[TargetNamespace, ...]

    @property
    def is_ours(self) -> bool:
        """Say whether Farbus made it, by its name."""
        return self.nqn.startswith(NQN_PREFIX)


class TargetPort(Value, frozen=True, kw_only=True):
    """A port as its attributes are written, which may be anything.  It listens while it offers a subsystem."""

    id: int
    transport: str
    family: str
    address: str
    service: str
    subsystems: tuple[str, ...]
    states: dict[str, str]
    """ANA state of each group that the port has, by its number as a decimal."""
    tls: bool = False
    """Whether who connects there must speak TLS."""

    @property
    def is_ours(self) -> bool:
        """Say whether Farbus made it, by its number."""
        return self.id in PORTS

    @property
    def at(self) -> TransportAddress | None:
        """Its address; None where its attributes are none of an IP address."""
        try:
            return TransportAddress(
                transport=Transport(self.transport),
                address=normal_address(self.address),
                service=int(self.service),
                tls=self.tls,
            )
        except (InvalidInput, ValueError):
            return None

    def is_at(self, address: TransportAddress) -> bool:
        """Say whether it is a port of exactly this address."""
        return self.tls == address.tls and self._listens_at(address, {address.address})

    def is_in_the_way(self, address: TransportAddress) -> bool:
        """Say whether nobody else can listen at an address because of it."""
        return self._listens_at(address, {address.address, *_ANY})

    def _listens_at(self, address: TransportAddress, addresses: set[str]) -> bool:
        return (
            self.transport == address.transport
            and self.service == str(address.service)
            and _normal(self.address) in addresses
        )

    def __str__(self) -> str:
        return f"port {self.id} ({self.transport}://{self.address}:{self.service})"


class TargetHost(Value, frozen=True, kw_only=True):
    """A host that subsystems can name.  Whether it must prove a key is told, the key never."""

    nqn: str
    authenticated: bool
    """Whether it must prove a key to connect to whatever names it."""
    proves_target: bool = False
    """Whether the target has a key to prove itself to it."""


class Target(Value, frozen=True, kw_only=True):
    """All that nvmet has, of whomever."""

    subsystems: tuple[TargetSubsystem, ...] = ()
    ports: tuple[TargetPort, ...] = ()
    hosts: tuple[TargetHost, ...] = ()

    def subsystem(self, nqn: str) -> TargetSubsystem | None:
        """Return a subsystem by its name."""
        return next((one for one in self.subsystems if one.nqn == nqn), None)

    def host(self, nqn: str) -> TargetHost | None:
        """Return a host by its name."""
        return next((one for one in self.hosts if one.nqn == nqn), None)

    def ports_of(self, nqn: str) -> tuple[TargetPort, ...]:
        """Return the ports at which a subsystem is offered."""
        return tuple(port for port in self.ports if nqn in port.subsystems)

    def port_at(self, address: TransportAddress) -> TargetPort | None:
        """Return Farbus's port of an address."""
        return next((port for port in self.ports if port.is_ours and port.is_at(address)), None)

    def group_is_used(self, port: TargetPort, group: int, *, but: str) -> bool:
        """Say whether a subsystem other than ``but`` has a namespace of an ANA group at a port."""
        return any(
            namespace.ana_group == group
            for subsystem in self.subsystems
            if subsystem.nqn != but and subsystem.nqn in port.subsystems
            for namespace in subsystem.namespaces
        )


class NamespaceUse(Value, frozen=True, kw_only=True):
    """What has gone through the device behind a namespace since it appeared (Documentation/block/stat.rst).

    nvmet counts nothing itself.  Times are summed over requests, in
    milliseconds; in a window, their difference over that of the requests is
    the mean latency.
    """

    device: str
    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    written_bytes: int
    write_ms: int
    in_flight: int
    busy_ms: int
    """During which there was something to do."""


def access_wanted(states: dict[str, dict[str, AnaState]], address: TransportAddress, group: int) -> AnaState:
    """Return the ANA state that a group is to have at an address (:attr:`farbus.model.nvmeof.Export.states`)."""
    return states.get(str(address), {}).get(str(group), AnaState.OPTIMIZED)


def _normal(address: str) -> str:
    try:
        return normal_address(address)
    except InvalidInput:
        return address
