"""What an operator sets for an agent."""

from __future__ import annotations

from pathlib import Path

import msgspec

from farbus.agent.accounts import UserRules
from farbus.api.authority import Credentials
from farbus.api.exposition import EXAMPLE_ADDRESS
from farbus.api.identity import valid_name
from farbus.errors import InvalidInput
from farbus.model.address import check_host, is_endpoint, split_address
from farbus.model.device import MAX_SHARES
from farbus.model.nvmeof import (
    DEFAULT_SERVICE,
    DEFAULT_TLS_SERVICE,
    Transport,
    TransportAddress,
    listening_address,
)
from farbus.model.pci import Address
from farbus.model.storage import check_group_name
from farbus.model.value import Value
from farbus.remoting.session import CONNECTIONS_LIMIT

# sun_path of a Unix socket's address has 108 bytes (unix(7)); farbus.api keeps some for itself.
SOCKET_PATH_LIMIT = 100

PROGRAM_UNITS = ("auto", "service", "none")

AUTHENTICATION = ("auto", "on", "off")

NVMEOF_TLS = ("on", "off")

MAX_TARGET_ADDRESSES = 8
"""Of one node: whoever uses its storage has a controller with queues at each."""

STATE_MARKS = ("lock", "journal.db")
"""Files of which one is in each directory that an agent has had for its state."""

REMOTING_TLS = REMOTING_RDMA = ("on", "off")

PEER_PORT = 7412
"""Port on which agents serve each other, beside the scheduler's 7411."""


