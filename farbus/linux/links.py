"""The node's network links and their counters, by rtnetlink (rtnetlink(7)) and sysfs.

The two messages that are needed are read here with the standard library: pyroute2
would add 21 MB to an agent that is to stay below 80, and take ten times as
long for each look.  A contract test compares the two.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from farbus.errors import Unavailable

R = TypeVar("R")

# linux/netlink.h, linux/rtnetlink.h, linux/if.h, linux/if_link.h
_RTM_GETLINK, _NLMSG_ERROR, _NLMSG_DONE = 18, 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_IFLA_IFNAME, _IFLA_STATS64, _IFLA_CARRIER_CHANGES = 3, 23, 35
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_HEADER = struct.Struct("=IHHII")
_INFO = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_COUNT = struct.Struct("=I")
_TIMEVAL = struct.Struct("@ll")
_STATS = struct.Struct("=8Q")
"""The first of rtnl_link_stats64: packets, bytes, errors and drops, each received and sent."""

_RTM_GETADDR = 22
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_ADDRESS = struct.Struct("=BBBBI")
"""struct ifaddrmsg of linux/if_addr.h."""
_LIST_ADDRESSES = _HEADER.pack(
    _HEADER.size + _ADDRESS.size, _RTM_GETADDR, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0
) + _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)

_LIST_LINKS = _HEADER.pack(_HEADER.size + _INFO.size, _RTM_GETLINK, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0) + _INFO.pack(
    socket.AF_UNSPEC, 0, 0, 0, 0
)

_LOOKS_PER_SPEED = 20
"""Looks after which speeds are asked for again all the same: that of a virtual link is changed without its carrier."""

_ANSWER_BYTES = 1 << 16
_ANSWER_TIMEOUT_S = 5
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


class _Seen(msgspec.Struct, frozen=True):
    """A link as the kernel tells of it; ``state`` changes with whatever may change its speed."""

    link: NetworkLink
    state: tuple[int, int, int]


class LinkTable:
    """The node's links, looked at again and again by one thread.

    The socket is kept, and so is what is asked of sysfs for each link, until
    its carrier has come or gone: to ask for the speed calls into the driver.
    """

    def __init__(self, sysfs: str = "/sys") -> None:
        self._sysfs = sysfs
        self._kernel: socket.socket | None = None
        self._answer = bytearray(_ANSWER_BYTES)
        self._known: dict[tuple[str, tuple[int, int, int]], tuple[bool, int]] = {}
        """Of each link as it was: whether there is hardware behind it, and its speed in Mbit/s."""
        self._looks = 0

    def read(self) -> tuple[NetworkLink, ...]:
        """Return links that have hardware behind them; in a container, where none has, all but loopback; by name.

        Raises :class:`Unavailable` where the kernel does not tell.
        """
        found = self._dump()
        known = {} if self._looks % _LOOKS_PER_SPEED == 0 else self._known
        self._looks += 1
        self._known = {
            (seen.link.name, seen.state): known.get((seen.link.name, seen.state))
            or (_is_physical(self._sysfs, seen.link.name), _speed(self._sysfs, seen.link.name))
            for seen in found
        }
        told = [(seen.link, *self._known[seen.link.name, seen.state]) for seen in found]
        physical = [one for one in told if one[1]]
        return tuple(
            msgspec.structs.replace(link, speed_mbit=speed) if speed else link
            for link, _, speed in sorted(physical or told, key=lambda one: one[0].name)
        )

    def speed_of(self, addresses: Iterable[str]) -> int:
        """Return the speed in Mbit/s of the link with one of the IP ``addresses``; 0 where none has, or nobody knows.

        A bond, a bridge or a VLAN says what its ports come to
        (Documentation/ABI/testing/sysfs-class-net, ``speed``); loopback and
        tunnels have none.  Raises :class:`Unavailable` as :meth:`read` does.
        """
        wanted = {ipaddress.ip_address(address.partition("%")[0]).packed for address in addresses}
        for index in self._ask_kernel(self._ask_for_addresses, wanted):
            try:
                return _speed(self._sysfs, socket.if_indextoname(index))
            except OSError:
                # It has gone meanwhile.
                continue
        return 0

    def _dump(self) -> list[_Seen]:
        return self._ask_kernel(self._ask)

    def _ask_kernel(self, ask: Callable[..., list[R]], *arguments: object) -> list[R]:
        try:
            if self._kernel is None:
                self._kernel = socket.socket(
                    socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
                )
                # By the kernel (socket(7)): Python's own would poll before each call.
                self._kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(_ANSWER_TIMEOUT_S, 0))
            return ask(self._kernel, *arguments)
        except OSError as error:
            # With its socket goes an answer that comes late: it must not be taken for that to the next question.
            if self._kernel is not None:
                self._kernel.close()
                self._kernel = None
            raise Unavailable(f"network links: {error.strerror or error}", hint="is AF_NETLINK allowed?") from error

    def _ask(self, kernel: socket.socket) -> list[_Seen]:
        found = (_read_link(self._answer, at, end) for at, end in self._messages(kernel, _LIST_LINKS))
        return [seen for seen in found if seen is not None]

    def _ask_for_addresses(self, kernel: socket.socket, wanted: Collection[bytes]) -> list[int]:
        """Return the indices of the links that have one of ``wanted``."""
        found = (_read_address(self._answer, at, end) for at, end in self._messages(kernel, _LIST_ADDRESSES))
        return [index for index, addresses in found if not addresses.isdisjoint(wanted)]

    def _messages(self, kernel: socket.socket, request: bytes) -> Iterator[tuple[int, int]]:
        """Yield where each message of the answer begins and ends, behind its header, while it is in the buffer."""
        kernel.send(request)
        while True:
            # The kernel alone sends to this socket: it was never bound to a group.
            received = kernel.recv_into(self._answer)
            at = 0
            while at + _HEADER.size <= received:
                size, kind, *_ = _HEADER.unpack_from(self._answer, at)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    number = -struct.unpack_from("=i", self._answer, at + _HEADER.size)[0]
                    raise OSError(number, "the kernel refuses to list them")
                yield at + _HEADER.size, at + size
                at += (size + 3) & ~3


def _is_physical(sysfs: str, name: str) -> bool:
    return os.path.exists(f"{sysfs}/class/net/{name}/device")


def _speed(sysfs: str, name: str) -> int:
    try:
        return max(0, int(Path(f"{sysfs}/class/net/{name}/speed").read_text(encoding="ascii")))
    except (OSError, ValueError):
        # A virtual link has none, and one that is down does not know.
        return 0


async def resolved(host: str) -> tuple[str, ...]:
    """Return the IP addresses of ``host``, which may be one itself; none where nobody knows it."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:
            return ()
        return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    return (host,)


