"""Pinned memory that program and server share where both are on one node, and what happens where they don't."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.remoting import assignment
from farbus.remoting import session as wire
from tests.remoting.harness import ROOT, Remote, hello
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import PATIENCE_S, alive, wait_until
from tests.remoting.test_hostile import CONTEXT, DEVICE_BYTES, HEADER, OPCODE, SECRET, Session
from tests.remoting.test_managed import run_on_the_software_gpu

Build = Callable[[str], Path]

#: What a program does, as tests/programs/remoting/pinned_steps.cu says it, and whether it then has shared memory.
STEPS = {"begun": 0, "allocated": 1, "copying": 1, "freed": 0, "forked": 1, "stuck": 1}


def shared(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("farbus-remoting-pinned")


def descriptors(pid: int) -> int:
    return sum("farbus-remoting-pinned" in os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
@pytest.mark.parametrize("name", ["pinned_shared", "pinned_after_reset"])
def test_program(remote: Remote, build: Build, name: str, transport: str) -> None:
    done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
def test_what_the_processor_does_comes_behind_the_legacy_stream(remote: Remote, tmp_path: Path, transport: str) -> None:
    done = remote.run(build_calls("listing/host_behind_legacy", tmp_path), FARBUS_TRANSPORT=transport)
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


def test_what_the_processor_does_comes_behind_the_legacy_stream_directly(tmp_path: Path) -> None:
    done = run_on_the_software_gpu(build_calls("listing/host_behind_legacy", tmp_path), tmp_path)
    assert (done.returncode, done.stdout + done.stderr) == (0, "ok\n")


class Steps:
    """A program that goes a step further whenever it is told to."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.program = program

    def go_to(self, step: str) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        for name in STEPS:
            if name != "begun":
                self.program.stdin.write("\n")
                self.program.stdin.flush()
            assert self.program.stdout.readline() == f"{name}\n"
            if name == step:
                return


@contextlib.contextmanager
def stepping(remote: Remote, build: Build, *arguments: str, **changes: str) -> Iterator[Steps]:
    program = remote.start(build("remoting/pinned_steps"), *arguments, **changes)
    try:
        yield Steps(program)
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize("step", STEPS)
def test_both_have_it_while_it_is_allocated(remote: Remote, build: Build, step: str) -> None:
    with stepping(remote, build, FARBUS_TRANSPORT="shm") as steps:
        steps.go_to(step)
        (server,) = remote.supervisor.pids
        assert shared(steps.program.pid) == shared(server) == STEPS[step]
        assert descriptors(steps.program.pid) == descriptors(server) == 0


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_program_leaves_nothing(remote: Remote, build: Build, step: str) -> None:
    with stepping(remote, build, FARBUS_TRANSPORT="shm") as steps:
        steps.go_to(step)
        (server,) = remote.supervisor.pids
        steps.program.kill()
        steps.program.communicate()
        wait_until(lambda: not alive(server), "the server has ended")
    assert not [name for name in os.listdir("/dev/shm") if "pinned" in name]


def test_a_killed_server_leaves_the_program_its_memory(remote: Remote, build: Build) -> None:
    with stepping(remote, build, FARBUS_TRANSPORT="shm") as steps:
        steps.go_to("allocated")
        (server,) = remote.supervisor.pids
        os.kill(server, 9)
        out, err = steps.program.communicate("\n\n\n", timeout=PATIENCE_S)
        assert steps.program.returncode == 1, out + err
        assert "cudaErrorDevicesUnavailable" in out


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_elsewhere_it_is_the_program_s_alone(remote: Remote, build: Build, transport: str) -> None:
    with stepping(remote, build, FARBUS_TRANSPORT=transport) as steps:
        steps.go_to("allocated")
        (server,) = remote.supervisor.pids
        assert shared(steps.program.pid) == shared(server) == 0


def test_small_memory_is_shared_too(remote: Remote, build: Build) -> None:
    with stepping(remote, build, "1", FARBUS_TRANSPORT="shm") as steps:
        steps.go_to("allocated")
        (server,) = remote.supervisor.pids
        assert shared(steps.program.pid) == shared(server) == 1