class AgentConfig(Value, frozen=True, kw_only=True):
    """The settings of one agent."""

    name: str
    scheduler: str
    """``HOST:PORT`` of the scheduler."""
    address: str
    """Name or IP address at which other nodes reach what this node serves."""
    state: str
    """Directory for the journal, logs and session files; made if it is not there."""
    socket: str
    """Path of the Unix socket that serves the ``farbus`` command on this node."""
    credentials: Credentials
    labels: dict[str, str] = {}
    peer_port: int = PEER_PORT
    """Port of ``address`` on which this agent serves other agents; 0 for any free one, the same after a restart."""

    cpu_milli: int = 0
    """Thousandths of processors to offer; 0 for all."""
    memory_bytes: int = 0
    """Memory to offer; 0 for all."""
    network_mbit_s: int | None = None
    """Network to offer, in Mbit/s; left out, the speed of the link that has ``address``, as the kernel knows it.

    With 0 nothing is counted against it."""
    physical_devices: bool = True
    """Offer NVIDIA's GPUs and NVMe drives.  Off where several agents share a machine."""
    storage: bool = False
    """Store volumes, and room of jobs, on the drives of ``volume_group``, and export them to other nodes."""
    use_storage: bool = False
    """Have ``farbus install`` give the agent's unit what it takes to use storage of other nodes; ``storage`` does so,
    too."""
    volume_group: str = "farbus"
    """The LVM volume group of the drives that are given to Farbus (``farbus storage init``)."""
    drive_bandwidth: dict[str, int] = {}
    """Bytes a second that drives of the group read or write, by patterns of ids or models (``"*PM9A3*" =
    6_500_000_000``); others are measured, once, by reading for half a second."""
    nvmeof_port: int = DEFAULT_SERVICE
    """Port at which this node's NVMe target listens."""
    nvmeof_tls: str = "off"
    """Encrypt what nodes say to each other's NVMe targets (``on``; TLS 1.3 by a key of each lease's), or not (``off``).
    Nodes that differ in this refuse each other."""
    nvmeof_tls_port: int = DEFAULT_TLS_SERVICE
    """Port at which this node's NVMe target listens for TLS, beside ``nvmeof_port``, where leases from before are."""
    nvmeof_addresses: tuple[str, ...] = ()
    """IP addresses at which this node's NVMe target listens, each by TCP, or as ``rdma://ADDRESS``; left out, that of
    ``address``.  Other nodes connect to all of them, and use what works."""
    nvmeof_spare_addresses: tuple[str, ...] = ()
    """More of them, which are used only while none of the others works."""
    nvmeof_authentication: str = "auto"
    """Whether nodes prove to each other's NVMe targets that they have the lease: ``on``, ``off``, or ``auto``, which
    serves those without a proof only where this node's kernel knows none."""
    fabric: str = ""
    """File of the chassis that this node has the credentials for (``/etc/farbus/fabric.toml``); empty for none."""
    fabric_ports: dict[str, tuple[str, ...]] = {}
    """Bridges of this node that ports of chassis lead to, in the order in which the chassis fills them
    (``"falcon-1/30h" = ["0000:00:03.0"]``); left out, the only hot-plug port that is free."""
    softgpu: str = ""
    """FARBUS_SOFTGPU for this node's software GPUs (``count=2,mem=1GiB``); empty for none."""
    softgpu_node: str = ""
    """FARBUS_SOFTGPU_NODE: names whose software GPUs they are; empty for ``name``."""
    softgpu_library: str = ""
    """Directory of the software GPU's ``libcuda.so.1`` and ``libnvidia-ml.so.1``; empty for where the build puts it."""

    gpu_shares: dict[str, int] = {}
    """Shares that GPUs are offered as, each to a job of its own, by patterns of UUIDs or models (``"*A100*" = 4``)."""
    cdi_directory: str = ""
    """Where container engines look for devices (``/run/cdi``): tasks' remote GPUs are told there; empty for nowhere."""
    remoting_sockets: str = ""
    """Where remoting servers listen for containers of this machine, if ``cdi_directory`` is set; empty for ``sockets``
    in ``state``.  Agents that share a machine may share it."""
    remoting_user: str = ""
    """Local user as whom remoting servers run; empty for the agent's own."""
    remoting_tls: str = "on"
    """Encrypt what programs and remoting servers say to each other over TCP (``on``), or not (``off``: on networks that
    are trusted).  Programs and servers on nodes that differ in this refuse each other."""
    remoting_rdma: str = "off"
    """Let sessions between programs and remoting servers go on by RDMA (RoCE v2) where both nodes have it (``on``), or
    not (``off``).  RDMA encrypts nothing, whatever ``remoting_tls`` says: on networks that are trusted."""
    remoting_grace_s: float = 30.0
    """How long a remoting server waits for its program when their connection was cut; 0: not at all."""
    remoting_connections: int | None = None
    """TCP connections of each session between a program of this node and another node's GPU; None for one, and several
    where the round trip is long or both have processors for several threads."""
    remoting_image_bytes: int = 2 * 2**30
    """GPU code that is kept on this node of each user's programs, so that it travels once; 0 for none."""

    run_as_self: bool = False
    """Run tasks as the agent's own user, and only that user's (``farbus up``)."""
    allow_root: bool = False
    """Run tasks of the user root."""
    user_map: dict[str, str] = {}
    """Local users by patterns of the cluster's (``"*@example.org" = "*"``); others have the same name here."""
    allow_users: tuple[str, ...] = ("*",)
    """Patterns of the local users as whom tasks may run."""
    deny_users: tuple[str, ...] = ()
    """Patterns of those as whom none may, also where ``allow_users`` has them."""
    operators: tuple[str, ...] = ("root",)
    """Local users who operate this node, and the cluster where the scheduler's ``operator_nodes`` names the node."""

    end_on_stop: bool = False
    """End everything when the agent is stopped (``farbus up``); else it goes on, for the next agent to adopt."""
    orphan_limit_s: float = 0.0
    """End a program that no agent has come back for in this time; 0 for never."""
    program_units: str = "auto"
    """Start each program in a unit of its own of the service manager (``service``), or not (``none``); ``auto`` does so
    where the agent is itself a service of systemd and root."""

    metrics_listen: str = ""
    """``ADDRESS:PORT`` for Prometheus, without authentication; empty for none."""

    log_bytes_per_task: int = 64 * 2**20
    """Output kept of each task; the oldest goes first."""
    log_bytes: int = 2**30
    """Output kept of all tasks that have ended, together; that of the task that ended first goes first."""

    def check(self) -> None:
        """Raise :class:`InvalidInput` naming the setting that can't be."""
        if not valid_name(self.name):
            raise InvalidInput(f"name: {self.name!r} can't name a node", hint="use 1 to 63 letters, digits and -._@")
        if not is_endpoint(self.scheduler):
            raise InvalidInput(f"scheduler: {self.scheduler!r} is not HOST:PORT", hint="for example control:7411")
        if not 0 <= self.peer_port < 65536:
            raise InvalidInput(f"peer_port: {self.peer_port} is no port", hint="use 1 to 65535, or 0 for any free one")
        self.user_rules.check()
        if not self.address:
            raise InvalidInput("address: it is empty", hint="give the name or IP address that other nodes reach")
        if self.address != self.name:
            # With a port behind it, only the first lease between two nodes would show it.
            check_host(self.address, field="address")
        if self.metrics_listen:
            split_address(self.metrics_listen, field="metrics_listen", example=EXAMPLE_ADDRESS)
        if len(self.socket.encode()) > SOCKET_PATH_LIMIT:
            raise InvalidInput(
                f"socket: {self.socket} is longer than {SOCKET_PATH_LIMIT} bytes", hint="use a shorter path"
            )
        for what, number in (
            ("orphan_limit_s", self.orphan_limit_s),
            ("remoting_grace_s", self.remoting_grace_s),
            ("remoting_image_bytes", self.remoting_image_bytes),
            ("cpu_milli", self.cpu_milli),
            ("memory_bytes", self.memory_bytes),
            ("network_mbit_s", self.network_mbit_s or 0),
            ("log_bytes_per_task", self.log_bytes_per_task),
            ("log_bytes", self.log_bytes),
        ):
            if number < 0:
                raise InvalidInput(f"{what}: {number} is less than zero")
        if self.remoting_tls not in REMOTING_TLS:
            raise InvalidInput(
                f"remoting_tls: {self.remoting_tls!r} is none of {', '.join(REMOTING_TLS)}",
                hint="leave it out, which means on",
            )
        if self.remoting_rdma not in REMOTING_RDMA:
            raise InvalidInput(
                f"remoting_rdma: {self.remoting_rdma!r} is none of {', '.join(REMOTING_RDMA)}",
                hint="leave it out, which means off",
            )
        connections = self.remoting_connections
        if connections is not None and not 1 <= connections <= CONNECTIONS_LIMIT:
            raise InvalidInput(
                f"remoting_connections: {connections} is not from 1 to {CONNECTIONS_LIMIT}", hint="leave it out"
            )
        for pattern, shares in self.gpu_shares.items():
            if not 2 <= shares <= MAX_SHARES:
                raise InvalidInput(f"gpu_shares: {pattern!r} = {shares} is not from 2 to {MAX_SHARES}")
        for port, bridges in self.fabric_ports.items():
            if not all(port.partition("/")) or not bridges:
                raise InvalidInput(f"fabric_ports: {port!r}: not CHASSIS/PORT with the addresses of bridges")
            for bridge in bridges:
                Address.parse(bridge)
        check_group_name(self.volume_group)
        if not 0 < self.nvmeof_port < 65536:
            raise InvalidInput(
                f"nvmeof_port: {self.nvmeof_port} is no port", hint=f"leave it out for {DEFAULT_SERVICE}"
            )
        shared = self.encrypts_storage and self.nvmeof_tls_port == self.nvmeof_port
        if not 0 < self.nvmeof_tls_port < 65536 or shared:
            raise InvalidInput(
                f"nvmeof_tls_port: {self.nvmeof_tls_port} is no port of its own",
                hint=f"leave it out for {DEFAULT_TLS_SERVICE}, and let nvmeof_port be another one",
            )
        if self.nvmeof_tls not in NVMEOF_TLS:
            raise InvalidInput(
                f"nvmeof_tls: {self.nvmeof_tls!r} is none of {', '.join(NVMEOF_TLS)}", hint="leave it out"
            )
        for address in self.target_addresses if self.encrypts_storage else ():
            if not address.tls:
                raise InvalidInput(
                    f"nvmeof_addresses: {address} can't be encrypted, and nvmeof_tls is on",
                    hint="leave that address out, or nvmeof_tls",
                )
        if len(self.target_addresses) > MAX_TARGET_ADDRESSES:
            raise InvalidInput(
                f"nvmeof_addresses: with nvmeof_spare_addresses {len(self.target_addresses)},"
                f" more than {MAX_TARGET_ADDRESSES}",
                hint="each costs every other node a connection",
            )
        if len(set(self.target_addresses)) < len(self.target_addresses):
            raise InvalidInput("nvmeof_addresses: the same address twice", hint="name each once, spare or not")
        if self.nvmeof_spare_addresses and not self.nvmeof_addresses:
            raise InvalidInput(
                "nvmeof_spare_addresses: they are spare to nvmeof_addresses, which are left out", hint="name both"
            )
        if self.nvmeof_authentication not in AUTHENTICATION:
            raise InvalidInput(
                f"nvmeof_authentication: {self.nvmeof_authentication!r} is none of {', '.join(AUTHENTICATION)}",
                hint="leave it out",
            )
        for pattern, rate in self.drive_bandwidth.items():
            if rate <= 0:
                raise InvalidInput(f"drive_bandwidth: {pattern!r} = {rate} is not above zero")
        if self.storage and not self.physical_devices:
            raise InvalidInput(
                "storage: physical_devices is off, and drives are physical devices", hint="leave one of them out"
            )
        if self.program_units not in PROGRAM_UNITS:
            raise InvalidInput(
                f"program_units: {self.program_units!r} is none of {', '.join(PROGRAM_UNITS)}", hint="leave it out"
            )

    @property
    def user_rules(self) -> UserRules:
        """What is set about users."""
        return UserRules(user_map=self.user_map, allow=self.allow_users, deny=self.deny_users)

    @property
    def target_addresses(self) -> tuple[TransportAddress, ...]:
        """Where this node's NVMe target listens as far as it is set, spares last; raises :class:`InvalidInput`."""
        return tuple(
            self.encrypted(listening_address(text, self.nvmeof_port, field=field))
            for field, texts in (
                ("nvmeof_addresses", self.nvmeof_addresses),
                ("nvmeof_spare_addresses", self.nvmeof_spare_addresses),
            )
            for text in texts
        )

    @property
    def encrypts_storage(self) -> bool:
        """Whether what goes to NVMe targets and comes from them is encrypted."""
        return self.nvmeof_tls == "on"

    def encrypted(self, address: TransportAddress) -> TransportAddress:
        """Return where the target listens in place of an address where it would listen in the clear."""
        if not self.encrypts_storage or address.transport is not Transport.TCP:
            return address
        return msgspec.structs.replace(address, service=self.nvmeof_tls_port, tls=True)

    @property
    def logs_directory(self) -> Path:
        """Where the output of tasks is kept."""
        return Path(self.state) / "logs"

    @property
    def programs_directory(self) -> Path:
        """Where each program's keeper has its directory."""
        return Path(self.state) / "programs"

    @property
    def tasks_directory(self) -> Path:
        """Where tasks with files have directories, each its user's alone."""
        return Path(self.state) / "tasks"

    @property
    def shims_directory(self) -> Path:
        """Where copies of the shim are, which programs are started with."""
        return Path(self.state) / "shims"

    @property
    def sockets_directory(self) -> Path:
        """Where supervisors of leases listen for containers."""
        return Path(self.remoting_sockets) if self.remoting_sockets else Path(self.state) / "sockets"

    @property
    def images_directory(self) -> Path:
        """Where GPU code of users' programs is kept, each user's in a directory of its own."""
        return Path(self.state) / "images"

    @property
    def sessions_directory(self) -> Path:
        """Where session files of programs are, each readable by its user alone."""
        return Path(self.state) / "sessions"
