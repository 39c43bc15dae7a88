"""A port that is told before anybody listens there is nobody else's meanwhile."""

from __future__ import annotations

import errno
import socket

import pytest

from farbus.linux.tcp_ports import HeldPort


def test_who_is_told_it_listens_there_again_and_again(held_port: HeldPort) -> None:
    for _ in range(3):
        with (
            socket.create_server(("127.0.0.1", held_port.number)) as server,
            socket.create_connection(("127.0.0.1", held_port.number)),
        ):
            server.accept()[0].close()


def test_nobody_hears_who_connects_before(held_port: HeldPort) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held_port.number))


def test_a_program_that_takes_it_for_free_does_not_get_it(held_port: HeldPort) -> None:
    with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
        other.bind(("127.0.0.1", held_port.number))
    assert caught.value.errno == errno.EADDRINUSE
    held_port.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", held_port.number))
