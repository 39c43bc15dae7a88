"""Over this machine's sockets come the lease's user and root, by the kernel's word, and nobody else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.linux.unix_sockets import bind_file
from farbus.remoting import session as wire
from farbus.remoting import supervisor as supervisors
from farbus.remoting.session import Server, write_session
from farbus.remoting.supervisor import Supervisor
from tests.remoting.harness import SHIM, Remote, hello
from tests.remoting.test_failures import PATIENCE_S

Build = Callable[[str], Path]

OWNER, STRANGER = 54321, 54322

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")


@pytest.fixture
def owned(libcuda: Path) -> Iterator[Remote]:
    """A lease of OWNER's, its socket beside where its session file would be."""
    lines: list[str] = []
    secret = os.urandom(32)
    with (
        tempfile.TemporaryDirectory() as place,
        Supervisor(
            libcuda=str(libcuda),
            secret=secret,
            local_user=OWNER,
            container_socket=bind_file(Path(place), wire.socket_name(secret)),
            log=lines.append,
        ) as supervisor,
    ):
        # As the agent makes it: who knows a name gets there, and nobody lists them.
        Path(place).chmod(0o711)
        yield Remote(supervisor=supervisor, session=Path(place) / "session", secret=secret, lines=lines)


CLIENT = """
import ctypes, os, socket, sys
name, said, bytes_of_reply, patience, user, namespace = sys.argv[1:]
user = int(user)
# Here, since another user might not get at this Python.
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
if namespace:
    libc = ctypes.CDLL(None)
    PR_SET_DUMPABLE, CLONE_NEWUSER = 4, 0x10000000
    # What has changed its user may not write its own files in /proc.
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    if libc.unshare(CLONE_NEWUSER):
        sys.exit("no user namespace")
    open("/proc/self/uid_map", "w").write(f"0 {user} 1")
    assert os.geteuid() == 0
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
    connection.settimeout(float(patience))
    connection.connect(name.replace("@", chr(0)))
    connection.sendall(bytes.fromhex(said))
    print(connection.recv(int(bytes_of_reply), socket.MSG_WAITALL).hex())
"""


@pytest.fixture(params=["name", "file"])
def address(owned: Remote, request: pytest.FixtureRequest) -> str:
    """Where the supervisor is asked; what begins with @ is abstract."""
    names = {
        "name": wire.local_name(owned.secret).replace("\0", "@"),
        "file": f"{owned.session.parent}/{wire.socket_name(owned.secret)}",
    }
    return names[request.param]


def status_for(remote: Remote, address: str, user: int, *, namespace: bool = False) -> int:
    """Say hello as ``user``, root of a user namespace of his own if so wished; return the answer's status.

    It asks for encryption, which there is none of within a machine and which is looked at last: nothing is started.
    """
    said = hello(remote.secret, capabilities=wire.CAPABILITY_TLS).hex()
    words = (address, said, str(wire.HELLO_REPLY.size), str(PATIENCE_S))
    done = subprocess.run(
        [sys.executable, "-I", "-c", CLIENT, *words, str(user), "namespace" if namespace else ""],
        capture_output=True,
        text=True,
        check=False,
    )
    if "no user namespace" in done.stderr:
        pytest.skip("this kernel lets users make no user namespaces")
    assert done.returncode == 0, done.stderr
    return int(wire.HELLO_REPLY.unpack(bytes.fromhex(done.stdout))[3])


@needs_root
def test_the_lease_s_user_and_root_are_let_in(owned: Remote, address: str) -> None:
    assert status_for(owned, address, OWNER) == wire.HELLO_TLS
    assert status_for(owned, address, 0) == wire.HELLO_TLS


@needs_root
def test_another_user_is_refused_though_he_has_the_secret(owned: Remote, address: str) -> None:
    assert status_for(owned, address, STRANGER) == wire.HELLO_USER
    assert any(f"of user {STRANGER}: the lease is another user's" in line for line in owned.lines)
    assert owned.supervisor.pids == ()


@needs_root
def test_root_of_a_user_namespace_is_who_he_is_outside(owned: Remote, address: str) -> None:
    assert status_for(owned, address, STRANGER, namespace=True) == wire.HELLO_USER
    assert status_for(owned, address, OWNER, namespace=True) == wire.HELLO_TLS


@pytest.mark.parametrize(
    ("user_map", "nobody"),
    [("0 0 4294967295", None), ("0 1000 1\n1 100000 65536", 65534), ("0 1000 1", 65534), ("", 65534)],
)
def test_a_user_who_is_not_mapped_is_nobody(
    user_map: str, nobody: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "map").write_text(user_map)
    (tmp_path / "overflow").write_text("65534\n")
    monkeypatch.setattr(supervisors, "_USER_MAP", str(tmp_path / "map"))
    monkeypatch.setattr(supervisors, "_OVERFLOW_USER", str(tmp_path / "overflow"))
    assert supervisors.nobody_in_particular() == nobody
    # Not even if the lease is the user's whom the number means elsewhere.
    inside = Supervisor(libcuda="", secret=bytes(32), local_user=65534)
    assert inside._local_users == ({0, 65534} if nobody is None else {0})


@contextlib.contextmanager
def session_in_sight(remote: Remote) -> Iterator[None]:
    """Put the session's file where others come by, for who it is."""
    with tempfile.TemporaryDirectory() as place:
        remote.session = Path(place) / "session"
        address, port = remote.supervisor.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        Path(place).chmod(0o755)
        yield


def skip_where_unreadable(remote: Remote, *needed: Path) -> None:
    if any(remote.run("test", "-r", path, user=STRANGER, LD_PRELOAD="").returncode for path in needed):
        pytest.skip("another user can't get at this checkout")


@needs_root
def test_a_program_of_another_user_goes_on_over_the_network(owned: Remote, build: Build) -> None:
    """As in a container whose users are others here, and which has this machine's network."""
    program = build("remoting/rows")

    with session_in_sight(owned):
        os.chown(owned.session, STRANGER, STRANGER)
        skip_where_unreadable(owned, owned.session, program, SHIM)
        done = owned.run(program, user=STRANGER)
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        assert any("the lease is another user's" in line for line in owned.lines)
        done = owned.run(program, user=STRANGER, FARBUS_TRANSPORT="shm")
        assert done.returncode == 1
        assert f"refuses user {STRANGER} of this machine: the lease is another user's" in done.stderr


@needs_root
def test_a_program_whose_session_is_another_user_s_is_told_whom_to_be(owned: Remote, build: Build) -> None:
    """As in a container whose user is neither the task's nor root."""
    program = build("remoting/rows")
    with session_in_sight(owned):
        skip_where_unreadable(owned, program, SHIM)
        done = owned.run(program, user=STRANGER)
        assert done.returncode == 1
        assert done.stderr == (
            f"farbus: open the session file {owned.session}: Permission denied;"
            " it is for another user: run the program as that one, in a container as root\n"
        )
