"""Devices move between nodes by ``farbus attach`` and ``detach``: real agents, real kernels, an emulated chassis.

Drives and plain PCI devices go to and fro between ``b`` and ``c``, while agents and nodes die and the chassis does what
chassis do; ``a`` serves the chassis and has a drive of its own (:mod:`tests.lab.chassis`).

``FARBUS_LAB_MOVES=1000 FARBUS_LAB_SEED=5`` makes more moves at random, and others.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from farbus.errors import ExitCode
from farbus.hotplug.fabric.emulator.faults import Fault, FaultKind, Rates
from farbus.model.fabric import FabricStep
from tests.lab.chassis import (
    BIG_CARD,
    BUSY_DRIVE,
    CARD,
    DRIVE,
    DRIVES,
    OTHER_CARD,
    PORTS,
    Bed,
    Watch,
    chassis_bed,
    name_of,
    on_bus,
    path_of,
)
from tests.lab.cluster import JOB_LIMIT_S, agent_is_back, farbus, main_pid, nodes_are_ready
from tests.lab.guest import Guest, Result, patient
from tests.lab.nodes import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

MOVES = int(os.environ.get("FARBUS_LAB_MOVES", "100"))
SEED = int(os.environ.get("FARBUS_LAB_SEED", "7"))

FAULTS = Rates(eof=0.02, error=0.02, hang=0.005, cut=0.02, false_negative=0.05, deny=0.05, stale=0.03, partial=0.03)
"""Of each request to the chassis: one in seven or so goes wrong."""

SAY_INTERVAL_S = 60.0
"""Between two lines about what has been seen of moves at random, which take an hour on a crowded machine."""

WRITER = """
import mmap, os, sys, time, zlib
PAGE = 65536
file = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, PAGE)
turn = 0
while not os.path.exists(sys.argv[2]):
    turn += 1
    sums = []
    for block in range(16):
        page[:] = (b"%d %d;" % (turn, block)).ljust(64, b".") * (PAGE // 64)
        assert os.pwritev(file, [page], block * PAGE) == PAGE
        sums.append(zlib.crc32(page))
    os.fsync(file)
    for block in range(16):
        assert os.preadv(file, [page], block * PAGE) == PAGE
        assert zlib.crc32(page) == sums[block], (turn, block)
    # The processor is emulated, and others need it too.
    time.sleep(0.2)
print(turn)
"""
"""Writes to a drive and reads it again, past the page cache, until a file is there; prints how often."""


@pytest.fixture(scope="module")
def bed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with chassis_bed(lab, tmp_path_factory.mktemp("chassis")) as made:
        yield made


def command(device: str, to: str = "", *options: str) -> tuple[str, ...]:
    """Return the command that brings a device to a node, or from where it is."""
    name = DRIVES.get(device, device)
    return ("attach", name, "--to", to, *options) if to else ("detach", name, *options)


def move(bed: Bed, device: str, to: str = "", *options: str, check: bool = True) -> Result:
    """Move a device, as the cluster's operator."""
    return farbus(bed.a, *command(device, to, *options), "--quiet", check=check)


def bring(bed: Bed, device: str, to: str) -> None:
    """Move a device to a node, or to none, unless it is there."""
    if bed.chassis.nodes()[device] != to:
        move(bed, device, to)


def sum_of(node: Guest, drive: str) -> str:
    """Return the checksum of what is on a drive, past the page cache."""
    read = f"dd if={path_of(drive)} bs=64k iflag=direct status=none"
    return node.shell(f"{read} | md5sum", limit_s=JOB_LIMIT_S).stdout


def fill(node: Guest, drive: str) -> str:
    """Write at random to a drive; return its checksum."""
    node.shell(f"dd if=/dev/urandom of={path_of(drive)} bs=64k oflag=direct conv=fsync status=none count=64")
    return sum_of(node, drive)


def test_a_drive_and_a_card_move_while_another_drive_is_written_to(bed: Bed, tell: Callable[[str], None]) -> None:
    move(bed, BUSY_DRIVE, "a")
    writer = bed.a.start(
        "/opt/farbus/bin/python", "-c", WRITER, path_of(BUSY_DRIVE), "/run/enough", limit_s=10 * JOB_LIMIT_S
    )
    move(bed, DRIVE, "b")
    written = fill(bed.b, DRIVE)
    move(bed, CARD, "b")
    assert on_bus(bed.b) == {DRIVE, CARD}

    # By the name that its node gives it.
    farbus(bed.a, "attach", name_of(DRIVE), "--to", "c", "--quiet")
    assert sum_of(bed.c, DRIVE) == written
    assert bed.b.run("test", "-e", path_of(DRIVE), check=False).code == 1
    move(bed, CARD, "c")
    assert (on_bus(bed.b), on_bus(bed.c)) == (set(), {DRIVE, CARD})

    assert not writer.ended
    bed.a.run("touch", "/run/enough")
    tell(f"while devices moved, a drive elsewhere was written and read again {writer.wait().stdout.strip()} times")


def test_detach_is_refused_with_the_holders_named(bed: Bed) -> None:
    bring(bed, DRIVE, "c")
    bed.c.shell(f"mke2fs -q {path_of(DRIVE)}; mkdir -p /mnt/held; mount {path_of(DRIVE)} /mnt/held")
    bed.c.shell("systemd-run --unit=holder sh -c 'exec sleep infinity > /mnt/held/file'")
    bed.c.until("test -e /mnt/held/file")
    # Not even eviction lets go of a file system.
    for options in (), ("--evict",):
        refused = move(bed, DRIVE, "", "--drain", "1", *options, check=False)
        assert refused.code
        assert "is mounted on /mnt/held" in refused.stderr
    assert bed.c.run("findmnt", "/mnt/held").stdout
    bed.c.shell("systemctl stop holder; umount /mnt/held")


def test_detach_is_refused_for_an_open_drive_until_its_program_is_evicted(bed: Bed) -> None:
    bring(bed, DRIVE, "c")
    bed.c.shell(f"systemd-run --unit=reader sh -c 'exec sleep infinity < {path_of(DRIVE)}'")
    bed.c.until("pgrep -x sleep")
    refused = move(bed, DRIVE, "", "--drain", "1", check=False)
    assert refused.code
    assert "is open in pid" in refused.stderr
    assert "(sleep)" in refused.stderr
    move(bed, DRIVE, "", "--drain", "1", "--evict")
    assert bed.c.run("test", "-e", path_of(DRIVE), check=False).code == 1
    assert bed.c.run("pgrep", "-x", "sleep", check=False).code == 1


def inode_of(node: Guest, drive_or_card: str) -> str:
    """Return what tells a device that was removed and found again from one that has stayed."""
    assert drive_or_card in on_bus(node)
    return node.shell("stat -c '%n %i' $(grep -lx 0x0005 /sys/bus/pci/devices/*/device)").stdout


def test_a_port_whose_window_is_too_narrow_is_refused_before_anything_is_touched(bed: Bed) -> None:
    # With its first port taken, a has only the one below the switch.
    bring(bed, BUSY_DRIVE, "a")
    bring(bed, BIG_CARD, "b")
    before, rows = inode_of(bed.b, BIG_CARD), bed.chassis.rows()
    refused = move(bed, BIG_CARD, "a", check=False)
    assert refused.code
    assert "BAR 2 of" in refused.stderr
    assert "(64 MiB, 64-bit, prefetchable)" in refused.stderr
    assert "hpmmioprefsize=64M" in refused.stderr
    assert inode_of(bed.b, BIG_CARD) == before
    assert bed.chassis.rows() == rows
    assert bed.agreement()[BIG_CARD] == "b"


def test_a_device_that_nobody_has_seen_and_does_not_fit_is_given_back(bed: Bed) -> None:
    bring(bed, BUSY_DRIVE, "a")
    bring(bed, BIG_CARD, "")
    refused = move(bed, BIG_CARD, "a", check=False)
    assert refused.code
    assert "has no place" in refused.stderr
    assert bed.agreement()[BIG_CARD] == ""


# What dies in the middle.  A request that is never answered, though it was done, keeps a move where it is until its
# deadline: what is done to agents and nodes meanwhile hits it.


def begin_to_move(bed: Bed, step: FabricStep, source: str = "b", target: str = "c") -> tuple[str, str]:
    """Begin to move the drive from node to node, up to a step that the chassis does and never answers.

    Returns the drive's checksum, and the move.
    """
    bring(bed, DRIVE, source)
    written = fill(bed.nodes[source], DRIVE)
    bed.chassis.begin_again(script=[Fault(kind=FaultKind.HANG, step=step, after=True)])
    bed.a.shell(
        f"rm -f /run/moved; systemd-run --quiet --collect --unit=moving --property=StandardOutput=file:/run/moved"
        f" --property=StandardError=file:/run/moved farbus {' '.join(command(DRIVE, target))}"
    )
    bed.chassis.until(DRIVE, "" if step is FabricStep.UNASSIGN else target)
    return written, the_open_move(bed)


def the_open_move(bed: Bed) -> str:
    """Return the move that has not ended."""
    (found,) = bed.ask("moves")
    assert found["state"] in ("detaching", "attaching")
    return str(found["id"])


def end_of(bed: Bed, move_id: str) -> dict[str, object]:
    """Wait until a move has ended, and who watches it has been told; return it."""
    farbus(bed.a, "moves", move_id, "-o", "json", until=r'"state": "(done|failed|undone|stuck)"')
    bed.a.until("! systemctl is-active --quiet moving", limit_s=JOB_LIMIT_S)
    bed.chassis.begin_again()
    (found,) = bed.ask("moves", move_id)
    assert isinstance(found, dict)
    return found


KILLS = [(FabricStep.UNASSIGN, "b"), (FabricStep.UNASSIGN, "a"), (FabricStep.ASSIGN, "a"), (FabricStep.ASSIGN, "c")]
"""A step of the chassis, and whose agent is killed in it: the one that gives, that serves the chassis, that takes."""


@pytest.mark.parametrize(("step", "victim"), KILLS)
def test_a_move_goes_on_over_a_kill_of_an_agent(bed: Bed, step: FabricStep, victim: str) -> None:
    written, open_move = begin_to_move(bed, step)
    node = bed.nodes[victim]
    pid = main_pid(node, "farbus-agent")
    node.kill(pid)
    nodes_are_ready(bed.a, len(PORTS))
    assert main_pid(node, "farbus-agent") not in (pid, "0")
    # Where nobody serves the chassis for two minutes, which an agent may need here to start, a move is undone.
    ends_well(bed, open_move, written, may_be_undone=victim == "a")


@pytest.mark.parametrize(("step", "victim"), [(FabricStep.UNASSIGN, "b"), (FabricStep.ASSIGN, "c")])
def test_a_move_goes_on_when_a_node_that_lost_its_power_is_back(bed: Bed, step: FabricStep, victim: str) -> None:
    written, open_move = begin_to_move(bed, step)
    node = bed.nodes[victim]
    node.power_off()
    assert the_open_move(bed) == open_move
    node.power_on_again()
    node.wait_for_boot()
    agent_is_back(node)
    nodes_are_ready(bed.a, len(PORTS))
    ends_well(bed, open_move, written)


def ends_well(
    bed: Bed, move_id: str, written: str, source: str = "b", target: str = "c", *, may_be_undone: bool = False
) -> None:
    """Check that a move has ended as its operator was told, and that the drive is there, with what was on it."""
    ended = end_of(bed, move_id)
    told = bed.a.read("/run/moved")
    if may_be_undone and ended["state"] == "undone":
        where = source
        assert f"it is on node {source} again" in told
    else:
        where = target
        assert ended["state"] == "done", ended
        assert told.splitlines()[-1].startswith(f"device {name_of(DRIVE)} is on node {target}")
    assert sum_of(bed.nodes[where], DRIVE) == written
    assert bed.agreement()[DRIVE] == where


# Moves at random.


class Order(NamedTuple):
    """What is asked of a device, which is at ``source``."""

    device: str
    source: str
    target: str
    options: tuple[str, ...] = ()


def order_for(device: str, source: str, draw: random.Random) -> Order:
    """Draw what is asked of a device: most of it can be done, some of it not."""
    other = {"b": "c", "c": "b"}.get(source, draw.choice("bc"))
    target = draw.choices([other, "", source], weights=[6, 3, 1])[0]
    options: tuple[str, ...] = ()
    if device in DRIVES and source:
        options = draw.choice([(), ("--evict", "--drain", "1"), ("--drain", "1")])
    return Order(device, source, target, options)


def hold(bed: Bed, order: Order) -> None:
    """Have a program hold a drive that holders are given a second to let go of.

    Of a move that is stuck the work may go on, and take the drive away: the program ends then.
    """
    if order.options:
        bed.nodes[order.source].shell(
            f"systemd-run --quiet --collect --unit=holder sh -c 'exec sleep infinity < {path_of(order.device)}'"
        )
        bed.nodes[order.source].until(
            "systemctl show -P MainPID holder | xargs -I% readlink /proc/%/fd/0 | grep nvme"
            " || ! systemctl --quiet is-active holder"
        )


def let_go(bed: Bed, order: Order) -> None:
    if order.options:
        bed.nodes[order.source].run("systemctl", "stop", "holder", check=False)


NOT_KNOWN = "not known"
"""How a move has ended whose command has lost the cluster on the way: the agent that it asked was started anew, or
could not answer in time, as on a machine with much else to do."""


def outcome_of(order: Order, result: Result) -> str:
    """Return how a move has ended, after checking that a failure was told."""
    told = json.loads(result.stdout or "[]")
    if not told and result.code in (ExitCode.UNAVAILABLE, ExitCode.TIMED_OUT):
        return NOT_KNOWN
    state = str(told[0]["state"]) if told else "refused"
    if state == "done":
        assert not result.code, result
        return state
    assert result.code, result
    assert order.device in result.stderr or DRIVES.get(order.device, "-") in result.stderr, result
    return state


def check_place(bed: Bed, order: Order, state: str) -> None:
    """Check that the chassis has a device where its operator was told that it is."""
    now = bed.chassis.nodes()[order.device]
    if state == NOT_KNOWN:
        assert now in (order.source, order.target), order
    elif state != "stuck":
        assert now == (order.target if state == "done" else order.source), (order, state)


def stuck_moves(bed: Bed) -> list[str]:
    """Return the devices of moves that are stuck, once no other is under way."""
    farbus(bed.a, "moves", "-o", "json", until=r'\A(?![\s\S]*"state": "(attaching|detaching)")')
    return [str(move["device"]) for move in bed.ask("moves")]


def seen(bed: Bed, outcomes: collections.Counter[str], watch: Watch) -> str:
    """Return in a line what moves at random have come to so far."""
    faults = collections.Counter(line.split()[3] for line in tuple(bed.chassis.said) if ": fault: " in line)
    return (
        f"{outcomes.total()} of {MOVES} moves at random (seed {SEED}): {_counts(outcomes)};"
        f" faults of the chassis: {_counts(faults)}; {watch.looks} looks for a device in two nodes"
    )


def _counts(counted: collections.Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counted.most_common()) or "none"


def test_moves_at_random_with_a_chassis_that_fails_lose_nothing_and_give_nothing_twice(
    bed: Bed, tell: Callable[[str], None], say: Callable[[str], None]
) -> None:
    bring(bed, BIG_CARD, "")
    draw = random.Random(SEED)
    outcomes: collections.Counter[str] = collections.Counter()
    bed.chassis.begin_again(rates=FAULTS, seed=SEED)
    said_at = time.monotonic()
    with Watch(bed.b, bed.c) as watch, ThreadPoolExecutor() as pool, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(lambda: tell(seen(bed, outcomes, watch)))
        for _ in range(MOVES // 2):
            at = bed.chassis.nodes()
            orders = [order_for(device, at[device], draw) for device in draw.sample([DRIVE, CARD, OTHER_CARD], 2)]
            for order in orders:
                hold(bed, order)
            results = pool.map(
                lambda order: move(bed, order.device, order.target, *order.options, "-o", "json", check=False), orders
            )
            states = [outcome_of(order, result) for order, result in zip(orders, list(results), strict=True)]
            outcomes.update(states)
            if NOT_KNOWN in states:
                stuck_moves(bed)
            for order, state in zip(orders, states, strict=True):
                let_go(bed, order)
                check_place(bed, order, state)
            assert not on_bus(bed.b) & on_bus(bed.c)
            assert not watch.doubles
            if time.monotonic() - said_at >= SAY_INTERVAL_S:
                say(seen(bed, outcomes, watch))
                said_at = time.monotonic()
    bed.chassis.begin_again()
    # Somebody has looked.
    for device in stuck_moves(bed):
        farbus(bed.a, "attach", device, "--to", "b", "--quiet")
    assert set(bed.agreement()) == set(bed.chassis.rows())
    ended = bed.ask("moves", "--all")
    assert all(each["state"] == "done" or each["error"] for each in ended)
