"""Clients of whole RDMA sessions that have the lease's secret, and then do what they like to their server.

They speak by :mod:`tests.verbs.peer` over the tests' own RDMA device.  Whatever they do ends their own session or
nothing: another session of the lease goes on, no server crashes, and none outlives its client.  What they say in frames
is in test_hostile.py, as over every transport; hostile servers are in test_hostile_rdma_server.py.
More random ones by hand: ``HOSTILE_SEEDS=100:200 pytest tests/remoting/test_hostile_rdma.py``.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.remoting.harness import SANITIZED, Remote, remote_session
from tests.remoting.test_failures import alive, wait_until
from tests.verbs.door import FakeDoor
from tests.verbs.peer import (
    CREDITS,
    MESSAGES,
    RECORD,
    RING_BYTES,
    STEP_BYTES,
    Broken,
    Client,
    Rings,
    Terms,
    gid_of,
    take,
)

Join = Callable[[], Client]

FIRST, _, LAST = os.environ.get("HOSTILE_SEEDS", "0:6").partition(":")
GRACE_S = 5.0 if SANITIZED else 2.0
"""Longer than an agreement takes, and what a server that is left may last."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What servers' devices have done."""
    return tmp_path / "log"


Start = Callable[..., Remote]


@pytest.fixture
def start(libcuda: Path, tmp_path: Path, fake_verbs: Path, log: Path) -> Iterator[Start]:
    """Begin leases that let sessions go by RDMA; keywords are their servers' environment."""
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    with ExitStack() as stack:

        def begin(**environment: str) -> Remote:
            environment |= {"LD_LIBRARY_PATH": str(fake_verbs), "FAKE_VERBS_LOG": str(log)}
            leased = remote_session(
                libcuda=libcuda, folder=tmp_path, environment=environment, grace_s=GRACE_S, tls=False, rdma=True
            )
            remote = stack.enter_context(leased)
            remote.with_library_path(fake_verbs)
            return remote

        yield begin


@pytest.fixture
def device_side(start: Start) -> Iterator[Remote]:
    """One of which no server may crash."""
    remote = start()
    yield remote
    assert not [line for line in remote.lines if "signal" in line and "SIGKILL" not in line]


@pytest.fixture
def join(device_side: Remote, door: FakeDoor) -> Iterator[Join]:
    """Begin a session by RDMA, and have a context in it."""
    with ExitStack() as stack:

        def begin() -> Client:
            client = Client(device_side.supervisor.address, device_side.secret, door)
            stack.callback(client.close)
            client.begin()
            client.open_context()
            return client

        yield begin


@pytest.fixture
def client(join: Join, device_side: Remote) -> Iterator[Client]:
    """A session that is to be ill used; another one of the lease does not notice."""
    bystander = join()
    client = join()
    server = server_of(device_side)
    yield client
    assert bystander.works()
    client.end()
    client.close()
    wait_until(lambda: not alive(server), "its server has ended")
    bystander.end()


def server_of(remote: Remote) -> int:
    """Return the process of the session that began last."""
    return remote.supervisor.pids[-1]


def assert_ends(client: Client) -> None:
    """The server ends the session: it goes on nowhere."""
    with contextlib.suppress(Broken, ConnectionError):
        while client.receive():
            pass
    # It may be gone before it has said so.
    with contextlib.suppress(Broken, ConnectionError):
        assert client.dial() is None


def rings_of(client: Client) -> Rings:
    assert client.rings
    return client.rings


def fails(rings: Rings) -> None:
    """What was posted is refused by the other side's device."""
    with pytest.raises(Broken):
        rings.flush()


def test_who_does_what_the_page_says_computes(client: Client) -> None:
    """Both rings go round several times, and the session goes on over TCP and by RDMA again."""
    data = random.Random(7).randbytes(3 * RING_BYTES + 12345)
    address = client.allocate(len(data))
    client.to_device(address, data)
    assert client.to_host(address, len(data)) == data
    for rdma in (False, True):
        client.connection.close()
        client.dial_and_resume(rdma=rdma)
        data = data[::-1]
        client.to_device(address, data)
        assert client.to_host(address, len(data)) == data


# ---- words ----


@pytest.mark.parametrize("length", [RING_BYTES + 1, 1 << 31, 0xFFFFFFFF])
def test_a_length_that_can_t_be_ends_the_session(client: Client, length: int) -> None:
    rings_of(client).message(8, counts=length)
    assert_ends(client)


