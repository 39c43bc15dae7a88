"""Connections that mean no good leave the supervisor serving everybody else."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
from collections.abc import Callable

import pytest

from farbus.remoting import session as wire
from farbus.remoting import supervisor as supervisors
from farbus.remoting.supervisor import UNHEARD_LIMIT, Supervisor
from tests.remoting.harness import Remote, hello

PATIENCE_S = 20.0


def status_of(connection: socket.socket) -> int:
    connection.settimeout(PATIENCE_S)
    data = connection.recv(wire.HELLO_REPLY.size, socket.MSG_WAITALL)
    assert len(data) == wire.HELLO_REPLY.size, "the supervisor has closed the connection"
    return int(wire.HELLO_REPLY.unpack(data)[3])


def test_a_client_that_resets_its_connection_behind_the_hello(remote: Remote) -> None:
    for _ in range(50):
        connection = socket.create_connection(remote.supervisor.address)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(hello(bytes(32)))
        connection.close()  # with a reset
    with socket.create_connection(remote.supervisor.address) as connection:
        connection.sendall(hello(bytes(32)))
        assert status_of(connection) == wire.HELLO_SECRET


def test_silent_connections_do_not_keep_a_client_out(remote: Remote) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(UNHEARD_LIMIT + 10):
            stack.enter_context(socket.create_connection(remote.supervisor.address))
        client = stack.enter_context(socket.create_connection(remote.supervisor.address))
        client.sendall(hello(bytes(32)))
        assert status_of(client) == wire.HELLO_SECRET


def test_a_client_that_has_spoken_is_heard_however_late(
    monkeypatch: pytest.MonkeyPatch, lease: Callable[..., Remote]
) -> None:
    """While servers are started the others' hellos wait, and their time runs out."""
    accept = Supervisor._accept

    def accept_late(listener: socket.socket) -> socket.socket | None:
        connection = accept(listener)
        if connection is not None:
            select.select([connection], [], [], PATIENCE_S)
        return connection

    monkeypatch.setattr(supervisors, "HELLO_TIMEOUT_S", 0.0)
    monkeypatch.setattr(Supervisor, "_accept", staticmethod(accept_late))
    with socket.create_connection(lease().supervisor.address) as connection:
        connection.sendall(hello(bytes(32)))
        assert status_of(connection) == wire.HELLO_SECRET


def test_a_secret_wrong_by_one_bit(remote: Remote) -> None:
    for bit in (0, 7, 128, 255):
        wrong = bytearray(remote.secret)
        wrong[bit // 8] ^= 1 << bit % 8
        with socket.create_connection(remote.supervisor.address) as connection:
            connection.sendall(hello(bytes(wrong)))
            assert status_of(connection) == wire.HELLO_SECRET
    assert remote.supervisor.pids == ()


def test_what_is_nearly_a_hello_gets_nobody_in(remote: Remote) -> None:
    chance = random.Random(6)
    for _ in range(200):
        said = bytearray(hello(remote.secret, capabilities=wire.CAPABILITY_TLS))
        for _ in range(chance.randint(1, 4)):
            said[chance.randrange(len(said))] ^= chance.randint(1, 255)
        said += chance.randbytes(chance.choice((0, 0, 5, 300)))
        del said[chance.choice((1 << 16, 1 << 16, 12, 127)) :]
        with socket.create_connection(remote.supervisor.address) as connection:
            connection.sendall(said)
    with socket.create_connection(remote.supervisor.address) as connection:
        connection.sendall(hello(bytes(32)))
        assert status_of(connection) == wire.HELLO_SECRET
    assert remote.supervisor.pids == ()
    assert not remote.supervisor.sessions.ended.sessions
