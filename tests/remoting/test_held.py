"""What one call uses while another of the same program destroys it: the driver is asked for the one after the other.

The programs are bytes (test_hostile.py): no client of ours does such things, a hostile or a racing one may.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

from farbus.remoting.spec import ENTRIES
from tests.remoting.test_hostile import (
    CONTEXT,
    GRANULE,
    OPCODE,
    Session,
    bound,
    driver_call,
    member,
    memory_of,
    raw_session,
    team_of,
    with_context,
)

SECOND = 1 << 43 | 2 << 4
THIRD = SECOND + (1 << 4)
# One slot of the client's table for each.
STREAM, EVENT, LIBRARY, TOKEN = (kind << 43 | slot << 4 for slot, kind in enumerate((2, 3, 4, 7), 4))
LEGACY = 1
INVALID_HANDLE = 400
NUMBER = {entry.symbol: entry.number for entry in ENTRIES}

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nothing()
{
ret;
}
\0"""


@dataclass(kw_only=True)
class Held:
    """A session with a driver that says what it is asked, and holds one kind of call."""

    session: Session
    log: TextIO

    def until(self, line: str) -> list[str]:
        """What the driver says up to that line."""
        said: list[str] = []
        while line not in said:
            said.append(self.log.readline().rstrip("\n"))
        return said

    def let_go(self, *waiting: str, context: int = CONTEXT) -> None:
        """Allocate, which is what the held call waits for; then all of these are answered, in any order."""
        self.session.send("memory_alloc", struct.pack("<Q", 512), context=context)
        answers = [self.session.receive()[:2] for _ in range(1 + len(waiting))]
        assert sorted(answers) == sorted((OPCODE[name] | 0x8000, 0) for name in ("memory_alloc", *waiting))


@pytest.fixture
def held(driver_before: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Held]]:
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    driver, log = driver_before("held_driver"), tmp_path / "log"
    os.mkfifo(log)
    with contextlib.ExitStack() as stack:

        def start(call: str, memory_limit: int = 0) -> Held:
            # Both ends, so that neither side's opening waits for the other.
            read = stack.enter_context(os.fdopen(os.open(log, os.O_RDWR), "r"))
            session = raw_session(driver, memory_limit=memory_limit, HELD_DRIVER_CALL=call, HELD_DRIVER_LOG=str(log))
            return Held(session=with_context(stack.enter_context(session)), log=read)

        yield start


def send(session: Session, name: str, *fields: int, lane: int = 1, context: int = CONTEXT) -> None:
    session.send(name, struct.pack(f"<{len(fields)}Q", *fields), context=context, lane=lane)


def context_create(session: Session, name: int = SECOND) -> None:
    assert session.call("context_create", struct.pack("<IIQ", 0, 0, name)) == 0


def test_an_event_is_destroyed_when_nobody_waits_for_it(held: Callable[[str], Held]) -> None:
    held_ = held("cuEventSynchronize")
    send(held_.session, "event_create", EVENT, 0)
    send(held_.session, "event_synchronize", EVENT, lane=2)
    held_.until("cuEventSynchronize")
    send(held_.session, "event_destroy", EVENT)
    assert held_.session.call("event_query", struct.pack("<Q", EVENT), context=CONTEXT) == INVALID_HANDLE
    held_.let_go("event_synchronize")
    said = held_.until("cuEventDestroy_v2")
    assert said == ["cuEventSynchronize is over", "cuEventDestroy_v2"]


def test_a_context_is_destroyed_when_no_call_is_in_it(held: Callable[[str], Held]) -> None:
    held_ = held("cuEventSynchronize")
    context_create(held_.session)
    send(held_.session, "event_create", EVENT, 0, context=SECOND)
    send(held_.session, "event_synchronize", EVENT, lane=2, context=CONTEXT)  # it is the event's that counts
    held_.until("cuEventSynchronize")
    send(held_.session, "context_destroy", SECOND)
    assert held_.session.call("memory_info", context=SECOND) == 201
    held_.let_go("event_synchronize", "context_destroy")
    assert held_.until("cuCtxDestroy_v2") == ["cuEventSynchronize is over", "cuCtxDestroy_v2"]


def test_a_primary_context_is_retained_again_when_its_reset_is_over(held: Callable[[str], Held]) -> None:
    """The reset ended what had been retained meanwhile."""
    held_ = held("cuEventSynchronize")
    retain = struct.pack("<IIQ", 0, 0, SECOND)
    send(held_.session, "event_create", EVENT, 0)
    send(held_.session, "event_synchronize", EVENT, lane=2)
    held_.until("cuEventSynchronize")
    context_create(held_.session, THIRD)
    held_.session.send("primary_reset", struct.pack("<I4x", 0), lane=3)
    assert held_.session.call("primary_retain", retain) == 1
    held_.let_go("event_synchronize", "primary_reset", context=THIRD)
    assert held_.session.call("primary_retain", retain) == 0
    assert held_.session.call("memory_alloc", struct.pack("<Q", 512), context=SECOND) == 0


