"""RDMA devices of this machine, as the kernel shows them (Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

import ipaddress
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROCE_V2 = "RoCE v2"
"""The type of GID that remoting uses, as the kernel spells it."""


@dataclass(frozen=True, kw_only=True)
class RdmaDevice:
    """An adapter, or soft-RoCE on an interface."""

    name: str
    addresses: tuple[str, ...]
    """IP addresses that its active ports have as GIDs of RoCE v2."""
    nodes: tuple[Path, ...]
    """Device files by which programs use it, whether they are there or not."""


def rdma_devices(root: str | Path = "/") -> list[RdmaDevice]:
    """Return those of the machine whose ``sys`` and ``dev`` are below ``root``, by their names."""
    return [
        RdmaDevice(
            name=device.name,
            addresses=tuple(_addresses(device)),
            nodes=tuple(
                Path(root, "dev/infiniband", number.name)
                for number in sorted(device.glob("device/infiniband_verbs/uverbs*"))
            ),
        )
        for device in sorted(Path(root, "sys/class/infiniband").glob("*"))
    ]


def lockable_bytes() -> int | None:
    """Return how much memory a program that is started here may lock, as its adapters count it; None: any.

    What is registered with an adapter counts with what is locked (RLIMIT_MEMLOCK, getrlimit(2)).
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _addresses(device: Path) -> Iterator[str]:
    for port in sorted(device.glob("ports/*")):
        if not _text(port / "state").endswith("ACTIVE"):
            continue
        for entry in sorted(port.glob("gids/*"), key=lambda path: int(path.name)):
            if _text(port / "gid_attrs/types" / entry.name) != ROCE_V2:
                continue
            gid = ipaddress.IPv6Address(_text(entry))
            if not gid.is_link_local and int(gid):
                yield str(gid.ipv4_mapped or gid)


def _text(path: Path) -> str:
    """Return what a file of sysfs says; empty where there is none, as of GIDs that are not set (EINVAL)."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
