"""What ``farbus doctor`` says of the encryption between programs and GPUs of other nodes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

from farbus.cli.findings import Finding, Verdict
from farbus.cli.node_settings import NodeSettings

CHECK = "encryption"

LIBRARIES = ("libssl.so.3", "libssl.so.1.1")
"""In the order in which shim and remoting server look for them (native/transport/sockets/openssl.c)."""


def examine_tls(settings: NodeSettings, *, loads: Callable[[str], object] = ctypes.CDLL) -> Iterator[Finding]:
    """Yield whether sessions between nodes can be encrypted here, as this machine's agent is set.

    ``loads`` opens a library or raises OSError.
    """
    if settings.remoting_tls == "off":
        yield Finding(
            check=CHECK,
            verdict=Verdict.NOTE,
            found="remoting_tls is off: what goes to GPUs of other nodes can be read on the way",
            cure="for networks that are trusted; it must be off on all nodes",
        )
        return
    for library in LIBRARIES:
        try:
            loads(library)
        except OSError:
            continue
        yield Finding(check=CHECK, verdict=Verdict.OK, found=f"TLS between nodes, by {library}")
        return
    yield Finding(
        check=CHECK,
        verdict=Verdict.WARNING,
        found=f"no {LIBRARIES[0]}: programs and GPUs of this node can't reach those of other nodes",
        cure='install OpenSSL 3 (Debian: libssl3; Fedora: openssl-libs), or set remoting_tls = "off" on all nodes',
    )
