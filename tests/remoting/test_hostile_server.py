"""A server, or what is between it and the program, that says nonsense: calls fail, and the program is not hurt.

What a real server says is altered on its way, from a seed.  More of them by hand:
``HOSTILE_SEEDS=1000:1200 pytest tests/remoting/test_hostile_server.py``.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting.session import Server, write_session
from tests.remoting.harness import Remote, listening

Build = Callable[[str], Path]

PROGRAMS = ["copies_of_all_sizes", "streams_pinned", "symbols", "host_functions", "managed/copies"]
FIRST, _, LAST = os.environ.get("HOSTILE_SEEDS", "0:12").partition(":")

STALLED_S = 1.0
"""Nothing comes any more, for nobody knows what was asked: the connection ends, as that of a killed server."""

PATIENCE_S = 60

MOST_BYTES = 20_000
"""What is altered lies within so many first bytes of a connection."""

EXTREMES = [b"\0" * 8, b"\xff" * 8, b"\xff" * 4, b"\0\0\0\x80", b"\xff\xff\xff\x7f", b"\1\0\0\0\0\0\0\x80"]


class Altering:
    """Bytes in order, of which some are others, more or fewer."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        # Most of what is said is short and comes early: images are the client's.
        self._places = sorted(int(2 ** self._random.uniform(0, 14.3)) for _ in range(self._random.randint(1, 4)))
        self._at = 0
        self.altered = False

    def take(self, data: bytes) -> bytes:
        begin, self._at = self._at, self._at + len(data)
        while self._places and self._places[0] < self._at:
            place = max(self._places.pop(0) - begin, 0)
            data = self._alter(data, place)
            self.altered = True
        return data

    def _alter(self, data: bytes, place: int) -> bytes:
        before, after = data[:place], data[place:]
        match self._random.randrange(6):
            case 0:
                return before + bytes([self._random.randrange(256)]) + after[1:]
            case 1:
                return before + bytes(byte ^ 1 << self._random.randrange(8) for byte in after[:1]) + after[1:]
            case 2:
                wrong = self._random.choice(EXTREMES)
                return before + wrong + after[len(wrong) :]
            case 3:
                return before + after[self._random.randint(1, 64) :]
            case 4:
                return before + self._random.randbytes(self._random.randint(1, 64)) + after
            case _:
                return before + before[-self._random.randint(1, 64) :] + after


def pass_on(client: socket.socket, server: socket.socket, altering: Altering) -> None:
    """Pass bytes both ways until one side ends, or nothing comes after something was altered."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while True:
            ready = selector.select(STALLED_S)
            if not ready and altering.altered:
                return
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 20)
                if not data:
                    return
                key.data.sendall(altering.take(data) if key.fileobj is server else data)


def run_altered(remote: Remote, program: Path, seed: int, **changes: str) -> subprocess.CompletedProcess[str]:
    def serve(listener: socket.socket) -> None:
        # Of a resumed session each connection is altered elsewhere.
        for number in range(1_000):
            client, _ = listener.accept()
            with (
                client,
                contextlib.suppress(ConnectionError),
                socket.create_connection(remote.supervisor.address) as server,
            ):
                pass_on(client, server, Altering(seed + 1_000_000 * number))

    with listening(serve) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        environment = remote.environment(FARBUS_TRANSPORT="tcp", **changes)
        return subprocess.run(
            program, env=environment, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False
        )


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST)))
def test_a_server_that_says_nonsense_hurts_nobody(
    lease: Callable[..., Remote], build: Build, name: str, seed: int
) -> None:
    changes = {"FARBUS_GRACE_S": "02"[seed % 2], "FARBUS_MANAGED_MEMORY": ["paging", "copies"][seed // 2 % 2]}
    done = run_altered(lease(tls=False), build(f"remoting/{name}"), seed, **changes)
    # Managed memory that was on a GPU which is lost can't be read: that ends the program (docs/wire.md).
    if name.startswith("managed/") and done.returncode == -signal.SIGSEGV:
        assert "the connection to the GPU at " in done.stderr, done.stdout + done.stderr
    else:
        assert done.returncode >= 0, done.stdout + done.stderr
