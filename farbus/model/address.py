"""Network addresses as people and messages write them: ``HOST:PORT``, with brackets around IPv6."""

from __future__ import annotations

from farbus.errors import InvalidInput


def split_address(address: str, *, field: str, example: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; raise :class:`InvalidInput` naming ``field``, with an ``example``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidInput(f"{field}: {address!r} is not ADDRESS:PORT", hint=f"for example {field} {example}")
    return host.strip("[]"), int(port)


def host_and_port(host: str, port: int) -> str:
    """Write an endpoint; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
