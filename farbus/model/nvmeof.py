"""NVMe over Fabrics as values: names, addresses, what a target offers and what an initiator connects to.

Words are those of the NVM Express Base and NVMe-oF specifications: a *target*
has *subsystems* with *namespaces*, offered at *ports* of *transport addresses*
to named *hosts*; an *initiator* connects a *controller* to a subsystem over
each path.  Names follow docs/decisions/0021-names-and-keys-of-nvme-over-fabrics.md:
one subsystem and one host for each lease, with the epoch in the subsystem's
name, so that a stale initiator finds nothing to write to.
"""

from __future__ import annotations

import enum
import hashlib
import ipaddress
import re
import uuid

from farbus.errors import InvalidInput
from farbus.model.address import host_and_port, split_address
from farbus.model.fabric import CEILING_S, quantile
from farbus.model.value import Value

NQN_PREFIX = "nqn.2026-11.io.farbus:"
"""How all names that Farbus gives begin; what begins otherwise is somebody else's and is never touched."""

MAX_NQN_BYTES = 223
"""Longest NVMe Qualified Name (NVM Express Base Specification 2.0, 4.5)."""

SERIAL_CHARACTERS = 20
"""Length of a controller's serial number (Identify Controller, bytes 23:04)."""

MODEL = "Farbus volume"
"""The model number that subsystems show; at most 40 characters."""

DEFAULT_SERVICE = 4420
"""The port number registered for NVMe over Fabrics."""

DEFAULT_TLS_SERVICE = 4421
"""Where Farbus's targets listen for TLS: a port of Linux's target has one way for all who connect to it."""

_NQN = re.compile(r"nqn\.[0-9]{4}-[0-9]{2}\.[!-~]+:[!-~]+|nqn\.2014-08\.org\.nvmexpress:uuid:[0-9a-f-]{36}")
_PART = re.compile(r"[A-Za-z0-9._-]{1,80}")
_ZONE = re.compile(r"[A-Za-z0-9._@-]{1,15}")
"""Of an IPv6 address: the name of an interface (IFNAMSIZ, linux/if.h)."""
_IDENTITIES = uuid.uuid5(uuid.NAMESPACE_URL, NQN_PREFIX)


class Transport(enum.StrEnum):
    """How capsules travel, as nvme-cli and configfs call it."""

    TCP = "tcp"
    RDMA = "rdma"
    LOOP = "loop"
    """Within one kernel, for tests."""


TLS_SUFFIX = "+tls"
"""Behind the transport, as addresses are written that are encrypted."""


class AnaState(enum.StrEnum):
    """Asymmetric Namespace Access of a namespace over one path (NVM Express Base 2.0, 2.4.1), as sysfs writes it."""

    OPTIMIZED = "optimized"
    NON_OPTIMIZED = "non-optimized"
    INACCESSIBLE = "inaccessible"
    PERSISTENT_LOSS = "persistent-loss"
    CHANGE = "change"


class TransportAddress(Value, frozen=True, kw_only=True, order=True):
    """Where a target listens.  ``address`` is an IP address in its shortest form; ``service`` a port number.

    With ``tls`` nothing but TLS 1.3 is spoken there, by a pre-shared key of the lease's.
    """

    transport: Transport
    address: str
    service: int = DEFAULT_SERVICE
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.transport}{TLS_SUFFIX if self.tls else ''}://{host_and_port(self.address, self.service)}"

    @property
    def is_ipv6(self) -> bool:
        """Say which family it is of."""
        return ":" in self.address


def transport_address(text: str, *, field: str = "address") -> TransportAddress:
    """Read ``tcp://ADDRESS:PORT``, ``tcp+tls://ADDRESS:PORT``, ``rdma://[ADDRESS]:PORT`` or ``ADDRESS:PORT`` for TCP.

    Names are not resolved: a controller is known again by its address.  Raises :class:`InvalidInput`.
    """
    kind, separator, rest = text.rpartition("://")
    host, service = split_address(rest if separator else text, field=field, example="10.0.0.7:4420")
    tls = kind == f"{Transport.TCP}{TLS_SUFFIX}"
    try:
        transport = Transport(kind) if separator and not tls else Transport.TCP
    except ValueError:
        raise InvalidInput(f"{field}: {kind!r} is no transport", hint="tcp, tcp+tls or rdma") from None
    return TransportAddress(transport=transport, address=normal_address(host, field=field), service=service, tls=tls)