def test_beyond_the_limit_of_files_it_is_the_program_s_alone(remote: Remote, build: Build) -> None:
    """The ring fits 4 MiB, the 8 MiB of pinned memory do not; the kernel would end the program with SIGXFSZ."""
    command = f"ulimit -f 4096; exec {build('remoting/pinned_steps')} 8192"
    program = remote.start("bash", "-c", command, FARBUS_TRANSPORT="shm")
    try:
        Steps(program).go_to("copying")
        assert shared(program.pid) == 0
    finally:
        program.kill()
        program.communicate()


# ---- hostile clients ----

RING_BYTES = 512 << 10
#: Native ones, which are written at once: of "<Q" the server, which looks at any time, could see a part.
WORD = struct.Struct("@Q")
FLAG = struct.Struct("@I")
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
BYTES = 1 << 20
PINNED = 9 << 43 | 2 << 4  # a handle of pinned memory: kind 9, the slot behind the context's
INVALID_VALUE, OUT_OF_MEMORY, ALREADY_MAPPED, INVALID_HANDLE = 1, 2, 208, 400


def memory(size: int = BYTES, *, seals: int = SEALS, filled: bool = True, name: str = "farbus-remoting-pinned") -> int:
    made = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if filled:
        os.posix_fallocate(made, 0, size)
    else:
        os.ftruncate(made, size)
    if seals:
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


