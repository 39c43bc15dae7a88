"""What supervisors and servers count of their sessions."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.linux.shared_memory import KernelSharedMemory
from farbus.remoting import session as wire
from farbus.remoting import status
from farbus.remoting.spec import ENTRIES, OPERATIONS, operation_name
from farbus.remoting.status import StatusMemory
from tests.remoting.harness import SANITIZER, Remote, hello, remote_session
from tests.remoting.rings import DEVICE_BYTES, FRAME, exactly, target_of
from tests.remoting.test_failures import wait_until
from tests.remoting.test_hostile import CONTEXT


def count(memory: StatusMemory, slot: int, *counters: int) -> None:
    """Write as a server does."""
    at = slot * status.SLOT_BYTES + status.COUNTERS_OFFSET
    os.pwrite(memory.descriptor, status.COUNTERS.pack(*counters), at)


def test_a_session_that_ends_is_added_to_those_that_ended() -> None:
    memory = StatusMemory(2)
    slot = memory.take()
    assert slot == 1
    memory.fill(slot, server_pid=10, client=(77, b"train\0\0"))
    count(memory, slot, 5, 100, 200, 3_000_000)
    (session,) = memory.status().sessions
    assert (session.server_pid, session.client_pid, session.program) == (10, 77, "train")
    assert (session.calls, session.received_bytes, session.sent_bytes, session.busy_ns) == (5, 100, 200, 3_000_000)
    memory.end(10)
    memory.end(10)
    assert memory.status().sessions == ()
    assert memory.status().ended == status.Ended(
        sessions=1, calls=5, received_bytes=100, sent_bytes=200, busy_ns=3_000_000
    )
    memory.close()


def test_a_wait_that_goes_on_counts_until_now() -> None:
    memory = StatusMemory(1)
    memory.fill(1, server_pid=10, client=(77, b"train"))
    count(memory, 1, 5, 100, 200, 3_000_000)
    began = time.monotonic_ns()
    at = status.SLOT_BYTES + status.WAITING_OFFSET
    os.pwrite(memory.descriptor, status.WAITING.pack(began), at)
    data = os.pread(memory.descriptor, status.LIMIT_BYTES, 0)
    assert [status.parse(data, now_ns=now).sessions[0].busy_ns for now in (0, began, began + 7)] == [
        3_000_000, 3_000_000, 3_000_007,
    ]  # fmt: skip
    before = memory.status().sessions[0].busy_ns
    memory.end(10)
    assert 3_000_000 <= before <= memory.status().ended.busy_ns <= 3_000_000 + time.monotonic_ns() - began
    memory.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_threads_that_wait_for_the_device_are_one_that_is_busy(
    build: Callable[[str], Path], remote: Remote, transport: str
) -> None:
    """While they wait, and no more than the time that passes."""
    began = time.monotonic_ns()
    program = remote.start(build("remoting/wait_forever"), "8", FARBUS_TRANSPORT=transport)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    shared = KernelSharedMemory()

    def told() -> status.Status:
        return status.read(lambda: shared.read(os.getpid(), status.MEMORY_NAME, limit_bytes=status.LIMIT_BYTES))

    def busy_ns() -> int:
        return told().sessions[0].busy_ns

    def operation() -> str:
        return operation_name(told().sessions[0].operation)

    # The threads' calls come one after the other: until the last has come, each is the last.
    wait_until(lambda: operation() == "context_synchronize", "it has taken what waits")

    wait_until(lambda: busy_ns() > 200_000_000, "it is busy while it waits")
    assert busy_ns() <= time.monotonic_ns() - began
    wait_until(lambda: told().sessions[0].working_ns > 200_000_000, "it works without a pause")
    program.kill()
    program.communicate()
    wait_until(lambda: told().ended.sessions == 1, "its server has ended")
    assert 200_000_000 < told().ended.busy_ns <= time.monotonic_ns() - began


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_driver_that_hangs_shows_in_which_call(
    driver_before: Callable[[str], Path], tmp_path: Path, build: Callable[[str], Path], transport: str
) -> None:
    """Also in one that does not wait for the device: nobody reads meanwhile."""
    with remote_session(libcuda=driver_before("hanging_driver"), folder=tmp_path, environment={}) as remote:
        program = remote.start(build("remoting/wait_forever"), FARBUS_TRANSPORT=transport)

        def session() -> status.Session | None:
            return next(iter(remote.supervisor.sessions.sessions), None)

        def hangs() -> bool:
            told = session()
            return (
                told is not None and operation_name(told.operation) == "memory_alloc" and told.working_ns > 200_000_000
            )

        wait_until(lambda: session() is not None, "its server is there")
        wait_until(hangs, "its server hangs")
        program.kill()
        program.communicate()


def test_a_call_of_the_driver_has_its_name() -> None:
    entry = next(each for each in ENTRIES if each.symbol == "cuArrayCreate_v2")
    call = next(each.opcode for each in OPERATIONS if each.name == "call")
    assert operation_name((entry.number + 1) << 16 | call) == "cuArrayCreate_v2"
    assert operation_name(0xFFFE_0000 | call) == "function 65533"
    assert operation_name(0xFFFF) == "operation 0xffff"


def test_slots_are_given_out_again_and_run_out() -> None:
    memory = StatusMemory(1)
    slot = memory.take()
    assert slot == 1
    assert memory.take() is None
    memory.fill(slot, server_pid=9, client=(1, b""))
    memory.withdraw(9)
    assert memory.status().ended.sessions == 0
    assert memory.take() == 1
    memory.fill(1, server_pid=10, client=(1, b""))
    memory.end(10)
    assert memory.status().ended.sessions == 1
    assert memory.take() == 1
    memory.close()


def test_the_memory_can_not_be_made_smaller_by_a_server() -> None:
    memory = StatusMemory(1)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, 0)
    memory.close()


def test_a_name_that_would_move_the_cursor_is_only_text() -> None:
    memory = StatusMemory(1)
    memory.fill(memory.take() or 0, server_pid=10, client=(1, b"a\x1b[2J\xff\nb"))
    assert memory.status().sessions[0].program == "a?[2J\ufffd?b"
    memory.close()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "too few"),
        (bytes(status.SLOT_BYTES), "version 0 is not known"),
        (status.HEAD.pack(status.MAGIC, 1, 1, 0, 0, 0, 0, 0).ljust(status.SLOT_BYTES, b"\0"), "just changing"),
    ],
)
def test_a_memory_that_is_none_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        status.parse(data)


def test_a_reading_in_the_middle_of_a_change_is_made_again() -> None:
    memory = StatusMemory(1)
    whole = os.pread(memory.descriptor, status.LIMIT_BYTES, 0)
    changing = whole[:8] + struct.pack("=Q", 1) + whole[16:]
    readings = [changing, whole]
    assert status.read(lambda: readings.pop(0)).sessions == ()
    assert not readings
    memory.close()


def test_a_program_is_counted_while_it_runs_and_afterwards(
    build: Callable[[str], Path], remote: Remote, tmp_path: Path
) -> None:
    shared = KernelSharedMemory()

    def look() -> status.Status:
        return status.read(lambda: shared.read(os.getpid(), status.MEMORY_NAME, limit_bytes=status.LIMIT_BYTES))

    end = tmp_path / "end"
    program = remote.start(build("cluster/stay"), end)
    assert program.stdout is not None
    assert program.stdout.readline() == "using 1 device(s)\n"
    (session,) = look().sessions
    assert session.client_pid == program.pid
    assert session.program == "stay"
    assert session.server_pid in remote.supervisor.pids
    assert session.calls > 0
    # Every frame has a header of 24 bytes.
    assert session.received_bytes >= 24 * session.calls
    assert session.sent_bytes > 0
    assert session.busy_ns > 0
    end.touch()
    program.communicate()
    assert program.returncode == 0
    # Whether its server has been missed yet or not.
    told = look()
    assert told.ended.calls + sum(one.calls for one in told.sessions) > session.calls


def test_what_was_sent_last_is_counted(lease: Callable[..., Remote], shared_library: Callable[..., Path]) -> None:
    """Also where who has sent it does not come to do anything before the session is over."""
    opcode = {op.name: op.opcode for op in OPERATIONS}
    preloaded = f"{SANITIZER}:{shared_library('leaves_late')}".lstrip(":")
    remote = lease(LD_PRELOAD=preloaded, SENDS_LAST=str(opcode["context_synchronize"]))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(target_of(remote))
        connection.sendall(hello(remote.secret))
        reply = wire.HELLO_REPLY.unpack(exactly(connection, wire.HELLO_REPLY.size))
        exactly(connection, reply[9] * DEVICE_BYTES)
        received = 0
        for name, fixed in (("primary_retain", struct.pack("<IIQ", 0, 0, CONTEXT)), ("context_synchronize", b"")):
            connection.sendall(FRAME.pack(len(fixed), opcode[name], 1, 1, CONTEXT) + fixed)
            length, answered, _, _, result = FRAME.unpack(exactly(connection, FRAME.size))
            assert (answered, result) == (opcode[name] | 0x8000, 0)
            received += FRAME.size + len(exactly(connection, length))
    wait_until(lambda: remote.supervisor.sessions.ended.sessions == 1, "the session has ended")
    assert remote.supervisor.sessions.ended.sent_bytes == received