@pytest.mark.parametrize(("messages", "taken"), [(0, 0), (MESSAGES, 0), (0, RING_BYTES), (1 << 9, 1 << 21)])
def test_what_can_t_have_been_taken_ends_the_session(client: Client, messages: int, taken: int) -> None:
    rings = rings_of(client)
    rings.credit(rings.messages_told + messages, rings.told + taken)
    assert_ends(client)


def test_nothing_said_again_and_again_holds_up_nobody(client: Client) -> None:
    rings = rings_of(client)
    for _ in range(40 * MESSAGES):
        while not rings.room():
            rings.wait()
        rings.message(0)
    assert client.works()


def test_more_than_there_are_receives_for_ends_its_own_session_at_most(client: Client) -> None:
    rings = rings_of(client)
    with contextlib.suppress(Broken, OSError):
        for _ in range(8 * MESSAGES):
            if rings.under_way == MESSAGES:
                rings.wait()
            rings.message(0)


def test_a_byte_over_tcp_ends_the_session(client: Client) -> None:
    client.connection.sendall(b"x")
    assert_ends(client)


# ---- memory ----


@pytest.mark.parametrize(
    ("offset", "count", "key"),
    [
        (-1, 2, 0),
        (RING_BYTES - 1, 2, 0),
        (RING_BYTES, 8, 0),
        (-4096, 8, 0),
        (0, 8, 1),
        (0, 8, 1 << 31),
        (1 << 46, 8, 0),
    ],
)
def test_nothing_but_its_ring_can_be_written(client: Client, offset: int, count: int, key: int) -> None:
    """What the device refuses is a cut."""
    rings = rings_of(client)
    assert rings.theirs
    rings.write(0, count, to=(rings.theirs.ring + offset) % (1 << 64), key=rings.theirs.key ^ key)
    fails(rings)
    client.dial_and_resume()
    assert client.works()


def test_the_ring_of_another_session_can_t_be_written(client: Client, join: Join) -> None:
    other = join()
    theirs = rings_of(other).theirs
    rings = rings_of(client)
    assert theirs
    rings.write(0, 8, to=theirs.ring, key=theirs.key)
    fails(rings)
    assert other.works()
    client.dial_and_resume()
    assert client.works()


def test_the_ring_of_a_connection_that_was_cut_can_t_be_written(client: Client) -> None:
    old = rings_of(client)
    assert old.theirs
    client.dial_and_resume(rdma=True)
    assert client.works()
    old.write(0, 8, to=old.theirs.ring)
    fails(old)
    assert client.works()


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST)))
def test_what_is_written_anew_behind_its_word_is_read_once(client: Client, seed: int) -> None:
    """Whichever bytes the server meets, it acts upon those that it has looked at."""
    chance = random.Random(seed)
    rings = rings_of(client)
    address = client.allocate(1 << 20)
    with contextlib.suppress(Broken, ConnectionError, OSError, AssertionError):
        for _ in range(200):
            piece = chance.randbytes(chance.choice([1, 8, 300, 5000, 60000]))
            frames = b"".join(client.pieces(address, piece)) + client.frame("memory_info", context=client.CONTEXT)
            data = RECORD.pack(len(frames), client.received & 0xFFFFFFFF) + frames
            at = rings.written % RING_BYTES
            if at + len(data) > RING_BYTES:
                client.sendall(frames)
            else:
                while rings.room() < len(data):
                    rings.wait()
                rings.put(data)
                rings.message(len(data))
                assert rings.theirs
                # The mirror has it, too: what is sent again is what was there.
                for _ in range(chance.randrange(4)):
                    where = chance.randrange(min(len(data), 64))
                    rings.memory.put(
                        RING_BYTES + at + where, chance.choice([b"\xff" * 8, bytes(8), chance.randbytes(8)])
                    )
                    if rings.under_way < MESSAGES:
                        rings.write(at + where, 8, to=rings.theirs.ring + at + where)
            rings.pump()
            rings.taken = rings.there
            rings.tell()


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST)))
def test_bytes_and_words_at_random_hurt_nobody(client: Client, seed: int) -> None:
    chance = random.Random(seed)
    rings = rings_of(client)
    assert rings.theirs
    with contextlib.suppress(Broken, ConnectionError, OSError):
        for _ in range(400):
            if rings.under_way >= MESSAGES - 1 or rings.telling >= CREDITS - 1:
                rings.wait(1.0)
                continue
            match chance.randrange(8):
                case 0:
                    rings.message(chance.randrange(64), counts=chance.choice([0, 1, 8, 64, 1 << 17, RING_BYTES]))
                case 1:
                    rings.credit(rings.messages + chance.randrange(3), rings.there + chance.randrange(3))
                case 2:
                    place = chance.randrange(RING_BYTES - 64)
                    rings.memory.put(RING_BYTES + place, chance.randbytes(64))
                    rings.write(place, 64, to=rings.theirs.ring + place)
                case _:
                    frame = bytearray(client.frame("memory_info", context=client.CONTEXT))
                    if not chance.randrange(4):
                        frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
                    client.sendall(bytes(frame))


