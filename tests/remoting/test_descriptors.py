"""Memory and pools that processes of a lease share by descriptors: whoever has one has them, and nobody else."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from farbus.remoting import descriptors as descriptors_module
from farbus.remoting.descriptors import MESSAGE, Descriptors, Refusal, Verb, make_exchange
from farbus.remoting.session import write_session
from tests.remoting.harness import Remote, remote_session
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until
from tests.remoting.test_hostile import raw_session
from tests.remoting.test_servers import block
from tests.remoting.test_versions import CURRENT, DEVICE_BYTES, OlderShim

TRANSPORTS = ("shm", "unix", "tcp", "rdma")
BYTES = 4 << 20
#: native/wire/descriptor.h: magic, version, kind, lease, token.
MESSAGE_BYTES = 64
TOKEN_AT = 32

POSIX_SUPPORTED, POOL_TYPES = 103, 119  # CUdevice_attribute
IPC_CAPABLE = 10  # CUpointer_attribute
INVALID_VALUE, NOT_INITIALIZED, OUT_OF_MEMORY, OPERATING_SYSTEM = (f"error {number}" for number in (1, 3, 2, 304))


class Worker:
    """A program that does what it is told, with a socket to this process for descriptors."""

    def __init__(
        self, remote: Remote, program: Path, transport: str, inherited: tuple[int, ...], changes: dict[str, str]
    ) -> None:
        self.channel, its_channel = socket.socketpair()
        with its_channel:
            self.process = subprocess.Popen(
                [program, str(its_channel.fileno())],
                env=remote.environment(FARBUS_TRANSPORT=transport, **changes),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=(its_channel.fileno(), *inherited),
            )

    def do(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"{command}: {self.process.communicate()[1]}"
        return line.rstrip("\n")

    def give(self, descriptor: str) -> int:
        """A copy of one of its descriptors."""
        assert self.do(f"send {descriptor}") == "0"
        _, (copy,), _, _ = socket.recv_fds(self.channel, 1, 1)
        return copy

    def take(self, descriptor: int) -> str:
        """Its number for a copy of one of this process's."""
        socket.send_fds(self.channel, [b"d"], [descriptor])
        return self.do("receive")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> str:
        """End it, and return what it said on stderr."""
        _, said = self.process.communicate()
        assert self.process.returncode == 0, said
        return said