def transport_addresses(endpoint: str, *, field: str = "address") -> tuple[TransportAddress, ...]:
    """Read the addresses that a lease is offered at, with commas between them.  Raises :class:`InvalidInput`."""
    return tuple(transport_address(text, field=field) for text in endpoint.split(","))


def listening_address(text: str, service: int, *, field: str) -> TransportAddress:
    """Read ``ADDRESS`` for TCP, or ``rdma://ADDRESS``, at which a node's target is to listen for other nodes.

    Raises :class:`InvalidInput`, also for what says nothing to another node: all addresses, and those of one link.
    """
    kind, separator, rest = text.rpartition("://")
    if separator and kind not in (Transport.TCP, Transport.RDMA):
        raise InvalidInput(f"{field}: {kind!r} is no transport", hint="leave it out for tcp, or write rdma://ADDRESS")
    address = normal_address(rest, field=field)
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.is_unspecified or parsed.is_link_local or parsed.is_multicast:
        raise InvalidInput(f"{field}: other nodes can't reach {text}", hint="give an address of this node's")
    return TransportAddress(transport=Transport(kind or Transport.TCP), address=address, service=service)


def normal_address(text: str, *, field: str = "address") -> str:
    """Return an IP address as it is compared: IPv6 in its shortest form, with its zone, without brackets."""
    bare, separator, zone = text.strip("[]").partition("%")
    try:
        address = ipaddress.ip_address(bare)
        # What comes from other nodes goes into settings of nvme-cli, where a line end in a zone would be two settings.
        if separator and (address.version == 4 or _ZONE.fullmatch(zone) is None):
            raise ValueError
        return f"{address}{separator}{zone}"
    except ValueError:
        raise InvalidInput(f"{field}: {text!r} is no IP address", hint="for example 10.0.0.7, or fd00::7") from None


def check_nqn(nqn: str, *, field: str = "nqn") -> str:
    """Return an NVMe Qualified Name; raise :class:`InvalidInput` for what is none."""
    if len(nqn.encode()) > MAX_NQN_BYTES or _NQN.fullmatch(nqn) is None:
        raise InvalidInput(
            f"{field}: {nqn!r} is no NVMe Qualified Name", hint="for example nqn.2026-11.org.example:one"
        )
    return nqn


class SubsystemName(Value, frozen=True, kw_only=True):
    """Whose subsystem it is: of which lease, in which epoch of what it gives."""

    lease: str
    epoch: int

    @property
    def nqn(self) -> str:
        """The name that the subsystem has; raises :class:`InvalidInput` where the lease's name does not fit."""
        return f"{NQN_PREFIX}lease:{_part(self.lease)}:{self.epoch}"

    @property
    def host_nqn(self) -> str:
        """The name of the only host that may connect: keys in Linux belong to hosts, so each lease has its own."""
        return f"{NQN_PREFIX}host:{_part(self.lease)}"

    @property
    def host_id(self) -> str:
        """The identifier that goes with :attr:`host_nqn`: the kernel wants one for each name, and one name for each."""
        return str(uuid.uuid5(_IDENTITIES, self.host_nqn))


def subsystem_name(nqn: str) -> SubsystemName | None:
    """Read a subsystem's name; None for one that Farbus has not given."""
    if not nqn.startswith(f"{NQN_PREFIX}lease:"):
        return None
    lease, _, epoch = nqn.removeprefix(f"{NQN_PREFIX}lease:").rpartition(":")
    if _PART.fullmatch(lease) is None or not (epoch.isascii() and epoch.isdigit()):
        return None
    return SubsystemName(lease=lease, epoch=int(epoch))


def _part(text: str) -> str:
    if _PART.fullmatch(text) is None:
        raise InvalidInput(
            f"lease {text!r}: its name can't be part of an NVMe Qualified Name", hint="letters, digits, . _ -"
        )
    return text