# ---- frames that are torn, and cuts ----


def test_half_a_frame_is_made_whole_over_the_next_connection(client: Client) -> None:
    """Whatever carries the halves."""
    address = client.allocate(4 * STEP_BYTES)
    data = random.Random(3).randbytes(4 * STEP_BYTES)
    for number, rdma in enumerate([False, True, True, False, True]):
        (frame,) = client.pieces(address, data)
        half = (len(frame) >> number) + 1
        # Of the record, too.
        client.kept += frame
        torn = RECORD.pack(len(frame), client.received & 0xFFFFFFFF) + frame[:half]
        client.carrier.send(torn)
        client.connection.close()
        client.dial_and_resume(rdma=rdma)
        assert client.to_host(address, len(data)) == data
        data = data[::-1]


def test_who_answers_nothing_and_stays_is_asked_over_tcp(client: Client) -> None:
    """A client's queue pairs are gone, and its TCP connection lies still: the answer comes over the next one."""
    rings = rings_of(client)
    client.send("memory_info", context=client.CONTEXT)
    rings.flush()
    rings.close()
    client.dial_and_resume()
    assert client.answer("memory_info").result == 0


def test_a_server_whose_client_neither_answers_nor_ends_gives_up(client: Client, device_side: Remote) -> None:
    rings = rings_of(client)
    server = server_of(device_side)
    address = client.allocate(RING_BYTES)
    # Before the server is asked: what fits into the ring can be there at once, and a server that waits for room has
    # nothing under way that could go unanswered.  It waits as long as its client is there over TCP.
    rings.reader.stop()
    client.ask_for(address, RING_BYTES)
    wait_until(lambda: not alive(server), "its time to resume has passed")


def test_who_reads_nothing_keeps_nobody(client: Client, device_side: Remote) -> None:
    """The server's writer waits for room that nobody gives, until the connection ends."""
    server = server_of(device_side)
    address = client.allocate(16 * RING_BYTES)
    rings = rings_of(client)
    for _ in range(4):
        client.ask_for(address, 16 * RING_BYTES)
    while rings.there < RING_BYTES:
        rings.wait()
    client.connection.close()
    wait_until(lambda: not alive(server), "its server has ended")


def test_who_reads_nothing_is_heard_when_he_comes_again(client: Client) -> None:
    address = client.allocate(8 * RING_BYTES)
    data = random.Random(5).randbytes(8 * RING_BYTES)
    client.to_device(address, data)
    rings = rings_of(client)
    client.ask_for(address, len(data))
    while rings.there < RING_BYTES:
        rings.wait()
    client.dial_and_resume(rdma=True)
    assert client.copied(len(data)) == data


REQUESTS = (1, 2, 3, 8, 20)
"""Of those that a process makes, the one at which it is killed; the first tries the path."""


@pytest.mark.parametrize("request_number", REQUESTS)
def test_a_program_that_is_killed_leaves_no_server(
    device_side: Remote, build: Callable[[str], Path], request_number: int
) -> None:
    program, changes = build("remoting/copies_of_all_sizes"), {"FAKE_VERBS_POST_KILLS": str(request_number)}
    done = device_side.run(program, "9000", "25", "2", FARBUS_TRANSPORT="rdma", **changes)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not device_side.supervisor.pids, "its server has ended")


@pytest.mark.parametrize("request_number", REQUESTS)
def test_a_server_that_is_killed_is_an_error_of_the_program(
    start: Start, build: Callable[[str], Path], request_number: int
) -> None:
    remote = start(FAKE_VERBS_POST_KILLS=str(request_number))
    done = remote.run(build("remoting/copies_of_all_sizes"), "9000", "25", "2", FARBUS_TRANSPORT="rdma")
    assert done.returncode == 1
    assert done.stderr.startswith("farbus: ")
    assert done.stderr.count("farbus: ") == 1


