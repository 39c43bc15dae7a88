"""What ``farbus doctor`` says of RDMA, where this machine's agent lets remoting sessions go by it."""

from __future__ import annotations

import ctypes
import ipaddress
import stat
from collections.abc import Callable, Iterator

from farbus.cli.findings import Finding, Verdict
from farbus.cli.node_settings import NodeSettings
from farbus.linux.rdma import lockable_bytes, rdma_devices
from farbus.model.quantity import format_bytes

CHECK = "rdma"

LIBRARY = "libibverbs.so.1"
LIBRARY_HINT = "install rdma-core's libraries (Debian: ibverbs-providers; Fedora: libibverbs)"
ALL_MAY_OPEN = stat.S_IROTH | stat.S_IWOTH

LOCKED_BYTES = 6 * 2**20
"""What a session may have locked: 3 MiB (native/transport/rings/rdma.c), and as much again while it resumes."""


def examine_rdma(
    settings: NodeSettings,
    *,
    root: str = "/",
    loads: Callable[[str], object] = ctypes.CDLL,
    lockable: Callable[[], int | None] = lockable_bytes,
) -> Iterator[Finding]:
    """Yield what keeps sessions of this node from RDMA; nothing where its agent does not let them.

    ``settings`` are those of this machine's agent, ``sys`` and ``dev`` are looked for below ``root``, ``loads`` opens a
    library or raises OSError, ``lockable`` says how many bytes programs may lock.
    """
    if settings.remoting_rdma != "on":
        return
    try:
        loads(LIBRARY)
    except OSError:
        yield _warning(f"remoting_rdma is on, and there is no {LIBRARY}", LIBRARY_HINT)
    offered = rdma_devices(root)
    usable = [device for device in offered if device.addresses]
    if not offered:
        yield _warning(
            "remoting_rdma is on, and this machine has no RDMA device",
            "load the adapter's module (mlx5_ib, bnxt_re, ...), or for a trial soft-RoCE: "
            "rdma link add rxe0 type rxe netdev INTERFACE",
        )
    elif not usable:
        names = ", ".join(device.name for device in offered)
        yield _warning(f"{names}: no active port with an address of RoCE v2", "give its network interface an address")
    for device in usable:
        for node in device.nodes:
            if not node.exists() or node.stat().st_mode & ALL_MAY_OPEN != ALL_MAY_OPEN:
                yield _warning(
                    f"{node}: programs and remoting servers can't open it",
                    "install rdma-core, whose rules for udev let all users open it",
                )
    limit = lockable()
    if limit is not None and limit < LOCKED_BYTES:
        yield _warning(
            f"programs that are started here may lock {format_bytes(limit)} of memory, and a session takes "
            f"{format_bytes(LOCKED_BYTES)} to go by RDMA and to stay there behind a cut",
            "ulimit -l 8192, or for good: memlock in /etc/security/limits.conf for users who log in, and for jobs and "
            "remoting servers DefaultLimitMEMLOCK=8M in /etc/systemd/system.conf",
        )
    told = {address for device in usable for address in device.addresses}
    if told:
        yield from _own(settings.address, told)
        found = "; ".join(f"{device.name} has {', '.join(device.addresses)}" for device in usable)
        yield Finding(check=CHECK, verdict=Verdict.OK, found=f"sessions may go by RDMA: {found}")


def _own(address: str, told: set[str]) -> Iterator[Finding]:
    """Yield a warning where other nodes reach this one's GPUs at an address of no RDMA device."""
    try:
        own = str(ipaddress.ip_address(address))
    except ValueError:
        return  # a name, or none: where it leads is other nodes' affair
    if own not in told:
        yield _warning(
            f"the agent's address {own} is of no RDMA device: programs of other nodes come by TCP",
            f"set address in agent.toml to one that has it ({', '.join(sorted(told))})",
        )


def _warning(found: str, cure: str) -> Finding:
    return Finding(check=CHECK, verdict=Verdict.WARNING, found=found, cure=cure)
