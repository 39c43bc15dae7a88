"""The server takes every byte as hostile: it ends the session, and only that."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farbus.remoting import assignment
from farbus.remoting import session as wire
from farbus.remoting.spec import ENTRIES, EVENTS, OPERATIONS
from tests.remoting.harness import ROOT, hello, server_environment

SECRET = bytes(range(32))
HEADER = struct.Struct("<IHHQQ")
DEVICE_BYTES = 1392
OPCODE = {op.name: op.opcode for op in OPERATIONS}
TEXT = next(opcode for opcode, name, *_ in EVENTS if name == "text")
CONTEXT = 1 << 43 | 1 << 4  # a context's handle: kind 1, first slot

PATIENCE_S = 20.0


@dataclass
class Session:
    process: subprocess.Popen[bytes]
    connection: socket.socket
    sequence: int = 0

    def send(self, name: str | int, fixed: bytes = b"", tail: bytes = b"", *, context: int = 0, lane: int = 1) -> None:
        self.sequence += 1
        opcode = OPCODE[name] if isinstance(name, str) else name
        header = HEADER.pack(len(fixed) + len(tail), opcode, lane, self.sequence, context)
        self.connection.sendall(header + fixed + tail)

    def receive(self) -> tuple[int, int, bytes]:
        """The next frame, but for what a software GPU says: opcode, result, payload."""
        while True:
            length, opcode, _, _, result = HEADER.unpack(self.exactly(HEADER.size))
            payload = self.exactly(length)
            if opcode != TEXT:
                return opcode, result, payload

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.connection.recv(count - len(data))
            assert more, "the server has closed the connection"
            data += more
        return data

    def call(self, name: str, fixed: bytes = b"", *, context: int = 0) -> int:
        self.send(name, fixed, context=context)
        opcode, result, _ = self.receive()
        assert opcode == OPCODE[name] | 0x8000
        return result

    def ended(self) -> int:
        """Wait until the server has ended the session, and return its exit status."""
        try:
            while self.connection.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return self.process.wait(timeout=PATIENCE_S)


@contextlib.contextmanager
def raw_session(libcuda: Path, *, memory_limit: int = 0, **environment: str) -> Iterator[Session]:
    """A server in `environment`, whose driver is `libcuda`, and a session with it that speaks bytes."""
    ours, theirs = socket.socketpair()
    secret_read, secret_write = os.pipe()
    os.write(secret_write, SECRET)
    os.close(secret_write)
    channel, its_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs, channel, its_channel:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "farbus.remoting.server", f"--libcuda={libcuda}"),
                    *(f"--channel-fd={its_channel.fileno()}", f"--memory-limit={memory_limit}"),
                ],
                pass_fds=(its_channel.fileno(),),
                cwd=ROOT,
                env=os.environ | server_environment() | environment,
                stderr=subprocess.DEVNULL,
            )
            data = assignment.ASSIGNMENT.pack(0, assignment.NO_SLOT, 0)
            socket.send_fds(channel, [data], [theirs.fileno(), secret_read])
        os.close(secret_read)
        try:
            ours.settimeout(PATIENCE_S)
            ours.sendall(hello(SECRET))
            session = Session(process, ours)
            reply = wire.HELLO_REPLY.unpack(session.exactly(wire.HELLO_REPLY.size))
            assert reply[3] == wire.HELLO_OK
            session.exactly(reply[9] * DEVICE_BYTES)
            yield session
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def open_session(libcuda: Path) -> Iterator[Callable[[], Session]]:
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(raw_session(libcuda))


def image_request(
    *, library: int = 4 << 43 | 1 << 4, blob: int = 0, size: int = 100, digest: bytes = bytes(32), device: int = 0,
    jit_count: int = 0, info_bytes: int = 0, error_bytes: int = 0,
) -> bytes:  # fmt: skip
    return struct.pack("<QQQ32sIIIII4x", library, blob, size, digest, device, 0, jit_count, info_bytes, error_bytes)


def with_context(session: Session) -> Session:
    assert session.call("primary_retain", struct.pack("<IIQ", 0, 0, CONTEXT)) == 0
    return session


@pytest.mark.parametrize(
    ("what", "header"),
    [
        ("a length beyond all limits", HEADER.pack(0xFFFFFFFF, 0x20, 1, 1, 0)),
        ("an opcode that does not exist", HEADER.pack(0, 0x7FFF, 1, 1, 0)),
        ("an opcode in a gap of the table", HEADER.pack(0, 0x000F, 1, 1, 0)),
        ("a reply", HEADER.pack(0, 0x8020, 1, 1, 0)),
        ("a lane beyond the limit", HEADER.pack(0, 0x20, 0xFFFF, 1, 0)),
        ("a fixed part that is too short", HEADER.pack(4, 0x21, 1, 1, 0) + bytes(4)),
        ("a tail where none may be", HEADER.pack(4096, 0x20, 1, 1, 0) + bytes(4096)),
        ("half a header", HEADER.pack(0, 0x20, 1, 1, 0)[:10]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_malformed_frame_ends_the_session(open_session: Callable[[], Session], what: str, header: bytes) -> None:
    session = open_session()
    session.connection.sendall(header)
    session.connection.shutdown(socket.SHUT_WR)
    assert session.ended() == 0


@pytest.mark.parametrize(
    ("name", "fixed", "tail"),
    [
        ("stream_create", struct.pack("<QIi", 0x1234, 0, 0), b""),  # a name that is no handle
        ("stream_create", struct.pack("<QIi", CONTEXT, 0, 0), b""),  # a handle of another kind
        ("host_done", struct.pack("<Q", 0xDEAD0), b""),  # of a function nobody asked for
        ("pull_data", struct.pack("<QQ", 0xDEAD0, 0), b"x" * 100),
        ("blob_part", struct.pack("<QQQ", 5, 100, 50), b"x" * 10),  # begins in the middle
        ("blob_part", struct.pack("<QQQ", 5, 10, 0), b"x" * 100),  # longer than it says
        ("copy_to_device", struct.pack("<QQ", 0, 1), b""),
        ("copy_to_device_2d", struct.pack("<QQQQQ", 0, 1 << 63, 1 << 62, 4, 1), b"x" * 100),
        ("copy_to_host", struct.pack("<QQQQQ", 0, 1 << 40, 1 << 40, 1 << 40, 1), b""),
        ("fill", struct.pack("<QQQQIIQ", 0, 0, 1, 1, 3, 0, 1), b""),  # elements of three bytes
        ("library_load", struct.pack("<QQQIII", CONTEXT, 1, 1, 0, 1000, 0) + bytes(4), b""),
        ("library_global", struct.pack("<Q", CONTEXT), b"no end"),
        ("image_load", image_request(device=1 << 31), b""),
        ("image_load", image_request(jit_count=1000), b""),
        ("image_load", image_request(info_bytes=1 << 31), b""),
        ("image_load", image_request(size=1 << 63), b""),
    ],
)
def test_impossible_request_ends_the_session_or_is_refused(
    open_session: Callable[[], Session], name: str, fixed: bytes, tail: bytes
) -> None:
    session = with_context(open_session())
    session.send(name, fixed, tail, context=CONTEXT)
    session.connection.shutdown(socket.SHUT_WR)
    assert session.ended() == 0


@pytest.mark.parametrize(
    ("query", "device", "tail", "status"),
    [
        (0, 0, b"", 13),  # no such query: NVML_ERROR_FUNCTION_NOT_FOUND
        (0xFFFFFFFF, 0, b"", 13),
        (4, 0xFFFFFFFF, b"", 2),  # no such device: NVML_ERROR_INVALID_ARGUMENT
        (1, 64, b"", 2),
        (260, 0, b"", 2),  # a structure that is not there
        (260, 0, struct.pack("<I", 0x01FFFFFF), 25),  # and one of another size: NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        (260, 0, struct.pack("<I", 0x01000008) + bytes(4088), 25),
    ],
)
def test_nvml_is_asked_nothing_impossible(
    open_session: Callable[[], Session], query: int, device: int, tail: bytes, status: int
) -> None:
    session = open_session()
    session.send("management", struct.pack("<II3I4x", query, device, 0xFFFFFFFF, 0xFFFFFFFF, 0), tail)
    opcode, result, payload = session.receive()
    assert (opcode, result, len(payload)) == (OPCODE["management"] | 0x8000, 0, 40)
    assert struct.unpack_from("<i", payload)[0] == status


def test_unknown_handles_are_refused(open_session: Callable[[], Session]) -> None:
    session = with_context(open_session())
    for handle in (0, 3, 0x1230, CONTEXT, (1 << 64) - 1, 2 << 43 | 5 << 4):
        assert session.call("stream_synchronize", struct.pack("<Q", handle), context=CONTEXT) == 400
        assert session.call("event_query", struct.pack("<Q", handle), context=CONTEXT) == 400
    assert session.call("memory_info", context=0xBAD0) == 201


def test_a_stream_s_old_name_is_refused(open_session: Callable[[], Session]) -> None:
    session = with_context(open_session())
    first, second = 2 << 43 | 9 << 4, 2 << 43 | 1 << 27 | 9 << 4  # one slot, two generations
    session.send("stream_create", struct.pack("<QIi", first, 0, 0), context=CONTEXT)
    session.send("stream_destroy", struct.pack("<Q", first), context=CONTEXT)
    session.send("stream_create", struct.pack("<QIi", second, 0, 0), context=CONTEXT)
    assert session.call("stream_synchronize", struct.pack("<Q", first), context=CONTEXT) == 400
    assert session.call("stream_synchronize", struct.pack("<Q", second), context=CONTEXT) == 0


def test_only_an_executable_graph_is_launched(open_session: Callable[[], Session]) -> None:
    session = with_context(open_session())
    legacy, stream = 1, 2 << 43 | 9 << 4
    session.send("stream_create", struct.pack("<QIi", stream, 0, 0), context=CONTEXT)
    assert session.call("capture_begin", struct.pack("<QI4x", stream, 2), context=CONTEXT) == 0
    session.send("capture_end", struct.pack("<Q", stream), context=CONTEXT)
    _, result, payload = session.receive()
    (graph,) = struct.unpack("<Q", payload)
    assert result == 0
    for executable, where, status in [
        *((name, legacy, 1) for name in (0, 1, graph, graph + 1, stream, CONTEXT, (1 << 64) - 1)),
        (graph, 0xBAD0, 400),
        (graph, CONTEXT, 400),
    ]:
        fixed = struct.pack("<QQ", executable, where)
        assert session.call("graph_launch_checked", fixed, context=CONTEXT) == status
        session.send("graph_launch", fixed, context=CONTEXT)
        opcode, _, failure = session.receive()
        assert opcode == 0x0103
        assert struct.unpack("<QQiI", failure) == (CONTEXT, session.sequence, status, OPCODE["graph_launch"])
    assert session.call("graph_launch_checked", struct.pack("<QQ", graph, legacy)) == 201
    assert session.call("memory_info", context=CONTEXT) == 0


NUMBER = {entry.symbol: entry.number for entry in ENTRIES}
CONDITIONAL, IF, WHILE, SWITCH = 13, 0, 1, 2


def driver_call(session: Session, symbol: str, arguments: bytes) -> tuple[int, bytes]:
    """Call a function of the driver with arguments as they travel: its result, and what comes back."""
    session.send("call", struct.pack("<II", NUMBER[symbol], 0), arguments, context=CONTEXT)
    opcode, result, payload = session.receive()
    assert opcode == OPCODE["call"] | 0x8000
    return result, payload[8:]


def conditional_node(graph: int, condition: int, kind: int, bodies: int, where: int = 0) -> bytes:
    """Arguments of cuGraphAddNode_v2; pointers that only a client may follow are not to be followed."""
    params = struct.pack("<i12xQiIQQ200x8x", CONDITIONAL, condition, kind, bodies, 0x41414141, where)
    assert len(params) == 256
    return struct.pack("<QBQBBB", 0, 1, graph, 0, 0, 1) + params + struct.pack("<QQ", condition, where)


def test_only_a_graph_s_own_condition_is_chosen_by(open_session: Callable[[], Session]) -> None:
    session = with_context(open_session())
    graphs, conditions = [], []
    for _ in range(2):
        result, payload = driver_call(session, "cuGraphCreate", struct.pack("<IB", 0, 1))
        assert result == 0
        graphs.append(struct.unpack("<Q", payload)[0])
        arguments = struct.pack("<IIBQQ", 1, 1, 1, graphs[-1], 0)
        result, payload = driver_call(session, "cuGraphConditionalHandleCreate", arguments)
        assert result == 0
        conditions.append(struct.unpack("<Q", payload)[0])
    graph, condition = graphs[0], conditions[0]
    for handle, kind, bodies, where, status in [
        *((handle, IF, 1, 0, 1) for handle in (0, 1, condition + 1, conditions[1], graph, CONTEXT, (1 << 64) - 1)),
        *((condition, kind, 1, 0, 1) for kind in (-1, 3, 13, 1 << 30)),
        *((condition, kind, bodies, 0, 1) for kind, bodies in ((IF, 0), (IF, 3), (WHILE, 2), (SWITCH, 0))),
        *((condition, SWITCH, bodies, 0, 2) for bodies in (65537, 1 << 31, (1 << 32) - 1)),
        (condition, IF, 1, 0xBAD0, 201),
        (condition, IF, 1, graph, 201),
    ]:
        assert driver_call(session, "cuGraphAddNode_v2", conditional_node(graph, handle, kind, bodies, where)) == (
            status,
            b"",
        ), (handle, kind, bodies, where)
    for name in (0, condition, CONTEXT, (1 << 64) - 1):
        arguments = struct.pack("<IIBQQ", 1, 1, 1, name, 0)
        assert driver_call(session, "cuGraphConditionalHandleCreate", arguments)[0] == 1
    result, payload = driver_call(session, "cuGraphAddNode_v2", conditional_node(graph, condition, SWITCH, 65536))
    assert result == 0
    (node,) = struct.unpack_from("<Q", payload)
    bodies = struct.unpack("<65536Q", payload[-8 * 65536 :])
    assert len(set(bodies)) == len(bodies)
    # Once the node is gone, so are the names of its bodies.
    count = struct.pack("<BQ", 1, 0)
    assert driver_call(session, "cuGraphGetNodes", count + struct.pack("<QB", bodies[7], 0))[0] == 0
    assert driver_call(session, "cuGraphDestroyNode", struct.pack("<Q", node))[0] == 0
    assert driver_call(session, "cuGraphGetNodes", count + struct.pack("<QB", bodies[7], 0))[0] == 1
    # And with the graph its conditions.
    assert driver_call(session, "cuGraphDestroy", struct.pack("<Q", graphs[1]))[0] == 0
    assert driver_call(session, "cuGraphAddNode_v2", conditional_node(graph, conditions[1], IF, 1))[0] == 1
    assert session.call("memory_info", context=CONTEXT) == 0


@pytest.mark.parametrize("wrong", [-8, -1, 1, 8], ids="{:+}".format)
def test_a_conditional_node_of_another_length_ends_the_session(open_session: Callable[[], Session], wrong: int) -> None:
    session = with_context(open_session())
    whole = conditional_node(0, 0, IF, 1)
    arguments = whole[:wrong] if wrong < 0 else whole + bytes(wrong)
    session.send("call", struct.pack("<II", NUMBER["cuGraphAddNode_v2"], 0), arguments, context=CONTEXT)
    assert session.ended() == 0


GRANULE = 2 << 20


def made(session: Session, symbol: str, arguments: bytes) -> int:
    result, payload = driver_call(session, symbol, arguments)
    assert result == 0
    return int(struct.unpack("<Q", payload)[0])


def memory_of(session: Session, size: int = GRANULE) -> int:
    location = struct.pack("<ii", 1, 0)
    arguments = struct.pack("<QQBBii", size, 0, 1, 1, 1, 0) + location + bytes(16) + location + bytes(4)
    return made(session, "cuMemCreate", arguments)


def team_of(session: Session, devices: int) -> int:
    return made(session, "cuMulticastCreate", struct.pack("<BBI4xQQQ", 1, 1, devices, GRANULE, 0, 0))


def member(team: int, device: int) -> bytes:
    return struct.pack("<Qi", team, device)


def bound(team: int, memory: int, *, offset: int = 0, size: int = GRANULE, flags: int = 0) -> bytes:
    return struct.pack("<QQQQQQ", offset, 0, size, flags, team, memory)


def test_a_multicast_object_takes_what_is_memory(open_session: Callable[[], Session]) -> None:
    session = with_context(open_session())
    memory, old = memory_of(session), team_of(session, 1)
    assert driver_call(session, "cuMemRelease", struct.pack("<Q", old))[0] == 0
    team, pool = team_of(session, 1), 2 << 43 | 9 << 4
    session.send("stream_create", struct.pack("<QIi", pool, 0, 0), context=CONTEXT)
    names = (0, 1, old, memory + 1, pool, CONTEXT, (1 << 64) - 1)
    for name in (*names, memory):
        assert driver_call(session, "cuMulticastAddDevice", member(name, 0))[0] == 1, hex(name)
    for device in (-1, 1, 1 << 30):
        assert driver_call(session, "cuMulticastAddDevice", member(team, device))[0] == 101, device
    assert driver_call(session, "cuMulticastAddDevice", member(team, 0))[0] == 0
    for name in names:
        assert driver_call(session, "cuMulticastBindMem", bound(name, memory))[0] == 1, hex(name)
        assert driver_call(session, "cuMulticastBindMem", bound(team, name))[0] == 1, hex(name)
        unbind = struct.pack("<QQQi", 0, GRANULE, name, 0)
        assert driver_call(session, "cuMulticastUnbind", unbind)[0] == 1, hex(name)
    for wrong in (
        bound(team, team),
        bound(memory, memory),
        bound(team, memory, offset=GRANULE),
        bound(team, memory, offset=(1 << 64) - GRANULE),
        bound(team, memory, size=(1 << 64) - GRANULE),
        bound(team, memory, size=0),
        bound(team, memory, size=1),
        bound(team, memory, flags=1 << 63),
    ):
        assert driver_call(session, "cuMulticastBindMem", wrong)[0] == 1, wrong.hex()
    for address in (0, 8, 1 << 63, (1 << 64) - GRANULE):
        where = struct.pack("<QQQQQ", 0, address, GRANULE, 0, team)
        assert driver_call(session, "cuMulticastBindAddr", where)[0] == 1, hex(address)
    assert driver_call(session, "cuMulticastBindMem", bound(team, memory))[0] == 0
    for absent in (struct.pack("<BB", 1, 0), struct.pack("<BBI4xQQQ", 0, 1, 1, GRANULE, 0, 0)):
        assert driver_call(session, "cuMulticastCreate", absent) == (1, b"")
    assert session.call("memory_info", context=CONTEXT) == 0


@pytest.mark.parametrize("symbol", ["cuMulticastBindMem", "cuMemMap"])
def test_a_session_ends_while_a_multicast_object_waits_for_a_device(libcuda: Path, tmp_path: Path, symbol: str) -> None:
    with raw_session(libcuda, FARBUS_SOFTGPU="count=2", FARBUS_SOFTGPU_NODE=str(tmp_path)) as opened:
        session = with_context(opened)
        memory, team = memory_of(session), team_of(session, 2)
        assert driver_call(session, "cuMulticastAddDevice", member(team, 0))[0] == 0
        reserve = struct.pack("<QQQQB", GRANULE, 0, 0, 0, 1)
        result, payload = driver_call(session, "cuMemAddressReserve", reserve)
        assert result == 0
        (address,) = struct.unpack("<Q", payload)
        mapped = struct.pack("<QQQQQ", address, GRANULE, 0, 0, team)
        arguments = bound(team, memory) if symbol == "cuMulticastBindMem" else mapped
        session.send("call", struct.pack("<II", NUMBER[symbol], 0), arguments, context=CONTEXT, lane=2)
        # Other lanes are served, and hear nothing of it.
        for _ in range(3):
            assert session.call("memory_info", context=CONTEXT) == 0
        session.connection.shutdown(socket.SHUT_WR)
        session.ended()


def test_malformed_image_is_refused(open_session: Callable[[], Session]) -> None:
    session = with_context(open_session())
    image = struct.pack("<IIIIQ", 2, 0, 1, 0, 64) + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 48) + b"\xff" * 48
    session.send("blob_part", struct.pack("<QQQ", 7, len(image), 0), image)
    library = 4 << 43 | 1 << 4
    fixed = struct.pack("<QQQIII", library, 7, len(image), 0, 0, 0) + bytes(4)
    assert session.call("library_load", fixed, context=CONTEXT) == 200
    assert session.call("memory_info", context=CONTEXT) == 0


def test_what_is_not_kept_is_absent_and_not_an_error(open_session: Callable[[], Session]) -> None:
    session = with_context(open_session())
    session.send("image_load", image_request(), context=CONTEXT)
    opcode, result, payload = session.receive()
    assert (opcode, result) == (OPCODE["image_load"] | 0x8000, 0)
    assert struct.unpack_from("<iI", payload) == (0, 1)


@pytest.mark.parametrize("changed", [False, True])
def test_an_image_that_is_not_what_its_digest_says_is_not_loaded(
    open_session: Callable[[], Session], changed: bool
) -> None:
    session = with_context(open_session())
    text = b".version 8.0\n.target sm_80\n.address_size 64\n\0"
    image = struct.pack("<IIIIQ", 4, 0, 1, 0, len(text)) + text + bytes(-len(text) % 8)
    digest = hashlib.sha256(image + b"x" * changed).digest()
    session.send("blob_part", struct.pack("<QQQ", 7, len(image), 0), image)
    request = image_request(library=4 << 43 | 2 << 4, blob=7, size=len(image), digest=digest, error_bytes=99)
    session.send("image_load", request, context=CONTEXT)
    opcode, result, payload = session.receive()
    assert (opcode, result) == (OPCODE["image_load"] | 0x8000, 0)
    assert struct.unpack_from("<i", payload) == (200 if changed else 0,)
    assert (b"it is not what was sent" in payload) == changed


@pytest.mark.parametrize("operation", ["library_load", "image_load", "link_create"])
def test_no_client_says_where_the_driver_writes_its_log(open_session: Callable[[], Session], operation: str) -> None:
    session = with_context(open_session())
    # CU_JIT_ERROR_LOG_BUFFER and its size: nothing of the server's lies at 64.
    options = struct.pack("<QQQQ", 5, 64, 6, 1000)
    text = b"no PTX at all\0"
    image = struct.pack("<IIIIQ", 4, 0, 1, 0, len(text)) + text + bytes(-len(text) % 8)
    session.send("blob_part", struct.pack("<QQQ", 7, len(image), 0), image)
    fixed = {
        "library_load": struct.pack("<QQQIII4x", 4 << 43 | 1 << 4, 7, len(image), 1, 2, 0),
        "image_load": image_request(blob=7, size=len(image), jit_count=2),
        "link_create": struct.pack("<II", 2, 0),
    }[operation]
    session.send(operation, fixed, options, context=CONTEXT)
    _, _, payload = session.receive()
    if operation == "link_create":
        (link,) = struct.unpack("<Q", payload)
        session.send("link_add", struct.pack("<QIIQQ", link, 1, 0, 7, len(image)), b"", context=CONTEXT)
        session.receive()
    assert session.call("memory_info", context=CONTEXT) == 0