def _read_address(message: bytearray, at: int, end: int) -> tuple[int, frozenset[bytes]]:
    """Return the index of the link of an RTM_NEWADDR between ``at`` and ``end``, and the addresses that it tells of."""
    *_, index = _ADDRESS.unpack_from(message, at)
    found = set()
    at += _ADDRESS.size
    while at + _ATTRIBUTE.size <= end:
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if size < _ATTRIBUTE.size:
            break
        if kind in (_IFA_ADDRESS, _IFA_LOCAL):
            found.add(bytes(message[at + _ATTRIBUTE.size : min(at + size, end)]))
        at += (size + 3) & ~3
    return index, frozenset(found)


def _read_link(message: bytearray, at: int, end: int) -> _Seen | None:
    """Return the link of an RTM_NEWLINK between ``at`` and ``end``; None for loopback and one without a name."""
    _, _, index, flags, _ = _INFO.unpack_from(message, at)
    if flags & _IFF_LOOPBACK:
        return None
    name, counters, changes = "", (0,) * 8, 0
    at += _INFO.size
    while at + _ATTRIBUTE.size <= end:
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if size < _ATTRIBUTE.size:
            break
        start, stop = at + _ATTRIBUTE.size, min(at + size, end)
        if kind == _IFLA_IFNAME:
            name = message[start:stop].rstrip(b"\0").decode(errors="replace")
        elif kind == _IFLA_STATS64 and stop - start >= _STATS.size:
            counters = _STATS.unpack_from(message, start)
        elif kind == _IFLA_CARRIER_CHANGES and stop - start >= _COUNT.size:
            (changes,) = _COUNT.unpack_from(message, start)
        at += (size + 3) & ~3
    if not name:
        return None
    link = NetworkLink(
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
    return _Seen(link, (index, flags, changes))
