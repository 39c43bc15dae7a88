"""What a supervisor hands a server: its client, once there is one.

A server is started with the lease's options and a channel, a Unix socket of datagrams
(SOCK_SEQPACKET).  It gets its driver ready and then waits for the first datagram: this
assignment, with two descriptors, the client's connection and a pipe with the lease's secret.
Later datagrams are of resumed sessions (native/server/session/resume.c).

Imports nothing that takes time: a server's start is a program's start.
"""

from __future__ import annotations

import struct

SECRET_BYTES = 32
#: Bytes of a server's place in the status memory (SERVER_STATUS_STRIDE).
SLOT_BYTES = 128
#: The session's number, the slot in the status memory (NO_SLOT: none), flags.
ASSIGNMENT = struct.Struct("=QII")
NO_SLOT = 0xFFFFFFFF
FLAG_TLS = 1
"""The client goes on encrypted behind its hello."""