class TlsIdentity(Value, frozen=True, kw_only=True):
    """What both ends call the pre-shared key of a lease's subsystem, in the kernel's keyring and on the wire.

    Form: NVM Express TCP Transport Specification 1.1, 3.6.1.3, version 1: a
    retained key (R) for SHA-256 (01).  ``digest`` is of the key, so that
    another key is called otherwise.
    """

    name: SubsystemName
    digest: str

    def __str__(self) -> str:
        return f"{_TLS_IDENTITY} {self.name.host_nqn} {self.name.nqn} {self.digest}"


_TLS_IDENTITY = "NVMe1R01"


def tls_identity(text: str) -> TlsIdentity | None:
    """Read what a key is called; None for one that Farbus has not given."""
    kind, *rest = text.split(" ")
    if kind != _TLS_IDENTITY or len(rest) != 3:
        return None
    host_nqn, nqn, digest = rest
    name = subsystem_name(nqn)
    if name is None or name.host_nqn != host_nqn:
        return None
    return TlsIdentity(name=name, digest=digest)


class HeldTlsKey(Value, frozen=True, kw_only=True):
    """A key in the kernel's keyring, by its serial number.  What the key is is never part of a value."""

    serial: int
    identity: TlsIdentity


class NamespaceIdentity(Value, frozen=True, kw_only=True):
    """What stays the same about a namespace through all its exports: what is read and written.

    ``uuid`` is in the usual form; ``nguid`` is 32 hexadecimal digits.  Explicit,
    since the kernel makes others up each time it is told none.
    """

    uuid: str
    nguid: str
    serial: str

    @property
    def by_id(self) -> str:
        """The stable path that udev makes where it is connected (60-persistent-storage.rules, from ``wwid``)."""
        return f"/dev/disk/by-id/nvme-uuid.{self.uuid}"


def namespace_identity(volume: str) -> NamespaceIdentity:
    """Return the identity of a volume by its name."""
    name = uuid.uuid5(_IDENTITIES, f"volume:{volume}")
    digest = hashlib.sha256(f"volume:{volume}".encode()).hexdigest()
    return NamespaceIdentity(uuid=str(name), nguid=name.hex, serial=digest[:SERIAL_CHARACTERS])


class ExportedNamespace(Value, frozen=True, kw_only=True):
    """A block device behind a namespace of a subsystem."""

    device: str
    """Path of the block device on the target's node: one that stays (by-id, or device-mapper)."""
    identity: NamespaceIdentity
    nsid: int = 1
    ana_group: int = 1


class _Offer:
    """What both ends make of a subsystem's name, its addresses and its authentication."""

    __slots__ = ()
    name: SubsystemName
    addresses: tuple[TransportAddress, ...]
    authenticated: bool

    @property
    def nqn(self) -> str:
        """The subsystem's name."""
        return self.name.nqn

    @property
    def tls(self) -> bool:
        """Whether it is offered and connected to by TLS."""
        return any(address.tls for address in self.addresses)

    @property
    def needs_keys(self) -> bool:
        """Whether it takes keys, which are made of the lease's secret and written down nowhere."""
        return self.authenticated or self.tls


class Export(_Offer, Value, frozen=True, kw_only=True):
    """A subsystem as a target is to offer it.

    ``states`` gives the ANA state of groups at ports where it is not
    *optimized*: by ``str(address)``, then by group as a decimal.
    ``authenticated`` says that hosts must prove a key (DH-HMAC-CHAP), which is
    never part of a value.
    """

    name: SubsystemName
    namespaces: tuple[ExportedNamespace, ...]
    addresses: tuple[TransportAddress, ...]
    authenticated: bool = False
    states: dict[str, dict[str, AnaState]] = {}

    @property
    def serial(self) -> str:
        """Of the subsystem: its first namespace's."""
        return self.namespaces[0].identity.serial


class ExpectedNamespace(Value, frozen=True, kw_only=True):
    """What an initiator must find before anybody may use it."""

    identity: NamespaceIdentity
    size_bytes: int
    nsid: int = 1
    or_more: bool = False
    """It may be larger: drives give room in pieces, and volumes grow."""


