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
import sys
import threading
from collections.abc import Sequence

from farbus.remoting import paths
from farbus.remoting.session import SECRET_BYTES
from farbus.remoting.status import SLOT_BYTES


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


def main(arguments: Sequence[str]) -> int:
    """Serve one client until it has gone.  0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(prog="farbus-remoting-server", description=__doc__)
    parser.add_argument("--socket-fd", type=int, required=True, help="the connected socket")
    parser.add_argument("--secret-fd", type=int, required=True, help="pipe with the secret")
    parser.add_argument("--life-fd", type=int, help="pipe that closes when the parent dies")
    parser.add_argument("--libcuda", required=True, help="the driver to open")
    parser.add_argument("--status-fd", type=int, help="the supervisor's status memory")
    parser.add_argument("--status-slot", type=int, default=0, help="this server's place in it")
    parser.add_argument("--session", type=int, default=0, help="its number, where it may be resumed")
    parser.add_argument("--resume-fd", type=int, default=0, help="where connections come that go on with it")
    parser.add_argument("--grace-ms", type=int, default=0, help="how long it may be cut")
    parser.add_argument("--tls", action="store_true", help="go on encrypted behind the hello")
    parser.add_argument("--memory-limit", type=int, default=0, help="bytes of device memory of the lease, 0: all")
    options = parser.parse_args(arguments)

    # A terminal's Ctrl-C is meant for the program: the connection ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.life_fd is not None:
        threading.Thread(target=_watch, args=(options.life_fd,), daemon=True).start()
    secret = bytearray(SECRET_BYTES)
    read_into(options.secret_fd, secret)
    os.close(options.secret_fd)

    try:
        native_module = importlib.import_module("farbus.remoting._server")
    except ImportError as error:
        print(
            f"farbus remoting server: the native engine is not built ({error}); {paths.CURE}",
            file=sys.stderr,
        )
        return 1
    ffi, lib = native_module.ffi, native_module.lib
    libcuda = ffi.new("char[]", os.fsencode(options.libcuda))
    native = ffi.new("struct server_options *")
    native.descriptor = options.socket_fd
    native.libcuda = libcuda
    # The engine clears it when it needs it no more.
    native.secret = ffi.from_buffer("uint8_t[]", secret, require_writable=True)
    native.tls = options.tls
    native.memory_limit = options.memory_limit
    native.session = options.session
    native.resume_channel = options.resume_fd
    native.grace_ms = options.grace_ms
    if options.status_fd is not None:
        memory = mmap.mmap(options.status_fd, 0)
        os.close(options.status_fd)
        slots = ffi.from_buffer(memory)
        native.status = ffi.cast("struct server_status *", slots + options.status_slot * SLOT_BYTES)
        # The first slot is the supervisor's own.
        native.sessions = ffi.cast("const void *", slots + SLOT_BYTES)
        native.session_count = len(memory) // SLOT_BYTES - 1
    why = ffi.new("char[]", 512)
    result = lib.server_serve(native, why, 512)
    if result < 0:
        reason = ffi.string(why).decode(errors="replace")
        print(f"farbus remoting server: {reason}", file=sys.stderr)
    sys.stderr.flush()
    # Threads may still wait inside the driver; nothing here needs unwinding.
    os._exit(1 if result < 0 else 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
