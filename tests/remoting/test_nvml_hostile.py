"""A server that is no friend, or an older one, against the client's NVML: an error, no hang, no harm."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farbus.remoting import session as wire
from farbus.remoting.launcher import Launch
from farbus.remoting.session import Server, write_session
from farbus.remoting.spec.management import OPERATIONS, QUERIES
from tests.remoting.harness import PROGRAM_TIMEOUT_S, SHIM, listening

pynvml = pytest.importorskip("pynvml")

SECRET = bytes(range(32))
OPCODE = OPERATIONS[0].opcode
QUERY = {query.name: query.number for query in QUERIES}

HEADER = struct.Struct("<IHHQQ")
REQUEST = struct.Struct("<II3I4x")
REPLY = struct.Struct("<iI4Q")
DEVICE = struct.Struct("<256s16s16sQ32sII256i32s")
MIB = 1 << 20

#: What a server says to a query of a device: the bytes of its frame, or None to hang up.
Respond = Callable[[int, int, int], bytes | None]


def device(*, name: bytes = b"A GPU", bus: bytes = b"0000:01:00.0", total: int = 64 * MIB) -> bytes:
    """A device of the snapshot that comes with the hello."""
    return DEVICE.pack(name, bytes(range(16)), bytes(16), total, bus, 0, 0, *[0] * 256, bytes(32))


def reply(sequence: int, status: int = 0, values: tuple[int, ...] = (), tail: bytes = b"", **changes: int) -> bytes:
    """A reply's frame; ``changes`` are fields of its header that are not what they should be."""
    body = REPLY.pack(status, 0, *values, *[0] * (4 - len(values))) + tail
    return (
        HEADER.pack(
            changes.get("length", len(body)),
            changes.get("opcode", OPCODE | 0x8000),
            0,
            sequence,
            changes.get("result", 0),
        )
        + body
    )


def honest(query: int, _device: int, sequence: int) -> bytes | None:
    """The least that a server may answer: it supports nothing."""
    return reply(sequence, status=pynvml.NVML_ERROR_NOT_SUPPORTED)


def serve(listener: socket.socket, devices: list[bytes], respond: Respond, operations: bytes) -> None:
    """Take connections until the listener is shut down."""
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            hello = connection.recv(wire.HELLO.size, socket.MSG_WAITALL)
            assert len(hello) == wire.HELLO.size
            connection.sendall(
                wire.HELLO_REPLY.pack(
                    wire.HELLO_MAGIC, wire.PROTOCOL_MAJOR, wire.PROTOCOL_MINOR, wire.HELLO_OK, 1, 0, 0, 0, 13000,
                    len(devices), 0, operations,
                )
                + b"".join(devices)
            )  # fmt: skip
            while head := connection.recv(HEADER.size, socket.MSG_WAITALL):
                length, _, _, sequence, _ = HEADER.unpack(head)
                body = connection.recv(length, socket.MSG_WAITALL)
                query, ordinal, *_ = REQUEST.unpack_from(body)
                answer = respond(query, ordinal, sequence)
                if answer is None:
                    break
                connection.sendall(answer)