class Connection(_Offer, Value, frozen=True, kw_only=True):
    """What an initiator is to connect to: a controller at each address, and the namespaces behind them.

    ``loss_s`` is how long the kernel tries to reconnect before it fails what
    waits (``ctrl_loss_tmo``; a long one holds up a node's shutdown), with
    ``reconnect_delay_s`` between tries; ``io_queues`` 0 leaves their number to
    the kernel.
    """

    name: SubsystemName
    addresses: tuple[TransportAddress, ...]
    namespaces: tuple[ExpectedNamespace, ...]
    loss_s: int = 60
    reconnect_delay_s: int = 2
    keep_alive_s: int = 5
    io_queues: int = 0
    authenticated: bool = False


class ControllerState(enum.StrEnum):
    """State of a controller as the initiator's sysfs has it (nvme_sysfs_show_state, drivers/nvme/host)."""

    NEW = "new"
    LIVE = "live"
    RESETTING = "resetting"
    CONNECTING = "connecting"
    DELETING = "deleting"
    DELETING_NO_IO = "deleting (no IO)"
    DEAD = "dead"
    UNKNOWN = "unknown"


class NamespacePath(Value, frozen=True, kw_only=True):
    """A namespace as one controller sees it.  ``ana_state`` is None where the subsystem has no ANA."""

    nsid: int
    uuid: str
    nguid: str
    size_bytes: int
    device: str
    """Name of the block device that programs use: of the subsystem where paths are joined, ``nvme1n1``."""
    ana_state: AnaState | None = None
    path: str = ""
    """Name of the path's own block device, ``nvme1c3n1``; of ``device`` where paths are not joined."""