def test_two_calls_may_end_each_other_s_contexts(held: Callable[[str], Held]) -> None:
    held_ = held("")
    context_create(held_.session)
    context_create(held_.session, THIRD)
    send(held_.session, "context_destroy", SECOND, lane=2, context=THIRD)
    send(held_.session, "context_destroy", THIRD, lane=3, context=SECOND)
    held_.let_go("context_destroy", "context_destroy")


def test_what_ended_with_its_context_is_not_shown_to_the_driver(held: Callable[[str], Held]) -> None:
    held_ = held("")
    context_create(held_.session)
    send(held_.session, "stream_create", STREAM, 0, context=SECOND)
    assert held_.session.call("context_destroy", struct.pack("<Q", SECOND)) == 0
    assert held_.session.call("stream_synchronize", struct.pack("<Q", STREAM), context=CONTEXT) == INVALID_HANDLE
    # Its name is free.
    send(held_.session, "stream_create", STREAM, 0)
    assert held_.session.call("memory_alloc", struct.pack("<Q", 512), context=CONTEXT) == 0
    send(held_.session, "event_create", EVENT, 0)
    send(held_.session, "event_destroy", EVENT)
    said = held_.until("cuEventDestroy_v2")
    assert not {"cuStreamSynchronize", "cuStreamDestroy_v2"} & set(said[said.index("cuCtxDestroy_v2") :])


def test_a_capture_ends_with_its_context(held: Callable[[str], Held]) -> None:
    """Its stream was asked, which was no more, for what other threads must not do while something is captured."""
    held_ = held("")
    context_create(held_.session)
    send(held_.session, "stream_create", STREAM, 0, context=SECOND)
    assert held_.session.call("capture_begin", struct.pack("<QQ", STREAM, 0), context=SECOND) == 0
    assert held_.session.call("context_destroy", struct.pack("<Q", SECOND)) == 0
    held_.let_go()  # an allocation, which a capture would forbid


def load(session: Session) -> int:
    """A library of one kernel, which is named."""
    image = struct.pack("<IIIIQ", 4, 0, 1, 0, len(PTX)) + PTX + bytes(-len(PTX) % 8)
    session.send("blob_part", struct.pack("<QQQ", 7, len(image), 0), image)
    fixed = struct.pack("<QQQ32sIIIII4x", LIBRARY, 7, len(image), bytes(32), 0, 0, 0, 0, 0)
    session.send("image_load", fixed, context=CONTEXT)
    _, result, payload = session.receive()
    assert (result, *struct.unpack_from("<iII", payload)) == (0, 0, 0, 1)
    return int(struct.unpack_from("<Q", payload, 24)[0])


def test_a_kernel_is_found_no_more_when_the_driver_unloads_it(held: Callable[[str], Held]) -> None:
    held_ = held("cuLibraryUnload")
    kernel = load(held_.session)
    launch = struct.pack("<QQ3I3IIII4x", kernel, LEGACY, 1, 1, 1, 1, 1, 1, 0, 0, 0)
    assert held_.session.call("launch_checked", launch, context=CONTEXT) == 0
    send(held_.session, "library_unload", LIBRARY, lane=2)
    held_.until("cuLibraryUnload")
    assert held_.session.call("launch_checked", launch, context=CONTEXT) == INVALID_HANDLE
    held_.session.send("library_function", struct.pack("<Q", LIBRARY), b"nothing\0", context=CONTEXT)
    assert held_.session.receive()[:2] == (OPCODE["library_function"] | 0x8000, INVALID_HANDLE)
    held_.let_go("library_unload")


def test_an_array_is_found_no_more_when_the_driver_destroys_it(held: Callable[[str], Held]) -> None:
    held_ = held("cuArrayDestroy")
    session = held_.session
    descriptor = struct.pack("<QQII", 16, 1, 1, 1)  # a row of bytes
    session.send("call", struct.pack("<II", NUMBER["cuArrayCreate_v2"], 0), b"\1\1" + descriptor, context=CONTEXT)
    _, result, payload = session.receive()
    assert (result, struct.unpack_from("<i", payload)[0]) == (0, 0)
    (array,) = struct.unpack_from("<Q", payload, 8)
    read = struct.pack("<7Q", array, 0, 0, 0, 16, 1, LEGACY)
    destroy = struct.pack("<II", NUMBER["cuArrayDestroy"], 0)
    session.send("call_waiting", destroy, struct.pack("<Q", array), context=CONTEXT, lane=2)
    held_.until("cuArrayDestroy")
    session.send("array_read", read, context=CONTEXT)
    assert session.receive()[:2] == (OPCODE["array_read"] | 0x8000, INVALID_HANDLE)
    held_.let_go("call_waiting")


