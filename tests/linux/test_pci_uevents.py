"""The uevent door: messages as a kernel sent them, messages that are none, and a kernel without room."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

from farbus.linux import uevents
from farbus.linux.uevents import QUEUE_LENGTH, FakeUevents, KernelUevents
from farbus.model.pci import Lost, Uevent, parse_uevent

BIND = (
    b"bind@/devices/pci0000:00/0000:00:03.0/0000:01:00.0\0ACTION=bind\0"
    b"DEVPATH=/devices/pci0000:00/0000:00:03.0/0000:01:00.0\0SUBSYSTEM=pci\0DRIVER=nvme\0PCI_CLASS=10802\0"
    b"PCI_ID=1B36:0010\0PCI_SUBSYS_ID=1AF4:1100\0PCI_SLOT_NAME=0000:01:00.0\0"
    b"MODALIAS=pci:v00001B36d00000010sv00001AF4sd00001100bc01sc08i02\0SEQNUM=1413\0"
)
"""As Linux 6.1 sent it for a drive that was plugged into a guest."""

KERNEL, SOMEBODY = (0, 1), (4711, 1)


class Socket:
    """A socket from which comes what a test gives, and then nothing more."""

    def __init__(self, *given: tuple[bytes, tuple[int, int]] | OSError) -> None:
        self._given = list(given)

    def recvmsg(self, _: int) -> tuple[bytes, list[object], int, tuple[int, int]]:
        if not self._given:
            raise BlockingIOError
        one = self._given.pop(0)
        if isinstance(one, OSError):
            raise one
        return one[0], [], 0, one[1]


def received(*given: tuple[bytes, tuple[int, int]] | OSError) -> list[Uevent | Lost]:
    queue = uevents._Queue()
    uevents._receive(Socket(*given), queue)  # type: ignore[arg-type]
    return [queue._queue.get_nowait() for _ in range(queue._queue.qsize())]


def test_a_message_is_read() -> None:
    (event,) = received((BIND, KERNEL))
    assert isinstance(event, Uevent)
    assert (event.action, event.subsystem, event.seqnum) == ("bind", "pci", 1413)
    assert event.address == "0000:01:00.0"
    assert event.properties["DRIVER"] == "nvme"


def test_it_is_read_as_pyroute2_reads_it() -> None:
    from pyroute2.netlink.uevent import MarshalUevent

    (theirs,) = MarshalUevent().parse(BIND)
    ours = parse_uevent(BIND)
    assert ours is not None
    for name in ("ACTION", "DEVPATH", "SUBSYSTEM", "DRIVER", "PCI_SLOT_NAME"):
        assert ours.properties[name] == theirs[name].rstrip("\0")


def test_messages_of_others_than_the_kernel_are_not_believed() -> None:
    assert received((BIND, SOMEBODY)) == []


def test_what_is_no_message_of_the_kernels_is_left_out() -> None:
    for data in (
        b"",
        b"libudev\0\xfe\xed\xca\xfe",
        b"add@/x\0ACTION=add\0",
        b"add@/x\0ACTION=add\0DEVPATH=/x\0SEQNUM=x\0",
    ):
        assert received((data, KERNEL), (BIND, KERNEL))[0] == parse_uevent(BIND)


def test_a_kernel_without_room_tells_and_goes_on() -> None:
    told = received(OSError(errno.ENOBUFS, "No buffer space available"), (BIND, KERNEL))
    assert isinstance(told[0], Lost)
    assert "ENOBUFS" in told[0].reason
    assert told[1] == parse_uevent(BIND)


def test_a_reader_who_is_too_slow_is_told_so() -> None:
    told = received(*[(BIND, KERNEL)] * (QUEUE_LENGTH + 3))
    assert isinstance(told[0], Lost)
    assert len(told) == 3


async def test_this_kernel_lets_us_listen() -> None:
    async with KernelUevents(buffer_bytes=1 << 16).listen() as messages:
        first = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        first.cancel()


async def test_every_listener_of_the_fake_hears_everything() -> None:
    fake = FakeUevents()

    async def first(messages: AsyncIterator[Uevent | Lost]) -> Uevent | Lost:
        return await anext(messages)

    async with fake.listen() as one, fake.listen() as two:
        fake.send("add", "/devices/pci0000:00/0000:00:03.0")
        fake.lose()
        told = await first(one)
        assert told == await first(two)
        assert isinstance(await first(two), Lost)
