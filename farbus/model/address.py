"""Network addresses as people and messages write them: ``HOST:PORT``, with brackets around IPv6."""

from __future__ import annotations

import ipaddress
import re

from farbus.errors import InvalidInput

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\.?")


def is_host(text: str) -> bool:
    """Say whether ``text`` is an IP address or a DNS name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _DNS_NAME.fullmatch(text) is not None
    return True


def is_endpoint(text: str) -> bool:
    """Say whether ``text`` is the ``HOST:PORT`` at which somebody may serve."""
    host, _, port = text.rpartition(":")
    return port.isdecimal() and 0 < int(port) < 65_536 and is_host(host.removeprefix("[").removesuffix("]"))


def check_host(text: str, *, field: str) -> None:
    """Raise :class:`InvalidInput` naming ``field`` where ``text`` is neither an IP address nor a DNS name."""
    if not is_host(text):
        raise InvalidInput(
            f"{field}: {text[:80]!r} is neither an IP address nor a DNS name",
            hint="write for example 10.0.0.7 or node7.example.org, without a port",
        )


def split_address(address: str, *, field: str, example: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; raise :class:`InvalidInput` naming ``field``, with an ``example``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidInput(f"{field}: {address!r} is not ADDRESS:PORT", hint=f"for example {field} {example}")
    return host.strip("[]"), int(port)


def host_and_port(host: str, port: int) -> str:
    """Write an endpoint; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def origin_of(address: str) -> str:
    """Return by what callers at an IP address are counted: itself, or in IPv6 its network of 64 bits.

    Whoever has one IPv6 address has all 2^64 of that network (RFC 4291, 2.5.4).
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), 64), strict=False))