Start = Callable[..., Worker]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Start]:
    program = build_calls("descriptors/worker", tmp_path)
    workers = []

    def start(remote: Remote, transport: str = "shm", inherited: tuple[int, ...] = (), **changes: str) -> Worker:
        workers.append(Worker(remote, program, transport, inherited, changes))
        return workers[-1]

    yield start
    for each in workers:
        each.channel.close()
        if each.process.returncode is None:
            each.kill()
        for stream in (each.process.stdin, each.process.stdout, each.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """Descriptors of this process's that are closed in the end."""
    opened: list[int] = []
    yield opened
    for each in opened:
        with contextlib.suppress(OSError):
            os.close(each)


@pytest.fixture
def any_lease(request: pytest.FixtureRequest, lease: Callable[..., Remote]) -> Callable[[str], Remote]:
    def start(transport: str) -> Remote:
        if transport == "rdma":
            rdma: Remote = request.getfixturevalue("rdma_lease")()
            return rdma
        return lease()

    return start


#: While a supervisor is stopped: how many questions lie before it.
Stopped = Callable[[Remote], AbstractContextManager[Callable[[], int]]]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    """A supervisor that reads no questions meanwhile, and then goes on as before."""

    @contextlib.contextmanager
    def stop(remote: Remote) -> Iterator[Callable[[], int]]:
        serve, goes_on = remote.supervisor._started._descriptors.serve, threading.Event()
        asked: list[socket.socket] = []

        def wait(channel: socket.socket, session: int) -> bool:
            asked.append(channel)
            goes_on.wait()
            return serve(channel, session)

        def questions() -> int:
            bytes_there = array.array("i", [0])
            fcntl.ioctl(asked[0], termios.FIONREAD, bytes_there)
            return bytes_there[0] // MESSAGE.size

        monkeypatch.setattr(remote.supervisor._started._descriptors, "serve", wait)
        try:
            yield questions
        finally:
            monkeypatch.setattr(remote.supervisor._started._descriptors, "serve", serve)
            goes_on.set()

    return stop


def kept() -> int:
    """Memory of software GPUs that this process, the supervisor's, keeps."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        # The one that reads the folder is gone.
        with contextlib.suppress(FileNotFoundError):
            count += "memfd:farbus-softgpu-" in os.readlink(f"/proc/self/fd/{entry}")
    return count


def altered(descriptor: int, at: int, change: bytes, length: int = MESSAGE_BYTES) -> int:
    """A descriptor like that one, whose message has other bytes there, or another length."""
    with socket.socket(fileno=os.dup(descriptor)) as real:
        message = bytearray(real.recv(MESSAGE_BYTES * 2, socket.MSG_PEEK).ljust(length, b"\0"))
    message[at : at + len(change)] = change
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(message[:length])
    return theirs.detach()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_memory_is_shared_between_processes(any_lease: Callable[[str], Remote], worker: Start, transport: str) -> None:
    remote = any_lease(transport)
    one, other = worker(remote, transport), worker(remote, transport)
    memory = one.do(f"make {BYTES}")
    descriptor = one.give(one.do(f"export {memory}"))
    assert one.do(f"put {memory} 41") == "0"
    its = other.do(f"import {other.take(descriptor)} {BYTES}")
    os.close(descriptor)
    assert other.do(f"get {its}") == "41"
    assert other.do(f"put {its} 42") == "0"
    assert one.do(f"get {memory}") == "42"
    # Its own reference: whoever made it may give it back, and end.
    assert one.do(f"release {memory}") == "0"
    assert one.finish() == ""
    assert other.do(f"get {its}") == "42"
    assert other.do(f"release {its}") == "0"
    assert other.finish() == ""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pools_are_shared_between_processes(any_lease: Callable[[str], Remote], worker: Start, transport: str) -> None:
    remote = any_lease(transport)
    one, other = worker(remote, transport), worker(remote, transport)
    pool = one.do("pool")
    descriptor = one.give(one.do(f"pool-export {pool}"))
    memory = one.do(f"allocate {pool} 4096")
    told = one.do(f"tell {memory}")
    assert one.do(f"put {memory} 7") == "0"
    its_pool = other.do(f"pool-import {other.take(descriptor)}")
    its = other.do(f"open {its_pool} {told}")
    again = other.do(f"open {its_pool} {told}")
    os.close(descriptor)
    assert other.do(f"get {its}") == "7"
    assert other.do(f"put {its} 8") == "0"
    assert other.do(f"get {again}") == "8"
    assert one.do(f"get {memory}") == "8"
    assert other.do(f"open {its_pool} {'0' * 128}") == INVALID_VALUE
    assert other.do(f"allocate {its_pool} 4096") == INVALID_VALUE
    for command in (f"free {its}", f"free {again}", f"pool-destroy {its_pool}"):
        assert other.do(command) == "0"
    for command in (f"free {memory}", f"pool-destroy {pool}"):
        assert one.do(command) == "0"
    assert (one.finish(), other.finish()) == ("", "")


def test_what_is_inherited_over_exec_is_imported(remote: Remote, worker: Start, descriptors: list[int]) -> None:
    one = worker(remote)
    memory = one.do(f"make {BYTES}")
    assert one.do(f"put {memory} 5") == "0"
    descriptors.append(one.give(one.do(f"export {memory}")))
    other = worker(remote, inherited=tuple(descriptors))
    assert other.do(f"get {other.do(f'import {descriptors[0]} {BYTES}')}") == "5"


def test_it_is_imported_as_often_as_one_likes_also_where_it_was_made(
    remote: Remote, worker: Start, descriptors: list[int]
) -> None:
    one, other = worker(remote), worker(remote)
    descriptor = one.do(f"export {one.do(f'make {BYTES}')}")
    descriptors.append(one.give(descriptor))
    first = one.do(f"import {descriptor} {BYTES}")
    seen = [(other, other.do(f"import {other.take(descriptors[0])} {BYTES}")) for _ in range(3)]
    assert one.do(f"put {first} 9") == "0"
    assert {each.do(f"get {its}") for each, its in [*seen, (one, "0")]} == {"9"}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_nothing_is_kept_once_the_last_copy_is_closed(
    lease: Callable[..., Remote], worker: Start, tmp_path: Path, transport: str
) -> None:
    remote, before = lease(FARBUS_SOFTGPU_NODE=str(tmp_path)), kept()
    one = worker(remote, transport)
    memory = one.do(f"make {BYTES}")
    available = int(one.do("available"))
    made = [one.do(f"export {memory}") for _ in range(70)]
    assert kept() == before + 70
    copy = one.give(made[0])
    for descriptor in made:
        assert one.do(f"close {descriptor}") == "0"
    assert one.do("available") == str(available)
    assert kept() == before + 1, "this process has a copy of one"
    assert one.do(f"release {memory}") == "0"
    os.close(copy)
    assert int(one.do("available")) == available + BYTES
    assert kept() == before
    assert one.do("ends") == "0"
    assert one.finish() == ""


def test_a_descriptor_keeps_the_memory_of_who_has_given_it_back(
    remote: Remote, worker: Start, descriptors: list[int]
) -> None:
    one, other = worker(remote), worker(remote)
    memory = one.do(f"make {BYTES}")
    assert one.do(f"put {memory} 3") == "0"
    descriptor = one.do(f"export {memory}")
    descriptors.append(one.give(descriptor))
    assert one.do(f"release {memory}") == "0"
    assert one.do(f"close {descriptor}") == "0"
    assert other.do(f"get {other.do(f'import {other.take(descriptors[0])} {BYTES}')}") == "3"


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_was_imported_outlives_an_exporter_that_is_killed(
    lease: Callable[..., Remote], worker: Start, descriptors: list[int], transport: str
) -> None:
    remote, before = lease(), kept()
    one, other = worker(remote, transport), worker(remote, transport)
    memory = one.do(f"make {BYTES}")
    descriptors.append(one.give(one.do(f"export {memory}")))
    its = other.do(f"import {other.take(descriptors[0])} {BYTES}")
    assert one.do(f"put {memory} 6") == "0"
    one.kill()
    wait_until(lambda: len(remote.supervisor.pids) == 1, "its server has ended")
    wait_until(lambda: kept() == before, "what it exported is closed")
    assert other.do(f"get {its}") == "6"
    # Nobody else gets it any more, and hears why.
    assert other.do(f"import {other.take(descriptors[0])} {BYTES}") == INVALID_VALUE
    (line,) = other.finish().splitlines()
    assert re.fullmatch(r"farbus: the process that exported this descriptor has ended, or has seen .*", line)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_importer_that_is_killed_leaves_the_exporter_alone(
    lease: Callable[..., Remote], worker: Start, descriptors: list[int], transport: str
) -> None:
    remote = lease()
    one, other = worker(remote, transport), worker(remote, transport)
    memory = one.do(f"make {BYTES}")
    descriptors.append(one.give(one.do(f"export {memory}")))
    its = other.do(f"import {other.take(descriptors[0])} {BYTES}")
    assert other.do(f"put {its} 12") == "0"
    other.kill()
    wait_until(lambda: len(remote.supervisor.pids) == 1, "its server has ended")
    assert one.do(f"get {memory}") == "12"
    third = worker(remote, transport)
    assert third.do(f"get {third.do(f'import {third.take(descriptors[0])} {BYTES}')}") == "12"


def test_the_child_of_a_fork_has_the_program_s_descriptors_alone(
    remote: Remote, worker: Start, descriptors: list[int]
) -> None:
    before = kept()
    one, other = worker(remote), worker(remote)
    descriptor = one.do(f"export {one.do(f'make {BYTES}')}")
    assert one.do("ends") == "2"
    assert one.do("fork") == f"1 {NOT_INITIALIZED}"
    descriptors.append(one.give(descriptor))
    assert one.do(f"close {descriptor}") == "0"
    assert other.do("attribute 1") == "1024"
    os.close(descriptors.pop())
    # The child's copy is one.
    one.do("available")
    assert kept() == before + 1
    assert one.do("end") == "0"
    one.do("available")
    assert kept() == before


def test_whatever_is_no_descriptor_of_the_lease_s_is_refused(
    lease: Callable[..., Remote], worker: Start, descriptors: list[int]
) -> None:
    remote, elsewhere = lease(), lease()
    one, other, stranger = worker(remote), worker(remote), worker(elsewhere)
    real = one.give(one.do(f"export {one.do(f'make {BYTES}')}"))
    pool = one.give(one.do(f"pool-export {one.do('pool')}"))
    wrong = [
        altered(real, 0, b"\0"),
        altered(real, 8, b"\2"),  # of a later version
        altered(real, 12, b"\2"),  # as a pool
        altered(real, 0, b"", length=MESSAGE_BYTES - 1),
        altered(real, 0, b"", length=MESSAGE_BYTES + 1),
        altered(real, 0, b"", length=0),
        os.memfd_create("file"),
        pool,
    ]
    descriptors += [real, *wrong]
    for each in wrong:
        assert other.do(f"import {other.take(each)} {BYTES}") == INVALID_VALUE
    assert other.do(f"pool-import {other.take(real)}") == INVALID_VALUE
    # What says that it is the lease's, and is not, the supervisor knows.
    forged = [
        altered(real, TOKEN_AT, os.urandom(32)),
        altered(real, MESSAGE_BYTES - 1, b"?"),
        altered(pool, 12, b"\1"),
    ]
    descriptors += forged
    for each in forged:
        assert other.do(f"import {other.take(each)} {BYTES}") == INVALID_VALUE
    assert stranger.do(f"import {stranger.take(real)} {BYTES}") == INVALID_VALUE
    assert re.fullmatch(r"farbus: descriptor \d+ is another lease's: .*\n", stranger.finish())
    assert other.finish().count("\n") == len(forged)
    # And a lease's name is no key to it: the token is.
    theirs = altered(real, 16, b"\0" * 16)
    descriptors.append(theirs)
    assert one.do(f"import {one.take(theirs)} {BYTES}") == INVALID_VALUE
    assert one.do(f"import {one.take(real)} {BYTES}") == "1"


def test_a_token_of_another_lease_opens_nothing(
    lease: Callable[..., Remote], worker: Start, descriptors: list[int]
) -> None:
    """Also where who imports says that it is his own lease's."""
    one, other = worker(lease()), worker(lease())
    mine, yours = (each.give(each.do(f"export {each.do(f'make {BYTES}')}")) for each in (one, other))
    with socket.socket(fileno=os.dup(mine)) as real:
        token = real.recv(MESSAGE_BYTES, socket.MSG_PEEK)[TOKEN_AT:]
    forged = altered(yours, TOKEN_AT, token)
    descriptors += [mine, yours, forged]
    assert other.do(f"import {other.take(forged)} {BYTES}") == INVALID_VALUE
    assert one.do(f"import {one.take(mine)} {BYTES}") == "1"


def test_a_stranger_s_socket_is_looked_at_and_left_as_it_was(
    remote: Remote, worker: Start, descriptors: list[int]
) -> None:
    one = worker(remote)
    sent = array.array("i", [descriptors.append(os.memfd_create("sent")) or descriptors[-1]])
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        with ours, theirs:
            its = one.take(theirs.fileno())
            assert one.do(f"import {its} {BYTES}") == INVALID_VALUE, "nothing is in it"
            # With a look counted, as SO_PEEK_OFF has it, and a descriptor on its way.
            theirs.setsockopt(socket.SOL_SOCKET, 42, 0)
            ours.sendmsg([b"x" * MESSAGE_BYTES], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
            assert one.do(f"import {its} {BYTES}") == INVALID_VALUE
            assert theirs.recv(8, socket.MSG_PEEK) == b"x" * 8
            data, came, _, _ = socket.recv_fds(theirs, 2 * MESSAGE_BYTES, 1)
            descriptors += came
            assert (data, len(came)) == (b"x" * MESSAGE_BYTES, 1)


def test_a_session_has_so_many_and_the_next_is_refused(
    remote: Remote, worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farbus.remoting.descriptors.SESSION_LIMIT", 3)
    one, other = worker(remote), worker(remote)
    memory, its = one.do(f"make {BYTES}"), other.do(f"make {BYTES}")
    made = [one.do(f"export {memory}") for _ in range(3)]
    assert one.do(f"export {memory}") == OPERATING_SYSTEM
    assert one.do(f"close {made[0]}") == "0"
    assert not one.do(f"export {memory}").startswith("error")
    assert not other.do(f"export {its}").startswith("error")
    assert re.fullmatch(r"farbus: \S+ keeps no more descriptors for this process or its lease: .*\n", one.finish())


def test_a_server_counts_by_itself(remote: Remote, worker: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farbus.remoting.descriptors.SESSION_LIMIT", 5000)
    one = worker(remote)
    memory = one.do(f"make {BYTES}")
    for _ in range(1024):
        assert not one.do(f"export {memory}").startswith("error")
    assert one.do(f"export {memory}") == OPERATING_SYSTEM


def test_a_program_without_descriptors_is_told_so(remote: Remote, worker: Start) -> None:
    one, before = worker(remote), kept()
    memory = one.do(f"make {BYTES}")
    subprocess.run(["prlimit", f"--pid={one.process.pid}", "--nofile=40"], check=True)
    made = []
    while not (last := one.do(f"export {memory}")).startswith("error"):
        made.append(last)
        assert len(made) < 40
    assert last == OPERATING_SYSTEM
    assert kept() == before + len(made)
    assert one.do(f"close {made[0]}") == "0"
    assert not one.do(f"export {memory}").startswith("error")
    assert re.fullmatch(r"farbus: a descriptor for memory: Too many open files; let this .*\n", one.finish())


def test_what_is_exported_counts_with_the_lease_s_memory(libcuda: Path, worker: Start, tmp_path: Path) -> None:
    with remote_session(libcuda=libcuda, folder=tmp_path, environment={}, memory_limit=2 * BYTES) as remote:
        one = worker(remote)
        memory = one.do(f"make {BYTES}")
        exported = one.do(f"export {memory}")
        again = one.do(f"import {exported} {BYTES}")
        assert one.do("available") == str(BYTES), "it is the same memory"
        assert one.do(f"release {memory}") == "0"
        assert one.do("available") == str(BYTES), "the descriptor keeps it, and the other handle"
        assert one.do(f"close {exported}") == "0"
        assert one.do("available") == str(BYTES), "and that handle alone"
        assert one.do(f"make {2 * BYTES}") == OUT_OF_MEMORY
        assert one.do(f"release {again}") == "0"
        assert one.do("available") == str(2 * BYTES)
        assert one.do(f"make {2 * BYTES}") == "2"
        assert one.finish() == ""


def test_memory_that_descriptors_keep_counts_whatever_handle_the_driver_gives_next(
    libcuda: Path, worker: Start, descriptors: list[int], tmp_path: Path
) -> None:
    """The handle of what was given back may be that of what another process has exported."""
    with remote_session(libcuda=libcuda, folder=tmp_path, environment={}, memory_limit=24 * BYTES) as remote:
        one, two = worker(remote), worker(remote)
        descriptors.append(two.give(two.do(f"export {two.do(f'make {BYTES}')}")))
        theirs = one.take(descriptors[0])
        own = [one.do(f"make {BYTES}") for _ in range(16)]
        exported = [one.do(f"export {each}") for each in own]
        assert [one.do(f"release {each}") for each in own] == ["0"] * 16
        imported = [one.do(f"import {theirs} {BYTES}") for _ in range(16)]
        assert [one.do(f"release {each}") for each in imported] == ["0"] * 16
        assert one.do("available") == str(7 * BYTES)
        assert [one.do(f"close {each}") for each in exported] == ["0"] * 16
        assert one.do("available") == str(23 * BYTES)
        assert one.finish() == ""


def test_the_device_says_what_can_be_shared(remote: Remote, worker: Start) -> None:
    one = worker(remote)
    assert (one.do(f"attribute {POSIX_SUPPORTED}"), one.do(f"attribute {POOL_TYPES}")) == ("1", "1")
    plain, memory = one.do("plain 4096"), one.do(f"make {BYTES}")
    pooled = one.do(f"allocate {one.do('pool')} 4096")
    assert [one.do(f"told {each} {IPC_CAPABLE}") for each in (plain, memory, pooled)] == ["1", "0", "0"]


def test_handles_that_are_no_descriptors_are_refused(remote: Remote, worker: Start) -> None:
    """With a line, but where memory is made: PyTorch tries that first."""
    one = worker(remote)
    one.do(f"make {BYTES}")
    assert one.do("others 8") == "801 801 801"
    assert one.do("others 2") == "801 801 801"
    told = [
        re.search(r"descriptors \((.*?)\) are not supported over remoting", line) for line in one.finish().splitlines()
    ]
    fabric, windows = "CU_MEM_HANDLE_TYPE_FABRIC", "Windows has them"
    assert [each and each[1] for each in told] == [fabric, fabric, windows, windows]


def test_a_supervisor_that_is_stopped_is_not_waited_for_without_end(
    remote: Remote, worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question that is never answered; then one that is, with the late answer before it."""
    serve = remote.supervisor._started._descriptors.serve
    asked: list[tuple[socket.socket, int]] = []

    def silent(channel: socket.socket, session: int) -> bool:
        asked.append((channel, session))
        channel.recv(64)
        return True

    one = worker(remote)
    memory = one.do(f"make {BYTES}")
    monkeypatch.setattr(remote.supervisor._started._descriptors, "serve", silent)
    assert one.do(f"export {memory}") == "error 909"
    monkeypatch.setattr(remote.supervisor._started._descriptors, "serve", serve)
    # A late answer, to nobody.
    asked[0][0].send(bytes(48))
    assert one.do(f"import {one.do(f'export {memory}')} {BYTES}") == "1"
    assert re.fullmatch(r"farbus: the supervisor at \S+ does not answer: .*\n", one.finish())


def test_what_a_supervisor_keeps_too_late_is_nobody_s_and_closed(
    remote: Remote, worker: Start, stopped: Stopped
) -> None:
    one = worker(remote)
    memory = one.do(f"make {BYTES}")
    with stopped(remote) as questions:
        assert [one.do(f"export {memory}") for _ in range(2)] == ["error 909"] * 2
        assert questions() == 1
    wait_until(lambda: len(remote.supervisor._started._descriptors) == 1, "the supervisor kept it")
    assert one.do(f"import {one.do(f'export {memory}')} {BYTES}") == "1"
    assert len(remote.supervisor._started._descriptors) == 1
    assert "does not answer" in one.finish()


def test_a_supervisor_that_is_stopped_is_told_later_what_was_closed_meanwhile(
    remote: Remote, worker: Start, stopped: Stopped
) -> None:
    """It is asked once, waited for once, and told all when it goes on, in as many questions as it can answer."""
    count, before = 12, kept()
    one = worker(remote)
    memory = one.do(f"make {BYTES}")
    available = one.do("available")
    made = [one.do(f"export {memory}") for _ in range(count)]
    with stopped(remote) as questions:
        for descriptor in made:
            assert one.do(f"close {descriptor}") == "0"
        assert [one.do("available") for _ in range(2)] == [available] * 2
        assert (questions(), kept()) == (1, before + count)
    wait_until(lambda: kept() == before + count - 1, "the supervisor has answered the first")
    assert one.do("available") == available
    assert kept() == before
    assert one.do(f"import {one.do(f'export {memory}')} {BYTES}") == "1"
    assert one.do("ends") == "2"
    assert one.finish() == ""


@pytest.mark.parametrize("answered", ["two descriptors", "three descriptors", "too much", "too little"])
def test_what_is_no_answer_is_an_error_and_leaves_nothing_behind(
    remote: Remote, worker: Start, monkeypatch: pytest.MonkeyPatch, answered: str
) -> None:
    sent = {"two descriptors": 2, "three descriptors": 3}.get(answered, 1)
    more = {"too much": b"x"}.get(answered, b"")

    def serve(channel: socket.socket, session: int) -> bool:
        asked = channel.recv(64)
        if not asked:
            return False
        verb, number, kind, _, token = MESSAGE.unpack(asked)
        data = MESSAGE.pack(verb, number, kind, Refusal.GRANTED, token) + more
        with open(os.devnull, "rb") as file:
            socket.send_fds(channel, [data[: -1 if answered == "too little" else None]], [file.fileno()] * sent)
        return True

    one = worker(remote)
    memory = one.do(f"make {BYTES}")
    descriptor = one.do(f"export {memory}")
    (server,) = remote.supervisor.pids
    before = len(os.listdir(f"/proc/{server}/fd"))
    monkeypatch.setattr(remote.supervisor._started._descriptors, "serve", serve)
    assert one.do(f"import {descriptor} {BYTES}") == OPERATING_SYSTEM
    assert one.do(f"export {memory}") == OPERATING_SYSTEM
    assert len(os.listdir(f"/proc/{server}/fd")) == before
    for line in one.finish().splitlines():
        assert re.fullmatch(r"farbus: the supervisor at \S+ has answered what is no answer: .*", line)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_of_several_servers_the_one_whose_lease_it_is_opens_it(
    lease: Callable[..., Remote], worker: Start, descriptors: list[int], tmp_path: Path, transport: str
) -> None:
    remotes = [lease(FARBUS_SOFTGPU_NODE=str(tmp_path / f"node{number}")) for number in range(2)]
    both = tmp_path / "both"
    write_session(both, [block(each) for each in remotes])
    one = worker(remotes[0], transport, FARBUS_SESSION=str(both))
    others = [worker(each, transport) for each in remotes]
    for number in range(2):
        assert one.do(f"device {number}") == "0"
        memory = one.do(f"make {BYTES}")
        assert one.do(f"put {memory} {number + 5}") == "0"
        descriptor = one.do(f"export {memory}")
        descriptors.append(one.give(descriptor))
        theirs = [each.do(f"import {each.take(descriptors[-1])} {BYTES}") for each in others]
        assert theirs[1 - number] == INVALID_VALUE
        assert others[number].do(f"get {theirs[number]}") == str(number + 5)
        # Whichever device is current, it is the same server's; to map it, that server's must be.
        again = one.do(f"import {descriptor} {BYTES}")
        assert one.do(f"get {again}") == str(number + 5)
    assert one.finish() == ""


# Who speaks bytes.

CONTEXT = 1 << 43 | 1 << 4
MEMORY, POOL = 1, 2


class Raw(OlderShim):
    """A client of the lease that sends whatever it likes."""

    def __init__(self, remote: Remote) -> None:
        super().__init__(remote, CURRENT)
        self.exactly(self.reply[9] * DEVICE_BYTES)
        self.call("primary_retain", 0, 0, CONTEXT)

    def ask(self, name: str, *values: int) -> int | tuple[int, ...]:
        """What it gets, or how it is refused."""
        self.send(name, *values)
        opcode, result, payload = self.receive()
        assert opcode == self.operations[name]["opcode"] | 0x8000
        return result or struct.unpack(self.layout(self.operations[name]["reply"]), payload)


def token_of(descriptor: int) -> tuple[int, ...]:
    with socket.socket(fileno=os.dup(descriptor)) as real:
        return struct.unpack("<4Q", real.recv(MESSAGE_BYTES, socket.MSG_PEEK)[TOKEN_AT:])


def test_a_client_that_speaks_bytes_gets_what_its_lease_has_and_takes_nothing_from_others(
    lease: Callable[..., Remote], worker: Start, descriptors: list[int]
) -> None:
    remote, before = lease(tls=False), kept()
    one = worker(remote)
    descriptors.append(one.give(one.do(f"export {one.do(f'make {BYTES}')}")))
    token = token_of(descriptors[0])
    raw = Raw(remote)
    for wrong in (0, 1, CONTEXT, 1 << 63, (1 << 64) - 1):
        for kind in (0, MEMORY, POOL, 3, (1 << 32) - 1):
            assert raw.ask("descriptor_export", wrong, 0, kind, 0) == 1
    for kind in (0, 3, (1 << 32) - 1):
        assert raw.ask("descriptor_import", *token, kind, 0) == 1
    unknown = (0, 1, 0)
    assert raw.ask("descriptor_import", 0, 0, 0, 0, MEMORY, 0) == unknown
    assert raw.ask("descriptor_import", *token, POOL, 0) == unknown
    assert raw.ask("descriptor_import", *token[:3], token[3] ^ 1, MEMORY, 0) == unknown
    # Another session's is not its to close.
    for each in (token, (0, 0, 0, 0)):
        assert raw.ask("descriptor_drop", *each) == 1
    imported = raw.ask("descriptor_import", *token, MEMORY, 0)
    assert isinstance(imported, tuple)
    assert imported[1] == 0
    exported = raw.ask("descriptor_export", imported[0], 0, MEMORY, 0)
    assert isinstance(exported, tuple)
    assert exported[4] == 0
    assert raw.ask("descriptor_export", imported[0], 7, MEMORY, 0) == 1, "flags that are none"
    assert raw.ask("descriptor_export", imported[0], 0, POOL, 0) == 1
    assert kept() == before + 2
    assert raw.ask("descriptor_drop", *exported[:4]) == ()
    assert raw.ask("descriptor_drop", *exported[:4]) == 1
    for pool in (0, imported[0], CONTEXT):
        assert raw.ask("pool_pointer_import", pool, *range(8)) == 1
    for attribute in (0, 1, 7, 17, 1 << 31):
        assert raw.ask("pointer_attribute", 1 << 40, attribute, 0) == 1
    assert raw.ask("pointer_attribute", 0, IPC_CAPABLE, 0) == 1
    assert kept() == before + 1
    raw.connection.close()
    assert one.do("ends") == "2"
    assert one.do(f"import {one.take(descriptors[0])} {BYTES}") == "1"


def test_a_server_without_a_supervisor_has_none(libcuda: Path) -> None:
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    with raw_session(libcuda) as session:
        for name, fields in (("descriptor_export", 24), ("descriptor_import", 40), ("descriptor_drop", 32)):
            assert session.call(name, bytes(fields)) in {801, 1}


# The supervisor's half, to which servers say whatever they like.

KEEP, FIND, DROP = Verb


@pytest.fixture
def exchange() -> Iterator[tuple[Descriptors, socket.socket, socket.socket]]:
    kept_here, (ours, theirs) = Descriptors(), make_exchange()
    with ours, theirs:
        yield kept_here, ours, theirs
    for session in range(4):
        kept_here.end(session)


def said(verb: int, *, number: int = 1, kind: int = MEMORY, token: bytes = b"") -> bytes:
    return MESSAGE.pack(verb, number, kind, 0, token)


def opened(path: str) -> int:
    """How many descriptors of a file this process has; what others have come and go."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.path.samestat(os.stat(f"/proc/self/fd/{name}"), os.stat(path))
    return count


@pytest.mark.parametrize(
    "message",
    [b"", b"x", said(FIND)[:-1], said(FIND) + b"x", said(FIND) * 2, said(0), said(4), said((1 << 32) - 1)],
)
def test_a_server_that_says_nonsense_is_heard_no_more(
    exchange: tuple[Descriptors, socket.socket, socket.socket], message: bytes
) -> None:
    descriptors, ours, theirs = exchange
    before = opened(os.devnull)
    with open(os.devnull, "rb") as file:
        socket.send_fds(theirs, [message], [file.fileno()])
        assert not descriptors.serve(ours, 1)
    assert opened(os.devnull) == before


def await_closed() -> None:
    """Wait for the threads that close what may wait: until then it is among what is open."""
    for thread in threading.enumerate():
        if thread.name == "farbus-closes":
            thread.join()


@contextlib.contextmanager
def lingering() -> Iterator[int]:
    """The last descriptor of a connection whose end waits an hour for a peer that takes nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    with peer:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(bytes(1 << 16))
        # A close waits for what is unread, unless it is told to wait for nothing (O_NONBLOCK).
        ours.setblocking(True)
        yield ours.detach()
        # A reset: who waits is woken.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("verb", Verb)
def test_a_server_that_sends_what_waits_when_it_is_closed_is_not_waited_for(
    exchange: tuple[Descriptors, socket.socket, socket.socket], verb: Verb
) -> None:
    descriptors, ours, theirs = exchange
    with lingering() as descriptor:
        socket.send_fds(theirs, [said(verb)], [descriptor])
        os.close(descriptor)
        assert not descriptors.serve(ours, 1)
        assert len(descriptors) == 0
    await_closed()


@pytest.fixture(params=["file of a disk", "terminal", "socket"])
def foreign(request: pytest.FixtureRequest) -> Iterator[int]:
    """What may wait for others when it is closed."""
    screen, keyboard = pty.openpty()
    with socket.socket() as connection, open(__file__, "rb") as file:
        yield {"terminal": keyboard, "socket": connection.fileno()}.get(request.param, file.fileno())
    os.close(screen)
    os.close(keyboard)


def test_what_no_driver_exports_is_not_kept(
    exchange: tuple[Descriptors, socket.socket, socket.socket], foreign: int
) -> None:
    descriptors, ours, theirs = exchange
    path = f"/proc/self/fd/{foreign}"
    before = opened(path)
    socket.send_fds(theirs, [said(KEEP)], [foreign])
    assert not descriptors.serve(ours, 1)
    assert len(descriptors) == 0
    await_closed()
    assert opened(path) == before


def test_what_drivers_export_is_kept(exchange: tuple[Descriptors, socket.socket, socket.socket]) -> None:
    """Files in memory, devices, and the kernel's objects without a name, as DMA buffers are."""
    descriptors, ours, theirs = exchange
    for made in (os.memfd_create("memory"), os.open("/dev/zero", os.O_RDWR), os.eventfd(0)):
        socket.send_fds(theirs, [said(KEEP)], [made])
        os.close(made)
        assert descriptors.serve(ours, 1)
        assert MESSAGE.unpack(theirs.recv(100))[3] == Refusal.GRANTED
    assert len(descriptors) == 3


def test_what_is_kept_is_found_by_its_token_and_kind_and_closed_by_its_session_alone(
    exchange: tuple[Descriptors, socket.socket, socket.socket],
) -> None:
    descriptors, ours, theirs = exchange

    def ask(message: bytes, *sent: int, session: int = 1) -> tuple[int, bytes, list[int]]:
        socket.send_fds(theirs, [message], sent)
        assert descriptors.serve(ours, session)
        data, came, _, _ = socket.recv_fds(theirs, 100, 4)
        _, number, _, refusal, token = MESSAGE.unpack(data)
        assert number == 1
        return refusal, token, came

    before = opened(os.devnull)
    with open(os.devnull, "rb") as file:
        # Of several the first is kept, and the others are nobody's.
        refusal, token, came = ask(said(KEEP), file.fileno(), file.fileno(), file.fileno())
        assert (refusal, came, len(descriptors)) == (Refusal.GRANTED, [], 1)
        refusal, _, (found,) = ask(said(FIND, token=token), session=2)
        assert os.path.sameopenfile(found, file.fileno())
        os.close(found)
        # A descriptor that nobody asked for.
        assert ask(said(FIND, token=token[:-1] + b"?"), file.fileno()) == (Refusal.UNKNOWN, token[:-1] + b"?", [])
    assert ask(said(FIND, token=token, kind=POOL))[0] == Refusal.UNKNOWN
    assert ask(said(KEEP))[0] == Refusal.FULL, "nothing to keep"
    assert ask(said(DROP, token=token), session=2)[0] == Refusal.UNKNOWN
    descriptors.end(2)
    assert len(descriptors) == 1
    assert ask(said(DROP, token=token))[0] == Refusal.GRANTED
    assert ask(said(DROP, token=token))[0] == Refusal.UNKNOWN
    assert (len(descriptors), opened(os.devnull)) == (0, before)


def test_limits_are_those_of_session_and_lease(
    exchange: tuple[Descriptors, socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors_module, "SESSION_LIMIT", 2)
    monkeypatch.setattr(descriptors_module, "LEASE_LIMIT", 3)
    _, ours, theirs = exchange
    descriptors = Descriptors()

    def keep(session: int) -> int:
        with open(os.devnull, "rb") as file:
            socket.send_fds(theirs, [said(KEEP)], [file.fileno()])
        assert descriptors.serve(ours, session)
        return int(MESSAGE.unpack(theirs.recv(100))[3])

    assert [keep(session) for session in (1, 1, 1, 2, 2)] == [0, 0, Refusal.FULL, 0, Refusal.FULL]
    descriptors.end(1)
    assert keep(2) == Refusal.GRANTED
    descriptors.end(2)
    assert len(descriptors) == 0


def test_a_server_that_reads_no_answers_is_dropped_and_not_waited_for(
    exchange: tuple[Descriptors, socket.socket, socket.socket],
) -> None:
    descriptors, ours, theirs = exchange
    asked = 0
    while True:
        theirs.send(said(FIND))
        if not descriptors.serve(ours, 1):
            break
        asked += 1
        assert asked < 100
