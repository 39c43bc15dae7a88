"""A program in a network namespace of its own, as in a container, finds the supervisor of its machine by a file."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.linux.unix_sockets import bind_file
from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from farbus.remoting.supervisor import Supervisor
from tests.remoting.harness import SHIM, Remote, server_environment
from tests.remoting.test_failures import PATIENCE_S
from tests.remoting.test_local_users import OWNER, STRANGER, needs_root, skip_where_unreadable

Build = Callable[[str], Path]

OWN_NETWORK = ("unshare", "--net")
OWN_USERS = ("unshare", "--user", "--map-root-user", "--net")
"""As in a container of podman's without root: root there is its user outside."""


def possible(*namespace: str, user: int | None = None) -> bool:
    """Say whether this machine lets a user make a namespace."""
    made = subprocess.run([*namespace, "true"], capture_output=True, check=False, user=user, group=user)
    return made.returncode == 0


def as_user(user: int) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")


@contextlib.contextmanager
def lease(directory: Path, libcuda: Path, *, local_user: int | None = None) -> Iterator[Remote]:
    """A lease whose session file and whose supervisor's socket are in one directory, as in a container."""
    lines: list[str] = []
    secret = os.urandom(32)
    with Supervisor(
        libcuda=str(libcuda),
        secret=secret,
        environment=server_environment(),
        local_user=local_user,
        container_socket=bind_file(directory, wire.socket_name(secret)),
        log=lines.append,
    ) as supervisor:
        address, port = supervisor.address
        session = directory / "session"
        write_session(session, [Server(address=address, port=port, secret=secret)])
        yield Remote(supervisor=supervisor, session=session, secret=secret, lines=lines)


@pytest.fixture
def remote(short_path: Path, libcuda: Path) -> Iterator[Remote]:
    with lease(short_path, libcuda) as remote:
        yield remote


def socket_of(remote: Remote) -> Path:
    return remote.session.parent / wire.socket_name(remote.secret)


@contextlib.contextmanager
def waiting(remote: Remote, *command: str | Path, **changes: str) -> Iterator[subprocess.Popen[str]]:
    program = remote.start(*command, **changes)
    assert program.stdout is not None
    line = program.stdout.readline()
    try:
        assert line == "waiting\n", program.communicate(timeout=PATIENCE_S)
        yield program
    finally:
        program.kill()
        program.communicate()


def transport(remote: Remote) -> str:
    (session,) = remote.supervisor.sessions.sessions
    return session.transport


@pytest.mark.parametrize("namespace", [OWN_NETWORK, OWN_USERS])
def test_shared_memory_is_used_from_a_network_of_its_own(
    remote: Remote, build: Build, namespace: tuple[str, ...]
) -> None:
    if not possible(*namespace):
        pytest.skip(f"not allowed here: {' '.join(namespace)}")
    with waiting(remote, *namespace, build("remoting/wait_forever")):
        assert transport(remote) == "shm"


@needs_root
def test_shared_memory_of_a_user_namespace_s_root_is_the_lease_s_user_s(
    short_path: Path, libcuda: Path, build: Build
) -> None:
    if not possible(*OWN_USERS, user=OWNER):
        pytest.skip("this kernel lets users make no user namespaces")
    program = build("remoting/wait_forever")
    with lease(short_path, libcuda, local_user=OWNER) as remote:
        short_path.chmod(0o711)
        os.chown(remote.session, OWNER, OWNER)
        skip_where_unreadable(remote, program, SHIM)
        with waiting(remote, *as_user(OWNER), *OWN_USERS, program):
            assert transport(remote) == "shm"


@needs_root
def test_how_a_server_ended_is_asked_by_the_file(remote: Remote, build: Build) -> None:
    with waiting(remote, *OWN_NETWORK, build("remoting/wait_forever")) as program:
        (server,) = remote.supervisor.pids
        os.kill(server, signal.SIGABRT)
        _, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 3, err
    assert f"process {server} there, was killed by signal 6 (SIGABRT)" in err


@needs_root
def test_without_the_file_a_program_with_another_network_is_told_what_it_needs(remote: Remote, build: Build) -> None:
    socket_of(remote).unlink()
    done = remote.run(*OWN_NETWORK, build("remoting/rows"))
    assert done.returncode == 1
    assert done.stderr == (
        "farbus: connect to {}:{}: Network is unreachable; the lease may have ended;"
        " a container needs its task's device for a GPU of this machine, or --network host\n"
    ).format(*remote.supervisor.address)


@needs_root
def test_who_asks_for_tcp_in_another_network_is_told_to_leave_it_out(remote: Remote, build: Build) -> None:
    done = remote.run(*OWN_NETWORK, build("remoting/rows"), FARBUS_TRANSPORT="tcp")
    assert done.returncode == 1
    assert done.stderr.endswith("over shared memory alone: leave out FARBUS_TRANSPORT=tcp\n"), done.stderr


@needs_root
def test_who_is_refused_and_has_no_way_by_network_is_told_whom_to_be(
    short_path: Path, libcuda: Path, build: Build
) -> None:
    program = build("remoting/rows")
    with lease(short_path, libcuda, local_user=OWNER) as remote:
        short_path.chmod(0o711)
        os.chown(remote.session, STRANGER, STRANGER)
        skip_where_unreadable(remote, program, SHIM)
        done = remote.run(*OWN_NETWORK, *as_user(STRANGER), program)
        assert done.returncode == 1
        assert done.stderr == (
            "farbus: connect to {}:{}: Network is unreachable; within this machine the supervisor refuses this user,"
            " since the lease is another's: run the program as that one or root, in a container without users of its"
            " own\n"
        ).format(*remote.supervisor.address)


def silence(remote: Remote) -> None:
    """Have the abstract name lead nowhere, as from another network."""
    assert remote.supervisor._local is not None
    remote.supervisor._local.shutdown(socket.SHUT_RDWR)


def test_a_directory_may_have_a_long_path(tmp_path: Path, short_path: Path, libcuda: Path, build: Build) -> None:
    long = tmp_path / ("d" * 108)
    long.mkdir()
    (short_path / "inside").symlink_to(long)
    with lease(long, libcuda) as remote:
        assert remote.lines == []
        silence(remote)
        program = build("remoting/wait_forever")
        with waiting(remote, program):
            # No socket can be called so: it is not found, and nothing is wrong.
            assert transport(remote) == "tls"
        remote.session = short_path / "inside" / "session"
        with waiting(remote, program, FARBUS_TRANSPORT="shm"):
            pass


def test_a_session_file_without_a_directory_in_its_name_has_its_socket_beside_it(
    remote: Remote, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(remote)
    monkeypatch.chdir(remote.session.parent)
    remote.session = Path("session")
    with waiting(remote, build("remoting/wait_forever"), FARBUS_TRANSPORT="shm"):
        pass