class Shared(Session):
    """A session over shared memory (native/transport/rings/shm.c), one end of which is written here."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, ring: mmap.mmap) -> None:
        super().__init__(process, connection)
        self.ring = ring
        self.taken = 0

    def send(self, name: str | int, fixed: bytes = b"", tail: bytes = b"", *, context: int = 0, lane: int = 1) -> None:
        self.sequence += 1
        opcode = OPCODE[name] if isinstance(name, str) else name
        frame = HEADER.pack(len(fixed) + len(tail), opcode, lane, self.sequence, context) + fixed + tail
        (written,) = WORD.unpack_from(self.ring, 0)
        for at, byte in enumerate(frame, written):
            self.ring[4096 + at % RING_BYTES] = byte
        WORD.pack_into(self.ring, 0, written + len(frame))
        # A server that looks at the ring just then may have ended the session already.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(b"\0")

    def exactly(self, count: int) -> bytes:
        end = time.monotonic() + PATIENCE_S
        while WORD.unpack_from(self.ring, 256)[0] - self.taken < count:
            assert time.monotonic() < end, "the server does not answer"
            FLAG.pack_into(self.ring, 256 + 128, 1)
            with contextlib.suppress(TimeoutError):
                assert self.connection.recv(64), "the server has closed the connection"
        start = 4096 + RING_BYTES
        data = bytes(self.ring[start + at % RING_BYTES] for at in range(self.taken, self.taken + count))
        self.taken += count
        WORD.pack_into(self.ring, 256 + 64, self.taken)
        return data

    def offer(self, *descriptors: int, size: int = BYTES, pinned: int = PINNED) -> int:
        """Pass descriptors, offer memory, and return what asking to pin it gives."""
        if descriptors:
            socket.send_fds(self.connection, [b"\0"], descriptors)
        self.send("pinned_offer", struct.pack("<QQ", pinned, size))
        return self.call("pinned_register", struct.pack("<Q", pinned), context=CONTEXT)

    def offer_alone(self, descriptor: int, pinned: int = PINNED) -> None:
        """Pass memory and offer it."""
        socket.send_fds(self.connection, [b"\0"], [descriptor])
        self.send("pinned_offer", struct.pack("<QQ", pinned, BYTES))

    def map(self, address: int, pinned: int = PINNED) -> int:
        return self.call("pinned_map", struct.pack("<QQ", pinned, address), context=CONTEXT)

    def copy(
        self,
        *,
        pinned: int = PINNED,
        offset: int = 0,
        pitch: int = 64,
        width: int = 64,
        height: int = 1,
        device: int = 0,
        to_device: bool = True,
        waited: bool = False,
    ) -> None:
        device = device or self.device()
        fixed = struct.pack("<7QII", pinned, offset, pitch, device, pitch, width, height, to_device, waited)
        fixed += WORD.pack(1)
        self.send("copy_pinned", fixed, context=CONTEXT)

    def device(self) -> int:
        self.send("memory_alloc", WORD.pack(BYTES), context=CONTEXT)
        _, result, payload = self.receive()
        assert result == 0
        return int(WORD.unpack(payload)[0])


@pytest.fixture
def shared_session(libcuda: Path) -> Iterator[Shared]:
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    ours, theirs = socket.socketpair()
    secret_read, secret_write = os.pipe()
    os.write(secret_write, SECRET)
    os.close(secret_write)
    channel, its_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "farbus.remoting.server", f"--libcuda={libcuda}"),
            f"--channel-fd={its_channel.fileno()}",
        ],
        pass_fds=(its_channel.fileno(),),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    with theirs, channel, its_channel:
        socket.send_fds(channel, [assignment.ASSIGNMENT.pack(0, assignment.NO_SLOT, 0)], [theirs.fileno(), secret_read])
    os.close(secret_read)
    ours.settimeout(PATIENCE_S)
    made = memory(4096 + 2 * RING_BYTES, name="ring")
    socket.send_fds(ours, [hello(SECRET, capabilities=wire.CAPABILITY_SHARED_MEMORY)], [made])
    reply = wire.HELLO_REPLY.unpack(ours.recv(wire.HELLO_REPLY.size, socket.MSG_WAITALL))
    assert reply[3] == wire.HELLO_OK
    ours.recv(reply[9] * DEVICE_BYTES, socket.MSG_WAITALL)
    ours.settimeout(0.05)
    session = Shared(process, ours, mmap.mmap(made, 0))
    os.close(made)
    assert session.call("primary_retain", struct.pack("<IIQ", 0, 0, CONTEXT)) == 0
    yield session
    ours.close()
    process.kill()
    process.wait()


def test_memory_that_fits_is_shared_and_let_go_of(shared_session: Shared) -> None:
    assert shared_session.offer(memory()) == 0
    assert shared(shared_session.process.pid) == 1
    assert shared_session.call("pinned_release", WORD.pack(PINNED)) == 0
    assert shared(shared_session.process.pid) == descriptors(shared_session.process.pid) == 0


def test_freed_twice_is_an_error(shared_session: Shared) -> None:
    assert shared_session.offer(memory()) == 0
    assert shared_session.call("pinned_release", WORD.pack(PINNED)) == 0
    assert shared_session.call("pinned_release", WORD.pack(PINNED)) == INVALID_HANDLE
    assert shared_session.call("pinned_register", WORD.pack(PINNED), context=CONTEXT) == INVALID_HANDLE


def a_file() -> int:
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, BYTES)
        return os.dup(file.fileno())


@pytest.mark.parametrize(
    "make",
    [
        lambda: memory(seals=0),
        lambda: memory(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL),
        lambda: memory(seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
        lambda: memory(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
        lambda: memory(seals=SEALS | fcntl.F_SEAL_WRITE),
        lambda: memory(filled=False),
        lambda: memory(BYTES - 4096),
        lambda: memory(2 * BYTES),
        a_file,
        lambda: os.open("/dev/zero", os.O_RDWR),
        lambda: os.open("/proc/self/mem", os.O_RDWR),
        lambda: socket.socket(socket.AF_UNIX).detach(),
        lambda: os.open("/dev/shm", os.O_RDONLY),
    ],
    ids=[
        *("unsealed", "grows", "shrinks", "unfinished", "read-only", "holes", "short", "long"),
        *("file", "zero", "mem", "socket", "folder"),
    ],
)
def test_what_may_not_be_shared_is_refused(shared_session: Shared, make: Callable[[], int]) -> None:
    before = descriptors(shared_session.process.pid)
    assert shared_session.offer(make()) == INVALID_HANDLE
    assert shared(shared_session.process.pid) == descriptors(shared_session.process.pid) == before == 0
    assert shared_session.offer(memory()) == 0


@pytest.mark.parametrize("size", [0, 1, BYTES + 1, 1 << 46, (1 << 64) - 4096])
def test_sizes_that_are_not_the_memory_s_are_refused(shared_session: Shared, size: int) -> None:
    assert shared_session.offer(memory(), size=size) == INVALID_HANDLE
    assert shared_session.offer(memory()) == 0


def test_an_offer_without_a_descriptor_is_refused(shared_session: Shared) -> None:
    assert shared_session.offer() == INVALID_HANDLE


def test_descriptors_that_nobody_offers_are_few(shared_session: Shared) -> None:
    for _ in range(50):
        socket.send_fds(shared_session.connection, [b"\0"], [memory()])
        socket.send_fds(shared_session.connection, [b"\0"], [memory(), memory(), memory()])
        # Read by now, as the answer has come.
        shared_session.send("pinned_release", WORD.pack(PINNED))
        assert shared_session.receive()[1] == INVALID_HANDLE
    # As many as threads of one program may offer at a time.
    assert descriptors(shared_session.process.pid) <= 256


def test_a_name_that_is_taken_ends_the_session(shared_session: Shared) -> None:
    assert shared_session.offer(memory()) == 0
    socket.send_fds(shared_session.connection, [b"\0"], [memory()])
    shared_session.send("pinned_offer", struct.pack("<QQ", PINNED, BYTES))
    shared_session.process.wait(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "plane",
    [
        {"offset": BYTES},
        {"offset": BYTES - 63},
        {"offset": BYTES - 63, "waited": True},
        {"offset": (1 << 64) - 1},
        {"offset": 1 << 63, "width": 1},
        {"width": BYTES + 1},
        {"pitch": 1 << 46, "height": 1 << 20},
        {"pitch": (1 << 47) - 1, "width": 1, "height": 1 << 46},
        {"pitch": BYTES, "height": 2},
        {"width": 0},
        {"pitch": 1, "height": 2},
    ],
    ids=str,
)
def test_a_copy_beyond_the_memory_ends_the_session(shared_session: Shared, plane: dict[str, int]) -> None:
    assert shared_session.offer(memory()) == 0
    shared_session.copy(**plane)
    shared_session.process.wait(timeout=PATIENCE_S)


def test_a_copy_of_memory_that_is_not_pinned_is_refused(shared_session: Shared) -> None:
    socket.send_fds(shared_session.connection, [b"\0"], [memory()])
    shared_session.send("pinned_offer", struct.pack("<QQ", PINNED, BYTES))
    shared_session.copy()
    opcode, _, payload = shared_session.receive()
    assert opcode == 0x0103, "a failure"
    assert struct.unpack_from("<QQi", payload)[2] == INVALID_HANDLE


@pytest.mark.parametrize("waited", [False, True])
def test_a_copy_moves_its_bytes(shared_session: Shared, waited: bool) -> None:
    made = memory()
    with mmap.mmap(made, 0) as pages:
        assert shared_session.offer(made) == 0
        device = shared_session.device()
        pages[:64] = bytes(range(64))
        shared_session.copy(device=device, waited=waited)
        shared_session.copy(device=device, offset=BYTES - 64, to_device=False, waited=waited)
        assert shared_session.call("stream_synchronize", WORD.pack(1), context=CONTEXT) == 0
        assert pages[BYTES - 64 :] == bytes(range(64))


def mapped_at(pid: int) -> list[int]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [int(line.split("-")[0], 16) for line in lines if "farbus-remoting-pinned" in line]


#: Where nobody has anything: below the libraries of any process, above its program.
FREE = 0x600000000000


def test_memory_is_mapped_where_the_client_has_it(shared_session: Shared) -> None:
    assert shared_session.offer_alone(memory()) is None
    assert shared_session.map(FREE) == 0
    assert mapped_at(shared_session.process.pid) == [FREE]
    assert shared_session.map(FREE) == INVALID_HANDLE
    assert shared_session.call("pinned_register", WORD.pack(PINNED), context=CONTEXT) == INVALID_HANDLE
    assert shared_session.call("pinned_release", WORD.pack(PINNED)) == 0
    assert mapped_at(shared_session.process.pid) == []


def test_nothing_of_the_server_s_makes_way(shared_session: Shared) -> None:
    shared_session.offer_alone(memory())
    assert shared_session.call("pinned_release", WORD.pack(PINNED + (1 << 4))) == INVALID_HANDLE, "the offer is read"
    lines = Path(f"/proc/{shared_session.process.pid}/maps").read_text().splitlines()
    others = [line for line in lines if "vsyscall" not in line and "farbus-remoting-pinned" not in line]
    for line in others:
        assert shared_session.map(int(line.split("-")[0], 16)) == ALREADY_MAPPED, line
    (own,) = mapped_at(shared_session.process.pid)
    assert shared_session.map(own) == 0, "where it is, it can be"


def test_parts_of_what_is_there_do_not_make_way_either(shared_session: Shared) -> None:
    other = PINNED + (1 << 4)
    shared_session.offer_alone(memory())
    shared_session.offer_alone(memory(), pinned=other)
    assert shared_session.map(FREE) == 0
    for address in (FREE - BYTES + 4096, FREE, FREE + 4096, FREE + BYTES - 4096):
        assert shared_session.map(address, pinned=other) == ALREADY_MAPPED
    assert shared_session.map(FREE + BYTES, pinned=other) == 0
    assert sorted(mapped_at(shared_session.process.pid)) == [FREE, FREE + BYTES]


@pytest.mark.parametrize("address", [FREE + 1, FREE + 512, 0, 4096, (1 << 32) - 4096])
def test_an_address_that_no_client_has_ends_the_session(shared_session: Shared, address: int) -> None:
    shared_session.offer_alone(memory())
    shared_session.send("pinned_map", struct.pack("<QQ", PINNED, address), context=CONTEXT)
    shared_session.process.wait(timeout=PATIENCE_S)


@pytest.mark.parametrize("address", [(1 << 64) - 4096, 1 << 63, 1 << 47, (1 << 47) - 4096])
def test_addresses_that_no_process_has_are_refused(shared_session: Shared, address: int) -> None:
    shared_session.offer_alone(memory())
    assert shared_session.map(address) in (ALREADY_MAPPED, OUT_OF_MEMORY)
    assert shared_session.map(FREE) == 0


def test_memory_that_nobody_has_offered_is_not_mapped(shared_session: Shared) -> None:
    assert shared_session.map(FREE) == INVALID_HANDLE
    assert mapped_at(shared_session.process.pid) == []


def test_an_offer_whose_descriptor_found_no_room_has_none(shared_session: Shared) -> None:
    """Else it would get that of the next, and two pieces of the program's would be one here."""
    server, other = shared_session.process.pid, PINNED + (1 << 4)
    limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
    used = {int(entry.name) for entry in Path(f"/proc/{server}/fd").iterdir()}
    full = min(set(range(len(used) + 1)) - used)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (full, limits[1]))
    socket.send_fds(shared_session.connection, [b"\0"], [memory()])
    unread = bytearray(4)
    wait_until(
        lambda: fcntl.ioctl(shared_session.connection, termios.TIOCOUTQ, unread) == 0 and not any(unread),
        "the server has read it",
    )
    resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
    socket.send_fds(shared_session.connection, [b"\0"], [memory()])
    for pinned in (PINNED, other):
        shared_session.send("pinned_offer", struct.pack("<QQ", pinned, BYTES))
    assert shared_session.map(FREE) == INVALID_HANDLE
    assert shared_session.map(FREE, pinned=other) == 0


