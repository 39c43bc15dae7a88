"""Session files and the hello: what client, supervisor and server agree on.

A session file tells the shim where its GPU is.  It is a text file of mode 0600, one
``key value...`` per line, with a block per server::

    farbus-session 1
    server tls 192.0.2.7 41234
    secret <64 hexadecimal digits>
    device GPU-...

``tls`` is TCP with TLS, ``tcp`` is TCP without, ``unix`` a Unix socket.  The shim of today
uses the first server; unknown keys are for newer ones.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from farbus.remoting import assignment

SECRET_BYTES = assignment.SECRET_BYTES

# wire/hello.h
HELLO_MAGIC = 0x0A0D5355
PROTOCOL_MAJOR = 2
PROTOCOL_MINOR = 6
#: magic, major, minor, byte order, version of the specification, capabilities, session, received,
#: process, reserved, nonce, proof, program.
HELLO = struct.Struct("<IHHIIQQQII16s16s48s")
PROOF_OFFSET, PROOF_BYTES = 64, 16
TOKEN_BYTES = 32
HELLO_REPLY = struct.Struct("<IHHIIQQiiII64s")
LOCAL_NAME, LOCAL_HEX = "farbus-remoting-", 48
LOCAL_DOMAIN, SOCKET_DOMAIN = b"farbus remoting local 1", b"farbus remoting socket 1"
HELLO_OK, HELLO_VERSION, HELLO_SECRET, HELLO_DRIVER, HELLO_BUSY, HELLO_TLS, HELLO_USER, HELLO_SESSION = range(8)
CAPABILITY_SHARED_MEMORY, CAPABILITY_TLS, CAPABILITY_RESUME, CAPABILITY_WINDOWS, CAPABILITY_IMAGES = 1, 2, 4, 8, 16
CAPABILITY_CONNECTIONS, CAPABILITY_PROMPT, CAPABILITY_THREADS, CAPABILITY_RDMA = 32, 64, 128, 256
#: The text of HELLO_SESSION where nothing more is known.
SESSION_ENDED = "the server or its lease has ended"
#: Most TCP connections of one session (native/transport/sockets/bundle.h).
CONNECTIONS_LIMIT = 8

# wire/proof.h
_PROOF_LABEL = b"farbus remoting proof 2"
_RESUME_LABEL = b"farbus remoting resume 2"


@dataclass(frozen=True, kw_only=True)
class Server:
    """One remoting supervisor: where it listens and the lease's secret."""

    address: str  # a numeric IP address, or the path of a Unix socket
    port: int | None  # None: a Unix socket
    secret: bytes = field(repr=False)
    devices: Sequence[str] = ()
    tls: bool = True
    """Encrypt what goes over TCP.  The client believes nobody else about it."""
    rdma: bool = False
    """Let what goes over the network go by RDMA, which encrypts nothing, where both nodes have it."""
    connections: int | None = None
    """How many TCP connections the session has, 1 to ``CONNECTIONS_LIMIT``; None: by the round trip."""

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"secret: expected {SECRET_BYTES} bytes, got {len(self.secret)}")
        if self.connections is not None and not 1 <= self.connections <= CONNECTIONS_LIMIT:
            raise ValueError(f"connections: {self.connections} is not from 1 to {CONNECTIONS_LIMIT}")


def render_session(servers: Sequence[Server]) -> str:
    """The text of a session file."""
    lines = ["farbus-session 1"]
    for server in servers:
        if server.port is None:
            lines.append(f"server unix {server.address}")
        else:
            lines.append(f"server {'tls' if server.tls else 'tcp'} {server.address} {server.port}")
        lines.append(f"secret {server.secret.hex()}")
        if server.rdma and server.port is not None:
            lines.append("rdma on")
        if server.connections is not None:
            lines.append(f"connections {server.connections}")
        lines += [f"device {device}" for device in server.devices]
    return "\n".join(lines) + "\n"


def write_session(path: Path, servers: Sequence[Server]) -> None:
    """Write a session file, readable by its owner only, in one step."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(render_session(servers))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def local_name(secret: bytes) -> str:
    """Return the abstract Unix socket at which a supervisor of this machine listens: known to who has the secret."""
    return f"\0{_name(LOCAL_DOMAIN, secret)}"


def socket_name(secret: bytes) -> str:
    """Return what the socket file of a supervisor is called, which a container finds beside its session file."""
    return _name(SOCKET_DOMAIN, secret)


def _name(domain: bytes, secret: bytes) -> str:
    return LOCAL_NAME + hashlib.sha256(domain + secret).hexdigest()[:LOCAL_HEX]


def prove(hello: bytes, secret: bytes) -> bytes:
    """Return a hello with its proof: that who sends it has the secret (wire_hello_prove; the nonce is the caller's)."""
    said = hello[:PROOF_OFFSET] + bytes(PROOF_BYTES) + hello[PROOF_OFFSET + PROOF_BYTES :]
    proof = hmac.digest(secret, _PROOF_LABEL + said, "sha256")[:PROOF_BYTES]
    return said[:PROOF_OFFSET] + proof + said[PROOF_OFFSET + PROOF_BYTES :]


def proves(hello: bytes, secret: bytes) -> bool:
    """Say whether who made the hello has the secret; takes the same time whatever the proof is."""
    return hmac.compare_digest(hello, prove(hello, secret))


def resume_key(secret: bytes, number: int) -> bytes:
    """What stands in the secret's place in a hello that goes on with the session of that number (wire_resume_key)."""
    return hmac.digest(secret, _RESUME_LABEL + number.to_bytes(8, "little"), "sha256")


def hello_refusal(status: int, text: str = "") -> bytes:
    """The reply to a hello that is refused."""
    encoded = text.encode()[:512]
    reply = HELLO_REPLY.pack(HELLO_MAGIC, PROTOCOL_MAJOR, PROTOCOL_MINOR, status, 0, 0, 0, 0, 0, 0, len(encoded), b"")
    return reply + encoded
