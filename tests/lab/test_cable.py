"""The lab's network, without guests: who hears whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.cable import HEADER, QUEUE_LIMIT_BYTES, Cable

LIMIT_S = 30.0
EVERYBODY = b"\xff" * 6


class Speaker:
    """What QEMU is to the cable."""

    def __init__(self, cable: Cable, name: str) -> None:
        self.address = name.encode().ljust(6, b"\2")
        self.end = cable.plug(name)
        self.end.settimeout(LIMIT_S)

    def say(self, text: bytes, to: bytes = EVERYBODY) -> None:
        frame = to + self.address + text
        self.end.sendall(HEADER.pack(len(frame)) + frame)

    def hear(self) -> bytes:
        (length,) = HEADER.unpack(self._receive(HEADER.size))
        return self._receive(length)[12:]

    def _receive(self, count: int) -> bytes:
        # MSG_WAITALL does not wait where the socket has a time limit: it does not block then.
        received = b""
        while len(received) < count:
            piece = self.end.recv(count - len(received))
            assert piece, "unplugged"
            received += piece
        return received


@pytest.fixture
def cable() -> Cable:
    return Cable()


@pytest.fixture
def three(cable: Cable) -> Iterator[tuple[Speaker, Speaker, Speaker]]:
    speakers = (Speaker(cable, "a"), Speaker(cable, "b"), Speaker(cable, "c"))
    yield speakers
    for speaker in speakers:
        speaker.end.close()


Three = tuple[Speaker, Speaker, Speaker]


def test_all_others_hear_what_is_for_everybody(three: Three) -> None:
    a, b, c = three
    a.say(b"hello")
    assert (b.hear(), c.hear()) == (b"hello", b"hello")


def test_only_one_hears_what_is_for_it_once_it_has_spoken(three: Three) -> None:
    a, b, c = three
    b.say(b"here")
    assert (a.hear(), c.hear()) == (b"here", b"here")
    a.say(b"for b", b.address)
    a.say(b"for all")
    assert [b.hear(), b.hear(), c.hear()] == [b"for b", b"for all", b"for all"]


def test_cut_of_one_direction_leaves_the_other(cable: Cable, three: Three) -> None:
    a, b, c = three
    cable.cut("a", "b")
    a.say(b"lost for b")
    assert c.hear() == b"lost for b"
    b.say(b"heard")
    assert a.hear() == b"heard"
    cable.mend("a", "b")
    a.say(b"back")
    assert b.hear() == b"back"


def test_cut_of_a_node_leaves_the_others(cable: Cable, three: Three) -> None:
    a, b, c = three
    cable.cut("a")
    a.say(b"lost")
    b.say(b"lost for a")
    assert c.hear() == b"lost for a"
    cable.mend()
    # Frames of one speaker keep their order: c hears this after all that a has said.
    a.say(b"back")
    assert (b.hear(), c.hear()) == (b"back", b"back")
    b.say(b"too")
    assert a.hear() == b"too"


def test_one_that_does_not_read_stops_nobody(three: Three) -> None:
    a, b, _ = three
    frame = bytes(60_000)
    for _ in range(3 * QUEUE_LIMIT_BYTES // len(frame)):
        a.say(frame)
        assert b.hear() == frame


def test_frame_in_pieces_arrives_whole(three: Three) -> None:
    a, b, _ = three
    frame = EVERYBODY + a.address + b"piecewise"
    for byte in HEADER.pack(len(frame)) + frame:
        a.end.sendall(bytes([byte]))
    assert b.hear() == b"piecewise"


def test_new_end_takes_the_place_of_the_old(cable: Cable, three: Three) -> None:
    a, _, c = three
    again = Speaker(cable, "c")
    assert c.end.recv(1) == b""
    a.say(b"hello")
    assert again.hear() == b"hello"
    again.end.close()


def test_what_is_carried_can_be_looked_for(cable: Cable, three: Three) -> None:
    a, b, _ = three
    with cable.watch(b"secret") as seen, cable.watch(b"nothing") as other:
        for text in (b"a secret it is", b"sec", b"ret"):
            a.say(text)
            assert b.hear() == text
    a.say(b"another secret")
    assert b.hear() == b"another secret"
    assert (seen.frames, seen.of, other.frames) == (1, 3, 0)