OURS = bytearray(64)
OURS[OPCODE // 8] = 1 << OPCODE % 8


@pytest.fixture
def against(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Run a program of pynvml against a made-up server; return what it printed, as JSON."""
    if not (SHIM / "libnvidia-ml.so.1").exists():
        pytest.skip("the client's NVML is not built: run make -C native")
    with contextlib.ExitStack() as stack:

        def run(
            program: str,
            respond: Respond = honest,
            *,
            devices: list[bytes] | None = None,
            operations: bytes = bytes(OURS),
        ) -> Any:
            shown = [device()] if devices is None else devices
            address, port = stack.enter_context(listening(lambda listener: serve(listener, shown, respond, operations)))
            session = tmp_path / "session"
            write_session(session, [Server(address=address, port=port, secret=SECRET, tls=False)])
            done = subprocess.run(
                [sys.executable, "-c", START + program],
                env=Launch(session=session, shim=SHIM).environment(os.environ),
                capture_output=True,
                text=True,
                timeout=PROGRAM_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return json.loads(done.stdout)

        yield run


START = """
import json
import pynvml as n
def ask(call, *arguments):
    try:
        return call(*arguments)
    except n.NVMLError as error:
        return f"error {error.value}"
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0) if n.nvmlDeviceGetCount() else None
"""

POWER = "print(json.dumps([ask(n.nvmlDeviceGetPowerUsage, h), ask(n.nvmlDeviceGetPowerUsage, h)]))"
LOST = f"error {pynvml.NVML_ERROR_GPU_IS_LOST}"


def live(answer: Callable[[int], bytes | None]) -> Respond:
    """Answer honestly what is asked when NVML starts, and `answer` from then on."""
    first = {QUERY[name] for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion")}
    first.add(QUERY["nvmlDeviceGetPciInfo_v3"])
    return lambda query, ordinal, sequence: (
        honest(query, ordinal, sequence) if query in first else answer(sequence)
    )  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        lambda sequence: None,
        lambda sequence: reply(sequence + 1),
        lambda sequence: reply(sequence, opcode=OPCODE),
        lambda sequence: reply(sequence, opcode=0x0104),
        lambda sequence: reply(sequence, length=0xFFFFFFFF),
        lambda sequence: reply(sequence, length=8),
        lambda sequence: reply(sequence, tail=bytes(4097)),
        lambda sequence: reply(sequence, result=2),
        lambda sequence: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["hangs up", "sequence", "request", "event", "huge", "short", "tail", "failure with a reply", "other protocol"],
)
def test_what_is_no_answer_is_a_lost_gpu(against: Callable[..., Any], answer: Callable[[int], bytes | None]) -> None:
    assert against(POWER, live(answer)) == [LOST, LOST]


@pytest.mark.slow  # waits out the time-out of an answer
def test_a_server_that_is_silent_is_a_time_out_and_then_a_lost_gpu(against: Callable[..., Any]) -> None:
    assert against(POWER, live(lambda _: b"")) == [f"error {pynvml.NVML_ERROR_TIMEOUT}", LOST]


@pytest.mark.slow  # waits out the time-out of an answer
def test_half_an_answer_is_a_time_out(against: Callable[..., Any]) -> None:
    assert against(POWER, live(lambda sequence: reply(sequence)[:-1])) == [f"error {pynvml.NVML_ERROR_TIMEOUT}", LOST]


def test_a_server_out_of_memory_says_so_and_goes_on(against: Callable[..., Any]) -> None:
    answers = [HEADER.pack(0, OPCODE | 0x8000, 0, 0, 2), b""]

    def answer(sequence: int) -> bytes:
        if answers[0]:
            answers[0] = b""
            return HEADER.pack(0, OPCODE | 0x8000, 0, sequence, 2)
        return reply(sequence, values=(1234,))

    assert against(POWER, live(answer)) == [f"error {pynvml.NVML_ERROR_MEMORY}", 1234]


@pytest.mark.parametrize("size", [0, 7, 9, 4096])
def test_a_structure_of_another_size_is_not_taken(against: Callable[..., Any], size: int) -> None:
    program = "print(json.dumps(ask(n.nvmlDeviceGetUtilizationRates, h)))"
    assert against(program, live(lambda sequence: reply(sequence, tail=b"x" * size))) == (
        f"error {pynvml.NVML_ERROR_UNKNOWN}"
    )


def test_a_text_longer_than_its_place_is_not_taken(against: Callable[..., Any]) -> None:
    program = "print(json.dumps(ask(n.nvmlDeviceGetSerial, h)))"
    assert against(program, live(lambda sequence: reply(sequence, tail=b"x" * 4096))) == (
        f"error {pynvml.NVML_ERROR_INSUFFICIENT_SIZE}"
    )


def test_a_list_that_grows_between_two_questions_says_how_long_it_is(against: Callable[..., Any]) -> None:
    entry = struct.pack("<I4xQII", 77, 5, 0xFFFFFFFF, 0xFFFFFFFF)
    program = """
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
room = (ctypes.c_char * 24)()
count = ctypes.c_uint(1)
told = [library.nvmlDeviceGetComputeRunningProcesses_v3(h, ctypes.byref(count), room), count.value, any(room.raw)]
print(json.dumps(told))"""
    told = against(program, live(lambda sequence: reply(sequence, tail=entry * 170)))
    assert told == [pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 170, False]


def test_used_memory_is_never_more_than_the_lease_has(against: Callable[..., Any]) -> None:
    program = """
m = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
print(json.dumps([m.total, m.reserved, m.free, m.used]))"""
    everything = (1 << 64) - 1
    told = against(program, live(lambda sequence: reply(sequence, values=(everything, everything, everything))))
    assert told == [64 * MIB, 0, 0, 64 * MIB]


def test_a_lease_s_memory_is_its_quota_whatever_the_gpu_has(against: Callable[..., Any]) -> None:
    program = """
m = n.nvmlDeviceGetMemoryInfo(h)
print(json.dumps([m.total, m.used, m.free]))"""
    told = against(program, live(lambda sequence: reply(sequence, values=(1024 * MIB, 900 * MIB, 16 * MIB))))
    assert told == [64 * MIB, 16 * MIB, 48 * MIB]
    told = against(program, live(lambda sequence: reply(sequence, values=(1024 * MIB, 8 * MIB, 16 * MIB))))
    assert told == [64 * MIB, 16 * MIB, 8 * MIB]


def test_an_older_server_tells_what_its_hello_tells(against: Callable[..., Any]) -> None:
    program = """
told = [ask(call, h) for call in (n.nvmlDeviceGetName, n.nvmlDeviceGetMemoryInfo, n.nvmlDeviceGetPowerUsage)]
print(json.dumps([*told, ask(n.nvmlSystemGetDriverVersion)]))"""
    no = f"error {pynvml.NVML_ERROR_NOT_SUPPORTED}"
    assert against(program, lambda *_: None, operations=bytes(64)) == ["A GPU", no, no, no]


def test_a_snapshot_of_nonsense_is_only_nonsense(against: Callable[..., Any]) -> None:
    program = """
print(json.dumps([n.nvmlDeviceGetCount(), ask(n.nvmlDeviceGetName, h), n.nvmlDeviceGetPciInfo(h).bus,
                  ask(n.nvmlDeviceGetHandleByPciBusId, "nonsense")]))"""
    told = against(program, devices=[device(name=b"x" * 256, bus=b"\xff" * 32, total=0)] * 64)
    no_room, no_address = pynvml.NVML_ERROR_INSUFFICIENT_SIZE, pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert told == [64, f"error {no_room}", 0, f"error {no_address}"]


def test_a_lease_without_devices_has_none(against: Callable[..., Any]) -> None:
    program = "print(json.dumps([n.nvmlDeviceGetCount(), ask(n.nvmlDeviceGetHandleByIndex, 0)]))"
    assert against(program, devices=[]) == [0, f"error {pynvml.NVML_ERROR_INVALID_ARGUMENT}"]


def test_more_devices_than_a_session_has_are_refused(against: Callable[..., Any]) -> None:
    program = "print(json.dumps(0))"
    with pytest.raises(AssertionError, match="NVMLError_GpuIsLost"):
        against(program, devices=[device()] * 65)
