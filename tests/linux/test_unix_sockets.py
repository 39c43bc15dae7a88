"""Sockets are bound to files; names of those that nobody has any more are removed, and no others."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from farbus.errors import Conflict
from farbus.linux.unix_sockets import bind_file, hold_name, remove_unheard

PREFIX = "one-of-ours-"


@pytest.fixture
def names() -> tuple[str, ...]:
    """Like no other socket's of the machine."""
    mark = os.urandom(8).hex()
    return tuple(f"{PREFIX}{mark}{number}" for number in range(4))


def test_who_gets_as_far_as_a_file_may_connect_once_somebody_listens(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 108)
    directory.mkdir()
    umask = os.umask(0o077)
    try:
        made = bind_file(directory, "name")
    finally:
        os.umask(umask)
    path = directory / "name"
    with made, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        assert path.lstat().st_mode == stat.S_IFSOCK | 0o666
        assert not made.get_inheritable()
        there = os.open(directory, os.O_PATH)
        with pytest.raises(ConnectionRefusedError):
            client.connect(f"/proc/self/fd/{there}/name")
        made.listen()
        client.connect(f"/proc/self/fd/{there}/name")
        os.close(there)


def test_what_has_the_name_gives_way(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "name").symlink_to(elsewhere)
    with bind_file(tmp_path, "name"):
        assert (tmp_path / "name").lstat().st_mode == stat.S_IFSOCK | 0o666
        assert not elsewhere.exists()


def test_a_name_that_can_t_be_made_leaves_no_descriptor(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        bind_file(tmp_path / "nowhere", "name")
    assert os.listdir("/proc/self/fd") == before


def test_what_no_process_has_is_removed(tmp_path: Path, names: tuple[str, ...]) -> None:
    gone, listens, is_about_to, connected = (tmp_path / name for name in names)
    (tmp_path / "other").touch()
    with bind_file(tmp_path, gone.name):
        pass
    with (
        bind_file(tmp_path, listens.name) as listener,
        bind_file(tmp_path, is_about_to.name),
        bind_file(tmp_path, connected.name) as ended,
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


def test_a_name_without_a_file_is_held_by_one_process_of_a_user(names: tuple[str, ...]) -> None:
    held = hold_name(names[0], what="it is a copy", hint="stop the other")
    assert held is not None
    with held, pytest.raises(Conflict, match="it is a copy; stop the other"):
        hold_name(names[0], what="it is a copy", hint="stop the other")
    again = hold_name(names[0], what="it is a copy", hint="stop the other")
    assert again is not None
    again.close()


def test_a_name_of_which_nobody_can_tell_whose_it_is_keeps_nobody_from_anything(names: tuple[str, ...]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        taken.bind(f"\0{names[0]}")
        assert hold_name(names[0], what="it is a copy", hint="stop the other") is None