def in_memory(size: int = 4 * BYTES, *, filled: bool = True) -> int:
    """A description of its own, as the client passes it: where it is read and written is the server's affair."""
    made = os.memfd_create("file", os.MFD_CLOEXEC)
    os.ftruncate(made, size)
    if filled:
        os.pwrite(made, bytes([1]) * size, 0)
    return made


@pytest.mark.parametrize(
    ("make", "offset", "size", "result"),
    [
        (in_memory, 0, BYTES, 0),
        (in_memory, 3 * BYTES, BYTES, 0),
        (in_memory, 3 * BYTES + 4096, BYTES, INVALID_HANDLE),
        (in_memory, (1 << 64) - BYTES, BYTES, INVALID_HANDLE),
        (in_memory, (1 << 63) - 4096, 4096, INVALID_HANDLE),
        (in_memory, 1, 4096, INVALID_HANDLE),
        (in_memory, 0, 4095, INVALID_HANDLE),
        (in_memory, 0, 0, INVALID_HANDLE),
        (in_memory, 0, 1 << 46, INVALID_HANDLE),
        (lambda: in_memory(filled=False), 0, BYTES, INVALID_HANDLE),
        (a_file, 0, BYTES, INVALID_HANDLE),
        (lambda: os.open("/dev/zero", os.O_RDWR), 0, BYTES, INVALID_HANDLE),
        (lambda: os.open("/proc/self/mem", os.O_RDWR), 0, BYTES, INVALID_HANDLE),
        (lambda: os.open("/dev/shm", os.O_RDONLY), 0, BYTES, INVALID_HANDLE),
        (lambda: os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE), 0, BYTES, INVALID_HANDLE),
        (lambda: socket.socket(socket.AF_UNIX).detach(), 0, BYTES, INVALID_HANDLE),
    ],
    ids=[
        *("whole", "end", "behind", "wraps", "far", "unaligned", "odd", "empty", "huge", "holes"),
        *("file", "zero", "mem", "folder", "short", "socket"),
    ],
)
def test_a_part_of_a_file_in_memory_alone_is_shared(
    shared_session: Shared, make: Callable[[], int], offset: int, size: int, result: int
) -> None:
    socket.send_fds(shared_session.connection, [b"\0"], [make()])
    shared_session.send("pinned_offer_file", struct.pack("<QQQ", PINNED, offset, size))
    assert shared_session.map(FREE) == result
    maps = Path(f"/proc/{shared_session.process.pid}/maps").read_text()
    assert (f"{FREE:x}-" in maps) == (result == 0)


