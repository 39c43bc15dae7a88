"""The node's network links and their counters, by rtnetlink (rtnetlink(7)) and sysfs.

The one message that is needed is read here with the standard library: pyroute2
would add 21 MB to an agent that is to stay below 80, and take ten times as
long for each look.  A contract test compares the two.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from farbus.errors import Unavailable

# linux/netlink.h, linux/rtnetlink.h, linux/if.h, linux/if_link.h
_RTM_GETLINK, _NLMSG_ERROR, _NLMSG_DONE = 18, 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_IFLA_IFNAME, _IFLA_STATS64 = 3, 23
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_HEADER = struct.Struct("=IHHII")
_INFO = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_STATS = struct.Struct("=8Q")
"""The first of rtnl_link_stats64: packets, bytes, errors and drops, each received and sent."""

_ANSWER_BYTES = 1 << 16
_ANSWER_TIMEOUT_S = 5.0
"""The kernel answers at once, unless a driver holds the lock over all links."""


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface: speed in Mbit/s (0 when unknown), counters since it was made."""

    name: str
    up: bool
    speed_mbit: int = 0
    receive_bytes: int = 0
    send_bytes: int = 0
    receive_packets: int = 0
    send_packets: int = 0
    receive_errors: int = 0
    send_errors: int = 0
    receive_drops: int = 0
    send_drops: int = 0


def read_links(sysfs: str = "/sys") -> tuple[NetworkLink, ...]:
    """Return links that have hardware behind them; in a container, where none has, all but loopback; by name."""
    found = [link for link in _dump() if link.name]
    physical = [link for link in found if Path(f"{sysfs}/class/net/{link.name}/device").exists()]
    return tuple(
        msgspec.structs.replace(link, speed_mbit=_speed(sysfs, link.name))
        for link in sorted(physical or found, key=lambda link: link.name)
    )


def _speed(sysfs: str, name: str) -> int:
    try:
        return max(0, int(Path(f"{sysfs}/class/net/{name}/speed").read_text(encoding="ascii")))
    except (OSError, ValueError):
        # A virtual link has none, and one that is down does not know.
        return 0


def _dump() -> Iterator[NetworkLink]:
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_ANSWER_TIMEOUT_S)
            length = _HEADER.size + _INFO.size
            header = _HEADER.pack(length, _RTM_GETLINK, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
            kernel.send(header + _INFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
            while True:
                # The kernel alone sends to this socket: it was never bound to a group.
                answer = kernel.recv(_ANSWER_BYTES)
                at = 0
                while at + _HEADER.size <= len(answer):
                    size, kind, *_ = _HEADER.unpack_from(answer, at)
                    if kind == _NLMSG_DONE:
                        return
                    if kind == _NLMSG_ERROR:
                        number = -struct.unpack_from("=i", answer, at + _HEADER.size)[0]
                        raise OSError(number, "the kernel refuses to list them")
                    link = _read_link(answer[at + _HEADER.size : at + size])
                    if link is not None:
                        yield link
                    at += (size + 3) & ~3
    except OSError as error:
        raise Unavailable(f"network links: {error.strerror or error}", hint="is AF_NETLINK allowed?") from error


def _read_link(body: bytes) -> NetworkLink | None:
    _, _, _, flags, _ = _INFO.unpack_from(body)
    if flags & _IFF_LOOPBACK:
        return None
    name, counters = "", (0,) * 8
    at = _INFO.size
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if size < _ATTRIBUTE.size:
            break
        payload = body[at + _ATTRIBUTE.size : at + size]
        if kind == _IFLA_IFNAME:
            name = payload.rstrip(b"\0").decode(errors="replace")
        elif kind == _IFLA_STATS64 and len(payload) >= _STATS.size:
            counters = _STATS.unpack_from(payload)
        at += (size + 3) & ~3
    return NetworkLink(
        name=name,
        up=flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING,
        receive_packets=counters[0],
        send_packets=counters[1],
        receive_bytes=counters[2],
        send_bytes=counters[3],
        receive_errors=counters[4],
        send_errors=counters[5],
        receive_drops=counters[6],
        send_drops=counters[7],
    )
