"""The remoting server's process: one per client process.

``python -m farbus.remoting.server`` is started by the supervisor, which passes it
the connected socket, the lease's secret and a pipe that closes when the supervisor
dies.  Everything that matters happens in native threads without the GIL.
"""

from __future__ import annotations

import argparse
import importlib
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from farbus.remoting.assignment import ASSIGNMENT, FLAG_TLS, NO_SLOT, SECRET_BYTES, SLOT_BYTES


def _watch(descriptor: int) -> None:
    """End this process when the supervisor's end of the pipe is closed."""
    while os.read(descriptor, 1):
        pass
    os._exit(0)


def read_into(descriptor: int, target: bytearray) -> None:
    """Fill ``target`` or raise EOFError; no other copy of the bytes stays in this process."""
    read = 0
    with memoryview(target) as view:
        while read < len(target):
            got = os.readv(descriptor, [view[read:]])
            if not got:
                raise EOFError(f"expected {len(target)} bytes, got {read}")
            read += got


def _take_assignment(channel: socket.socket) -> tuple[int, int, int, int, int]:
    """Wait for the client: its connection, a pipe with the secret, the session's number, its slot, flags."""
    channel.setblocking(True)
    # Close-on-exec is what Python gives every descriptor that it receives.
    data, descriptors, _, _ = socket.recv_fds(channel, ASSIGNMENT.size, 2)
    if not data:
        os._exit(0)  # the supervisor has gone, or needs no more servers
    channel.setblocking(False)
    connection, secret = descriptors
    number, slot, flags = ASSIGNMENT.unpack(data)
    return connection, secret, number, slot, flags


def _fail(reason: str) -> int:
    print(f"farbus remoting server: {reason}", file=sys.stderr, flush=True)
    return 1


def main(arguments: Sequence[str]) -> int:
    """Serve one client until it has gone.  0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(prog="farbus-remoting-server", description=__doc__)
    parser.add_argument("--channel-fd", type=int, required=True, help="where the client comes from, and its return")
    parser.add_argument("--exchange-fd", type=int, default=0, help="where the supervisor keeps descriptors for all")
    parser.add_argument("--life-fd", type=int, help="pipe that closes when the parent dies")
    parser.add_argument("--libcuda", required=True, help="the driver to open")
    parser.add_argument("--status-fd", type=int, help="the supervisor's status memory")
    parser.add_argument("--grace-ms", type=int, default=0, help="how long the session may be cut")
    parser.add_argument("--memory-limit", type=int, default=0, help="bytes of device memory of the lease, 0: all")
    parser.add_argument("--image-directory", help="where GPU code is kept for later programs of the same user")
    parser.add_argument("--image-bytes", type=int, default=0, help="how much of it")
    parser.add_argument("--rdma", action="store_true", help="let sessions go on by RDMA, unencrypted")
    parser.add_argument("--reserve", action="store_true", help="get the driver ready before there is a client")
    options = parser.parse_args(arguments)

    # A terminal's Ctrl-C is meant for the program: the connection ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.life_fd is not None:
        threading.Thread(target=_watch, args=(options.life_fd,), daemon=True).start()
    try:
        native_module: Any = importlib.import_module("farbus.remoting._server")
    except ImportError as error:
        paths = importlib.import_module("farbus.remoting.paths")
        return _fail(f"the native engine is not built ({error}); {paths.CURE}")
    ffi, lib = native_module.ffi, native_module.lib
    libcuda = ffi.new("char[]", os.fsencode(options.libcuda))
    why = ffi.new("char[]", 512)
    native = ffi.new("struct server_options *")
    native.libcuda = libcuda
    native.memory_limit = options.memory_limit
    native.grace_ms = options.grace_ms
    if options.exchange_fd:
        os.set_inheritable(options.exchange_fd, False)
    native.exchange = options.exchange_fd
    if options.image_directory and options.image_bytes:
        image_directory = ffi.new("char[]", os.fsencode(options.image_directory))
        native.image_directory = image_directory
        native.image_bytes = options.image_bytes
    channel = socket.socket(fileno=options.channel_fd)
    may_resume = True
    if options.reserve:
        native.prepared = lib.server_prepare(native)
        if native.prepared == ffi.NULL:
            # The next client gets another process, in which the driver may do better.  One that was sent
            # here already is served, which tries again and tells it why.
            channel.shutdown(socket.SHUT_RD)
            may_resume = False
    native.descriptor, secret_descriptor, native.session, slot, flags = _take_assignment(channel)
    native.resume_channel = channel.detach() if may_resume else 0
    native.tls = bool(flags & FLAG_TLS)
    native.rdma = options.rdma
    secret = bytearray(SECRET_BYTES)
    read_into(secret_descriptor, secret)
    os.close(secret_descriptor)
    # The engine clears it when it needs it no more.
    native.secret = ffi.from_buffer("uint8_t[]", secret, require_writable=True)
    if options.status_fd is not None:
        memory = mmap.mmap(options.status_fd, 0)
        os.close(options.status_fd)
        slots = ffi.from_buffer(memory)
        if slot != NO_SLOT:
            native.status = ffi.cast("struct server_status *", slots + slot * SLOT_BYTES)
        # The first slot is the supervisor's own.
        native.sessions = ffi.cast("const void *", slots + SLOT_BYTES)
        native.session_count = len(memory) // SLOT_BYTES - 1
    result = lib.server_serve(native, why, 512)
    if result < 0:
        _fail(ffi.string(why).decode(errors="replace"))
    sys.stderr.flush()
    # Threads may still wait inside the driver; nothing here needs unwinding.
    os._exit(1 if result < 0 else 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