def test_the_end_of_a_user_object_is_answered_when_it_has_come(held: Callable[[str], Held]) -> None:
    """Answered before, the token was freed while the driver still had it."""
    session = held("").session
    session.send("user_object_create", struct.pack("<QII", TOKEN, 1, 1), context=CONTEXT)
    assert session.receive()[1] == 0
    send(session, "host_done", TOKEN)
    assert session.ended() == 0


LIMIT = 1 << 30


def left(session: Session) -> int:
    """What the lease has left; an allocation let the held call go."""
    session.send("memory_info", context=CONTEXT)
    return int(struct.unpack("<QQ", session.receive()[2])[0]) + 512


def release(session: Session, *memory: int) -> None:
    for each in memory:
        assert driver_call(session, "cuMemRelease", struct.pack("<Q", each))[0] == 0


def mapped(session: Session, memory: int) -> int:
    """Where it is mapped."""
    reserve = struct.pack("<QQQQB", GRANULE, 0, 0, 0, 1)
    (address,) = struct.unpack("<Q", driver_call(session, "cuMemAddressReserve", reserve)[1])
    assert driver_call(session, "cuMemMap", struct.pack("<QQQQQ", address, GRANULE, 0, 0, memory))[0] == 0
    return int(address)


def test_memory_is_mapped_and_counted_where_other_memory_is_just_unmapped(held: Callable[..., Held]) -> None:
    """The driver waits for what is queued: for a host function, perhaps, which waits for another thread's call."""
    held_ = held("cuMemUnmap", memory_limit=LIMIT)
    session = held_.session
    first, second = memory_of(session), memory_of(session, 2 * GRANULE)
    address = mapped(session, first)
    unmap = struct.pack("<II", NUMBER["cuMemUnmap"], 0)
    session.send("call_waiting", unmap, struct.pack("<QQ", address, GRANULE), context=CONTEXT, lane=2)
    held_.until("cuMemUnmap")
    assert driver_call(session, "cuMemMap", struct.pack("<QQQQQ", address, GRANULE, 0, 0, second))[0] == 0
    release(session, first, second)
    held_.let_go("call_waiting")
    assert left(session) == LIMIT - 2 * GRANULE


def test_memory_is_bound_and_counted_where_other_memory_is_just_unbound(held: Callable[..., Held]) -> None:
    held_ = held("cuMulticastUnbind", memory_limit=LIMIT)
    session = held_.session
    team, first, second = team_of(session, 1), memory_of(session), memory_of(session, 2 * GRANULE)
    assert driver_call(session, "cuMulticastAddDevice", member(team, 0))[0] == 0
    assert driver_call(session, "cuMulticastBindMem", bound(team, first))[0] == 0
    unbind = struct.pack("<II", NUMBER["cuMulticastUnbind"], 0)
    session.send("call", unbind, struct.pack("<QQQi", 0, GRANULE, team, 0), context=CONTEXT, lane=2)
    held_.until("cuMulticastUnbind")
    assert driver_call(session, "cuMulticastBindMem", bound(team, second))[0] == 0
    release(session, first, second)
    held_.let_go("call")
    assert left(session) == LIMIT - 2 * GRANULE


def access_arguments(session: Session) -> bytes:
    device = struct.pack("<ii", 1, 0)
    access = struct.pack("<QB", 1, 1) + device + struct.pack("<i", 3) + device + struct.pack("<i", 0)
    return struct.pack("<QQ", mapped(session, memory_of(session)), GRANULE) + access


def pool_access_arguments(session: Session) -> bytes:
    access = access_arguments(session)[16:]
    pool = driver_call(session, "cuDeviceGetDefaultMemPool", struct.pack("<Bi", 1, 0))[1]
    return access[:8] + pool + access[8:]


def ipc_arguments(session: Session) -> bytes:
    session.send("memory_alloc", struct.pack("<Q", GRANULE), context=CONTEXT)
    return session.receive()[2][:8] + b"\1"


@pytest.mark.parametrize(
    ("symbol", "arguments"),
    [
        ("cuMemSetAccess", access_arguments),
        ("cuMemPoolSetAccess", pool_access_arguments),
        ("cuIpcGetMemHandle", ipc_arguments),
    ],
)
def test_other_calls_are_served_while_the_driver_waits_for_what_is_queued(
    held: Callable[[str], Held], symbol: str, arguments: Callable[[Session], bytes]
) -> None:
    held_ = held(symbol)
    session = held_.session
    call = struct.pack("<II", NUMBER[symbol], 0)
    session.send("call", call, arguments(session), context=CONTEXT, lane=2)
    held_.until(symbol)
    assert session.call("memory_info", context=CONTEXT) == 0
    held_.let_go("call")