def test_a_file_for_reading_alone_is_not_shared(shared_session: Shared) -> None:
    made = in_memory()
    socket.send_fds(shared_session.connection, [b"\0"], [os.open(f"/proc/self/fd/{made}", os.O_RDONLY)])
    shared_session.send("pinned_offer_file", struct.pack("<QQQ", PINNED, 0, BYTES))
    assert shared_session.map(FREE) == INVALID_HANDLE


def test_who_cuts_off_a_file_in_memory_ends_its_own_session(shared_session: Shared) -> None:
    made = in_memory()
    socket.send_fds(shared_session.connection, [b"\0"], [os.dup(made)])
    shared_session.send("pinned_offer_file", struct.pack("<QQQ", PINNED, 0, BYTES))
    assert shared_session.map(FREE) == 0
    os.ftruncate(made, 0)
    shared_session.copy()
    shared_session.process.wait(timeout=PATIENCE_S)


def test_released_with_copies_in_flight(shared_session: Shared) -> None:
    assert shared_session.offer(memory()) == 0
    for _ in range(20):
        shared_session.copy(width=BYTES, pitch=BYTES)
    assert shared_session.call("pinned_release", WORD.pack(PINNED)) == 0
    assert shared(shared_session.process.pid) == 0


def test_released_with_its_context(shared_session: Shared) -> None:
    assert shared_session.offer(memory()) == 0
    shared_session.copy(width=BYTES, pitch=BYTES)
    assert shared_session.call("primary_reset", struct.pack("<I4x", 0)) == 0
    assert shared(shared_session.process.pid) == 0
    assert shared_session.call("pinned_release", WORD.pack(PINNED)) == INVALID_HANDLE
