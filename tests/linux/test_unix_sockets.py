"""Names of sockets that nobody has any more are removed, and no others."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from farbus.linux.unix_sockets import remove_unheard

PREFIX = "one-of-ours-"


@pytest.fixture
def names() -> tuple[str, ...]:
    """Like no other socket's of the machine."""
    mark = os.urandom(8).hex()
    return tuple(f"{PREFIX}{mark}{number}" for number in range(4))


@contextlib.contextmanager
def bound(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        # By another path, as the supervisor of a lease does it.
        directory = os.open(path.parent, os.O_PATH)
        made.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)
        yield made


def test_what_no_process_has_is_removed(tmp_path: Path, names: tuple[str, ...]) -> None:
    gone, listens, is_about_to, connected = (tmp_path / name for name in names)
    (tmp_path / "other").touch()
    with bound(gone):
        pass
    with (
        bound(listens) as listener,
        bound(is_about_to),
        bound(connected) as ended,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
    ):
        listener.listen()
        ended.listen()
        client.connect(str(connected))
        connection, _ = ended.accept()
        ended.close()
        with connection:
            # The connection has its listener's path, and nobody can connect there.
            assert remove_unheard(tmp_path, prefix=PREFIX) == tuple(sorted((gone.name, connected.name)))
        assert sorted(os.listdir(tmp_path)) == sorted([listens.name, is_about_to.name, "other"])


def test_a_directory_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert remove_unheard(tmp_path / "nowhere", prefix=PREFIX) == ()