class Controller(Value, frozen=True, kw_only=True):
    """A controller of an initiator.  ``name`` is the kernel's (``nvme3``) and good for the moment alone."""

    name: str
    nqn: str
    address: TransportAddress
    host_nqn: str
    state: ControllerState
    host_address: str = ""
    host_interface: str = ""
    serial: str = ""
    namespaces: tuple[NamespacePath, ...] = ()
    loss_s: int = 0
    """How long the kernel tries to reconnect; -1 for ever."""
    reconnect_delay_s: int = 0
    discovery: bool = False
    """Whether it is one to a discovery subsystem."""
    tls_key: int = 0
    """Serial number of the key by which its connections have been encrypted; 0 for those that are not."""

    @property
    def half_made(self) -> bool:
        """Say whether nobody has ever heard from it who it is, as one that never came up: there is nothing to use."""
        return not self.nqn and not self.namespaces

    def has_times_of(self, connection: Connection) -> bool:
        """Say whether it is tried again as the connection has it: for whole delays, as the kernel counts."""
        delay_s = connection.reconnect_delay_s
        loss_s = -(-connection.loss_s // delay_s) * delay_s if connection.loss_s >= 0 and delay_s else connection.loss_s
        return (self.loss_s, self.reconnect_delay_s) == (loss_s, delay_s)

    def reaches(self, connection: Connection, address: TransportAddress) -> bool:
        """Say whether it is the connection's path to an address: by what stays the same about it."""
        same = self.address == address or (self.address.transport is address.transport is Transport.LOOP)
        return same and self.nqn == connection.nqn and self.host_nqn == connection.name.host_nqn


class DiscoveryKind(enum.StrEnum):
    """What an entry of a discovery log is about (NVMe-oF 1.1, 5.3; its SUBTYPE)."""

    SUBSYSTEM = "subsystem"
    REFERRAL = "referral"
    """Another discovery service, which knows more."""
    CURRENT = "current"
    """The discovery service itself."""


class DiscoveryRecord(Value, frozen=True, kw_only=True):
    """An entry of a discovery log."""

    kind: DiscoveryKind
    nqn: str
    address: TransportAddress


class SmartLog(Value, frozen=True, kw_only=True):
    """SMART / Health Information of a controller (NVM Express Base 2.0, 5.16.1.3).

    ``temperature_c`` is None where the controller tells none: Linux's target does not.
    """

    critical_warning: int = 0
    """Bits of the log's first byte."""
    temperature_c: int | None = None
    spare_percent: int = 100
    spare_threshold_percent: int = 0
    used_percent: int = 0
    """Of the endurance that the maker has stated; may be more than 100."""
    media_errors: int = 0
    error_log_entries: int = 0
    unsafe_shutdowns: int = 0
    power_on_hours: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def troubles(self) -> tuple[str, ...]:
        """What an operator should know, in words; empty for a drive in good health."""
        words = [word for bit, word in enumerate(CRITICAL_WARNINGS) if self.critical_warning >> bit & 1]
        if self.media_errors:
            words.append(f"{self.media_errors} media errors")
        return tuple(words)


CRITICAL_WARNINGS = (
    "spare capacity below its threshold",
    "temperature beyond its threshold",
    "reliability degraded by errors",
    "all media read-only",
    "backup of the volatile memory failed",
    "persistent memory region unreliable",
)
"""Meaning of the bits of Critical Warning."""


class BlockStatistics(Value, frozen=True, kw_only=True):
    """What has gone through a block device since it appeared (Documentation/block/stat.rst); times in milliseconds."""

    reads: int = 0
    read_bytes: int = 0
    read_ms: int = 0
    writes: int = 0
    written_bytes: int = 0
    write_ms: int = 0
    in_flight: int = 0


class PathFigures(Value, frozen=True, kw_only=True):
    """One path to a namespace, for telemetry: named by what stays the same about it."""

    nqn: str
    address: TransportAddress
    uuid: str
    state: ControllerState
    ana_state: AnaState | None = None
    statistics: BlockStatistics
    reconnects: int = 0
    """Counted since somebody listens (:mod:`farbus.nvmeof.paths`)."""
    errors: int | None = None
    """Entries of its controller's error log; None where nobody has read it."""


class IoLimit(Value, frozen=True, kw_only=True):
    """What a lease may do with a namespace, in bytes and operations a second; 0 for as much as there is."""

    read_bytes_s: int = 0
    write_bytes_s: int = 0
    read_iops: int = 0
    write_iops: int = 0


class Stripe(Value, frozen=True, kw_only=True):
    """Block devices made one by device-mapper, ``chunk_bytes`` on each in turn.

    ``members`` are paths that stay; ``member_bytes`` is used of each.
    """

    id: str
    members: tuple[str, ...]
    member_bytes: int
    chunk_bytes: int

    @property
    def name(self) -> str:
        """Its name, below /dev/mapper."""
        if _PART.fullmatch(self.id) is None:
            raise InvalidInput(f"stripe {self.id!r}: no name for a device", hint="letters, digits, . _ -")
        return f"{STRIPE_PREFIX}{self.id}"

    @property
    def uuid(self) -> str:
        """By which it is known again: names can be changed."""
        return f"{STRIPE_PREFIX.upper()}{self.name.removeprefix(STRIPE_PREFIX)}"

    @property
    def path(self) -> str:
        """Where programs find it."""
        return f"/dev/mapper/{self.name}"

    @property
    def size_bytes(self) -> int:
        """Of the whole."""
        return len(self.members) * self.member_bytes


STRIPE_PREFIX = "farbus-"
"""How names of device-mapper begin that Farbus gives; what begins otherwise is somebody else's."""


ATTACH_TIMES = 15
"""Times of attaching that are kept: a few slow ones do not move their median, and eight on a slower network do."""

SHORTEST_ATTACH_S = 0.001
"""What is quicker counts as this: 0 would say that nobody has measured."""

TOLD_ANEW = 1.25
"""By how much a median must differ from what was told, either way, to be told: everybody learns what nodes tell."""


class AttachHistory(Value, frozen=True, kw_only=True):
    """How long a node's last attachments over the network took, in seconds, the newest last.

    ``told_s`` is what it says of them to others: their median, in two digits, as of when it last differed by more than
    :data:`TOLD_ANEW`; 0 where nothing was measured.
    """

    times: tuple[float, ...] = ()
    told_s: float = 0.0

    def with_time(self, seconds: float) -> AttachHistory:
        """Return the history with one time more; the oldest beyond :data:`ATTACH_TIMES` go."""
        times = (*self.times, min(max(seconds, SHORTEST_ATTACH_S), CEILING_S))[-ATTACH_TIMES:]
        median = float(f"{quantile(times, 0.5):.2g}")
        is_told = self.told_s / TOLD_ANEW <= median <= self.told_s * TOLD_ANEW
        return AttachHistory(times=times, told_s=self.told_s if is_told else median)
