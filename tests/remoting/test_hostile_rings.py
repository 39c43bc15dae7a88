"""A peer in the same machine that has the rings of a session, and writes there what it likes: nobody else is hurt.

It may be the server of a program, or the program of a server, or be between the two, which shows both at once
(``rings.py``).  More by hand: ``HOSTILE_SEEDS=1000:1200 pytest tests/remoting/test_hostile_rings.py``.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.remoting.spec import EVENTS
from tests.remoting.harness import SANITIZED, Remote
from tests.remoting.rings import FRAME, Frames, Middle, Scribbler, between, target_of
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import wait_until
from tests.remoting.test_hostile_server import Altering

Build = Callable[[str], Path]

PROGRAMS: dict[str, tuple[str, ...]] = {
    "copies_of_all_sizes": ("3000", "12", "1"),
    "streams_pinned": (),
    "symbols": (),
    "host_functions": (),
    "managed/copies": (),
}
FIRST, _, LAST = os.environ.get("HOSTILE_SEEDS", "0:6").partition(":")
SEEDS = range(int(FIRST), int(LAST))

PATIENCE_S = 300 if SANITIZED else 120
"""What of a program and its server hangs is not over by then; each of what is written may cost a second."""

RINGS = {"FARBUS_TRANSPORT": "shm"}


def run(remote: Remote, *command: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=remote.environment(**RINGS, **changes),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
        check=False,
    )


def unhurt(remote: Remote, name: str, done: subprocess.CompletedProcess[str]) -> None:
    """Neither the program nor its server was ended by a signal, and nothing is left of them."""
    told = done.stdout + done.stderr
    # Managed memory that was on a GPU which is lost can't be read: that ends the program (docs/wire.md).
    if name.startswith("managed/") and done.returncode == -signal.SIGSEGV:
        assert "the connection to the GPU at " in done.stderr, told
    else:
        assert done.returncode >= 0, told
    wait_until(lambda: not remote.supervisor.sessions.sessions, "the server has ended")
    assert not [line for line in remote.lines if "killed by signal" in line], remote.lines


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_between_passes_on(lease: Callable[..., Remote], build: Build, name: str) -> None:
    remote = lease()
    middle = Middle(target=target_of(remote))
    with between(remote, middle):
        done = run(remote, build(f"remoting/{name}"), *PROGRAMS[name])
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert middle.sessions == 1
    unhurt(remote, name, done)


def hurt_frames(seed: int) -> Frames:
    """Says frames twice, not at all, later, with another header or other bytes: one in eight, of the first hundreds."""
    chance = random.Random(f"frames {seed}")
    held: list[bytes] = []

    def change(frame: bytes) -> list[bytes]:
        if chance.random() > 0.125:
            passed = [frame, *held]
            held.clear()
            return passed
        length, opcode, lane, sequence, argument = FRAME.unpack_from(frame)
        rest = frame[FRAME.size :]
        match chance.randrange(7):
            case 0:
                return [frame] * chance.randint(2, 4)
            case 1:
                return []
            case 2:
                held.append(frame)
                return []
            case 3:
                opcode = chance.choice([opcode ^ 0x8000, opcode + 1, 0x100 + chance.randrange(6)])
            case 4:
                sequence += chance.choice([-2, -1, 1, 2, 1 << 63])
            case 5:
                argument = chance.choice([argument ^ 1, 0, 2, 700, 719, (1 << 64) - 1])
            case _:
                at = chance.randrange(len(rest) or 1)
                rest = (rest[:at] + chance.randbytes(8) + rest[at + 8 :])[: len(rest)]
        return [FRAME.pack(length, opcode % (1 << 16), lane, sequence % (1 << 64), argument) + rest]

    return Frames(change)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", ["server", "program"])
def test_what_is_altered_in_rings_hurts_nobody(
    lease: Callable[..., Remote], build: Build, name: str, seed: int, who: str
) -> None:
    remote = lease()
    altering = Altering(seed + 1000 * (who == "program"))
    changes = {"back" if who == "server" else "out": altering.take}
    middle = Middle(target=target_of(remote), harmed=lambda: altering.altered, **changes)
    with between(remote, middle):
        done = run(remote, build(f"remoting/{name}"), *PROGRAMS[name])
    assert middle.sessions == 1
    unhurt(remote, name, done)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_whose_frames_are_out_of_place_hurts_nobody(
    lease: Callable[..., Remote], build: Build, name: str, seed: int
) -> None:
    remote = lease()
    middle = Middle(target=target_of(remote), harmed=lambda: True, back=hurt_frames(seed).take)
    with between(remote, middle):
        done = run(remote, build(f"remoting/{name}"), *PROGRAMS[name])
    unhurt(remote, name, done)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_who_writes_into_rings_while_they_are_used_hurts_nobody(
    lease: Callable[..., Remote], build: Build, name: str, seed: int
) -> None:
    remote = lease()
    # Few writes leave a session alive for long, many end it soon.
    scribbler = Scribbler(
        target=target_of(remote), seed=seed, writes=int(10 ** random.Random(seed).uniform(0, 6)), steers=seed % 3 != 0
    )
    with between(remote, scribbler):
        done = run(remote, build(f"remoting/{name}"), *PROGRAMS[name])
    assert scribbler.sessions == 1
    unhurt(remote, name, done)


EVENT = {name: opcode for opcode, name, *_ in EVENTS}
HOST_CALL = struct.Struct("<Qi4x")
FORGOTTEN = -(1 << 31)  # wire/frame.h


def host_call(token: int, status: int) -> bytes:
    return FRAME.pack(HOST_CALL.size, EVENT["host_call"], 0, 0, 0) + HOST_CALL.pack(token, status)


def asked_again(way: str) -> Frames:
    """Asks for each host function and each copy of pinned memory in a way that it may not."""
    told: list[bytes] = []

    def change(frame: bytes) -> list[bytes]:
        _, opcode, *_ = FRAME.unpack_from(frame)
        if opcode not in (EVENT["host_call"], EVENT["pull"]):
            return [frame]
        (token,) = struct.unpack_from("<Q", frame, FRAME.size)
        forgotten = host_call(token, FORGOTTEN)
        match way:
            case "many times":
                return [frame] * 8
            case "and forgets it":
                return [frame, forgotten, forgotten]
            case "and forgets it first":
                return [forgotten, frame, frame]
            case "and those before":
                told.append(frame)
                return [*told[-8:], frame]
            case _:
                # The next ones to be named, of which nobody has been told yet.
                return [host_call(token + (slot << 4), 0) for slot in range(1, 9)] + [frame]

    return Frames(change)


WAYS = ["many times", "and forgets it", "and forgets it first", "and those before", "and those to come"]


@pytest.mark.parametrize("name", ["call_captures", "call_callbacks", "call_graphs", "host_functions"])
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_asks_when_it_may_not_hurts_nobody(
    lease: Callable[..., Remote], build: Build, tmp_path: Path, name: str, way: str
) -> None:
    remote = lease()
    program = build_calls(name, tmp_path) if name.startswith("call_") else build(f"remoting/{name}")
    with between(remote, Middle(target=target_of(remote), harmed=lambda: True, back=asked_again(way).take)):
        done = run(remote, program)
    unhurt(remote, name, done)
