"""A session outlives its connection: the program notices nothing, or hears of the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting.session import Server, write_session
from tests.remoting.cutter import Cutter, Decide, Kind, Side
from tests.remoting.harness import Remote

Build = Callable[[str], Path]

#: Order between threads, copies in both directions and in pieces, host functions, errors that come late.
PROGRAMS = (
    "behind_host_function",
    "copy_arrives_alone",
    "events",
    "fault",
    "handed_over",
    "host_functions",
    "pageable_source",
    "rows",
    "streams_pinned",
    "symbols",
)
#: Frames of one side behind which every connection is cut; of later ones, every so many.
CUTS_EACH = 60
CUTS_LATER = 40


def at_frames(side: Side, inside: Callable[[int], int]) -> Decide:
    """Cut once in every frame of that side, where ``inside`` says for its length."""

    def decide(where: Side, number: int, length: int) -> int | None:
        if where is not side or (number > CUTS_EACH and number % CUTS_LATER):
            return None
        return inside(length)

    return decide


def at_random(seed: int, mean_bytes: int) -> Decide:
    """Cut somewhere, on an average once in so many bytes."""
    chance = random.Random(seed)

    def decide(where: Side, number: int, length: int) -> int | None:
        return chance.randint(1, length) if chance.random() < length / mean_bytes else None

    return decide


def run_cut(
    remote: Remote, program: Path, decide: Decide, kind: Kind = Kind.RESET, **changes: str
) -> tuple[int, str, str, int]:
    with Cutter(remote.supervisor.address, decide, kind) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        done = remote.run(program, FARBUS_TRANSPORT="tcp", **changes)
        return done.returncode, done.stdout, done.stderr, network.cuts


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("name", PROGRAMS)
def test_cut_behind_every_frame(remote: Remote, build: Build, name: str, side: Side) -> None:
    code, out, err, cuts = run_cut(remote, build(f"remoting/{name}"), at_frames(side, lambda length: length))
    assert (code, out) == (0, "ok\n"), out + err
    assert err == ""
    assert cuts >= 5
