"""A port that is told before anybody listens there is nobody else's meanwhile."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from farbus.linux.tcp_ports import HeldPort


@pytest.fixture
def port() -> Iterator[HeldPort]:
    held = HeldPort()
    yield held
    held.close()


def test_who_is_told_it_listens_there_again_and_again(port: HeldPort) -> None:
    for _ in range(3):
        with (
            socket.create_server(("127.0.0.1", port.number)) as server,
            socket.create_connection(("127.0.0.1", port.number)),
        ):
            server.accept()[0].close()


def test_nobody_hears_who_connects_before(port: HeldPort) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number))


def test_a_program_that_takes_it_for_free_does_not_get_it(port: HeldPort) -> None:
    with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
        other.bind(("127.0.0.1", port.number))
    assert caught.value.errno == errno.EADDRINUSE
    port.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port.number))