# ---- resuming ----


@pytest.mark.parametrize("lie", ["more than was said", "all there is", "a token", "another's session"])
def test_a_lie_about_what_goes_on_changes_nothing(client: Client, lie: str, join: Join) -> None:
    before = client.connection
    received, number = client.received, client.number
    if lie == "another's session":
        other = join()
        client.number = other.number
        assert client.dial(rdma=True) is None
        assert other.works()
    elif lie == "a token":
        assert client.dial(rdma=True, token=bytes(32)) is None
    else:
        assert client.dial(rdma=True, received=received + 1 if lie == "more than was said" else (1 << 64) - 1) is None
    client.connection, client.number = before, number
    assert client.works()


STAGES = ["nothing", "half of the terms", "the terms", "the word"]


def stall(client: Client, stage: str, door: FakeDoor) -> socket.socket:
    """Begin to agree about RDMA over another connection, and fall silent."""
    assert client.dial(rdma=True) is not None
    assert client.has_rdma
    rings = Rings(door, client.connection)
    theirs = Terms.take(client.connection)
    if stage == "half of the terms":
        client.connection.sendall(rings.terms.pack()[:20])
    elif stage == "the terms":
        client.connection.sendall(rings.terms.pack())
    elif stage == "the word":
        rings.connect(theirs)
        client.connection.sendall(rings.terms.pack())
        assert take(client.connection, Terms.WORD.size) == bytes(4)
    return client.connection


@pytest.mark.parametrize("stage", STAGES)
def test_who_falls_silent_in_the_midst_of_agreeing_holds_up_no_other(
    client: Client, stage: str, door: FakeDoor
) -> None:
    silent = stall(client, stage, door)
    client.dial_and_resume(rdma=True)
    # Its time is not over yet.
    silent.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            assert silent.recv(4096), "the server has waited for it"
    assert client.works()


def test_many_at_once_that_fall_silent_leave_nothing(client: Client, door: FakeDoor) -> None:
    silent = [stall(client, STAGES[number % 4], door) for number in range(12)]
    client.dial_and_resume(rdma=True)
    assert client.works()
    for each in silent:
        with contextlib.suppress(ConnectionError):
            while each.recv(4096):
                pass
    assert client.works()


def test_connections_one_behind_the_other_leave_nothing(client: Client, device_side: Remote, log: Path) -> None:
    """What a connection had is gone with it: pairs, memory, descriptors, threads."""
    server = psutil.Process(server_of(device_side))

    def go_on(count: int) -> None:
        for _ in range(count):
            client.dial_and_resume(rdma=True)
            assert client.works()
        wait_until(lambda: living(server.pid, log) == 2, "older queue pairs are gone")

    go_on(3)
    descriptors, threads, resident = server.num_fds(), server.num_threads(), server.memory_info().rss
    go_on(20)
    wait_until(
        lambda: server.num_fds() <= descriptors and server.num_threads() <= threads, "it has no more than before"
    )
    # Twenty rings with their mirrors would be 40 MiB.
    assert server.memory_info().rss - resident < 10 * 2 * RING_BYTES


def living(pid: int, log: Path) -> int:
    """How many queue pairs that process has that were ever ready."""
    words = Counter(line.split()[1] for line in log.read_text().splitlines() if line.startswith(f"{pid} "))
    return words["ready"] - words["destroyed"]


def test_what_is_begun_and_left_is_given_back(client: Client, device_side: Remote, door: FakeDoor, log: Path) -> None:
    """A client that breaks off in the midst of agreeing, again and again."""
    server = psutil.Process(server_of(device_side))
    client.dial_and_resume(rdma=True)
    assert client.works()
    before = server.num_fds()
    for number in range(12):
        stall(client, STAGES[number % 4], door).close()
    client.dial_and_resume(rdma=True)
    assert client.works()
    wait_until(lambda: server.num_fds() <= before, "descriptors are closed")


def test_terms_of_a_third_machine_are_refused(device_side: Remote, door_library: Path) -> None:
    """A server writes to who it speaks to over TCP, and to nobody else, though he would be there."""
    client = Client(device_side.supervisor.address, device_side.secret, FakeDoor(door_library, gid_of("::1")))
    with contextlib.closing(client), contextlib.closing(client.door):
        with pytest.raises(Broken, match="the server can't"):
            client.begin()
        client.open_context()
        assert client.works()
